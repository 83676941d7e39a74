"""Penalties, logit bias and custom processors on the logits of all nodes of a verify."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from sglang.srt.layers.sampler import apply_custom_logit_processor

Penalize = Callable[[torch.Tensor], None]


def adjust_logits(
    logits: torch.Tensor, info: Any, width: int, penalize: Penalize | None = None
) -> None:
    """Adjust logits [bs * width, V] in place by each request's own rules.

    `penalize` does likewise for penalties (penalties.py); None where no request has any.
    """
    if info is None:
        return
    if info.has_custom_logit_processor:
        apply_custom_logit_processor(logits, info, num_tokens_in_batch=width)
    if penalize is not None:
        penalize(logits)
    if info.logit_bias is not None:
        logits.view(len(info), width, -1).add_(info.logit_bias[:, None, :])
