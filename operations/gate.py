"""The gate of a new release: is its benchmark as good as the stored one of the same arm?

Slower counts only beyond the noise: Welch's interval on the logs of the rounds' tokens/s, for the
two runs are not paired. A failed correctness gate is a finding whatever the speed. Pure, but for
:func:`stored_before`, which reads result files.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
from scipy import stats

from operations.results import BenchResult, CellKey, ResultError, read_result
from operations.statistics import CONFIDENCE, MIN_ROUNDS, ArmSummary, summarise

Kind = Literal["incorrect", "unjudged", "errors", "slower", "accept length", "not measured"]
SERIOUS: tuple[Kind, ...] = ("incorrect", "errors", "slower", "not measured")
ACCEPT_LOSS = 0.02
"""A pooled accept length this much lower is told: what two builds of one algorithm may differ."""


@dataclass(frozen=True)
class Finding:
    """Something worse than before. ``serious`` ones justify a roll-back."""

    kind: Kind
    arm: str
    message: str

    @property
    def serious(self) -> bool:
        return self.kind in SERIOUS


@dataclass(frozen=True)
class Decision:
    """What the gate found in ``new`` against ``old`` (fingerprints).

    ``compared``: arms and loads whose speed had enough rounds, of equally many requests, in both.
    """

    new: str
    old: str | None
    findings: tuple[Finding, ...]
    compared: int

    @property
    def passed(self) -> bool:
        return not any(finding.serious for finding in self.findings)

    def lines(self) -> list[str]:
        """One line a finding, or one that says that all is well."""
        if self.findings:
            return [f"gate: {finding.arm}: {finding.message}" for finding in self.findings]
        if self.old is None:
            return [f"gate: {self.new[:12]} has nothing to be compared with; correctness holds"]
        if not self.compared:
            return [
                f"gate: {self.new[:12]} was not compared with {self.old[:12]}: fewer than "
                f"{MIN_ROUNDS} rounds of the same arm and load, with as many requests, in one of "
                "them; correctness holds"
            ]
        return [f"gate: {self.new[:12]} is no slower than {self.old[:12]} ({self.compared} rows)"]


def judge(new: BenchResult, old: BenchResult | None, arms: Iterable[str] | None = None) -> Decision:
    """Compare ``new`` with ``old`` at the loads that both measured; only ``arms`` if given.

    Without ``old`` (a first release) correctness and errors are judged alone.
    """
    wanted = set(arms) if arms is not None else {arm.name for arm in new.arms}
    rows = _rows(new, wanted)
    findings = [*_correctness(new, wanted), *_errors(rows)]
    findings += [
        Finding("not measured", arm, "the new release could not be measured")
        for arm in sorted(wanted - {arm for arm, _ in rows})
    ]
    shared: list[tuple[ArmSummary, ArmSummary]] = []
    if old is not None:
        earlier = _rows(old, wanted)
        shared = [(rows[at], earlier[at]) for at in rows if at in earlier]
        # other waves of requests a round: another load under the same name
        shared = [(a, b) for a, b in shared if a.requests * b.rounds == b.requests * a.rounds]
        findings += [finding for pair in shared for finding in _slower(*pair)]
    enough = [min(len(a.round_tokens_s), len(b.round_tokens_s)) >= MIN_ROUNDS for a, b in shared]
    before = old.fingerprint if old else None
    return Decision(new.fingerprint, before, tuple(findings), sum(enough))


def _rows(result: BenchResult, wanted: set[str]) -> dict[tuple[str, CellKey], ArmSummary]:
    return {
        (row.arm, row.key): row
        for comparison in summarise(result)
        for row in comparison.arms
        if row.arm in wanted
    }


def _correctness(new: BenchResult, wanted: set[str]) -> list[Finding]:
    findings: list[Finding] = []
    for arm in new.arms:
        gate = new.gate(arm.name)
        if arm.name not in wanted or arm.name == new.baseline:
            continue
        if gate is None or gate.passed is None:
            findings.append(Finding("unjudged", arm.name, "its output was not judged"))
        elif not gate.passed:
            message = (
                f"output differs from {new.baseline} on {gate.different} of {gate.prompts} prompts "
                "by more than a near tie"
            )
            findings.append(Finding("incorrect", arm.name, message))
    return findings


def _errors(rows: dict[tuple[str, CellKey], ArmSummary]) -> list[Finding]:
    return [
        Finding("errors", row.arm, f"{row.key.label()}: {row.errors} of {row.requests} failed")
        for row in rows.values()
        if row.errors
    ]


def _slower(new: ArmSummary, old: ArmSummary) -> list[Finding]:
    findings: list[Finding] = []
    interval = unpaired_ratio(new.round_tokens_s, old.round_tokens_s)
    if interval is not None and interval[1] < 1:
        low, high = interval
        message = (
            f"{new.key.label()}: {new.total_tokens_s:.4g} tokens/s, before "
            f"{old.total_tokens_s:.4g}; ratio {low:.2f} to {high:.2f}"
        )
        findings.append(Finding("slower", new.arm, message))
    mine, before = new.acceptance, old.acceptance
    if mine and before and mine.pooled < before.pooled - ACCEPT_LOSS:
        message = f"{new.key.label()}: accept length {mine.pooled:.2f}, before {before.pooled:.2f}"
        findings.append(Finding("accept length", new.arm, message))
    return findings


def unpaired_ratio(new: Sequence[float], old: Sequence[float]) -> tuple[float, float] | None:
    """95 % interval of mean ratio new / old: Welch on the logs; None below 3 rounds in either.

    Two rounds that agree by chance would make a tiny interval; without enough of them the gate
    stays open rather than guess.
    """
    if min(len(new), len(old)) < MIN_ROUNDS:
        return None
    mine, other = np.log(np.asarray(new, dtype=float)), np.log(np.asarray(old, dtype=float))
    parts = [float(v.var(ddof=1)) / v.size for v in (mine, other)]
    middle, spread = float(mine.mean() - other.mean()), sum(parts)
    if spread == 0:
        return math.exp(middle), math.exp(middle)
    freedom = spread**2 / sum(
        part**2 / (v.size - 1) for part, v in zip(parts, (mine, other), strict=True)
    )
    half = float(stats.t.ppf((1 + CONFIDENCE) / 2, freedom)) * math.sqrt(spread)
    return math.exp(middle - half), math.exp(middle + half)


def stored_before(new: BenchResult, folder: Path) -> BenchResult | None:
    """The newest stored result of the same host before ``new``, under ``results/<group>``.

    Files that can't be read are passed over: an old schema must not stop a deploy.
    """
    found = []
    for path in sorted(folder.glob("*/*.json")):
        try:
            other = read_result(path)
        except ResultError:
            continue
        if other.host == new.host and other.fingerprint != new.fingerprint and other.complete:
            found.append(other)
    earlier = [other for other in found if other.created <= new.created]
    return max(earlier, key=lambda other: other.created, default=None)
