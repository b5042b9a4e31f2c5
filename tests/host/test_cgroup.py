"""The wall, on recorded hosts and really on this one."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from trees import Recorded

from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import blockdev, cgroup, procfs, snapshot
from pytest_moetier.host.restore import Journal, drop_caches

MIB = 1 << 20


def test_a_hybrid_host_is_v1_and_says_that_its_cgroup2_has_no_memory_controller(recorded: Recorded) -> None:
    recorded("v1-hybrid")
    support = cgroup.scope_support()
    assert support.kind == "v1"
    assert "/sys/fs/cgroup/unified has no memory controller" in support.reason


def test_a_systemd_host_makes_scopes_at_the_root_of_v2(recorded: Recorded) -> None:
    recorded("v2-systemd")
    assert cgroup.scope_support() == cgroup.Support("v2", "cgroup v2 at /sys/fs/cgroup")


def test_a_read_only_hierarchy_is_refused_with_a_fix(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    recorded("v2-old")
    monkeypatch.setattr(os, "access", lambda *_: False)
    monkeypatch.setattr("shutil.which", lambda _: None)
    support = cgroup.scope_support()
    assert (support.kind, support.available) == ("none", False)
    assert "not writable" in support.reason
    assert "writable" in support.fix
    with pytest.raises(UnsupportedHostError, match="not writable"):
        cgroup.create_scope("x")


def test_no_hierarchy_at_all_is_refused_with_a_fix(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    with pytest.raises(UnsupportedHostError, match="no control group hierarchy with a memory controller"):
        cgroup.create_scope("x")


def test_a_v2_scope_gets_its_wall_and_no_swap(recorded: Recorded, monkeypatch: pytest.MonkeyPatch) -> None:
    root = recorded("v2-systemd")

    def with_kernel_files(path: Path) -> None:
        folder = procfs.at(path)
        folder.mkdir()
        for name, text in (("memory.max", "max\n"), ("memory.swap.max", "max\n"), ("cgroup.procs", "")):
            (folder / name).write_text(text)

    monkeypatch.setattr(cgroup, "_make_folder", with_kernel_files)
    scope = cgroup.create_scope("C4.4%")
    assert str(scope.path) == f"/sys/fs/cgroup/moetier-{os.getpid()}-C4_4_"
    assert scope.version == 2
    (root / str(scope.path)[1:] / "memory.max").write_text("")  # plain files do not truncate as kernel files do
    assert scope.set_limit(64 * MIB) == 64 * MIB
    assert (root / str(scope.path)[1:] / "memory.swap.max").read_text()[0] == "0"
    # The hierarchy's own root has no limit, so nothing above this scope has one.
    assert scope.files.ancestors == ()
    assert scope.exists()
    identity = scope.identity
    (root / str(scope.path)[1:]).rename(root / "elsewhere")
    assert not scope.exists()
    assert scope.identity == identity


def test_limits_above_a_scope_are_watched_and_the_lowest_is_known(recorded: Recorded) -> None:
    root = recorded("v2-systemd")
    files = cgroup.ScopeFiles(2, "/sys/fs/cgroup/user.slice/moetier-9-cell", ("/sys/fs/cgroup/user.slice",))
    assert cgroup.ancestor_limit_bytes(files) is None
    (root / "sys/fs/cgroup/user.slice/memory.max").write_text("1073741824\n")
    assert cgroup.ancestor_limit_bytes(files) == 1 << 30
    assert "/sys/fs/cgroup/user.slice/memory.events.local" in files.capture_files()


def test_a_limit_that_reads_back_otherwise_breaks_the_harness(recorded: Recorded) -> None:
    root = recorded("v2-systemd")
    path = Path("/sys/fs/cgroup/user.slice/moetier-9-cell")
    scope = cgroup.ScopeV2(path, (), None, "")
    (root / str(path)[1:] / "memory.max").write_text("99999999999\n")
    with pytest.raises(HarnessError, match=r"reads back .* as written"):
        scope.set_limit(4096)


SYSTEMD_RUN = """#!/bin/sh
# As `systemd-run --scope`: make the group, put this process in it, become the command after --.
group=$ROOT/sys/fs/cgroup/user.slice/$(echo "$*" | sed 's/.*--unit=\\([^ ]*\\).*/\\1/').scope
mkdir -p $group $ROOT/proc/$$
echo max >$group/memory.max; echo 0 >$group/memory.swap.max; echo $$ >$group/cgroup.procs
echo "0::${group#$ROOT/sys/fs/cgroup}" >$ROOT/proc/$$/cgroup
echo "$*" >$ROOT/asked
while [ "$1" != -- ]; do shift; done
shift; exec "$@"
"""
SYSTEMCTL = """#!/bin/sh
echo "$*" >>$ROOT/systemctl
limit=$(echo "$*" | sed -n 's/.*MemoryMax=//p')
for group in $ROOT/sys/fs/cgroup/user.slice/moetier-*; do [ -z "$limit" ] || echo $limit >$group/memory.max; done
"""
BUSCTL = """#!/bin/sh
echo "$*" >$ROOT/busctl
"""


def test_where_only_a_service_manager_may_it_makes_holds_and_stops_the_scope(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    root = recorded("v2-systemd")
    (root / "sys/fs/cgroup/user.slice/moetier-9-cell/memory.max").unlink()
    tools = tmp_path / "tools"
    tools.mkdir()
    for name, text in (("systemd-run", SYSTEMD_RUN), ("systemctl", SYSTEMCTL), ("busctl", BUSCTL)):
        (tools / name).write_text(text)
        (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", f"{tools}:{os.environ['PATH']}")
    monkeypatch.setenv("ROOT", str(root))
    monkeypatch.setattr(cgroup, "_may_make", lambda *_: False)
    monkeypatch.setattr(cgroup, "_bus_answers", lambda *, user: user)
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert cgroup.scope_support().kind == "systemd-user"
    scope = cgroup.create_scope("cell")
    try:
        name = f"moetier-{os.getpid()}-cell"
        asked = (root / "asked").read_text()
        assert asked.startswith(f"--user --scope --quiet --collect --unit={name} -p MemoryAccounting=yes")
        assert "-p Delegate=yes -p MemoryMax=infinity -p MemorySwapMax=0 --" in asked
        assert str(scope.path) == f"/sys/fs/cgroup/user.slice/{name}.scope"
        assert scope.files.ancestors == ("/sys/fs/cgroup/user.slice",)
        assert scope.disable_swap()
        assert scope.set_limit(64 * MIB) == 64 * MIB
        done = subprocess.run(scope.enter_argv(["echo", "inside"]), capture_output=True, text=True, check=True)
        assert done.stdout == "inside\n"
        assert "AttachProcessesToUnit ssau" in (root / "busctl").read_text()
        holder = scope.pids()
        assert len(holder) == 1
    finally:
        scope.close()
    assert (root / "systemctl").read_text().splitlines() == [
        f"--user set-property --runtime {name}.scope MemoryMax={64 * MIB}",
        f"--user stop {name}.scope",
    ]
    assert not Path(f"/proc/{holder[0]}").exists()


def test_this_hosts_own_service_manager_makes_moves_into_and_stops_a_scope(monkeypatch: pytest.MonkeyPatch) -> None:
    if not cgroup._bus_answers(user=os.geteuid() != 0):  # noqa: SLF001
        pytest.skip("no service manager of this user answers")
    monkeypatch.setattr(cgroup, "_may_make", lambda *_: False)
    if not cgroup.scope_support().available:
        pytest.skip(cgroup.scope_support().reason)
    scope = cgroup.create_scope("managed")
    try:
        assert scope.disable_swap()
        assert scope.set_limit(48 * MIB) == 48 * MIB
        command = scope.enter_argv(["cat", "/proc/self/cgroup"])
        done = subprocess.run(command, capture_output=True, text=True, check=True)
        assert f"/{scope.path.name}\n" in done.stdout
        child = subprocess.Popen(["sleep", "60"])
        scope.add(child.pid)
        assert child.pid in scope.pids()
        assert counters(scope).limit_bytes == 48 * MIB
    finally:
        scope.close()
    assert child.wait(timeout=10) != 0
    assert not scope.exists()


def test_a_service_manager_that_refuses_is_quoted(
    recorded: Recorded, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recorded("v2-systemd")
    tool = tmp_path / "systemd-run"
    tool.write_text("#!/bin/sh\necho Failed to start transient scope unit: Access denied >&2\nexit 1\n")
    tool.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    monkeypatch.setattr(cgroup, "_may_make", lambda *_: False)
    monkeypatch.setattr(cgroup, "_bus_answers", lambda **_: True)
    with pytest.raises(UnsupportedHostError, match=r"systemd-run: Failed to start .* Access denied"):
        cgroup.create_scope("cell")


def test_a_process_outside_our_scopes_is_not_taken_for_one(recorded: Recorded) -> None:
    root = recorded("v2-systemd")
    (root / "proc/77").mkdir()
    (root / "proc/77/cgroup").write_text("0::/user.slice/moetier-9-cell\n")
    assert cgroup.scope_of_process(77).files == cgroup.ScopeFiles(
        2, "/sys/fs/cgroup/user.slice/moetier-9-cell", ("/sys/fs/cgroup/user.slice",)
    )
    with pytest.raises(HarnessError, match="process 78 is not in a scope"):
        cgroup.scope_of_process(78)


@pytest.mark.usefixtures("needs_scope")
def test_a_process_started_through_the_scope_is_inside_from_its_first_allocation() -> None:
    scope = cgroup.create_scope("enter")
    try:
        child = subprocess.run(
            scope.enter_argv(["cat", "/proc/self/cgroup"]), capture_output=True, text=True, check=True
        )
        assert f"/{scope.path.name}\n" in child.stdout
    finally:
        scope.close()


@pytest.mark.usefixtures("needs_scope")
def test_the_wall_is_reached_counted_and_nothing_is_left(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(os.urandom(96 * MIB))
    state = tmp_path / "state"
    state.mkdir(mode=0o700)
    devices = blockdev.devices_of(file)
    with Journal(state) as journal:
        scope = cgroup.create_scope("wall", journal)
        path = scope.path
        assert path.name == f"moetier-{os.getpid()}-wall"
        for size in (48, 96, 32):  # raised and lowered
            assert scope.set_limit(size * MIB) == size * MIB
        drop_caches([file])
        paths = snapshot.capture_paths(devices, scope)
        start = snapshot.parse(snapshot.take(paths, "a"), devices, scope)
        script = 'read go; cat "$0" >/dev/null; cat "$0" >/dev/null; echo done; read stop'
        child = subprocess.Popen(
            ["sh", "-c", script, str(file)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert child.stdin is not None
        assert child.stdout is not None
        scope.add(child.pid)
        assert scope.pids() == (child.pid,)
        child.stdin.write("\n")
        child.stdin.flush()
        assert child.stdout.readline() == "done\n"
        end = snapshot.parse(snapshot.take(paths, "b"), devices, scope)
        interval = snapshot.difference(start, end)
        assert end.scope is not None
        assert end.scope.limit_bytes == 32 * MIB
        assert end.scope.peak_bytes is None or end.scope.peak_bytes <= 32 * MIB
        assert end.scope.file_bytes is not None
        assert end.scope.file_bytes <= 32 * MIB
        assert interval.scope_limit_hits is not None
        assert interval.scope_limit_hits > 0
        assert interval.scope_oom_kills == 0
        assert interval.ancestor_limit_hits in {0, None}
        assert interval.device_read_bytes is not None
        assert interval.device_read_bytes > 96 * MIB  # the second reading hit the wall, not the cache
        assert interval.memcg_steal is None or interval.memcg_steal > 0
        scope.close()  # ends the child that still waits
        assert child.wait() != 0
        child.stdin.close()
        child.stdout.close()
        assert not path.exists()
        assert not scope.exists()
        assert journal.close() == []


@pytest.mark.usefixtures("needs_scope")
def test_a_scope_removed_by_someone_else_is_seen_and_closes_quietly() -> None:
    scope = cgroup.create_scope("gone")
    scope.path.rmdir()
    assert not scope.exists()
    scope.path.mkdir()  # a new group of the same name is another one
    try:
        assert not scope.exists() or scope.identity == (scope.path.stat().st_dev, scope.path.stat().st_ino)
    finally:
        scope.path.rmdir()
    scope.close()


@pytest.mark.usefixtures("needs_scope")
def test_a_stale_scope_of_the_same_name_is_stopped_first() -> None:
    first = cgroup.create_scope("stale")
    child = subprocess.Popen(["sleep", "60"])
    first.add(child.pid)
    second = cgroup.create_scope("stale")
    try:
        assert child.wait(timeout=10) != 0
        assert second.pids() == ()
        assert second.exists()
    finally:
        second.close()
    assert not second.path.exists()


def counters(scope: cgroup.Scope) -> snapshot.ScopeCounters:
    found = snapshot.parse(snapshot.take(snapshot.capture_paths((), scope), "x"), (), scope).scope
    assert found is not None
    return found


@pytest.mark.usefixtures("needs_scope")
def test_an_oom_kill_in_the_scope_is_counted() -> None:
    scope = cgroup.create_scope("oom")
    try:
        scope.set_limit(16 * MIB)
        hungry = [sys.executable, "-c", "b'x' * (64 << 20)"]
        assert subprocess.run(scope.enter_argv(hungry), check=False).returncode == -signal.SIGKILL
        assert counters(scope).oom_kills == 1
    finally:
        scope.close()


@pytest.mark.usefixtures("needs_scope")
def test_a_limit_above_the_scope_is_told_from_its_own(tmp_path: Path) -> None:
    file = tmp_path / "x"
    file.write_bytes(os.urandom(24 * MIB))
    drop_caches([file])
    parent = cgroup.create_scope("parent")
    try:
        (hierarchy,) = [one for one in cgroup._hierarchies() if one.mount in parent.path.parents]  # noqa: SLF001
        scope = cgroup._make(hierarchy, parent.path, f"moetier-{os.getpid()}-below", None)
        try:
            assert scope.files.ancestors[0] == str(parent.path)
            scope.set_limit(64 * MIB)
            assert cgroup.ancestor_limit_bytes(scope.files) is None
            parent.set_limit(16 * MIB)
            assert cgroup.ancestor_limit_bytes(scope.files) == 16 * MIB
            assert counters(scope).ancestor_limit_hits == 0
            subprocess.run(scope.enter_argv(["cat", str(file)]), stdout=subprocess.DEVNULL, check=True)
            found = counters(scope)
            assert found.ancestor_limit_hits is not None
            assert found.ancestor_limit_hits > 0
            assert found.limit_hits == 0
        finally:
            scope.close()
    finally:
        parent.close()


@pytest.mark.usefixtures("needs_scope")
def test_swap_is_off_for_the_scope() -> None:
    scope = cgroup.create_scope("swap")
    try:
        assert scope.disable_swap() is True
        if scope.version == 1:
            assert procfs.read_int(scope.path / "memory.swappiness") == 0
            scope.set_limit(32 * MIB)
            both = procfs.try_int(scope.path / "memory.memsw.limit_in_bytes")
            # Equal limits would hide the wall from failcnt; the margin bounds what could be swapped.
            assert both in {None, 36 * MIB}
        else:
            assert procfs.read_text(scope.path / "memory.swap.max").strip() == "0"
    finally:
        scope.close()


@pytest.mark.usefixtures("needs_scope")
def test_a_process_that_is_gone_cannot_be_added() -> None:
    scope = cgroup.create_scope("dead")
    child = subprocess.Popen(["true"])
    child.wait()
    started = time.monotonic()
    try:
        with pytest.raises(HarnessError, match="No such process"):
            scope.add(child.pid)
    finally:
        scope.close()
    assert time.monotonic() - started < 30


V2_CELL = cgroup.ScopeFiles(2, "/sys/fs/cgroup/user.slice/moetier-9-cell")
V1_CELL = cgroup.ScopeFiles(1, "/sys/fs/cgroup/memory/moetier-9-cell")


@pytest.mark.parametrize(
    ("host", "word", "expected"),
    [
        ("v2-systemd", "/sys/fs/cgroup/user.slice/moetier-9-cell", V2_CELL),
        ("v2-systemd", "user.slice/moetier-9-cell", V2_CELL),
        ("v2-systemd", "/user.slice/moetier-9-cell", V2_CELL),
        ("v2-systemd", "moetier-9-cell", V2_CELL),
        ("v1-hybrid", "/sys/fs/cgroup/memory/moetier-9-cell", V1_CELL),
        ("v1-hybrid", "moetier-9-cell", V1_CELL),
    ],
)
def test_a_group_is_named_by_its_folder_its_path_or_its_name_alone(
    recorded: Recorded, host: str, word: str, expected: cgroup.ScopeFiles
) -> None:
    recorded(host)
    assert cgroup.find_group(word) == expected
    assert cgroup.memory_mount() == Path("/sys/fs/cgroup" if expected.version == 2 else "/sys/fs/cgroup/memory")


@pytest.mark.parametrize("word", ["gone", "moetier-*", "user.slice/../user.slice/moetier-9-cell", "/etc"])
def test_what_names_no_group_is_refused(recorded: Recorded, word: str) -> None:
    recorded("v2-systemd")
    with pytest.raises(
        InputError, match=r"no memory control group .*; expected the folder of one below /sys/fs/cgroup"
    ):
        cgroup.find_group(word)


def test_a_name_that_several_groups_have_is_refused_with_their_folders(recorded: Recorded) -> None:
    root = recorded("v2-systemd")
    other = root / "sys/fs/cgroup/system.slice/moetier-9-cell"
    other.mkdir(parents=True)
    (other / "memory.stat").write_text("file 0\n")
    with pytest.raises(InputError, match=r"several control groups are named .*(user|system)\.slice/moetier-9-cell"):
        cgroup.find_group("moetier-9-cell")


def test_without_a_memory_hierarchy_no_group_can_be_named(recorded: Recorded) -> None:
    recorded("dm-over-nvme")
    assert cgroup.memory_mount() is None
    with pytest.raises(UnsupportedHostError, match="no control group hierarchy with a memory controller"):
        cgroup.find_group("any")
