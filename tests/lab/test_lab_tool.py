"""The lab tool itself: hosts boot, survive, and leave nothing behind."""

import hashlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import lab
import pytest
from lab_cgroup import hierarchy
from lab_tool import TOOL, LabTool

pytestmark = pytest.mark.lab


def cgroup_of(tool: LabTool) -> Path:
    tag = hashlib.sha256(str(tool.state).encode()).hexdigest()[:8]
    root = hierarchy()
    assert root is not None
    return root / f"ddtree-lab-{tag}"


def traces(tool: LabTool) -> dict[str, object]:
    """All that a lab could leave on this machine."""
    name = cgroup_of(tool).name
    processes = []
    for entry in Path("/proc").glob("[0-9]*/cgroup"):
        try:
            ended = not (entry.parent / "cmdline").read_bytes()  # a zombie, or a kernel thread
            if name in entry.read_text() and not ended:
                processes.append(entry.parent.name)
        except (FileNotFoundError, ProcessLookupError):
            continue
    return {
        "state": tool.state.exists(),
        "processes": processes,
        "cgroups": [str(p) for p in cgroup_of(tool).parent.rglob(f"*{name}*")],
        "mounts": [
            m for m in Path("/proc/mounts").read_text().splitlines() if str(tool.state) in m
        ],
        "listeners": _output("ss", "-Hltn", f"src 127.{tool.net}.0.0/16"),
        "addresses": _output("ip", "-o", "address"),
        "routes": _output("ip", "route", "show", "table", "all"),
        "run": sorted(p.name for p in Path("/run/systemd").glob("*")),
        "machines": sorted(p.name for p in Path("/var/lib/machines").glob("*")),
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _output(*command: str) -> str:
    path = os.environ.get("PATH", "") + ":/usr/sbin:/sbin"
    environment = {**os.environ, "PATH": path}
    return subprocess.run(
        command, env=environment, capture_output=True, text=True, check=True
    ).stdout


def settled_traces(tool: LabTool, expected: dict[str, object]) -> dict[str, object]:
    """Traces once the kernel has let go of ended processes, or after 10 s."""
    deadline = time.monotonic() + 10
    while (now := traces(tool)) != expected and time.monotonic() < deadline:
        time.sleep(0.1)
    return now


def test_a_host_boots_into_systemd_without_a_failed_unit(spare_lab: LabTool) -> None:
    spare_lab("up", "b300-a")
    assert spare_lab.ssh("b300-a", "cat /proc/1/comm").strip() == "systemd"
    assert spare_lab.ssh("b300-a", "systemctl is-system-running").strip() == "running"
    assert "b300-a" in spare_lab("status").stdout


def test_down_leaves_nothing_behind(spare_lab: LabTool) -> None:
    before = traces(spare_lab)
    spare_lab("up", "b300-a", "ct200-a")
    assert traces(spare_lab) != before
    spare_lab("down")
    assert settled_traces(spare_lab, before) == before


def test_down_leaves_nothing_behind_when_the_state_folder_is_lost(spare_lab: LabTool) -> None:
    before = traces(spare_lab)
    spare_lab("up", "bare-a")
    subprocess.run(["rm", "-rf", str(spare_lab.state)], check=False)
    spare_lab("down")
    assert settled_traces(spare_lab, before) == before


def test_down_cleans_up_after_an_up_that_was_killed(spare_lab: LabTool) -> None:
    before = traces(spare_lab)
    up = subprocess.Popen(
        [sys.executable, str(TOOL), "up", "b300-a", "ct200-a"],
        env=spare_lab.environment,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    while up.poll() is None and not traces(spare_lab)["processes"]:
        time.sleep(0.02)
    os.killpg(up.pid, signal.SIGKILL)
    up.wait()
    assert traces(spare_lab)["processes"]  # the hosts outlive the program that started them
    spare_lab("down")
    assert settled_traces(spare_lab, before) == before


def test_a_host_survives_a_reboot_with_its_disk(spare_lab: LabTool) -> None:
    spare_lab("up", "bare-a")
    spare_lab.ssh("bare-a", "touch /etc/kept /run/lost")
    spare_lab("ssh", "bare-a", "systemctl reboot", check=False)
    deadline = time.monotonic() + 60
    found = ""
    while "kept" not in found or "lost" in found:
        assert time.monotonic() < deadline, f"not back after a reboot: {found!r}"
        found = spare_lab("ssh", "bare-a", "ls /etc/kept /run/lost", check=False).stdout
        time.sleep(0.2)


def test_up_leaves_running_hosts_alone_and_adds_the_missing_ones(spare_lab: LabTool) -> None:
    spare_lab("up", "bare-a")
    spare_lab.ssh("bare-a", "touch /run/here")
    spare_lab("up", "bare-a", "bare-b")
    spare_lab.ssh("bare-a", "test -e /run/here")
    spare_lab.ssh("bare-b", "test ! -e /run/here")


def test_down_of_one_host_leaves_the_others_running(spare_lab: LabTool) -> None:
    spare_lab("up", "bare-a", "bare-b")
    spare_lab("down", "bare-a")
    assert "bare-a" not in spare_lab("status").stdout
    spare_lab.ssh("bare-b", "true")


def test_hosts_reach_each_other_by_name(spare_lab: LabTool) -> None:
    spare_lab("up", "bare-a", "b300-b")
    banner = spare_lab.ssh("bare-a", "exec 3<>/dev/tcp/b300-b/22022; head -c 4 <&3")
    assert banner == "SSH-"


def test_the_fake_gpus_of_a_host_show_a_fault_and_are_well_again(spare_lab: LabTool) -> None:
    spare_lab("up", "b300-a")
    count = "nvidia-smi -L | grep -c ^GPU"
    assert spare_lab.ssh("b300-a", count).strip() == "8"
    spare_lab("fault", "b300-a", "7of8")
    assert spare_lab.ssh("b300-a", count).strip() == "7"
    spare_lab("fault", "b300-a", "none")
    assert spare_lab.ssh("b300-a", count).strip() == "8"


def test_a_fault_that_the_fake_gpus_do_not_know_is_refused(spare_lab: LabTool) -> None:
    done = spare_lab("fault", "ct200-a", "island", check=False)
    assert done.returncode == 1
    assert "expected a fault of ct200-a: 7of8, " in done.stderr


def test_up_works_with_an_empty_environment(spare_lab: LabTool) -> None:
    keep = {k: v for k, v in spare_lab.environment.items() if k.startswith("DDTREE_LAB")}
    done = subprocess.run(
        [sys.executable, str(TOOL), "up", "bare-a"],
        env=keep,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_without_root_the_tool_says_so_in_one_line(lab_possible: None) -> None:
    program = (
        f"import sys; sys.path.insert(0, {str(TOOL.parent)!r}); import lab, os; os.setuid(65534);"
        "sys.exit(lab.main(['up', 'b300-a']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    assert done.stderr == f"lab: {_reason_for_user()}\n"


def _reason_for_user() -> str:
    return "the lab needs root: it mounts file systems and boots containers"


@pytest.mark.parametrize("name", ["h100-a", "b300", "../b300-a", "b300-a "])
def test_a_name_that_is_no_lab_host_is_refused(name: str, spare_lab: LabTool) -> None:
    done = spare_lab("up", name, check=False)
    assert done.returncode == 1
    assert f"found {name!r}" in done.stderr
    assert not spare_lab.state.exists()


def test_the_tool_can_tell_why_a_machine_runs_no_lab(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert lab.why_not() == _reason_for_user()
