"""Shapes and settings of target, drafter and server, checked on reading."""

from dataclasses import dataclass
from typing import Any

from .errors import RefserverError

Json = dict[str, Any]


@dataclass(frozen=True)
class TargetConfig:
    """Shape of a Llama-architecture target."""

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    context_length: int
    rope_scaling: Json | None = None

    @classmethod
    def from_hf(cls, raw: Json) -> "TargetConfig":
        """Read a Hugging Face config.json. Raises RefserverError for another architecture."""
        if raw.get("model_type") != "llama":
            raise RefserverError(
                f"expected a target of model_type 'llama', found {raw.get('model_type')!r}; "
                "the reference engine runs Llama-architecture models only"
            )
        if raw.get("attention_bias") or raw.get("mlp_bias"):
            raise RefserverError("expected a target without biases, found attention_bias/mlp_bias")
        rope = raw.get("rope_parameters") or {}
        scaling = raw.get("rope_scaling") or (rope if "factor" in rope else None)
        try:
            return cls(
                hidden_size=raw["hidden_size"],
                intermediate_size=raw["intermediate_size"],
                num_layers=raw["num_hidden_layers"],
                num_heads=raw["num_attention_heads"],
                num_kv_heads=raw.get("num_key_value_heads") or raw["num_attention_heads"],
                head_dim=raw.get("head_dim") or raw["hidden_size"] // raw["num_attention_heads"],
                vocab_size=raw["vocab_size"],
                rms_norm_eps=raw["rms_norm_eps"],
                rope_theta=raw.get("rope_theta") or rope.get("rope_theta", 10000.0),
                context_length=raw["max_position_embeddings"],
                rope_scaling=scaling,
            )
        except KeyError as missing:
            raise RefserverError(f"expected {missing} in the target's config.json") from None

    @classmethod
    def from_gguf(cls, fields: Json) -> "TargetConfig":
        """Read GGUF metadata. Raises RefserverError for another architecture."""
        architecture = fields.get("general.architecture")
        if architecture != "llama":
            raise RefserverError(
                f"expected a GGUF of architecture 'llama', found {architecture!r}; "
                "the reference engine runs Llama-architecture models only"
            )

        def field(name: str, default: Any = None) -> Any:
            value = fields.get(f"llama.{name}", default)
            if value is None:
                raise RefserverError(f"expected llama.{name} in the GGUF metadata")
            return value

        heads = field("attention.head_count")
        hidden = field("embedding_length")
        return cls(
            hidden_size=hidden,
            intermediate_size=field("feed_forward_length"),
            num_layers=field("block_count"),
            num_heads=heads,
            num_kv_heads=field("attention.head_count_kv", heads),
            head_dim=field("attention.key_length", hidden // heads),
            vocab_size=fields.get("llama.vocab_size") or len(field_tokens(fields)),
            rms_norm_eps=field("attention.layer_norm_rms_epsilon"),
            rope_theta=field("rope.freq_base", 10000.0),
            context_length=field("context_length"),
        )


def field_tokens(fields: Json) -> list[str]:
    """The vocabulary of a GGUF, by token id."""
    tokens: list[str] | None = fields.get("tokenizer.ggml.tokens")
    if not tokens:
        raise RefserverError("expected tokenizer.ggml.tokens in the GGUF, found none")
    return tokens


@dataclass(frozen=True)
class DrafterConfig:
    """Shape of a DFlash drafter (SGLang's DFlashDraftModel checkpoint).

    `block_size` is L: position 0 of a block is the anchor, L - 1 positions are drafted.
    """

    hidden_size: int
    intermediate_size: int
    num_layers: int
    num_heads: int
    num_kv_heads: int
    head_dim: int
    vocab_size: int
    rms_norm_eps: float
    rope_theta: float
    block_size: int
    num_target_layers: int
    target_layer_ids: tuple[int, ...]
    mask_token_id: int

    @classmethod
    def from_json(cls, raw: Json) -> "DrafterConfig":
        """Read a drafter's config.json. Raises RefserverError when it is not a DFlash drafter."""
        if "DFlashDraftModel" not in raw.get("architectures", []):
            raise RefserverError(
                "expected a drafter of architecture 'DFlashDraftModel', found "
                f"{raw.get('architectures')}; point --speculative-draft-model-path at a DFlash one"
            )
        for unsupported in ("rope_scaling", "layer_types", "attention_bias"):
            if raw.get(unsupported):
                raise RefserverError(
                    f"expected a drafter without {unsupported}, found {raw[unsupported]!r}; "
                    "the reference engine runs plain full-attention drafters only"
                )
        dflash = raw.get("dflash_config", {})
        try:
            return cls(
                hidden_size=raw["hidden_size"],
                intermediate_size=raw["intermediate_size"],
                num_layers=raw["num_hidden_layers"],
                num_heads=raw["num_attention_heads"],
                num_kv_heads=raw["num_key_value_heads"],
                head_dim=raw["head_dim"],
                vocab_size=raw["vocab_size"],
                rms_norm_eps=raw["rms_norm_eps"],
                rope_theta=raw["rope_theta"],
                block_size=raw.get("block_size") or dflash["block_size"],
                num_target_layers=raw["num_target_layers"],
                target_layer_ids=tuple(dflash["target_layer_ids"]),
                mask_token_id=dflash["mask_token_id"],
            )
        except KeyError as missing:
            raise RefserverError(f"expected {missing} in the drafter's config.json") from None

    def check_fits(self, target: TargetConfig) -> None:
        """Raise RefserverError with one line when the drafter was not made for this target."""
        pairs = [
            ("hidden_size", self.hidden_size, target.hidden_size),
            ("vocab_size", self.vocab_size, target.vocab_size),
            ("num_target_layers", self.num_target_layers, target.num_layers),
        ]
        for name, found, expected in pairs:
            if found != expected:
                raise RefserverError(
                    f"drafter does not fit the target: expected {name} {expected}, found {found}; "
                    "use the drafter that was trained for this target"
                )
        ids = self.target_layer_ids
        if not ids or any(not 0 <= i < target.num_layers for i in ids):
            raise RefserverError(
                f"drafter does not fit the target: expected target_layer_ids in 0.."
                f"{target.num_layers - 1}, found {list(ids)}"
            )
        if not 0 <= self.mask_token_id < target.vocab_size:
            raise RefserverError(
                f"drafter does not fit the target: expected mask_token_id below "
                f"{target.vocab_size}, found {self.mask_token_id}"
            )


@dataclass(frozen=True)
class Speculation:
    """How the server speculates.

    `verify_width` is N, the tokens that one verify step runs through the target: B + 1 for DDTREE
    with a budget of B nodes, the chain's length with its anchor for DFLASH.
    """

    algorithm: str
    drafter_path: str
    verify_width: int

    @property
    def budget(self) -> int:
        """B of a DDTREE server; 0, a chain, for DFLASH."""
        return self.verify_width - 1 if self.algorithm == "DDTREE" else 0

    def check_width(self, block_size: int) -> None:
        """Raise RefserverError when N does not fit the algorithm and the drafter's block L."""
        width = self.verify_width
        if self.algorithm == "DFLASH" and not 2 <= width <= block_size:
            raise RefserverError(
                f"expected --speculative-num-draft-tokens in 2..{block_size} for DFLASH (the "
                f"drafter's block is {block_size}), found {width}"
            )
        if self.algorithm == "DDTREE" and not 2 <= width <= 1025:
            raise RefserverError(
                "expected --speculative-num-draft-tokens = B + 1 in 2..1025 for DDTREE, "
                f"found {width}"
            )
