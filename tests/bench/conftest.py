"""Tests of the findings share known traces (``known.py``) and cells (``curves.py``)."""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from pytest_moetier import finding

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="module", autouse=True)
def _bounds_are_read_once() -> Iterator[None]:
    """Hundreds of verdicts ask for one file of bounds, which takes longer to read than to judge."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(finding, "read_bounds", functools.cache(finding.read_bounds))
        yield
