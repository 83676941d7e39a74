"""What a benchmark's raw records say: latencies, rates, accept length, and who is faster.

Pure: a :class:`BenchResult` in, frozen dataclasses out. Warm-up cells and the first sweep that
``hostkit bench`` marks as warm-up never count. Definitions:

- TTFT: first token - start. TPOT: (end - first token) / (tokens - 1). Both in seconds.
- inter-token: the gap before a chunk, shared evenly by the tokens in it (as
  ``sglang.bench_serving`` does); chunk gap: the gap itself. Speculation sends several tokens a
  chunk, so the two differ.
- accept length: emitted tokens / verify steps, pooled over all requests, bonus token included.
  The mean of the requests' own ratios stands beside it; the two can differ (vllm #42508).
- total tokens/s: all output tokens of a round / the round's wall time.
- user tokens/s: 1 / TPOT, what one reader sees once text flows.

A comparison pairs the rounds: where arms are interleaved (ABCABC), the ratio of two arms within
one round is free of slow drift. The interval is Student's t on the logs of these ratios.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from scipy import stats

from operations.results import BenchResult, Cell, CellKey, Record

MIN_ROUNDS = 3
"""Fewer rounds than this give no interval worth printing (t with 1 degree of freedom: 12.7)."""

CONFIDENCE = 0.95


class Verdict(StrEnum):
    """How an arm stands to the baseline."""

    BASELINE = "baseline"
    FASTER = "faster"
    SLOWER = "slower"
    NO_DECISION = "no decision"
    TOO_FEW = "too few repeats"
    NOT_MEASURED = "not measured"


@dataclass(frozen=True)
class Quantiles:
    """Percentiles over ``n`` samples, in the samples' own unit; below 100 p99 is near the top."""

    p50: float
    p90: float
    p99: float
    mean: float
    n: int


@dataclass(frozen=True)
class Acceptance:
    """Speculation's yield. ``histogram[i]``: verify steps that emitted i + 1 tokens, if counted."""

    pooled: float
    unweighted: float
    emitted: int
    steps: int
    histogram: tuple[int, ...] | None


@dataclass(frozen=True)
class Ratio:
    """Speed relative to another arm: median and interval over the rounds that both measured."""

    median: float | None
    low: float | None
    high: float | None
    rounds: int
    verdict: Verdict


@dataclass(frozen=True)
class ArmSummary:
    """One arm at one load, pooled over its measured rounds. Times in seconds, rates in tokens/s."""

    arm: str
    key: CellKey
    rounds: int
    requests: int
    errors: int
    prompt_tokens: int
    output_tokens: int
    wall_s: float
    ttft: Quantiles | None
    tpot: Quantiles | None
    inter_token: Quantiles | None
    chunk_gap: Quantiles | None
    e2e: Quantiles | None
    user_tokens_s: float | None
    total_tokens_s: float | None
    round_tokens_s: tuple[float, ...]
    effective_concurrency: float | None
    acceptance: Acceptance | None
    step_s: float | None
    """Mean time of a decode step, which is a verify step or, without speculation, a token."""
    ratio: Ratio
    correct: bool | None
    """Correctness gate: passed, failed, or None where it was not judged."""

    @property
    def may_win(self) -> bool:
        """A speed counts only with right answers: gate passed, no failed request."""
        return self.correct is True and self.errors == 0


@dataclass(frozen=True)
class Comparison:
    """All arms at one load. ``winner`` is None unless an arm is faster *and* passed its gate."""

    key: CellKey
    arms: tuple[ArmSummary, ...]
    winner: str | None
    level_with: tuple[str, ...]
    """Arms that may win too and that the rounds can't tell from the winner."""

    def arm(self, name: str) -> ArmSummary | None:
        """The summary of that arm, None if it was not measured at this load."""
        return next((a for a in self.arms if a.arm == name), None)


def summarise(result: BenchResult) -> tuple[Comparison, ...]:
    """Every load of a result, in the order of prompt set, temperature, length, concurrency."""
    measured = [cell for cell in result.cells if not cell.warmup]
    return tuple(
        _compare(result, key, [c for c in measured if c.key == key])
        for key in sorted({cell.key for cell in measured})
    )


def quantiles(samples: Iterable[float]) -> Quantiles | None:
    """Percentiles by linear interpolation; None without samples."""
    values = np.asarray(list(samples), dtype=float)
    if values.size == 0:
        return None
    p50, p90, p99 = (float(q) for q in np.percentile(values, (50, 90, 99)))
    return Quantiles(p50, p90, p99, float(values.mean()), int(values.size))


def tokens_per_second(cell: Cell) -> float | None:
    """Output tokens of all requests / wall time of the cell; failed requests add only time."""
    if cell.wall_s <= 0:
        return None
    return sum(r.completion_tokens for r in cell.requests if r.error is None) / cell.wall_s


def compare_rounds(mine: Sequence[float], other: Sequence[float]) -> Ratio:
    """Ratio mine / other of paired rounds (same length and order, positive rates).

    The interval is ``exp(mean ± t · s / √n)`` of the log ratios, at 95 %; an interval that leaves
    1 out decides.
    """
    if len(mine) == 0:
        return Ratio(None, None, None, 0, Verdict.NOT_MEASURED)
    logs = np.log(np.asarray(mine, dtype=float)) - np.log(np.asarray(other, dtype=float))
    median, n = float(np.exp(np.median(logs))), int(logs.size)
    if n < MIN_ROUNDS:
        return Ratio(median, None, None, n, Verdict.TOO_FEW)
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, n - 1) * logs.std(ddof=1) / math.sqrt(n))
    low, high = math.exp(float(logs.mean()) - half), math.exp(float(logs.mean()) + half)
    return Ratio(median, low, high, n, _verdict(low, high))


def _verdict(low: float, high: float) -> Verdict:
    if low > 1:
        return Verdict.FASTER
    return Verdict.SLOWER if high < 1 else Verdict.NO_DECISION


def acceptance(records: Iterable[Record]) -> Acceptance | None:
    """Pooled accept length of requests that counted verify steps; None if none did."""
    counted = [r for r in records if r.error is None and r.verify_steps]
    if not counted:
        return None
    emitted = sum(r.completion_tokens for r in counted)
    steps = sum(r.verify_steps or 0 for r in counted)
    own = [r.completion_tokens / r.verify_steps for r in counted if r.verify_steps]
    histograms = [r.accept_histogram for r in counted if r.accept_histogram is not None]
    width = max((len(h) for h in histograms), default=0)
    pooled = tuple(sum(h[i] for h in histograms if i < len(h)) for i in range(width))
    return Acceptance(
        emitted / steps,
        sum(own) / len(own),
        emitted,
        steps,
        pooled if len(histograms) == len(counted) else None,
    )


def _compare(result: BenchResult, key: CellKey, cells: Sequence[Cell]) -> Comparison:
    order = [arm.name for arm in result.arms]
    names = sorted({c.arm for c in cells}, key=lambda n: order.index(n) if n in order else 999)
    rates = {name: _round_rates(c for c in cells if c.arm == name) for name in names}
    summaries = tuple(
        _summarise_arm(result, name, key, [c for c in cells if c.arm == name], rates)
        for name in names
    )
    winner = _winner(summaries)
    level = tuple(
        s.arm
        for s in summaries
        if winner and s.arm != winner and s.may_win
        if _paired(rates[s.arm], rates[winner]).verdict not in (Verdict.SLOWER, Verdict.TOO_FEW)
    )
    return Comparison(key, summaries, winner, level)


def _winner(summaries: Sequence[ArmSummary]) -> str | None:
    able = [s for s in summaries if s.ratio.verdict is Verdict.FASTER and s.may_win]
    return max(able, key=lambda s: s.total_tokens_s or 0).arm if able else None


def _round_rates(cells: Iterable[Cell]) -> dict[int, float]:
    rates = {cell.round: tokens_per_second(cell) for cell in cells}
    return {number: rate for number, rate in rates.items() if rate}


def _paired(mine: dict[int, float], other: dict[int, float]) -> Ratio:
    shared = sorted(mine.keys() & other.keys())
    return compare_rounds([mine[n] for n in shared], [other[n] for n in shared])


def _summarise_arm(
    result: BenchResult,
    name: str,
    key: CellKey,
    cells: Sequence[Cell],
    rates: dict[str, dict[int, float]],
) -> ArmSummary:
    records = [r for cell in cells for r in cell.requests]
    good = [r for r in records if r.error is None]
    tpot = quantiles(_each(good, time_per_output_token))
    concurrency = [c.effective_concurrency for c in cells if c.effective_concurrency is not None]
    own = [rates[name][n] for n in sorted(rates[name])]
    gate = result.gate(name)
    is_baseline = name == result.baseline
    return ArmSummary(
        arm=name,
        key=key,
        rounds=len(cells),
        requests=len(records),
        errors=len(records) - len(good),
        prompt_tokens=sum(r.prompt_tokens for r in good),
        output_tokens=sum(r.completion_tokens for r in good),
        wall_s=sum(c.wall_s for c in cells),
        ttft=quantiles(_each(good, time_to_first_token)),
        tpot=tpot,
        inter_token=quantiles(gap for r in good for gap in inter_token_gaps(r)),
        chunk_gap=quantiles(gap for r in good for gap, _ in chunk_gaps(r)),
        e2e=quantiles(r.end_s - r.start_s for r in good),
        user_tokens_s=1 / tpot.p50 if tpot and tpot.p50 > 0 else None,
        total_tokens_s=float(np.median(own)) if own else None,
        round_tokens_s=tuple(own),
        effective_concurrency=float(np.mean(concurrency)) if concurrency else None,
        acceptance=acceptance(good),
        step_s=step_time(good),
        ratio=(
            Ratio(1.0, 1.0, 1.0, len(own), Verdict.BASELINE)
            if is_baseline
            else _paired(rates[name], rates.get(result.baseline, {}))
        ),
        correct=gate.passed if gate else (True if is_baseline else None),
    )


def _each(records: Iterable[Record], of: Callable[[Record], float | None]) -> list[float]:
    return [value for value in map(of, records) if value is not None]


def time_to_first_token(record: Record) -> float | None:
    """Seconds; None where no token came."""
    return None if record.first_token_s is None else record.first_token_s - record.start_s


def time_per_output_token(record: Record) -> float | None:
    """Seconds a token after the first; None for fewer than two tokens."""
    if record.first_token_s is None or record.completion_tokens < 2:
        return None
    return (record.end_s - record.first_token_s) / (record.completion_tokens - 1)


def step_time(records: Iterable[Record]) -> float | None:
    """Mean seconds of a decode step of all requests, after their first tokens; None without."""
    seconds, steps = 0.0, 0
    for record in records:
        if record.first_token_s is not None:
            seconds += record.end_s - record.first_token_s
            steps += record.verify_steps or max(record.completion_tokens - 1, 0)
    return seconds / steps if steps else None


def chunk_gaps(record: Record) -> list[tuple[float, int]]:
    """(seconds since the chunk before, tokens in the chunk), from the second chunk on."""
    return [
        (time - before, tokens)
        for (before, _), (time, tokens) in zip(record.chunks, record.chunks[1:], strict=False)
    ]


def inter_token_gaps(record: Record) -> list[float]:
    """A gap for each token of the second and later chunks, in seconds."""
    return [gap / tokens for gap, tokens in chunk_gaps(record) if tokens for _ in range(tokens)]
