import json
import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import safetensors.numpy
from refserver.config import TargetConfig
from refserver.errors import RefserverError
from refserver.gguf_file import GgufFile
from refserver.model import Model
from refserver.weights import find_gguf, load_drafter, load_target, rotary_frequencies
from tiny_model import (
    CONTEXT,
    HEAD_DIM,
    HEADS,
    HIDDEN,
    INTERMEDIATE,
    KV_HEADS,
    LAYERS,
    byte_tokens,
    drafter_tensors,
    target_tensors,
)

GGUF_NAMES = {
    "input_layernorm": "attn_norm",
    "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k",
    "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output",
    "post_attention_layernorm": "ffn_norm",
    "mlp.gate_proj": "ffn_gate",
    "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}


def llama_cpp_permute(rows: np.ndarray, heads: int) -> np.ndarray:
    """What llama.cpp's converter does to q and k of a Hugging Face checkpoint."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def write_gguf(path: Path, tensors: dict[str, np.ndarray]) -> None:
    """The tiny target as llama.cpp's converter would write it, in F32."""
    tokens = byte_tokens()
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(HIDDEN)
    writer.add_block_count(LAYERS)
    writer.add_feed_forward_length(INTERMEDIATE)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_key_length(HEAD_DIM)
    writer.add_rope_freq_base(10000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_token_list(tokens)
    writer.add_tensor("token_embd.weight", tensors["model.embed_tokens.weight"])
    writer.add_tensor("output_norm.weight", tensors["model.norm.weight"])
    for i in range(LAYERS):
        for ours, theirs in GGUF_NAMES.items():
            value = tensors[f"model.layers.{i}.{ours}.weight"]
            if theirs in ("attn_q", "attn_k"):
                value = llama_cpp_permute(value, HEADS if theirs == "attn_q" else KV_HEADS)
            writer.add_tensor(f"blk.{i}.{theirs}.weight", np.ascontiguousarray(value))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def logits(target) -> np.ndarray:
    model = Model(target, 16)
    hidden, _ = model.forward(np.arange(6) + 40, np.arange(6), np.tri(6, dtype=bool))
    return model.logits(hidden)


def test_a_gguf_and_a_hugging_face_folder_of_one_model_agree(tiny, tmp_path):
    write_gguf(tmp_path / "m.gguf", target_tensors(len(byte_tokens()), seed=1))
    from_gguf = load_target(tmp_path, GgufFile(tmp_path / "m.gguf"))
    assert np.allclose(logits(from_gguf), logits(load_target(tiny.target, None)), atol=1e-4)


def test_int8_matrices_are_multiplied_by_their_row_scales(tiny, tmp_path):
    tensors = drafter_tensors(seed=2)
    name = "layers.0.mlp.down_proj.weight"
    scale = np.abs(tensors[name]).max(1) / 127
    tensors["layers.0.mlp.down_proj.scale"] = scale
    tensors[name] = np.round(tensors[name] / scale[:, None]).astype(np.int8)
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((tiny.drafter / "config.json").read_text())
    expected = tensors[name].astype(np.float32) * scale[:, None]
    assert np.array_equal(load_drafter(tmp_path).layers[0].down, expected)


def write_safetensors(path: Path, tensors: dict[str, tuple[str, np.ndarray]]) -> None:
    """The file format by hand, because numpy has no bf16."""
    header, data = {}, b""
    for name, (dtype, value) in tensors.items():
        end = len(data) + value.nbytes
        header[name] = {"dtype": dtype, "shape": value.shape, "data_offsets": [len(data), end]}
        data += value.tobytes()
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def test_bf16_is_the_upper_half_of_fp32(tiny, tmp_path):
    tensors = drafter_tensors(seed=2)
    bits = tensors["norm.weight"].view(np.uint32) & 0xFFFF0000
    half = {"norm.weight": ("BF16", (bits >> 16).astype(np.uint16))}
    whole = {name: ("F32", value) for name, value in tensors.items()}
    write_safetensors(tmp_path / "model.safetensors", whole | half)
    (tmp_path / "config.json").write_text((tiny.drafter / "config.json").read_text())
    assert np.array_equal(load_drafter(tmp_path).norm, bits.view(np.float32))


def test_a_missing_tensor_is_named(tiny, tmp_path):
    tensors = drafter_tensors(seed=2)
    del tensors["fc.weight"]
    safetensors.numpy.save_file(tensors, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text((tiny.drafter / "config.json").read_text())
    with pytest.raises(RefserverError, match=r"expected tensor fc\.weight"):
        load_drafter(tmp_path)


def test_a_damaged_checkpoint_is_refused(tiny, tmp_path):
    (tmp_path / "config.json").write_text((tiny.drafter / "config.json").read_text())
    (tmp_path / "model.safetensors").write_bytes(b"\x10\0\0\0\0\0\0\0nonsense")
    with pytest.raises(RefserverError, match="expected a whole safetensors file"):
        load_drafter(tmp_path)


def test_a_folder_with_one_gguf_means_that_file(tmp_path):
    (tmp_path / "a.gguf").touch()
    assert find_gguf(tmp_path) == tmp_path / "a.gguf"


def test_a_folder_with_two_ggufs_is_refused(tmp_path):
    (tmp_path / "a.gguf").touch()
    (tmp_path / "b.gguf").touch()
    with pytest.raises(RefserverError, match=r"exactly one \.gguf .* found 2"):
        find_gguf(tmp_path)


def test_another_architecture_is_refused(tiny):
    raw = json.loads((tiny.target / "config.json").read_text()) | {"model_type": "qwen3"}
    with pytest.raises(RefserverError, match="expected a target of model_type 'llama'"):
        TargetConfig.from_hf(raw)


def test_llama3_scaling_slows_only_the_low_frequencies(tiny):
    raw = json.loads((tiny.target / "config.json").read_text())
    plain = rotary_frequencies(TargetConfig.from_hf(raw))
    raw["rope_scaling"] = {
        "rope_type": "llama3",
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 64,
    }
    scaled = rotary_frequencies(TargetConfig.from_hf(raw))
    assert scaled[0] == plain[0]
    assert np.isclose(scaled[-1], plain[-1] / 8)
