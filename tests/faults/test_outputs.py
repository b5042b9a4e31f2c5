"""Files that cannot be written, files that cannot be read back, and nobody who reads the output."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest


def test_a_file_that_surely_cannot_be_written_is_refused_before_anything_is_measured(
    host: Any, plain_pool: Path
) -> None:
    (host.folder / "there").mkdir()
    ended = host.pytest(plain_pool, "--moetier-json=missing/x.json", "--moetier-learn=x.yaml")
    ended.refused(r"ERROR: pytest-moetier: --moetier-json missing/x.json cannot be written: there is no folder", ret=4)
    ended = host.pytest(plain_pool, "--collect-only", "--moetier-learn=there")
    ended.refused(r"ERROR: pytest-moetier: --moetier-learn there cannot be written: it is a folder", ret=4)


def test_a_full_disk_at_the_end_keeps_the_figures_on_the_terminal(host: Any, small_pool: Path) -> None:
    (host.folder / "full").mkdir()
    script = 'mount -t tmpfs -o size=4k none full && exec "$@"'
    outputs = ("--moetier-json=full/x.json", "--moetier-learn=full/y.yaml")
    argv = host.pytest_argv(small_pool, *outputs)
    ended = host.start(["unshare", "-m", "sh", "-c", script, "sh", *argv]).finish()
    assert "1 passed" in ended.text
    assert "supported" in ended.text
    ended.refused(r"ERROR: --moetier-json full/x.json was not written: No space left on device", ret=4)


def test_an_unwritable_history_is_refused_before_anything_is_measured(host: Any, small_pool: Path) -> None:
    (host.folder / ".benchmarks").write_text("no folder")
    ended = host.pytest(small_pool, "--benchmark-autosave")
    assert "--benchmark-storage" in ended.refused(r"ERROR: pytest-moetier: the benchmark history \S+", ret=4)


def test_comparing_with_a_cut_off_history_says_that_there_is_none(host: Any, small_pool: Path) -> None:
    folder = host.folder / "history/machine"
    folder.mkdir(parents=True)
    (folder / "0001_x.json").write_text('{"benchmarks": [{"extra_')
    storage = f"--benchmark-storage=file://{host.folder}/history"
    ended = host.pytest(small_pool, "--moetier-compare", storage)
    ended.said("compare: no stored session with metrics")
    assert ended.ret == 0
    assert "Traceback" not in ended.text


def test_a_broken_profile_is_refused_before_anything_is_measured(host: Any) -> None:
    (host.folder / "mine.yaml").write_text("format: [")
    host.pytest("nowhere", "--moetier-profile=mine.yaml").refused("ERROR: pytest-moetier: mine.yaml: not YAML", ret=4)


def test_a_profile_that_does_not_exist_is_named_with_those_that_do(host: Any) -> None:
    assert "gh200" in host.pytest("nowhere", "--moetier-profile=mine").refused("ERROR: pytest-moetier: profile", ret=4)


def test_broken_bounds_beside_a_test_fail_it_in_one_message(host: Any, small_pool: Path) -> None:
    (host.folder / "bounds.yaml").write_text("format: moetier-bounds/1\nbounds:\n  - {id: a, min: high}\n")
    host.pytest(small_pool).refused(r"\S+bounds.yaml: unreadable bound")


@pytest.mark.parametrize("closing", ["2> /dev/full", "| true", "2>&1 | true"])
def test_a_closed_output_loses_no_measurement(host: Any, small_pool: Path, closing: str) -> None:
    argv = host.pytest_argv(small_pool, "--moetier-json=x.json")
    ended = host.start(["sh", "-c", f'"$@" {closing}', "sh", *argv]).finish()
    assert "Traceback" not in ended.text
    if "|" not in closing:  # without a reader pytest itself ends early
        (result,) = json.loads((host.folder / "x.json").read_text())["results"]
        assert result["verdict"] == "supported"


@pytest.mark.parametrize("closing", [">&-", "| true", "> /dev/full"])
def test_a_command_without_a_reader_says_nothing_or_one_line(host: Any, plain_pool: Path, closing: str) -> None:
    argv = [sys.executable, "-m", "pytest_moetier.cli", "pool", "map", str(plain_pool)]
    ended = host.start(["sh", "-c", f'"$@" {closing}', "sh", *argv]).finish()
    assert "Traceback" not in ended.text
    assert "Exception" not in ended.text
    assert len(ended.text.splitlines()) <= 1


@pytest.mark.parametrize("home", [{"HOME": "/nonexistent", "XDG_CACHE_HOME": ""}, {"HOME": "", "XDG_CACHE_HOME": ""}])
def test_without_a_home_the_default_pool_is_still_one_message(host: Any, home: dict[str, str]) -> None:
    argv = [word for word in host.pytest_argv("x") if not word.startswith("--moetier-pool")]
    host.start(argv, home).finish().refused("no pool at ")


def test_an_unknown_users_folder_is_one_message(host: Any) -> None:
    host.pytest("~nobody-of-that-name/pool").refused("ERROR: pytest-moetier: ~nobody-of-that-name/pool: ", ret=4)


def test_no_temporary_folder_is_one_message(host: Any, small_pool: Path) -> None:
    assert os.geteuid() == 0
    (host.folder / "full").mkdir()
    script = 'mount -t tmpfs -o size=4k none full && exec "$@"'
    argv = host.pytest_argv(small_pool)
    env = {"TMPDIR": str(host.folder / "full")}
    host.start(["unshare", "-m", "sh", "-c", script, "sh", *argv], env).finish().refused(
        r"[^\n]*No space left on device"
    )


def test_a_special_file_or_link_is_never_replaced_nor_written_through(host: Any, tmp_path: Path) -> None:
    ended = host.pytest("nowhere", "--collect-only", "--moetier-json=/dev/null")
    ended.refused("ERROR: pytest-moetier: --moetier-json /dev/null cannot be written: it is no plain file", ret=4)
    target, link = tmp_path / "target", tmp_path / "link.jsonl"
    target.write_text("mine")
    link.symlink_to(target)
    synth = ("trace", "synth", "kimi-k3", "--layers", "1", "--iterations", "1")
    host.moetier(*synth, str(link)).refused(r"moetier: \S+link.jsonl is a symbolic link", ret=2)
    host.moetier(*synth, "/dev/null").refused("moetier: /dev/null is no plain file", ret=2)
    assert target.read_text() == "mine"
    assert Path("/dev/null").is_char_device()
