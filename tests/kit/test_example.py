"""The kits under docs/example hold."""

import subprocess
import sys
from pathlib import Path

import pytest

KITS = sorted((Path(__file__).parents[2] / "docs" / "example").glob("*/SHA256SUMS"))


def test_there_is_an_example():
    assert KITS


@pytest.mark.parametrize("sums", KITS, ids=lambda path: path.parent.name)
def test_example_kit_verifies_itself(sums):
    done = subprocess.run(
        [sys.executable, "-I", str(sums.parent / "verify.py")], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("the kit holds\n")
