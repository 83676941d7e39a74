"""The result on the terminal: a rich table for each load, notes under them."""

from __future__ import annotations

from rich import box
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Table
from rich.text import Text

from operations import report_text as say
from operations.results import BenchResult
from operations.statistics import ArmSummary, Comparison, Verdict, summarise

WIDTH = 100

LEFT = {"arm": 10, "verdict": 12}
"""Columns of text, with the width that keeps the tables of several loads in line."""

FIGURE = 6


def print_table(result: BenchResult, console: Console | None = None) -> None:
    """Print :func:`render`: colours on a terminal only, at most 100 columns wide.

    It is as wide as its tables at least: what rich leaves out on a narrow terminal are the last
    columns, and they are the verdicts.
    """
    console = console or Console()
    page = render(result)
    options = console.options.update(max_width=WIDTH)
    least = Measurement.get(console, options, page).minimum
    console.width = max(console.width, least) if console.is_terminal else WIDTH
    console.width = min(console.width, WIDTH)
    console.print(page)


def render(result: BenchResult) -> RenderableType:
    """The tables and their notes. On a CPU accept length and verify steps stand first."""
    comparisons = summarise(result)
    heading = Text(f"{result.group} / {result.host}", style="bold")
    which = f"   {result.engine} engine, result {result.fingerprint[:12]}"
    heading.append(which, style="not bold dim")
    lines = [Text(line, style="dim") for line in say.notes(result, comparisons)]
    lines += [Text(f"Not run: {n.name}: {n.reason}", style="dim") for n in result.not_possible]
    return Group(heading, *(_table(result, comparison) for comparison in comparisons), *lines)


def _table(result: BenchResult, comparison: Comparison) -> Table:
    table = Table(
        title=comparison.key.label(),
        title_justify="left",
        title_style="italic",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        padding=0,
    )
    columns = _cpu_columns if result.on_cpu else _gpu_columns
    for name in columns(comparison.arms[0], result.baseline) | {"verdict": ""}:
        justify = "left" if name in LEFT else "right"
        width = LEFT.get(name, FIGURE)
        table.add_column(name, justify=justify, min_width=width, no_wrap=True)  # type: ignore[arg-type]
    for row in comparison.arms:
        values = [Text(value) for value in columns(row, result.baseline).values()]
        verdict = Text(say.verdict(row, comparison), style=_colour(row))
        table.add_row(*values, verdict, style="bold" if row.arm == comparison.winner else "")
    return table


def _colour(row: ArmSummary) -> str:
    if row.correct is False or row.ratio.verdict is Verdict.SLOWER:
        return "red"
    return "green" if row.ratio.verdict is Verdict.FASTER else ""


def _gpu_columns(row: ArmSummary, baseline: str) -> dict[str, str]:
    return {
        "arm": row.arm,
        "tokens/s\nuser": say.number(row.user_tokens_s),
        "tokens/s\ntotal": say.number(row.total_tokens_s),
        "TTFT\nms": say.milliseconds(row.ttft),
        "TPOT\nms": say.milliseconds(row.tpot),
        "accept\nlength": say.length(row.acceptance.pooled if row.acceptance else None),
        f"speed\nto {baseline}": say.ratio(row.ratio),
        "95 %\ninterval": say.interval(row.ratio),
    }


def _cpu_columns(row: ArmSummary, baseline: str) -> dict[str, str]:
    accepted = row.acceptance
    return {
        "arm": row.arm,
        "accept\nlength": say.length(accepted.pooled if accepted else None),
        "verify\nsteps": f"{accepted.steps:,}" if accepted else say.UNKNOWN,
        "tokens": f"{row.output_tokens:,}",
        "tokens/s": say.number(row.total_tokens_s),
        "TTFT\nms": say.milliseconds(row.ttft),
        f"speed\nto {baseline}": say.ratio(row.ratio),
        "95 %\ninterval": say.interval(row.ratio),
    }
