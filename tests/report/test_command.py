"""``moetier report``: the same as ``--moetier-report`` of the session, from files, and what it refuses."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from recorded_documents import FILES

from pytest_moetier.cli import main
from pytest_moetier.trace.synth import synth_trace
from pytest_moetier.trace.write import write_trace

ROOT = Path(__file__).parents[2]


def test_it_writes_the_report_says_where_and_does_the_same_again(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folders = [tmp_path / "a" / "b", tmp_path / "c"]
    for folder in folders:
        assert main(["report", str(FILES[1]), "--output", str(folder)]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[0] == f"generations of 1 cell: {folder / 'generations.*'}"
        assert lines[1].endswith(f" do not: {folder / 'index.html'}")
    one, other = ({path.name: path.read_bytes() for path in folder.iterdir()} for folder in folders)
    assert len(one) == 10
    assert one == other


def test_its_json_has_the_verdict_on_every_claim(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["report", str(FILES[1]), "--output", str(tmp_path), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["page"] == str(tmp_path / "index.html")
    verdicts = {one["id"]: one["verdict"] for one in found["claims"]}
    assert (verdicts["reclaim.knee"], verdicts["routing.zipf_slope"]) == ("refuted", "not_examined")
    assert sum(found["counts"].values()) == len(verdicts)


def test_a_session_and_its_document_make_the_same_report(tmp_path: Path) -> None:
    """There is one way from a document to a page, whoever asks for it."""
    trace = tmp_path / "prose.jsonl"
    write_trace(synth_trace("olmoe-1b-7b", iterations=30), trace)
    words = ("-k", "zipf_slope", f"--moetier-trace=prose={trace}", "--moetier-json=v.json", "--moetier-report=out")
    environment = {name: value for name, value in os.environ.items() if name != "MOETIER_TRACES"}
    command = [sys.executable, "-m", "pytest", ROOT / "bench", "-p", "no:cacheprovider", "-q", *words]
    done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=True)
    assert "report: hit rates of olmoe-1b-7b: out/*" in done.stdout.splitlines()
    assert main(["report", str(tmp_path / "v.json"), "--output", str(tmp_path / "again")]) == 0
    one, other = ({path.name: path.read_bytes() for path in (tmp_path / name).iterdir()} for name in ("out", "again"))
    for name, content in one.items():
        assert other[name].replace(str(tmp_path / "v.json").encode(), b"") == content or name in {
            "index.html",
            "report.md",
        }
    assert set(one) == set(other)


@pytest.mark.parametrize(
    "case",
    [
        (["missing.json"], "out", "missing.json: No such file or directory; expected a file of --moetier-json; next: "),
        (["taken"], "out", "taken is cut off or no JSON"),
        (
            [FILES[0]],
            "taken",
            "--output taken cannot be written: it is no folder; expected a folder that may be written",
        ),
        ([FILES[0]], "taken/in", "taken is no folder"),
    ],
)
def test_what_it_cannot_read_or_write_is_one_message(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    case: tuple[list[str], str, str],
) -> None:
    files, output, said = case
    monkeypatch.chdir(tmp_path)
    (tmp_path / "taken").write_text("a file")
    assert main(["report", *map(str, files), "--output", output]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    (line,) = captured.err.splitlines()
    assert line.startswith("moetier: ")
    assert said in line
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("name", ["matplotlib", "jinja2"])
def test_without_what_it_draws_with_it_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], name: str
) -> None:
    monkeypatch.setitem(sys.modules, name, None)
    assert main(["report", str(FILES[0]), "--output", str(tmp_path / "out")]) == 2
    assert (
        f"of which {name} cannot be found; expected the extra `report`; next: pip install 'pytest-moetier[report]'"
        in (capsys.readouterr().err)
    )


def test_a_full_disk_leaves_the_old_files(tmp_path: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip(f"a small file system needs root: seen uid {os.geteuid()}")
    old, kept, names, folder = "the page of before", tmp_path / "kept.html", tmp_path / "names", tmp_path / "small"
    folder.mkdir()
    script = (
        'mount -t tmpfs -o size=600k none "$0" && echo "$1" > "$0/index.html" || exit 9\n'
        '"$2" -m pytest_moetier.cli report "$3" --output "$0"\n'
        'status=$?; cp "$0/index.html" "$4"; ls -A "$0" > "$5"; exit $status'
    )
    command = ["unshare", "-m", "sh", "-c", script, folder, old, sys.executable, FILES[2], kept, names]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if "unshare" in done.stderr or done.returncode == 9:
        pytest.skip(f"no mount namespace here: {done.stderr.strip()}")
    assert done.returncode == 2, done.stderr
    assert "No space left on device; expected a folder that may be written to, with room" in done.stderr
    assert kept.read_text() == f"{old}\n"
    assert not [one for one in names.read_text().split() if one.startswith(".")]
