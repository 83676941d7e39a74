"""What the report page shows, as plain text and SVG, ready for its template."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from operations import report_plots as plots
from operations import report_text as say
from operations.report_host import Matrix, machine_rows, probe_rows, topology
from operations.report_svg import TREES
from operations.report_tables import TableView, correctness, gpu_table, headline, latencies
from operations.results import BenchResult
from operations.statistics import ArmSummary, Comparison, Verdict, summarise

Rows = Sequence[tuple[str, str]]


@dataclass(frozen=True)
class FigureView:
    """A figure, its title and what to read off it."""

    title: str
    caption: str
    svg: str


@dataclass(frozen=True)
class ResultView:
    """One result's part of the page."""

    name: str
    title: str
    facts: Rows
    tiles: Sequence[tuple[str, str, str]]
    notes: Sequence[str]
    figures: Sequence[FigureView]
    correctness: TableView | None
    latencies: TableView
    machine: Rows
    topology: Matrix | None
    probes: Rows
    gpu_state: TableView | None
    choices: Sequence[tuple[str, str, str]]
    launches: Sequence[tuple[str, str]]
    versions: Rows
    settings: Rows
    cross_check: Rows
    not_possible: Rows


@dataclass(frozen=True)
class PageView:
    """The whole page."""

    title: str
    headline: TableView
    across: FigureView | None
    results: Sequence[ResultView]


def page(results: Sequence[BenchResult]) -> PageView:
    """The view of one or several results."""
    summaries = [summarise(result) for result in results]
    groups = list(dict.fromkeys(result.group for result in results))
    return PageView(
        title=" beside ".join(groups)
        if len(results) > 1
        else f"{results[0].group} / {results[0].host}",
        headline=headline(results, summaries),
        across=_across(results, summaries),
        results=[
            _result(f"r{n}", result, comparisons)
            for n, (result, comparisons) in enumerate(zip(results, summaries, strict=True), 1)
        ],
    )


def _result(name: str, result: BenchResult, comparisons: Sequence[Comparison]) -> ResultView:
    return ResultView(
        name=name,
        title=f"{result.group} / {result.host}",
        facts=_facts(result),
        tiles=_tiles(result, comparisons),
        notes=say.notes(result, tuple(comparisons)),
        figures=_figures(name, result, comparisons),
        correctness=correctness(result),
        latencies=latencies(comparisons),
        machine=machine_rows(result.machine),
        topology=topology(result.machine),
        probes=probe_rows(result.document.get("probes") or result.machine.get("probes")),
        gpu_state=gpu_table(result),
        choices=[
            (str(c["name"]), str(c["value"]), str(c["reason"]))
            for c in result.plan.get("choices", ())
        ],
        launches=[(str(x["key"]), _command(x)) for x in result.plan.get("launches", ())],
        versions=_flat(result.versions),
        settings=_flat(result.settings),
        cross_check=_flat(result.document.get("cross_check") or {}),
        not_possible=[(arm.name, arm.reason) for arm in (*result.not_possible, *result.failed)],
    )


def _facts(result: BenchResult) -> Rows:
    rows = [("engine", result.engine)]
    for part in ("target", "drafter"):
        model = result.plan.get(part)
        if isinstance(model, Mapping):
            revision = str(model.get("revision") or "")[:12]
            rows.append((part, f"{model.get('name')}" + (f" @ {revision}" if revision else "")))
    rows.append(("served arm", str(result.plan.get("arm", say.UNKNOWN))))
    rows.append(("measured", _moment(result.created)))
    rows.append(("result", result.fingerprint[:12]))
    return rows


def _moment(created: str) -> str:
    """A time of ISO 8601 for people: "2026-11-30 19:04 UTC"; another text stays as it is."""
    try:
        return f"{datetime.fromisoformat(created).astimezone(UTC):%Y-%m-%d %H:%M} UTC"
    except ValueError:
        return created


def _shown_arm(result: BenchResult, comparison: Comparison) -> ArmSummary:
    """The arm that the tiles show: the winner, else the served arm, else the last one."""
    served = comparison.arm(str(result.plan.get("arm")))
    winner = comparison.arm(comparison.winner) if comparison.winner else None
    return winner or served or comparison.arms[-1]


def _tiles(
    result: BenchResult, comparisons: Sequence[Comparison]
) -> Sequence[tuple[str, str, str]]:
    if not comparisons:
        return [("result", "nothing measured", "no cell of this benchmark was finished")]
    first = comparisons[0]
    row = _shown_arm(result, first)
    accepted = row.acceptance
    load = f"{row.arm}, concurrency {first.key.concurrency}"
    if first.winner:
        speed = (
            f"faster than {result.baseline}",
            say.ratio(row.ratio),
            f"{load}; 95 % interval {say.interval(row.ratio)}",
        )
    else:
        speed = (f"faster than {result.baseline}", "none", _why_none(first, result.baseline))
    tiles = [
        ("accept length", say.length(accepted.pooled if accepted else None), load),
        speed,
        ("tokens/s of one user", say.number(row.user_tokens_s), load),
        ("time to first token", f"{say.milliseconds(row.ttft)} ms", f"{row.arm}, median"),
    ]
    return tiles if result.on_cpu else [tiles[1], tiles[2], tiles[0], tiles[3]]


def _why_none(comparison: Comparison, baseline: str) -> str:
    verdicts = {row.ratio.verdict for row in comparison.arms if row.arm != baseline}
    if verdicts == {Verdict.TOO_FEW}:
        return "too few repeats to decide"
    if Verdict.FASTER in verdicts:
        return "the faster arms did not pass their correctness gate"
    return f"no arm beats {baseline} at concurrency {comparison.key.concurrency}"


def _figures(
    name: str, result: BenchResult, comparisons: Sequence[Comparison]
) -> Sequence[FigureView]:
    if not comparisons:
        return []
    inks, baseline = plots.arm_inks(result.arms), result.baseline
    first = comparisons[0]
    load = first.key.label()
    same = [
        c for c in comparisons
        if (c.key.prompt_set, c.key.temperature, c.key.max_new_tokens)
        == (first.key.prompt_set, first.key.temperature, first.key.max_new_tokens)
    ]  # fmt: skip
    by_load = plots.speedup_by_concurrency(same, inks, baseline, f"{name}s")
    split = result.document.get("step_split") or {}
    steps = {r.arm: {"whole step": r.step_s} for r in first.arms if r.step_s}
    base = first.arm(baseline)
    limits = {
        r.arm: base.step_s * r.acceptance.pooled
        for r in first.arms
        if r.acceptance and base and base.step_s
    }
    drawn = [
        (
            f"Speed against {baseline}",
            "Median over rounds; the band is the 95 % interval. Below the dashed line "
            "speculation costs more than it gives.",
            by_load,
        ),
        (
            f"Speed against {baseline}, concurrency {first.key.concurrency}",
            f"{load}. Dot: median over rounds; bar: 95 % interval; a hollow dot decides nothing.",
            None if by_load else plots.speedup_bars(first, inks, baseline, f"{name}b"),
        ),
        (
            "Accept length against budget",
            f"{load}. Emitted tokens / verify steps, pooled; a step verifies B + 1 tokens.",
            plots.accept_length_by_budget(first, result.arms, inks, f"{name}a"),
        ),
        (
            "Tokens emitted per verify step",
            f"{load}. 1 is the bonus token alone: nothing that was drafted was accepted.",
            plots.accept_histogram(first, f"{name}h"),
        ),
        (
            "One user's speed against throughput",
            "Up and to the right is better; each line runs through the concurrencies of an arm.",
            plots.pareto(same, inks, result.gpus, f"{name}p") if len(same) > 1 else None,
        ),
        (
            "What a decode step costs" if not split else "Where a step's time goes",
            f"{load}. An arm pays while its step ends left of its mark: accept length times a "
            f"step of {baseline}."
            + ("" if split else " The engine reports no split into draft, tree and verify."),
            plots.step_time(split or steps, limits, TREES if split else TREES[2:3], f"{name}k"),
        ),
    ]
    return [FigureView(title, caption, svg) for title, caption, svg in drawn if svg]


def _across(
    results: Sequence[BenchResult], summaries: Sequence[Sequence[Comparison]]
) -> FigureView | None:
    """All hosts side by side at the lowest load that all of them measured."""
    if len(results) < 2:
        return None
    keys = set.intersection(*({c.key for c in comparisons} for comparisons in summaries))
    if not keys:
        return None
    key = min(keys, key=lambda k: (k.concurrency, k))
    shared = {
        f"{result.group} / {result.host}": next(c for c in comparisons if c.key == key)
        for result, comparisons in zip(results, summaries, strict=True)
    }
    svg = plots.across_groups(shared, "x")
    return FigureView("Hosts side by side", f"{key.label()}. Total output tokens/s.", svg)


def _command(launch: Mapping[str, Any]) -> str:
    env = " ".join(f"{k}={v}" for k, v in sorted((launch.get("env") or {}).items()))
    return f"{env} {' '.join(map(str, launch.get('argv', ())))}".strip()


def _flat(mapping: Mapping[str, Any]) -> Rows:
    return [
        (key.replace("_", " "), ", ".join(map(str, v)) if isinstance(v, list) else str(v))
        for key, v in mapping.items()
        if v not in (None, "")
    ]
