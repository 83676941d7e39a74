"""Read by pyinfra before anything else: a mistyped command line ends here, not in an empty run."""

import sys
from pathlib import Path

from pyinfra.api.exceptions import PyinfraError

sys.path.insert(0, str(Path(__file__).resolve().parent))

from operations.invocation import InvocationError, check

try:
    check(sys.argv[1:], Path(__file__).resolve().parent)
except InvocationError as error:
    raise PyinfraError(str(error)) from None
