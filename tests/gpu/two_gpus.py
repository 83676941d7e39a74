"""Tensor and expert parallelism with an MLA + MoE target on two GPUs: does DDTREE agree with AR?

    python tests/gpu/two_gpus.py --target TINY_MLA --drafter TINY_DRAFTER --out DIR

Models from `models.py tiny-mla`. AR runs at TP2, DDTREE at TP2 with experts split over both GPUs.
Sampling in between must leave the ranks in step: a greedy comparison follows it.
"""

from __future__ import annotations

import argparse
import random
import sys
from pathlib import Path

import check
from engines import Engine, accept_length

FLAGS = (
    "--tp 2 --moe-runner-backend triton --disable-custom-all-reduce --skip-tokenizer-init "
    "--enforce-disable-flashinfer-allreduce-fusion --max-total-tokens 20000 "
    "--cuda-graph-bs-decode 1 4 --max-running-requests 6"
)


def start(args) -> list[Engine]:
    one = {"target": args.target, "drafter": args.drafter, "logs": args.out}
    flags = tuple(FLAGS.split())
    tree = Engine(
        "ddtree", port=32002, width=33, extra=(*flags, "--ep-size", "2"),
        env={"SGLANG_DDTREE_WIDTHS": "17"}, **one,
    )  # fmt: skip
    return [engine.start() for engine in (Engine("ar", port=32000, extra=flags, **one), tree)]


def run(ar: Engine, tree: Engine) -> None:
    rng = random.Random(3)
    prompts = [[rng.randrange(3, 128) for _ in range(24)] for _ in range(8)]
    how = {"ignore_eos": True}
    expected = ar.generate_all(prompts, 64, 1, **how)
    for budget, concurrency in ((32, 1), (16, 1), (0, 1), (32, 3), (32, 6)):
        tree.set_budget(budget)
        answers = tree.generate_all(prompts, 64, concurrency, **how)
        name = f"tp2 ep2 ddtree-{budget} c{concurrency}"
        check.agreement(name, ar, prompts, expected, answers)
        print(f"     accept length {accept_length(answers):.3f}", flush=True)
    tree.generate_all(prompts * 4, 40, 6, temperature=1.0, top_p=0.9, **how)
    answers = tree.generate_all(prompts, 64, 4, **how)
    check.agreement("tp2 ep2 after sampling", ar, prompts, expected, answers)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    engines = start(args)
    try:
        for engine in engines:
            engine.wait(150)
        run(*engines)
    finally:
        for engine in engines:
            engine.stop()
    print(f"{len(check.failed)} failed: {check.failed}" if check.failed else "all passed")
    sys.exit(bool(check.failed))


if __name__ == "__main__":
    main()
