"""Numbers and verdicts as text, the same words on the terminal and on the page."""

from __future__ import annotations

from operations.results import BenchResult
from operations.statistics import ArmSummary, Comparison, Quantiles, Ratio, Verdict

UNKNOWN = "–"

CPU_NOTE = (
    "On a CPU verification is compute-bound, so speculation need not pay there; "
    "what carries over to a GPU are accept length and verify steps."
)


def number(value: float | None, digits: int = 3) -> str:
    """``value`` with about ``digits`` significant digits: 2,386, 75.4, 1.98."""
    if value is None:
        return UNKNOWN
    text = f"{value:.{digits}g}"
    whole = len(str(int(abs(float(text)))))
    return f"{float(text) if whole < digits else value:,.{max(0, digits - whole)}f}"


def length(value: float | None) -> str:
    """An accept length, two decimals: 2.14."""
    return UNKNOWN if value is None else f"{value:.2f}"


def milliseconds(value: Quantiles | float | None) -> str:
    """Seconds (of quantiles: the median) as milliseconds without the unit."""
    seconds = value.p50 if isinstance(value, Quantiles) else value
    return UNKNOWN if seconds is None else number(seconds * 1000)


def ratio(value: Ratio) -> str:
    """``1.25x`` or a dash."""
    return UNKNOWN if value.median is None else f"{value.median:.2f}x"


def interval(value: Ratio) -> str:
    """``1.21–1.29``: the 95 % interval, a dash without one."""
    if value.low is None or value.high is None or value.verdict is Verdict.BASELINE:
        return UNKNOWN
    return f"{value.low:.2f}–{value.high:.2f}"


def verdict(row: ArmSummary, comparison: Comparison) -> str:
    """The verdict; wrong output outweighs any speed, and unjudged output is said."""
    if row.arm == comparison.winner:
        return "faster, best"
    if row.correct is False:
        return "wrong output"
    if row.ratio.verdict is Verdict.FASTER and row.correct is None:
        return "faster, unjudged"
    return str(row.ratio.verdict)


def notes(result: BenchResult, comparisons: tuple[Comparison, ...]) -> list[str]:
    """What a reader must know beside the figures, a sentence each."""
    lines = [CPU_NOTE] if result.on_cpu else []
    if not result.complete:
        lines.append("The benchmark was cut short: run it again, it goes on where it stopped.")
    lines += [f"{arm.name} failed: {arm.reason}" for arm in result.failed]
    lines += correctness(result)
    rows = [row for comparison in comparisons for row in comparison.arms]
    for arm in dict.fromkeys(row.arm for row in rows):
        errors = sum(row.errors for row in rows if row.arm == arm)
        if errors:
            total = sum(row.requests for row in rows if row.arm == arm)
            lines.append(f"{arm}: {errors} of {total} requests failed; they count as time lost.")
    lines += cross_check(result)
    if len(comparisons) and not result.interleaved:
        lines.append(
            "Arms of different engine starts ran one after the other, not in turns: a drift of the "
            "machine between them is in the ratio."
        )
    for comparison in comparisons:
        if comparison.level_with:
            lines.append(
                f"{comparison.key.label()}: {comparison.winner} is best by the median, but the "
                f"rounds don't tell it from {', '.join(comparison.level_with)}."
            )
    return lines


def cross_check(result: BenchResult) -> list[str]:
    """Whether a second client saw the same rate on the same server; nothing if none was asked."""
    found = result.document.get("cross_check")
    if not isinstance(found, dict):
        return []
    tool = found.get("tool", "a second client")
    if "error" in found:
        return [f"Cross-check by {tool} failed: {found['error']}"]
    ours, theirs = found.get("tokens_per_s"), found.get("tokens_per_s_bench_serving")
    agrees = "agrees with" if found.get("agrees") else "CONTRADICTS"
    return [
        f"Cross-check, {found.get('arm')} at concurrency {found.get('concurrency')}: {tool} "
        f"{agrees} these figures ({number(theirs)} against {number(ours)} tokens/s)."
    ]


def correctness(result: BenchResult) -> list[str]:
    """One sentence on the arms whose output was judged right, one for each other case."""
    measured = [arm.name for arm in result.arms if arm.name != result.baseline]
    gates = {name: result.gate(name) for name in measured}
    passed = [name for name, gate in gates.items() if gate and gate.passed]
    unjudged = [name for name, gate in gates.items() if gate is None or gate.passed is None]
    lines = []
    if passed:
        lines.append(f"Same greedy output as {result.baseline}: {', '.join(passed)}.")
    for name, gate in gates.items():
        if gate and gate.passed is False:
            lines.append(
                f"{name}: output differs from {result.baseline} on {gate.different} of "
                f"{gate.prompts} prompts by more than a near tie; its speed does not count."
            )
    if unjudged and measured:
        lines.append(f"Output not judged: {', '.join(unjudged)}; no arm is best without it.")
    return lines
