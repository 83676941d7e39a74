"""What a deploy refuses, for that host alone, before anything is changed."""

import json
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from lab_deploy import PREFIX, Deployment

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

FAULTS = [
    ("b300-a", "7of8", ["gpu.count"]),
    ("b300-a", "island", ["gpu.links"]),
    ("b300-a", "lost-gpu", ["gpu.lost"]),
    ("b300-a", "driver-mismatch", ["gpu.driver"]),
    ("b300-a", "old-nvcc", ["cuda.nvcc", "cuda.ptxas"]),
    ("b300-a", "fabric", ["fabric.state"]),
    ("b300-a", "old-fabricmanager", ["fabric.manager"]),
    ("ct200-a", "7of8", ["gpu.count"]),
    ("ct200-a", "old-nvcc", ["cuda.nvcc", "cuda.ptxas"]),
]


@pytest.fixture
def mended(deployed_lab: Deployment) -> Iterator[Deployment]:
    """The deployed lab, whose fake GPUs are well again after the test."""
    yield deployed_lab
    for name in ("b300-a", "ct200-a"):
        deployed_lab.tool("fault", name, "none")


def failed_checks(text: str, name: str) -> list[str]:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    return re.findall(rf"^\s*\[{name}\]\s+fail ([\w.]+): \S", plain, re.MULTILINE)


@pytest.mark.parametrize(("name", "fault", "checks"), FAULTS)
def test_a_fault_of_the_gpus_fails_its_check(
    mended: Deployment, name: str, fault: str, checks: list[str]
) -> None:
    mended.tool("fault", name, fault)
    done = mended.run("-y", "--data", "only=preflight", "--limit", name)
    assert done.returncode == 1
    assert failed_checks(done.stderr + done.stdout, name) == checks


def test_a_host_with_a_fault_stops_alone_and_the_other_goes_on(mended: Deployment) -> None:
    mended.tool("fault", "b300-a", "7of8")
    done = mended.run("-y", "--json")
    assert done.returncode == 1
    operations = json.loads(done.stdout)["results"]["operations"]
    assert {host for op in operations for host in op["no_change"]} == {"ct200-a"}
    assert {host for op in operations for host in op["success"]} == set()
    assert failed_checks(done.stderr, "b300-a") == ["gpu.count"]
    assert failed_checks(done.stderr, "ct200-a") == []
    assert mended.status("b300-a")["state"] == "ready"  # what served before goes on serving


def test_a_host_that_can_t_be_reached_stops_alone_and_the_other_goes_on(
    deployed_lab: Deployment, tmp_path: Path
) -> None:
    state = tmp_path / "state"
    shutil.copytree(deployed_lab.tool.state, state, ignore=shutil.ignore_patterns("hosts", "cm-*"))
    config = (state / "ssh_config").read_text()
    blocks = config.split("Host ")
    moved = [b.replace("Port 22022", "Port 9") if b.startswith("b300-a") else b for b in blocks]
    (state / "ssh_config").write_text("Host ".join(moved))
    done = deployed_lab.run("-y", "--json", state=state)
    assert done.returncode == 1
    assert re.search(r"\[b300-a\].*(refused|connect)", done.stderr)
    operations = json.loads(done.stdout)["results"]["operations"]
    assert {host for op in operations for host in op["no_change"]} == {"ct200-a"}


def test_a_port_that_a_stranger_holds_stops_the_host_before_anything_changes(
    deployed_lab: Deployment,
) -> None:
    port = deployed_lab.status("ct200-a")["port"] + 5
    stranger = f"python3 -m http.server --bind 127.0.0.1 {port}"
    deployed_lab.tool.ssh("ct200-a", f"systemd-run --unit=stranger {stranger}")
    current = deployed_lab.current("ct200-a")
    releases = deployed_lab.tool.ssh("ct200-a", f"ls {PREFIX}/releases")
    try:
        change = f'set={{"port": {port}}}'
        done = deployed_lab.run("-y", "--limit", "ct200-a", "--data", change)
    finally:
        deployed_lab.tool.ssh("ct200-a", "systemctl stop stranger")
    assert done.returncode == 1
    checks = failed_checks(done.stderr + done.stdout, "ct200-a")
    assert checks == ["port.free"]
    assert str(port) in done.stderr + done.stdout
    assert deployed_lab.current("ct200-a") == current
    assert deployed_lab.tool.ssh("ct200-a", f"ls {PREFIX}/releases") == releases
