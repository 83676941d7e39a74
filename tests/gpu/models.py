"""Targets and drafters for the GPU scripts, made from a GGUF or from nothing.

    models.py from-gguf FOLDER NAME.gguf OUT     a GGUF as a bf16 Hugging Face folder
    models.py widen HF_DIR OUT FACTOR            the same function at a big model's cost
    models.py tiny-mla OUT_TARGET OUT_DRAFTER    random MLA + MoE target, and a drafter

widen: each MLP gets FACTOR times as many channels; the added gate and up rows are random, the
added down columns zero. So every logit, and what a drafter accepts, stays, while a step reads
FACTOR times the weights: an honest price on a model that is small enough to carry.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:  # each command imports what it needs, so that --help needs nothing
    import torch


def from_gguf(folder: str, name: str, out: str) -> None:
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32)
    model.to(torch.bfloat16).save_pretrained(out)
    AutoTokenizer.from_pretrained(folder, gguf_file=name).save_pretrained(out)


def widen(source: str, out: str, factor: int) -> None:
    import torch
    from safetensors.torch import load_file, save_file

    device = "cuda" if torch.cuda.is_available() else "cpu"
    src, dst = Path(source), Path(out)
    dst.mkdir(parents=True, exist_ok=True)
    weights = load_file(src / "model.safetensors")
    config = json.loads((src / "config.json").read_text())
    generator = torch.Generator(device).manual_seed(0)
    for name, w in list(weights.items()):
        if ".mlp.gate_proj." in name or ".mlp.up_proj." in name:
            shape = (w.shape[0] * (factor - 1), w.shape[1])
            extra = torch.randn(shape, generator=generator, device=device) * 0.02
            weights[name] = torch.cat([w, extra.to(w.dtype).cpu()]).contiguous()
        elif ".mlp.down_proj." in name:
            extra = torch.zeros(w.shape[0], w.shape[1] * (factor - 1), dtype=w.dtype)
            weights[name] = torch.cat([w, extra], 1).contiguous()
    config["intermediate_size"] *= factor
    save_file(weights, dst / "model.safetensors", metadata={"format": "pt"})
    (dst / "config.json").write_text(json.dumps(config, indent=1))
    for file in src.iterdir():
        if file.name not in ("model.safetensors", "config.json"):
            shutil.copy(file, dst / file.name)


HIDDEN, HEADS, LAYERS, EXPERTS, VOCAB = 512, 8, 4, 8, 128
NOPE, ROPE, VALUE, KV_RANK, Q_RANK = 128, 64, 128, 512, 256


def tiny_mla(target: str, drafter: str) -> None:
    """A random DeepSeek-V3-like target (MLA, one dense and three MoE layers) and a random drafter.

    The head is drawn wide, so that the top logits stand apart, and every token takes all experts,
    since a random router's near ties flip experts by rounding alone: a greedy comparison then
    tests the code. 128 tokens are few enough that a random tree is hit now and then.
    """
    import torch

    generator = torch.Generator().manual_seed(1)

    def random(*shape: int, scale: float = 1.0) -> torch.Tensor:
        values = torch.randn(shape, generator=generator) * scale / shape[-1] ** 0.5
        return values.to(torch.bfloat16)

    def ones(size: int) -> torch.Tensor:
        return torch.ones(size, dtype=torch.bfloat16)

    def mlp(prefix: str, size: int) -> dict[str, torch.Tensor]:
        return {
            f"{prefix}.gate_proj.weight": random(size, HIDDEN),
            f"{prefix}.up_proj.weight": random(size, HIDDEN),
            f"{prefix}.down_proj.weight": random(HIDDEN, size),
        }

    weights = {
        "model.embed_tokens.weight": random(VOCAB, HIDDEN, scale=HIDDEN**0.5),
        "model.norm.weight": ones(HIDDEN),
        "lm_head.weight": random(VOCAB, HIDDEN, scale=6.0),
    }
    for i in range(LAYERS):
        layer = f"model.layers.{i}"
        attention = f"{layer}.self_attn"
        weights |= {
            f"{layer}.input_layernorm.weight": ones(HIDDEN),
            f"{layer}.post_attention_layernorm.weight": ones(HIDDEN),
            f"{attention}.q_a_proj.weight": random(Q_RANK, HIDDEN),
            f"{attention}.q_a_layernorm.weight": ones(Q_RANK),
            f"{attention}.q_b_proj.weight": random(HEADS * (NOPE + ROPE), Q_RANK),
            f"{attention}.kv_a_proj_with_mqa.weight": random(KV_RANK + ROPE, HIDDEN),
            f"{attention}.kv_a_layernorm.weight": ones(KV_RANK),
            f"{attention}.kv_b_proj.weight": random(HEADS * (NOPE + VALUE), KV_RANK),
            f"{attention}.o_proj.weight": random(HIDDEN, HEADS * VALUE),
        }
        if i == 0:
            weights |= mlp(f"{layer}.mlp", 1024)
            continue
        weights[f"{layer}.mlp.gate.weight"] = random(EXPERTS, HIDDEN)
        weights[f"{layer}.mlp.gate.e_score_correction_bias"] = torch.zeros(EXPERTS)
        weights |= mlp(f"{layer}.mlp.shared_experts", 256)
        for expert in range(EXPERTS):
            weights |= mlp(f"{layer}.mlp.experts.{expert}", 256)
    config = {
        "architectures": ["DeepseekV3ForCausalLM"],
        "model_type": "deepseek_v3",
        "hidden_size": HIDDEN,
        "intermediate_size": 1024,
        "moe_intermediate_size": 256,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": HEADS,
        "num_key_value_heads": HEADS,
        "n_routed_experts": EXPERTS,
        "n_shared_experts": 1,
        "num_experts_per_tok": EXPERTS,
        "first_k_dense_replace": 1,
        "moe_layer_freq": 1,
        "n_group": 1,
        "topk_group": 1,
        "topk_method": "noaux_tc",
        "scoring_func": "sigmoid",
        "norm_topk_prob": True,
        "routed_scaling_factor": 1.0,
        "q_lora_rank": Q_RANK,
        "kv_lora_rank": KV_RANK,
        "qk_nope_head_dim": NOPE,
        "qk_rope_head_dim": ROPE,
        "v_head_dim": VALUE,
        "vocab_size": VOCAB,
        "max_position_embeddings": 4096,
        "rope_theta": 10000.0,
        "rope_scaling": None,
        "rms_norm_eps": 1e-6,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
        "bos_token_id": 0,
        "eos_token_id": 1,
    }
    save(Path(target), weights, config)
    save(Path(drafter), *tiny_drafter(random, ones, mlp))


def tiny_drafter(random, ones, mlp) -> tuple[dict[str, torch.Tensor], dict]:
    """One random DFlash layer, block 8, fed by layers 1 and 2 of the target."""
    dim, kv_heads = 64, 2
    weights = {"fc.weight": random(HIDDEN, 2 * HIDDEN)}
    weights |= {f"{name}.weight": ones(HIDDEN) for name in ("hidden_norm", "norm")}
    layer = "layers.0"
    weights |= {
        f"{layer}.input_layernorm.weight": ones(HIDDEN),
        f"{layer}.post_attention_layernorm.weight": ones(HIDDEN),
        f"{layer}.self_attn.q_proj.weight": random(HEADS * dim, HIDDEN),
        f"{layer}.self_attn.k_proj.weight": random(kv_heads * dim, HIDDEN),
        f"{layer}.self_attn.v_proj.weight": random(kv_heads * dim, HIDDEN),
        f"{layer}.self_attn.o_proj.weight": random(HIDDEN, HEADS * dim),
        f"{layer}.self_attn.q_norm.weight": ones(dim),
        f"{layer}.self_attn.k_norm.weight": ones(dim),
    }
    weights |= mlp(f"{layer}.mlp", 1024)
    config = {
        "architectures": ["DFlashDraftModel"],
        "model_type": "qwen3",
        "hidden_size": HIDDEN,
        "intermediate_size": 1024,
        "num_hidden_layers": 1,
        "num_attention_heads": HEADS,
        "num_key_value_heads": kv_heads,
        "head_dim": dim,
        "rms_norm_eps": 1e-6,
        "rope_theta": 10000.0,
        "max_position_embeddings": 4096,
        "hidden_act": "silu",
        "attention_bias": False,
        "vocab_size": VOCAB,
        "num_target_layers": LAYERS,
        "block_size": 8,
        "dflash_config": {"target_layer_ids": [1, 2], "mask_token_id": 2},
        "torch_dtype": "bfloat16",
    }
    return weights, config


def save(folder: Path, weights: dict[str, torch.Tensor], config: dict) -> None:
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
    (folder / "config.json").write_text(json.dumps(config, indent=1))


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["from-gguf", folder, name, out]:
            from_gguf(folder, name, out)
        case ["widen", source, out, factor]:
            widen(source, out, int(factor))
        case ["tiny-mla", target, drafter]:
            tiny_mla(target, drafter)
        case ["-h" | "--help"]:
            print(__doc__)
        case _:
            sys.exit(__doc__)
