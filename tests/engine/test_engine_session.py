"""A worker that does not run as it should is one message, whatever became of it."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pytest_moetier.engine.session import Worker, worker_argv
from pytest_moetier.errors import AccountingError, HarnessError, InputError


def python(script: str) -> list[str]:
    return [sys.executable, "-c", script]


@pytest.mark.parametrize(
    ("script", "words"),
    [
        ("import sys; sys.exit('no module')", "ended with 1 before its first gate; it said last: no module"),
        ("print('hello')", "the worker wrote b'hello'"),
        ("print('{}')", "the worker wrote b'{}'"),
        ("print('{\"event\":\"gate\",\"at\":\"end\"}')", "the worker waits at 'end'; expected gate 'ready'"),
    ],
    ids=["a failed start", "no JSON", "no event", "another gate"],
)  # fmt: skip
def test_what_is_no_worker_is_told_with_its_last_words(script: str, words: str) -> None:
    with Worker(python(script)) as worker, pytest.raises(HarnessError) as caught:
        worker.wait_for("ready")
    assert words in str(caught.value)


def test_a_program_that_cannot_be_started_is_named() -> None:
    with pytest.raises(HarnessError, match="cannot start /no/python"):
        Worker(["/no/python"])


def test_a_file_that_is_no_job_is_refused_by_the_worker_itself(tmp_path: Path) -> None:
    job = tmp_path / "job.json"
    job.write_text("{}")
    with Worker(worker_argv(job)) as worker, pytest.raises(HarnessError, match=r"job\.json is not a job"):
        worker.wait_for("ready")


def test_a_refusal_keeps_its_kind_and_its_three_parts() -> None:
    said = '{"event":"error","kind":"input","seen":"a dense model","expected":"experts","do":"another"}'
    with Worker(python(f"print({said!r})")) as worker, pytest.raises(InputError) as caught:
        worker.wait_for("ready")
    assert (caught.value.seen, caught.value.expected, caught.value.do) == ("a dense model", "experts", "another")


def test_what_surrounds_a_silent_worker_is_watched() -> None:
    with Worker(python("import time; time.sleep(60)")) as worker:
        worker.watch = lambda: "the scope was removed"
        with pytest.raises(AccountingError, match="the scope was removed"):
            worker.wait_for("ready")
