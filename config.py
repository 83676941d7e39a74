"""Read by pyinfra before anything else: a mistyped command line ends here, not in an empty run."""

import io
import os
import sys
from pathlib import Path

from pyinfra_cli.cli import cli

sys.path.insert(0, str(Path(__file__).resolve().parent))

from operations.invocation import InvocationError, check, only_looks

valued = {name for flag in cli.params if not getattr(flag, "is_flag", False) for name in flag.opts}
answers = bool(os.environ.get("PYINFRA_YES")) or (sys.stdin is not None and sys.stdin.isatty())
try:
    check(sys.argv[1:], Path.cwd(), valued, answers=answers)
except InvocationError as error:
    sys.exit(f"ddtree-deploy: {error}")
if only_looks(sys.argv[1:]):
    sys.stdin = io.StringIO("\n")  # pyinfra asks before every run that is not dry; this is its yes
