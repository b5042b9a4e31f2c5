"""Finding the native parts."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from pytest_moetier import native
from pytest_moetier.errors import HarnessError, UnsupportedHostError


def test_moetier_bin_overrides_what_is_installed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "moetier-replay"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("MOETIER_BIN", str(tmp_path))
    assert native.executable("moetier-replay") == mine


def test_an_override_without_the_executable_is_an_error_that_names_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "moetier-balloon").write_text("not executable")
    monkeypatch.setenv("MOETIER_BIN", str(tmp_path))
    with pytest.raises(HarnessError) as error:
        native.executable("moetier-replay")
    assert f"{tmp_path}/moetier-replay (absent)" in str(error.value)
    with pytest.raises(HarnessError) as error:
        native.executable("moetier-balloon")
    assert f"{tmp_path}/moetier-balloon (not executable)" in str(error.value)


def test_each_folder_of_the_package_is_looked_into_and_listed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("MOETIER_BIN", raising=False)
    monkeypatch.setattr(native.pytest_moetier, "__path__", [str(tmp_path / "a"), str(tmp_path / "b")])
    with pytest.raises(HarnessError) as error:
        native.executable("moetier-nonsense")
    assert f"{tmp_path}/a/bin/moetier-nonsense (absent)" in str(error.value)
    assert f"{tmp_path}/b/bin/moetier-nonsense (absent)" in str(error.value)
    found = tmp_path / "b" / "bin" / "moetier-nonsense"
    found.parent.mkdir(parents=True)
    found.write_text("")
    found.chmod(0o755)
    assert native.executable("moetier-nonsense") == found


def test_other_systems_are_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    with pytest.raises(UnsupportedHostError, match="darwin"):
        native.executable("moetier-replay")


def test_looking_for_the_native_parts_imports_nothing_heavy() -> None:
    script = "import sys, pytest_moetier.native; print(sorted({'numpy', 'yaml', 'rich', 'psutil'} & set(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
