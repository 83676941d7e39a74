# ruff: noqa: N803 - Triton writes compile-time arguments in capitals
"""The accepted path of a step: the walk down the tree, and the move of its KV."""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _accept_kernel(
    tokens_ptr,
    parents_ptr,
    locs_ptr,
    targets_ptr,
    seq_lens_ptr,
    commit_ptr,
    bonus_ptr,
    out_tokens_ptr,
    new_seq_lens_ptr,
    rows_ptr,
    src_ptr,
    dst_ptr,
    spine_ptr,
    limits_ptr,
    counts_ptr,
    L: tl.constexpr,
    K: tl.constexpr,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    CHOICES: tl.constexpr,
    CHOICES_WIDE: tl.constexpr,
):
    """Walk one request's tree by the target's tokens; grid (bs,), one warp.

    targets: the token that the target drew at each node. From the root: while the drawn token is
    a child, go there. The first draw that is no child is the bonus token. Writes L columns:
    emitted tokens, row of each accepted node in [bs * W], and the slots of the KV move (identity
    past the path). With CHOICES, counts the tokens that the budgets in `limits` would have emitted:
    the path's nodes up to the budget, or for budget 0 its start on the top-1 chain.
    """
    b = tl.program_id(0)
    nodes = tl.arange(0, WIDE)
    inside = nodes < W
    token = tl.load(tokens_ptr + b * W + nodes, mask=inside, other=-1)
    parent = tl.load(parents_ptr + b * W + nodes, mask=inside, other=-2)
    target = tl.load(targets_ptr + b * W + nodes, mask=inside, other=-1)
    loc = tl.load(locs_ptr + b * W + nodes, mask=inside, other=0)

    node = tl.zeros((), tl.int32)
    count = tl.full((), 1, tl.int32)
    live = tl.full((), 1, tl.int32)
    root_loc = tl.sum(tl.where(nodes == 0, loc, 0), axis=0)
    tl.store(rows_ptr + b * L, (b * W).to(tl.int64))
    tl.store(src_ptr + b * L, root_loc)
    tl.store(dst_ptr + b * L, root_loc)
    choice = tl.arange(0, CHOICES_WIDE)
    limit = tl.load(limits_ptr + choice, mask=choice < CHOICES, other=0)
    would = tl.full((CHOICES_WIDE,), 1, tl.int32)
    on_spine = tl.full((), 1, tl.int32)
    for step in range(1, L):
        drawn = tl.sum(tl.where(nodes == node, target, 0), axis=0)
        matches = inside & (parent == node) & (token == drawn)
        child = tl.min(tl.where(matches, nodes, WIDE), axis=0)
        going = (live == 1) & (child < WIDE)
        live = going.to(tl.int32)
        node = tl.where(going, child, node)
        count += live
        if CHOICES > 0:
            top = tl.load(spine_ptr + (b * (L - 1) + step - 1) * K).to(tl.int64)
            on_spine = (going & (on_spine == 1) & (drawn == top)).to(tl.int32)
            kept = going & (child <= limit)
            would += tl.where(limit == 0, on_spine, kept.to(tl.int32))
        tl.store(out_tokens_ptr + b * L + step - 1, drawn)
        here = tl.where(going, child, 0)
        src = tl.sum(tl.where(nodes == here, loc, 0), axis=0)
        dst = tl.sum(tl.where(nodes == tl.where(going, step, 0), loc, 0), axis=0)
        tl.store(rows_ptr + b * L + step, (b * W + here).to(tl.int64))
        tl.store(src_ptr + b * L + step, src)
        tl.store(dst_ptr + b * L + step, dst)
    bonus = tl.sum(tl.where(nodes == node, target, 0), axis=0)
    tl.store(out_tokens_ptr + b * L + L - 1, tl.where(count == L, bonus, 0))
    tl.store(commit_ptr + b, count)
    tl.store(bonus_ptr + b, bonus)
    tl.store(new_seq_lens_ptr + b, tl.load(seq_lens_ptr + b) + count)
    if CHOICES > 0:
        tl.atomic_add(counts_ptr, 1)
        tl.atomic_add(counts_ptr + 1 + choice, would, mask=choice < CHOICES)


@triton.jit
def _move_rows_kernel(
    buffer_ptrs,
    row_bytes_ptr,
    src_ptr,
    dst_ptr,
    L: tl.constexpr,
    ROWS: tl.constexpr,
    TILE: tl.constexpr,
):
    """Copy rows src -> dst within each buffer; grid (buffers, byte tiles, bs).

    A program loads all rows of its request before it stores any: a slot may be both a source and
    a destination.
    """
    buffer = tl.program_id(0)
    tile = tl.program_id(1)
    b = tl.program_id(2)
    row_bytes = tl.load(row_bytes_ptr + buffer)
    base = tl.load(buffer_ptrs + buffer).to(tl.pointer_type(tl.int32))
    words = tile * TILE + tl.arange(0, TILE)
    row_words = row_bytes // 4
    steps = tl.arange(0, ROWS)
    src = tl.load(src_ptr + b * L + steps, mask=steps < L, other=0)
    dst = tl.load(dst_ptr + b * L + steps, mask=steps < L, other=0)
    moves = (src != dst) & (steps < L)
    mask = moves[:, None] & (words < row_words)[None, :]
    values = tl.load(base + src[:, None] * row_words + words[None, :], mask=mask, other=0)
    tl.debug_barrier()
    tl.store(base + dst[:, None] * row_words + words[None, :], values, mask=mask)


def accept(
    tokens: torch.Tensor,
    parents: torch.Tensor,
    locs: torch.Tensor,
    targets: torch.Tensor,
    seq_lens: torch.Tensor,
    out: tuple[torch.Tensor, ...],
    *,
    width: int,
    spine: torch.Tensor,
    limits: torch.Tensor | None = None,
    counts: torch.Tensor | None = None,
) -> None:
    """Accept walk of all requests. `targets`: [bs * width] int64, the target's draw at each node.

    out: commit_lens [bs] int32, bonus [bs] int64, out_tokens [bs, L] int64, new_seq_lens [bs]
    int64, rows, src, dst [bs, L] int64.
    spine: the draft's ids [cap, L-1, K]. limits [C] int32 and counts [1 + C] int32: budgets, and
    where to add the number of requests and the tokens that each budget would have emitted.
    """
    block = out[2].shape[1]
    choices = 0 if limits is None else limits.shape[0]
    _accept_kernel[(seq_lens.shape[0],)](
        tokens, parents, locs, targets, seq_lens, *out, spine,
        out[0] if limits is None else limits, out[0] if counts is None else counts,
        L=block, K=spine.shape[2], W=width, WIDE=max(triton.next_power_of_2(width), 32),
        CHOICES=choices, CHOICES_WIDE=max(triton.next_power_of_2(choices), 2), num_warps=1,
    )  # fmt: skip


def move_rows(
    buffer_ptrs: torch.Tensor,
    row_bytes: torch.Tensor,
    max_row_bytes: int,
    src: torch.Tensor,
    dst: torch.Tensor,
) -> None:
    """Within every buffer copy row src[b, j] to dst[b, j]; [bs, L] int64, rows of 4 B words."""
    bs, block = src.shape
    tile = 128
    grid = (buffer_ptrs.numel(), triton.cdiv(max_row_bytes // 4, tile), bs)
    _move_rows_kernel[grid](
        buffer_ptrs, row_bytes, src, dst,
        L=block, ROWS=triton.next_power_of_2(block), TILE=tile, num_warps=4,
    )  # fmt: skip
