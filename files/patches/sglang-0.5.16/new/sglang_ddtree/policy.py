"""Which width a step verifies with: the most tokens per millisecond, from measured figures.

Pure: no torch, no clock. After CaDDTree's rule (arXiv 2606.01813) that a node pays while it raises
expected tokens per time, with the captured widths as the only sizes that a step can have.

A verify of a wide tree also tells what each narrower one, and the chain, would have accepted: nodes
come in pop order, so a smaller budget's tree is a prefix of them. So accept lengths are known for
all choices as long as the widest runs now and then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

# A step in this many verifies with the widest tree, to keep the others' accept lengths fresh.
PROBE_EVERY = 128
PROBES_AT_START = 16
# Weight of the newest figures; a change must promise this much more to be made.
SMOOTHING = 0.2
MARGIN = 1.01

Costs = Mapping[int, Mapping[int, float]]


def nearest_bs(costs: Costs, bs: int) -> int:
    """The batch size of the table that stands for `bs`: the next larger one, else the largest."""
    larger = [known for known in costs if known >= bs]
    return min(larger) if larger else max(costs)


@dataclass
class WidthPolicy:
    """Chooses among `choices`, budgets that rise from 0 (the chain); `costs[bs][budget]` in ms."""

    choices: Sequence[int]
    costs: Costs
    accept: dict[int, float] = field(default_factory=dict)
    steps: int = 0
    last: dict[int, int] = field(default_factory=dict)

    def choose(self, bs: int) -> int:
        """The budget for the next step of `bs` requests."""
        self.steps += 1
        widest = self.choices[-1]
        if self.steps <= PROBES_AT_START or self.steps % PROBE_EVERY == 0:
            return widest
        known = [choice for choice in self.choices if choice in self.accept]
        if not known:
            return widest
        row = self.costs[nearest_bs(self.costs, bs)]
        gain = {choice: self.accept[choice] / row[choice] for choice in known}
        best = max(known, key=lambda choice: gain[choice])
        held = self.last.get(bs)
        if held in gain and gain[best] < gain[held] * MARGIN:
            best = held
        self.last[bs] = best
        return best

    def learn(self, ran: int, requests: int, accepted: Sequence[int]) -> None:
        """`requests` verifies with budget `ran`; accepted[i]: tokens that choices[i] would emit.

        Choices above `ran` stay as they are: that verify says nothing about them.
        """
        if requests == 0:
            return
        for choice, tokens in zip(self.choices, accepted, strict=True):
            if choice > ran:
                continue
            mean = tokens / requests
            old = self.accept.get(choice, mean)
            self.accept[choice] = old + SMOOTHING * (mean - old)


def chosen_costs(
    choices: Sequence[int], widths: Mapping[int, int], by_width: Costs
) -> dict[int, dict[int, float]]:
    """Costs by budget from costs by verify width; widths[budget] is the width that it runs on.

    A batch size without a figure for some width is left out; raises ValueError if none is left.
    """
    table = {
        bs: {choice: row[widths[choice]] for choice in choices}
        for bs, row in by_width.items()
        if all(widths[choice] in row for choice in choices)
    }
    if not table:
        needed = sorted(set(widths.values()))
        raise ValueError(f"cost table: expected figures for the widths {needed}, found {by_width}")
    return table
