# ruff: noqa: N803 - Triton writes compile-time arguments in capitals
"""Top-K log-probabilities over the full vocabulary, in two launches.

Stage 1 takes the top-K and the sum of exponentials of every 512-column chunk of a row with one
warp each; stage 2 merges the sorted lists. Ties go to the lower id, as argmax has them, so the
first candidate is the token that DFLASH's greedy head would take from the same logits.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl

MAX_TOPK = 32
TOPK_CHUNK = 512


@triton.jit
def _pack(value, index):
    """One int64 whose order is (value rising, index falling), so that max() breaks ties low."""
    bits = value.to(tl.int32, bitcast=True)
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    return (ordered.to(tl.int64) << 32) | (0x7FFFFFFF - index).to(tl.int64)


@triton.jit
def _unpack_value(packed):
    ordered = (packed >> 32).to(tl.int32)
    return (ordered ^ ((ordered >> 31) & 0x7FFFFFFF)).to(tl.float32, bitcast=True)


@triton.jit
def _unpack_index(packed):
    return 0x7FFFFFFF - (packed & 0x7FFFFFFF).to(tl.int32)


@triton.jit
def _topk_chunks_kernel(
    logits_ptr,
    packed_ptr,
    max_ptr,
    sum_ptr,
    vocab,
    first_id,
    row_stride,
    K: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Top-K, maximum and sum of exponentials of one chunk of one row; grid (rows, chunks)."""
    row = tl.program_id(0)
    chunk = tl.program_id(1)
    chunks = tl.num_programs(1)
    offs = chunk * CHUNK + tl.arange(0, CHUNK)
    valid = offs < vocab
    x = tl.load(logits_ptr + row.to(tl.int64) * row_stride + offs, mask=valid, other=-float("inf"))
    x = x.to(tl.float32)
    x = tl.where(x == x, x, -float("inf"))
    top = tl.max(x, axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    out = row * chunks + chunk
    tl.store(max_ptr + out, top)
    tl.store(sum_ptr + out, tl.sum(tl.exp(x - shift), axis=0))
    packed = _pack(x, offs + first_id)
    lowest = tl.min(packed, axis=0)
    for k in tl.static_range(K):
        best = tl.max(packed, axis=0)
        tl.store(packed_ptr + out.to(tl.int64) * K + k, best)
        packed = tl.where(packed == best, lowest, packed)


@triton.jit
def _topk_merge_kernel(
    packed_ptr,
    max_ptr,
    sum_ptr,
    out_packed_ptr,
    out_logp_ptr,
    out_ids_ptr,
    out_lse_ptr,
    lists,
    list_stride,
    row_stride,
    part_stride,
    part_row_stride,
    K: tl.constexpr,
    LISTS: tl.constexpr,
    WRITE_PACKED: tl.constexpr,
):
    """Merge `lists` sorted top-K lists of a row; grid (rows,).

    WRITE_PACKED: keep the packed pairs and the log-sum-exp (a rank's share under tensor
    parallelism); else write log-probabilities and ids.
    """
    row = tl.program_id(0)
    heads = tl.arange(0, LISTS)
    live = heads < lists
    part = row * part_row_stride + heads * part_stride
    tops = tl.load(max_ptr + part, mask=live, other=-float("inf"))
    sums = tl.load(sum_ptr + part, mask=live, other=0.0)
    top = tl.max(tops, axis=0)
    shift = tl.where(top == -float("inf"), 0.0, top)
    scaled = tl.where(tops == -float("inf"), 0.0, sums * tl.exp(tops - shift))
    lse = shift + tl.log(tl.sum(scaled, axis=0))
    # The lists are sorted: only their heads compete, and a list that wins moves one on.
    base = packed_ptr + row.to(tl.int64) * row_stride + heads * list_stride
    low = tl.full((LISTS,), -0x7FFFFFFFFFFFFFFF, tl.int64)
    taken = tl.zeros((LISTS,), tl.int32)
    current = tl.load(base, mask=live, other=-0x7FFFFFFFFFFFFFFF)
    for k in range(K):
        best = tl.max(current, axis=0)
        if WRITE_PACKED:
            tl.store(out_packed_ptr + row * K + k, best)
        else:
            tl.store(out_logp_ptr + row * K + k, _unpack_value(best) - lse)
            tl.store(out_ids_ptr + row * K + k, _unpack_index(best))
        won = live & (current == best)
        taken = tl.where(won, taken + 1, taken)
        more = won & (taken < K)
        following = tl.load(base + taken, mask=more, other=-0x7FFFFFFFFFFFFFFF)
        current = tl.where(won, tl.where(more, following, low), current)
    if WRITE_PACKED:
        tl.store(out_lse_ptr + row, lse)


def topk_workspace(rows: int, vocab: int, k: int, device: torch.device) -> tuple[torch.Tensor, ...]:
    """Fixed buffers of `topk_logprobs` for at most `rows` rows: packed pairs, maxima, sums."""
    chunks = triton.cdiv(vocab, TOPK_CHUNK)
    return (
        torch.empty((rows, chunks, k), dtype=torch.int64, device=device),
        torch.empty((rows, chunks), dtype=torch.float32, device=device),
        torch.empty((rows, chunks), dtype=torch.float32, device=device),
    )


def local_topk(
    logits: torch.Tensor, workspace: tuple[torch.Tensor, ...], k: int, first_id: int = 0
) -> int:
    """Stage 1: top-K of every 512-column chunk of logits [rows, V]; returns the chunk count."""
    rows, vocab = logits.shape
    packed, tops, sums = workspace
    chunks = triton.cdiv(vocab, TOPK_CHUNK)
    _topk_chunks_kernel[(rows, chunks)](
        logits, packed, tops, sums, vocab, first_id, logits.stride(0),
        K=k, CHUNK=TOPK_CHUNK, num_warps=1,
    )  # fmt: skip
    return chunks


def topk_logprobs(
    logits: torch.Tensor,
    workspace: tuple[torch.Tensor, ...],
    logp: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    """Top-K log-probabilities over the full row and their ids, ties to the lower id.

    logits: [rows, V] float; logp: [rows, K] fp32 out; ids: [rows, K] int32 out.
    """
    rows, k = logp.shape
    packed, tops, sums = workspace
    chunks = local_topk(logits, workspace, k)
    _topk_merge_kernel[(rows,)](
        packed, tops, sums, packed, logp, ids, logp, chunks, k, chunks * k, 1, chunks,
        K=k, LISTS=triton.next_power_of_2(chunks), WRITE_PACKED=False, num_warps=1,
    )  # fmt: skip


def rank_topk(
    logits: torch.Tensor,
    workspace: tuple[torch.Tensor, ...],
    first_id: int,
    packed_out: torch.Tensor,
    lse_out: torch.Tensor,
) -> None:
    """A tensor-parallel rank's share: packed top-K [rows, K] int64 with global ids, lse [rows]."""
    rows, k = packed_out.shape
    packed, tops, sums = workspace
    chunks = local_topk(logits, workspace, k, first_id)
    _topk_merge_kernel[(rows,)](
        packed, tops, sums, packed_out, lse_out, packed_out, lse_out, chunks, k, chunks * k, 1,
        chunks, K=k, LISTS=triton.next_power_of_2(chunks), WRITE_PACKED=True, num_warps=1,
    )  # fmt: skip


def merge_ranks(
    packed: torch.Tensor,
    lse: torch.Tensor,
    ones: torch.Tensor,
    logp: torch.Tensor,
    ids: torch.Tensor,
) -> None:
    """Merge gathered shares: packed [ranks, rows, K], lse and ones [ranks, rows] -> logp, ids."""
    ranks, rows, k = packed.shape
    _topk_merge_kernel[(rows,)](
        packed, lse, ones, packed, logp, ids, lse, ranks, rows * k, k, rows, 1,
        K=k, LISTS=triton.next_power_of_2(ranks), WRITE_PACKED=False, num_warps=1,
    )  # fmt: skip
