"""The lab runs the real engine on a model in an image: what it sets is set, counted and undone."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from pytest_moetier.engine.arm import POLICIES, Arm
from pytest_moetier.engine.lab import EngineLab
from pytest_moetier.engine.proof import examine_engine
from pytest_moetier.engine.run import EngineOomRun
from pytest_moetier.engine.session import Event
from pytest_moetier.engine.synthetic import ModelShape
from pytest_moetier.errors import HarnessError, InputError, UnsupportedHostError
from pytest_moetier.host import procfs
from pytest_moetier.host.restore import Journal, recover

sys.path.insert(0, str(Path(__file__).parent))
from real_engine import ASK, lab_of

WEIGHTY = ModelShape("weighty", layers=4, experts=32, k=2, hidden=512, inner=768, heads=8, vocabulary=256)
"""About 160 MB: more than a wall of a tenth of it leaves an engine that holds it all."""

Held = tuple[EngineLab, Journal]


@pytest.fixture(scope="module")
def held(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Held]:
    with lab_of(tmp_path_factory.mktemp("lab")) as found:
        yield found


def workers_of(parent: int) -> list[int]:
    """The process ids of the workers that a process started."""
    found = []
    for one in (path for path in Path("/proc").iterdir() if path.name.isdigit()):
        fields = (procfs.try_text(one / "stat") or "").rpartition(")")[2].split()
        if fields[1:2] == [str(parent)] and "pytest_moetier.engine.worker" in procfs.command_line(int(one.name)):
            found.append(int(one.name))
    return found


def left_of(lab: EngineLab) -> tuple[list[Path], list[int], bool]:
    """Groups of this process, workers of it, and whether the device's read-ahead is another than it was."""
    groups = [path for path in Path("/sys/fs/cgroup").rglob(f"moetier-{os.getpid()}-*") if path.is_dir()]
    (device,) = lab.pool.devices
    return (
        groups,
        workers_of(os.getpid()),
        procfs.read_int(f"{device.queue_path}/read_ahead_kb") != device.read_ahead_kb,
    )


def test_every_policy_gives_the_same_tokens_and_is_proved(held: Held) -> None:
    lab, _ = held
    arms = [Arm(policy, capacity_share=4.0) for policy in POLICIES]
    arms.append(Arm(lock_spine=True, read_ahead_kb=16, read_limit=50_000_000))
    runs = [lab.run(arm, ASK, order=order) for order, arm in enumerate(arms)]
    assert {arm.id: [one.name for one in examine_engine(run).broken] for arm, run in zip(arms, runs, strict=True)} == {
        arm.id: [] for arm in arms
    }
    assert len({run.sha256 for run in runs}) == 1
    assert all(len(run.ids) == ASK.tokens and run.prompt_tokens == len(ASK.prompt) for run in runs)
    assert runs[-1].facts.read_ahead_kb == 16
    assert runs[-1].locked_bytes >= runs[-1].spine_bytes
    plain, drop = runs[0], runs[1]
    assert plain.bytes_per_token is not None
    assert drop.bytes_per_token is not None
    assert drop.bytes_per_token > 4 * plain.bytes_per_token  # what is not kept is read again
    assert left_of(lab) == ([], [], False)


def test_the_wall_holds_the_model_below_its_capacity(tmp_path: Path) -> None:
    with lab_of(tmp_path, WEIGHTY) as (lab, _):
        run = lab.run(Arm(capacity_share=0.25), ASK)
        assert not examine_engine(run).broken
        assert "wall_reached" in {one.name for one in examine_engine(run).invariants if one.state == "held"}
        assert run.end.resident.experts is not None
        assert run.enforced is not None
        assert run.enforced.limit_bytes is not None
        assert 0 < run.end.resident.experts <= run.enforced.limit_bytes
        # All weights anonymous: no page cache can give any of it back, so the wall kills.
        direct = lab.run_direct(Arm(capacity_share=0.1), ASK)
        assert isinstance(direct, EngineOomRun)
        assert not examine_engine(direct).broken
        assert (direct.signal, direct.at, direct.tokens) == (signal.SIGKILL, "", 0)
        assert left_of(lab)[:2] == ([], [])


@pytest.mark.parametrize(
    ("number", "words"),
    [(signal.SIGKILL, "ended by SIGKILL after gate 'decode'"), (signal.SIGABRT, "ended by SIGABRT")],
)
def test_a_killed_worker_is_one_message_and_leaves_nothing(held: Held, number: signal.Signals, words: str) -> None:
    lab, _ = held

    def end_it(event: Event) -> None:
        if event["event"] == "token" and event["index"] == 2:
            os.kill(*workers_of(os.getpid()), number)

    with pytest.raises(HarnessError, match=words):
        lab.run(Arm("drop", read_ahead_kb=64, read_limit=400_000, capacity_share=4.0), ASK, hear=end_it)
    assert left_of(lab) == ([], [], False)


def test_a_worker_that_hangs_is_given_up(held: Held) -> None:
    lab, _ = held

    def stop_it(event: Event) -> None:
        if event["event"] == "capture" and event["at"] == "ready":
            os.kill(*workers_of(os.getpid()), signal.SIGSTOP)

    with pytest.raises(HarnessError, match=r"said nothing for \d+ s and did nothing for \d+ s"):
        lab.run(Arm(capacity_share=4.0), ASK, hear=stop_it)
    assert left_of(lab) == ([], [], False)


def test_ctrl_c_ends_the_worker_and_undoes_everything(held: Held) -> None:
    lab, _ = held

    def interrupt(event: Event) -> None:
        if event["event"] == "token":
            os.kill(os.getpid(), signal.SIGINT)
            time.sleep(0)

    with pytest.raises(KeyboardInterrupt):
        lab.run(Arm(read_ahead_kb=64, capacity_share=4.0), ASK, hear=interrupt)
    assert left_of(lab) == ([], [], False)


def test_a_killed_parent_leaves_what_the_next_start_undoes(held: Held, tmp_path: Path) -> None:
    del held  # it skips where nothing can be measured
    script = f"""
import sys
from pathlib import Path
from pytest_moetier.engine.arm import Arm
from real_engine import ASK, lab_of
with lab_of(Path({str(tmp_path)!r})) as (lab, _):
    lab.run(Arm(read_ahead_kb=64, read_limit=20_000), ASK, hear=lambda event: print(event["event"], flush=True))
"""
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent
    ) as parent:
        assert parent.stdout is not None
        assert any(line == "gate\n" for line in parent.stdout)
        (worker,) = workers_of(parent.pid)
        parent.kill()
        parent.wait()
    until = time.monotonic() + 20
    while procfs.process_id(worker) is not None and time.monotonic() < until:
        time.sleep(0.05)
    assert procfs.process_id(worker) is None
    assert recover(tmp_path / "state")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["state"]
    assert not list((tmp_path / "state").iterdir())


@pytest.mark.parametrize(
    ("prompt", "tokens", "words"),
    [
        ((), 4, "the prompt is empty"),
        ((1, 2), 0, "0 tokens are to be generated"),
        ((999_999,), 4, "the prompt has token 999999"),
        ((1,) * 500, 20, "a prompt of 500 tokens and 20 to generate"),
        ("hello", 4, "no vocabulary"),
    ],
)
def test_what_cannot_be_asked_is_refused(held: Held, prompt: tuple[int, ...] | str, tokens: int, words: str) -> None:
    lab, _ = held
    with pytest.raises(InputError, match=words):
        lab.run(Arm(), replace(ASK, prompt=prompt, tokens=tokens))
    assert left_of(lab) == ([], [], False)


def test_a_spine_that_fills_the_capacity_is_not_locked(held: Held) -> None:
    lab, _ = held
    with pytest.raises(UnsupportedHostError, match=r"a locked spine of [\d.]+ KB in [\d.]+ KB"):
        lab.run(Arm(lock_spine=True, capacity_share=0.1), ASK)
