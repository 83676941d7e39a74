"""MLA + MoE target under tensor and expert parallelism: does DDTREE agree with AR?

    python tests/gpu/mla_moe.py --target TINY_MLA --drafter TINY_DRAFTER --out DIR [--tp 2 --ep 2]

Models from `models.py tiny-mla`. AR runs at the same TP, DDTREE also with experts split over EP
ranks. Sampling in between must leave the ranks in step: a greedy comparison follows it.

Gate: the model in fp32 (transformers, one process) reads each output and says how far every token
lies below its own best one. Random weights have many near ties, and bf16 at another batch shape
falls on either side; so AR's own outputs are judged too, and DDTREE may not be further off than
AR is, nor more often.
"""

from __future__ import annotations

import argparse
import random
import sys
from dataclasses import dataclass
from pathlib import Path

import check
from engines import Engine, accept_length, hold

FLAGS = (
    "--moe-runner-backend triton --disable-custom-all-reduce --skip-tokenizer-init "
    "--enforce-disable-flashinfer-allreduce-fusion --max-total-tokens 20000 "
    "--cuda-graph-bs-decode 1 4 --max-running-requests 6"
)
TOKENS = 64
NEAR = 0.25  # logits; two bf16 steps of a logit of 16..32
SLACK = 3  # times AR's worst gap and count: both are extremes of few samples


@dataclass(frozen=True)
class Verdict:
    """How far an arm's tokens lie below the fp32 model's best ones."""

    worst: float
    beyond: int
    tokens: int

    def __str__(self) -> str:
        return f"worst gap {self.worst:.3f}, {self.beyond} of {self.tokens} beyond {NEAR}"


class Judge:
    """The target in fp32, teacher-forced over what a server wrote."""

    def __init__(self, target: str) -> None:
        import torch
        from transformers import AutoModelForCausalLM

        self.torch = torch
        self.device = "cuda" if torch.cuda.is_available() else "cpu"
        model = AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
        self.model = model.to(self.device).eval()

    def __call__(self, prompts: list[list[int]], answers: list[dict]) -> Verdict:
        torch = self.torch
        gaps: list[float] = []
        for prompt, answer in zip(prompts, answers, strict=True):
            out = answer["output_ids"]
            ids = torch.tensor([prompt + out], device=self.device)
            with torch.inference_mode():
                logits = self.model(ids).logits[0, len(prompt) - 1 : -1]
            chosen = logits.gather(1, torch.tensor(out, device=self.device)[:, None])[:, 0]
            gaps += (logits.max(dim=1).values - chosen).tolist()
        return Verdict(max(gaps), sum(gap > NEAR for gap in gaps), len(gaps))


def start(args) -> list[Engine]:
    one = {"target": args.target, "drafter": args.drafter, "logs": args.out}
    flags = (*FLAGS.split(), "--tp", str(args.tp))
    tree = Engine(
        "ddtree", port=32002, width=33, extra=(*flags, "--ep-size", str(args.ep)),
        env={"SGLANG_DDTREE_WIDTHS": "17"}, **one,
    )  # fmt: skip
    return [engine.start() for engine in (Engine("ar", port=32000, extra=flags, **one), tree)]


def run(ar: Engine, tree: Engine, judge: Judge, label: str) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 128) for _ in range(24)] for _ in range(8)]
    how = {"ignore_eos": True}
    expected = ar.generate_all(prompts, TOKENS, 1, **how)
    baseline = judge(prompts, expected)
    print(f"     ar: {baseline}", flush=True)

    def compare(name: str, answers: list[dict]) -> None:
        found = judge(prompts, answers)
        same = sum(
            a["output_ids"] == e["output_ids"] for a, e in zip(answers, expected, strict=True)
        )
        ok = found.worst <= max(NEAR, SLACK * baseline.worst)
        ok = ok and found.beyond <= max(2, SLACK * baseline.beyond)
        text = f"{same} of {len(answers)} as ar, {found}, accept length"
        check.report(f"{label} {name}", ok, f"{text} {accept_length(answers):.3f}")

    for budget, concurrency in ((32, 1), (16, 1), (0, 1), (32, 3), (32, 6)):
        tree.set_budget(budget)
        answers = tree.generate_all(prompts, TOKENS, concurrency, **how)
        compare(f"ddtree-{budget} c{concurrency}", answers)
    tree.generate_all(prompts * 4, 40, 6, temperature=1.0, top_p=0.9, **how)
    compare("after sampling", tree.generate_all(prompts, TOKENS, 4, **how))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tp", type=int, default=2)
    parser.add_argument("--ep", type=int, default=2)
    parser.add_argument("--hold", type=Path, help="check only once this file is there")
    args = parser.parse_args()
    engines = start(args)
    try:
        judge = Judge(args.target)
        for engine in engines:
            engine.wait(240)
        hold(args.hold)
        run(*engines, judge, f"tp{args.tp} ep{args.ep}")
    finally:
        for engine in engines:
            engine.stop()
    print(f"{len(check.failed)} failed: {check.failed}" if check.failed else "all passed")
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
