"""What each choice of budget would have accepted, counted on the device, read without waiting."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch

READ_EVERY = 16


class AcceptCounts:
    """Counters [choices, 1 + choices] by the budget that ran: requests, and tokens by choice.

    The accept kernel adds to a row; every READ_EVERY steps the table is copied to the host, and
    read READ_EVERY steps later, when the copy is long done. The lag is fixed, so that all ranks of
    a tensor-parallel server learn the same at the same step.
    """

    def __init__(self, choices: Sequence[int], device: torch.device) -> None:
        self.choices = tuple(choices)
        shape = (len(self.choices), 1 + len(self.choices))
        self.table = torch.zeros(shape, dtype=torch.int32, device=device)
        self.limits = torch.tensor(self.choices, dtype=torch.int32, device=device)
        self.host = torch.zeros(shape, dtype=torch.int32, pin_memory=device.type == "cuda")
        self.seen = torch.zeros(shape, dtype=torch.int32)
        self.copied: torch.cuda.Event | None = None
        self.steps = 0

    def row(self, budget: int) -> torch.Tensor:
        """The row to which a verify of `budget` nodes adds."""
        return self.table[self.choices.index(budget)]

    def step(self, learn: Callable[[int, int, list[int]], None]) -> None:
        """After a step's kernels were launched; hands finished counts to `learn`."""
        self.steps += 1
        if self.steps % READ_EVERY:
            return
        if self.copied is not None:
            self.copied.synchronize()
            new = (self.host - self.seen).tolist()
            self.seen.copy_(self.host)
            for budget, (requests, *tokens) in zip(self.choices, new, strict=True):
                learn(budget, requests, tokens)
        self.host.copy_(self.table, non_blocking=True)
        self.copied = torch.cuda.Event()
        self.copied.record()
