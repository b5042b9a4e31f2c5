"""`moetier tiers` and `moetier size`: the paper's numbers, this host's, and what is refused."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from stored import written

from pytest_moetier.cli import main

CURVE = {"5%": [4.0, 4.1, 4.2], "10%": [2.0, 2.1, 2.2], "20%": [1.0, 1.1, 1.2]}
OURS = ("unshare", "-m", "sh", "-c", 'mount -t tmpfs none /run/lock && exec "$@"', "sh")
"""Runs a command that takes the host's lock, with a lock of its own."""


def said(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    """Run the command; return its status and what it printed."""
    status = main(words)
    out, err = capsys.readouterr()
    return status, out, err


# ---- tiers


def test_the_paper_s_constants_give_the_paper_s_numbers(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "tiers", "--constants", "gh200")
    assert status == 0
    assert "hbm = " not in out
    for line in (
        "rule 1, hit worth = page_cache / device_cold: 2.27 (2.24 to 2.31)",
        "rule 2, k* = (1/stream_overlapped) / (1/link_file_backed - 1/hbm): 1.063 (1.044 to 1.083)",
        "rule 3, stream_overlapped / link_file_backed - 1: 5.8% (4.1% to 7.5%)",
        "  1 - link_file_backed / stream_overlapped: 5.5% (4.0% to 7.0%)",
    ):
        assert line in out.splitlines()
    assert "5.6%. That figure does not follow from the rounded constants" in out
    assert "2938 GB/s" in out
    assert "paper section 8, 2026-08-12" in out


def test_the_numbers_are_json_too(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "tiers", "--constants", "gh200", "--json")
    found = json.loads(out)
    assert status == 0
    assert round(found["calculus"]["k_star"]["value"], 3) == 1.063
    assert found["constants"]["rates"]["hbm"] == {
        "bytes_per_second": 2938e9,
        "low": pytest.approx(2938e9 * 0.992),
        "high": pytest.approx(2938e9 * 1.008),
        "source": "paper section 8",
        "date": "2026-08-12",
    }
    rows = {one["what"].partition(":")[0]: one["here"] for one in found["calculus"]["placement"]}
    assert (rows["own"], rows["adopt"], rows["stream"]) == ("yes", "yes", "yes")


def test_a_machine_without_a_coherent_link_has_no_adopt_row(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "pcie.yaml"
    path.write_text(
        "{format: moetier-tiers/1, name: box, unified_memory: false, source: mine, date: today,"
        " rates: {hbm: 1000 GB/s, stream_overlapped: 50 GB/s, link_file_backed: {absent: PCIe}}}"
    )
    status, out, _ = said(capsys, "tiers", "--constants", str(path), "--json")
    rows = {one["what"].partition(":")[0]: one for one in json.loads(out)["calculus"]["placement"]}
    assert status == 0
    assert (rows["adopt"]["here"], rows["own"]["here"]) == ("no", "yes")
    assert rows["own"]["figure"].startswith("k against restreaming = 1.053")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        ((), "neither constants nor a probe; expected one of them; next: moetier tiers --constants gh200"),
        (("--constants", "b200"), "constants 'b200': No such file or directory; expected a file, or gh200"),
        (("--probe", "--pool", "/nowhere"), "no folder /nowhere; expected a folder on the pool's device"),
        (("--probe", "--bytes", "0MB"), "'0MB' is not a positive size"),
    ],
)
def test_what_cannot_be_reckoned_is_refused(
    capsys: pytest.CaptureFixture[str], words: tuple[str, ...], why: str
) -> None:
    status, out, err = said(capsys, "tiers", *words)
    assert (status, out) == (2, "")
    assert why in err


def test_a_probe_of_this_host_names_its_source_and_leaves_nothing(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a lock of one's own takes root")
    words = ("-m", "pytest_moetier.cli", "tiers", "--probe", "--pool", str(tmp_path), "--bytes", "64MiB", "--json")
    done = subprocess.run([*OURS, sys.executable, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert list(tmp_path.iterdir()) == []
    rates, unproved = found["constants"]["rates"], found["constants"]["unmeasured"]
    for name in ("dram_copy", "page_cache", "device_cold"):
        assert rates[name]["source"].startswith("moetier-probe") if name in rates else unproved[name]
    assert "hbm" in rates or "CUDA" in unproved["hbm"]
    assert found["probe"]["bytes"] == 64 << 20


def test_a_host_that_another_bench_holds_is_not_probed(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a lock of one's own takes root")
    code = (
        "import sys; from pytest_moetier.cli import main; from pytest_moetier.host.restore import HostLock\n"
        "with HostLock(): sys.exit(main(['tiers', '--probe', '--pool', sys.argv[1]]))"
    )
    done = subprocess.run([*OURS, sys.executable, "-c", code, tmp_path], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout) == (2, "")
    assert "holds the host" in done.stderr
    assert done.stderr.endswith("next: wait for it to end\n")


# ---- size


def test_the_paper_s_curve_answers_and_not_its_text(capsys: pytest.CaptureFixture[str]) -> None:
    status, out, _ = said(capsys, "size", "--target", "2s/iteration", "--from", "gh200")
    assert status == 0
    assert out.splitlines()[:2] == [
        "2s/iteration: C = 122 GB (117 GB to 127 GB)",
        "  read between 64 GB and 128 GB of the paper's T(C), Table 2",
    ]
    assert "  the device: 18.3 GB an iteration, 9.13 GB/s" in out.splitlines()
    assert "the curve's, not the text's" in out
    status, out, err = said(capsys, "size", "--target", "2 iterations/s", "--from", "gh200")
    assert (status, out) == (2, "")
    assert "its best point is 990 ms an iteration (1.01 iterations/s) at 448 GB" in err


def test_a_file_of_verdicts_is_a_curve(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = written(tmp_path / "v.json", CURVE)
    status, out, _ = said(capsys, "size", "--target", "1.5 s/iteration", "--from", path, "--json")
    found = json.loads(out)
    assert status == 0
    assert found["between_bytes"] == [100 * 10**6, 200 * 10**6]
    assert found["low_bytes"] < found["capacity_bytes"] < found["high_bytes"]
    assert found["curve"] == "T(C) of cgroup, page_cache (synthetic trace, synthetic pool)"
    assert found["device_bytes_per_second"]["value"] == pytest.approx(1e6)


def test_without_files_the_storage_is_looked_into(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    storage = tmp_path / "storage" / "Linux-CPython-3.11"
    storage.mkdir(parents=True)
    written(storage / "0001_x.json", CURVE)
    (storage / "0002_cut.json").write_text('{"results": [')
    (storage / "0003_other.json").write_text('{"benchmarks": [], "datetime": "2026-11-30T12:00:00"}')
    status, out, err = said(capsys, "size", "--target", "3s/it", "--storage", str(tmp_path / "storage"))
    assert status == 0
    assert "read between 50 MB and 100 MB" in out
    assert "moetier: left out 0002_cut.json: cut off, or no JSON" in err
    assert "moetier: left out 0003_other.json: no metrics of ours" in err


@pytest.mark.parametrize(
    ("curve", "target", "why"),
    [
        (CURVE, "0.1s/it", "is beyond T(C) of cgroup, page_cache"),
        (CURVE, "9s/it", "the smallest capacity measured, 50 MB, already takes 4.1 s an iteration"),
        (CURVE, "9s/token", "a token is not an iteration"),
        ({"5%": [1.0] * 3}, "2s/it", "has one capacity (50 MB); expected two or more"),
        ({"5%": [1.0] * 3, "10%": [2.0] * 3}, "1.5s/it", "beyond the spread of its rounds"),
        (
            {"5%": [2.0, float("nan")], "10%": [1.0] * 3},
            "1.5s/it",
            "seconds_per_iteration of C5pct-cgroup-mglru_host is",
        ),
    ],
)
def test_a_target_that_the_curve_cannot_answer_is_refused(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, curve: dict[str, list[float]], target: str, why: str
) -> None:
    status, out, err = said(capsys, "size", "--target", target, "--from", written(tmp_path / "v.json", curve))
    assert (status, out) == (2, "")
    assert why in err


@pytest.mark.parametrize(
    ("content", "why"),
    [
        (None, "No such file"),
        ("", "cut off, or no JSON"),
        ("{}", "of another tool"),
        ('{"schema_version": 9, "results": []}', "schema_version 9"),
    ],
)
def test_a_file_that_is_no_session_is_named(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, content: str | None, why: str
) -> None:
    path = tmp_path / "v.json"
    if content is not None:
        path.write_text(content)
    status, _, err = said(capsys, "size", "--target", "2s/it", "--from", str(path))
    assert status == 2
    assert why in err
    assert f"none of {path} can be read" in err


def test_an_empty_storage_says_what_to_measure(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    status, _, err = said(capsys, "size", "--target", "2s/it", "--storage", str(tmp_path / "none"))
    assert status == 2
    assert "no session of this host in" in err
    assert "next: pytest bench/ -k capacity --benchmark-autosave --moetier-mechanism cgroup" in err
