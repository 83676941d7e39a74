"""How many threads numpy's BLAS uses: measured, since on a busy machine more are slower.

BLAS threads wait for each other by spinning. Where another process holds a core, each of some 200
small products a step then costs a scheduler's time slice: with two threads on two cores that other
work shared, the products of one step took 2 to 14 times as long as with one thread.
"""

import os
import time

import numpy as np
from threadpoolctl import threadpool_limits

ROWS, COLUMNS, MATRICES, ROUNDS = 1536, 576, 24, 3
WORTH = 1.1  # more threads must be faster by this much
VARIABLES = ("OPENBLAS_NUM_THREADS", "OMP_NUM_THREADS", "MKL_NUM_THREADS")


def settle() -> int:
    """Sets the number of BLAS threads of this process for good, and returns it.

    An environment variable that names a number wins. Takes some 50 ms on a free machine.
    """
    named = next((os.environ[name] for name in VARIABLES if os.environ.get(name)), None)
    cores = len(os.sched_getaffinity(0))
    if named is not None and named.isdigit():
        return min(int(named), cores)
    if cores == 1:
        return 1
    generator = np.random.default_rng(0)
    matrices = [generator.random((ROWS, COLUMNS), dtype=np.float32) for _ in range(MATRICES)]
    vector = generator.random(COLUMNS, dtype=np.float32)
    times: dict[int, list[float]] = {1: [], cores: []}
    for _ in range(ROUNDS):  # interleaved, so that a passing load meets both
        for count, seconds in times.items():
            with threadpool_limits(count):
                seconds.append(_products(matrices, vector))
    one, many = sorted(times[1])[ROUNDS // 2], sorted(times[cores])[ROUNDS // 2]
    best = cores if many * WORTH < one else 1
    threadpool_limits(best)
    return best


def _products(matrices: list[np.ndarray], vector: np.ndarray) -> float:
    """Seconds that one pass over `matrices` takes."""
    began = time.perf_counter()
    for matrix in matrices:
        matrix @ vector
    return time.perf_counter() - began
