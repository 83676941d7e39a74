"""The report's figures, each an SVG string, or None when there is nothing to draw."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from operations.report_svg import INKS, SIZE, TREES, arm_axis, legend, new_axes, styled, svg
from operations.results import ArmInfo
from operations.statistics import ArmSummary, Comparison, Verdict

MARKERS = ("o", "D", "s", "^")
HOST_INKS = ("tree4", "chain", "ink", "chain2")


def arm_inks(arms: Sequence[ArmInfo]) -> dict[str, str]:
    """An ink for each arm: ``ar`` grey, the chain amber, trees from light to dark by budget."""
    budgets = sorted({arm.budget for arm in arms if arm.budget is not None})
    inks = {}
    for arm in arms:
        if arm.budget is not None:
            rank = budgets.index(arm.budget)
            inks[arm.name] = TREES[round(rank * 4 / max(1, len(budgets) - 1)) if rank else 0]
            if len(budgets) == 1:
                inks[arm.name] = TREES[2]
        elif arm.mode == "ar":
            inks[arm.name] = "ar"
        else:
            inks[arm.name] = "chain" if arm.name == "dflash" else "chain2"
    return inks


@styled
def speedup_by_concurrency(
    comparisons: Sequence[Comparison], inks: Mapping[str, str], baseline: str, name: str
) -> str | None:
    """Ratio to the baseline arm against concurrency, with 95 % intervals; needs two loads."""
    loads = [c.key.concurrency for c in comparisons]
    series = {
        arm: [(c.key.concurrency, row) for c in comparisons if (row := c.arm(arm)) is not None]
        for arm in inks
        if arm != baseline
    }
    series = {arm: rows for arm, rows in series.items() if any(r.ratio.median for _, r in rows)}
    if len(set(loads)) < 2 or not series:
        return None
    figure, axes = new_axes()
    axes.axhline(1, color=INKS["ar"], linewidth=1.4, linestyle=(0, (4, 3)))
    for arm, rows in series.items():
        shown = [(c, r.ratio) for c, r in rows if r.ratio.median is not None]
        x, y = [c for c, _ in shown], [r.median or 0 for _, r in shown]
        axes.plot(x, y, marker="o", color=INKS[inks[arm]], label=arm)
        bands = [(c, r.low, r.high) for c, r in shown if r.low is not None and r.high is not None]
        if bands:
            axes.fill_between(
                [b[0] for b in bands],
                [b[1] for b in bands],
                [b[2] for b in bands],
                color=INKS[inks[arm]],
                alpha=0.15,
                linewidth=0,
            )
    _log_axis(axes, sorted(set(loads)))
    axes.set_xlabel("concurrency")
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    legend(axes)
    return svg(figure, name, f"Speed against {baseline} by concurrency")


@styled
def speedup_bars(
    comparison: Comparison, inks: Mapping[str, str], baseline: str, name: str
) -> str | None:
    """Ratio of each arm to the baseline at one load: a dot and its 95 % interval."""
    rows = [r for r in comparison.arms if r.arm != baseline and r.ratio.median is not None]
    if not rows:
        return None
    figure, axes = new_axes((SIZE[0], 1.0 + 0.45 * len(rows)))
    axes.axvline(1, color=INKS["ar"], linewidth=1.4, linestyle=(0, (4, 3)))
    for y, row in enumerate(rows):
        ink, middle = INKS[inks[row.arm]], row.ratio.median or 0
        if row.ratio.low is not None and row.ratio.high is not None:
            axes.plot([row.ratio.low, row.ratio.high], [y, y], color=ink, solid_capstyle="butt")
        filled = row.ratio.verdict in (Verdict.FASTER, Verdict.SLOWER)
        axes.plot([middle], [y], "o", color=ink, markerfacecolor=ink if filled else INKS["panel"])
    arm_axis(axes, [row.arm for row in rows])
    axes.margins(x=0.12)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}x"))
    axes.set_xlabel(f"speed against {baseline}")
    return svg(figure, name, f"Speed against {baseline} at {comparison.key.label()}")


@styled
def accept_length_by_budget(
    comparison: Comparison, arms: Sequence[ArmInfo], inks: Mapping[str, str], name: str
) -> str | None:
    """Pooled accept length of the chain (left) and of each tree, against the budget B."""
    budgets = {arm.name: arm.budget for arm in arms}
    trees = sorted(
        (budgets[row.arm] or 0, row) for row in comparison.arms if budgets.get(row.arm) is not None
    )
    trees = [(b, r) for b, r in trees if r.acceptance]
    chain = comparison.arm("dflash")
    if not trees:
        return None
    figure, axes = new_axes()
    points = [(b, r.acceptance.pooled, r.arm) for b, r in trees if r.acceptance]
    axes.plot([b for b, _, _ in points], [a for _, a, _ in points], color=INKS["tree3"], zorder=2)
    if chain and chain.acceptance:
        level = chain.acceptance.pooled
        axes.axhline(level, color=INKS["chain"], linewidth=1.4, linestyle=(0, (4, 3)))
        axes.annotate(
            f"dflash chain {level:.2f}", (1, level), xycoords=("axes fraction", "data"),
            xytext=(0, 4), textcoords="offset points", ha="right", color=INKS["chain"],
        )  # fmt: skip
    for budget, length, arm in points:
        axes.plot([budget], [length], "o", color=INKS[inks[arm]], zorder=3)
        axes.annotate(
            f"{length:.2f}", (budget, length), xytext=(0, 7), textcoords="offset points",
            ha="center",
        )  # fmt: skip
    _log_axis(axes, [b for b, _, _ in points])
    axes.margins(x=0.12, y=0.22)
    axes.set_xlabel("budget B, tree nodes")
    axes.set_ylabel("tokens per verify step")
    return svg(figure, name, "Accept length by budget")


@styled
def accept_histogram(comparison: Comparison, name: str) -> str | None:
    """Share of verify steps that emitted 1, 2, 3, ... tokens, an arm a bar."""
    rows = [r for r in comparison.arms if r.acceptance and r.acceptance.histogram]
    rows = [r for r in rows if r.acceptance and sum(r.acceptance.histogram or ())]
    if not rows:
        return None
    figure, axes = new_axes((SIZE[0], 1.1 + 0.45 * len(rows)))
    axes.grid(False)
    labels = [*map(str, range(1, len(TREES))), f"{len(TREES)} or more"]
    for y, row in enumerate(rows):
        left = 0.0
        for ink, share in zip(TREES, _shares(row), strict=True):
            axes.barh(
                y, share, left=left, height=0.62, color=INKS[ink],
                edgecolor=INKS["panel"], linewidth=1.2,
            )  # fmt: skip
            left += share
    for ink, label in zip(TREES, labels, strict=True):
        axes.barh(0, 0, color=INKS[ink], label=label)
    arm_axis(axes, [row.arm for row in rows])
    axes.set_xlim(0, 1)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value * 100:.0f} %"))
    axes.set_xlabel("verify steps by tokens emitted")
    axes.spines["left"].set_visible(False)
    legend(axes, columns=len(TREES))
    return svg(figure, name, "Tokens emitted per verify step")


def _shares(row: ArmSummary) -> list[float]:
    histogram = (row.acceptance.histogram if row.acceptance else None) or ()
    top = len(TREES) - 1
    parts = [*histogram[:top], *[0] * (top - len(histogram[:top])), sum(histogram[top:])]
    return [part / sum(parts) for part in parts]


@styled
def pareto(
    comparisons: Sequence[Comparison], inks: Mapping[str, str], gpus: int | None, name: str
) -> str | None:
    """Per-user speed against throughput per GPU (per host without one), a line an arm."""
    figure, axes = new_axes()
    drawn = False
    for arm in inks:
        rows = [row for c in comparisons if (row := c.arm(arm)) is not None]
        points = [
            (row.user_tokens_s, row.total_tokens_s / (gpus or 1), row.key.concurrency)
            for row in rows
            if row.user_tokens_s and row.total_tokens_s
        ]
        if not points:
            continue
        drawn = True
        axes.plot(
            [p[0] for p in points], [p[1] for p in points], marker="o", color=INKS[inks[arm]],
            label=arm,
        )  # fmt: skip
        for x, y, concurrency in points if arm == "ar" else []:
            axes.annotate(
                f"c={concurrency}", (x, y), xytext=(7, 3), textcoords="offset points",
                color=INKS["soft"], fontsize=9,
            )  # fmt: skip
    if not drawn:
        return None
    axes.set_ylim(bottom=0)
    axes.margins(x=0.14)
    axes.set_xlabel("tokens/s of one user")
    axes.set_ylabel("tokens/s per GPU" if gpus else "tokens/s of the host")
    legend(axes)
    return svg(figure, name, "Speed of one user against throughput")


@styled
def across_groups(shared: Mapping[str, Comparison], name: str) -> str:
    """Total tokens/s of each arm at one load, a dot a host."""
    arms = list(dict.fromkeys(row.arm for c in shared.values() for row in c.arms))
    figure, axes = new_axes((SIZE[0], 1.2 + 0.45 * len(arms)))
    for number, (host, comparison) in enumerate(shared.items()):
        rows = [row for row in comparison.arms if row.total_tokens_s]
        axes.plot(
            [row.total_tokens_s or 0 for row in rows],
            [arms.index(row.arm) for row in rows],
            MARKERS[number % len(MARKERS)],
            color=INKS[HOST_INKS[number % len(HOST_INKS)]],
            markersize=8,
            label=host,
        )
    arm_axis(axes, arms)
    axes.set_xlim(left=0)
    axes.set_xlabel("total output tokens/s")
    legend(axes, columns=2)
    return svg(figure, name, "Total tokens/s of each arm by host")


@styled
def step_time(
    split: Mapping[str, Mapping[str, float]],
    limits: Mapping[str, float],
    inks: Sequence[str],
    name: str,
) -> str | None:
    """A decode step by parts: ``split[arm][part]`` in seconds, drawn in milliseconds.

    ``limits[arm]``: the step time in seconds at which the arm breaks even, drawn as a mark.
    """
    if not split:
        return None
    figure, axes = new_axes((SIZE[0], 1.1 + 0.45 * len(split)))
    axes.grid(axis="y", visible=False)
    parts = list(dict.fromkeys(part for arm in split.values() for part in arm))
    for number, part in enumerate(parts):
        lefts = [sum(list(arm.values())[: list(arm).index(part)]) if part in arm else 0.0
                 for arm in split.values()]  # fmt: skip
        axes.barh(
            range(len(split)),
            [arm.get(part, 0) * 1000 for arm in split.values()],
            left=[left * 1000 for left in lefts],
            height=0.62,
            color=INKS[inks[number % len(inks)]],
            label=part,
        )
    marked = [(y, limits[arm]) for y, arm in enumerate(split) if arm in limits]
    if marked:
        axes.plot(
            [limit * 1000 for _, limit in marked],
            [y for y, _ in marked],
            "|",
            color=INKS["ink"],
            markersize=20,
            markeredgewidth=2,
            label="breaks even",
        )
    arm_axis(axes, list(split))
    axes.set_xlabel("milliseconds of a step")
    legend(axes)
    return svg(figure, name, "Step time by part")


def _log_axis(axes: Axes, ticks: Sequence[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
