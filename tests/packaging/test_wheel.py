"""What is built without cmake or ninja on the host, and that it works in an empty environment outside the checkout."""

from __future__ import annotations

import configparser
import email
import importlib.util
import json
import os
import shutil
import struct
import subprocess
import sys
import tarfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

import pytest

from pytest_moetier.host.cgroup import scope_support
from pytest_moetier.host.loopdev import loop_support

CHECKOUT = Path(__file__).parents[2]
NOT_SOURCE = shutil.ignore_patterns(".git", ".venv", "build", "dist", "__pycache__", ".*_cache", ".hypothesis", "*.so")
BUILD_TOOLS = ("cmake", "ctest", "cpack", "ninja")
_spec = importlib.util.find_spec("build")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(_spec is None, reason="the package build is missing: pip install build"),
]
PROGRAMS = ("moetier-replay", "moetier-balloon", "moetier-agent", "moetier-probe")
EXECUTABLES = tuple(f"pytest_moetier/bin/{name}" for name in PROGRAMS)
STATIC = tuple(f"pytest_moetier/bin/static/{name}" for name in PROGRAMS)
"""For a guest, which has no C library; left out where this host cannot link them."""
_INTERPRETER = 3  # of an ELF file's program headers: what loads its shared libraries


@dataclass(frozen=True)
class Built:
    sdist: Path
    wheel: Path
    source: Path
    env: dict[str, str]


def run(*command: str | Path, cwd: Path, env: dict[str, str]) -> str:
    """Run a command and return its output; a failure shows everything it said."""
    done = subprocess.run([*command], cwd=cwd, env=env, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, f"{command} ended with {done.returncode}\n{done.stdout}\n{done.stderr}"
    return done.stdout


@pytest.fixture(scope="module")
def no_build_tools(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """An environment whose PATH has every tool of this host but cmake and ninja."""
    folder = tmp_path_factory.mktemp("path")
    for place in ("/usr/local/bin", "/usr/bin", "/bin"):
        for tool in sorted(Path(place).iterdir()) if Path(place).is_dir() else []:
            link = folder / tool.name
            if not tool.name.startswith(BUILD_TOOLS) and not link.is_symlink():
                link.symlink_to(tool)
    assert shutil.which("cmake", path=str(folder)) is None
    clean = {
        name: value for name, value in os.environ.items() if not name.startswith(("PYTEST_", "PYTHON", "MOETIER_"))
    }
    return {**clean, "PATH": str(folder), "PIP_DISABLE_PIP_VERSION_CHECK": "1"}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory, no_build_tools: dict[str, str]) -> Built:
    """The sdist of the checkout, and the wheel that the sdist alone gives."""
    work = tmp_path_factory.mktemp("built")
    source = work / "source"
    shutil.copytree(CHECKOUT, source, ignore=NOT_SOURCE)
    run(sys.executable, "-m", "build", "--outdir", work / "dist", source, cwd=work, env=no_build_tools)
    (sdist,) = (work / "dist").glob("*.tar.gz")
    (wheel,) = (work / "dist").glob("*.whl")
    return Built(sdist, wheel, source, no_build_tools)


@pytest.fixture(scope="module")
def names(built: Built) -> set[str]:
    with zipfile.ZipFile(built.wheel) as wheel:
        return set(wheel.namelist())


@pytest.fixture(scope="module")
def static(tmp_path_factory: pytest.TempPathFactory, no_build_tools: dict[str, str]) -> tuple[str, ...]:
    """What is to be linked statically: nothing where this host has no C library for it."""
    folder = tmp_path_factory.mktemp("static")
    (folder / "one.c").write_text('#include <stdio.h>\nint main(void) { return puts("") < 0; }\n')
    command = (no_build_tools.get("CC", "cc"), "-static", "-pthread", "one.c", "-o", "one")
    done = subprocess.run(command, cwd=folder, env=no_build_tools, capture_output=True, check=False)
    return STATIC if done.returncode == 0 else ()


def loads_libraries(program: bytes) -> bool:
    """Whether an ELF file (64 bits, little-endian) names what loads its shared libraries."""
    (first,) = struct.unpack_from("<Q", program, 32)
    size, count = struct.unpack_from("<HH", program, 54)
    return _INTERPRETER in {struct.unpack_from("<I", program, first + at * size)[0] for at in range(count)}


def test_one_wheel_serves_every_python_from_3_11(built: Built) -> None:
    assert "-cp311-abi3-" in built.wheel.name


def test_the_wheel_has_the_extension_the_types_and_the_executables(built: Built, names: set[str]) -> None:
    extensions = {f"pytest_moetier/{name}" for one in ("_sim", "_trace") for name in (f"{one}.abi3.so", f"{one}.pyi")}
    expected = {*extensions, "pytest_moetier/py.typed", *EXECUTABLES}
    assert expected <= names
    with zipfile.ZipFile(built.wheel) as wheel:
        for name in EXECUTABLES:
            assert wheel.getinfo(name).external_attr >> 16 & 0o111 == 0o111
            assert wheel.read(name)[:4] == b"\x7fELF"


def test_the_wheel_has_static_executables_where_they_can_be_linked(
    built: Built, names: set[str], static: tuple[str, ...]
) -> None:
    found = {name for name in names if name.startswith("pytest_moetier/bin/static/")}
    assert found == set(static)
    assert {name for name in names if name.startswith("pytest_moetier/bin/")} - found == set(EXECUTABLES)
    with zipfile.ZipFile(built.wheel) as wheel:
        for name in (*EXECUTABLES, *sorted(found)):
            assert wheel.getinfo(name).external_attr >> 16 & 0o111 == 0o111
            assert loads_libraries(wheel.read(name)) is (name in EXECUTABLES), name


def test_the_wheel_has_every_module_and_every_finding_of_the_checkout(names: set[str]) -> None:
    modules = {str(p.relative_to(CHECKOUT)) for p in (CHECKOUT / "pytest_moetier").rglob("*.py")}
    findings = {f"pytest_moetier/{p.relative_to(CHECKOUT)}" for p in (CHECKOUT / "bench").rglob("*.py")}
    kinds = (".yaml", ".json", ".html", ".css")
    data = {str(p.relative_to(CHECKOUT)) for p in (CHECKOUT / "pytest_moetier").rglob("*") if p.suffix in kinds}
    assert findings
    assert len(data) >= 5
    assert modules | findings | data | {"pytest_moetier/bench/bounds.yaml"} <= names


def test_the_wheel_has_nothing_but_the_package_and_its_metadata(names: set[str]) -> None:
    assert {name.split("/")[0].split("-")[0] for name in names} == {"pytest_moetier"}
    assert not [name for name in names if name.endswith((".c", ".h", ".pyc", "CMakeLists.txt"))]


def test_the_metadata_names_the_licence_the_entry_points_and_the_floor_of_pytest(built: Built, names: set[str]) -> None:
    with zipfile.ZipFile(built.wheel) as wheel:
        (metadata_name,) = (n for n in names if n.endswith(".dist-info/METADATA"))
        metadata = email.message_from_bytes(wheel.read(metadata_name))
        points = wheel.read(metadata_name.replace("METADATA", "entry_points.txt")).decode()
    assert metadata["License-Expression"] == "MIT"
    assert metadata.get_all("License-File") == ["LICENSE"]
    assert metadata["Requires-Python"] == ">=3.11"
    assert {"pytest>=9", "pytest-benchmark>=5.3.1"} <= set(metadata.get_all("Requires-Dist"))
    entry_points = configparser.ConfigParser()
    entry_points.read_string(points)
    assert {section: dict(entry_points[section]) for section in entry_points.sections()} == {
        "console_scripts": {"moetier": "pytest_moetier.cli:main"},
        "pytest11": {"moetier": "pytest_moetier.plugin"},
    }


def test_the_sdist_has_the_sources_the_tests_and_the_licence(built: Built) -> None:
    with tarfile.open(built.sdist) as sdist:
        files = {name.split("/", 1)[1] for name in sdist.getnames() if "/" in name}
    wanted = {
        "CMakeLists.txt",
        "native/CMakeLists.txt",
        "native/sim/module.c",
        "native/trace/module.c",
        "LICENSE",
        "README.md",
        "CHANGELOG.md",
    }
    wanted |= {"Makefile", "conftest.py", "bench/bounds.yaml", "tests/packaging/test_wheel.py", "pyproject.toml"}
    assert wanted <= files
    assert not [name for name in files if name.endswith((".so", ".pyc")) or name.startswith((".venv", "build/"))]


def check_installed(python: Path, cwd: Path, env: dict[str, str]) -> None:
    """The command answers, the findings are collected, data and executables are found."""
    assert "usage: moetier" in run(python.parent / "moetier", "--help", cwd=cwd, env=env)
    watched = run(python.parent / "moetier", "watch", "--count", "1", "--json", cwd=cwd, env=env)
    assert watched, "the thresholds are those of the installed bounds"
    assert ": 1.063 (" in run(python.parent / "moetier", "tiers", "--constants", "gh200", cwd=cwd, env=env)
    listing = run(python, "-m", "pytest", "--pyargs", "pytest_moetier.bench", "--collect-only", "-q", cwd=cwd, env=env)
    assert "test_capacity.py::" in listing
    code = (
        "import importlib.resources as r, subprocess; from pytest_moetier import _sim, _trace;"
        "from pytest_moetier.native import executable;"
        "assert r.files('pytest_moetier.bench').joinpath('bounds.yaml').read_text();"
        "print(subprocess.run([executable('moetier-replay'), '--nonsense'], capture_output=True).returncode)"
    )
    assert run(python, "-c", code, cwd=cwd, env=env).strip() == "2"


def check_guests(python: Path, cwd: Path, env: dict[str, str], *, static: tuple[str, ...]) -> None:
    """The programs of a guest are found and run by themselves, or it is said what links them."""
    code = (
        "import subprocess; from pytest_moetier.errors import UnsupportedHostError as Missing;"
        "from pytest_moetier.native import static_executable as found;"
        f"names = {PROGRAMS!r};"
        "ended = [subprocess.run([found(one), '--nonsense'], env={}, capture_output=True).returncode for one in names]"
    )
    if static:
        assert run(python, "-c", f"{code}; print(ended)", cwd=cwd, env=env).strip() == "[2, 2, 2, 2]"
        return
    done = subprocess.run([python, "-c", code], cwd=cwd, env=env, capture_output=True, text=True, check=False)
    assert "expected a Linux install that could link one (libc.a)" in done.stderr


def check_measures(python: Path, cwd: Path, env: dict[str, str]) -> None:
    """The installed finding measures a small pool for real, and every invariant of the run is held or flagged."""
    if os.geteuid() != 0 or loop_support() or not scope_support().available:
        return  # the tests of the findings themselves say why such a host cannot measure
    shape = ("custom", "--layers=2", "--experts=128", "--k=8", "--expert-bytes=256KiB", "--store=image")
    run(python.parent / "moetier", "pool", "create", *shape, cwd / "pool", cwd=cwd, env=env)
    words = ("--moetier-capacity=30%", "--moetier-mechanism=cgroup", "--moetier-rounds=1", "--moetier-iterations=12")
    words += ("--moetier-pool=pool", "--moetier-json=found.json", "--moetier-refuted=report", "--moetier-wait=200")
    finding = ("--pyargs", "pytest_moetier.bench", "-k", "capacity")
    run(python, "-m", "pytest", *finding, *words, cwd=cwd, env=env)
    results = {one["cell"]: one for one in json.loads((cwd / "found.json").read_text())["results"]}
    (proof,) = results["C30pct-cgroup-mglru_host"]["proof"]
    assert len(proof) > 20
    assert {one["state"] for one in proof} <= {"held", "flagged"}


def empty_venv(folder: Path, env: dict[str, str]) -> Path:
    run(sys.executable, "-m", "venv", folder / "venv", cwd=folder, env=env)
    return folder / "venv" / "bin" / "python"


def test_the_wheel_works_in_an_empty_environment_outside_the_checkout(
    built: Built, tmp_path: Path, static: tuple[str, ...]
) -> None:
    python = empty_venv(tmp_path, built.env)
    run(python, "-m", "pip", "install", "--quiet", built.wheel, cwd=tmp_path, env=built.env)
    check_installed(python, tmp_path, built.env)
    check_guests(python, tmp_path, built.env, static=static)
    check_measures(python, tmp_path, built.env)


def test_an_editable_install_works_and_follows_the_checkout(
    built: Built, tmp_path: Path, static: tuple[str, ...]
) -> None:
    python = empty_venv(tmp_path, built.env)
    run(python, "-m", "pip", "install", "--quiet", "--editable", built.source, cwd=tmp_path, env=built.env)
    check_installed(python, tmp_path, built.env)
    check_guests(python, tmp_path, built.env, static=static)
    added = built.source / "pytest_moetier" / "added_later.py"
    added.write_text("HERE = True\n")
    try:
        run(python, "-c", "from pytest_moetier.added_later import HERE", cwd=tmp_path, env=built.env)
    finally:
        added.unlink()
    run(python, "-m", "pytest", "bench/", "--collect-only", "-q", cwd=built.source, env=built.env)
