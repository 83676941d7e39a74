"""Where a decode step's GPU time goes, from a torch trace of a server: timeline.py TRACE.json.gz

Prints, for each kernel, launches and microseconds a step, DDTREE's own kernels marked, how much of
the wall time the GPU was busy, and between which kernels it waited. A step is counted by its
KV-prepare kernel.
"""

from __future__ import annotations

import argparse
import gzip
import json
import sys
from collections import defaultdict
from pathlib import Path

STEP = "prepare_dflash_draft_block"
OURS = (
    "_topk_chunks",
    "_topk_merge",
    "_build_tree",
    "_verify_input",
    "_accept_kernel",
    "_move_rows",
)


def main(path: Path) -> None:
    with gzip.open(path) as file:
        events = json.load(file)["traceEvents"]
    kernels = sorted(
        (e for e in events if e.get("cat") in ("kernel", "gpu_memcpy", "gpu_memset")),
        key=lambda e: e["ts"],
    )
    marks = [e["ts"] for e in kernels if STEP in e["name"]]
    if len(marks) < 4:
        sys.exit(f"{path}: found {len(marks)} steps")
    start, end, steps = marks[1], marks[-1], len(marks) - 2
    inside = [e for e in kernels if start <= e["ts"] < end]
    total: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
    for event in inside:
        total[event["name"][:90]][0] += event["dur"]
        total[event["name"][:90]][1] += 1
    busy = sum(e["dur"] for e in inside)
    print(
        f"{path.name}: {steps} steps, {(end - start) / steps:.0f} us a step, GPU busy "
        f"{100 * busy / (end - start):.0f} %"
    )
    own = sum(t for name, (t, _) in total.items() if any(o in name for o in OURS))
    print(f"DDTREE's own kernels: {own / steps:.1f} us a step, {100 * own / (end - start):.2f} %")
    for name, (time, count) in sorted(total.items(), key=lambda x: -x[1][0])[:40]:
        mark = "*" if any(o in name for o in OURS) else " "
        print(f"{mark} {time / steps:9.1f} us {count / steps:7.1f} x  {name}")
    print("waits of 5 us or more, by the kernels around them")
    for (before, after), (time, count) in sorted(waits(inside).items(), key=lambda x: -x[1][0])[
        :15
    ]:
        print(f"  {time / steps:9.1f} us {count / steps:7.1f} x  {before} -> {after}")


def waits(events: list[dict]) -> dict[tuple[str, str], tuple[float, int]]:
    """Microseconds and number of the GPU's pauses between two kernels, by their names."""
    found: dict[tuple[str, str], tuple[float, int]] = {}
    end, before = events[0]["ts"], ""
    for event in events:
        pause = event["ts"] - end
        if before and pause >= 5:
            time, count = found.get((before, event["name"][:50]), (0.0, 0))
            found[before, event["name"][:50]] = (time + pause, count + 1)
        if event["ts"] + event["dur"] > end:
            end, before = event["ts"] + event["dur"], event["name"][:50]
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("trace", type=Path)
    main(parser.parse_args().trace)
