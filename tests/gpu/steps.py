"""Where a decode step's time goes: kernels and gaps on the GPU, Python on the host.

    python tests/gpu/steps.py --target HF_DIR --drafter DIR --out DIR [--budgets 0,15,31]

For DFLASH and for DDTREE at each budget, one request at a time: a torch trace of GPU activity only
(CPU tracing slows the host, which is what bounds a small step), and, where py-spy is on PATH, the
stacks of the scheduler's process. Writes trace-ARM/*.json.gz for timeline.py and stacks-ARM.txt
(one folded stack and its samples a line), and prints tokens a second with nothing attached.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import threading
import time
from pathlib import Path

from engines import Engine, prompt_ids, running, wait

FLAGS = "--cuda-graph-bs-decode 1 2 4 8 --max-running-requests 8 --max-total-tokens 40000"


def scheduler_pid(parent: int) -> int:
    """The scheduler's process below `parent`; SGLang names it in its title."""
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            title = (folder / "cmdline").read_bytes()
            group = os.getpgid(int(folder.name))
        except OSError:
            continue
        if b"scheduler" in title and group == parent:
            return int(folder.name)
    raise RuntimeError(f"no scheduler process below {parent}")


def trace(engine: Engine, prompt: list[int], folder: Path) -> None:
    engine.ask(
        {"output_dir": str(folder), "num_steps": 60, "activities": ["GPU"]}, "/start_profile"
    )
    engine.generate(prompt, 200, ignore_eos=True)
    end = time.monotonic() + 20
    while time.monotonic() < end and not list(folder.glob("*.gz")):
        time.sleep(0.3)


def stacks(engine: Engine, prompt: list[int], out: Path, seconds: int) -> None:
    spy = shutil.which("py-spy")
    if spy is None or engine.process is None:
        return
    asking = threading.Event()

    def keep_busy() -> None:
        while not asking.is_set():
            engine.generate(prompt, 512, ignore_eos=True)

    thread = threading.Thread(target=keep_busy)
    thread.start()
    pid = scheduler_pid(engine.process.pid)
    subprocess.run(
        f"{spy} record --pid {pid} --duration {seconds} --rate 500 --format raw --nonblocking "
        f"--output {out}".split(),
        check=False,
    )
    asking.set()
    thread.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--target", required=True)
    parser.add_argument("--drafter", required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--budgets", default="0,15")
    parser.add_argument("--width", type=int, default=32)
    parser.add_argument("--widths", default="16")
    parser.add_argument("--seconds", type=int, default=6)
    args = parser.parse_args()
    one = {
        "target": args.target,
        "drafter": args.drafter,
        "logs": args.out,
        "extra": tuple(FLAGS.split()),
    }
    engines = {
        "dflash": Engine("dflash", port=29000, **one),
        "ddtree": Engine(
            "ddtree", port=29001, width=args.width, env={"SGLANG_DDTREE_WIDTHS": args.widths}, **one
        ),
    }
    with running(list(engines.values())):
        wait(list(engines.values()))
        prompt = prompt_ids(args.target)[0]
        for arm in ("dflash", *(f"ddtree-{b}" for b in args.budgets.split(","))):
            engine = engines[arm.partition("-")[0]]
            if arm.startswith("ddtree"):
                engine.set_budget(int(arm.partition("-")[2]))
            engine.generate(prompt, 64, ignore_eos=True)
            start = time.perf_counter()
            answer = engine.generate(prompt, 400, ignore_eos=True)
            wall = time.perf_counter() - start
            steps = answer["meta_info"]["spec_verify_ct"]
            print(f"{arm}: {400 / wall:.1f} tok/s, {1e3 * wall / steps:.3f} ms a step", flush=True)
            trace(engine, prompt, args.out / f"trace-{arm}")
            stacks(engine, prompt, args.out / f"stacks-{arm}.txt", args.seconds)


if __name__ == "__main__":
    main()
