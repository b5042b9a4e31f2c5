"""The extension refuses every buffer it cannot take, with what it saw and what it expected."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from pytest_moetier import _sim

SEQUENCE = np.array([0, 1, 0], np.uint32)
SIZES = np.array([10, 20], np.uint64)


def lru(sequence: object = SEQUENCE, sizes: object = SIZES, out: object = None, **kwargs: int) -> None:
    _sim.lru_distances(sequence, sizes, np.empty(3, np.uint64) if out is None else out, **kwargs)


def read_only() -> np.ndarray:
    out = np.empty(3, np.uint64)
    out.flags.writeable = False
    return out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"sequence": SEQUENCE.astype(np.int32)},
            "format 'i', 4 bytes each; expected native uint32",
        ),
        ({"sequence": SEQUENCE.astype(np.uint64)}, "sequence has items of format .*, 8 bytes each"),
        ({"sequence": SEQUENCE.astype(">u4")}, "sequence has items of format '>I'"),
        ({"sequence": np.arange(6, dtype=np.uint32)[::2]}, r"sequence is not contiguous \(stride 8 bytes\)"),
        ({"sequence": SEQUENCE.reshape(1, 3)}, "sequence has 2 dimensions; expected 1"),
        ({"sequence": np.frombuffer(bytes(13), np.uint32, 3, offset=1)}, "sequence starts at an address"),
        ({"sequence": np.array([0, 1, 2], np.uint32)}, r"sequence\[2\] is 2; expected an index below 2"),
        ({"sizes": SIZES.astype(np.float64)}, "size_bytes has items of format 'd'"),
        ({"sizes": np.array([2**62, 2**62], np.uint64)}, r"add up to 2\^63 bytes or more"),
        ({"sizes": np.array([2**64 - 1, 1], np.uint64)}, r"add up to 2\^63 bytes or more"),
        ({"sizes": np.empty(0, np.uint64)}, r"sequence\[0\] is 0; expected an index below 0"),
        ({"out": np.empty(2, np.uint64)}, "out has 2 items; expected 3, one per access"),
        ({"out": read_only()}, "out is read-only"),
        ({"passes": 0}, "passes is 0; expected 1 or more"),
    ],
)
def test_a_wrong_buffer_is_refused(arguments: dict[str, object], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        lru(**arguments)


def test_an_output_over_its_own_input_is_refused() -> None:
    memory = np.zeros(8, np.uint64)
    with pytest.raises(ValueError, match="out shares memory with an input"):
        lru(memory.view(np.uint32)[:3], SIZES, memory[:3])


def test_something_that_is_no_buffer_is_a_type_error() -> None:
    with pytest.raises(TypeError):
        lru([0, 1, 0])


@pytest.mark.parametrize(
    ("capacity", "error"),
    [
        (-1, OverflowError),
        (2**64, OverflowError),
        (1.5, TypeError),
    ],
)
def test_a_capacity_that_is_no_uint64_is_refused(capacity: object, error: type[Exception]) -> None:
    with pytest.raises(error):
        _sim.belady_missed_pages(SEQUENCE, SIZES, capacity)


def test_misses_beyond_uint64_are_an_error_not_a_small_number() -> None:
    with pytest.raises(OverflowError, match="add up to"):
        _sim.belady_missed_pages(np.zeros(4, np.uint32), np.array([2**63 - 1], np.uint64), 0)


def test_a_refused_call_releases_its_buffers() -> None:
    memory = bytearray(12)
    with pytest.raises(ValueError, match="out has"):
        lru(memoryview(memory).cast("I"), SIZES, np.empty(1, np.uint64))
    memory.append(0)  # BufferError while a view is held


def test_the_interpreter_runs_on_while_a_simulation_works() -> None:
    sequence = np.random.default_rng(1).integers(0, 200_000, 1_000_000, dtype=np.uint32)
    sizes, out = np.ones(200_000, np.uint64), np.empty(1_000_000, np.uint64)
    worker = threading.Thread(target=_sim.lru_distances, args=(sequence, sizes, out))
    worker.start()
    turns = 0
    while worker.is_alive():
        turns += 1
    assert turns > 100
    assert int(out.max()) <= 200_000
