# ruff: noqa: N803 - Triton writes compile-time arguments in capitals
"""The triton backend's replay metadata of a verify in one launch instead of ten.

SGLang rebuilds index pointers, cache indices and mask pointers of every verify with ten small
launches, for the draft and again for the target. The host needs as long for them as a small target
needs for its forward, so they bound the step; one kernel writes the same values.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

_BLOCK = 512
_SPLITS = 8


@triton.jit
def _verify_metadata_kernel(
    seq_lens_ptr,
    req_pool_ptr,
    req_to_token_ptr,
    qo_indptr_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    mask_indptr_ptr,
    req_stride,
    W: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """grid (bs, splits): request b's pointers, and its share of the prefix's cache indices."""
    b = tl.program_id(0)
    split = tl.program_id(1)
    before = tl.zeros((), tl.int64)
    for other in range(0, b):
        before += tl.load(seq_lens_ptr + other).to(tl.int64)
    length = tl.load(seq_lens_ptr + b).to(tl.int64)
    if split == 0:
        tl.store(qo_indptr_ptr + b + 1, (b + 1).to(tl.int64) * W)
        tl.store(kv_indptr_ptr + b + 1, (before + length).to(tl.int32))
        tl.store(mask_indptr_ptr + b + 1, (before + length + (b + 1).to(tl.int64) * W) * W)
    row = tl.load(req_pool_ptr + b).to(tl.int64) * req_stride
    for start in range(split * BLOCK, length, tl.num_programs(1) * BLOCK):
        offs = start + tl.arange(0, BLOCK)
        inside = offs < length
        slot = tl.load(req_to_token_ptr + row + offs, mask=inside, other=0)
        tl.store(kv_indices_ptr + before + offs, slot.to(tl.int64), mask=inside)


def fill_verify_metadata(
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    width: int,
) -> None:
    """Fill qo_indptr, kv_indptr, kv_indices, mask_indptr (their element 0 is 0 and stays)."""
    _verify_metadata_kernel[(req_pool_indices.shape[0], _SPLITS)](
        seq_lens, req_pool_indices, req_to_token, *out, req_to_token.stride(0),
        W=width, BLOCK=_BLOCK, num_warps=4,
    )  # fmt: skip


def use_one_launch(backend: Any) -> bool:
    """Let a captured triton backend rebuild its verify metadata by the kernel; False if it can't.

    Call it after its graphs were captured. Windows, context parallelism and virtual cache ids
    need more than the kernel does.
    """
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    plain = (
        type(backend) is TritonAttnBackend
        and not backend.sliding_window_size
        and backend.dcp_size == 1
        and backend._translate_kv_loc is None
        and hasattr(backend, "cuda_graph_kv_indices")
    )
    if plain:
        backend._update_target_verify_buffers = functools.partial(_update_buffers, backend)
    return plain


def _update_buffers(
    backend: Any, bs: int, seq_lens: torch.Tensor, req_pool_indices: torch.Tensor, spec_info: Any
) -> None:
    """Stands in for TritonAttnBackend._update_target_verify_buffers at replay.

    The mask is not copied: DDTREE writes it where the graph reads it.
    """
    out = (
        backend.qo_indptr,
        backend.kv_indptr,
        backend.cuda_graph_kv_indices,
        backend.mask_indptr,
    )
    fill_verify_metadata(
        seq_lens[:bs], req_pool_indices[:bs], backend.req_to_token, out, backend.num_draft_tokens
    )
