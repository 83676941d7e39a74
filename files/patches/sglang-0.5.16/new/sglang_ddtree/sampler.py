"""From the drafter's hidden states to a tree, inside the draft's CUDA graph."""

from __future__ import annotations

from typing import Any

import torch

from sglang_ddtree import topk as topk_kernels
from sglang_ddtree import tree
from sglang_ddtree.settings import Settings


class TreeSampler:
    """Head matmul, top-K log-probabilities and tree; all outputs at fixed addresses.

    Called at the tail of the draft forward with hidden states [bs * L, H]. Writes, for rows
    [:bs]: `logp`, `ids` [cap, L-1, K]; `tokens`, `parents`, `depths` [cap, N] in pop order, node
    0 the bonus token. Under tensor parallelism each rank scores its vocabulary shard; the shares
    (K packed pairs and a log-sum-exp a position) are gathered, and every rank builds the same
    tree from global ids.
    """

    def __init__(
        self,
        *,
        weight: torch.Tensor,
        vocab: int,
        first_id: int,
        block: int,
        width: int,
        topk: int,
        capacity: int,
        spine_first: bool,
        tp_group: Any = None,
    ) -> None:
        self.weight = weight[:vocab]
        self.first_id = first_id
        self.block = block
        self.spine_first = spine_first
        self.tp_group = tp_group
        self.ranks = 1 if tp_group is None else int(tp_group.world_size)
        device = weight.device
        rows = capacity * (block - 1)
        self.workspace = topk_kernels.topk_workspace(rows, vocab, topk, device)
        self.logp = torch.zeros((capacity, block - 1, topk), dtype=torch.float32, device=device)
        self.ids = torch.zeros((capacity, block - 1, topk), dtype=torch.int32, device=device)
        tree = (capacity, width)
        self.tokens = torch.zeros(tree, dtype=torch.int32, device=device)
        self.parents = torch.full(tree, -1, dtype=torch.int32, device=device)
        self.depths = torch.zeros(tree, dtype=torch.int32, device=device)
        if self.ranks > 1:
            share = (rows, topk)
            self.packed = torch.empty(share, dtype=torch.int64, device=device)
            self.lse = torch.empty((rows,), dtype=torch.float32, device=device)
            self.gathered = torch.empty(
                (self.ranks * rows * topk,), dtype=torch.int64, device=device
            )
            self.gathered_lse = torch.empty(
                (self.ranks * rows,), dtype=torch.float32, device=device
            )
            self.ones = torch.ones((self.ranks * rows,), dtype=torch.float32, device=device)

    @classmethod
    def of_target(
        cls, model: Any, settings: Settings, *, capacity: int, tp_group: Any
    ) -> TreeSampler:
        """The sampler over a target's lm_head; RuntimeError if the head is not one it can use."""
        head = getattr(model, "lm_head", None)
        weight = getattr(head, "weight", None)
        if weight is None or not torch.is_floating_point(weight):
            raise RuntimeError("DDTREE needs the target's lm_head as a floating-point weight.")
        shard = getattr(head, "shard_indices", None)
        if shard is None and tp_group.world_size > 1:
            raise RuntimeError("DDTREE at TP > 1 needs a vocabulary-parallel lm_head.")
        if shard is not None and int(shard.num_added_elements):
            raise RuntimeError("DDTREE does not support added vocabulary.")
        return cls(
            weight=weight,
            vocab=int(weight.shape[0] if shard is None else shard.num_org_elements),
            first_id=0 if shard is None else int(shard.org_vocab_start_index),
            block=settings.block,
            width=settings.width,
            topk=settings.topk,
            capacity=capacity,
            spine_first=settings.spine_first,
            tp_group=tp_group if tp_group.world_size > 1 else None,
        )

    def __call__(self, hidden_states: torch.Tensor, input_ids: torch.Tensor) -> None:
        bs = hidden_states.shape[0] // self.block
        hidden = hidden_states.view(bs, self.block, -1)[:, 1:, :]
        hidden = hidden.reshape(-1, hidden.shape[-1]).to(self.weight.dtype)
        logits = self._logits(hidden)
        logp, ids = self.logp[:bs], self.ids[:bs]
        rows = bs * (self.block - 1)
        flat_logp, flat_ids = logp.view(rows, -1), ids.view(rows, -1)
        if self.ranks == 1:
            topk_kernels.topk_logprobs(logits, self.workspace, flat_logp, flat_ids)
        else:
            self._gather_topk(logits, flat_logp, flat_ids)
        tree.build_tree(
            logp,
            ids,
            input_ids.view(bs, self.block)[:, 0],
            self.tokens[:bs],
            self.parents[:bs],
            self.depths[:bs],
            spine_first=self.spine_first,
        )

    def _logits(self, hidden: torch.Tensor) -> torch.Tensor:
        # A score is a sum of log-probabilities: rounding logits to bf16 (steps of 1/8 at 16..32)
        # would reorder the tree, so accumulate and keep fp32.
        if hidden.dtype == torch.float32:
            return hidden @ self.weight.T
        return torch.mm(hidden, self.weight.T, out_dtype=torch.float32)

    def _gather_topk(self, logits: torch.Tensor, logp: torch.Tensor, ids: torch.Tensor) -> None:
        rows, topk = logp.shape
        packed, lse = self.packed[:rows], self.lse[:rows]
        topk_kernels.rank_topk(logits, self.workspace, self.first_id, packed, lse)
        gathered = self.gathered[: self.ranks * rows * topk]
        gathered_lse = self.gathered_lse[: self.ranks * rows]
        self.tp_group.all_gather_into_tensor(gathered, packed.view(-1))
        self.tp_group.all_gather_into_tensor(gathered_lse, lse)
        shape = (self.ranks, rows)
        topk_kernels.merge_ranks(
            gathered.view(*shape, topk),
            gathered_lse.view(shape),
            self.ones[: self.ranks * rows].view(shape),
            logp,
            ids,
        )
