from typing import Any

import numpy as np
import numpy.typing as npt

def scan_jsonl(
    data: bytes | bytearray | memoryview,
    start: int,
    first_line: int,
    keys: tuple[str | None, str, str, str | None, str | None, str | None],
    phases: tuple[tuple[str, int], ...],
    kinds: tuple[tuple[str, int], ...],
) -> tuple[int, int, bytes, bytes, bytes, bytes, bytes, bytes, bytes, bytes]: ...
def locality(
    ids: npt.NDArray[np.integer[Any]],
    row_layer: npt.NDArray[np.uint16] | None,
    first_row: int,
    k: int,
    experts: npt.NDArray[np.uint64],
    sums: npt.NDArray[np.uint64],
) -> int: ...
