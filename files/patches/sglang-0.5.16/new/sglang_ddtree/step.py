"""What one decode step is made of: its plan, and buffers that live as long as the server."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from sglang_ddtree.widths import VerifyWidth


@dataclass(frozen=True)
class StepPlan:
    """How one step verifies: on which captured width, how many nodes of it, tree or chain."""

    entry: VerifyWidth
    budget: int
    chain: bool

    @property
    def width(self) -> int:
        return self.entry.width


@dataclass(frozen=True)
class StepBuffers:
    """Scratch of a step; steps run one after another on one stream, so one set is enough."""

    block: int
    tokens: torch.Tensor
    parents: torch.Tensor
    positions: torch.Tensor
    locs: torch.Tensor
    rows: torch.Tensor
    src: torch.Tensor
    dst: torch.Tensor
    path: torch.Tensor

    @classmethod
    def allocate(cls, capacity: int, block: int, width: int, device: torch.device) -> StepBuffers:
        """Buffers for `capacity` requests, sized by the larger of block and width."""

        def flat(columns: int, dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros((capacity * columns,), dtype=dtype, device=device)

        wide = max(block, width)
        return cls(
            block=block,
            tokens=flat(wide, torch.int64),
            parents=flat(wide, torch.int32),
            positions=flat(wide, torch.int64),
            locs=flat(wide, torch.int64),
            rows=flat(block, torch.int64),
            src=flat(block, torch.int64),
            dst=flat(block, torch.int64),
            path=flat(block, torch.int32),
        )

    def verify(self, bs: int, width: int) -> tuple[torch.Tensor, ...]:
        """Tokens, parents, positions, cache slots of a verify, each [bs * width]."""
        count = bs * width
        return (
            self.tokens[:count],
            self.parents[:count],
            self.positions[:count],
            self.locs[:count],
        )

    def paths(self, bs: int) -> tuple[torch.Tensor, ...]:
        """Rows, sources, destinations, nodes of the accepted paths, each [bs, L]."""
        count = bs * self.block
        shape = (bs, self.block)
        return (
            self.rows[:count].view(shape),
            self.src[:count].view(shape),
            self.dst[:count].view(shape),
            self.path[:count].view(shape),
        )
