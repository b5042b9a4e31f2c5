"""The engine's library: this build, checked field by field; every other one refused with what to do."""

from __future__ import annotations

import ctypes
import sys
from pathlib import Path

import pytest

from pytest_moetier.engine import abi
from pytest_moetier.errors import HarnessError, UnsupportedHostError


@pytest.fixture
def found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that Python finds xllamacpp in, before any other; of the right version, its library no library."""
    package = tmp_path / "xllamacpp"
    package.mkdir()
    (package / "__init__.py").touch()
    (package / "xllamacpp.abi3.so").write_text("no library")
    (tmp_path / f"xllamacpp-{abi.VERSION}.dist-info").mkdir()
    monkeypatch.delitem(sys.modules, "xllamacpp", raising=False)
    monkeypatch.syspath_prepend(str(tmp_path))
    return tmp_path


def test_this_build_is_found_and_computes_on_the_cpu() -> None:
    pytest.importorskip("xllamacpp")
    library = abi.load_library()
    assert library.version == abi.VERSION
    assert library.backend == "CPU"
    assert "SSE3 = 1" in library.system_info


@pytest.mark.parametrize("fault", ["n_ctx", "n_batch", "type_v", "op_offload", "n_samplers"])
def test_a_default_in_another_place_is_refused(fault: str) -> None:
    pytest.importorskip("xllamacpp")
    dll = abi.load_library().dll
    context = dll.llama_context_default_params()
    abi.check_defaults(dll.llama_model_default_params(), context)
    setattr(context, fault, 7 if fault != "op_offload" else False)
    with pytest.raises(HarnessError, match=f"default {fault} is"):
        abi.check_defaults(dll.llama_model_default_params(), context)


def test_a_longer_structure_of_the_library_writes_into_room_of_ours() -> None:
    assert ctypes.sizeof(abi.ModelParams) >= abi.ModelParams.load_mtp.offset + 64
    assert ctypes.sizeof(abi.ContextParams) >= abi.ContextParams.ctx_other.offset + 8 + 64


def test_another_build_is_refused_by_its_version_and_the_line_to_run(found: Path) -> None:
    (found / f"xllamacpp-{abi.VERSION}.dist-info").rename(found / "xllamacpp-2026.11.1.dist-info")
    with pytest.raises(UnsupportedHostError) as caught:
        abi.find_library()
    assert "xllamacpp is 2026.11.1; expected exactly 2026.10.11549" in str(caught.value)
    assert "pip install 'xllamacpp==2026.10.11549'" in str(caught.value)


def test_a_library_that_is_none_is_told_with_its_path(found: Path) -> None:
    with pytest.raises(UnsupportedHostError, match=r"xllamacpp\.abi3\.so cannot be loaded"):
        abi.load_library()
    (found / "xllamacpp" / "xllamacpp.abi3.so").unlink()
    with pytest.raises(UnsupportedHostError, match=r"xllamacpp\.abi3\.so is missing"):
        abi.load_library()


def test_a_missing_openmp_is_told_with_its_package(found: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_path: str) -> ctypes.CDLL:
        raise OSError("libgomp.so.1: cannot open shared object file: No such file or directory")

    assert found.is_dir()
    monkeypatch.setattr(ctypes, "CDLL", refuse)
    with pytest.raises(UnsupportedHostError, match="apt install libgomp1"):
        abi.load_library()


def test_no_engine_is_told_with_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi, "find_spec", lambda _name: None)
    with pytest.raises(UnsupportedHostError, match=r"not installed.*pytest-moetier\[engine\]"):
        abi.find_library()


def test_another_machine_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(abi.platform, "machine", lambda: "aarch64")
    with pytest.raises(UnsupportedHostError, match="aarch64; expected Linux on x86_64"):
        abi.find_library()
