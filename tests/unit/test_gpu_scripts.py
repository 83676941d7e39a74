"""Scripts of tests/gpu on a machine without torch."""

import subprocess
import sys
from pathlib import Path

SCRIPTS = Path(__file__).parents[1] / "gpu"
WITHOUT_TORCH = """
import runpy, sys
sys.modules.update(torch=None, safetensors=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_models_script_says_how_it_is_used():
    words = [sys.executable, "-c", WITHOUT_TORCH, str(SCRIPTS / "models.py"), "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "models.py widen HF_DIR OUT FACTOR" in done.stdout
