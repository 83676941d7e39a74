"""A second, plain implementation of both forward passes, to judge the engine's against.

float64, no cache, no fused matrices, rotary embedding on split halves as Hugging Face writes it.
Weights are dictionaries under their checkpoint names.
"""

import numpy as np
from tiny_model import FEATURE_LAYERS, HEAD_DIM, HEADS, KV_HEADS, LAYERS, MASK


def _norm(x, weight, eps):
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * weight


def _rope(x, positions, theta=10000.0):
    frequencies = theta ** -(np.arange(0, HEAD_DIM, 2) / HEAD_DIM)
    angle = positions[:, None, None] * frequencies
    a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    turned = [a * np.cos(angle) - b * np.sin(angle), a * np.sin(angle) + b * np.cos(angle)]
    return np.concatenate(turned, -1)


def _softmax(x):
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def _attention(q, k, v, mask):
    out = np.empty_like(q)
    for head in range(HEADS):
        kv = head // (HEADS // KV_HEADS)
        scores = q[:, head] @ k[:, kv].T / np.sqrt(HEAD_DIM)
        out[:, head] = _softmax(np.where(mask, scores, -np.inf)) @ v[:, kv]
    return out.reshape(len(q), -1)


def _mlp(x, w, p):
    gate = x @ w[p + "mlp.gate_proj.weight"].T
    up = x @ w[p + "mlp.up_proj.weight"].T
    return (gate / (1 + np.exp(-gate)) * up) @ w[p + "mlp.down_proj.weight"].T


def _heads(x):
    return x.reshape(len(x), -1, HEAD_DIM)


def target_forward(weights, tokens):
    """Logits [n, vocab] and features [n, F * hidden] of a whole sequence."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n = len(tokens)
    x = w["model.embed_tokens.weight"][np.array(tokens)]
    positions, causal, features = np.arange(n), np.tri(n, dtype=bool), []
    for i in range(LAYERS):
        p = f"model.layers.{i}."
        h = _norm(x, w[p + "input_layernorm.weight"], 1e-5)
        q, k, v = (_heads(h @ w[f"{p}self_attn.{name}_proj.weight"].T) for name in "qkv")
        o = _attention(_rope(q, positions), _rope(k, positions), v, causal)
        x = x + o @ w[p + "self_attn.o_proj.weight"].T
        x = x + _mlp(_norm(x, w[p + "post_attention_layernorm.weight"], 1e-5), w, p)
        if i in FEATURE_LAYERS:
            features.append(x)
    hidden = _norm(x, w["model.norm.weight"], 1e-5)
    return hidden @ w["model.embed_tokens.weight"].T, np.concatenate(features, -1)


def drafter_forward(weights, embedding, features, anchor, block):
    """Logits [block - 1, vocab] behind `anchor`, given the features of all tokens before it."""
    w = {name: value.astype(np.float64) for name, value in weights.items()}
    n = len(features)
    context = _norm(features @ w["fc.weight"].T, w["hidden_norm.weight"], 1e-6)
    x = embedding.astype(np.float64)[[anchor] + [MASK] * (block - 1)]
    at, before = np.arange(n, n + block), np.arange(n)
    for i in range(2):
        p = f"layers.{i}."
        a = p + "self_attn."
        h = _norm(x, w[p + "input_layernorm.weight"], 1e-6)
        both = np.concatenate([context, h])
        q = _norm(_heads(h @ w[a + "q_proj.weight"].T), w[a + "q_norm.weight"], 1e-6)
        k = _norm(_heads(both @ w[a + "k_proj.weight"].T), w[a + "k_norm.weight"], 1e-6)
        v = _heads(both @ w[a + "v_proj.weight"].T)
        everything = np.ones((block, n + block), bool)
        o = _attention(_rope(q, at), _rope(k, np.concatenate([before, at])), v, everything)
        x = x + o @ w[a + "o_proj.weight"].T
        x = x + _mlp(_norm(x, w[p + "post_attention_layernorm.weight"], 1e-6), w, p)
    return _norm(x[1:], w["norm.weight"], 1e-6) @ embedding.astype(np.float64).T
