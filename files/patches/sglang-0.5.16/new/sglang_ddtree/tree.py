# ruff: noqa: N803 - Triton writes compile-time arguments in capitals
"""The best-first tree of a step and the verify input made from it, one launch each.

Nothing here needs the host: what a step decides stays on the device, so overlap scheduling stays
on. Shapes use bs requests, block L, tree width N (N - 1 nodes and the root), verify width W <= N,
K candidates a position. Rank paths are packed 5 bits a depth into two words of 12 depths, hence
K <= 32 and L - 1 <= 24.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl


@triton.jit
def _build_tree_kernel(
    logp_ptr,
    ids_ptr,
    root_ptr,
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    root_stride,
    nodes,
    L: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    FRONTIER: tl.constexpr,
    SPINE_FIRST: tl.constexpr,
):
    """Best-first tree of one request; grid (bs,), one warp.

    The frontier holds at most one entry a popped node and one more: a popped entry's slot takes
    its next sibling, slot t takes the first child of node t. Ties go to the lower rank tuple, as
    in a heap of (-score, ranks). Nodes come in pop order, so any prefix of them is the tree of a
    smaller budget. Unused nodes get parent -1.
    """
    b = tl.program_id(0)
    slots = tl.arange(0, FRONTIER)
    logp = logp_ptr + b * (L - 1) * K
    ids = ids_ptr + b * (L - 1) * K
    neg = -float("inf")
    big = 0x7FFFFFFFFFFFFFFF

    first = tl.load(logp)
    score = tl.where(slots == 0, tl.where(first == first, first, neg), neg)
    above = tl.zeros((FRONTIER,), tl.float32)  # score of the parent
    place = tl.full((FRONTIER,), 1 << 16, tl.int32)  # depth << 16 | rank << 8 | parent
    high = tl.zeros((FRONTIER,), tl.int64)
    low = tl.zeros((FRONTIER,), tl.int64)

    tl.store(tokens_ptr + b * N, tl.load(root_ptr + b * root_stride).to(tl.int32))
    tl.store(parents_ptr + b * N, -1)
    tl.store(depths_ptr + b * N, 0)

    for t in range(1, nodes):
        best = tl.max(score, axis=0)
        tied = score == best
        code_high = tl.min(tl.where(tied, high, big), axis=0)
        tied = tied & (high == code_high)
        code_low = tl.min(tl.where(tied, low, big), axis=0)
        slot = tl.min(tl.where(tied & (low == code_low), slots, FRONTIER), axis=0)
        if SPINE_FIRST:
            forced = t < L
            slot = tl.where(forced, t - 1, slot)
            best = tl.where(forced, tl.max(tl.where(slots == slot, score, neg), axis=0), best)
            code_high = tl.where(forced, 0, code_high).to(tl.int64)
            code_low = tl.where(forced, 0, code_low).to(tl.int64)
        chosen = slots == slot
        spot = tl.sum(tl.where(chosen, place, 0), axis=0)
        up = tl.sum(tl.where(chosen, above, 0.0), axis=0)
        depth = spot >> 16
        rank = (spot >> 8) & 0xFF
        parent = spot & 0xFF
        ok = best > neg

        token = tl.load(ids + (depth - 1) * K + rank, mask=ok, other=0)
        tl.store(tokens_ptr + b * N + t, tl.where(ok, token, 0))
        tl.store(parents_ptr + b * N + t, tl.where(ok, parent, -1))
        tl.store(depths_ptr + b * N + t, tl.where(ok, depth, 0))

        sibling = tl.load(logp + (depth - 1) * K + rank + 1, mask=ok & (rank + 1 < K), other=neg)
        child = tl.load(logp + depth * K, mask=ok & (depth < L - 1), other=neg)
        sibling = tl.where(sibling == sibling, up + sibling, neg)
        child = tl.where(child == child, best + child, neg)
        step = depth.to(tl.int64)
        one = tl.full((), 1, tl.int64)
        add_high = tl.where(step <= 12, one << (5 * (12 - tl.minimum(step, 12))), 0)
        add_low = tl.where(step > 12, one << (5 * (24 - tl.maximum(step, 13))), 0)

        score = tl.where(chosen, sibling, score)
        place = tl.where(chosen, spot + 256, place)
        high = tl.where(chosen, code_high + add_high, high)
        low = tl.where(chosen, code_low + add_low, low)
        new = slots == t
        score = tl.where(new, child, score)
        above = tl.where(new, best, above)
        place = tl.where(new, ((depth + 1) << 16) | t, place)
        high = tl.where(new, code_high, high)
        low = tl.where(new, code_low, low)


@triton.jit(do_not_specialize=["bs", "budget"])
def _verify_input_kernel(
    tokens_ptr,
    parents_ptr,
    depths_ptr,
    spine_ptr,
    seq_lens_ptr,
    req_pool_ptr,
    req_to_token_ptr,
    mask_ptr,
    out_tokens_ptr,
    out_parents_ptr,
    out_positions_ptr,
    out_locs_ptr,
    bs,
    budget,
    pad_seq_len,
    req_stride,
    L: tl.constexpr,
    K: tl.constexpr,
    N: tl.constexpr,
    W: tl.constexpr,
    WIDE: tl.constexpr,
    ROWS: tl.constexpr,
    CHAIN: tl.constexpr,
):
    """Tokens, parents, positions, cache slots and mask rows of a verify of width W.

    grid (padded bs, row blocks). The mask is laid out as Triton's extend kernel reads it: request
    after request, W rows of (seq_len + W) columns; only the last W columns are written, since the
    kernel skips the mask of the prefix. Padding requests get the diagonal.
    """
    b = tl.program_id(0)
    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    cols = tl.arange(0, WIDE)
    real = b < bs
    inside = rows < W

    seq_len = tl.load(seq_lens_ptr + b, mask=real, other=0).to(tl.int64)
    seq_len = tl.where(real, seq_len, pad_seq_len)
    before = tl.zeros((), tl.int64)
    for other in range(0, b):
        length = tl.load(seq_lens_ptr + other, mask=other < bs, other=0).to(tl.int64)
        before += tl.where(other < bs, length, pad_seq_len) + W

    if CHAIN:
        parent = tl.where(rows < L, rows - 1, -1)
        depth = tl.where(rows < L, rows, 0)
        token = tl.load(
            spine_ptr + (b * (L - 1) + rows - 1) * K,
            mask=real & inside & (rows > 0) & (rows < L),
            other=0,
        )
        token = tl.where(rows == 0, tl.load(tokens_ptr + b * N, mask=real, other=0), token)
        used = rows < L
    else:
        used = inside & (rows <= budget) & (rows < N)
        parent = tl.load(parents_ptr + b * N + rows, mask=real & used, other=-1)
        used = used & ((parent >= 0) | (rows == 0))
        depth = tl.load(depths_ptr + b * N + rows, mask=real & used, other=0)
        token = tl.load(tokens_ptr + b * N + rows, mask=real & used, other=0)
    parent = tl.where(used, parent, -1)

    store = real & inside
    at = b * W + rows
    tl.store(out_tokens_ptr + at, token.to(tl.int64), mask=store)
    tl.store(out_parents_ptr + at, parent, mask=store)
    tl.store(out_positions_ptr + at, seq_len + depth, mask=store)
    pool = tl.load(req_pool_ptr + b, mask=real, other=0).to(tl.int64)
    loc = tl.load(req_to_token_ptr + pool * req_stride + seq_len + rows, mask=store, other=0)
    tl.store(out_locs_ptr + at, loc.to(tl.int64), mask=store)

    allowed = (cols[None, :] == rows[:, None]).to(tl.int32)
    ancestor = tl.where(real, parent, -1)
    for _ in range(1, L):
        allowed = allowed | (cols[None, :] == ancestor[:, None]).to(tl.int32)
        if CHAIN:
            ancestor = tl.maximum(ancestor - 1, -1)
        else:
            ancestor = tl.load(parents_ptr + b * N + ancestor, mask=ancestor >= 0, other=-1)
    row_start = before * W + rows.to(tl.int64) * (seq_len + W) + seq_len
    tl.store(
        mask_ptr + row_start[:, None] + cols[None, :],
        allowed.to(tl.uint8),
        mask=inside[:, None] & (cols < W)[None, :],
    )


def build_tree(
    logp: torch.Tensor,
    ids: torch.Tensor,
    roots: torch.Tensor,
    tokens: torch.Tensor,
    parents: torch.Tensor,
    depths: torch.Tensor,
    *,
    spine_first: bool = False,
) -> None:
    """The N - 1 heaviest prefixes of each request, in pop order.

    logp, ids: [bs, L-1, K] fp32 and int32, falling in K; roots: [bs] bonus tokens (any stride);
    tokens, parents, depths: [bs, N] int32 out, node 0 the root, parent -1 for it and unused nodes.
    """
    bs, steps, k = logp.shape
    width = tokens.shape[1]
    _build_tree_kernel[(bs,)](
        logp, ids, roots, tokens, parents, depths, roots.stride(0), width,
        L=steps + 1, K=k, N=width, FRONTIER=max(triton.next_power_of_2(width), 32),
        SPINE_FIRST=spine_first, num_warps=1,
    )  # fmt: skip


def verify_input(
    tree: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    spine: torch.Tensor,
    seq_lens: torch.Tensor,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    mask: torch.Tensor,
    out: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    *,
    width: int,
    budget: int,
    chain: bool,
    padded_bs: int,
    pad_seq_len: int,
) -> None:
    """Fill the verify input of `width` tokens a request from the tree, or from the chain.

    tree: tokens, parents, depths [cap, N]; spine: ids [cap, L-1, K]; mask: uint8, flat;
    out: tokens, parents, positions, cache slots, each [bs * width] (int64, int32, int64, int64).
    Nodes past `budget` are unused: they see themselves only and are nobody's child.
    """
    tokens, parents, depths = tree
    _, steps, k = spine.shape
    wide = max(triton.next_power_of_2(width), 16)
    rows = 16
    _verify_input_kernel[(padded_bs, triton.cdiv(width, rows))](
        tokens, parents, depths, spine, seq_lens, req_pool_indices, req_to_token, mask, *out,
        seq_lens.shape[0], budget, pad_seq_len, req_to_token.stride(0),
        L=steps + 1, K=k, N=tokens.shape[1], W=width, WIDE=wide, ROWS=rows, CHAIN=chain,
        num_warps=4,
    )  # fmt: skip
