"""The DFlash drafter: proposes a block of tokens in one non-causal pass.

DFlash (arXiv 2602.06036): position 0 of a block holds the anchor (the last token, not yet run
through the target), positions 1..L-1 a mask token; all attend to each other and to keys and values
made from the target's features of the committed tokens. Those are kept from step to step.
"""

import numpy as np

from .layers import KvCache, attend, mlp, rms_norm, rotate, rotation_table
from .weights import Array, DrafterWeights, Target


class Drafter:
    """A drafter with the context of one sequence; `capacity` as the target's."""

    def __init__(self, weights: DrafterWeights, target: Target, capacity: int) -> None:
        shape = weights.config
        self.weights = weights
        self.target = target
        self.block_size = shape.block_size
        rows = capacity + shape.block_size
        self.cache = KvCache(shape.num_layers, shape.num_kv_heads, rows, shape.head_dim)
        pairs = np.arange(0, shape.head_dim, 2) / shape.head_dim
        self._cis = rotation_table((shape.rope_theta**-pairs).astype(np.float32), rows)
        self._masks = np.full(shape.block_size, shape.mask_token_id)

    def reset(self) -> None:
        """Forget the sequence."""
        self.cache.length = 0

    def extend(self, features: Array) -> None:
        """Append the target's features [n, F * hidden] of n newly committed tokens."""
        shape = self.weights.config
        n, kv_heads, head_dim = len(features), shape.num_kv_heads, shape.head_dim
        start, end = self.cache.length, self.cache.length + n
        context = rms_norm(
            features @ self.weights.fc.T, self.weights.hidden_norm, shape.rms_norm_eps
        )
        query_rows = shape.num_heads * head_dim
        for index, layer in enumerate(self.weights.layers):
            kv = (context @ layer.qkv[query_rows:].T).reshape(n, 2 * kv_heads, head_dim)
            k = rms_norm(kv[:, :kv_heads], layer.k_norm, shape.rms_norm_eps)
            rotate(k, self._cis[start:end])
            self.cache.keys[index, :, start:end] = k.swapaxes(0, 1)
            self.cache.values[index, :, start:end] = kv[:, kv_heads:].swapaxes(0, 1)
        self.cache.length = end

    def propose(self, anchor: int) -> Array:
        """Logits [L - 1, vocab] for the tokens behind `anchor`, each for itself (marginals)."""
        shape, eps = self.weights.config, self.weights.config.rms_norm_eps
        heads, kv_heads, head_dim = shape.num_heads, shape.num_kv_heads, shape.head_dim
        n = self.block_size
        tokens = self._masks.copy()
        tokens[0] = anchor
        cis = self._cis[self.cache.length : self.cache.length + n]
        x = self.target.embedding[tokens]
        for index, layer in enumerate(self.weights.layers):
            h = rms_norm(x, layer.attention_norm, eps)
            qkv = (h @ layer.qkv.T).reshape(n, heads + 2 * kv_heads, head_dim)
            q = rms_norm(qkv[:, :heads], layer.q_norm, eps)
            k = rms_norm(qkv[:, heads : heads + kv_heads], layer.k_norm, eps)
            rotate(q, cis)
            rotate(k, cis)
            x += attend(q, k, qkv[:, heads + kv_heads :], self.cache, index, None) @ layer.out.T
            x += mlp(rms_norm(x, layer.mlp_norm, eps), layer)
        return rms_norm(x[1:], self.weights.norm, eps) @ self.target.head.T
