"""The target's own draw at every node: argmax, or what the server's sampler would draw there."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import torch
from sglang.srt.distributed import get_tp_group

from sglang_ddtree.logits import Penalize, adjust_logits


def draw_at_nodes(
    logits_output: Any,
    info: Any,
    sampler: Any,
    positions: torch.Tensor,
    width: int,
    penalize: Penalize | None = None,
) -> torch.Tensor:
    """Token ids [bs * width] int64.

    At T > 0 each node gets an independent draw of its own distribution (temperature, top-k, top-p,
    min-p), so whatever path the draws take is a true sample. Ranks of a tensor-parallel server
    take rank 0's draws. With per-request seeds nodes of one depth share a draw's noise, which is
    harmless: only one of them is on a path.
    """
    adjust_logits(logits_output.next_token_logits, info, width, penalize)
    if info is None or info.is_all_greedy:
        return torch.argmax(logits_output.next_token_logits, dim=-1)

    def rows(values: torch.Tensor | None) -> torch.Tensor | None:
        return None if values is None else values.repeat_interleave(width, dim=0)

    node_info = SimpleNamespace(
        temperatures=rows(info.temperatures),
        top_ps=rows(info.top_ps),
        top_ks=rows(info.top_ks),
        min_ps=rows(info.min_ps),
        sampling_seed=rows(info.sampling_seed),
        need_top_p_sampling=info.need_top_p_sampling,
        need_top_k_sampling=info.need_top_k_sampling,
        need_min_p_sampling=info.need_min_p_sampling,
        is_all_greedy=False,
        has_custom_logit_processor=False,
        return_sampling_masks=None,
        grammars=None,
    )
    drawn = sampler(logits_output, node_info, False, [], [], positions).to(torch.int64)
    group = get_tp_group()
    if group.world_size > 1:
        group.broadcast(drawn, src=0)
    return drawn
