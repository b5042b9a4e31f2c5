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
