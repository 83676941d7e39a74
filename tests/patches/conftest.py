"""The added modules of the patch set are imported from where they lie in this repository."""

import os
import sys
from pathlib import Path

NEW = Path(__file__).parents[2] / "files" / "patches" / "sglang-0.5.16" / "new"
sys.path.insert(0, str(NEW))
# CI has no GPU: there Triton's own interpreter runs the kernels, from the same source.
if not Path("/dev/nvidia0").exists():
    os.environ.setdefault("TRITON_INTERPRET", "1")
