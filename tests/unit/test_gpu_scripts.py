"""The scripts of tests/gpu say how they are used, on a machine without torch."""

import subprocess
import sys
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "gpu"
WITHOUT_TORCH = """
import runpy, sys
sys.modules.update(torch=None, safetensors=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


@pytest.mark.parametrize("name", ["check", "mla_moe", "models", "steps", "table"])
def test_help_needs_no_torch(name):
    words = [sys.executable, "-c", WITHOUT_TORCH, str(SCRIPTS / f"{name}.py"), "--help"]
    done = subprocess.run(words, cwd=SCRIPTS, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert f"{name}.py" in done.stdout
