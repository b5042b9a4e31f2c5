"""The ``moetier`` command: text or one JSON object on stdout, progress on stderr, one line and exit 2 when refused."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from pytest_moetier import cli

SMALL = ("custom", "--layers", "2", "--experts", "6", "--k", "2", "--expert-bytes", "32KiB", "--plain")


def output(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    assert cli.main([*words, "--json"]) == code
    return json.loads(capsys.readouterr().out)


def test_a_pool_is_created_checked_and_mapped(device_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = str(device_folder)
    made = output(capsys, "pool", "create", *SMALL, path)
    assert (made["total_bytes"], made["written_bytes"], made["store"]) == (393216, 393216, "plain")
    checked = output(capsys, "pool", "check", "--full", path)
    assert (checked["experts_checked"], checked["faults"]) == (12, [])
    found = output(capsys, "pool", "map", path, "--layer", "1", "--expert", "3")
    assert found["extents"] == [{"layer": 1, "expert": 3, "file": "experts/001/0003", "offset": 0, "length": 32768}]
    assert len(output(capsys, "pool", "map", path)["extents"]) == 12


def test_creation_prints_the_dimensionless_numbers_layout_and_store(
    device_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["pool", "create", *SMALL, "--layout", "one_file", str(device_folder)]) == 0
    text = capsys.readouterr()
    assert "E = 6, k = 2, pool = 393 KB, one plain iteration = 131 KB, pool / iteration = 3" in text.out
    assert "layout: one_file" in text.out
    assert "store: plain" in text.out
    assert "writing: 393 KB of 393 KB (100%)" in text.err
    assert cli.main(["pool", "create", *SMALL, "--layout", "one_file", str(device_folder)]) == 0
    assert "already whole" in capsys.readouterr().out


def test_a_throw_away_pool_with_a_spine_is_created_and_checked(
    device_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(device_folder)
    made = output(capsys, "pool", "create", *SMALL, "--spine", "100KB", "--throwaway", path)
    assert (made["spine_bytes"], made["throwaway"]) == (102400, True)  # whole pages
    assert (made["total_bytes"], made["written_bytes"]) == (393216, 393216 + 102400)
    assert (device_folder / "spine.bin").stat().st_size == 102400
    checked = output(capsys, "pool", "check", path)
    assert (checked["spine_bytes_checked"], checked["faults"]) == (102400, [])
    assert cli.main(["pool", "check", path]) == 0
    assert "(393 KB), 102 KB of the spine and the size of every file checked" in capsys.readouterr().out
    assert len(output(capsys, "pool", "map", path)["extents"]) == 12  # the experts' alone
    assert cli.main(["pool", "create", *SMALL, "--spine", "100KB", "--throwaway", path]) == 0
    text = capsys.readouterr().out
    assert "spine: 102 KB (102400 bytes)" in text
    assert "throw-away: measurements may write to it" in text
    assert "already whole" in text


@pytest.mark.usefixtures("needs_xfs")
def test_a_pool_is_created_in_the_file_system_that_is_asked_for(
    device_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ("pool", "create", *SMALL[:-1], "--filesystem", "xfs", str(device_folder))
    made = output(capsys, *words)
    assert (made["store"], made["filesystem"], made["written_bytes"]) == ("image", "xfs", 393216)
    assert output(capsys, "pool", "check", "--full", str(device_folder))["faults"] == []
    assert cli.main(list(words)) == 0
    assert "store: image (an xfs image" in capsys.readouterr().out
    assert cli.main([*words[:-1], "--plain", f"{device_folder}-2"]) == 2
    assert "filesystem 'xfs' of a pool with store 'plain'" in capsys.readouterr().err


def test_a_pool_has_no_spine_and_is_no_throw_away_one_unless_asked(
    device_folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = output(capsys, "pool", "create", *SMALL, str(device_folder))
    assert (made["spine_bytes"], made["throwaway"]) == (0, False)
    assert cli.main(["pool", "check", str(device_folder)]) == 0
    assert "of the spine" not in capsys.readouterr().out
    assert cli.main(["pool", "create", *SMALL, "--spine", "much", str(device_folder)]) == 2
    assert "'much' is not a size" in capsys.readouterr().err


def test_a_faulty_pool_is_exit_1_with_each_fault(device_folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["pool", "create", *SMALL, str(device_folder)])
    (device_folder / "experts" / "000" / "0002").unlink()
    capsys.readouterr()
    checked = output(capsys, "pool", "check", str(device_folder), code=1)
    assert checked["faults"] == ["file experts/000/0002 (layer 0, expert 2): No such file or directory"]
    assert cli.main(["pool", "check", str(device_folder)]) == 1
    assert "NOT what its manifest says" in capsys.readouterr().out


def test_a_trace_is_made_and_described(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = str(tmp_path / "t.jsonl.gz")
    made = output(capsys, "trace", "synth", "kimi-k3", file, "--layers", "4", "--iterations", "100")
    info = output(capsys, "trace", "info", file)
    assert made["fingerprint"] == info["fingerprint"]
    assert info["kinds"] == {"normal": 87, "spec_accept": 5, "spec_fallback": 8}
    assert (info["iterations"], info["accepted_tokens"], info["accesses"]) == (100, 105, 7232)
    assert cli.main(["trace", "info", file]) == 0
    assert "72.3 per iteration, 68.9 per accepted token" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["pool", "check", "/nonexistent"], "no pool at /nonexistent"),
        (["pool", "create", "gpt", "/nonexistent"], "no pool profile 'gpt'"),
        (["trace", "info", "/nonexistent"], "No such file"),
        (["trace", "synth", "gpt", "/nonexistent/t"], "no generator preset 'gpt'"),
        (
            ["trace", "synth", "kimi-k3", "/nonexistent/t.jsonl", "--layers", "1", "--iterations", "1"],
            "cannot be written",
        ),
        (["doctor", "--pool", "/nonexistent"], "no pool at /nonexistent"),
    ],
)
def test_a_refusal_is_one_line_on_stderr_and_exit_2(
    words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(words) == 2
    text = capsys.readouterr()
    assert message in text.err
    assert text.err.count("\n") == 1
    assert text.err.startswith("moetier: ")
    assert "Traceback" not in text.err


def test_usage_errors_are_argparses_own(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["pool"], ["pool", "create"], ["trace", "synth", "kimi-k3", "x", "--layers", "-1"]):
        with pytest.raises(SystemExit) as ended:
            cli.main(words)
        assert ended.value.code == 2
    assert "-1 is negative" in capsys.readouterr().err


def test_help_imports_nothing_heavy() -> None:
    script = (
        "import sys; from pytest_moetier import cli; cli.build_parser();"
        "print([name for name in ('numpy', 'yaml', 'rich', 'psutil', 'orjson') if name in sys.modules])"
    )
    result = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert result.stdout == "[]\n"
