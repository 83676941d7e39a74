"""What one decode step is made of: its plan, and buffers that live as long as the server."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

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
    # Slicing costs the host microseconds a tensor, and a step needs a dozen: keep the views.
    _views: dict[tuple[int, ...], tuple[torch.Tensor, ...]] = field(default_factory=dict)

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
        )

    def verify(self, bs: int, width: int) -> tuple[torch.Tensor, ...]:
        """Tokens, parents, positions, cache slots of a verify, each [bs * width]."""
        if (bs, width) not in self._views:
            every = (self.tokens, self.parents, self.positions, self.locs)
            self._views[bs, width] = tuple(buffer[: bs * width] for buffer in every)
        return self._views[bs, width]

    def paths(self, bs: int) -> tuple[torch.Tensor, ...]:
        """Rows, sources, destinations of the accepted paths, each [bs, L]."""
        if (bs,) not in self._views:
            every = (self.rows, self.src, self.dst)
            shape = (bs, self.block)
            self._views[bs,] = tuple(b[: bs * self.block].view(shape) for b in every)
        return self._views[bs,]


@contextlib.contextmanager
def host_bound(batch: Any, draft_input: Any, width: int) -> Iterator[None]:
    """For one verify, the host's lengths as an upper bound: committed + width, else reserved."""
    saved = batch.seq_lens_cpu, batch.seq_lens_sum
    if batch.seq_lens_cpu is not None:
        batch.seq_lens_cpu = batch.seq_lens_cpu + width
        batch.seq_lens_sum = int(batch.seq_lens_cpu.sum())
    else:
        batch.seq_lens_cpu = draft_input.reserved_seq_lens_cpu
        batch.seq_lens_sum = int(draft_input.reserved_seq_lens_sum)
    try:
        yield
    finally:
        batch.seq_lens_cpu, batch.seq_lens_sum = saved
