"""Tiny made models with random weights: a Llama target and a DFlash drafter, as real folders."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from safetensors.numpy import save_file
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

HIDDEN, INTERMEDIATE, LAYERS, HEADS, KV_HEADS, HEAD_DIM = 32, 48, 3, 4, 2, 8
CONTEXT, BLOCK, FEATURE_LAYERS, MASK = 256, 5, [0, 2], 3
SPECIALS = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>"]
CHAT_TEMPLATE = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@dataclass(frozen=True)
class TinyPair:
    """Folders of a target and of a drafter made for it."""

    target: Path
    drafter: Path


def byte_tokens() -> list[str]:
    """The specials and the 256 byte tokens: a byte-level vocabulary without merges."""
    return SPECIALS + sorted(pre_tokenizers.ByteLevel.alphabet())


def target_config(vocab_size: int) -> dict:
    return {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "max_position_embeddings": CONTEXT,
        "tie_word_embeddings": True,
        "eos_token_id": 2,
    }


def drafter_config(vocab_size: int) -> dict:
    return {
        "architectures": ["DFlashDraftModel"],
        "hidden_size": HIDDEN,
        "intermediate_size": INTERMEDIATE,
        "num_hidden_layers": 2,
        "num_attention_heads": HEADS,
        "num_key_value_heads": KV_HEADS,
        "head_dim": HEAD_DIM,
        "vocab_size": vocab_size,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "block_size": BLOCK,
        "num_target_layers": LAYERS,
        "dflash_config": {"target_layer_ids": FEATURE_LAYERS, "mask_token_id": MASK},
    }


def _layer(rng: np.random.Generator, prefix: str, head_norms: bool) -> dict[str, np.ndarray]:
    def matrix(rows: int, columns: int) -> np.ndarray:
        return rng.normal(0, 1.5 / np.sqrt(columns), (rows, columns)).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return rng.uniform(0.5, 1.5, size).astype(np.float32)

    q, kv = HEADS * HEAD_DIM, KV_HEADS * HEAD_DIM
    tensors = {
        "input_layernorm": norm(HIDDEN),
        "self_attn.q_proj": matrix(q, HIDDEN),
        "self_attn.k_proj": matrix(kv, HIDDEN),
        "self_attn.v_proj": matrix(kv, HIDDEN),
        "self_attn.o_proj": matrix(HIDDEN, q),
        "post_attention_layernorm": norm(HIDDEN),
        "mlp.gate_proj": matrix(INTERMEDIATE, HIDDEN),
        "mlp.up_proj": matrix(INTERMEDIATE, HIDDEN),
        "mlp.down_proj": matrix(HIDDEN, INTERMEDIATE),
    }
    if head_norms:
        tensors |= {"self_attn.q_norm": norm(HEAD_DIM), "self_attn.k_norm": norm(HEAD_DIM)}
    return {f"{prefix}{name}.weight": value for name, value in tensors.items()}


def target_tensors(vocab_size: int, seed: int) -> dict[str, np.ndarray]:
    """All tensors of a tied target under their Hugging Face names."""
    rng = np.random.default_rng(seed)
    tensors = {"model.embed_tokens.weight": rng.normal(0, 0.4, (vocab_size, HIDDEN))}
    for i in range(LAYERS):
        tensors |= _layer(rng, f"model.layers.{i}.", head_norms=False)
    tensors["model.norm.weight"] = rng.uniform(0.5, 1.5, HIDDEN)
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def drafter_tensors(seed: int) -> dict[str, np.ndarray]:
    """All tensors of a drafter under SGLang's names."""
    rng = np.random.default_rng(seed)
    features = len(FEATURE_LAYERS) * HIDDEN
    tensors = {"fc.weight": rng.normal(0, 1 / np.sqrt(features), (HIDDEN, features))}
    for i in range(2):
        tensors |= _layer(rng, f"layers.{i}.", head_norms=True)
    tensors["hidden_norm.weight"] = rng.uniform(0.5, 1.5, HIDDEN)
    tensors["norm.weight"] = rng.uniform(0.5, 1.5, HIDDEN)
    return {name: value.astype(np.float32) for name, value in tensors.items()}


def tokenizer_of(tokens: list[str]) -> Tokenizer:
    """A byte-level tokenizer without merges; its first four tokens are special."""
    tokenizer = Tokenizer(models.BPE({token: i for i, token in enumerate(tokens)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_tokens([AddedToken(t, special=True, normalized=False) for t in tokens[:4]])
    return tokenizer


def write_pair(folder: Path, tokens: list[str] | None = None, seed: int = 1) -> TinyPair:
    """Write target and drafter below `folder`; `tokens` is the vocabulary, all bytes if None."""
    tokens = tokens or byte_tokens()
    pair = TinyPair(folder / "target", folder / "drafter")
    for path in (pair.target, pair.drafter):
        path.mkdir(parents=True)
    _write_json(pair.target / "config.json", target_config(len(tokens)))
    _write_json(pair.target / "tokenizer_config.json", {"chat_template": CHAT_TEMPLATE})
    tokenizer_of(tokens).save(str(pair.target / "tokenizer.json"))
    save_file(target_tensors(len(tokens), seed), pair.target / "model.safetensors")
    _write_json(pair.drafter / "config.json", drafter_config(len(tokens)))
    save_file(drafter_tensors(seed + 1), pair.drafter / "model.safetensors")
    return pair


def _write_json(path: Path, content: dict) -> None:
    path.write_text(json.dumps(content))
