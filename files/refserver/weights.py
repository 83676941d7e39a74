"""Weights of target and drafter in the form the forward passes use.

Matrices are fp32 [out, in], C-contiguous: the fastest layout for a matrix-vector product and as
fast as any for the few rows of a verify step. q, k, v and gate, up are stacked into one matrix.
Rows of q and k are interleaved (the two values of a rotary pair lie side by side, as in GGUF), so
that rotary embedding is one complex product; Hugging Face checkpoints keep the halves apart.
"""

import json
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from .config import DrafterConfig, TargetConfig
from .errors import RefserverError
from .gguf_file import GgufFile
from .safetensors_file import read_checkpoint

Array = np.ndarray[Any, np.dtype[np.float32]]


@dataclass(frozen=True)
class Layer:
    """One transformer layer."""

    attention_norm: Array
    qkv: Array  # [(heads + 2 * kv_heads) * head_dim, hidden]
    out: Array  # [hidden, heads * head_dim]
    mlp_norm: Array
    gate_up: Array  # [2 * intermediate, hidden]
    down: Array  # [hidden, intermediate]


@dataclass(frozen=True)
class DrafterLayer(Layer):
    """A layer of the drafter: it also norms each head's q and k."""

    q_norm: Array  # [head_dim]
    k_norm: Array  # [head_dim]


@dataclass(frozen=True)
class Target:
    """A Llama-architecture model. `head` is `embedding` itself when the two are tied."""

    config: TargetConfig
    embedding: Array  # [vocab, hidden]
    layers: tuple[Layer, ...]
    norm: Array
    head: Array
    inverse_frequencies: Array  # [head_dim / 2], radians a position


@dataclass(frozen=True)
class DrafterWeights:
    """A DFlash drafter; embedding and head are the target's."""

    config: DrafterConfig
    layers: tuple[DrafterLayer, ...]
    fc: Array  # [hidden, len(target_layer_ids) * hidden]
    hidden_norm: Array
    norm: Array


def read_json(path: Path) -> dict[str, Any]:
    """A config.json. Raises RefserverError when there is none or it is no JSON object."""
    try:
        raw = json.loads(path.read_text())
    except FileNotFoundError:
        raise RefserverError(f"expected {path}, found no such file") from None
    except ValueError as error:
        raise RefserverError(f"expected JSON in {path}, found {error}") from None
    if not isinstance(raw, dict):
        raise RefserverError(f"expected a JSON object in {path}, found {type(raw).__name__}")
    return raw


def find_gguf(path: Path) -> Path | None:
    """The GGUF file that a --model-path means; None for a Hugging Face folder."""
    if path.is_file() and path.suffix == ".gguf":
        return path
    if not path.is_dir():
        raise RefserverError(
            f"expected --model-path to be a model folder or a .gguf file, found nothing at {path}"
            if not path.exists()
            else f"expected --model-path to be a folder or a .gguf file, found the file {path}"
        )
    if (path / "config.json").is_file():
        return None
    found = sorted(path.glob("*.gguf"))
    if len(found) != 1:
        raise RefserverError(
            f"expected a config.json or exactly one .gguf in {path}, found {len(found)} .gguf files"
        )
    return found[0]


def interleave(rows: Array, heads: int) -> Array:
    """Reorder [heads * head_dim, ...] from split halves (x0.. y0..) to pairs (x0 y0 x1 y1..)."""
    split = rows.reshape(heads, 2, -1, *rows.shape[1:])
    return np.ascontiguousarray(split.swapaxes(1, 2)).reshape(rows.shape)


def rotary_frequencies(config: TargetConfig) -> Array:
    """Radians a position for each rotary pair, Llama 3's scaling applied where configured."""
    pairs = np.arange(0, config.head_dim, 2) / config.head_dim
    plain = config.rope_theta**-pairs
    scaling = config.rope_scaling
    if scaling is None:
        return plain.astype(np.float32)
    kind = scaling.get("rope_type", scaling.get("type"))
    if kind != "llama3":
        raise RefserverError(f"expected no rope_scaling or that of llama3, found {kind!r}")
    low, high = scaling["low_freq_factor"], scaling["high_freq_factor"]
    turns = scaling["original_max_position_embeddings"] * plain / (2 * np.pi)
    smooth = np.clip((turns - low) / (high - low), 0, 1)
    scaled = (1 - smooth) * plain / scaling["factor"] + smooth * plain
    return np.asarray(scaled, np.float32)


def target_config(path: Path, gguf: GgufFile | None) -> TargetConfig:
    """The target's shape, without reading weights."""
    if gguf:
        return TargetConfig.from_gguf(gguf.fields)
    return TargetConfig.from_hf(read_json(path / "config.json"))


def load_target(path: Path, gguf: GgufFile | None) -> Target:
    """Read all weights of the target below `path`, or of the open `gguf` when it has one."""
    return _from_gguf(gguf) if gguf else _from_hf(path)


def _from_gguf(file: GgufFile) -> Target:
    config = TargetConfig.from_gguf(file.fields)

    def layer(index: int) -> Layer:
        def get(name: str) -> Array:
            return file.read(f"blk.{index}.{name}.weight")

        return Layer(
            attention_norm=get("attn_norm"),
            qkv=np.concatenate([get("attn_q"), get("attn_k"), get("attn_v")]),
            out=get("attn_output"),
            mlp_norm=get("ffn_norm"),
            gate_up=np.concatenate([get("ffn_gate"), get("ffn_up")]),
            down=get("ffn_down"),
        )

    with ThreadPoolExecutor(2) as pool:  # dequantisation is numpy: it leaves the interpreter lock
        embedding_job = pool.submit(file.read, "token_embd.weight")
        layers = tuple(pool.map(layer, range(config.num_layers)))
    embedding = embedding_job.result()
    frequencies = rotary_frequencies(config)
    if "rope_freqs.weight" in file:
        frequencies = frequencies / file.read("rope_freqs.weight")
    head = file.read("output.weight") if "output.weight" in file else embedding
    return Target(config, embedding, layers, file.read("output_norm.weight"), head, frequencies)


def _from_hf(folder: Path) -> Target:
    raw_config = read_json(folder / "config.json")
    config = TargetConfig.from_hf(raw_config)
    raw = read_checkpoint(folder)
    get = _getter(raw, folder)
    layers = tuple(
        _hf_layer(get, f"model.layers.{i}.", config.num_heads, config.num_kv_heads)
        for i in range(config.num_layers)
    )
    embedding = get("model.embed_tokens.weight")
    tied = raw_config.get("tie_word_embeddings", False) or "lm_head.weight" not in raw
    head = embedding if tied else get("lm_head.weight")
    frequencies = rotary_frequencies(config)
    return Target(config, embedding, layers, get("model.norm.weight"), head, frequencies)


def load_drafter(folder: Path) -> DrafterWeights:
    """Read a DFlash drafter. Raises RefserverError when a tensor is missing or misshapen."""
    config = DrafterConfig.from_json(read_json(folder / "config.json"))
    get = _getter(read_checkpoint(folder), folder)
    layers = []
    for i in range(config.num_layers):
        layer = _hf_layer(get, f"layers.{i}.", config.num_heads, config.num_kv_heads)
        norms = {
            f"{name}_norm": interleave(get(f"layers.{i}.self_attn.{name}_norm.weight"), 1)
            for name in "qk"
        }
        layers.append(DrafterLayer(**vars(layer), **norms))
    fc = get("fc.weight")
    expected = (config.hidden_size, len(config.target_layer_ids) * config.hidden_size)
    if fc.shape != expected:
        raise RefserverError(f"expected fc.weight {expected} in {folder}, found {fc.shape}")
    return DrafterWeights(config, tuple(layers), fc, get("hidden_norm.weight"), get("norm.weight"))


def _getter(raw: dict[str, Array], folder: Path) -> Callable[[str], Array]:
    def get(name: str) -> Array:
        if name not in raw:
            raise RefserverError(f"expected tensor {name} in {folder}, found none of that name")
        return raw[name]

    return get


def _hf_layer(get: Callable[[str], Array], prefix: str, heads: int, kv_heads: int) -> Layer:
    attention = prefix + "self_attn."
    q = interleave(get(attention + "q_proj.weight"), heads)
    k = interleave(get(attention + "k_proj.weight"), kv_heads)
    gate, up = get(prefix + "mlp.gate_proj.weight"), get(prefix + "mlp.up_proj.weight")
    return Layer(
        attention_norm=get(prefix + "input_layernorm.weight"),
        qkv=np.concatenate([q, k, get(attention + "v_proj.weight")]),
        out=get(attention + "o_proj.weight"),
        mlp_norm=get(prefix + "post_attention_layernorm.weight"),
        gate_up=np.concatenate([gate, up]),
        down=get(prefix + "mlp.down_proj.weight"),
    )
