"""The gate with a real engine that was really made slow: the release before serves again."""

import json
from pathlib import Path

import pytest

pytestmark = pytest.mark.timeout(900)  # two whole deploys with benchmarks

BENCH = {
    "arms": ["ar"],
    "prompts_per_cell": 1,
    "max_new_tokens": 12,
    "repeats": 3,
    "ignore_eos": True,
}
# Python runs this at its start: a thread that holds the interpreter about half of the time.
SLOW = """
import sys, threading, time
if "refserver" in " ".join(sys.orig_argv):
    def spin():
        while True:
            sum(range(60000))
            time.sleep(0.001)
    threading.Thread(target=spin, daemon=True).start()
"""


def test_a_slower_release_is_told_and_the_release_before_is_put_back(deploy, tmp_path):
    plain = {"OPENBLAS_NUM_THREADS": "1"}
    first = deploy.run("-y", arm="ar", environment=plain, bench=BENCH)
    assert first.returncode == 0, first.stderr[-3000:]
    good = (deploy.prefix / "current").readlink()

    (tmp_path / "sitecustomize.py").write_text(SLOW)
    slow = {**plain, "PYTHONPATH": f"{deploy.prefix}/current/sources:{tmp_path}"}
    wanted = {"arm": "ar", "environment": slow, "bench": BENCH}
    second = deploy.run("-y", "--data", "gate=rollback", **wanted)
    assert second.returncode == 0, second.stderr[-3000:]
    assert "gate: ar: " in second.stderr
    assert (deploy.prefix / "current").readlink() == good
    status = json.loads((deploy.prefix / "run/status.json").read_text())
    assert status["state"] == "ready"
    assert status["fingerprint"] == Path(good).name
