"""Is DDTREE right on this GPU? Greedy agreement with AR, accept lengths, sampling, switches, load.

    python tests/gpu/check.py --target HF_DIR --drafter DIR --out DIR [--dtype float32]

Gates. Greedy agreement: the ids are AR's, or at the first other one the target's own
log-probabilities of the two tokens (asked from the AR server on the same prefix) are within
NEAR_TIE. Accept length: within DRAFTING of what the fp32 target and drafter have on the same text
(replay.py). Sampling: see sampling.py. Prints one line a check and exits 1 if one failed; the
answers are kept in OUT/answers.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
from pathlib import Path

from engines import Engine, accept_length, hold, prompt_ids
from sampling import LIMIT, judge_draws

NEAR_TIE = 0.25  # two bf16 steps of a logit of 16..32
DRAFTING = 0.02
TOKENS = 128
DRAWS = 1600

failed = []


def report(name: str, ok: bool, text: str) -> None:
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {text}", flush=True)
    if not ok:
        failed.append(name)


def gap(ar: Engine, prompt: list[int], a: list[int], b: list[int]) -> tuple[int, float] | None:
    """First position where two outputs differ, and the target's own gap there; None if equal."""
    for at, (x, y) in enumerate(zip(a, b, strict=False)):
        if x != y:
            answer = ar.ask(
                {
                    "input_ids": prompt + a[:at],
                    "sampling_params": {"temperature": 0, "max_new_tokens": 1},
                    "return_logprob": True,
                    "top_logprobs_num": 20,
                }
            )
            top = {t[1]: t[0] for t in answer["meta_info"]["output_top_logprobs"][0]}
            return at, abs(top.get(x, -99.0) - top.get(y, -99.0))
    return None


def agreement(name: str, ar: Engine, prompts, expected, answers) -> None:
    gaps = [
        gap(ar, p, e["output_ids"], a["output_ids"])
        for p, e, a in zip(prompts, expected, answers, strict=True)
    ]
    apart = [g for g in gaps if g is not None]
    worst = max((g[1] for g in apart), default=0.0)
    text = f"{len(gaps) - len(apart)} of {len(gaps)} identical, worst gap {worst:.3f} of {apart}"
    report(f"greedy {name}", worst <= NEAR_TIE, text)


def drafting(ar: Engine, chain: Engine, tree: Engine, reference, prompts, expected) -> dict:
    """Agreement and accept lengths of DFLASH and of all budgets; returns the answers to keep.

    DFLASH's own chain is the control: what it loses against fp32 is bf16's doing, and no failure.
    """
    kept = {"prompts": prompts, "ar": [e["output_ids"] for e in expected]}
    for arm in ("dflash", "0", "8", "16", "32", "64"):
        engine, budget = (chain, 0) if arm == "dflash" else (tree, int(arm))
        if engine is tree:
            tree.set_budget(budget)
        answers = engine.generate_all(prompts, TOKENS, 1)
        kept[arm] = [[a["output_ids"], a["meta_info"]["spec_verify_ct"]] for a in answers]
        name = arm if engine is chain else f"ddtree-{arm}"
        agreement(name, ar, prompts, expected, answers)
        own = accept_length(answers)
        fp32 = reference.accept_length(budget, prompts, [a["output_ids"] for a in answers])
        ok = abs(own / fp32 - 1) <= DRAFTING or engine is chain
        report(f"accept {name}", ok, f"{own:.3f}, fp32 on its text {fp32:.3f} x {own / fp32:.3f}")
    print("a request:", json.dumps(answers[0]["meta_info"]), flush=True)
    return kept


def sampling(name: str, reference, ar: Engine, tree: Engine, prompt: list[int], **how) -> None:
    verdicts = {}
    arms = {"ar at 12 (control)": ar, "ar at 3 (control)": ar, "ddtree at 12": tree}
    for arm, engine in arms.items():
        concurrency = int(arm.split()[2])
        answers = engine.generate_all([prompt] * DRAWS, 3, concurrency, temperature=1.0, **how)
        verdicts[arm] = judge_draws(reference, prompt, [a["output_ids"] for a in answers], **how)
    for arm, verdict in verdicts.items():
        report(f"sampling {name}, {arm}", verdict.z < LIMIT, str(verdict))
        if verdict.z >= LIMIT:
            others = {other: v for other, v in verdicts.items() if other != arm}
            print(*verdict.worst(others), sep="\n", flush=True)


def abort_some(engine: Engine, prompts) -> None:
    """Long requests whose clients leave after half a second, among others that stay."""

    def leave(prompt):
        how = {"max_new_tokens": 1500, "ignore_eos": True}
        with contextlib.suppress(OSError):
            engine.ask({"input_ids": prompt, "sampling_params": how}, timeout_s=0.5)

    threads = [threading.Thread(target=leave, args=(p,)) for p in prompts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--page-size", default="1")
    parser.add_argument("--hold", type=Path, help="check only once this file is there")
    args = parser.parse_args()
    graphs = (
        "--cuda-graph-bs-decode",
        "1",
        "2",
        "4",
        "8",
        "--max-running-requests",
        "12",
        "--dtype",
        args.dtype,
        "--page-size",
        args.page_size,
    )
    pool = ("--max-total-tokens", "40000")
    one = {"target": args.target, "drafter": args.drafter, "logs": args.out}
    ar = Engine("ar", port=31000, extra=(*graphs, *pool), **one)
    chain = Engine("dflash", port=31001, extra=(*graphs, *pool), **one)
    tree = Engine(
        "ddtree", port=31002, extra=(*graphs, "--max-total-tokens", "6000"),
        env={"SGLANG_DDTREE_WIDTHS": "9,17,33"}, **one,
    )  # fmt: skip
    engines = [engine.start() for engine in (tree, ar, chain)]
    try:
        from replay import Reference  # torch takes seconds to import: meanwhile the servers start

        reference = Reference(args.target, args.drafter)
        for engine in engines:
            engine.wait(240)
        print("servers are up", flush=True)
        hold(args.hold)
        run(ar, chain, tree, reference, args)
    finally:
        for engine in engines:
            engine.stop()
    print(f"{len(failed)} failed: {failed}" if failed else "all passed")
    sys.exit(bool(failed))


def run(ar: Engine, chain: Engine, tree: Engine, reference, args) -> None:
    prompts = prompt_ids(args.target)
    expected = ar.generate_all(prompts, TOKENS, 1)
    kept = drafting(ar, chain, tree, reference, prompts, expected)
    (args.out / "answers.json").write_text(json.dumps(kept))
    for concurrency in (3, 8, 11):  # padded to a captured size, captured, and above all of them
        answers = tree.generate_all(prompts * 2, TOKENS, concurrency)
        agreement(f"concurrency {concurrency}", ar, prompts * 2, expected * 2, answers)
    # a second turn starts on cached KV that a tree step has moved
    turns = [p + e["output_ids"][:60] for p, e in zip(prompts, expected, strict=True)]
    agreement(
        "second turn", ar, turns, ar.generate_all(turns, 48, 1), tree.generate_all(turns, 48, 1)
    )
    # a prefix of many blocks; chat turns that repeat are the longest text that these prompts give
    long_ids = [(p + e["output_ids"]) * 40 for p, e in zip(prompts, expected, strict=True)]
    long_ids = [ids[:3000] for ids in long_ids[:4]]
    agreement(
        "3000 tokens before", ar, long_ids, ar.generate_all(long_ids, 48, 1),
        tree.generate_all(long_ids, 48, 1),
    )  # fmt: skip
    tree.set_budget(16)
    for name, how in (
        ("top_k 4", {"top_k": 4}),
        ("top_p 0.8", {"top_p": 0.8, "top_k": 20}),
        ("min_p 0.2", {"min_p": 0.2}),
    ):
        sampling(name, reference, ar, tree, prompts[1], **how)
    plain = tree.generate_all(prompts, 48, 4)
    fewer = tree.generate_all(prompts, 48, 4, presence_penalty=1.5)
    kinds = [sum(len(set(a["output_ids"])) for a in answers) for answers in (plain, fewer)]
    report("penalties", kinds[1] > kinds[0], f"distinct tokens {kinds[0]} -> {kinds[1]}")
    bias = tree.generate(prompts[0], 4, logit_bias={str(expected[0]["output_ids"][0]): -100.0})
    report("logit bias", bias["output_ids"][0] != expected[0]["output_ids"][0], "shuns the token")
    for name, body in (
        ("grammar refused", {"sampling_params": {"regex": "[a-z]+", "max_new_tokens": 4}}),
        ("logprob refused", {"return_logprob": True, "sampling_params": {"max_new_tokens": 4}}),
    ):
        answer = tree.ask({"text": "Hi", **body})
        report(name, "support" in json.dumps(answer), json.dumps(answer)[:160])
    for bad in (65, -1):
        answer = tree.ask(
            {"server_args": {"speculative_ddtree_budget": bad}}, "/set_internal_state"
        )
        report(f"budget {bad} refused", answer.get("status") == 400, str(answer)[:160])
    rng = random.Random(5)
    long = [rng.choice(prompts) for _ in range(12)]
    answers = tree.generate_all(long, 700, 12, ignore_eos=True)  # more than 6000 tokens: retraction
    report("retraction", all(len(a["output_ids"]) == 700 for a in answers), "12 x 700 tokens")
    abort_some(tree, long)
    tree.set_budget(64)
    answers = tree.generate_all(prompts, TOKENS, 1)
    agreement("after aborts", ar, prompts, expected, answers)


if __name__ == "__main__":
    main()
