"""Is DDTREE right on this GPU? Greedy agreement with AR, accept lengths, sampling, switches, load.

    python tests/gpu/check.py --target HF_DIR --drafter DIR --out DIR [--dtype float32]

Gates. Greedy agreement: the ids are AR's, or at the first other one the target's own
log-probabilities of the two tokens (asked from the AR server on the same prefix) are within
NEAR_TIE. Accept length: within DRAFTING of what the fp32 target and drafter have on the same text
(replay.py). Sampling: see sampling.py. Prints one line a check and exits 1 if one failed; what goes
wrong in one keeps no other from being made. The answers are kept in OUT/answers.json.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import random
import sys
import threading
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn

from engines import Engine, accept_length, hold, prompt_ids, running, wait
from sampling import LIMIT, judge_draws

NEAR_TIE = 0.25  # two bf16 steps of a logit of 16..32
DRAFTING = 0.02

failed = []


def report(name: str, ok: bool, text: str) -> None:
    print(f"{'ok  ' if ok else 'FAIL'} {name}: {text}", flush=True)
    if not ok:
        failed.append(name)


@contextlib.contextmanager
def attempt(name: str) -> Iterator[None]:
    """An error inside is a failed check of this name; what comes after goes on."""
    try:
        yield
    except Exception as error:
        if not isinstance(error, OSError):  # which says that a server is gone
            traceback.print_exc()
        report(name, False, f"{type(error).__name__}: {error}")


def finish() -> NoReturn:
    """End the script: exit code 1 if a check failed."""
    print(f"{len(failed)} failed: {failed}" if failed else "all passed", flush=True)
    sys.exit(bool(failed))


def gap(ar: Engine, prompt: list[int], a: list[int], b: list[int]) -> tuple[int, float] | None:
    """First position where two outputs differ, and the target's own gap there; None if equal.

    Where one output only ends early, the gap is infinite.
    """
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
    return None if len(a) == len(b) else (min(len(a), len(b)), math.inf)


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


@dataclass
class Check:
    """The servers, the fp32 models, the prompts and what AR answers to them."""

    ar: Engine
    chain: Engine
    tree: Engine
    reference: Any
    args: argparse.Namespace

    def run(self) -> None:
        self.prompts = prompt_ids(self.args.target)
        self.expected = self.ar.generate_all(self.prompts, self.args.tokens, 1)
        for part in (
            self.drafting, self.concurrency, self.long_prefixes, self.sampling, self.penalties,
            self.switches, self.refusals, self.retraction,
        ):  # fmt: skip
            with attempt(part.__name__):
                part()

    def agreement(self, name: str, answers, prompts=None, expected=None) -> None:
        texts = zip(prompts or self.prompts, expected or self.expected, answers, strict=True)
        gaps = [gap(self.ar, p, e["output_ids"], a["output_ids"]) for p, e, a in texts]
        apart = [g for g in gaps if g is not None]
        worst = max((g[1] for g in apart), default=0.0)
        text = f"{len(gaps) - len(apart)} of {len(gaps)} identical, worst gap {worst:.3f} of "
        report(f"greedy {name}", worst <= NEAR_TIE, f"{text}{apart}")

    def drafting(self) -> None:
        """Agreement and accept lengths of DFLASH and of all budgets; the answers are kept.

        DFLASH's own chain is the control: what it loses against fp32 is bf16's doing, no failure.
        """
        kept: dict = {"prompts": self.prompts, "ar": [e["output_ids"] for e in self.expected]}
        for arm in ("dflash", "0", "8", "16", "32", "64"):
            with attempt(f"drafting {arm}"):
                kept[arm] = self.drafted(arm)
                (self.args.out / "answers.json").write_text(json.dumps(kept))

    def drafted(self, arm: str) -> list:
        """[output ids, verify steps] of each answer."""
        engine, budget, name = self.chain, 0, arm
        if arm != "dflash":
            engine, budget, name = self.tree, int(arm), f"ddtree-{arm}"
            engine.set_budget(budget)
        answers = engine.generate_all(self.prompts, self.args.tokens, 1)
        outputs = [a["output_ids"] for a in answers]
        self.agreement(name, answers)
        own = accept_length(answers)
        fp32 = self.reference.accept_length(budget, self.prompts, outputs)
        ok = abs(own / fp32 - 1) <= DRAFTING or engine is self.chain
        report(f"accept {name}", ok, f"{own:.3f}, fp32 on its text {fp32:.3f} x {own / fp32:.3f}")
        steps = [a["meta_info"]["spec_verify_ct"] for a in answers]
        return [list(pair) for pair in zip(outputs, steps, strict=True)]

    def concurrency(self) -> None:
        twice = self.prompts * 2
        for many in (3, 8, 11):  # padded to a captured size, captured, and above all of them
            answers = self.tree.generate_all(twice, self.args.tokens, many)
            self.agreement(f"concurrency {many}", answers, twice, self.expected * 2)

    def long_prefixes(self) -> None:
        texts = list(zip(self.prompts, self.expected, strict=True))
        # a second turn starts on cached KV that a tree step has moved
        turns = [p + e["output_ids"][:60] for p, e in texts]
        # a prefix of many blocks; chat turns that repeat are the longest text these prompts give
        repeated = [((p + e["output_ids"]) * 40)[:3000] for p, e in texts[:4]]
        for name, prompts in (("second turn", turns), ("3000 tokens before", repeated)):
            expected, answers = (e.generate_all(prompts, 48, 1) for e in (self.ar, self.tree))
            self.agreement(name, answers, prompts, expected)

    def sampling(self) -> None:
        self.tree.set_budget(16)
        for name, how in (
            ("top_k 4", {"top_k": 4}),
            ("top_p 0.8", {"top_p": 0.8, "top_k": 20}),
            ("min_p 0.2", {"min_p": 0.2}),
        ):
            with attempt(f"sampling {name}"):
                self.draws(name, self.prompts[1], **how)

    def draws(self, name: str, prompt: list[int], **how) -> None:
        verdicts = {}
        arms = {"ar at 12 (control)": self.ar, "ar at 3 (control)": self.ar}
        for arm, engine in {**arms, "ddtree at 12": self.tree}.items():
            asked, concurrency = [prompt] * self.args.draws, int(arm.split()[2])
            answers = engine.generate_all(asked, 3, concurrency, temperature=1.0, **how)
            outputs = [a["output_ids"] for a in answers]
            verdicts[arm] = judge_draws(self.reference, prompt, outputs, **how)
        for arm, verdict in verdicts.items():
            report(f"sampling {name}, {arm}", verdict.z < LIMIT, str(verdict))
            if verdict.z >= LIMIT:
                others = {other: v for other, v in verdicts.items() if other != arm}
                print(*verdict.worst(others), sep="\n", flush=True)

    def penalties(self) -> None:
        """Greedy under each penalty, by the fp32 target penalized by every token before.

        SGLang's AR is the control, no gate: under overlap scheduling its sums are a token late.
        """
        from judge import Judge  # torch: see main

        judge = Judge(self.reference.model)
        for how in (
            {"presence_penalty": 1.5},
            {"frequency_penalty": 0.8},
            {"repetition_penalty": 1.3},
            {"frequency_penalty": 0.3, "presence_penalty": 0.5, "repetition_penalty": 1.1},
        ):
            name = " ".join(f"{key.partition('_')[0]} {value}" for key, value in how.items())
            for engine in (self.ar, self.tree):
                with attempt(f"{name} {engine.arm}"):
                    answers = engine.generate_all(self.prompts, 64, 4, **how)
                    found = judge(self.prompts, answers, **how)
                    unlike = judge(self.prompts, answers)
                    ok = found.beyond <= 2 or engine is self.ar
                    text = f"{found}; judged without it {unlike.beyond}"
                    report(f"{name} {engine.arm}", ok and unlike.beyond > 8, text)

    def switches(self) -> None:
        """min_new_tokens and logit bias."""
        prompt, usual = self.prompts[0], self.expected[0]["output_ids"]
        stop = {"stop_token_ids": [usual[3]]}
        early = self.tree.generate(prompt, 40, **stop)["output_ids"]
        late = self.tree.generate(prompt, 40, **stop, min_new_tokens=12)["output_ids"]
        ok = len(early) <= 4 and len(late) >= 12 and usual[3] not in late[:12]
        report("min_new_tokens", ok, f"{len(early)} tokens without, {len(late)} with 12")
        bias = self.tree.generate(prompt, 4, logit_bias={str(usual[0]): -100.0})
        report("logit bias", bias["output_ids"][0] != usual[0], "shuns the token")

    def refusals(self) -> None:
        for name, body in (
            ("grammar refused", {"sampling_params": {"regex": "[a-z]+", "max_new_tokens": 4}}),
            ("logprob refused", {"return_logprob": True, "sampling_params": {"max_new_tokens": 4}}),
        ):
            answer = self.tree.ask({"text": "Hi", **body})
            report(name, "support" in json.dumps(answer), json.dumps(answer)[:160])
        for bad in (65, -1):
            answer = self.tree.ask(
                {"server_args": {"speculative_ddtree_budget": bad}}, "/set_internal_state"
            )
            report(f"budget {bad} refused", answer.get("status") == 400, str(answer)[:160])

    def retraction(self) -> None:
        """More than 6000 tokens at once, then clients that leave; greedy is as before."""
        rng = random.Random(5)
        many = [rng.choice(self.prompts) for _ in range(12)]
        answers = self.tree.generate_all(many, 700, 12, ignore_eos=True)
        report("retraction", all(len(a["output_ids"]) == 700 for a in answers), "12 x 700 tokens")
        abort_some(self.tree, many)
        self.tree.set_budget(64)
        self.agreement("after aborts", self.tree.generate_all(self.prompts, self.args.tokens, 1))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--dtype", default="auto")
    parser.add_argument("--page-size", default="1")
    parser.add_argument("--tokens", type=int, default=128, help="of an answer")
    parser.add_argument("--draws", type=int, default=1600, help="of a sampling check")
    parser.add_argument("--hold", type=Path, help="check only once this file is there")
    args = parser.parse_args()
    words = "--cuda-graph-bs-decode 1 2 4 8 --max-running-requests 12"
    graphs = (*words.split(), "--dtype", args.dtype, "--page-size", args.page_size)
    pool = ("--max-total-tokens", "40000")
    one = {"target": args.target, "drafter": args.drafter, "logs": args.out}
    ar = Engine("ar", port=31000, extra=(*graphs, *pool), **one)
    chain = Engine("dflash", port=31001, extra=(*graphs, *pool), **one)
    tree = Engine(
        "ddtree", port=31002, extra=(*graphs, "--max-total-tokens", "6000"),
        env={"SGLANG_DDTREE_WIDTHS": "9,17,33"}, **one,
    )  # fmt: skip
    engines = (tree, ar, chain)
    with running(engines):
        from replay import Reference  # torch takes seconds to import: meanwhile the servers start

        reference = Reference(args.target, args.drafter)
        wait(engines)
        hold(args.hold)
        with attempt("ar"):
            Check(ar, chain, tree, reference, args).run()
    finish()


if __name__ == "__main__":
    main()
