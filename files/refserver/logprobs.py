"""Log-probabilities of the target, for requests that ask for them (SGLang's return_logprob)."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from .sampling import top_log_probs
from .weights import Array

Entry = tuple[float | None, int]  # (natural log-probability, token id)


@dataclass(frozen=True)
class LogprobWish:
    """`top` alternatives a position; of the prompt's tokens those from index `prompt_start` on."""

    prompt_start: int
    top: int = 0


@dataclass
class Logprobs:
    """What the target gave each token, in order; its softmax at temperature 1, nothing filtered.

    The prompt's first token has no log-probability (None): nothing comes before it.
    """

    prompt: list[Entry] = field(default_factory=list)
    prompt_top: list[list[Entry]] = field(default_factory=list)
    output: list[Entry] = field(default_factory=list)
    output_top: list[list[Entry]] = field(default_factory=list)

    def copy(self, outputs: int) -> "Logprobs":
        """A copy that covers the first `outputs` output tokens."""
        output, top = self.output[:outputs], self.output_top[:outputs]
        return Logprobs(list(self.prompt), list(self.prompt_top), output, top)

    def add_first(self, token: int) -> None:
        """The prompt's first token."""
        self.prompt.append((None, token))
        self.prompt_top.append([])

    def add_prompt(self, logits: Array, tokens: Sequence[int], top: int) -> None:
        """Prompt tokens with the logits [n, vocab] of the positions before them."""
        entries, alternatives = _entries(logits, tokens, top)
        self.prompt += entries
        self.prompt_top += alternatives

    def add_output(self, logits: Array, token: int, top: int) -> None:
        """An output token with the logits [vocab] that it was drawn from."""
        entries, alternatives = _entries(logits[None], [token], top)
        self.output += entries
        self.output_top += alternatives


def _entries(
    logits: Array, tokens: Sequence[int], top: int
) -> tuple[list[Entry], list[list[Entry]]]:
    wide = logits.astype(np.float64)
    largest = wide.max(axis=1)
    normaliser = np.log(np.exp(wide - largest[:, None]).sum(axis=1)) + largest
    chosen = wide[np.arange(len(tokens)), list(tokens)] - normaliser
    entries: list[Entry] = list(zip(chosen.tolist(), tokens, strict=True))
    if not top:
        return entries, [[] for _ in tokens]
    values, ids = top_log_probs(logits, top)
    return entries, [list(zip(v, i, strict=True)) for v, i in zip(values, ids, strict=True)]
