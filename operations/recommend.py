"""Which arm to serve for a load, and the inventory text that adopts it.

    python -m operations.recommend RESULT.json --concurrency 1 --max-ttft 0.5 [--write]

An arm can be recommended only if its output passed the correctness gate and no request failed, if
it keeps the latency limit in every prompt set, and, unless it is the baseline, if its interval over
the rounds says that it is faster than the baseline.
"""

from __future__ import annotations

import argparse
import difflib
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from operations import report_text as say
from operations.load import Load
from operations.results import BenchResult, ResultError, read_result
from operations.statistics import MIN_ROUNDS, ArmSummary, Ratio, Verdict, compare_rounds, summarise
from operations.tuned import parse_tuned, tuned_path


class RecommendError(ValueError):
    """No arm can be recommended; the message is one line for the user."""


@dataclass(frozen=True)
class Candidate:
    """An arm at the measured load nearest to the one asked for, over all prompt sets."""

    arm: str
    ratio: Ratio
    tokens_s: float
    ttft_p90_s: float | None
    tpot_p90_s: float | None
    refused: str | None
    """Why it can't be recommended, None if it can."""


@dataclass(frozen=True)
class Recommendation:
    """The best arm for ``load``, measured at ``concurrency``, and what the others lacked."""

    arm: str
    load: Load
    concurrency: int
    reason: str
    candidates: tuple[Candidate, ...]


@dataclass(frozen=True)
class Adoption:
    """A file to write: its path, its text now (None: absent) and the new text."""

    path: Path
    old: str | None
    new: str

    @property
    def changes(self) -> bool:
        """Whether the settings differ; a new date or comment alone is no change."""
        return self.old is None or tuned(self.old) != tuned(self.new)

    def diff(self) -> str:
        """A unified diff."""
        name = f"{self.path.parent.name}/{self.path.name}"
        return "".join(
            difflib.unified_diff(
                (self.old or "").splitlines(keepends=True),
                self.new.splitlines(keepends=True),
                name if self.old is not None else "/dev/null",
                name,
            )
        )


def recommend(result: BenchResult, load: Load) -> Recommendation:
    """The best arm of ``result`` for ``load``; raises :class:`RecommendError` if none will do."""
    measured = sorted({cell.key.concurrency for cell in result.cells if not cell.warmup})
    if not measured:
        raise RecommendError(
            f"expected a measured result, found no cell in {result.fingerprint[:12]}; "
            "run the benchmark first"
        )
    concurrency = next((c for c in measured if c >= load.concurrency), None)
    if concurrency is None:
        raise RecommendError(
            f"expected a measurement at concurrency {load.concurrency} or more, found only "
            f"{', '.join(map(str, measured))}; add it to wanted.bench.concurrency and measure"
        )
    candidates = _candidates(result, load, concurrency)
    fit = [c for c in candidates if c.refused is None]
    if not fit:
        why = "; ".join(f"{c.arm}: {c.refused}" for c in candidates)
        raise RecommendError(
            f"expected an arm for concurrency {load.concurrency}, found none ({why}); "
            "relax the limit or measure other arms"
        )
    best = max(fit, key=lambda c: c.tokens_s)
    undecided = [c.arm for c in candidates if c.ratio.verdict is Verdict.TOO_FEW]
    if best.arm == result.baseline and undecided:
        raise RecommendError(
            f"expected at least {MIN_ROUNDS} rounds to decide, found fewer of "
            f"{', '.join(undecided)}; measure with wanted.bench.repeats of {MIN_ROUNDS} or more"
        )
    return Recommendation(
        best.arm, load, concurrency, _reason(result, best, load, concurrency), candidates
    )


def _candidates(result: BenchResult, load: Load, concurrency: int) -> tuple[Candidate, ...]:
    rows: dict[str, list[ArmSummary]] = {}
    for comparison in summarise(result):
        if comparison.key.concurrency == concurrency:
            for row in comparison.arms:
                rows.setdefault(row.arm, []).append(row)
    sets = max(len(own) for own in rows.values())
    rates = {arm: _rates(result, arm, concurrency) for arm in rows}
    base = rates.get(result.baseline, {})
    candidates = []
    for arm, own in rows.items():
        shared = sorted(rates[arm].keys() & base.keys())
        ratio = compare_rounds([rates[arm][n] for n in shared], [base[n] for n in shared])
        if arm == result.baseline:
            ratio = Ratio(1.0, 1.0, 1.0, len(shared), Verdict.BASELINE)
        ttft = max((row.ttft.p90 for row in own if row.ttft), default=None)
        tpot = max((row.tpot.p90 for row in own if row.tpot), default=None)
        values = sorted(rates[arm].values())
        candidates.append(
            Candidate(
                arm=arm,
                ratio=ratio,
                tokens_s=values[len(values) // 2] if values else 0.0,
                ttft_p90_s=ttft,
                tpot_p90_s=tpot,
                refused=_refused(own, sets, ratio, ttft, tpot, load),
            )
        )
    return tuple(candidates)


def _rates(result: BenchResult, arm: str, concurrency: int) -> dict[int, float]:
    """Output tokens / wall time of each round, over all prompt sets."""
    sums: dict[int, tuple[int, float]] = {}
    for cell in result.cells:
        if cell.arm == arm and cell.key.concurrency == concurrency and not cell.warmup:
            tokens, wall = sums.get(cell.round, (0, 0.0))
            new = sum(r.completion_tokens for r in cell.requests if r.error is None)
            sums[cell.round] = (tokens + new, wall + cell.wall_s)
    return {n: tokens / wall for n, (tokens, wall) in sums.items() if tokens and wall > 0}


def _refused(
    own: Sequence[ArmSummary],
    sets: int,
    ratio: Ratio,
    ttft: float | None,
    tpot: float | None,
    load: Load,
) -> str | None:
    if any(row.correct is False for row in own):
        return "its output is wrong"
    if any(row.correct is None for row in own):
        return "its output was not judged"
    if errors := sum(row.errors for row in own):
        return f"{errors} requests failed"
    if len(own) < sets:
        return "not measured with every prompt set"
    for name, value, limit in (("TTFT", ttft, load.max_ttft_s), ("TPOT", tpot, load.max_tpot_s)):
        if limit is not None and (value is None or value > limit):
            return f"{name} p90 {say.milliseconds(value)} ms is over {say.milliseconds(limit)} ms"
    if ratio.verdict in (Verdict.BASELINE, Verdict.FASTER):
        return None
    return f"against the baseline: {ratio.verdict}"


def _reason(result: BenchResult, best: Candidate, load: Load, concurrency: int) -> str:
    near = "" if concurrency == load.concurrency else f" (asked for: {load.concurrency})"
    what = f"{say.number(best.tokens_s)} tokens/s at concurrency {concurrency}{near}"
    if best.arm == result.baseline:
        return f"{what}; no arm is faster by its interval, right, and within the limit"
    return f"{what}, {say.ratio(best.ratio)} of {result.baseline} ({say.interval(best.ratio)})"


def adopt(
    result: BenchResult, recommendation: Recommendation, old: str | None, path: Path | None = None
) -> Adoption:
    """``inventories/<group>_tuned.py`` that makes the group serve the recommended arm.

    ``old`` is the file's text now, None if it is not there. Settings that another hand put into
    its TUNED stay; only ``arm`` is replaced.
    """
    path = path or tuned_path(result.group)
    settings = {**(tuned(old) if old is not None else {}), "arm": recommendation.arm}
    limits = [
        f"{name} p90 at most {say.milliseconds(value)} ms"
        for name, value in (
            ("TTFT", recommendation.load.max_ttft_s),
            ("TPOT", recommendation.load.max_tpot_s),
        )
        if value is not None
    ]
    asked = f"for concurrency {recommendation.load.concurrency}"
    lines = [
        f'"""What the benchmark chose for group {result.group}; the inventory reads it."""',
        "",
        f"# {', '.join([asked, *limits])}: {recommendation.arm}, {recommendation.reason}",
        f"# result {result.fingerprint[:12]} of {result.host}, {result.created}",
        "TUNED = {",
        *(f"    {_quoted(key)}: {_quoted(value)}," for key, value in sorted(settings.items())),
        "}",
    ]
    return Adoption(path, old, "\n".join(lines) + "\n")


def tuned(text: str) -> dict[str, object]:
    """The TUNED of such a file, read without running it; raises :class:`RecommendError`."""
    try:
        return parse_tuned(text)
    except ValueError as error:
        raise RecommendError(str(error)) from None


def _quoted(value: object) -> str:
    text = repr(value)
    return f'"{value}"' if isinstance(value, str) and '"' not in value else text


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m operations.recommend",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("result", type=Path, metavar="RESULT.json")
    parser.add_argument(
        "--concurrency",
        type=int,
        default=1,
        metavar="N",
        help="requests at once; the measured one that is equal or next above decides (default 1)",
    )
    parser.add_argument(
        "--max-ttft", type=float, metavar="SECONDS", help="limit on the p90 time to first token"
    )
    parser.add_argument(
        "--max-tpot", type=float, metavar="SECONDS", help="limit on the p90 time per output token"
    )
    parser.add_argument("--write", action="store_true", help="write inventories/<group>_tuned.py")
    given = parser.parse_args(argv)
    try:
        result = read_result(given.result)
        load = Load(given.concurrency, given.max_ttft, given.max_tpot)
        found = recommend(result, load)
        path = tuned_path(result.group)
        adoption = adopt(result, found, path.read_text() if path.exists() else None)
    except (ResultError, RecommendError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"{found.arm}: {found.reason}")
    for candidate in found.candidates:
        if candidate.refused:
            print(f"  not {candidate.arm}: {candidate.refused}")
    print(adoption.diff() if adoption.changes else f"{path} says so already", end="\n")
    if given.write and adoption.changes:
        path.write_text(adoption.new, encoding="utf-8")
        print(f"written: {path}")
    elif adoption.changes:
        print("nothing written; add --write, or run the deploy with --data adopt=best")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
