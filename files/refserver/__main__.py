"""`python -m refserver`: settles the number of BLAS threads, then runs the command line."""

import os
import sys

from .threads import default_threads

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(default_threads()))

try:
    from .command_line import main
except ModuleNotFoundError as missing:
    sys.exit(
        f"refserver: needs the module {missing.name}, which this Python lacks: "
        f"install refserver's requirements.lock into {sys.prefix}"
    )

if __name__ == "__main__":
    sys.exit(main())
