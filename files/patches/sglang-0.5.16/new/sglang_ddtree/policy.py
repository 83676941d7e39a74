"""Which width a step verifies with: the most tokens per millisecond, from measured figures.

Pure: no torch, no clock. After CaDDTree's rule (arXiv 2606.01813) that a node pays while it raises
expected tokens per time, with the captured widths as the only sizes that a step can have.

A verify of a wide tree also tells what each narrower one, and the chain, would have accepted: nodes
come in pop order, so a smaller budget's tree is a prefix of them. Accept lengths vary far more from
step to step than from choice to choice, so what is averaged are the differences between neighbours
on the same steps. The widest tree runs now and then to keep the upper ones known.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate

# Counted in verified requests. So many run the widest tree first; so many are remembered.
FIRST_PROBES = 128
MEMORY = 256
# Every verified request fades all figures, so a few probes renew what nothing else tells; but what
# a figure held before weighs as much as so many requests at least.
LEAST_MEMORY = 32
# Time that later probes may cost: what they take longer than the best choice for the same tokens.
PROBE_SHARE = 0.0025

Costs = Mapping[int, Mapping[int, float]]


def nearest_bs(costs: Costs, bs: int) -> int:
    """The batch size of the table that stands for `bs`: the next larger one, else the largest."""
    larger = [known for known in costs if known >= bs]
    return min(larger) if larger else max(costs)


@dataclass
class WidthPolicy:
    """Chooses among `choices`, budgets that rise from 0 (the chain); `costs[bs][budget]` in ms.

    accept[budget]: tokens that a step would emit a request, empty before the first counts.
    last[bs]: the best budget when a step of bs requests was last planned.
    """

    choices: Sequence[int]
    costs: Costs
    accept: dict[int, float] = field(default_factory=dict)
    last: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The chain's tokens, then what each choice emits more than the one before it; and from how
        # many requests each figure comes, older ones faded.
        self._gains = [0.0] * len(self.choices)
        self._seen = [0.0] * len(self.choices)
        self._first_probes = FIRST_PROBES  # left
        self._probe_ms = 0.0  # saved up for the next probe

    def choose(self, bs: int) -> int:
        """The budget for the next step of `bs` requests."""
        widest = self.choices[-1]
        if self._first_probes > 0:
            return widest
        row = self.costs[nearest_bs(self.costs, bs)]
        speed = {choice: self.accept[choice] / row[choice] for choice in self.choices}
        best = max(self.choices, key=speed.__getitem__)
        self.last[bs] = best
        self._probe_ms += PROBE_SHARE * row[best]
        if self._probe_ms < row[widest] * (1 - speed[widest] / speed[best]):
            return best
        self._probe_ms = 0.0
        return widest

    def learn(self, ran: int, requests: int, accepted: Sequence[int]) -> None:
        """`requests` verifies with budget `ran`; accepted[i]: tokens that choices[i] would emit.

        That verify says nothing of wider trees: their lead stays as it is. It shows the whole chain
        only if that ran, or if the widest tree did, which holds nearly all of it.
        """
        if requests == 0:
            return
        chain, widest = self.choices[0], self.choices[-1]
        if ran == widest:
            self._first_probes -= requests
        kept = MEMORY / (MEMORY + requests)
        self._seen = [max(seen * kept, min(seen, LEAST_MEMORY)) for seen in self._seen]
        tokens = [total / requests for total in accepted]
        for i in range(1 if ran == widest else 2, 1 + self.choices.index(ran)):
            self._average(i, tokens[i] - tokens[i - 1], requests)
        whole = ran in (chain, widest)
        self._average(0, tokens[0] if whole else tokens[1] - self._gains[1], requests)
        sums = accumulate(self._gains)
        self.accept = {c: max(1.0, total) for c, total in zip(self.choices, sums, strict=True)}

    def _average(self, i: int, figure: float, requests: int) -> None:
        self._seen[i] += requests
        self._gains[i] += requests / self._seen[i] * (figure - self._gains[i])


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
