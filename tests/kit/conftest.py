"""The made results of tests/report serve here too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "report"))
