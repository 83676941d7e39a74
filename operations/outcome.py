"""Ends a run for people: tables, the report, the gate's lines, a kit, an adopted arm.

Works on this machine alone, after pyinfra has printed its own last line.
"""

from __future__ import annotations

import atexit
import logging
import os
import sys
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console

from operations.artifacts import ROOT
from operations.load import Load
from operations.run import Run
from operations.wanted import Wanted

if TYPE_CHECKING:
    from operations.results import BenchResult


@dataclass(frozen=True)
class Ending:
    """What is left to do for one host when the run is over."""

    result: Path
    table: bool
    kit: bool
    adopt: Load | None
    wanted: Wanted


_endings: list[Ending] = []
_failed: list[str] = []  # what this module could not do


def _leave() -> None:
    """Exit code 1 when an ending failed: pyinfra has chosen its own code before that."""
    if _failed:
        logging.shutdown()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(1)


atexit.register(_leave)  # registered first, so that it comes last


def announce(run: Run) -> None:
    """Remembers a host of this run; call it last."""
    if not _endings:
        atexit.register(_end)
    table, kit = "bench" in run.phases, "kit" in run.phases
    if table or kit or run.adopt:
        _endings.append(Ending(run.result, table, kit, run.adopt, run.wanted))


@lru_cache(maxsize=1)
def _console() -> Console:
    """stdout, or stderr where stdout is for machines."""
    return Console(stderr="--json" in sys.argv, highlight=False)


def _end() -> None:
    # these bring plotting and statistics along: only a run that has come to its end pays for them
    from operations.kit import KitError
    from operations.recommend import RecommendError
    from operations.results import ResultError

    for ending in _endings:
        try:
            _finish(ending, dry="--dry" in sys.argv)
        except (ResultError, KitError, RecommendError, OSError) as error:
            _fail(str(error))


def _fail(message: str) -> None:
    _failed.append(message)
    _console().print(message, style="red", soft_wrap=True, markup=False)


def _finish(ending: Ending, dry: bool) -> None:
    from operations.results import read_result

    if not ending.result.exists():
        if (ending.kit or ending.adopt) and not dry:
            found = f"expected a result in {_short(ending.result)}, found none"
            _fail(f"{found}; run the phase 'bench'")
        return
    result = read_result(ending.result)
    if ending.table and not dry:
        _show(ending, result)
    if ending.adopt:
        _adopt(ending.adopt, result, dry)
    if ending.kit and not dry:
        _kit(ending, result)


def _show(ending: Ending, result: BenchResult) -> None:
    """Table, report, and what the gate says beside the result before."""
    from operations import gate, report_table

    console = _console()
    report_table.print_table(result, console)
    before = gate.stored_before(result, ending.result.parents[1])
    if before is not None:
        for line in gate.judge(result, before).lines():
            console.print(line, soft_wrap=True)
    page = ending.result.with_name("report.html")
    if not _newer(page, ending.result):
        from operations.report import write_report  # brings plotting along

        write_report([result], page)
    console.print(f"JSON    {_short(ending.result)}", soft_wrap=True)
    console.print(f"report  {_short(page)}", soft_wrap=True)


def _newer(page: Path, result: Path) -> bool:
    """The page was made from this result already."""
    return page.exists() and page.stat().st_mtime_ns > result.stat().st_mtime_ns


def _adopt(load: Load, result: BenchResult, dry: bool) -> None:
    """Shows the diff of the group's tuned settings, and writes it unless the run is dry."""
    from operations.recommend import adopt, recommend
    from operations.tuned import tuned_path

    path = tuned_path(result.group)
    found = recommend(result, load)
    adoption = adopt(result, found, path.read_text() if path.exists() else None, path)
    console = _console()
    best = f"best arm for concurrency {load.concurrency}: {found.arm}, {found.reason}"
    console.print(best, soft_wrap=True)
    if not adoption.changes:
        console.print(f"{_short(path)} says so already", soft_wrap=True)
        return
    console.print(adoption.diff(), markup=False, soft_wrap=True)
    if not dry:
        path.write_text(adoption.new, encoding="utf-8")
        console.print(f"written: {_short(path)}; the next run serves {found.arm}", soft_wrap=True)


def _kit(ending: Ending, result: BenchResult) -> None:
    from operations.kit import KitError, build_kit, kit_name, write_kit
    from operations.kit_parts import gather, stale_parts

    stale = stale_parts(result)
    if stale:
        raise KitError(
            f"expected the sources that were measured, found others ({'; '.join(stale)}); "
            "measure again, or check out the commit of the measurement"
        )
    folder = ROOT / "kits" / kit_name(result)
    write_kit(build_kit(result, gather(result, ending.wanted)), folder)
    _console().print(f"kit     {_short(folder)} (python verify.py in it checks it)", soft_wrap=True)


def _short(path: Path) -> str:
    """Relative to the working folder where it lies below it."""
    here = Path.cwd()
    return str(path.relative_to(here) if path.is_relative_to(here) else path)
