"""Which budget a step verifies: the one that was set, or the one that pays most just now."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

import torch

from sglang_ddtree.accept_counts import AcceptCounts
from sglang_ddtree.policy import WidthPolicy, chosen_costs
from sglang_ddtree.settings import Settings
from sglang_ddtree.step import StepPlan
from sglang_ddtree.widths import VerifyWidths, replay_ms

logger = logging.getLogger(__name__)

CHAIN = 0
CHOOSE = -1  # by measured costs, step by step


class Budgets:
    """The budget of the next step, and the captured width that it runs on.

    `choices`: 0 for DFLASH's chain, then width - 1 for each captured width.
    """

    def __init__(self, settings: Settings, widths: VerifyWidths) -> None:
        self.settings = settings
        self.widths = widths
        self.budget = settings.budget
        self.choices = (CHAIN, *(width - 1 for width in sorted(widths.by_width)))
        self.policy: WidthPolicy | None = None
        self.counts: AcceptCounts | None = None

    def _columns(self, budget: int) -> int:
        return self.settings.block if budget == CHAIN else budget + 1

    def choose_by_cost(self, draft_runner: Any, tp_group: Any, device: torch.device) -> None:
        """From now on choose step by step. Collective: all ranks take rank 0's costs.

        A step's cost is the replay of its draft and its verify, unless a table was given.
        """
        costs = self.settings.cost_table
        if costs is None:
            decode = draft_runner.decode_cuda_graph_runner
            if decode is None or self.widths.widest.runner is None:
                raise RuntimeError("SGLANG_DDTREE_ADAPTIVE needs CUDA graphs or a cost table.")
            draft = {
                bs: replay_ms(decode.backend._graphs[decode._make_graph_key(bs)], 3)
                for bs in decode.capture_bs
            }
            costs = {
                bs: {width: draft[bs] + ms for width, ms in row.items()}
                for bs, row in self.widths.measure().items()
            }
            costs = tp_group.broadcast_object(costs, src=0)
        runs_on = {c: self.widths.at_least(self._columns(c)).width for c in self.choices}
        self.policy = WidthPolicy(self.choices, chosen_costs(self.choices, runs_on, costs))
        self.counts = AcceptCounts(self.choices, device)
        self.budget = CHOOSE
        logger.info("DDTREE chooses its budget from costs in ms: %s", self.policy.costs)

    def set(self, budget: int) -> None:
        """Verify trees of `budget` nodes from the next step on; 0: the chain, -1: choose.

        Raises ValueError for what this server cannot do.
        """
        if budget == CHOOSE and self.policy is not None:
            self.budget = budget
            return
        if not 0 <= budget <= self.settings.budget:
            choose = ", or -1 with SGLANG_DDTREE_ADAPTIVE=1" if self.policy is None else ", or -1"
            raise ValueError(
                f"speculative_ddtree_budget must lie in 0..{self.settings.budget} "
                f"(--speculative-num-draft-tokens - 1){choose}; got {budget}."
            )
        self.budget = budget

    def plan(self, bs: int) -> StepPlan:
        """How the next step of `bs` requests verifies."""
        budget = self.budget
        if budget == CHOOSE:
            assert self.policy is not None
            budget = self.policy.choose(bs)
        entry = self.widths.at_least(self._columns(budget))
        return StepPlan(entry=entry, budget=budget, chain=budget == CHAIN)

    def counters(self, plan: StepPlan) -> tuple[torch.Tensor | None, torch.Tensor | None]:
        """(limits, counts) for the accept kernel; nothing is counted while a budget is set."""
        if self.budget != CHOOSE or self.counts is None:
            return None, None
        return self.counts.limits, self.counts.row(plan.budget)

    def after_step(self) -> None:
        if self.budget == CHOOSE and self.counts is not None and self.policy is not None:
            self.counts.step(self.policy.learn)

    def state(self) -> dict[str, Any]:
        """What /server_info shows of the tree."""
        costs = self.policy.costs if self.policy else {}
        return {
            "budget": self.budget,
            "block": self.settings.block,
            "topk": self.settings.topk,
            "spine_first": self.settings.spine_first,
            "widths": sorted(self.widths.by_width),
            "accept": _named(self.policy.accept) if self.policy else {},
            "chosen": _named(self.policy.last) if self.policy else {},
            "costs_ms": {str(bs): _named(row) for bs, row in costs.items()},
        }


def _named(figures: Mapping[int, float]) -> dict[str, float]:
    """JSON has only strings for keys."""
    return {str(key): value for key, value in figures.items()}
