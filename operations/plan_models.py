"""What the planner must know of a model, for the models that it knows.

A checkpoint lies on the Hub or on the host while the plan is made on the controller, so the few
figures that decide a plan stand here. A model that is not in the table is planned conservatively
(`UNKNOWN`): backends that are right for every architecture, no claim about what fits.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from enum import StrEnum


class Attention(StrEnum):
    """The kind of attention, as far as it decides which backends work."""

    MHA = "MHA"  # multi-head or grouped-query attention
    MLA = "MLA"  # multi-head latent attention (DeepSeek, Kimi)
    UNKNOWN = "unknown"


@dataclass(frozen=True)
class TargetFacts:
    """A target. None is unknown; `experts` is 0 for a dense model; `size_bytes` on disk.

    `arguments` are the SGLang arguments that this checkpoint always needs.
    """

    title: str
    attention: Attention = Attention.UNKNOWN
    heads: int | None = None
    layers: int | None = None
    experts: int | None = None
    int4_experts: bool = False
    size_bytes: int | None = None
    context_length: int | None = None
    arguments: tuple[str, ...] = ()


@dataclass(frozen=True)
class DrafterFacts:
    """A drafter: its block L (None: only its checkpoint says) and its size on disk."""

    title: str
    block: int | None = None
    size_bytes: int | None = None


UNKNOWN = TargetFacts("a model that the planner does not know")
UNKNOWN_DRAFTER = DrafterFacts("a drafter that the planner does not know")

KIMI = TargetFacts(
    title="Kimi K2.6 (MLA, MoE with 384 experts, INT4, 61 layers)",
    attention=Attention.MLA,
    heads=64,
    layers=61,
    experts=384,
    int4_experts=True,
    size_bytes=548_000_000_000,
    # Room for KV on 8 cards of 96 GB is 170,000 to 232,000 tokens in all, and a longer limit
    # costs speed at every length (rtx6kpro wiki, kimi-k26).
    context_length=131_072,
    arguments=(
        "--trust-remote-code",
        "--tool-call-parser",
        "kimi_k2",
        "--reasoning-parser",
        "kimi_k2",
    ),
)
SMOLLM2 = TargetFacts(
    title="SmolLM2-135M (GQA with 9 heads, dense, 30 layers)",
    attention=Attention.MHA,
    heads=9,
    layers=30,
    experts=0,
    size_bytes=270_000_000,
)

# Source text -> facts; the first match counts.
_TARGETS = (
    (re.compile(r"kimi-k2\.6(?!.*dflash)", re.IGNORECASE), KIMI),
    (re.compile(r"smollm2", re.IGNORECASE), SMOLLM2),
)
_DRAFTERS = (
    (
        re.compile(r"kimi-k2\.6-dflash", re.IGNORECASE),
        DrafterFacts("Kimi K2.6 DFlash", size_bytes=6_500_000_000),
    ),
    (
        re.compile(r"smollm2-135m-dflash-b(8|16)", re.IGNORECASE),
        DrafterFacts("SmolLM2-135M DFlash", size_bytes=32_000_000),
    ),
)


def target_facts(source: str) -> TargetFacts:
    """The facts of the target that `source` names, or UNKNOWN."""
    return next((facts for pattern, facts in _TARGETS if pattern.search(source)), UNKNOWN)


def drafter_facts(source: str) -> DrafterFacts:
    """The facts of the drafter that `source` names, or UNKNOWN_DRAFTER. A "-bN" names its block."""
    for pattern, facts in _DRAFTERS:
        match = pattern.search(source)
        if match and match.groups():
            return DrafterFacts(facts.title, int(match[1]), facts.size_bytes)
        if match:
            return facts
    return UNKNOWN_DRAFTER
