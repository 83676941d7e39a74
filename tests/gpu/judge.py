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


class Judge:
    """The target in fp32, on the GPU if there is one."""

    def __init__(self, target: str) -> None:
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self.model = model.to(self.device).eval()

    def __call__(self, prompts: list[list[int]], answers: list[dict]) -> Verdict:
        gaps: list[float] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            out = answer["output_ids"]
            ids = torch.tensor([prompt + out], device=self.device)
            with torch.inference_mode():
                logits = self.model(ids).logits[0, len(prompt) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(out, device=self.device)[:, None])[:, 0]
            gaps += (logits.max(dim=1).values - chosen).tolist()
        return Verdict(max(gaps), sum(gap > NEAR for gap in gaps), len(gaps))
