"""Penalties, logit bias and custom processors on the logits of all nodes of a verify."""

from __future__ import annotations

from typing import Any

import torch
from sglang.srt.layers.sampler import apply_custom_logit_processor
from sglang.srt.sampling.penaltylib.repetition_penalty import apply_scaling_penalties


def adjust_logits(logits: torch.Tensor, info: Any, width: int) -> None:
    """Adjust logits [bs * width, V] in place by each request's own rules.

    As in EAGLE's verify, penalties count the tokens committed before the step. DFLASH's helper of
    0.5.16 looks for `acc_linear_penalties`, a field that no longer exists, and so drops penalties
    under overlap scheduling; hence not that one.
    """
    if info is None:
        return
    if info.has_custom_logit_processor:
        apply_custom_logit_processor(logits, info, num_tokens_in_batch=width)
    nodes = logits.view(len(info), width, -1)
    if info.acc_additive_penalties is not None:
        nodes.add_(info.acc_additive_penalties[:, None, :])
    if info.acc_scaling_penalties is not None:
        apply_scaling_penalties(nodes, info.acc_scaling_penalties[:, None, :])
    if info.logit_bias is not None:
        nodes.add_(info.logit_bias[:, None, :])
