"""The number of BLAS threads: what the environment says, else one that was measured."""

import os

import pytest
from refserver import threads


def test_the_environment_wins(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert threads.settle() == 1


def test_more_threads_than_cores_are_not_used(monkeypatch):
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "4096")
    assert threads.settle() == len(os.sched_getaffinity(0))


@pytest.mark.parametrize(
    ("one", "many", "best"), [(1.0, 0.5, "cores"), (1.0, 0.95, 1), (1.0, 9, 1)]
)
def test_more_threads_are_used_only_where_they_are_faster(monkeypatch, one, many, best):
    for name in threads.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    made = iter([one, many] * threads.ROUNDS)
    monkeypatch.setattr(threads, "_products", lambda *_: next(made))
    assert threads.settle() == (4 if best == "cores" else best)
