"""The target's forward pass with a KV cache: prefill, single step, tree verification."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from .layers import KvCache, attend, mlp, rms_norm, rotate, rotation_table
from .weights import Array, Target

PREFILL_CHUNK = 256  # tokens; bounds the score matrix of a long prompt
Ints = np.ndarray[Any, np.dtype[np.int64]]
Mask = np.ndarray[Any, np.dtype[np.bool_]]


class Model:
    """A target with the KV cache of one sequence.

    `capacity` is the most rows the cache holds (context length + N). `feature_layers` are the
    0-based layers whose outputs a drafter wants; empty for plain decoding.
    """

    def __init__(self, target: Target, capacity: int, feature_layers: tuple[int, ...] = ()) -> None:
        shape = target.config
        self.target = target
        self.feature_layers = feature_layers
        self.cache = KvCache(shape.num_layers, shape.num_kv_heads, capacity, shape.head_dim)
        self._cis = rotation_table(target.inverse_frequencies, capacity)

    def reset(self) -> None:
        """Forget the sequence."""
        self.cache.length = 0

    def forward(self, tokens: Ints, depths: Ints, mask: Mask | None) -> tuple[Array, Array]:
        """Run n tokens behind the committed ones; nothing is committed yet.

        `depths` [n] are positions relative to the committed length; `mask` [n, n] says which of
        the n a token sees (itself included), None for n = 1. Returns the final hidden states
        [n, hidden], normed, and the features [n, len(feature_layers) * hidden].
        """
        shape, eps = self.target.config, self.target.config.rms_norm_eps
        heads, kv_heads = shape.num_heads, shape.num_kv_heads
        n = len(tokens)
        bias = None
        if mask is not None and not mask.all():
            bias = np.where(mask, np.float32(0), np.float32(-np.inf))
        cis = self._cis[self.cache.length + depths]
        x = self.target.embedding[tokens]
        features = []
        for index, layer in enumerate(self.target.layers):
            h = rms_norm(x, layer.attention_norm, eps)
            qkv = (h @ layer.qkv.T).reshape(n, heads + 2 * kv_heads, shape.head_dim)
            q, k, v = np.split(qkv, (heads, heads + kv_heads), axis=1)
            rotate(qkv[:, : heads + kv_heads], cis)
            x += attend(q, k, v, self.cache, index, bias) @ layer.out.T
            x += mlp(rms_norm(x, layer.mlp_norm, eps), layer)
            if index in self.feature_layers:
                features.append(x.copy())
        joined = np.concatenate(features, axis=1) if features else np.empty((n, 0), np.float32)
        return rms_norm(x, self.target.norm, eps), joined

    def prefill(self, tokens: Sequence[int]) -> tuple[Array, Array]:
        """Run and commit the next tokens of a prompt, best PREFILL_CHUNK at a time.

        Returns hidden states [n, hidden] and features as `forward`.
        """
        n = len(tokens)
        hidden, features = self.forward(np.array(tokens), np.arange(n), np.tri(n, dtype=np.bool_))
        self.cache.keep(list(range(n)))
        return hidden, features

    def logits(self, hidden: Array) -> Array:
        """Scores [..., vocab] of hidden states [..., hidden]."""
        return hidden @ self.target.head.T
