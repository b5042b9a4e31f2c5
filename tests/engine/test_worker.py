"""The worker: its events in order, every choice of the router once, and an end when its parent is gone."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

from pytest_moetier.engine.job import Job
from pytest_moetier.engine.selftest import job_for, run_plainly
from pytest_moetier.host.snapshot import Capture


def _of(events: tuple[Any, ...], name: str) -> list[Any]:
    return [one for one in events if one["event"] == name]


def test_a_job_survives_its_file(tiny: Path, tmp_path: Path) -> None:
    for job in (replace(job_for(tiny), capture_paths=("/proc/vmstat",)), replace(job_for(tiny), prompt="words")):
        job.write(tmp_path / "job")
        assert Job.read(tmp_path / "job") == job


def test_gates_come_in_order_with_captures_on_both_sides_of_the_wait(tiny: Path) -> None:
    events = run_plainly(replace(job_for(tiny, tokens=3), capture_paths=("/proc/self/io", "/no/such")))
    order = [f"{one['event']} {one.get('at', '')}".strip() for one in events if one["event"] != "policy"]
    ready = ["loaded", "reset", "capture ready", "gate ready", "capture ready:go", "token"]
    decode = ["capture decode", "gate decode", "capture decode:go", "token", "token"]
    assert order == [*ready, *decode, "capture end", "gate end", "done"]
    capture = Capture.from_event(_of(events, "capture")[0])
    assert capture.files["/no/such"] is None
    assert "read_bytes" in (capture.files["/proc/self/io"] or "")


def test_every_choice_is_reported_once_and_equals_the_routers_logits(tiny: Path) -> None:
    events = run_plainly(replace(job_for(tiny, tokens=5), capture=True, logits=True))
    choices = _of(events, "choice")
    assert [(one["phase"], one["position"], one["tokens"]) for one in choices] == [
        ("prefill", 0, 8),
        *(("decode", position, 1) for position in (8, 9, 10, 11)),
    ]
    shown = [[(one["layer"], one["position"], len(one["experts"])) for one in choice["layers"]] for choice in choices]
    assert shown[0] == [(0, 0, 8), (1, 7, 1)]  # the last layer computes the prompt's last token alone
    assert shown[1] == [(0, 8, 1), (1, 8, 1)]
    rows = [row for choice in choices for one in choice["layers"] for row in one["experts"]]
    assert {len(set(row)) for row in rows} == {2}
    assert {expert for row in rows for expert in row} <= set(range(8))
    checked = _of(events, "choices_checked")[0]
    assert (checked["compared"], checked["different"]) == (len(rows), 0) == (17, 0)


def test_a_prompt_of_several_batches_keeps_its_positions(tiny: Path) -> None:
    prompt = tuple(at % 250 for at in range(700))
    job = replace(job_for(tiny, prompt=prompt, tokens=2), context=1024, capture=True)
    choices = _of(run_plainly(job), "choice")
    assert [(one["position"], one["tokens"]) for one in choices] == [(0, 512), (512, 188), (700, 1)]
    assert [one["layers"][1]["position"] for one in choices] == [511, 699, 700]


def test_watching_changes_no_token(tiny: Path) -> None:
    plain, watched = (run_plainly(replace(job_for(tiny, tokens=12), capture=on)) for on in (False, True))
    assert plain[-1]["sha256"] == watched[-1]["sha256"]
    assert [one["id"] for one in _of(plain, "token")] == plain[-1]["ids"]
    assert _of(plain, "choice") == []


def test_the_weights_are_mapped_and_in_no_buffer_of_their_own(tiny: Path) -> None:
    mapped, read = (run_plainly(replace(job_for(tiny), load_mode=mode)) for mode in ("mmap", "direct_io"))
    assert {one["path"] for one in mapped[0]["maps"]} == {str(tiny)}
    assert any("CPU_Mapped model buffer" in line for line in mapped[0]["buffers"])
    assert read[0]["maps"] == []
    assert not any("Mapped" in line for line in read[0]["buffers"])
    assert mapped[-1]["sha256"] == read[-1]["sha256"]


def test_it_ends_when_nobody_answers_at_a_gate(tiny: Path, tmp_path: Path) -> None:
    job_for(tiny).write(tmp_path / "job")
    argv = [sys.executable, "-m", "pytest_moetier.engine.worker", str(tmp_path / "job")]
    ended = subprocess.run(argv, stdin=subprocess.DEVNULL, capture_output=True, timeout=60, check=False)
    assert ended.returncode == 1
    assert json.loads(ended.stdout.splitlines()[-1]) == {"event": "gate", "at": "ready"}
