"""The pre-flight as a whole: all checks in order, and what their findings amount to. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Table
from rich.text import Text

from facts.machine import MachineFacts
from operations import checks_cuda, checks_gpu, checks_group, checks_host, checks_service
from operations.checks_base import (
    NOT_ASKED,
    NOTHING_KNOWN,
    Check,
    Context,
    Finding,
    Hub,
    Own,
    Status,
)
from operations.plan_model import ServingPlan
from operations.wanted import Wanted

MODULES = (checks_group, checks_gpu, checks_cuda, checks_host, checks_service)
SCHEMA = "ddtree-preflight/1"
STYLES = {
    Status.PASS: "green",
    Status.FAIL: "bold red",
    Status.WARN: "yellow",
    Status.UNKNOWN: "magenta",
    Status.SKIP: "dim",
}


def checks() -> tuple[Check, ...]:
    """All checks of the first stage, in the order in which they are asked."""
    return tuple(check for module in MODULES for check in module.CHECKS.all)


def check(
    machine: MachineFacts,
    wanted: Wanted,
    plan: ServingPlan,
    *,
    own: Own = NOTHING_KNOWN,
    hub: Hub = NOT_ASKED,
    now_unix: int | None = None,
) -> tuple[Finding, ...]:
    """One finding a check. `own`, `hub` and `now_unix`: see `Context`."""
    context = Context(machine, wanted, plan, own, hub, now_unix)
    return tuple(each.ask(context) for each in checks())


def failures(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    return tuple(finding for finding in findings if finding.status is Status.FAIL)


def problems(findings: tuple[Finding, ...]) -> tuple[Finding, ...]:
    """What a person should read: failures first, then warnings, then what is unknown."""
    order = (Status.FAIL, Status.WARN, Status.UNKNOWN)
    shown = [finding for finding in findings if finding.status in order]
    return tuple(sorted(shown, key=lambda finding: order.index(finding.status)))


def summary(findings: tuple[Finding, ...]) -> str:
    """ "31 checks: 25 pass, 1 fail, 2 warn, 3 skip"."""
    counts = Counter(finding.status for finding in findings)
    parts = [f"{counts[status]} {status}" for status in Status if counts[status]]
    return f"{len(findings)} checks: {', '.join(parts)}"


def document(host: str, plan: ServingPlan, findings: tuple[Finding, ...]) -> dict[str, Any]:
    """The findings of one host for machines."""
    counts = Counter(finding.status for finding in findings)
    return {
        "host": host,
        "group": plan.group,
        "engine": plan.engine,
        "ok": not failures(findings),
        "counts": {str(status): counts[status] for status in Status},
        "findings": [finding.to_json() for finding in findings],
    }


def table(title: str, findings: tuple[Finding, ...]) -> Table:
    """The findings for people; the last line counts all of them."""
    shown = Table("", "check", "found", "what to do", title=title, title_justify="left")
    for finding in findings:
        mark = Text(str(finding.status), style=STYLES[finding.status])
        shown.add_row(mark, Text(finding.id), Text(finding.evidence), Text(finding.remedy))
    shown.caption = summary(findings)
    shown.caption_justify = "left"
    return shown
