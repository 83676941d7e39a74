"""What target and drafter share: norm, rotary embedding, attention over a KV cache, MLP.

Activations are fp32 rows [n, hidden], n tokens at once: 1 in a decode step, N in a verify step.
"""

from typing import Any

import numpy as np

from .weights import Array, Layer

Cis = np.ndarray[Any, np.dtype[np.complex64]]


def rms_norm(x: Array, weight: Array, eps: float) -> Array:
    """x / rms(x) * weight over the last axis."""
    mean_square = np.vecdot(x, x) / np.float32(x.shape[-1])
    scaled: Array = x / np.sqrt(mean_square + np.float32(eps))[..., None]
    scaled *= weight
    return scaled


def rotation_table(inverse_frequencies: Array, positions: int) -> Cis:
    """exp(i * position * frequency), [positions, head_dim / 2]."""
    angles = np.arange(positions, dtype=np.float32)[:, None] * inverse_frequencies
    return np.asarray(np.exp(1j * angles.astype(np.float64)), np.complex64)


def rotate(x: Array, cis: Cis) -> None:
    """Turn x [n, heads, head_dim] (pairs side by side) by cis [n, head_dim / 2], in place."""
    pairs = x.view(np.complex64)
    pairs *= cis[:, None, :]


def mlp(x: Array, layer: Layer) -> Array:
    """SwiGLU: down(silu(gate(x)) * up(x))."""
    both = x @ layer.gate_up.T
    half = both.shape[1] // 2
    gate, up = both[:, :half], both[:, half:]
    hidden = np.exp(-gate)
    hidden += 1.0
    np.divide(gate, hidden, out=hidden)
    hidden *= up
    down: Array = hidden @ layer.down.T
    return down


class KvCache:
    """Keys and values of one sequence, [layers, kv_heads, capacity, head_dim] each.

    Rows below `length` are committed. A forward pass writes its n rows behind them; `keep` commits
    the accepted ones. Memory is touched only as far as it is written.
    """

    def __init__(self, layers: int, kv_heads: int, capacity: int, head_dim: int) -> None:
        shape = (layers, kv_heads, capacity, head_dim)
        self.keys: Array = np.empty(shape, np.float32)
        self.values: Array = np.empty(shape, np.float32)
        self.length = 0

    def keep(self, rows: list[int]) -> None:
        """Commit `rows` (ascending indices into the last pass) and forget its others."""
        start, count = self.length, len(rows)
        if rows != list(range(count)):  # the usual path of a chain moves nothing
            taken = [start + row for row in rows]
            self.keys[:, :, start : start + count] = self.keys[:, :, taken]
            self.values[:, :, start : start + count] = self.values[:, :, taken]
        self.length += count


def attend(q: Array, k: Array, v: Array, cache: KvCache, index: int, bias: Array | None) -> Array:
    """Attention of n new tokens over the committed rows and each other.

    q is [n, heads, head_dim], k and v are [n, kv_heads, head_dim]; they are written into the
    cache behind its committed rows. `bias` [n, n] is added to the scores among the new tokens
    (0 = sees, -inf = does not); None lets all see all. Returns [n, heads * head_dim].
    """
    n, heads, head_dim = q.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    start, end = cache.length, cache.length + n
    cache.keys[index, :, start:end] = k.swapaxes(0, 1)
    cache.values[index, :, start:end] = v.swapaxes(0, 1)

    queries: Array = q.reshape(n, kv_heads, group, head_dim).transpose(1, 2, 0, 3)
    queries = queries.reshape(kv_heads, group * n, head_dim) * np.float32(head_dim**-0.5)
    scores: Array = queries @ cache.keys[index, :, :end].swapaxes(1, 2)
    if bias is not None:
        scores.reshape(kv_heads, group, n, end)[..., start:] += bias
    scores -= scores.max(axis=-1, keepdims=True)
    np.exp(scores, out=scores)
    mixed: Array = scores @ cache.values[index, :, :end]
    mixed /= scores.sum(axis=-1, keepdims=True)
    by_token: Array = mixed.reshape(kv_heads, group, n, head_dim).transpose(2, 0, 1, 3)
    return by_token.reshape(n, heads * head_dim)
