"""Are an engine's draws those of the target? Judged by the target's exact distribution in fp32.

Why not arm against arm: bf16 rounds logits differently at another batch shape (rms 0.06 to 0.1
for SmolLM2-135M, between shapes as from fp32), and at one place in ten its 4th and 5th are equal.
Which of the two a top-k keeps is an accident of the shape, for AR as for a tree. With the model on
a CPU, two right samplers at two shapes gave p < 0.0001 in a two-sample test of 800 draws. So every
arm is held against the fp32 logits, with NOISE on them for what bf16 rounds. Tokens that the noise
puts now inside, now outside the filter are left out; a draw that is always outside counts in full.
The distance of the draws is compared with that of draws simulated from the noisy logits: what lies
further off is no rounding. AR at two concurrencies is the control.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

sys.path.append(str(Path(__file__).resolve().parents[2] / "files"))

from refserver.sampling import Sampling, distribution

NOISE = 0.1  # logits, rms
LIKELY = 4096  # tokens a node that are simulated; the others weigh a thousandth
ROUNDS = 200
LIMIT = 5.0  # standard deviations of the simulated distances, which are somewhat skewed

Prefix = tuple[int, ...]


@dataclass
class Verdict:
    """Distance of an arm's draws from the target's distribution.

    `z`: standard deviations above the mean of simulated draws. `nodes`: what was drawn behind each
    prefix. `classes` [prefix, token]: what it adds to the distance, and the count expected of it.
    """

    z: float
    nodes: dict[Prefix, Counter[int]]
    left_out: int
    classes: dict[tuple[Prefix, int], tuple[float, float]]

    def __str__(self) -> str:
        draws = sum(node.total() for node in self.nodes.values())
        return (
            f"{self.z:+.1f} sd (below {LIMIT}); {draws} draws, {len(self.classes)} classes, "
            f"{self.left_out} draws at the cut left out"
        )

    def worst(self, others: dict[str, Verdict]) -> list[str]:
        """Lines on the tokens that add most, with how other arms drew them."""
        lines = []
        for prefix, token in sorted(self.classes, key=lambda key: -self.classes[key][0])[:5]:
            drawn = ""
            for name, arm in {"": self, **others}.items():
                node = arm.nodes.get(prefix, Counter())
                drawn += f"{name} {node[token]} of {node.total()}, "
            expected = self.classes[prefix, token][1]
            lines.append(f"     {token} after {prefix}:{drawn}expected {expected:.1f}")
        return lines


def judge_draws(reference, prompt: list[int], outputs: list[list[int]], **how) -> Verdict:
    """Hold the second and third token of each output against the target, given those before them.

    The first comes from the prefill, the same code in all arms. `reference.next_logits` gives the
    fp32 logits; `how` are the filters (top_k, top_p, min_p) at temperature 1. The distance is the
    sum of (sqrt(drawn) - sqrt(expected))^2, which rare tokens do not blow up.
    """
    nodes: dict[Prefix, Counter[int]] = defaultdict(Counter)
    for output in outputs:
        for at in range(1, min(len(output), 3)):
            nodes[tuple(output[:at])][output[at]] += 1
    rng = np.random.default_rng(1)
    simulated, left_out, classes = np.zeros(ROUNDS), 0, {}
    for length in (1, 2):
        prefixes = [prefix for prefix in nodes if len(prefix) == length]
        rows = reference.next_logits([[*prompt, *prefix] for prefix in prefixes])
        for prefix, logits in zip(prefixes, rows.numpy(), strict=True):
            tokens, shares, cut = _noisy_shares(logits, Sampling(1.0, **how), rng)
            if not tokens:  # nothing but near ties
                left_out += nodes[prefix].total()
                continue
            drawn = Counter({t: n for t, n in nodes[prefix].items() if t not in cut})
            left_out += nodes[prefix].total() - drawn.total()
            expected = drawn.total() * shares.mean(axis=0)
            counts = np.array([rng.multinomial(drawn.total(), row) for row in shares])
            simulated += ((np.sqrt(counts) - np.sqrt(expected)) ** 2).sum(axis=1)
            wanted = dict(zip(tokens, expected.tolist(), strict=True))
            for token in drawn | wanted:
                want = wanted.get(token, 0.0)
                classes[prefix, token] = ((drawn[token] ** 0.5 - want**0.5) ** 2, want)
    found = sum(far for far, _ in classes.values())
    z = (found - simulated.mean()) / max(simulated.std(), 1e-6)  # 0 where one token is left to draw
    return Verdict(float(z), nodes, left_out, classes)


def _noisy_shares(logits: np.ndarray, rule: Sampling, rng: np.random.Generator):
    """(tokens that the filter always keeps, their shares [ROUNDS, K], those kept at times)."""
    likely = np.argsort(-logits)[:LIKELY]
    shares = np.zeros((ROUNDS, len(likely)))
    for row in shares:
        kept, weights = distribution(logits[likely] + rng.normal(0, NOISE, len(likely)), rule)
        row[kept] = weights
    always, ever = (shares > 0).all(axis=0), (shares > 0).any(axis=0)
    sure = shares[:, always]
    sure /= sure.sum(axis=1, keepdims=True)
    return likely[always].tolist(), sure, set(likely[ever & ~always].tolist())
