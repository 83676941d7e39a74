"""The tables of the report page: cells with the value that sorting uses."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from operations import report_text as say
from operations.report_host import gpu_state
from operations.results import BenchResult
from operations.statistics import ArmSummary, Comparison, Verdict

GATES = {True: ("passed", 1, "good"), False: ("failed", -1, "bad"), None: ("not judged", 0, "")}


@dataclass(frozen=True)
class CellView:
    """A table cell: its text, the value that sorting uses, and a CSS class."""

    text: str
    sort: float | str
    css: str = ""


@dataclass(frozen=True)
class TableView:
    """A table whose columns sort: ``head`` holds (text, explanation), ``classes`` a CSS class
    a column, ``starts`` the rows (by number) that begin another load."""

    head: Sequence[tuple[str, str]]
    rows: Sequence[Sequence[CellView]]
    classes: Sequence[str]
    starts: Collection[int] = ()


def headline(
    results: Sequence[BenchResult], summaries: Sequence[Sequence[Comparison]]
) -> TableView:
    """Every arm at every load. Columns that say the same in each row (host, load) are left out."""
    rows: list[list[CellView]] = []
    starts = []
    for result, comparisons in zip(results, summaries, strict=True):
        for comparison in comparisons:
            starts.append(len(rows))
            rows += [_headline_row(result, comparison, row) for row in comparison.arms]
    head = [
        ("host", "group / host"),
        ("load", "prompt set, temperature, new tokens"),
        ("conc.", "requests in flight"),
        ("arm", "benchmarked configuration"),
        ("verdict", "against the baseline arm, by the 95 % interval over rounds"),
        ("speed", "total tokens/s against the baseline arm, median of paired rounds"),
        ("interval", "95 % interval of the speed"),
        ("user tok/s", "1 / median TPOT"),
        ("total tok/s", "output tokens / wall time, median over rounds"),
        ("tok/s per GPU", "total tokens/s / GPUs"),
        ("TTFT ms", "median time to first token"),
        ("TPOT ms", "median time per output token"),
        ("accept length", "emitted tokens / verify steps, pooled"),
        ("accept mean", "unweighted mean of the requests' accept lengths"),
        ("steps", "verify steps"),
        ("errors", "failed requests"),
    ]
    order = list(range(len(head)))
    if all(result.on_cpu for result in results):  # what carries over to a GPU stands first
        order = [*order[:4], *order[12:15], *order[4:12], order[15]]
    kept = [i for i in order if _differs(rows, i) or i not in (0, 1, 2, 9, 15)]
    words = ("host", "load", "arm", "verdict")
    return TableView(
        [head[i] for i in kept],
        [[row[i] for i in kept] for row in rows],
        ["word" if head[i][0] in words else "figure" for i in kept],
        starts,
    )


def _differs(rows: Sequence[Sequence[CellView]], column: int) -> bool:
    return len({row[column].text for row in rows}) > 1


def _headline_row(result: BenchResult, comparison: Comparison, row: ArmSummary) -> list[CellView]:
    best = "best" if row.arm == comparison.winner else ""
    verdict = say.verdict(row, comparison)
    tone = {Verdict.FASTER: "good", Verdict.SLOWER: "bad"}.get(row.ratio.verdict, "")
    tone = "bad" if row.correct is False else tone
    accepted, key = row.acceptance, row.key
    load = f"{key.prompt_set}, T={key.temperature:g}, {key.max_new_tokens}"
    per_gpu = row.total_tokens_s / result.gpus if row.total_tokens_s and result.gpus else None
    budget = result.arm(row.arm).budget if row.arm in {a.name for a in result.arms} else None
    order = budget if budget is not None else (-2 if row.arm == result.baseline else -1)
    return [
        CellView(f"{result.group} / {result.host}", f"{result.group} / {result.host}"),
        CellView(load, load),
        CellView(str(key.concurrency), key.concurrency),
        CellView(row.arm, order, best),
        CellView(verdict, verdict, f"{best} {tone}".strip()),
        _cell(say.ratio(row.ratio), row.ratio.median, best),
        _cell(say.interval(row.ratio), row.ratio.low),
        _cell(say.number(row.user_tokens_s), row.user_tokens_s),
        _cell(say.number(row.total_tokens_s), row.total_tokens_s),
        _cell(say.number(per_gpu), per_gpu),
        _cell(say.milliseconds(row.ttft), row.ttft.p50 if row.ttft else None),
        _cell(say.milliseconds(row.tpot), row.tpot.p50 if row.tpot else None),
        _cell(
            say.length(accepted.pooled if accepted else None), accepted.pooled if accepted else None
        ),
        _cell(
            say.length(accepted.unweighted if accepted else None),
            accepted.unweighted if accepted else None,
        ),
        _cell(
            f"{accepted.steps:,}" if accepted else say.UNKNOWN, accepted.steps if accepted else None
        ),
        CellView(str(row.errors), row.errors, "bad" if row.errors else ""),
    ]


def _cell(text: str, value: float | None, css: str = "") -> CellView:
    return CellView(text, -1.0 if value is None else round(value, 6), css)


def latencies(comparisons: Sequence[Comparison]) -> TableView:
    """Percentiles of all latencies, in milliseconds."""
    head = [("load", ""), ("arm", "")]
    parts = ("TTFT", "TPOT", "inter-token", "chunk gap", "end to end")
    head += [(f"{part} {q}", "milliseconds") for part in parts for q in ("p50", "p90", "p99")]
    head += [("conc. seen", "requests really in flight, mean"), ("requests", ""), ("rounds", "")]
    rows = []
    for comparison in comparisons:
        for row in comparison.arms:
            load = comparison.key.label()
            cells = [CellView(load, comparison.key.concurrency), CellView(row.arm, row.arm)]
            for part in (row.ttft, row.tpot, row.inter_token, row.chunk_gap, row.e2e):
                for value in (part.p50, part.p90, part.p99) if part else (None, None, None):
                    cells.append(_cell(say.milliseconds(value), value))
            seen = row.effective_concurrency
            cells.append(_cell(say.number(seen), seen))
            cells.append(CellView(str(row.requests), row.requests))
            cells.append(CellView(str(row.rounds), row.rounds))
            rows.append(cells)
    return TableView(head, rows, ["word", "word", *["figure"] * (len(head) - 2)])


def correctness(result: BenchResult) -> TableView | None:
    """The correctness gates, None if no arm was judged."""
    if not result.correctness:
        return None
    head = [
        ("arm", ""),
        ("gate", "passed unless a prompt differs by more than a near tie"),
        ("prompts", ""),
        ("identical", "token for token"),
        ("near tie", "parted where the target's two best tokens are this close"),
        ("different", "anything else"),
        ("largest gap", "top-1 / top-2 logit gap at the first divergence"),
        ("allowed gap", ""),
    ]
    rows = [
        [
            CellView(c.arm, c.arm),
            CellView(*GATES[c.passed]),
            CellView(str(c.prompts), c.prompts),
            CellView(str(c.identical), c.identical),
            CellView(str(c.near_tie), c.near_tie),
            CellView(str(c.different), c.different, "bad" if c.different else ""),
            _cell(say.number(c.max_gap, 4), c.max_gap),
            _cell(say.number(c.threshold, 4), c.threshold),
        ]
        for c in result.correctness
    ]
    return TableView(head, rows, ["word", "word", *["figure"] * 6])


def gpu_table(result: BenchResult) -> TableView | None:
    """Clocks, temperature and power before and after the cells, None without a GPU."""
    head, rows = gpu_state(result.cells)
    if not rows:
        return None
    cells = [
        [CellView(arm, arm), *(_cell(say.number(v), v) for v in values)] for arm, values in rows
    ]
    return TableView(
        [("arm", ""), *((name, "mean over GPUs and cells") for name in head)],
        cells,
        ["word", *["figure"] * len(head)],
    )
