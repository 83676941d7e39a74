"""docs/checks.md lists exactly the checks that there are."""

from __future__ import annotations

import re

from operations import checks_stack
from operations.checks_all import checks
from tests.unit.plan_cases import ROOT


def test_each_check_has_one_row_in_the_documentation():
    text = (ROOT / "docs" / "checks.md").read_text()
    rows = re.findall(r"^\| `([a-z0-9_.]+)` \|(.*)\|$", text, re.MULTILINE)
    assert sorted(name for name, _ in rows) == sorted(
        [*(each.id for each in checks()), checks_stack.ID]
    )
    assert all(row.count("|") == 3 for _, row in rows)
