"""A deployed service lives through crashes, reboots, interrupted runs and roll-backs."""

import os
import signal

import pytest
from lab_deploy import PREFIX, Deployment, kill_run, wait_for

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

CHANGE = ("--limit", "b300-a", "--data", 'set={"context_length": 1024}')
SERVE = ("--data", 'only=["units","serve"]')


def test_an_engine_that_was_killed_is_started_again(deployed_lab: Deployment) -> None:
    before = deployed_lab.status("b300-a")
    deployed_lab.tool.ssh("b300-a", f"kill -9 {before['engine_pid']}")
    after = deployed_lab.wait_ready(
        "b300-a", unless=lambda s: s["engine_pid"] == before["engine_pid"]
    )
    assert after["pid"] == before["pid"]
    assert after["restarts"] == before["restarts"] + 1
    assert deployed_lab.planned("--limit", "b300-a") == {}


def test_a_supervisor_that_was_killed_takes_its_engine_along_and_comes_back(
    deployed_lab: Deployment,
) -> None:
    before = deployed_lab.status("ct200-a")
    deployed_lab.tool.ssh("ct200-a", f"kill -9 {before['pid']}")
    after = deployed_lab.wait_ready("ct200-a", unless=lambda s: s["pid"] == before["pid"])
    engines = deployed_lab.tool.ssh("ct200-a", "pgrep -c -f '[-]m refserver'").strip()
    assert engines == "1"
    assert after["fingerprint"] == before["fingerprint"]


def test_after_a_reboot_the_service_comes_back_by_itself(deployed_lab: Deployment) -> None:
    boot = "systemctl show -p UserspaceTimestampMonotonic --value"
    before = deployed_lab.tool.ssh("b300-a", boot)
    deployed_lab.tool("ssh", "b300-a", "systemctl reboot", check=False)
    wait_for(
        lambda: deployed_lab.tool("ssh", "b300-a", boot, check=False).stdout not in ("", before),
        lambda: "b300-a did not come back from its reboot",
    )
    wait_for(
        lambda: (
            deployed_lab.tool("ssh", "b300-a", "systemctl is-active ddtree", check=False).stdout
            == "active\n"
        ),
        lambda: f"the service did not come back: {deployed_lab.status('b300-a')}",
    )
    assert deployed_lab.status("b300-a")["state"] == "ready"
    assert deployed_lab.planned("--limit", "b300-a") == {}


def test_a_run_killed_while_it_installs_is_completed_by_the_next(deployed_lab: Deployment) -> None:
    venv = deployed_lab.tool.ssh("ct200-a", f"readlink {PREFIX}/current/venv").strip()
    deployed_lab.tool.ssh("ct200-a", f"rm {venv}/.complete")
    assert list(deployed_lab.planned("--limit", "ct200-a")) == ["stack: the engine's venv"]
    log = f"cat {PREFIX}/run/jobs/stack.rc; pgrep -f 'uv pip sync'"
    deployed_lab.tool("ssh", "ct200-a", f"rm -f {PREFIX}/run/jobs/stack.*", check=False)
    run = deployed_lab.start("-y", "--limit", "ct200-a")
    wait_for(
        lambda: (
            run.poll() is not None or deployed_lab.tool("ssh", "ct200-a", log, check=False).stdout
        ),
        lambda: "the run never came to install the venv",
    )
    killed_early = run.poll() is None
    kill_run(run)
    assert killed_early
    deployed_lab.apply("--limit", "ct200-a")
    deployed_lab.tool.ssh("ct200-a", f"test -e {venv}/.complete")
    assert deployed_lab.planned("--limit", "ct200-a") == {}


def test_a_run_killed_while_it_restarts_is_mended_by_the_next(deployed_lab: Deployment) -> None:
    wanted = deployed_lab.current("b300-a")
    run = deployed_lab.start("-y", *CHANGE, *SERVE)
    wait_for(
        lambda: run.poll() is not None or deployed_lab.current("b300-a") != wanted,
        lambda: "the run never switched the release",
    )
    kill_run(run)
    assert deployed_lab.current("b300-a") != wanted
    deployed_lab.apply("--limit", "b300-a")
    assert deployed_lab.current("b300-a") == wanted
    status = deployed_lab.status("b300-a")
    assert (status["state"], status["fingerprint"]) == ("ready", wanted)
    assert deployed_lab.planned("--limit", "b300-a") == {}


def test_a_second_run_is_refused_while_another_is_at_work_and_not_when_that_is_dead(
    deployed_lab: Deployment,
) -> None:
    lock = f"cat {PREFIX}/run/deploy.lock"
    before = deployed_lab.tool.ssh("b300-a", lock)
    run = deployed_lab.start("-y", *CHANGE, *SERVE)
    wait_for(
        lambda: run.poll() is not None or deployed_lab.tool.ssh("b300-a", lock) != before,
        lambda: "the run never took the host",
    )
    os.killpg(run.pid, signal.SIGSTOP)  # at work for as long as the test needs it
    assert run.poll() is None
    second = deployed_lab.run("-y", "--limit", "b300-a")
    kill_run(run)
    assert second.returncode == 1
    assert "expected no other run on this host and prefix" in second.stderr
    assert f"(pid {run.pid})" in second.stderr
    deployed_lab.apply("--limit", "b300-a")
    assert deployed_lab.planned("--limit", "b300-a") == {}


def test_a_drop_in_of_the_unit_is_named_and_left_alone(deployed_lab: Deployment) -> None:
    place = "/etc/systemd/system/ddtree.service.d"
    drop_in = f"mkdir {place}; printf '[Service]\\nNice=1\\n' >{place}/nice.conf"
    deployed_lab.tool.ssh("ct200-a", f"{drop_in}; systemctl daemon-reload")
    try:
        done = deployed_lab.run("--dry", "--limit", "ct200-a")
        assert f"ddtree.service is changed by {place}/nice.conf: " in done.stderr
        assert deployed_lab.planned("--limit", "ct200-a") == {}
    finally:
        deployed_lab.tool.ssh("ct200-a", f"rm -r {place}; systemctl daemon-reload")
    assert "is changed by" not in deployed_lab.run("--dry", "--limit", "ct200-a").stderr


def test_a_roll_back_serves_the_earlier_release_again(deployed_lab: Deployment) -> None:
    wanted = deployed_lab.current("b300-a")
    deployed_lab.apply(*CHANGE, *SERVE)
    changed = deployed_lab.status("b300-a")
    assert changed["fingerprint"] == deployed_lab.current("b300-a") != wanted
    deployed_lab.apply("--limit", "b300-a", "--data", "rollback=previous")
    status = deployed_lab.status("b300-a")
    assert (status["state"], status["fingerprint"]) == ("ready", wanted)
    assert deployed_lab.planned("--limit", "b300-a") == {}


def test_an_ordinary_user_with_sudo_starts_the_service_and_sees_it_get_ready(
    deployed_lab: Deployment,
) -> None:
    ops = deployed_lab.as_user("ops")
    deployed_lab.tool.ssh("b300-a", "systemctl stop ddtree")
    done = deployed_lab.apply("--limit", "b300-a", *SERVE, *ops)
    changed = {op["name"] for op in done["operations"] if op["success"]}
    assert "serve: start, and wait until it is ready" in changed
    assert deployed_lab.planned("--limit", "b300-a", *ops) == {}
