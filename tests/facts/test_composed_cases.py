"""hosts/ and machines/ in tests/cases are what compose.py writes today."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_saved_hosts_and_machines_are_what_the_parsers_make_of_the_cases(tmp_path):
    cases = tmp_path / "tests/cases"
    shutil.copytree(ROOT / "tests/cases", cases)
    shutil.copytree(ROOT / "facts", tmp_path / "facts")
    before = {path: path.read_text() for path in cases.rglob("*.*") if path.suffix != ".pyc"}
    subprocess.run([sys.executable, str(cases / "compose.py")], check=True)
    changed = [
        str(path.relative_to(cases)) for path, text in before.items() if path.read_text() != text
    ]
    assert changed == [], "run: python tests/cases/compose.py"
