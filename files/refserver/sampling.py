"""Draws a token from logits: greedy, or temperature with top-k, top-p and min-p."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from .weights import Array

Ints = np.ndarray[Any, np.dtype[np.int64]]


@dataclass(frozen=True)
class Sampling:
    """How to draw. Temperature 0 is greedy; top_k -1, top_p 1 and min_p 0 keep all tokens."""

    temperature: float = 1.0
    top_k: int = -1
    top_p: float = 1.0
    min_p: float = 0.0


GREEDY = Sampling(temperature=0.0)


def draw(logits: Array, sampling: Sampling, rng: np.random.Generator) -> int:
    """One token id from logits [vocab]."""
    if sampling.temperature == 0.0 or sampling.top_k == 1:
        return int(logits.argmax())
    tokens, probs = distribution(logits, sampling)
    picked = np.searchsorted(probs.cumsum(), rng.random() * probs.sum(), side="right")
    return int(tokens[min(int(picked), len(tokens) - 1)])


def distribution(
    logits: Array, sampling: Sampling
) -> tuple[Ints, np.ndarray[Any, np.dtype[np.float64]]]:
    """(token ids, weights) that are left, weights not normalised.

    Filters as SGLang applies them: top-k, top-p and min-p each judge the full softmax, and a token
    must pass all. Top-p keeps the heaviest tokens whose preceding mass is at most top_p.
    """
    scaled = logits.astype(np.float64) / sampling.temperature
    probs = np.exp(scaled - scaled.max())
    probs /= probs.sum()
    tokens = np.arange(len(probs))
    if sampling.min_p > 0.0:
        tokens = tokens[probs >= sampling.min_p * probs.max()]
    if 0 < sampling.top_k < len(tokens):
        heaviest = np.argpartition(-probs[tokens], sampling.top_k - 1)[: sampling.top_k]
        tokens = tokens[heaviest]
    if sampling.top_p < 1.0:
        tokens = tokens[np.argsort(-probs[tokens], kind="stable")]
        before = probs[tokens].cumsum() - probs[tokens]
        tokens = tokens[before <= sampling.top_p]
    return tokens, probs[tokens]


def top_log_probs(logits: Array, k: int) -> tuple[list[list[float]], list[list[int]]]:
    """The k largest log-probabilities of each row of [n, vocab] and their tokens, falling.

    The normaliser runs over the full vocabulary. Ties go to the smaller token id.
    """
    k = min(k, logits.shape[1])
    shifted = logits - logits.max(axis=1, keepdims=True)
    normaliser = np.log(np.exp(shifted).sum(axis=1, dtype=np.float64))
    if k < logits.shape[1]:
        found = np.argpartition(-logits, k - 1, axis=1)[:, :k]
        found.sort(axis=1)
    else:
        found = np.broadcast_to(np.arange(k), (len(logits), k))
    order = np.argsort(-np.take_along_axis(logits, found, 1), axis=1, kind="stable")
    tokens = np.take_along_axis(found, order, 1)
    values = np.take_along_axis(shifted, tokens, 1).astype(np.float64) - normaliser[:, None]
    return values.tolist(), tokens.tolist()
