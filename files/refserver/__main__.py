"""`python -m refserver`: settles the number of BLAS threads, then runs the command line."""

import os
import sys

from .threads import default_threads

os.environ.setdefault("OPENBLAS_NUM_THREADS", str(default_threads()))

from .command_line import main

if __name__ == "__main__":
    sys.exit(main())
