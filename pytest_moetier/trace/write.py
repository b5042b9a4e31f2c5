"""Writing traces: the canonical JSONL (``formats.canonical`` describes it)."""

from __future__ import annotations

import gzip
import io
import json
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import orjson

from pytest_moetier.errors import InputError
from pytest_moetier.trace.formats.canonical import CANONICAL_FORMAT, CANONICAL_VERSION
from pytest_moetier.trace.records import Trace


def _canonical_lines(trace: Trace) -> Iterable[bytes]:
    meta: dict[str, object] = {
        "type": "meta",
        "format": CANONICAL_FORMAT,
        "version": CANONICAL_VERSION,
        "layers": list(trace.layers),
        "n_experts": trace.n_experts,
        "k": trace.k,
        "iterations": trace.n_iterations,
        "records": trace.n_records,
        "synthetic": trace.synthetic,
        "source": trace.source,
        "order": trace.order,
    }
    if trace.expert_bytes:
        meta["expert_bytes"] = list(trace.expert_bytes)
    if trace.accepted_tokens != trace.n_iterations + trace.kind_counts()["spec_accept"]:
        meta["accepted_tokens"] = trace.accepted_tokens
    yield json.dumps(meta, separators=(",", ":")).encode()
    parts = [("decode", trace)] if trace.prefill is None else [("prefill", trace.prefill), ("decode", trace)]
    for phase, part in parts:
        for record in part.records():
            yield orjson.dumps(
                {
                    "type": record.kind,
                    "phase": phase,
                    "iteration": record.iteration,
                    "layer": record.layer,
                    "experts": record.experts,
                }
            )


def write_trace(trace: Trace, path: Path) -> None:
    """Write ``trace`` in our own format; gzipped when the name ends in ``.gz`` (equal traces give equal bytes).

    Raises:
        InputError: the file cannot be written, or is a link or special file: as root that could be anyone's.
    """
    if path.is_symlink() or (path.exists() and not path.is_file()):
        kind = "a symbolic link" if path.is_symlink() else "no plain file"
        raise InputError(f"{path} is {kind}", "a plain file, or none yet", "remove it or choose another path")
    data = b"\n".join(_canonical_lines(trace)) + b"\n"
    if path.suffix == ".gz":
        packed = io.BytesIO()
        with gzip.GzipFile(fileobj=packed, mode="wb", mtime=0) as handle:
            handle.write(data)
        data = packed.getvalue()
    new = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with new.open("xb") as handle:
            handle.write(data)
        new.replace(path)
    except OSError as error:
        with suppress(OSError):
            new.unlink()
        raise InputError(
            f"{path} cannot be written: {error.strerror}",
            "a path that may be written to, with room for the trace",
            f"ls -ld {path.parent}",
        ) from error
