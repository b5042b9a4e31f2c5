"""What is written: our own lines in blocks of bounded memory, arrays, and requests that libCacheSim reads as we do."""

from __future__ import annotations

import json
import os
import struct
import subprocess
import sys
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pytest_moetier import _sim
from pytest_moetier.errors import InputError
from pytest_moetier.trace.batch import merge
from pytest_moetier.trace.load import load_trace
from pytest_moetier.trace.records import BATCH, NORMAL, SPEC_ACCEPT, SPEC_FALLBACK, Trace, make_trace
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import convert, write_npy, write_oracle_general, write_trace

ENDINGS = [".jsonl", ".jsonl.gz", ".jsonl.zst", ".npy", ".oracleGeneral", ".oracleGeneral.zst"]


def speculative(**changed: Any) -> Trace:
    """Two layers, k = 2: a normal iteration, an accept, a fallback layer by layer; a prompt of three positions."""
    parts: dict[str, Any] = {
        "layers": (3, 5),
        "n_experts": 8,
        "k": 2,
        "synthetic": False,
        "source": "by hand",
        "iteration": [0, 0, 1, 1, 2, 2, 2, 2],
        "layer": [3, 5, 3, 5, 3, 3, 5, 5],
        "kind": [NORMAL] * 2 + [SPEC_ACCEPT] * 2 + [SPEC_FALLBACK] * 4,
        "offsets": [0, 2, 4, 8, 12, 14, 16, 18, 20],
        "experts": [7, 3, 0, 1, 3, 7, 7, 2, 1, 0, 0, 5, 4, 6, 1, 2, 6, 4, 2, 1],
    }
    return make_trace(**(parts | changed))


def with_prompt() -> Trace:
    prompt = {"iteration": [0, 0], "layer": [3, 5], "kind": [BATCH] * 2, "offsets": [0, 6, 12]}
    prefill = speculative(**prompt, experts=[1, 2, 1, 3, 2, 3, 0, 4, 4, 1, 2, 5], whole=False)
    return speculative(prefill=prefill, expert_bytes=(100, 70))


def names_in(folder: Path) -> list[str]:
    return sorted(one.name for one in folder.iterdir())


def plain_lines(trace: Trace) -> bytes:
    """Return the record lines of the decode, one at a time."""
    lines = []
    for record in trace.records():
        row = {"type": record.kind, "phase": "decode", "iteration": record.iteration, "layer": record.layer}
        lines.append(orjson.dumps(row | {"experts": record.experts}) + b"\n")
    return b"".join(lines)


@settings(max_examples=25, deadline=None)
@given(iterations=st.integers(1, 900), seed=st.integers(0, 99), k=st.integers(1, 5))
def test_lines_written_in_blocks_are_those_written_one_by_one(
    tmp_path_factory: pytest.TempPathFactory, iterations: int, seed: int, k: int
) -> None:
    trace = synth_trace(layers=5, iterations=iterations, seed=seed, experts=12, k=k, domain="code")
    path = tmp_path_factory.mktemp("lines") / "t.jsonl"
    write_trace(trace, path)
    meta, lines = path.read_bytes().split(b"\n", 1)
    assert lines == plain_lines(trace)
    assert json.loads(meta)["records"] == trace.n_records


@pytest.mark.parametrize("name", ["t.jsonl", "t.jsonl.gz", "t.jsonl.zst"])
def test_all_of_a_trace_comes_back_and_equal_traces_are_equal_bytes(tmp_path: Path, name: str) -> None:
    trace = with_prompt()
    (tmp_path / "other").mkdir()
    assert write_trace(trace, tmp_path / name) == ()
    write_trace(trace, tmp_path / "other" / name)
    back = load_trace(tmp_path / name)
    assert (tmp_path / name).read_bytes() == (tmp_path / "other" / name).read_bytes()
    assert (back.fingerprint, back.source, back.order) == (trace.fingerprint, trace.source, trace.order)
    assert (back.expert_bytes, back.accepted_tokens, back.warnings) == ((100, 70), 4, ())
    assert back.prefill is not None
    assert trace.prefill is not None
    assert back.prefill.fingerprint == trace.prefill.fingerprint


def test_the_memory_of_writing_does_not_grow_with_the_trace(tmp_path: Path) -> None:
    ids = np.tile(np.arange(8), 60_000)
    count = len(ids) // 8
    rows = {"iteration": np.arange(count), "layer": np.full(count, 3), "kind": np.full(count, NORMAL)}
    trace = speculative(**rows, layers=(3,), k=8, experts=ids, offsets=np.arange(count + 1) * 8)
    tracemalloc.start()
    write_trace(trace, tmp_path / "t.jsonl")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    size = (tmp_path / "t.jsonl").stat().st_size
    assert size > 5_000_000
    assert peak < size / 2


def test_without_its_extra_zstd_is_refused_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "zstandard", None)
    with pytest.raises(InputError, match=r"zstd; .*next: pip install 'pytest-moetier\[zstd\]'"):
        write_trace(speculative(), tmp_path / "t.jsonl.zst")
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("ending", ENDINGS)
def test_links_and_special_files_are_refused_and_untouched(tmp_path: Path, ending: str) -> None:
    (tmp_path / "target").write_text("theirs")
    (tmp_path / f"link{ending}").symlink_to(tmp_path / "target")
    (tmp_path / f"hanging{ending}").symlink_to(tmp_path / "none")
    (tmp_path / f"folder{ending}").mkdir()
    os.mkfifo(tmp_path / f"pipe{ending}")
    before = names_in(tmp_path)
    for name, kind in (
        ("link", "a symbolic link"),
        ("hanging", "a symbolic"),
        ("folder", "no plain"),
        ("pipe", "no plain"),
    ):
        with pytest.raises(InputError, match=f"{name}{ending} is {kind}"):
            convert(speculative(), tmp_path / f"{name}{ending}")
    assert (tmp_path / "target").read_text() == "theirs"
    assert names_in(tmp_path) == before


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_path_that_cannot_be_written_to_is_one_message(tmp_path: Path, ending: str) -> None:
    with pytest.raises(InputError, match=r"cannot be written: No such file or directory; .*next: ls -ld"):
        convert(speculative(), tmp_path / "none" / f"t{ending}")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be written: Not a directory"):
        convert(speculative(), tmp_path / "file" / f"t{ending}")


WRITE = """
import sys
from pathlib import Path
from pytest_moetier.errors import InputError
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import convert
try:
    convert(synth_trace(layers=4, iterations=1000, experts=64, k=4), Path(sys.argv[1]))
except InputError as error:
    print(error)
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="a full disk is made with mount, which needs root")
@pytest.mark.parametrize("ending", ENDINGS)
def test_a_full_disk_is_one_message_and_leaves_what_was_there(tmp_path: Path, ending: str) -> None:
    steps = ('mount -t tmpfs -o size=8k none "$1"', 'cd "$1"', 'echo older >"$2"', '"$3" -c "$4" "$1/$2"', "ls -A")
    script = " && ".join([*steps, 'cat "$2"'])
    argv = ["unshare", "-m", "sh", "-c", script, "sh", str(tmp_path), f"t{ending}", sys.executable, WRITE]
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or "mount:" in done.stderr:
        pytest.skip(f"no private mounts here: {done.stderr.strip()}")
    message, *left = done.stdout.splitlines()
    assert "cannot be written" in message
    assert "with room for the trace; next: ls -ld" in message
    assert left == [f"t{ending}", "older"]
    assert done.stderr == ""


@pytest.mark.parametrize("error", [KeyboardInterrupt, MemoryError])
def test_an_interrupted_write_leaves_no_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def interrupted(*_: object) -> None:
        raise error

    monkeypatch.setattr("pytest_moetier.trace.write._write_records", interrupted)
    with pytest.raises(error):
        write_trace(speculative(), tmp_path / "t.jsonl")
    assert names_in(tmp_path) == []


def test_a_long_name_and_a_name_that_is_no_text_are_written(tmp_path: Path) -> None:
    for name in ("x" * 249 + ".jsonl", os.fsdecode(b"\xff.jsonl")):
        write_trace(speculative(source=f"of {name}"), tmp_path / name)
        assert load_trace(tmp_path / name).source == f"of {name}".replace("\udcff", "\\udcff")


def test_an_array_has_a_row_for_every_pass(tmp_path: Path) -> None:
    said = write_npy(speculative(), tmp_path / "t.npy")
    rows = np.load(tmp_path / "t.npy")
    assert (rows.dtype, rows.shape) == (np.uint16, (5, 2, 2))
    assert rows[:, 0].tolist() == [[7, 3], [3, 7], [7, 2], [4, 6], [1, 2]]
    assert rows[:, 1].tolist() == [[0, 1], [1, 0], [0, 5], [6, 4], [2, 1]]
    assert said[0] == (
        "an array has no types: 1 spec_accept and 1 spec_fallback iterations are two rows each, "
        "5 rows for 4 accepted tokens in all"
    )
    assert said[1:] == (
        "an array does not state the experts per layer (8)",
        "an array does not number its layers (3 to 5): they become 0, 1, 2, ...",
    )


@settings(max_examples=40, deadline=None)
@given(layers=st.integers(1, 5), iterations=st.integers(1, 40), seed=st.integers(0, 2**32), k=st.integers(1, 6))
def test_the_rows_of_an_array_are_the_passes_of_its_layers(
    tmp_path_factory: pytest.TempPathFactory, layers: int, iterations: int, seed: int, k: int
) -> None:
    trace = synth_trace(layers=layers, iterations=iterations, seed=seed, experts=12, k=k, order="score")
    path = tmp_path_factory.mktemp("array") / "t.npy"
    said = write_npy(trace, path)
    rows = np.load(path)
    assert all((rows[:, layer] == trace.passes(layer)).all() for layer in range(layers))
    assert rows.size == trace.n_accesses
    assert said[-1] == "the file does not say that the trace is synthetic"
    back = load_trace(path, n_experts=12)
    assert back.n_iterations == len(rows) == trace.n_accesses // layers // k
    assert all((back.passes(layer) == trace.passes(layer)).all() for layer in range(layers))


def test_an_array_leaves_out_the_prompt_and_sizes_and_says_so(tmp_path: Path) -> None:
    said = convert(with_prompt(), tmp_path / "t.npy")
    assert said[-2:] == ("an array does not state the size of an expert", "the prefill was left out (2 records)")


def test_several_positions_in_one_iteration_are_no_rows_of_an_array(tmp_path: Path) -> None:
    for trace in (merge([speculative()]).trace, with_prompt().prefill):
        assert trace is not None
        with pytest.raises(InputError, match="by hand holds several positions in one iteration"):
            write_npy(trace, tmp_path / "t.npy")
    assert names_in(tmp_path) == []


def test_requests_are_packed_as_libcachesim_reads_them(tmp_path: Path) -> None:
    said = write_oracle_general(speculative(expert_bytes=(100, 70)), tmp_path / "t.oracleGeneral")
    requests = list(struct.iter_unpack("<IQIq", (tmp_path / "t.oracleGeneral").read_bytes()))
    assert [time for time, *_ in requests] == [0] * 4 + [1] * 8 + [2] * 8
    # layer 3 is the first layer, 5 the second: 8 experts each, and 1 more
    assert [obj for _, obj, _, _ in requests[:4]] == [8, 4, 9, 10]
    assert [size for _, _, size, _ in requests[:6]] == [100, 100, 70, 70, 100, 100]
    assert [following for *_, following in requests[:4]] == [6, 5, 10, 9]
    assert requests[-1][3] == -1
    assert said == ("requests have no types: spec_accept, spec_fallback are not told apart",)


def test_without_sizes_an_expert_counts_as_one_byte_and_this_is_said(tmp_path: Path) -> None:
    said = write_oracle_general(with_prompt(), tmp_path / "t.oracleGeneral")
    assert said[1:] == ("the prefill was left out (2 records)",)
    said = write_oracle_general(speculative(), tmp_path / "t.oracleGeneral")
    assert "every one is 1 byte" in said[1]
    assert {size for _, _, size, _ in struct.iter_unpack("<IQIq", (tmp_path / "t.oracleGeneral").read_bytes())} == {1}
    assert len(write_oracle_general(speculative(), tmp_path / "t.oracleGeneral", 4096)) == 1


@pytest.mark.parametrize("sizes", [0, 1 << 32, [1], [1, 2, 3], [5, 0]])
def test_a_size_that_the_format_cannot_hold_is_refused(tmp_path: Path, sizes: int | list[int]) -> None:
    with pytest.raises(InputError, match=r"one, or one per layer \(2\), each from 1 to 4294967295 bytes"):
        write_oracle_general(speculative(), tmp_path / "t.oracleGeneral", sizes)
    assert names_in(tmp_path) == []


@pytest.mark.parametrize("ending", [".oracleGeneral", ".oracleGeneral.bin", ".oracleGeneral.zst"])
@pytest.mark.parametrize("kind", ["stream", "batch"])
def test_libcachesim_misses_as_we_do_over_the_file(tmp_path: Path, ending: str, kind: str) -> None:
    peer = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    trace = synth_trace(layers=3, iterations=120, experts=64, k=4, domain="code")
    if kind == "batch":
        trace = merge([trace, synth_trace(layers=3, iterations=120, experts=64, k=4, domain="chat")]).trace
    path = tmp_path / f"t{ending}"
    convert(replace(trace, expert_bytes=(4096,) * 3), path)
    layer = np.repeat(trace.layer, np.diff(trace.offsets.astype(np.int64)))
    sequence = (layer.astype(np.uint32) * 64 + trace.experts).astype(np.uint32)
    distance = np.empty(len(sequence), np.uint64)
    _sim.lru_distances(sequence, np.full(3 * 64, 4096, np.uint64), distance, passes=1)
    for held in (1, 7, 12, 40, 100, 150, 192):
        reader = peer.TraceReader(str(path), peer.TraceType.ORACLE_GENERAL_TRACE)
        requests, missed = 0, 0
        cache = peer.LRU(cache_size=held * 4096)
        for request in reader:
            requests += 1
            missed += not cache.get(request)
        assert requests == trace.n_accesses
        assert missed == int((distance > held * 4096).sum())


def test_libcachesim_belady_finds_the_next_requests(tmp_path: Path) -> None:
    peer = pytest.importorskip("libcachesim", reason="libcachesim is the peer here: pip install libcachesim")
    trace = synth_trace(layers=2, iterations=100, experts=32, k=4)
    write_oracle_general(trace, tmp_path / "t.oracleGeneral")
    objects = [
        one.obj_id for one in peer.TraceReader(str(tmp_path / "t.oracleGeneral"), peer.TraceType.ORACLE_GENERAL_TRACE)
    ]
    for held in (8, 20, 40):
        reader = peer.TraceReader(str(tmp_path / "t.oracleGeneral"), peer.TraceType.ORACLE_GENERAL_TRACE)
        cache = peer.Belady(cache_size=held)
        assert sum(not cache.get(request) for request in reader) == belady(objects, held)


def belady(objects: list[int], held: int) -> int:
    """Return the misses of a cache that always admits, and throws out what comes again last."""
    cache: set[int] = set()
    missed = 0
    for at, one in enumerate(objects):
        if one not in cache:
            missed += 1
            if len(cache) == held:
                rest = objects[at + 1 :]
                cache.remove(max(cache, key=lambda held: rest.index(held) if held in rest else len(objects)))
            cache.add(one)
    return missed


def test_a_format_is_told_from_the_name_or_by_its_own(tmp_path: Path) -> None:
    for ending in ENDINGS:
        convert(speculative(), tmp_path / f"t{ending}")
    convert(speculative(), tmp_path / "t.data", "npy")
    assert (tmp_path / "t.data").read_bytes() == (tmp_path / "t.npy").read_bytes()
    convert(speculative(), tmp_path / "t.npy", "jsonl")
    assert (tmp_path / "t.npy").read_bytes() == (tmp_path / "t.jsonl").read_bytes()
    for name in ("t.csv", "t", "t.npy.gz"):
        with pytest.raises(
            InputError, match=rf"{name} does not tell its format; expected .*\.jsonl\.zst, \.npy, \.ora"
        ):
            convert(speculative(), tmp_path / name)
    with pytest.raises(InputError, match="no format 'csv' to write; expected one of jsonl, npy, oracleGeneral"):
        convert(speculative(), tmp_path / "t.npy", "csv")
