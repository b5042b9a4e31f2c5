"""What the lab's tests measure on: a tiny model in an image, and real runs of it."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from pytest_moetier.engine.lab import Ask, EngineLab, generated
from pytest_moetier.engine.session import Patience
from pytest_moetier.engine.synthetic import PROMPT, TINY, ModelShape
from pytest_moetier.host.cgroup import scope_support
from pytest_moetier.host.loopdev import loop_support
from pytest_moetier.host.restore import Journal
from pytest_moetier.host.throttle import read_limit_support

ASK = Ask(PROMPT, tokens=12, threads=1)
"""One thread: two that wait for each other crawl on a host that does something else."""
PATIENCE = Patience(idle_seconds=2.0, silent_seconds=60.0)


def need_host() -> None:
    """Skip where this host cannot enforce what the tests ask for."""
    if os.geteuid() != 0:
        pytest.skip(f"measuring needs root: seen uid {os.geteuid()}")
    reasons = (loop_support(), scope_support().reason, "" if read_limit_support().kind != "none" else "no read limit")
    if not scope_support().available or reasons[0] or reasons[2]:
        pytest.skip("; ".join(reason for reason in reasons if reason))


@contextmanager
def lab_of(folder: Path, shape: ModelShape = TINY) -> Iterator[tuple[EngineLab, Journal]]:
    """Hold a lab for a generated model, with a journal of its own."""
    pytest.importorskip("xllamacpp")
    pytest.importorskip("gguf")
    need_host()
    state = folder / "state"
    state.mkdir(mode=0o700)
    with Journal(state) as journal, generated(shape, folder, journal, patience=PATIENCE) as lab:
        yield lab, journal
