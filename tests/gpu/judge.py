"""How far an engine's greedy tokens lie below the target's own best ones, in fp32.

Near ties fall on either side in bf16, and another batch shape rounds otherwise, so greedy texts of
two arms part although both are right. The fp32 model, teacher-forced over each text, tells: a gap
is its best logit less that of the token that was written. Autoregressive decoding of the same
engine is judged too; an arm is as good if it is neither further off nor off more often.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from transformers import AutoModelForCausalLM

NEAR = 0.25  # logits; two bf16 steps of a logit of 16..32
SLACK = 2  # times the baseline's worst gap and count: both are extremes of few samples


@dataclass(frozen=True)
class Verdict:
    """Gaps of an arm: the largest, and how many of how many tokens lie beyond NEAR."""

    worst: float
    beyond: int
    tokens: int

    def __str__(self) -> str:
        return f"worst gap {self.worst:.3f}, {self.beyond} of {self.tokens} beyond {NEAR}"

    def as_good_as(self, baseline: Verdict) -> bool:
        return self.worst <= max(NEAR, SLACK * baseline.worst) and self.beyond <= max(
            2, SLACK * baseline.beyond
        )


def fp32(target: str):
    """The target's model in fp32, on the GPU if there is one."""
    model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    return model.to("cuda" if torch.cuda.is_available() else "cpu").eval()


class Judge:
    """Verdicts by an fp32 model."""

    def __init__(self, model) -> None:
        self.model = model

    def __call__(self, prompts: list[list[int]], answers: list[dict], **penalties) -> Verdict:
        """`penalties`: those that the answers were asked with, see `penalized`."""
        gaps: list[float] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            out = torch.tensor(answer["output_ids"], device=self.model.device)
            ids = torch.tensor([prompt + answer["output_ids"]], device=self.model.device)
            with torch.inference_mode():
                logits = self.model(ids).logits[0, len(prompt) - 1 : -1]
            logits = penalized(logits, out, **penalties)
            chosen = logits.gather(1, out[:, None])[:, 0]
            gaps += (logits.max(dim=1).values - chosen).tolist()
        return Verdict(max(gaps), sum(gap > NEAR for gap in gaps), len(gaps))


def penalized(
    logits: torch.Tensor,
    output: torch.Tensor,
    frequency_penalty: float = 0.0,
    presence_penalty: float = 0.0,
    repetition_penalty: float = 1.0,
) -> torch.Tensor:
    """Logits [T, V] of the T tokens of `output`, each penalized by all tokens before it."""
    told = torch.nn.functional.one_hot(output, logits.shape[-1])
    times = told.cumsum(0) - told
    logits = logits - frequency_penalty * times - presence_penalty * (times > 0)
    scale = torch.where(times > 0, repetition_penalty, 1.0)
    return torch.where(logits < 0, logits * scale, logits / scale)
