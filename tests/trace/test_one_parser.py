"""One parser: outside pytest_moetier/trace, traces come from trace.load or are made; nothing else reads their files."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TRACE = "pytest_moetier.trace"
OPEN_TO_ALL = {
    "batch", "checks", "findings", "load", "locality", "records", "selections", "splitmix", "synth", "write",
}  # fmt: skip
"""Modules of the package that others may use: they give traces, or what is computed from them."""
LISTED = {
    ("pytest_moetier/cli/trace.py", f"{TRACE}.formats.READERS"),
    ("pytest_moetier/advice/file.py", f"{TRACE}.formats.fields"),
    ("pytest_moetier/advice/file.py", f"{TRACE}.source.Source"),
}
"""The command that lists the formats names them, and reads nothing with them; a file of advice is none of a trace, and
its lines are read as carefully by the same means."""
READING = {"open", "fromfile", "load", "loads", "memmap", "read_bytes", "read_text"}


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


PYTHON = [path for top in ("pytest_moetier", "bench") for path in sorted((ROOT / top).rglob("*.py"))]
OUTSIDE = [path for path in PYTHON if not name_of(path).startswith("pytest_moetier/trace/")]


def imports(tree: ast.AST) -> Iterator[str]:
    """Yield every imported name in full, wherever it is imported."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (one.name for one in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, "relative imports would escape this test"
            yield from (f"{node.module}.{one.name}" for one in node.names)


def forbidden(tree: ast.AST) -> set[str]:
    """Return the imports that reach past the door: trace's own modules, and the extension that scans files."""
    found = set()
    for name in imports(tree):
        if name.startswith(f"{TRACE}.load.") and not name.startswith(f"{TRACE}.load.load_"):
            found.add(name)
        if name.startswith(f"{TRACE}.") and name.removeprefix(f"{TRACE}.").split(".")[0] not in OPEN_TO_ALL:
            found.add(name)
        if name.split(".")[:2] == ["pytest_moetier", "_trace"]:
            found.add(name)
    return found


def trace_literals(tree: ast.AST) -> list[str]:
    """Return the calls that read a file whose name is written as that of a trace."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = getattr(node.func, "attr", getattr(node.func, "id", ""))
            texts = [
                one.value for one in ast.walk(node) if isinstance(one, ast.Constant) and isinstance(one.value, str)
            ]
            if called in READING and any(".jsonl" in one or ".oracleGeneral" in one for one in texts):
                found.append(ast.unparse(node))
    return found


def test_the_walk_sees_the_package() -> None:
    names = {name_of(path) for path in OUTSIDE}
    assert {"pytest_moetier/plan.py", "pytest_moetier/campaign.py", "bench/test_capacity.py"} <= names
    assert not any(name.startswith("pytest_moetier/trace/") for name in names)


@pytest.mark.parametrize("path", OUTSIDE, ids=name_of)
def test_no_other_module_reads_a_trace_file(path: Path) -> None:
    tree = ast.parse(path.read_text())
    assert {(name_of(path), name) for name in forbidden(tree)} <= LISTED
    assert trace_literals(tree) == []


@pytest.mark.parametrize(
    ("source", "seen"),
    [
        ("from pytest_moetier.trace import parser", {f"{TRACE}.parser"}),
        ("import pytest_moetier.trace.scan", {f"{TRACE}.scan"}),
        (
            "def f():\n    from pytest_moetier.trace.formats.canonical import read_canonical",
            {f"{TRACE}.formats.canonical.read_canonical"},
        ),
        ("from pytest_moetier.trace.source import Source", {f"{TRACE}.source.Source"}),
        ("from pytest_moetier.trace.load import READERS", {f"{TRACE}.load.READERS"}),
        ("from pytest_moetier import _trace", {"pytest_moetier._trace"}),
        ("from pytest_moetier.trace.load import load_trace\nfrom pytest_moetier.trace.records import Trace", set()),
    ],
)
def test_an_import_past_the_door_is_seen(source: str, seen: set[str]) -> None:
    assert forbidden(ast.parse(source)) == seen


def test_within_the_package_only_the_readers_and_load_open_files_and_load_alone_parses() -> None:
    inside = {name_of(path): set(imports(ast.parse(path.read_text()))) for path in PYTHON if path not in OUTSIDE}
    opening = {name for name, seen in inside.items() if f"{TRACE}.source.Source" in seen}
    parsing = {name for name, seen in inside.items() if f"{TRACE}.parser" in {one[: len(TRACE) + 7] for one in seen}}
    folder = TRACE.replace(".", "/")
    assert {name for name in opening if not name.startswith(f"{folder}/formats/")} == {f"{folder}/load.py"}
    assert parsing == {f"{folder}/load.py"}


def test_a_read_of_a_trace_by_name_is_seen() -> None:
    assert trace_literals(ast.parse("rows = (home / 'prose.jsonl').read_text()")) == [
        "(home / 'prose.jsonl').read_text()"
    ]
    assert trace_literals(ast.parse("note = 'prose.jsonl'")) == []
