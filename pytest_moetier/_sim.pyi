import numpy as np
import numpy.typing as npt

def lru_distances(
    sequence: npt.NDArray[np.uint32],
    size_bytes: npt.NDArray[np.uint64],
    out: npt.NDArray[np.uint64],
    passes: int = 2,
) -> None: ...
def belady_missed_pages(
    sequence: npt.NDArray[np.uint32],
    size_pages: npt.NDArray[np.uint64],
    capacity_pages: int,
) -> int: ...
def belady_content(
    sequence: npt.NDArray[np.uint32],
    size_bytes: npt.NDArray[np.uint64],
    capacity_bytes: int,
    out: npt.NDArray[np.uint64],
    passes: int = 2,
) -> None: ...
def lru_stack(
    key: npt.NDArray[np.uint32],
    segments: npt.NDArray[np.uint64],
    events: npt.NDArray[np.uint64] | None,
    size: npt.NDArray[np.uint64] | None,
    out: npt.NDArray[np.uint32] | npt.NDArray[np.uint64],
    stop: npt.NDArray[np.uint8] | None = None,
) -> None: ...
def lru_histogram(
    key: npt.NDArray[np.uint32],
    segments: npt.NDArray[np.uint64],
    events: npt.NDArray[np.uint64] | None,
    score_from: npt.NDArray[np.uint64],
    hist: npt.NDArray[np.uint64],
    stop: npt.NDArray[np.uint8] | None = None,
) -> None: ...
def belady_hits(
    key: npt.NDArray[np.uint32],
    segments: npt.NDArray[np.uint64],
    events: npt.NDArray[np.uint64] | None,
    size: npt.NDArray[np.uint64] | None,
    budgets: npt.NDArray[np.uint64],
    score_from: npt.NDArray[np.uint64],
    hits: npt.NDArray[np.uint8] | None = None,
    stop: npt.NDArray[np.uint8] | None = None,
) -> tuple[bytes, bytes]: ...
def lfu_hits(
    key: npt.NDArray[np.uint32],
    segments: npt.NDArray[np.uint64],
    events: npt.NDArray[np.uint64] | None,
    size: npt.NDArray[np.uint64] | None,
    budgets: npt.NDArray[np.uint64],
    score_from: npt.NDArray[np.uint64],
    hits: npt.NDArray[np.uint8] | None = None,
    stop: npt.NDArray[np.uint8] | None = None,
    perfect: bool = False,
) -> tuple[bytes, bytes]: ...
