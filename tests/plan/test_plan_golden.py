"""Whole plans of saved machines, as an expert would write them by hand: reviewed text."""

from __future__ import annotations

import pytest

from operations.layout import Layout
from operations.plan import choose
from operations.plan_show import text
from operations.release import build
from tests.unit.plan_cases import CASES, machine_of, wanted_for


@pytest.mark.parametrize("name", CASES)
def test_the_plan_of_a_saved_machine_is_the_reviewed_one(name, golden):
    golden(f"{name}.txt", text(choose(machine_of(name), wanted_for(name))))


@pytest.mark.parametrize("name", CASES)
def test_the_service_of_a_saved_machine_is_the_reviewed_one(name, golden):
    wanted = wanted_for(name)
    plan = choose(machine_of(name), wanted)
    layout = Layout(plan.prefix, "SOURCES", "TOOLS", "VENV", "FINGERPRINT")
    release = build(plan, wanted, layout)
    golden(
        f"{name}.service",
        f"# {release.service_file}\n{release.service_text}\n"
        f"# {layout.release_dir}/service.env\n{release.files['service.env']}",
    )


@pytest.mark.parametrize("name", ["b300", "ct200"])
def test_the_unit_sets_the_limits_that_the_preflight_counts_on(name, golden):
    wanted = wanted_for(name)
    plan = choose(machine_of(name), wanted)
    text = build(plan, wanted, Layout(plan.prefix, "S", "T", "V", "F")).service_text.splitlines()
    assert {"LimitMEMLOCK=infinity", "LimitNOFILE=1048576"} <= set(text)
