"""The only way in: a trace file of any known format becomes a validated ``Trace``."""

from __future__ import annotations

import gzip
import io
import zlib
from pathlib import Path

from pytest_moetier.errors import InputError
from pytest_moetier.trace import formats
from pytest_moetier.trace.records import Trace

_CHUNK_BYTES = 1 << 20
_NEXT = "give another trace file: `moetier trace synth PRESET FILE` writes one, `moetier trace info FILE` reads it"


def _unpacked(path: Path, data: bytes) -> tuple[bytes, str]:
    """Return the text of a gzipped file as far as it goes, and a warning if it is cut off."""
    out = io.BytesIO()
    try:
        with gzip.GzipFile(fileobj=io.BytesIO(data)) as handle:
            while part := handle.read1(_CHUNK_BYTES):
                out.write(part)
    except EOFError:
        return out.getvalue(), f"the gzip stream ends early, after {out.tell()} bytes of text"
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InputError(f"{path} is damaged: {error}", "a whole gzip file") from error
    return out.getvalue(), ""


def load_trace(path: Path | str, format: str | None = None, *, n_experts: int | None = None) -> Trace:  # noqa: A002
    """Return the trace in a file.

    Args:
        path: the file; gzip is recognised by its content.
        format: a name of ``formats.READERS``; default: told from the first line.
        n_experts: experts per layer, for formats that do not state it.

    Raises:
        InputError: no such file, no known format, or a record that breaks a rule; the message names file and line.
    """
    file = Path(path)
    try:
        return _read(file, format, n_experts)
    except InputError as error:
        seen = error.seen if str(file) in error.seen else f"{file}: {error.seen}"
        raise InputError(seen, error.expected, error.do or _NEXT) from error


def _read(file: Path, format: str | None, n_experts: int | None) -> Trace:  # noqa: A002
    try:
        data = file.read_bytes()
    except OSError as error:
        raise InputError(f"trace {file}: {error.strerror}", "a trace file that may be read") from error
    cut = ""
    if data.startswith(formats.GZIP_MAGIC):
        data, cut = _unpacked(file, data)
    lines = formats.parse_lines(file, data)
    if cut:
        lines.warnings.insert(0, cut)
    first = lines.rows[0][1]
    names = ", ".join(sorted(formats.READERS))
    if format is not None and format not in formats.READERS:
        raise InputError(f"no trace format {format!r}", f"one of {names}")
    fitting = [one for one in formats.READERS.values() if one.name == format or (format is None and one.sniff(first))]
    if not fitting:
        keys = ", ".join(sorted(map(str, first)))[:80]
        raise InputError(f"{file} is of no known trace format (its first line has {keys})", f"one of {names}")
    return fitting[0].read(lines, n_experts)
