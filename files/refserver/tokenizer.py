"""Text to token ids and back, with the model's chat template.

From a Hugging Face folder the tokenizer.json is used as it is; from a GGUF the same byte-level BPE
is built out of its metadata.
"""

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jinja2
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors

from .config import field_tokens
from .errors import BadRequestError, RefserverError

# pre-tokenizers by GGUF's tokenizer.ggml.pre, as llama.cpp names them
_LLAMA3_SPLIT = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
    r"|\s*[\r\n]+|\s+(?!\S)|\s+"
)
_CONTROL, _USER_DEFINED = 3, 4  # tokenizer.ggml.token_type


@dataclass(frozen=True)
class ChatTokenizer:
    """A tokenizer with its chat template (Jinja2, None if it has none) and stop tokens."""

    tokenizer: Tokenizer
    eos_token_ids: frozenset[int]
    chat_template: str | None
    special: dict[str, str] = field(default_factory=dict)  # bos_token, eos_token for the template

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`; special tokens that are written out in it count as such."""
        ids: list[int] = self.tokenizer.encode(text).ids
        return ids

    def decode(self, ids: list[int], skip_special_tokens: bool = True) -> str:
        """Text of `ids`; bytes that are no UTF-8 become U+FFFD."""
        return self.tokenizer.decode(ids, skip_special_tokens=skip_special_tokens)

    def encode_chat(self, messages: list[dict[str, Any]]) -> list[int]:
        """Token ids of a chat, with the assistant's turn opened."""
        if self.chat_template is None:
            raise BadRequestError("the model has no chat template; use /v1/completions", "messages")
        environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
        environment.globals["raise_exception"] = _raise_template_error
        try:
            template = environment.from_string(self.chat_template)
            text = template.render(messages=messages, add_generation_prompt=True, **self.special)
        except (jinja2.TemplateError, TypeError) as error:
            raise BadRequestError(
                f"the chat template rejects the messages: {error}", "messages"
            ) from None
        return list(self.tokenizer.encode(text, add_special_tokens=False).ids)


def _raise_template_error(message: str) -> None:
    raise jinja2.TemplateError(message)


def from_gguf(fields: dict[str, Any]) -> ChatTokenizer:
    """Build the tokenizer out of GGUF metadata. Raises RefserverError for a kind not known here."""
    kind = fields.get("tokenizer.ggml.model")
    if kind != "gpt2":
        raise RefserverError(
            f"expected a byte-level BPE tokenizer ('gpt2') in the GGUF, found {kind!r}; use the "
            "model's Hugging Face folder instead"
        )
    tokens = field_tokens(fields)
    merges = [tuple(pair.split(" ")) for pair in fields["tokenizer.ggml.merges"]]
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocabulary, merges))
    tokenizer.pre_tokenizer = _pre_tokenizer(fields.get("tokenizer.ggml.pre", "default"))
    tokenizer.decoder = decoders.ByteLevel()
    types = fields.get("tokenizer.ggml.token_type", [1] * len(tokens))
    for wanted, special in ((_CONTROL, True), (_USER_DEFINED, False)):
        added = [t for t, found in zip(tokens, types, strict=True) if found == wanted]
        tokenizer.add_tokens([AddedToken(t, special=special, normalized=False) for t in added])
    ids = {name: fields.get(f"tokenizer.ggml.{name}_token_id") for name in ("bos", "eos", "eot")}
    if fields.get("tokenizer.ggml.add_bos_token") and ids["bos"] is not None:
        bos = tokens[ids["bos"]]
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[bos, "$A"], special_tokens=[(bos, ids["bos"])]
        )
    return ChatTokenizer(
        tokenizer,
        frozenset(i for name, i in ids.items() if i is not None and name != "bos"),
        fields.get("tokenizer.chat_template"),
        {f"{name}_token": tokens[i] for name, i in ids.items() if i is not None},
    )


def _pre_tokenizer(name: str) -> pre_tokenizers.PreTokenizer:
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False)
    if name == "smollm":
        digits = pre_tokenizers.Digits(individual_digits=True)
        return pre_tokenizers.Sequence([digits, byte_level])
    if name == "gpt-2":
        return byte_level
    if name in ("llama-bpe", "llama3"):
        split = pre_tokenizers.Split(Regex(_LLAMA3_SPLIT), "isolated")
        plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
        return pre_tokenizers.Sequence([split, plain])
    raise RefserverError(
        f"expected a GGUF pre-tokenizer out of smollm, gpt-2, llama-bpe, found {name!r}; use the "
        "model's Hugging Face folder instead"
    )


def from_hf(folder: Path) -> ChatTokenizer:
    """Read tokenizer.json, tokenizer_config.json, chat_template.jinja and the stop tokens."""
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise RefserverError(f"expected a tokenizer in {path}, found no such file")
    settings = _optional_json(folder / "tokenizer_config.json")
    template = settings.get("chat_template")
    if (folder / "chat_template.jinja").is_file():
        template = (folder / "chat_template.jinja").read_text()
    config = _optional_json(folder / "config.json")
    eos = _optional_json(folder / "generation_config.json").get("eos_token_id")
    eos = config.get("eos_token_id") if eos is None else eos
    special = {}
    for name in ("bos_token", "eos_token"):
        value = settings.get(name)
        if value is not None:
            special[name] = value["content"] if isinstance(value, dict) else value
    return ChatTokenizer(
        Tokenizer.from_file(str(path)),
        frozenset(eos if isinstance(eos, list) else [] if eos is None else [eos]),
        template,
        special,
    )


def _optional_json(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text()) if path.is_file() else {}
