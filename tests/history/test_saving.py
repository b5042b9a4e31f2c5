"""Two sessions that save into one storage at once lose nothing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from pytest_moetier.history.baselines import Storage, locked
from pytest_moetier.history.store import save_one_at_a_time, storage_folder

SESSIONS, SAVES = 3, 40
SAVE_MANY = """
import json, sys
from pathlib import Path
from types import SimpleNamespace
from pytest_benchmark.storage.file import FileStorage
from pytest_moetier.history.store import save_one_at_a_time

class Log:
    def info(self, message): pass

storage = FileStorage(Path(sys.argv[1]), Log(), "machine")
if sys.argv[2] == "locked":
    save_one_at_a_time(SimpleNamespace(_benchmarksession=SimpleNamespace(storage=storage)))
content = json.loads(Path(sys.argv[3]).read_text())
print("ready", flush=True)
sys.stdin.readline()
for _ in range(int(sys.argv[4])):
    storage.save(content, "same_name")
"""
READ = """
import sys
from pathlib import Path
from pytest_moetier.history.baselines import Storage

print("up", flush=True)
print(len(Storage.read(Path(sys.argv[1])).sessions))
"""
RECORDED = Path(__file__).parents[2] / "fixtures" / "history" / "0001_recorded.json"


def start(folder: Path, how: str) -> subprocess.Popen[str]:
    argv = [sys.executable, "-c", SAVE_MANY, str(folder), how, str(RECORDED), str(SAVES)]
    return subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def at_once(folder: Path, how: str) -> list[str]:
    """Let several processes, each a session, save at the same time; return what they died of."""
    children = [start(folder, how) for _ in range(SESSIONS)]
    for child in children:
        assert child.stdout is not None
        assert child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    return [error for child in children if (error := child.communicate(timeout=120)[1])]


def test_sessions_that_save_at_once_under_one_name_each_have_a_file_of_their_own(tmp_path: Path) -> None:
    assert at_once(tmp_path, "locked") == []
    files = sorted(tmp_path.rglob("*.json"))
    assert [one.name for one in files] == [f"{number:04}_same_name.json" for number in range(1, SESSIONS * SAVES + 1)]
    assert all(json.loads(one.read_text())["benchmarks"] for one in files)
    assert Storage.read(tmp_path).skipped == ()


def test_a_reader_waits_for_the_writer(tmp_path: Path) -> None:
    with locked(tmp_path, exclusive=True):
        child = subprocess.Popen([sys.executable, "-c", READ, str(tmp_path)], stdout=subprocess.PIPE, text=True)
        assert child.stdout is not None
        assert child.stdout.readline() == "up\n"
        (tmp_path / "0001_x.json").write_text("{")
        (tmp_path / "0001_x.json").write_text(RECORDED.read_text())
    assert child.communicate(timeout=60)[0] == "1\n"


def test_two_sessions_of_pytest_store_side_by_side(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        "def test_it(moetier_routing, moetier_benchmark):\n    moetier_routing.store(moetier_benchmark)\n"
    )
    argv = [
        *(sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-k", "olmoe-1b-7b-prose"),
        *("--moetier-iterations=20", "--benchmark-save=same"),
    ]
    children = [
        subprocess.Popen(argv, cwd=pytester.path, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        for _ in range(2)
    ]
    for child in children:
        said = child.communicate(timeout=120)[0]
        assert child.returncode == 0, said
    found = Storage.read(pytester.path / ".benchmarks")
    assert [one.number for one in found.sessions] == ["0001", "0002"]
    assert {tuple(one.cells) for one in found.sessions} == {("olmoe-1b-7b-prose",)}


def test_without_the_benchmark_plugin_the_default_storage_is_read_and_nothing_is_guarded() -> None:
    class Config:
        pass

    config: pytest.Config = Config()  # type: ignore[assignment]
    save_one_at_a_time(config)
    assert storage_folder(config) == Path(".benchmarks")


def test_a_folder_that_is_not_there_is_not_locked(tmp_path: Path) -> None:
    with locked(tmp_path / "none", exclusive=True):
        assert not (tmp_path / "none").exists()
