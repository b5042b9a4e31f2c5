"""How much of a file is cached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from pytest_moetier.host import residency

SIZE = (4 << 20) + 100


@pytest.fixture
def cached(tmp_path: Path) -> Path:
    path = tmp_path / "x"
    path.write_bytes(os.urandom(SIZE))
    return path


def test_a_dropped_file_is_not_resident_and_a_read_one_wholly_is(cached: Path) -> None:
    assert residency.drop_file(cached) == 0
    cached.read_bytes()
    assert residency.resident_bytes(cached) == (4 << 20) + 4096
    descriptor = os.open(cached, os.O_RDONLY)
    assert residency.resident_bytes(descriptor) == (4 << 20) + 4096
    os.close(descriptor)


def test_mincore_agrees_with_cachestat_on_a_file_of_ones_own(cached: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    exact = residency.resident_bytes(cached)

    def absent(*_: int) -> int:
        raise OSError(38, "ENOSYS")

    monkeypatch.setattr(residency, "cachestat_range", absent)
    assert residency.resident_bytes(cached) == exact
    assert residency.drop_file(cached) == 0


def test_without_cachestat_a_file_of_someone_else_is_unobservable(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 12345)
    monkeypatch.setattr(os, "access", lambda *_: False)
    descriptor = os.open("/proc/self/exe", os.O_RDONLY)
    try:
        assert residency._mincore_bytes(descriptor, 0, 4096) is None  # noqa: SLF001
    finally:
        os.close(descriptor)
