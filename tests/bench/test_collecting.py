"""Collecting the findings is cheap: what only a measurement needs is imported when one runs."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
HEAVY = ("numpy", "yaml", "rich", "psutil", "orjson", "pytest_moetier.campaign", "pytest_moetier.host.guest")
COLLECT = f"""
import sys, pytest
assert pytest.main(["bench/", "--collect-only", "-qq", "--moetier-kernel=6.12", "-p", "no:cacheprovider"]) == 0
print("imported:", [one for one in {HEAVY} if one in sys.modules])
"""


def test_collecting_imports_nothing_heavy() -> None:
    done = subprocess.run([sys.executable, "-c", COLLECT], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "imported: []"
