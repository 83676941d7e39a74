"""Prints a plan and its reasons for people; the command line of `python -m operations.plan`.

Also the text that the golden files in tests/plan hold.
"""

from __future__ import annotations

import argparse
import json
import runpy
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from facts.machine import MachineError, MachineFacts
from operations import checks_group
from operations.checks_base import Context, Status
from operations.plan import choose
from operations.plan_errors import PlanError
from operations.plan_model import Launch, ServingPlan
from operations.tuned import with_tuned
from operations.wanted import Wanted, WantedError, read_wanted

FACT = "facts.machine.Machine"


def wanted_of(inventory: Path) -> dict[str, Wanted]:
    """The `wanted` data of an inventory file, by the name of its group, or of its host.

    Raises WantedError with one line for a file that can't be read or has no such group.
    """
    if not inventory.is_file():
        raise WantedError(f"expected an inventory, found no file {inventory}; see inventories/")
    try:
        names = runpy.run_path(str(inventory))
    except Exception as error:
        raise WantedError(
            f"expected an inventory in {inventory}, found {type(error).__name__}: {error}; mend it"
        ) from None
    found = {
        name: read_wanted(with_tuned(data), f"{name} in {inventory}")
        for group, value in names.items()
        if not group.startswith("_") and _is_group(value)
        for name, data in _wishes(group, *value)
    }
    if not found:
        raise WantedError(
            f"expected a group with 'wanted' data in {inventory}, found none; "
            "see inventories/local.py for an example"
        )
    return found


def _is_group(value: object) -> bool:
    return isinstance(value, tuple) and len(value) == 2 and isinstance(value[1], dict)


def _wishes(group: str, hosts: Any, data: dict[str, Any]) -> Iterator[tuple[str, Any]]:
    """The wish of a group, and those of hosts that have their own."""
    if "wanted" in data:
        yield group, data["wanted"]
    for host in hosts:
        if isinstance(host, tuple) and "wanted" in host[1]:
            yield host[0], host[1]["wanted"]


def read_facts(path: Path) -> MachineFacts:
    """The machine facts in a JSON file. Raises MachineError with one line."""
    try:
        document: Any = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise MachineError(f"expected machine facts in {path}, found {error}") from None
    if isinstance(document, dict) and list(document) == [FACT]:  # as `pyinfra ... fact` prints it
        hosts = document[FACT]
        if not isinstance(hosts, dict) or len(hosts) != 1:
            raise MachineError(f"expected the facts of one host in {path}; use --limit HOST")
        document = next(iter(hosts.values()))
    if not isinstance(document, dict):
        raise MachineError(f"expected machine facts in {path}, found {type(document).__name__}")
    return MachineFacts.from_json(document)


def unmet(machine: MachineFacts, wanted: Wanted, plan: ServingPlan) -> list[str]:
    """One line for each claim of the group that the facts don't meet: a deploy would stop."""
    found = (check.ask(Context(machine, wanted, plan)) for check in checks_group.CHECKS.all)
    return [
        f"a deploy to this host would stop: {finding.id}: {finding.evidence}"
        for finding in found
        if finding.status is Status.FAIL
    ]


def text(plan: ServingPlan) -> str:
    """The whole plan as plain text, in a stable order: reasons, arms, each engine start."""
    lines = [f"plan for a host of group {plan.group}: {plan.engine}, {plan.service_manager}"]
    lines += ["", "reasons"]
    lines += [f"  {c.name}: {c.value}\n      {c.reason}" for c in plan.choices]
    lines += ["", f"arms ({plan.arm} serves)"]
    for arm in plan.arms:
        start = f"start '{arm.launch}'" if arm.possible else "not possible"
        lines.append(f"  {arm.name}: {arm.parallelism}, {start}: {arm.reason}")
    for launch in plan.launches:
        lines += ["", f"start '{launch.key}'", *_command_lines(launch)]
    lines += _environments(plan)
    lines += ["", f"prefix {plan.prefix}, python {plan.python}, lock {plan.lock}"]
    lines += [f"patch set {plan.patch_set or 'none'}"]
    lines += [f"time limits: start {plan.start_timeout_s} s, stop {plan.stop_timeout_s} s"]
    return "\n".join(lines) + "\n"


def _command_lines(launch: Launch) -> Iterator[str]:
    for words in _by_flag(launch.argv):
        yield "  " + shlex.join(words)


def _environment_lines(launch: Launch) -> list[str]:
    return [f"  {name}={value}" for name, value in sorted(launch.env.items())]


def _environments(plan: ServingPlan) -> Iterator[str]:
    """The environment of the first start in full, and what the others have besides."""
    first, *others = plan.launches
    yield from ["", f"environment of '{first.key}'", *_environment_lines(first)]
    for launch in others:
        lines = [
            line for line in _environment_lines(launch) if line not in _environment_lines(first)
        ]
        if lines:
            yield from ["", f"environment of '{launch.key}': the same, and", *lines]


def _by_flag(argv: tuple[str, ...]) -> list[list[str]]:
    """The command, then each flag with its values."""
    rows: list[list[str]] = [[]]
    for word in argv:
        if word.startswith("--"):
            rows.append([])
        rows[-1].append(word)
    return rows


def show(plan: ServingPlan, console: Console) -> None:
    """Prints the plan: a table of choices, a table of arms, the command line that serves."""
    title = f"{plan.group}: {plan.engine} under {plan.service_manager}"
    choices = _table(title, "choice", "value", "reason")
    for choice in plan.choices:
        choices.add_row(choice.name, choice.value, choice.reason)
    arms = _table("arms", "arm", "parallelism", "start", "")
    for arm in plan.arms:
        mark = " (serves)" if arm.name == plan.arm else ""
        start = (arm.launch or "") if arm.possible else "not possible"
        arms.add_row(arm.name + mark, arm.parallelism, start, arm.reason)
    console.print(choices)
    console.print(arms)
    console.print(f"the service runs, within {plan.start_timeout_s} s:")
    serving = plan.serving_launch
    lines = [*_command_lines(serving), "with the environment", *_environment_lines(serving)]
    for line in lines:
        console.print(line, soft_wrap=True, highlight=False, markup=False)


def _table(title: str, *columns: str) -> Table:
    shown = Table(title=title, title_justify="left")
    for column in columns:
        shown.add_column(column, overflow="fold")
    return shown


def main(words: list[str]) -> int:
    """The command line; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m operations.plan", description="Prints the serving plan of a saved machine."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("show", help="the plan and its reasons, without a host")
    command.add_argument("inventory", type=Path, help="inventories/NAME.py")
    command.add_argument("--facts", type=Path, required=True, help="machine facts as JSON")
    command.add_argument("--group", help="one group of the inventory; else all of them")
    command.add_argument("--json", action="store_true", help="the plan as JSON")
    arguments = parser.parse_args(words)
    try:
        groups = wanted_of(arguments.inventory)
        if arguments.group is not None and arguments.group not in groups:
            known = ", ".join(groups)
            raise WantedError(f"expected a group out of {known}, found {arguments.group!r}")
        machine = read_facts(arguments.facts)
        chosen = [arguments.group] if arguments.group else list(groups)
        plans = {name: choose(machine, groups[name]) for name in chosen}
    except (WantedError, MachineError, PlanError) as error:
        print(error, file=sys.stderr)
        return 1
    if arguments.json:
        print(json.dumps({n: plan.to_json() for n, plan in plans.items()}, indent=2))
        return 0
    for name, plan in plans.items():
        show(plan, Console())
        for line in unmet(machine, groups[name], plan):
            print(line)
    return 0
