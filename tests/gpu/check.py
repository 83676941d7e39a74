"""Is DDTREE right on this GPU? Greedy agreement with AR, accept lengths, sampling, switches, load.

    python tests/gpu/check.py --target HF_DIR --drafter DIR --out DIR [--dtype float32]

Gate of greedy agreement: the ids are AR's, or at the first other one the target's own
log-probabilities of the two tokens (asked from the AR server on the same prefix) are within
NEAR_TIE. Prints one line a check and exits 1 if one failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sys
import threading
from collections import Counter
from pathlib import Path

from engines import Engine, accept_length, hold, prompt_ids

NEAR_TIE = 0.25  # two bf16 steps of a logit of 16..32
TOKENS = 128
# fp32, plain heap, the drafter smollm2-135m-dflash-b16, these prompts (chain 1.704)
REFERENCE = {0: 1.704, 8: 2.057, 16: 2.208, 32: 2.380, 64: 2.532}

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


def two_sample_p(a: Counter, b: Counter) -> float:
    """p of a two-sample chi-square; classes seen fewer than ten times are pooled."""
    from scipy.stats import chi2_contingency

    classes = [c for c in a | b if a[c] + b[c] >= 10]
    rows = [
        [x[c] for c in classes] + [sum(x.values()) - sum(x[c] for c in classes)] for x in (a, b)
    ]
    if sum(row[-1] for row in rows) == 0:
        rows = [row[:-1] for row in rows]
    return float(chi2_contingency(rows)[1])


def sampling(name: str, ar: Engine, tree: Engine, prompt: list[int], n: int, **how) -> None:
    seen = []
    for engine in (ar, tree):
        answers = engine.generate_all([prompt] * n, 4, 12, temperature=1.0, **how)
        seen.append(Counter(tuple(a["output_ids"][1:3]) for a in answers))
    p = two_sample_p(*seen)
    report(f"sampling {name}", p > 0.001, f"{n} draws each, {len(seen[0])} classes, p={p:.3f}")


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
        for engine in engines:
            engine.wait(240)
        print("servers are up", flush=True)
        hold(args.hold)
        run(ar, chain, tree, args)
    finally:
        for engine in engines:
            engine.stop()
    print(f"{len(failed)} failed: {failed}" if failed else "all passed")
    sys.exit(bool(failed))


def run(ar: Engine, chain: Engine, tree: Engine, args) -> None:
    prompts = prompt_ids(args.target)
    expected = ar.generate_all(prompts, TOKENS, 1)
    results = {}
    for name, engine in (("dflash", chain), ("ddtree-0", tree)):
        if engine is tree:
            tree.set_budget(0)
        answers = engine.generate_all(prompts, TOKENS, 1)
        results[name] = accept_length(answers)
        agreement(name, ar, prompts, expected, answers)
    for budget in (8, 16, 32, 64):
        tree.set_budget(budget)
        answers = tree.generate_all(prompts, TOKENS, 1)
        results[budget] = accept_length(answers)
        agreement(f"ddtree-{budget}", ar, prompts, expected, answers)
        ratio = results[budget] / REFERENCE[budget]
        report(
            f"accept ddtree-{budget}", ratio > 0.95, f"{results[budget]:.3f}, fp32 x {ratio:.3f}"
        )
    print("accept lengths", json.dumps(results), flush=True)
    print("a request:", json.dumps(answers[0]["meta_info"]), flush=True)
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
        sampling(name, ar, tree, prompts[1], 800, **how)
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
