"""Every GPU check and table of DDTREE in one stay on a host: about 10 minutes on one H200.

    python tests/gpu/all.py --folder MODELS --out OUT [--tp 2]

MODELS holds hf (a small target), wide (the same widened), drafter, mla and mlad (see models.py).
SGLang with the patch set must be importable. Servers of all scripts start at once, since starting
takes a minute of one core each; what is timed runs alone, and the checks of right and wrong after
it, side by side. Each script's log is OUT/NAME.log; answers and rows lie in OUT/NAME/*.json. A
script that fails stops no other; Ctrl-C and SIGTERM stop all, with their servers.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from engines import spawn

HERE = Path(__file__).parent
NEW = HERE.parents[1] / "files" / "patches" / "sglang-0.5.16" / "new"
START = time.monotonic()

Scripts = dict[str, "subprocess.Popen[bytes]"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tp", default="1", help="GPUs of the MLA + MoE check")
    parser.add_argument("--page-size", default="16")
    parser.add_argument("--rounds", default="5", help="of the table")
    parser.add_argument("--tokens", default="160", help="of an answer in the table")
    parser.add_argument("--draws", default="1600", help="of a sampling check")
    args = parser.parse_args()
    models = {name: args.folder / name for name in ("hf", "wide", "drafter", "mla", "mlad")}
    if missing := [str(path) for path in models.values() if not (path / "config.json").exists()]:
        parser.error(f"no model (config.json) in {', '.join(missing)}; models.py makes them")
    args.out.mkdir(parents=True, exist_ok=True)
    scripts: Scripts = {}

    def stop(number: int, _frame: object) -> None:
        sys.exit(f"ended by {signal.Signals(number).name}")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        run(args, {name: str(path) for name, path in models.items()}, scripts)
    finally:
        for script in scripts.values():
            script.terminate()
        show(args.out, scripts)
    sys.exit(any(script.returncode for script in scripts.values()))


def run(args: argparse.Namespace, models: dict[str, str], scripts: Scripts) -> None:
    """Start the scripts, adding each to `scripts`, and release what they hold, in turn."""
    others_up, timed = args.out / "others.up", args.out / "timed.done"
    for flag in (others_up, timed):
        flag.unlink(missing_ok=True)
    environment = {**os.environ, "PYTHONUNBUFFERED": "1", "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    environment["PYTHONPATH"] = f"{environment.get('PYTHONPATH', '')}:{NEW}".lstrip(":")

    def start(name: str, *words: str) -> None:
        argv = [sys.executable, str(HERE / f"{name}.py"), *words]
        scripts[name] = spawn(argv, args.out / f"{name}.log", signal.SIGTERM, environment)

    def on(target: str, drafter: str, out: str, hold: Path) -> list[str]:
        words = ["--target", models[target], "--drafter", models[drafter]]
        return [*words, "--out", str(args.out / out), "--hold", str(hold)]

    start(
        "table", *on("wide", "drafter", "table", others_up), "--same-as", models["hf"],
        "--arms", "ar,dflash,ddtree,extend", "--budgets", "0,7,15,31,auto",
        "--extend-budgets", "0,15", "--widths", "8,16", "--width", "32",
        "--rounds", args.rounds, "--tokens", args.tokens,
    )  # fmt: skip
    start(
        "check", *on("hf", "drafter", "check", timed), "--page-size", args.page_size,
        "--draws", args.draws,
    )  # fmt: skip
    start("mla_moe", *on("mla", "mlad", "mla_moe", timed), "--tp", args.tp, "--ep", args.tp)
    for name in ("check", "mla_moe"):
        log = args.out / f"{name}.log"
        while scripts[name].poll() is None and b"servers are up" not in log.read_bytes():
            time.sleep(0.2)
    others_up.touch()
    say("check and mla_moe wait, servers up, or have ended")
    wait(scripts, "table")
    start("attention")
    wait(scripts, "attention")
    timed.touch()
    wait(scripts, "check", "mla_moe")


def say(text: str) -> None:
    print(f"{time.monotonic() - START:4.0f} s: {text}", flush=True)


def wait(scripts: Scripts, *names: str) -> None:
    """For these to end, in whatever order."""
    left = set(names)
    while left:
        for name in sorted(n for n in left if scripts[n].poll() is not None):
            left.remove(name)
            say(f"{name} ended with exit code {scripts[name].returncode}")
        time.sleep(0.2)


def show(out: Path, scripts: Scripts) -> None:
    """The end of each log, then the exit codes, last since a caller may keep little."""
    for name, script in scripts.items():
        script.wait()
        print(f"\n== {name}\n{(out / f'{name}.log').read_text(errors='replace')[-2800:]}")
    for name, script in scripts.items():
        print(f"{name}: exit code {script.returncode}")


if __name__ == "__main__":
    main()
