"""Ends a run for people: tables, the report's place, a kit. Works on this machine alone."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

from rich.console import Console

from operations import report_table
from operations.report import write_report
from operations.results import ResultError, read_result
from operations.run import Run

_results: list[Path] = []  # of the hosts of this run, in the order of their plans


def announce(run: Run) -> None:
    """Shows this host's result once pyinfra has printed its own last line."""
    if not _results:
        atexit.register(_end)
    if "bench" in run.phases:
        _results.append(run.result)


def _end() -> None:
    """Prints one table a host whose result is here; to stderr where stdout is for machines."""
    if "--dry" in sys.argv:
        return
    console = Console(stderr="--json" in sys.argv)
    for path in _results:
        if path.exists():
            _guarded(console, partial(_show, console, path))


def _show(console: Console, path: Path) -> None:
    result = read_result(path)
    console.print(report_table.render(result))
    page = path.with_name("report.html")
    write_report([result], page)
    console.print(f"JSON    {_short(path)}", highlight=False, soft_wrap=True)
    console.print(f"report  {_short(page)}", highlight=False, soft_wrap=True)


def _guarded(console: Console, action: Callable[[], None]) -> None:
    try:
        action()
    except (ResultError, OSError) as error:
        console.print(f"the result can't be shown: {error}", style="red", highlight=False)


def _short(path: Path) -> str:
    """Relative to the working folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
