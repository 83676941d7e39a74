"""Pooled accept lengths by replay: the target's greedy text once, all budgets over it.

At every position of the text the drafter's block is proposed from the target's features of the
tokens before it. A budget's run then steps through the text, builds its tree from the block and
accepts as far as the text goes on with it. Same figures as real runs, at a fraction of the cost,
because budgets share the text and the blocks.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from refserver.drafter import Drafter
from refserver.engine import Engine, Loaded
from refserver.model import Model
from refserver.output import Request
from refserver.sampling import GREEDY, top_log_probs
from refserver.tree import best_first, chain, walk

PROMPTS = (
    "What is the capital of France and what is it known for?",
    "Write a short story about a robot who learns to paint.",
    "Explain how photosynthesis works.",
    "Write a Python function that checks whether a number is prime.",
    "List five tips for better sleep.",
    "Describe the water cycle.",
    "What are the benefits of regular exercise?",
    "Write a poem about the sea.",
)
BUDGETS = (0, 4, 8, 16, 32, 64, 128)


@dataclass
class Count:
    """Emitted tokens and verify steps; their ratio is the accept length."""

    emitted: int = 0
    steps: int = 0

    @property
    def accept_length(self) -> float:
        return self.emitted / self.steps


@dataclass(frozen=True)
class Text:
    """A prompt and what the target says to it, and for each position the target's features."""

    ids: tuple[int, ...]
    prompt_length: int
    features: np.ndarray
    greedy: np.ndarray  # the target's own next token behind each position


def greedy_output(loaded: Loaded, prompt: str, new_tokens: int) -> tuple[int, ...]:
    """The target's greedy answer, token by token."""
    ids = tuple(loaded.tokenizer.encode_chat([{"role": "user", "content": prompt}]))
    engine = Engine(Loaded(loaded.target, loaded.tokenizer))
    return engine.generate(Request(ids, new_tokens, GREEDY)).output_ids


def read_text(loaded: Loaded, prompt: str, output: Sequence[int]) -> Text:
    """Run prompt and output through the target at once."""
    start = loaded.tokenizer.encode_chat([{"role": "user", "content": prompt}])
    ids = (*start, *output)
    model = Model(loaded.target, len(ids), loaded.drafter.config.target_layer_ids)
    n = len(ids)
    hidden, features = model.forward(np.array(ids), np.arange(n), np.tri(n, dtype=np.bool_))
    return Text(ids, len(start), features, model.logits(hidden).argmax(axis=1))


def replay(loaded: Loaded, text: Text, budgets: Sequence[int], counts: dict[int, Count]) -> None:
    """Add one text's emitted tokens and verify steps to `counts`, for each budget."""
    drafter = Drafter(loaded.drafter, loaded.target, len(text.ids))
    drafter.extend(text.features[: text.prompt_length])
    blocks = {}
    for at in range(text.prompt_length, len(text.ids) - 1):
        blocks[at] = top_log_probs(drafter.propose(text.ids[at]), max(*budgets, 1))
        drafter.extend(text.features[at : at + 1])
    for budget in budgets:
        count, at = counts.setdefault(budget, Count()), text.prompt_length
        while at < len(text.ids) - 1:
            accepted = _accepted(blocks[at], text.ids[at:], budget)
            count.steps += 1
            count.emitted += accepted + 1
            at += accepted + 1


def _accepted(block, rest: Sequence[int], budget: int) -> int:
    log_probs, tokens = block
    if budget:
        kept = [row[:budget] for row in log_probs], [row[:budget] for row in tokens]
        tree = best_first(rest[0], *kept, budget)
    else:
        tree = chain(rest[0], [row[0] for row in tokens])
    path, _ = walk(tree, lambda node: (*rest, -1)[min(tree.depths[node] + 1, len(rest))])
    return len(path) - 1
