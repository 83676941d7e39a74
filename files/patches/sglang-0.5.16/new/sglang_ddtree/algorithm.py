"""The algorithm object that SGLang's scheduler asks, and the check of the server's arguments."""

from __future__ import annotations

import json
import logging
from typing import TYPE_CHECKING, Any

from sglang.srt.speculative.spec_registry import CustomSpecAlgo

from sglang_ddtree.settings import Settings, read_settings

if TYPE_CHECKING:
    import torch
    from sglang.srt.managers.overlap_utils import FutureMap
    from sglang.srt.server_args import ServerArgs

logger = logging.getLogger(__name__)

NAME = "DDTREE"
# Backends whose TARGET_VERIFY honours the tree mask; all others drop it or cannot take it.
VERIFY_BACKENDS = ("triton",)


class DDTreeAlgo(CustomSpecAlgo):
    """DDTREE is of the DFLASH family: same drafter, same request checks, wider verify."""

    def is_dflash(self) -> bool:
        return True

    def is_dflash_family(self) -> bool:
        return True

    def supports_target_verify_for_draft(self) -> bool:
        return True

    def supports_ragged_verify(self) -> bool:
        return False

    def has_draft_kv(self) -> bool:
        return False

    # The scheduler calls the next three on every algorithm; CustomSpecAlgo of 0.5.16 lacks them.
    def carries_draft_hidden_states(self) -> bool:
        return False

    def need_topk(self) -> bool:
        return False

    def create_future_map(
        self,
        device: torch.device,
        req_to_token_pool: Any,
        needs_cpu_seq_lens: bool = True,
        needs_confidence_relay: bool = False,
    ) -> FutureMap:
        from sglang.srt.managers.overlap_utils import FutureMap

        return FutureMap(
            device, self, req_to_token_pool, needs_cpu_seq_lens, needs_confidence_relay
        )

    def handle_server_args(self, server_args: ServerArgs) -> None:
        resolve_server_args(server_args)


def draft_block_size(server_args: ServerArgs) -> int:
    """The block L of the drafter: --speculative-dflash-block-size, else the checkpoint's."""
    if server_args.speculative_dflash_block_size is not None:
        return int(server_args.speculative_dflash_block_size)
    from sglang.srt.speculative.dflash_utils import parse_dflash_draft_config
    from sglang.srt.utils.hf_transformers_utils import get_config

    config = get_config(
        server_args.speculative_draft_model_path,
        trust_remote_code=server_args.trust_remote_code,
        revision=server_args.speculative_draft_model_revision,
        model_override_args=json.loads(server_args.json_model_override_args),
    )
    block = parse_dflash_draft_config(draft_hf_config=config).resolve_block_size(default=None)
    if block is None:
        raise ValueError(
            "DDTREE found no block size in the drafter's config.json: set block_size there, or "
            "--speculative-dflash-block-size."
        )
    return int(block)


def resolve_server_args(server_args: ServerArgs) -> None:
    """DFLASH's checks with the block as its width, then the tree's own width N = B + 1.

    Leaves L in `speculative_dflash_block_size` and N in `speculative_num_draft_tokens`: those
    travel to the scheduler's process, this object does not.
    """
    from sglang.srt.arg_groups.speculative_hook import _handle_dflash

    if server_args.speculative_draft_model_path is None:
        raise ValueError("DDTREE needs --speculative-draft-model-path (a DFlash drafter).")
    width = server_args.speculative_num_draft_tokens
    if width is None:
        raise ValueError("DDTREE needs --speculative-num-draft-tokens = budget + 1, e.g. 17.")
    if server_args.enable_lora:
        raise ValueError("DDTREE does not support LoRA adapters.")
    block = draft_block_size(server_args)
    settings = read_settings(block, int(width))
    check_verify_backend(server_args)

    server_args.speculative_dflash_block_size = None
    server_args.speculative_num_draft_tokens = block
    _handle_dflash(server_args)
    server_args.speculative_dflash_block_size = block
    server_args.speculative_num_draft_tokens = settings.width
    logger.info(
        "DDTREE: block=%d budget=%d topk=%d spine_first=%s widths=%s adaptive=%s",
        settings.block,
        settings.budget,
        settings.topk,
        settings.spine_first,
        settings.widths,
        settings.adaptive,
    )


def verify_backend(server_args: ServerArgs) -> str | None:
    """Name of the attention backend that a target verify runs on; None while undecided."""
    from sglang.srt.arg_groups.overrides import attention_backends_of, resolved_view

    prefill, decode = attention_backends_of(resolved_view(server_args))
    return decode if server_args.speculative_attention_mode == "decode" else prefill


def check_verify_backend(server_args: ServerArgs) -> None:
    """Refuse a verify backend that would ignore the tree mask, by name and with the remedy."""
    backend = verify_backend(server_args)
    if backend is not None and backend not in VERIFY_BACKENDS:
        raise ValueError(
            f"DDTREE verifies a tree, and the attention backend {backend!r} does not honour a "
            "tree mask in SGLang 0.5.16. Use --attention-backend triton, or keep the prefill "
            "backend with --prefill-attention-backend X --decode-attention-backend triton "
            "--speculative-attention-mode decode."
        )


def server_settings(server_args: ServerArgs) -> Settings:
    """Settings in a scheduler process, from the resolved arguments."""
    return read_settings(
        int(server_args.speculative_dflash_block_size),
        int(server_args.speculative_num_draft_tokens),
    )
