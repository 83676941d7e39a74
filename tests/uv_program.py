"""Where uv is for the tests: `make` puts it into .tools, a developer may have it elsewhere."""

import shutil
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def uv_program() -> str:
    """The path of uv; RuntimeError with the remedy where there is none."""
    beside = [ROOT / ".tools/uv", Path(sys.executable).with_name("uv")]
    found = next((str(path) for path in beside if path.exists()), shutil.which("uv"))
    if found is None:
        raise RuntimeError("expected uv in .tools, found none; run `make .tools/uv`")
    return found
