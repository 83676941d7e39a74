"""The pre-flight in a pyinfra run over hosts that do not exist (pyinfra's own @fake connector)."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

DEPLOY = """
import sys
from dataclasses import dataclass, replace

sys.path.insert(0, {root!r})

from pyinfra import host
from pyinfra.operations import server

from facts.machine import MachineFacts
from operations import preflight
from operations.plan import ServingPlan, choose
from operations.wanted import Wanted
from tests.unit.plan_cases import broken, wanted_for


@dataclass(frozen=True)
class Run:
    machine: MachineFacts
    wanted: Wanted
    plan: ServingPlan


# saved facts carry the clock of the day they were saved
machine = replace(broken("b300", host.data.fault), clock_unix=None)
wanted = wanted_for("b300")
if preflight.passes(Run(machine, wanted, choose(machine, wanted))):
    preflight.after_stack(name="Triton's ptxas", run=Run(machine, wanted, choose(machine, wanted)))
    server.shell(name="what comes after", commands=["true"])
"""
INVENTORY = """
def _ptxas(status):  # what the probe of Triton's ptxas prints; what stops a host does fail
    said = f"/usr/local/cuda/bin/ptxas sm_103\\nstatus {status}"
    return {"--gpu-name": said, "exit 1": {"success": False}}


hosts = [
    ("@fake/good", {"fault": "none", "fake_responses": _ptxas(0)}),
    ("@fake/bad", {"fault": "7of8"}),
    ("@fake/old", {"fault": "none", "fake_responses": _ptxas(255)}),
]
"""


@pytest.fixture(scope="module")
def pyinfra(tmp_path_factory):
    tmp_path = tmp_path_factory.mktemp("deploy")

    @cache
    def run(*words: str) -> subprocess.CompletedProcess[str]:
        (tmp_path / "deploy.py").write_text(DEPLOY.format(root=str(ROOT)))
        (tmp_path / "inventory.py").write_text(INVENTORY)
        program = "from pyinfra_cli.main import cli; cli()"
        return subprocess.run(
            [sys.executable, "-c", program, "inventory.py", "deploy.py", *words],
            cwd=tmp_path,
            env={**os.environ, "HF_HUB_OFFLINE": "1"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )

    return run


def test_a_failed_check_stops_that_host_alone_with_one_line(pyinfra):
    done = pyinfra("-y")
    lines = [line for line in done.stderr.splitlines() if "fail " in line]
    assert len(lines) == 1
    assert "@fake/bad" in lines[0]
    assert "gpu.count: expected 8 GPUs, found 7" in lines[0]
    assert done.returncode == 1
    after = done.stderr[done.stderr.index("what comes after") :]
    assert "@fake/good] Success" in after
    assert "@fake/bad]" not in after


def test_a_ptxas_that_does_not_know_the_gpu_stops_its_host_after_the_stack(pyinfra):
    done = pyinfra("-y")
    assert "@fake/old]  Error: executed 0 commands" in done.stderr
    assert "@fake/old]" not in done.stderr[done.stderr.index("what comes after") :]
    plan = json.loads(pyinfra("--dry", "--json").stdout)["plan"]
    changes = {one["name"]: one["hosts_with_change"] for one in plan}
    assert changes["Triton's ptxas"] == ["@fake/old"]


def test_a_dry_run_goes_on_with_the_other_hosts_and_asks_nobody(pyinfra):
    done = pyinfra("--dry")
    assert "Traceback" not in done.stderr
    assert "@fake/bad]  fail gpu.count" in done.stderr
    assert "@fake/good] Ready: deploy.py" in done.stderr


def test_json_on_stdout_has_every_host_and_finding(pyinfra):
    done = pyinfra("--dry", "--data", "preflight=json")
    document = json.loads(done.stdout[done.stdout.index("{") :])
    hosts = {one["host"]: one for one in document["hosts"]}
    assert document["schema"] == "ddtree-preflight/1"
    assert (hosts["@fake/good"]["ok"], hosts["@fake/bad"]["ok"]) == (True, False)
    bad = {one["id"]: one for one in hosts["@fake/bad"]["findings"]}
    assert bad["gpu.count"]["status"] == "fail"
    assert bad["gpu.count"]["remedy"]
