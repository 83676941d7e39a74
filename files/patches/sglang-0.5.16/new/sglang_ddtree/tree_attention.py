# ruff: noqa: N803, N806 - Triton writes compile-time arguments in capitals
"""Attention of a verify: few queries, a long prefix, a mask over the new nodes.

SGLang's triton backend verifies with its prefill kernel: one program a head reads the whole prefix
in a row, and the card idles. Here the queries of all heads that share a KV head form one tile (KV
is read once for them), the prefix is split over programs, the new nodes with their mask are one
more split, and a second launch joins the splits by their log-sum-exp (flash decoding). The grid
depends on shapes alone, so CUDA graphs can hold it; how many splits work is read from the prefix
length on the device.

Shapes: bs requests, W nodes each, H query heads over KVH heads of KV, G = H / KVH.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
import triton
import triton.language as tl

NO_MASK, CAUSAL, TREE = 0, 1, 2
_LOG2E = 1.4426950408889634
MIN_CHUNK = 64  # a split reads at least so many cached tokens
MAX_SPLITS = 32
_SCRATCH_BYTES = 256 << 20
Tile = tuple[int, int, int, int]  # query rows, key columns, warps, stages
_TOO_LARGE: set[tuple[int, Tile]] = set()  # (query dims, tile) that this card has refused


@triton.jit
def _keys_values(
    k_at, v_at, inside, dims, rope, v_dims, D: tl.constexpr, DV: tl.constexpr, ROPE: tl.constexpr
):
    """One tile: keys [D, COLS], their rope part [ROPE, COLS] (the keys if there is none), values
    [COLS, DV]; zero where not `inside`."""
    k = tl.load(
        k_at[None, :] + dims[:, None], mask=inside[None, :] & (dims < D)[:, None], other=0.0
    )
    k_rope = k
    if ROPE:
        k_rope = tl.load(k_at[None, :] + rope[:, None], mask=inside[None, :], other=0.0)
    v = tl.load(
        v_at[:, None] + v_dims[None, :], mask=inside[:, None] & (v_dims < DV)[None, :], other=0.0
    )
    return k, k_rope, v


@triton.jit
def _tile(
    q,
    q_rope,
    k,
    k_rope,
    v,
    allowed,
    acc,
    top,
    total,
    score_scale,
    v_scale,
    CAP: tl.constexpr,
    ROPE: tl.constexpr,
):
    """Online softmax over one tile of keys: (acc, top, total), scores in powers of two."""
    score = tl.dot(q, k.to(q.dtype), input_precision="ieee")
    if ROPE:
        score += tl.dot(q_rope, k_rope.to(q.dtype), input_precision="ieee")
    score *= score_scale
    if CAP > 0:
        # score_scale holds log2(e); the cap is on the plain score
        plain = score / 1.4426950408889634 / CAP
        score = CAP * (2 * tl.sigmoid(2 * plain) - 1) * 1.4426950408889634
    score = tl.where(allowed, score, -float("inf"))
    new_top = tl.maximum(top, tl.max(score, 1))
    base = tl.where(new_top == -float("inf"), 0.0, new_top)
    shrink = tl.exp2(top - base)
    weight = tl.exp2(score - base[:, None])
    total = total * shrink + tl.sum(weight, 1)
    mixed = tl.dot(weight.to(q.dtype), v.to(q.dtype), input_precision="ieee")
    acc = acc * shrink[:, None] + mixed * v_scale
    return acc, new_top, total


@triton.jit
def _split_kernel(
    q_ptr,
    k_ptr,
    v_ptr,
    k_cache_ptr,
    v_cache_ptr,
    kv_indptr_ptr,
    kv_indices_ptr,
    mask_ptr,
    mask_indptr_ptr,
    part_ptr,
    lse_ptr,
    scale,
    k_scale,
    v_scale,
    q_token,
    q_head,
    k_token,
    k_head,
    v_token,
    v_head,
    k_slot,
    k_slot_head,
    v_slot,
    v_slot_head,
    W: tl.constexpr,
    H: tl.constexpr,
    KVH: tl.constexpr,
    D: tl.constexpr,
    ROPE: tl.constexpr,
    DV: tl.constexpr,
    WIDE_D: tl.constexpr,
    WIDE_DV: tl.constexpr,
    ROWS: tl.constexpr,
    COLS: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
    MASK: tl.constexpr,
    CAP: tl.constexpr,
):
    """One split of one tile of queries; grid (bs * KVH, query tiles, SPLITS + 1).

    The last split is the new nodes. Writes part [bs * W, H, SPLITS + 1, DV] fp32, normalised, and
    its log2-sum-exp [bs * W, H, SPLITS + 1]; splits that the prefix is too short for write nothing.
    """
    b = tl.program_id(0) // KVH
    kv_head = tl.program_id(0) % KVH
    split = tl.program_id(2)
    G: tl.constexpr = H // KVH
    first = tl.load(kv_indptr_ptr + b)
    length = (tl.load(kv_indptr_ptr + b + 1) - first).to(tl.int32)
    working = tl.maximum(tl.minimum(SPLITS, tl.cdiv(length, CHUNK)), 1)
    if (split < SPLITS) & (split >= working):
        return

    rows = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    node = rows // G
    head = kv_head * G + rows % G
    live = rows < W * G
    token = (b * W + node).to(tl.int64)
    dims = tl.arange(0, WIDE_D)
    v_dims = tl.arange(0, WIDE_DV)
    q_at = q_ptr + token * q_token + head * q_head
    q = tl.load(q_at[:, None] + dims[None, :], mask=live[:, None] & (dims < D)[None, :], other=0.0)
    q_rope = q
    rope = dims
    if ROPE:
        rope = D + tl.arange(0, ROPE)
        q_rope = tl.load(q_at[:, None] + rope[None, :], mask=live[:, None], other=0.0)

    acc = tl.zeros((ROWS, WIDE_DV), tl.float32)
    top = tl.full((ROWS,), -float("inf"), tl.float32)
    total = tl.zeros((ROWS,), tl.float32)
    cols = tl.arange(0, COLS)
    if split < SPLITS:
        chunk = tl.cdiv(tl.cdiv(length, working), COLS) * COLS
        end = tl.minimum((split + 1) * chunk, length)
        for start in range(split * chunk, end, COLS):
            inside = start + cols < end
            slot = tl.load(kv_indices_ptr + first + start + cols, mask=inside, other=0)
            k_at = k_cache_ptr + slot.to(tl.int64) * k_slot + kv_head * k_slot_head
            v_at = v_cache_ptr + slot.to(tl.int64) * v_slot + kv_head * v_slot_head
            k, k_rope, v = _keys_values(k_at, v_at, inside, dims, rope, v_dims, D, DV, ROPE)
            allowed = live[:, None] & inside[None, :]
            acc, top, total = _tile(
                q, q_rope, k, k_rope, v, allowed, acc, top, total,
                scale * k_scale, v_scale, CAP, ROPE,
            )  # fmt: skip
    else:
        row_start = tl.zeros((), tl.int64)
        if MASK == 2:
            row_start = tl.load(mask_indptr_ptr + b).to(tl.int64) + length
        for start in range(0, W, COLS):
            other = start + cols
            inside = other < W
            allowed = live[:, None] & inside[None, :]
            if MASK == 1:
                allowed = allowed & (other[None, :] <= node[:, None])
            if MASK == 2:
                at = row_start + node.to(tl.int64)[:, None] * (length + W) + other[None, :]
                seen = tl.load(mask_ptr + at, mask=allowed, other=0)
                allowed = allowed & (seen != 0)
            new = (b * W + other).to(tl.int64)
            k_at = k_ptr + new * k_token + kv_head * k_head
            v_at = v_ptr + new * v_token + kv_head * v_head
            k, k_rope, v = _keys_values(k_at, v_at, inside, dims, rope, v_dims, D, DV, ROPE)
            acc, top, total = _tile(
                q, q_rope, k, k_rope, v, allowed, acc, top, total, scale, 1.0, CAP, ROPE
            )

    at = (token * H + head) * (SPLITS + 1) + split
    some = total > 0
    tl.store(
        part_ptr + at[:, None] * DV + v_dims[None, :],
        acc / tl.where(some, total, 1.0)[:, None],
        mask=live[:, None] & (v_dims < DV)[None, :],
    )
    lse = tl.where(some, top + tl.log2(tl.where(some, total, 1.0)), -float("inf"))
    tl.store(lse_ptr + at, lse, mask=live)


@triton.jit
def _join_kernel(
    part_ptr,
    lse_ptr,
    out_ptr,
    kv_indptr_ptr,
    out_token,
    out_head,
    W: tl.constexpr,
    H: tl.constexpr,
    DV: tl.constexpr,
    WIDE_DV: tl.constexpr,
    SPLITS: tl.constexpr,
    CHUNK: tl.constexpr,
):
    """Join the splits of one query of one head; grid (bs * W, H)."""
    token = tl.program_id(0)
    head = tl.program_id(1)
    b = token // W
    length = (tl.load(kv_indptr_ptr + b + 1) - tl.load(kv_indptr_ptr + b)).to(tl.int32)
    working = tl.maximum(tl.minimum(SPLITS, tl.cdiv(length, CHUNK)), 1)
    v_dims = tl.arange(0, WIDE_DV)
    at = (token.to(tl.int64) * H + head) * (SPLITS + 1)
    top = tl.load(lse_ptr + at + SPLITS)
    acc = tl.load(part_ptr + (at + SPLITS) * DV + v_dims, mask=v_dims < DV, other=0.0)
    total = tl.full((), 1.0, tl.float32)
    for split in range(0, working):
        lse = tl.load(lse_ptr + at + split)
        part = tl.load(part_ptr + (at + split) * DV + v_dims, mask=v_dims < DV, other=0.0)
        new_top = tl.maximum(top, lse)
        base = tl.where(new_top == -float("inf"), 0.0, new_top)
        shrink, weight = tl.exp2(top - base), tl.exp2(lse - base)
        acc = acc * shrink + part * weight
        total = total * shrink + weight
        top = new_top
    out = acc / total
    where = out_ptr + token.to(tl.int64) * out_token + head * out_head + v_dims
    tl.store(where, out.to(out_ptr.dtype.element_ty), mask=v_dims < DV)


def verify_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    custom_mask: torch.Tensor | None,
    is_causal: bool,
    mask_indptr: torch.Tensor | None,
    width: int,
    k_scale: float,
    v_scale: float,
    sm_scale: float | None = None,
    *,
    logit_cap: float = 0.0,
    sliding_window_size: int = -1,
    sinks: torch.Tensor | None = None,
    xai_temperature_len: int = -1,
    sm_count: int = 132,
    **_: Any,
) -> bool:
    """Attention of a verify of `width` nodes a request; False, and nothing done, if it can't.

    The arguments are those of SGLang's extend kernel: q [bs * W, H, D], k, v [bs * W, KVH, D | DV]
    the nodes' own, out [bs * W, H, DV], k_cache, v_cache [slots, KVH, D | DV]; kv_indptr [bs + 1]
    and kv_indices the cached prefixes; custom_mask flat uint8, W rows of prefix + W columns a
    request, of which the prefix's are taken as all ones.
    """
    bs = qo_indptr.shape[0] - 1
    tokens, heads, q_dim = q.shape
    kv_heads, v_dim = k.shape[1], v.shape[-1]
    if (
        tokens != bs * width
        or k_cache.dim() != 3
        or sinks is not None
        or sliding_window_size > -1
        or xai_temperature_len > -1
        or q.dtype not in (torch.bfloat16, torch.float16, torch.float32)
    ):
        return False
    dim, rope = _split_dims(q_dim)
    queries = width * heads // kv_heads
    for tile in tile_shapes(q_dim, queries, q.element_size()):
        if (q_dim, tile) in _TOO_LARGE:
            continue
        rows, cols, warps, stages = tile
        tiles = triton.cdiv(queries, rows)
        splits = split_count(bs * kv_heads * tiles, tokens * heads * v_dim * 4, sm_count)
        shape = (tokens, heads, splits + 1)
        part = torch.empty((*shape, v_dim), dtype=torch.float32, device=q.device)
        lse = torch.empty(shape, dtype=torch.float32, device=q.device)
        try:
            _split_kernel[(bs * kv_heads, tiles, splits + 1)](
                q, k, v, k_cache, v_cache, kv_indptr, kv_indices,
                q if custom_mask is None else custom_mask,
                kv_indptr if mask_indptr is None else mask_indptr,
                part, lse, (sm_scale or q_dim**-0.5) * _LOG2E, k_scale, v_scale,
                q.stride(0), q.stride(1), k.stride(0), k.stride(1), v.stride(0), v.stride(1),
                k_cache.stride(0), k_cache.stride(1), v_cache.stride(0), v_cache.stride(1),
                W=width, H=heads, KVH=kv_heads, D=dim, ROPE=rope, DV=v_dim,
                WIDE_D=triton.next_power_of_2(dim), WIDE_DV=triton.next_power_of_2(v_dim),
                ROWS=rows, COLS=cols, SPLITS=splits, CHUNK=MIN_CHUNK,
                MASK=TREE if custom_mask is not None else CAUSAL if is_causal else NO_MASK,
                CAP=logit_cap, num_warps=warps, num_stages=stages,
            )  # fmt: skip
        except triton.runtime.errors.OutOfResources:  # before anything ran
            _TOO_LARGE.add((q_dim, tile))
            continue
        _join_kernel[(tokens, heads)](
            part, lse, out, kv_indptr, out.stride(0), out.stride(1),
            W=width, H=heads, DV=v_dim, WIDE_DV=triton.next_power_of_2(v_dim),
            SPLITS=splits, CHUNK=MIN_CHUNK, num_warps=4 if v_dim > 128 else 1,
        )  # fmt: skip
        return True
    return False


def _split_dims(q_dim: int) -> tuple[int, int]:
    """(dims, rope dims) of a query: MLA's 512 + 64 and its kin are two powers of two."""
    return {576: (512, 64), 288: (256, 32), 192: (128, 64)}.get(q_dim, (q_dim, 0))


def tile_shapes(q_dim: int, queries: int, element_bytes: int) -> list[Tile]:
    """Tiles to try for `queries` query rows a KV head, best first (measured on an H200).

    Cards differ in shared memory (227 KiB an SM on sm_90 and sm_10x, 99 on sm_120), so each list
    ends with a tile that is small everywhere.
    """
    if element_bytes > 2:
        return [(16, 32, 4, 1), (16, 16, 4, 1)]
    if q_dim > 256:
        large = [(32, 64, 8, 3), (32, 32, 4, 2), (16, 32, 4, 1)]
    elif q_dim > 64:
        large = [(64, 64, 4, 3), (64, 32, 4, 2), (16, 32, 4, 1)]
    else:
        large = [(64, 64, 4, 2), (16, 64, 4, 1)]
    fitting = [tile for tile in large if tile[0] < 2 * queries]
    return fitting or [(16, *large[0][1:]), large[-1]]


def split_count(programs: int, bytes_a_split: int, sm_count: int) -> int:
    """Splits of the prefix: enough for two programs an SM, within the scratch memory."""
    wanted = triton.cdiv(2 * sm_count, programs)
    return max(1, min(wanted, MAX_SPLITS, _SCRATCH_BYTES // max(bytes_a_split, 1)))


def use_tree_attention(backend: Any) -> bool:
    """Let a triton backend verify with this kernel; False if this backend is another kind.

    Through the place that SGLang has for a split verify (its own is for chains on one AMD card);
    cases that the kernel does not take fall back to SGLang's. Before CUDA graphs are captured.
    """
    from sglang.srt.layers.attention.triton_backend import TritonAttnBackend

    if type(backend) is not TritonAttnBackend or not hasattr(backend, "use_verify_splitkv"):
        return False
    sm_count = torch.cuda.get_device_properties(backend.device).multi_processor_count
    kernel = torch.compiler.disable(verify_attention)  # as SGLang does with its own
    backend.verify_splitkv_fwd = functools.partial(kernel, sm_count=sm_count)
    backend.use_verify_splitkv = True
    return True
