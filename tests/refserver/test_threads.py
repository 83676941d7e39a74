import os

import pytest
from refserver.threads import default_threads


@pytest.fixture
def cores(monkeypatch):
    def set_to(count):
        monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(count)))

    return set_to


@pytest.mark.parametrize(("count", "threads"), [(1, 1), (2, 1), (4, 3), (64, 8)])
def test_one_core_is_left_free_and_eight_threads_are_enough(cores, tmp_path, count, threads):
    cores(count)
    assert default_threads(tmp_path / "none") == threads


@pytest.mark.parametrize(
    ("quota", "threads"), [("max 100000", 8), ("400000 100000", 3), ("50000 100000", 1)]
)
def test_a_container_s_cpu_quota_counts_as_its_cores(cores, tmp_path, quota, threads):
    cores(64)
    (tmp_path / "cpu.max").write_text(quota + "\n")
    assert default_threads(tmp_path / "cpu.max") == threads
