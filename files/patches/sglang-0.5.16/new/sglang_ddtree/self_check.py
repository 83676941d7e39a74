"""At start: does the verify kernel honour a tree mask on this GPU?"""

from __future__ import annotations

from typing import Any

import torch

# bf16 outputs of a 6-token softmax agree to about 1e-2; a dropped mask differs by about 1.
TOLERANCE = 0.05


def check_tree_mask(backend: Any) -> None:
    """Run the backend's verify kernel on a four-node tree and compare with plain attention.

    The tree has two siblings and a child of the first, so a causal kernel shows each of them a
    node it must not see. Raises RuntimeError if the outputs differ.
    """
    device = backend.device
    pool = backend.token_to_kv_pool
    qk_dim = pool.get_key_buffer(pool.start_layer).shape[-1]
    v_dim = pool.get_value_buffer(pool.start_layer).shape[-1]
    prefix, nodes, heads = 5, 4, 2
    parents = [-1, 0, 0, 1]
    generator = torch.Generator(device="cpu").manual_seed(0)

    def random(*shape: int) -> torch.Tensor:
        values = torch.randn(shape, generator=generator)
        return values.to(device=device, dtype=torch.bfloat16)

    q, k, v = random(nodes, heads, qk_dim), random(nodes, 1, qk_dim), random(nodes, 1, v_dim)
    k_cache, v_cache = random(prefix, 1, qk_dim), random(prefix, 1, v_dim)
    allowed = torch.zeros((nodes, prefix + nodes), dtype=torch.uint8)
    for node in range(nodes):
        allowed[node, :prefix] = 1
        seen = node
        while seen >= 0:
            allowed[node, prefix + seen] = 1
            seen = parents[seen]
    allowed = allowed.to(device)

    def ints(*values: int) -> torch.Tensor:
        return torch.tensor(values, dtype=torch.int64, device=device)

    out = torch.empty((nodes, heads, v_dim), dtype=q.dtype, device=device)
    words = (
        q, k, v, out, k_cache, v_cache,
        ints(0, nodes), ints(0, prefix).to(torch.int32), ints(*range(prefix)),
        allowed.flatten(), True, ints(0, allowed.numel()), nodes, 1.0, 1.0, qk_dim**-0.5,
    )  # fmt: skip
    if not (backend.use_verify_splitkv and backend.verify_splitkv_fwd(*words)):
        backend.extend_attention_fwd(*words)

    keys = torch.cat([k_cache, k])[:, 0].float()
    values = torch.cat([v_cache, v])[:, 0].float()
    scores = torch.einsum("nhd,md->nhm", q.float(), keys) * qk_dim**-0.5
    scores = scores.masked_fill(allowed[:, None, :] == 0, float("-inf"))
    expected = torch.einsum("nhm,md->nhd", scores.softmax(-1), values)
    error = (out.float() - expected).abs().max().item()
    if not error < TOLERANCE:
        raise RuntimeError(
            f"DDTREE self-check: the verify kernel of {type(backend).__name__} differs from plain "
            f"tree attention by {error:.3f} (allowed {TOLERANCE}); it does not honour the mask."
        )
