"""How many BLAS threads to use when OPENBLAS_NUM_THREADS does not say."""

import os
from pathlib import Path

_QUOTA = Path("/sys/fs/cgroup/cpu.max")  # "MICROSECONDS PERIOD" or "max PERIOD"


def default_threads(quota_file: Path = _QUOTA) -> int:
    """The usable cores but one, 1 to 8.

    OpenBLAS's threads wait for each other after every product, spinning: when something else (the
    client of a benchmark on the same machine, another engine) takes a core from them, a product
    takes ten times as long. One core is left free for that.
    """
    cores = len(os.sched_getaffinity(0))
    try:
        quota, period = quota_file.read_text().split()
        cores = min(cores, int(int(quota) / int(period)))
    except (OSError, ValueError):  # no cgroup v2, or no quota ("max")
        pass
    return min(max(cores - 1, 1), 8)
