"""Prompts: built-in sets of our own text, files of others, and how a chat prompt is written out.

Prompts go to `/generate` as raw text, because only that route carries the speculation counters
(SGLang 0.5.16's OpenAI routes don't). The chat template is therefore written out here, as one of
a few named formats, instead of rendering the model's Jinja template: that would need the model's
tokenizer files and Jinja in the small tools venv, and would tie a benchmark's prompts to them.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..errors import HostkitError

FOLDER = Path(__file__).parent
BUILT_IN = tuple(sorted(path.stem for path in FOLDER.glob("*.json")))

# {0} is the user's text. chatml: SmolLM2's template with its default system turn. kimi: the
# template of Kimi K2.5 and K2.6, which has no default system turn and opens the thinking part;
# kimi-instant closes it at once. kimi-k2: the non-thinking K2 template with its system turn.
CHAT_FORMATS = {
    "none": "{0}",
    "chatml": (
        "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
        "<|im_end|>\n<|im_start|>user\n{0}<|im_end|>\n<|im_start|>assistant\n"
    ),
    "kimi": (
        "<|im_user|>user<|im_middle|>{0}<|im_end|><|im_assistant|>assistant<|im_middle|><think>"
    ),
    "kimi-instant": (
        "<|im_user|>user<|im_middle|>{0}<|im_end|>"
        "<|im_assistant|>assistant<|im_middle|><think></think>"
    ),
    "kimi-k2": (
        "<|im_system|>system<|im_middle|>You are Kimi, an AI assistant created by Moonshot AI."
        "<|im_end|><|im_user|>user<|im_middle|>{0}<|im_end|><|im_assistant|>assistant<|im_middle|>"
    ),
}

# Requests of one wave begin together and end one by one: of 8, 6 were in flight on average (H200).
WAVES = 2


@dataclass(frozen=True)
class Prompt:
    """One prompt as the user would type it; `id` is '<set>/<number>' or the file's own id."""

    id: str
    text: str


def requests_of(prompts_per_cell: int, concurrency: int) -> int:
    """How many requests a cell sends: never fewer than keep it at its concurrency for a while."""
    return max(prompts_per_cell, concurrency if concurrency == 1 else WAVES * concurrency)


def render(text: str, chat_format: str) -> str:
    """The text that the engine gets. Raises HostkitError for an unknown format."""
    if chat_format not in CHAT_FORMATS:
        raise HostkitError(
            f"chat format {chat_format!r} is unknown; expected one of {', '.join(CHAT_FORMATS)}"
        )
    return CHAT_FORMATS[chat_format].replace("{0}", text)


def guess_format(model_name: str) -> str:
    """The chat format by a model's name or path; 'none' for a name that says nothing."""
    name = model_name.lower()
    if "kimi" in name:
        return "kimi"
    return "chatml" if "smollm" in name else "none"


def read_prompts(name: str) -> list[Prompt]:
    """A built-in set by its name, or `path:FILE` of somebody else's prompts.

    A file is JSON or JSON lines of objects: {"prompt": text}, ShareGPT ({"conversations":
    [{"from": "human", "value": text}, ...]}), SPEED-Bench ({"turns": [text, ...]}) or
    {"messages": [{"role": "user", "content": text}]}. The first user turn is taken.
    Raises HostkitError when the set, the file or a line of it can't be used.
    """
    if not name.startswith("path:"):
        if name not in BUILT_IN:
            raise HostkitError(
                f"prompt set {name!r} is unknown; expected one of {', '.join(BUILT_IN)} "
                "or path:FILE"
            )
        document = json.loads((FOLDER / f"{name}.json").read_text())
        texts = [str(text) for text in document["prompts"]]
        return [Prompt(f"{name}/{number}", text) for number, text in enumerate(texts)]
    path = Path(name.removeprefix("path:"))
    found = [
        Prompt(str(item.get("id", item.get("question_id", f"{path.stem}/{number}"))), text)
        for number, item in enumerate(_items(path))
        if (text := _first_user_text(item))
    ]
    if not found:
        raise HostkitError(
            f"{path}: no prompt found; expected objects with 'prompt', 'conversations', 'turns' "
            "or 'messages'"
        )
    if len({prompt.id for prompt in found}) != len(found):
        found = [Prompt(f"{path.stem}/{n}", prompt.text) for n, prompt in enumerate(found)]
    return found


def _items(path: Path) -> list[dict[str, Any]]:
    try:
        text = path.read_text()
    except (OSError, UnicodeDecodeError) as error:
        raise HostkitError(f"{path}: prompts can't be read ({error})") from error
    try:
        whole = json.loads(text)
        items = whole.get("prompts", [whole]) if isinstance(whole, dict) else whole
    except ValueError:
        items = []
        for number, line in enumerate(text.splitlines(), 1):
            if line.strip():
                try:
                    items.append(json.loads(line))
                except ValueError as error:
                    raise HostkitError(f"{path}:{number}: expected JSON ({error})") from error
    return [{"prompt": item} if isinstance(item, str) else item for item in items]


def _first_user_text(item: Any) -> str:
    if not isinstance(item, dict):
        return ""
    if isinstance(item.get("prompt"), str):
        return str(item["prompt"])
    turns = item.get("conversations") or item.get("messages") or item.get("turns") or []
    for turn in turns if isinstance(turns, list) else []:
        if isinstance(turn, str):
            return turn
        if isinstance(turn, dict) and turn.get("from", turn.get("role")) in ("human", "user"):
            return str(turn.get("value", turn.get("content", "")))
    return ""
