"""Speed and accept lengths of the CPU reference engine on the built-in pair.

    python tests/bench/reference_engine.py speed [--steps 15]
    python tests/bench/reference_engine.py accept
    python tests/bench/reference_engine.py outputs   writes tests/refserver/greedy_outputs.json

`speed` times, in turns, so that all see the same state of the machine: the plain matrix-vector
products of all the target's weights, a single decode step, and verify steps of 9, 17 and 33
tokens. It wants: a step within 1.3 times the products, a verify of 17 within 4 steps. Run it alone
on the machine. `accept` replays the pooled accept lengths and compares them with the drafter's
README. Exit code 1 when a bound is missed.
"""

import argparse
import json
import os
import platform
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(REPOSITORY), str(REPOSITORY / "files"), str(REPOSITORY / "tests/refserver")]

import numpy as np  # noqa: E402
from accept_replay import BUDGETS, PROMPTS, greedy_output, read_text, replay  # noqa: E402
from refserver.config import Speculation  # noqa: E402
from refserver.drafter import Drafter  # noqa: E402
from refserver.engine import Loaded, load  # noqa: E402
from refserver.model import Model  # noqa: E402
from refserver.sampling import top_log_probs  # noqa: E402
from refserver.tree import best_first, walk  # noqa: E402

from tests.builtin_model import builtin_model_dir  # noqa: E402

DRAFTER = REPOSITORY / "files/drafters/smollm2-135m-dflash-b8-int8"
OUTPUTS = REPOSITORY / "tests/refserver/greedy_outputs.json"
ACCEPT_LENGTHS = dict(zip(BUDGETS, (1.507, 1.680, 1.841, 1.984, 2.138, 2.277, 2.386), strict=True))
CONTEXT = 128  # committed tokens before each timed step
STEP_LIMIT, VERIFY_LIMIT, ACCEPT_TOLERANCE = 1.3, 4.0, 0.02


def machine() -> str:
    """CPU model, cores this process may use, BLAS threads, load."""
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.split(":")[1].strip() for x in lines if x.startswith("model name")), "?")
    threads = os.environ.get("OPENBLAS_NUM_THREADS", "all")
    cores, load_1min = len(os.sched_getaffinity(0)), os.getloadavg()[0]
    return (
        f"{model}, {cores} cores, BLAS threads {threads}, load {load_1min:.1f}, "
        f"Python {platform.python_version()}, numpy {np.__version__}"
    )


def timed_actions(loaded: Loaded) -> dict[str, Callable[[], object]]:
    """What `speed` times, by name."""
    drafter_config = loaded.drafter.config
    model = Model(loaded.target, CONTEXT + 64, drafter_config.target_layer_ids)
    plain = Model(loaded.target, CONTEXT + 64)
    drafter = Drafter(loaded.drafter, loaded.target, CONTEXT + 64)
    rng = np.random.default_rng(0)
    prompt = rng.integers(17, 40000, CONTEXT).tolist()
    _, features = model.prefill(prompt)
    drafter.extend(features)
    plain.prefill(prompt)
    matrices = [loaded.target.head]
    for layer in loaded.target.layers:
        matrices += [layer.qkv, layer.out, layer.gate_up, layer.down]
    vectors = {m.shape[1]: rng.normal(size=m.shape[1]).astype(np.float32) for m in matrices}
    root, depth = np.array([100]), np.array([0])

    def products() -> None:
        for matrix in matrices:
            matrix @ vectors[matrix.shape[1]]

    def step() -> None:
        hidden, _ = plain.forward(root, depth, None)
        int(plain.logits(hidden[0]).argmax())

    def verify(width: int) -> Callable[[], object]:
        log_probs, tokens = top_log_probs(drafter.propose(100), width - 1)
        tree = best_first(100, log_probs, tokens, width - 1)

        def run() -> None:
            ids, depths = np.array(tree.tokens), np.array(tree.depths)
            hidden, _ = model.forward(ids, depths, tree.mask())
            walk(tree, lambda node: int(model.logits(hidden[node]).argmax()))

        return run

    def draft() -> None:
        log_probs, tokens = top_log_probs(drafter.propose(100), 16)
        best_first(100, log_probs, tokens, 16)

    return {
        "matrix-vector products": products,
        "decode step": step,
        "draft, tree of 16": draft,
        "verify 9": verify(9),
        "verify 17": verify(17),
        "verify 33": verify(33),
    }


def speed(loaded: Loaded, rounds: int) -> bool:
    """Print the table of times and ratios; whether both bounds hold."""
    print(f"machine: {machine()}")
    actions = timed_actions(loaded)
    times: dict[str, list[float]] = {name: [] for name in actions}
    for action in actions.values():
        action()
    for _ in range(rounds):
        for name, action in actions.items():
            start = time.perf_counter()
            action()
            times[name].append(time.perf_counter() - start)
    medians = {name: statistics.median(values) for name, values in times.items()}
    print(f"{'':24}{'median':>9}{'best':>9}{'quartiles':>16}   of a step   ({rounds} rounds, ms)")
    for name, values in times.items():
        low, _, high = statistics.quantiles([v * 1e3 for v in values], n=4)
        ratio = medians[name] / medians["decode step"]
        print(
            f"{name:24}{medians[name] * 1e3:9.1f}{min(values) * 1e3:9.1f}"
            f"{f'{low:.1f}..{high:.1f}':>16}{ratio:12.2f}"
        )
    step = paired_ratio(times, "decode step", "matrix-vector products")
    verify = paired_ratio(times, "verify 17", "decode step")
    print(f"decode step / products: {step:.2f} (at most {STEP_LIMIT})")
    print(f"verify 17 / decode step: {verify:.2f} (at most {VERIFY_LIMIT})")
    return step <= STEP_LIMIT and verify <= VERIFY_LIMIT


def paired_ratio(times: dict[str, list[float]], one: str, other: str) -> float:
    """Median over the rounds of the ratio within a round."""
    return statistics.median(a / b for a, b in zip(times[one], times[other], strict=True))


def accept(loaded: Loaded) -> bool:
    """Print the accept lengths per budget; whether all are as published."""
    counts: dict = {}
    for prompt, output in zip(PROMPTS, json.loads(OUTPUTS.read_text()), strict=True):
        replay(loaded, read_text(loaded, prompt, output), BUDGETS, counts)
        print(f"  {prompt}", flush=True)
    print("budget  accept length  published")
    for budget, count in counts.items():
        print(f"{budget:6}  {count.accept_length:13.3f}  {ACCEPT_LENGTHS[budget]:9.3f}")
    found = {b: c.accept_length for b, c in counts.items()}
    return all(abs(found[b] - ACCEPT_LENGTHS[b]) <= ACCEPT_TOLERANCE for b in BUDGETS)


def outputs(loaded: Loaded) -> bool:
    """Write the target's greedy outputs, which the tests and `accept` replay."""
    rows = [json.dumps(greedy_output(loaded, p, 128), separators=(",", ":")) for p in PROMPTS]
    OUTPUTS.write_text("[\n" + ",\n".join(rows) + "\n]\n")
    return True


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=["speed", "accept", "outputs"])
    parser.add_argument("--steps", type=int, default=15, help="rounds of `speed`")
    args = parser.parse_args()
    start = time.perf_counter()
    loaded = load(builtin_model_dir(), Speculation("DDTREE", str(DRAFTER), 17), lambda line: None)
    print(f"loaded in {time.perf_counter() - start:.1f} s")
    done = {"speed": lambda: speed(loaded, args.steps), "accept": lambda: accept(loaded)}
    return 0 if done.get(args.what, lambda: outputs(loaded))() else 1


if __name__ == "__main__":
    sys.exit(main())
