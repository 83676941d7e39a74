"""Every GPU check and table of DDTREE in one stay on a host: about 10 minutes on one H200.

    python tests/gpu/all.py --folder MODELS --out OUT [--tp 2]

MODELS holds hf (a small target), wide (the same widened), drafter, mla and mlad (see models.py).
SGLang with the patch set must be importable. Servers of all scripts start at once, since starting
takes a minute of one core each; what is timed runs alone, and the checks of right and wrong after
it, side by side. Each script's log is OUT/NAME.log; answers and rows lie in OUT/NAME/*.json.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from pathlib import Path

HERE = Path(__file__).parent
NEW = HERE.parents[1] / "files" / "patches" / "sglang-0.5.16" / "new"


def start(name: str, out: Path, *words: str) -> subprocess.Popen[bytes]:
    log = (out / f"{name}.log").open("wb")
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    environment["PYTHONPATH"] = f"{environment.get('PYTHONPATH', '')}:{NEW}".lstrip(":")
    return subprocess.Popen(
        [sys.executable, str(HERE / f"{name}.py"), *words],
        stdout=log,
        stderr=subprocess.STDOUT,
        env=environment,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--tp", default="1", help="GPUs of the MLA + MoE check")
    parser.add_argument("--page-size", default="16")
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    done = args.out / "timed.done"
    done.unlink(missing_ok=True)
    hf, wide, drafter, mla, mlad = (
        str(args.folder / name) for name in ("hf", "wide", "drafter", "mla", "mlad")
    )

    def out(name: str) -> list[str]:
        return ["--out", str(args.out / name)]

    table = start(
        "table", args.out, "--target", wide, "--same-as", hf, "--drafter", drafter, *out("table"),
        "--arms", "ar,dflash,ddtree,extend", "--budgets", "0,7,15,31,auto",
        "--extend-budgets", "0,15", "--widths", "8,16", "--width", "32", "--tokens", "160",
    )  # fmt: skip
    held = ("--hold", str(done))
    waiting = {
        "check": start(
            "check", args.out, "--target", hf, "--drafter", drafter, *out("check"),
            "--page-size", args.page_size, *held,
        ),
        "mla_moe": start(
            "mla_moe", args.out, "--target", mla, "--drafter", mlad, *out("mla_moe"),
            "--tp", args.tp, "--ep", args.tp, *held,
        ),
    }  # fmt: skip
    codes = {"table": table.wait()}
    tic = time.monotonic()
    codes["attention"] = start("attention", args.out).wait()
    print(f"attention took {time.monotonic() - tic:.0f} s", flush=True)
    done.touch()
    codes |= {name: process.wait() for name, process in waiting.items()}
    for name, code in codes.items():
        print(f"\n== {name}: exit code {code}")
        print((args.out / f"{name}.log").read_text(errors="replace")[-4000:])
    sys.exit(any(codes.values()))


if __name__ == "__main__":
    main()
