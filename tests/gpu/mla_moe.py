"""MLA + MoE target under tensor and expert parallelism: does DDTREE agree with AR?

    python tests/gpu/mla_moe.py --target TINY_MLA --drafter TINY_DRAFTER --out DIR [--tp 2 --ep 2]

Models from `models.py tiny-mla`. AR runs at the same TP, DDTREE also with experts split over EP
ranks. Sampling in between must leave the ranks in step: a greedy comparison follows it.

Gate: judge.py.
"""

from __future__ import annotations

import argparse
import random
from pathlib import Path

import check
from engines import Engine, accept_length, hold, running, wait

FLAGS = (
    "--moe-runner-backend triton --disable-custom-all-reduce --skip-tokenizer-init "
    "--enforce-disable-flashinfer-allreduce-fusion --max-total-tokens 20000 "
    "--cuda-graph-bs-decode 1 4 --max-running-requests 6"
)
TOKENS = 64


def servers(args) -> list[Engine]:
    one = {"target": args.target, "drafter": args.drafter, "logs": args.out}
    flags = (*FLAGS.split(), "--tp", str(args.tp))
    tree = Engine(
        "ddtree", port=32002, width=33, extra=(*flags, "--ep-size", str(args.ep)),
        env={"SGLANG_DDTREE_WIDTHS": "17"}, **one,
    )  # fmt: skip
    return [Engine("ar", port=32000, extra=flags, **one), tree]


def run(ar: Engine, tree: Engine, judge, label: str) -> None:
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
        text = f"{same} of {len(answers)} as ar, {found}, accept length"
        name = f"{label} {name}"
        check.report(name, found.as_good_as(baseline), f"{text} {accept_length(answers):.3f}")

    for budget, concurrency in ((32, 1), (16, 1), (0, 1), (32, 3), (32, 6)):
        with check.attempt(f"{label} ddtree-{budget} c{concurrency}"):
            tree.set_budget(budget)
            answers = tree.generate_all(prompts, TOKENS, concurrency, **how)
            compare(f"ddtree-{budget} c{concurrency}", answers)
    with check.attempt(f"{label} after sampling"):
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
    engines = servers(args)
    with running(engines):
        from judge import Judge, fp32  # torch takes seconds to import: meanwhile the servers start

        judge = Judge(fp32(args.target))
        wait(engines)
        hold(args.hold)
        with check.attempt("ar"):
            run(*engines, judge, f"tp{args.tp} ep{args.ep}")
    check.finish()


if __name__ == "__main__":
    main()
