"""The command line `python -m operations.plan show`."""

from __future__ import annotations

import json

import pytest

from operations.plan import PlanError, ServingPlan
from operations.plan_show import main
from tests.unit.plan_cases import CASES, ROOT

MACHINES = ROOT / "tests" / "cases" / "machines"


@pytest.mark.parametrize("name", CASES)
def test_show_prints_the_serving_command_and_its_reasons(name, capsys):
    inventory = ROOT / "inventories" / f"{CASES[name][0]}.py"
    assert main(["show", str(inventory), "--facts", str(MACHINES / f"{name}.json")]) == 0
    shown = capsys.readouterr().out
    assert "-m refserver" in shown or "-m sglang.launch_server" in shown
    assert "parallelism" in shown


def test_show_as_json_is_a_plan_again(capsys):
    words = ["show", str(ROOT / "inventories" / "b300.py"), "--json"]
    assert main([*words, "--facts", str(MACHINES / "b300.json")]) == 0
    plan = ServingPlan.from_json(json.loads(capsys.readouterr().out)["B300"])
    assert plan.arm == "ddtree-15"


@pytest.mark.parametrize(
    ("inventory", "facts", "said"),
    [
        ("inventories/none.py", "b300.json", "expected an inventory"),
        ("inventories/b300.py", "none.json", "expected machine facts"),
        ("tests/unit/plan_cases.py", "b300.json", "expected a group with 'wanted' data"),
    ],
)
def test_what_can_not_be_read_is_one_line_and_exit_1(inventory, facts, said, capsys):
    assert main(["show", str(ROOT / inventory), "--facts", str(MACHINES / facts)]) == 1
    error = capsys.readouterr().err
    assert said in error
    assert error.count("\n") == 1


def test_a_group_that_is_not_there_is_named_with_those_that_are(capsys):
    words = ["show", str(ROOT / "inventories" / "b300.py"), "--group", "X"]
    assert main([*words, "--facts", str(MACHINES / "b300.json")]) == 1
    assert "B300" in capsys.readouterr().err


def test_facts_that_are_no_facts_are_refused(tmp_path, capsys):
    facts = tmp_path / "facts.json"
    facts.write_text('{"hostname": 7}')
    words = ["show", str(ROOT / "inventories" / "b300.py"), "--facts", str(facts)]
    assert main(words) == 1
    assert "hostname" in capsys.readouterr().err


def test_facts_may_come_as_pyinfra_prints_them(tmp_path, capsys):
    facts = tmp_path / "facts.json"
    machine = json.loads((MACHINES / "b300.json").read_text())
    facts.write_text(json.dumps({"facts.machine.Machine": {"b300-1": machine}}))
    words = ["show", str(ROOT / "inventories" / "b300.py"), "--facts", str(facts), "--json"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["B300"]["host"] == "b300-a"


def test_a_plan_of_another_version_is_refused():
    with pytest.raises(PlanError, match="stored plan"):
        ServingPlan.from_json({"group": "X"})


def test_facts_that_contradict_the_claim_are_told_under_the_plan(capsys):
    words = ["show", str(ROOT / "inventories" / "b300.py")]
    assert main([*words, "--facts", str(MACHINES / "ct200.json")]) == 0
    shown = capsys.readouterr().out
    assert "a deploy to this host would stop: gpu.name: expected NVIDIA B300, found 8x" in shown
    assert main([*words, "--facts", str(MACHINES / "b300.json")]) == 0
    assert "would stop" not in capsys.readouterr().out
