"""The CUDA probe: without a GPU its reason, and against a stand-in of the driver the rates that it names."""

from __future__ import annotations

import ctypes
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from pytest_moetier.tiers import cuda
from pytest_moetier.tiers.constants import MEANINGS, Constants

SIZE = 1 << 20


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The stand-in, compiled."""
    path = tmp_path_factory.mktemp("stand-in") / "libcuda.so"
    source = Path(__file__).with_name("stand_in.c")
    subprocess.run(["cc", "-std=c11", "-O2", "-D_GNU_SOURCE", "-shared", "-fPIC", "-o", path, source], check=True)
    return path


@pytest.fixture
def probed(library: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[[str], Constants]:
    """Probe the stand-in as one kind of machine; whatever comes of it, everything is given back."""
    monkeypatch.setattr(cuda, "LIBRARY", str(library))

    def probe(kind: str) -> Constants:
        monkeypatch.setenv("STAND_IN", kind)
        found = cuda.probe_cuda(tmp_path, SIZE)
        assert ctypes.CDLL(str(library)).stand_in_held() == 0
        assert list(tmp_path.iterdir()) == []
        return found

    return probe


def test_without_the_driver_library_every_rate_says_why(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cuda, "LIBRARY", "libcuda-that-is-not-there.so")
    found = cuda.probe_cuda()
    assert (found.rates, found.absent, found.unified) == ({}, {}, None)
    assert set(found.unmeasured) == set(cuda.OF_THE_DEVICE) < set(MEANINGS)
    (why,) = set(found.unmeasured.values())
    assert why.startswith("no CUDA driver library here (libcuda-that-is-not-there.so: cannot open")
    assert "next: give its rates in a file (moetier-tiers/1): --constants FILE" in why


@pytest.mark.parametrize(
    ("kind", "why"),
    [
        ("no_device", "cuInit answers CUDA_ERROR_NO_DEVICE (100); expected a working GPU and driver"),
        ("empty", "the CUDA driver sees no device; expected a GPU"),
        ("lossy", "where the processor reads"),
    ],
)
def test_a_driver_that_cannot_measure_says_why(probed: Callable[[str], Constants], kind: str, why: str) -> None:
    found = probed(kind)
    assert found.rates == {}
    assert all(why in one for one in found.unmeasured.values())


def test_a_coherent_link_has_every_rate_but_its_ceiling(probed: Callable[[str], Constants]) -> None:
    found = probed("coherent")
    assert set(found.rates) == {*cuda.OF_THE_DEVICE} - {"link_ceiling"}
    assert found.unified is False
    assert found.absent == {}
    for one in found.rates.values():
        assert 0 < one.speed.low <= one.speed.value <= one.speed.high
        assert one.source.startswith("CUDA probe on this host: Stand-in, 1.05 MB, median of 5")
    assert found.rates["stream_overlapped"].source.endswith("an upper bound")


def test_without_a_coherent_link_reading_in_place_does_not_exist(probed: Callable[[str], Constants]) -> None:
    found = probed("pcie")
    assert set(found.rates) == {"hbm", "link_host_alloc", "stream_overlapped"}
    assert set(found.absent) == {"link_file_backed", "link_malloc"}
    assert "there is no coherent link" in found.absent["link_file_backed"]


def test_an_integrated_device_has_one_memory(probed: Callable[[str], Constants]) -> None:
    assert probed("unified").unified is True
