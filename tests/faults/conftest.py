"""A hostile user's session: pytest or `moetier` in a process of its own, and a look at what it leaves behind."""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from pytest_moetier.host import procfs
from pytest_moetier.pool.manifest import MANIFEST_NAME
from pytest_moetier.pool.profiles import resolve_shape
from pytest_moetier.pool.synthetic import create_pool

WAIT_SECONDS, LIMIT_SECONDS = 200, 300
ENDING_SECONDS = 20
BENCH = "def test_capacity(moetier_cell):\n    moetier_cell.measure()\n    moetier_cell.judge()\n"
BOUNDS = """
format: moetier-bounds/1
bounds:
  - {id: mine, value: device_bytes, min: 1, source: "anything is read", needs: []}
"""
OPTIONS = (
    "--moetier-capacity=30%",
    "--moetier-mechanism=cgroup",
    "--moetier-rounds=1",
    "--moetier-iterations=12",
    "--moetier-threads=2",
    "--moetier-seed=1",
    f"--moetier-wait={WAIT_SECONDS}",
)
QUIET = ("-W", "ignore::pytest.PytestAssertRewriteWarning", "-p", "no:hypothesispytest", "-p", "no:xdist")
NOBODY = 65534
INSIDES = re.compile(r"Traceback|INTERNALERROR|pytest_moetier/\w+\.py")


@dataclass(frozen=True)
class Ended:
    """What an ended command said, and its exit status."""

    pid: int
    ret: int
    text: str

    def said(self, pattern: str) -> str:
        """Return the one message that matches ``pattern``, which may be shown in more than one place."""
        found = {match.group(0) for match in re.finditer(pattern, self.text)}
        assert len(found) == 1, f"{pattern!r} said {len(found)} times\n{self.text}"
        return found.pop()

    def refused(self, pattern: str, ret: int = 1) -> str:
        """Return the one clear message of a command that ended with ``ret``: seen, expected, and what to do next."""
        said = self.said(pattern + r"[^\n]*")
        assert "; expected " in said, said
        assert "; next: " in said, said
        assert not INSIDES.search(self.text), self.text
        assert self.ret == ret, self.text
        return said


@dataclass
class Started:
    """A command at work; ``mark`` is in its environment and in that of everything it starts."""

    process: subprocess.Popen[bytes]
    log: Path
    mark: str
    folder: Path
    temporary: Path
    beside: set[Path]

    @property
    def text(self) -> str:
        """What it has said so far."""
        return self.log.read_text(errors="replace")

    def until(self, words: str) -> None:
        """Wait until it has said ``words``."""
        limit = time.monotonic() + LIMIT_SECONDS
        while words not in self.text:
            assert self.process.poll() is None, self.text
            assert time.monotonic() < limit, self.text
            time.sleep(0.02)

    def child(self, name: str) -> int:
        """Return the pid of the one process named ``name`` that it has started."""
        limit = time.monotonic() + ENDING_SECONDS
        while time.monotonic() < limit:
            found = [pid for pid in marked(self.mark) if _name(pid) == name]
            if found:
                return found[0]
            time.sleep(0.02)
        pytest.fail(f"no {name} was started\n{self.text}")

    def finish(self, *, clean: bool = True) -> Ended:
        """Wait for its end and return it; unless ``clean`` is False it must have left nothing on the host."""
        self.process.wait(LIMIT_SECONDS)
        ended = Ended(self.process.pid, self.process.returncode, self.text)
        if clean:
            limit = time.monotonic() + ENDING_SECONDS
            while (left := leftovers(self)) and time.monotonic() < limit:
                time.sleep(0.05)
            assert left == [], f"{left}\n{ended.text}"
        return ended


def marked(mark: str) -> list[int]:
    """Return the living processes with ``mark`` in their environment."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if mark.encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found


def _name(pid: int) -> str:
    try:
        # The kernel cuts a name off after 15 bytes, so the command line says more.
        return Path(Path(f"/proc/{pid}/cmdline").read_bytes().split(b"\0")[0].decode()).name
    except OSError:
        return ""


def leftovers(one: Started) -> list[str]:
    """Return what an ended command has left on the host."""
    pid = one.process.pid
    left = [f"process {other} {_name(other)}" for other in marked(one.mark)]
    left += map(str, Path("/sys/fs/cgroup").rglob(f"moetier-{pid}-*"))
    left += map(str, Path("/run/pytest-moetier").glob(f"journal-{pid}-*"))
    left += map(str, one.temporary.glob("moetier-*"))
    left += [str(pool) for folder in one.beside for pool in folder.glob(f"moetier-pool-{pid}-*")]
    for row in Path("/sys/block").glob("loop*/loop/backing_file"):
        try:
            image = row.read_text().strip()
        except OSError:
            continue
        ours = image.startswith(str(one.folder)) or f"/moetier-pool-{pid}-" in image
        left += [f"{row.parent.parent.name} of {image}"] if ours else []
    mounts = Path("/proc/self/mounts").read_text()
    return left + [line for line in mounts.splitlines() if f"{one.folder}/" in line.split()[1] + "/"]


class Host:
    """Starts commands in a folder of their own."""

    def __init__(self, folder: Path) -> None:
        """Keep everything below ``folder``."""
        self.folder = folder
        self.started: list[Started] = []
        self.beside = {folder}
        self.bench = "test_capacity.py"
        self.write(BENCH)
        (folder / "bounds.yaml").write_text(BOUNDS)

    def write(self, source: str) -> None:
        """Let the sessions run ``source`` in place of the one test of a cell."""
        (self.folder / self.bench).write_text(source)

    def start(self, argv: Sequence[str], env: Mapping[str, str] | None = None, **how: object) -> Started:
        """Start a command, its output in a file."""
        mark = f"MOETIER_TEST_MARK={secrets.token_hex(8)}"
        name, _, value = mark.partition("=")
        log, temporary = (self.folder / f"{kind}-{len(self.started)}" for kind in ("log", "tmp"))
        temporary.mkdir(mode=0o777)
        temporary.chmod(0o777)
        inherited = {key: word for key, word in os.environ.items() if not key.startswith(("PYTEST_", "COLUMNS"))}
        environment = {**inherited, name: value, "TMPDIR": str(temporary), "COLUMNS": "600", **(env or {})}
        with log.open("wb") as file:
            options = {"stdout": file, "stderr": subprocess.STDOUT, "stdin": subprocess.DEVNULL, **how}
            process = subprocess.Popen(list(argv), cwd=self.folder, env=environment, **options)  # type: ignore[call-overload]
        one = Started(process, log, mark, self.folder, temporary, self.beside)
        self.started.append(one)
        return one

    def pytest_argv(self, pool: Path | str, *args: str) -> list[str]:
        """Return the command line of a session on ``pool``; temporary pools are made beside it."""
        self.beside.add(Path(pool).absolute().parent)
        command = [sys.executable, "-m", "pytest", self.bench, "-p", "no:cacheprovider", "-rs", *QUIET]
        return [*command, f"--moetier-pool={pool}", *OPTIONS, *args]

    def pytest(self, pool: Path | str, *args: str, env: Mapping[str, str] | None = None) -> Ended:
        """Run one cell's session on ``pool`` to its end."""
        return self.start(self.pytest_argv(pool, *args), env).finish()

    def moetier(self, *args: str, **how: object) -> Ended:
        """Run a `moetier` command to its end."""
        return self.start([sys.executable, "-m", "pytest_moetier.cli", *args], None, **how).finish()


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    """A folder to start sessions in; whatever still runs afterwards is ended."""
    one = Host(tmp_path)
    yield one
    for started in one.started:
        for pid in {*marked(started.mark), *([started.process.pid] if started.process.poll() is None else [])}:
            os.kill(pid, signal.SIGKILL)
        started.process.wait()


@pytest.fixture(scope="session")
def plain_pool(small_pool: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small pool's twin as plain files."""
    del small_pool  # skips where nothing can be measured
    path = tmp_path_factory.mktemp("plain") / "small"
    create_pool(path, resolve_shape("custom", layers=2, experts=128, k=8, expert_bytes="256KiB"), store="plain")
    return path


@pytest.fixture
def linked_pool(plain_pool: Path, tmp_path: Path) -> Callable[[], Path]:
    """Return a call that makes a copy of the plain pool, its files hard links until they are replaced."""

    def copy() -> Path:
        path = tmp_path / "pool"
        subprocess.run(["cp", "-al", str(plain_pool), str(path)], check=True)
        return path

    return copy


@pytest.fixture
def hollow_pool(plain_pool: Path, tmp_path: Path) -> Path:
    """A pool of holes a little larger than the host's memory: any capacity that the host has is within it."""
    path = tmp_path / "hollow"
    content = yaml.safe_load((plain_pool / MANIFEST_NAME).read_text())
    memory = procfs.parse_meminfo(procfs.read_text("/proc/meminfo"))["MemTotal"]
    size = -(-memory // (2 * 896) // 4096) * 4096 + (1 << 20)
    path.mkdir()
    changed = {"experts": 896, "k": 1, "expert_bytes": size, "stamped": False}
    (path / MANIFEST_NAME).write_text(yaml.safe_dump({**content, **changed}))
    for layer in (0, 1):
        folder = path / "experts" / f"{layer:03d}"
        folder.mkdir(parents=True)
        for expert in range(896):
            with (folder / f"{expert:04d}").open("wb") as file:
                file.truncate(size)
    return path


@pytest.fixture
def covered(host: Host) -> Callable[..., Any]:
    """Return a call that runs a session with something of the host covered."""
    if os.geteuid() != 0:
        pytest.skip(f"covering a part of the host needs root: seen uid {os.geteuid()}")

    def run(script: str, *argv: str, **env: str) -> Any:
        started = host.start(["unshare", "-m", "sh", "-c", f'{script} && exec "$@"', "sh", *argv], env)
        return started.finish()

    return run


@pytest.fixture
def nobody(covered: Callable[..., Any], tmp_path: Path) -> Callable[..., Any]:
    """Return a call that runs a session as a user without any right, with the interpreter made readable to it."""
    if shutil.which("setpriv") is None:
        pytest.skip("no setpriv (util-linux)")
    closed = _closed_folder(Path(sys.base_prefix).resolve())
    script = "true"
    if closed is not None:  # a home that only its owner may enter: cover it, and put the interpreter back inside
        inside, base = tmp_path / "python", Path(sys.base_prefix).resolve()
        inside.mkdir()
        script = f"mount --bind {base} {inside} && mount -t tmpfs -o mode=755 none {closed} && mkdir -p {base}"
        script += f" && mount --bind {inside} {base}"
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_uid == os.geteuid() and folder.name.startswith(("pytest-", "test_")):
            folder.chmod(0o755)
    subprocess.run(["chown", "-R", f"{NOBODY}:{NOBODY}", str(tmp_path)], check=True)
    command = ["setpriv", f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups", "--bounding-set=-all"]

    def run(*argv: str, **env: str) -> Any:
        return covered(f"{script} && ulimit -l 64", *command, *argv, **{"HOME": str(tmp_path), **env})

    return run


def _closed_folder(path: Path) -> Path | None:
    """Return the topmost folder above ``path`` that others may not enter."""
    return next((one for one in [*reversed(path.parents), path] if not one.stat().st_mode & 0o001), None)
