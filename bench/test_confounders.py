"""What else differs from kernel to kernel, measured: folio sizes, the file system, read-ahead.

Between two kernels more than MGLRU changes: ext4 has had large folios since 6.16, and a virtual disk's read-ahead went
from 128 KiB to 8192 with 7.x. A difference between kernels is said to be of reclaim only beside these cells.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from pytest_moetier.fixtures import CellHandle, CurveHandle

PLAIN = {}
READ_AHEAD = {"read_ahead": (128, 8192)}
XFS = {"filesystem": "xfs"}


@pytest.mark.moetier(
    finding="reclaim",
    workload="reclaim",
    mglru=("on", "off"),
    mechanism="cgroup",
    capacity="4.4%",
    cells=(PLAIN, READ_AHEAD, XFS),
)
def test_confounder(moetier_cell: CellHandle) -> None:
    """One wall on one file system with one read-ahead: every boot proved."""
    moetier_cell.measure()
    moetier_cell.judge()


@pytest.mark.parametrize("state", ["on", "off"])
@pytest.mark.parametrize("word", ["read_ahead_kb", "filesystem"])
def test_what_it_changes(moetier_curve: CurveHandle, word: str, state: str) -> None:
    """The device bytes stay within 14.9%, so that what differs between kernels beyond it is not this."""
    first, second = (128, 8192) if word == "read_ahead_kb" else ("ext4", "xfs")
    words = {"read_ahead_kb": 0} if word == "filesystem" else {"filesystem": "ext4"}
    one, other = (moetier_curve.need(mglru=state, **words, **{word: value}) for value in (first, second))
    ratio = moetier_curve.ratio("device_bytes", other, one, across=(word,))
    moetier_curve.conclude({f"{word}_device_ratio": ratio}, [*one.runs, *other.runs])


pytestmark = pytest.mark.moetier(finding="reclaim")
