"""A deployed host serves: the right process runs, is ready, and generates."""

import json

import pytest
from deployed import Deployed

pytestmark = pytest.mark.host


def test_the_service_is_running(deployed: Deployed) -> None:
    if deployed.plan.service_manager == "systemd":
        assert deployed.remote.service(deployed.service).is_running
        return
    tools = f"{deployed.current}/tools/bin/python"
    state = deployed.remote.check_output(
        "%s -I -m supervisor.supervisorctl -c %s status %s",
        tools,
        deployed.release.service_file,
        deployed.service,
    )
    assert "RUNNING" in state


def test_the_service_comes_back_after_a_reboot(deployed: Deployed) -> None:
    if deployed.plan.service_manager != "systemd":
        pytest.skip("without systemd nothing starts at boot: the container's own entry point does")
    assert deployed.remote.service(deployed.service).is_enabled


def test_the_running_process_carries_the_release_fingerprint(deployed: Deployed) -> None:
    pid = deployed.status()["pid"]
    environment = deployed.text(f"/proc/{pid}/environ").split("\0")
    assert f"DDTREE_FINGERPRINT={deployed.release.fingerprint}" in environment


def test_the_status_says_ready(deployed: Deployed) -> None:
    status = deployed.status()
    assert (status["state"], status["cause"]) == ("ready", None)


def test_the_engine_runs_the_plan_s_command_line(deployed: Deployed) -> None:
    launch = json.loads(deployed.text(f"{deployed.current}/launch.json"))
    assert tuple(launch["argv"]) == deployed.plan.serving_launch.argv
    engine = deployed.text(f"/proc/{deployed.status()['engine_pid']}/cmdline").split("\0")[:-1]
    assert engine[-len(launch["argv"][1:]) :] == launch["argv"][1:]


def test_the_port_answers_healthy(deployed: Deployed) -> None:
    code, _ = deployed.http("/health")
    assert code == 200


def test_the_served_model_has_the_plan_s_name(deployed: Deployed) -> None:
    _, text = deployed.http("/v1/models")
    assert [m["id"] for m in json.loads(text)["data"]] == [deployed.plan.served_model_name]


def test_a_generation_works_and_counts_its_verify_steps(deployed: Deployed) -> None:
    body = {
        "text": "The capital of France is",
        "sampling_params": {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True},
    }
    code, text = deployed.http("/generate", body)
    assert code == 200
    answer = json.loads(text)
    assert answer["meta_info"]["completion_tokens"] == 8
    assert answer["text"].strip()
    if deployed.plan.serving_launch.speculative:
        assert 1 <= answer["meta_info"]["spec_verify_ct"] <= 8


def test_no_unit_of_the_host_has_failed_because_of_us(deployed: Deployed) -> None:
    if deployed.plan.service_manager != "systemd":
        pytest.skip("no systemd on this host")
    failed = deployed.remote.check_output("systemctl list-units --failed --plain --no-legend")
    assert [u for u in failed.splitlines() if u.startswith((deployed.service, "model-fetch"))] == []
