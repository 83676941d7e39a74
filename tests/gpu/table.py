"""Measure AR, DFLASH and DDTREE on one GPU, arms interleaved, and print a table.

    python tests/gpu/table.py --target HF_DIR --drafter DIR --out DIR [--budgets 16,32,64]

All servers stay loaded; a round asks every arm once, in a new order. Speed is emitted tokens over
wall time of the arm's requests, prefill included; greedy, end-of-text ignored, so that each arm
writes the same number of tokens. Ratios are of one round's two figures; medians with min..max.
Arms' texts part at near ties, and other texts have other accept lengths: `replay.py --table` tells
the gains apart from that luck. The arm 'extend' is DDTREE with SGLang's own prefill kernel for
verify, to tell what ours brings.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import time
from pathlib import Path

import check
from engines import Engine, accept_length, hold, prompt_ids, running, step_ms, wait


def measure(engine: Engine, prompts, tokens: int, concurrency: int) -> dict:
    start = time.perf_counter()
    answers = engine.generate_all(prompts, tokens, concurrency, ignore_eos=True)
    wall = time.perf_counter() - start
    emitted = sum(a["meta_info"]["completion_tokens"] for a in answers)
    found = {"tok_s": emitted / wall, "wall_s": wall, "tokens": emitted}
    if engine.arm != "ar":
        found["accept"] = accept_length(answers)
        found["steps"] = sum(a["meta_info"]["spec_verify_ct"] for a in answers)
    return found


def spread(values: list[float], digits: int = 1) -> str:
    middle = statistics.median(values)
    return f"{middle:.{digits}f} ({min(values):.{digits}f}..{max(values):.{digits}f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--same-as", help="a smaller folder of the same function, for the judge")
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budgets", default="15,31,63", help="auto: chosen step by step")
    parser.add_argument("--widths", default="16,32")
    parser.add_argument("--width", type=int, default=64)
    parser.add_argument("--concurrency", default="1,8")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=192)
    parser.add_argument("--arms", default="ar,dflash,ddtree")
    parser.add_argument("--extend-budgets", default="15", help="of extend: see above")
    parser.add_argument("--hold", type=Path, help="measure only once this file is there")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    graphs = (
        "--cuda-graph-bs-decode",
        "1",
        "2",
        "4",
        "8",
        "--max-running-requests",
        "8",
        "--max-total-tokens",
        "40000",
    )
    env = {"SGLANG_DDTREE_WIDTHS": args.widths}
    if "auto" in args.budgets:
        env["SGLANG_DDTREE_ADAPTIVE"] = "1"
    envs = {"ddtree": env, "extend": {**env, "SGLANG_DDTREE_SPLIT_ATTENTION": "0"}}
    engines = {
        arm: Engine(
            "ddtree" if arm in envs else arm, args.target, args.drafter, 28000 + i, args.out,
            width=args.width, extra=graphs, env=envs.get(arm, {}),
        )
        for i, arm in enumerate(args.arms.split(","))
    }  # fmt: skip
    rows: list[dict] = []
    with running(list(engines.values())):
        from judge import Judge, fp32  # torch takes seconds to import: meanwhile the servers start

        judge = Judge(fp32(args.same_as or args.target))
        wait(list(engines.values()))
        arms = gate(engines, judge, args)
        hold(args.hold)
        try:
            run(engines, arms, args, rows)
        finally:
            show(rows, arms_of(engines, args))
        if "ddtree-auto" in arms:
            print("ddtree", use(engines, "ddtree-auto").state())
    check.finish()


def gate(engines: dict[str, Engine], judge, args) -> list[str]:
    """The arms that answer; no speed without agreement (judge.py).

    The answers are kept, for replay.py.
    """
    prompts = prompt_ids(args.target)
    kept: dict = {"prompts": prompts}
    baseline, arms = None, []
    for arm in arms_of(engines, args):
        with check.attempt(f"greedy {arm}"):
            engine = use(engines, arm)
            answers = engine.generate_all(prompts, 128, 3 if arm == "ddtree-31" else 1)
            found = judge(prompts, answers)
            baseline = baseline or found
            check.report(f"greedy {arm}", found.as_good_as(baseline), str(found))
            steps = [answer["meta_info"].get("spec_verify_ct") for answer in answers]
            outputs = [answer["output_ids"] for answer in answers]
            name = arm.removeprefix("ddtree-")
            kept[name] = [list(pair) for pair in zip(outputs, steps, strict=True)]
            (args.out / "answers.json").write_text(json.dumps(kept))
            arms.append(arm)
    return arms


def arms_of(engines: dict[str, Engine], args) -> list[str]:
    arms = [arm for arm in engines if arm not in ("ddtree", "extend")]
    for name, budgets in (("ddtree", args.budgets), ("extend", args.extend_budgets)):
        if name in engines:
            arms += [f"{name}-{budget}" for budget in budgets.split(",")]
    return arms


def use(engines: dict[str, Engine], arm: str) -> Engine:
    """The arm's engine, its budget set."""
    name, _, budget = arm.partition("-")
    if budget:
        engines[name].set_budget(-1 if budget == "auto" else int(budget))
    return engines[name]


def run(engines: dict[str, Engine], arms: list[str], args, rows: list[dict]) -> None:
    """Add a row for each measurement to `rows`; an arm that fails is left out of later rounds."""
    prompts = prompt_ids(args.target)
    rng = random.Random(1)
    for round_number in range(-1, args.rounds):  # round -1 warms up
        for concurrency in map(int, args.concurrency.split(",")):
            for arm in rng.sample(arms, len(arms)):
                # half of them in turn: all would take too long, always the same says too little
                asked = prompts[round_number % 2 :: 2] if concurrency == 1 else prompts
                tokens = 48 if round_number < 0 else args.tokens
                found: dict = {}
                with check.attempt(f"speed {arm}"):
                    found = measure(use(engines, arm), asked, tokens, concurrency)
                if not found:
                    arms.remove(arm)
                elif round_number >= 0:
                    rows.append(
                        {"arm": arm, "round": round_number, "concurrency": concurrency, **found}
                    )
        (args.out / "table.json").write_text(json.dumps(rows))


def show(rows: list[dict], arms: list[str]) -> None:
    for concurrency in sorted({row["concurrency"] for row in rows}):
        print(f"\nconcurrency {concurrency}")
        print(f"{'arm':12} {'tok/s':>24} {'x dflash':>22} {'accept':>7} {'ms a step':>10}")
        mine = [row for row in rows if row["concurrency"] == concurrency]
        base = {row["round"]: row["tok_s"] for row in mine if row["arm"] == "dflash"}
        for arm in arms:
            own = [row for row in mine if row["arm"] == arm]
            if not own:
                continue
            ratios = [row["tok_s"] / base[row["round"]] for row in own if row["round"] in base]
            accept = statistics.mean(row.get("accept", 1.0) for row in own)
            print(
                f"{arm:12} {spread([row['tok_s'] for row in own]):>24} "
                f"{spread(ratios, 3) if ratios else '':>22} {accept:7.3f} "
                f"{statistics.median(map(step_ms, own)):10.2f}"
            )


if __name__ == "__main__":
    main()
