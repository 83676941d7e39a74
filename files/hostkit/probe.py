"""`hostkit probe`: measures this host's GPUs with torch alone; run it with the engine's Python.

Each probe runs in a child process that is killed when it stops making progress, so a hang is a
finding with a name instead of a silent machine. Results can be stored as a baseline and compared
with it later, or with those of another host of the group.
"""

import argparse
import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import files
from .errors import HostkitError
from .launch import read_json
from .probe_judge import Finding, compare, judge, rates

PROBES = ("environment", "matmul", "memory", "host_copy", "peer", "all_reduce")
PACKAGES = str(Path(__file__).resolve().parent.parent)
IMPORT_LIMIT_S = 180.0  # until the first progress after 'importing torch', from a cold disk
SCHEMA = "ddtree-probe/1"


class HungError(Exception):
    """A child made no progress; the text is its last phase."""


class FailedError(Exception):
    """A child ended without a result; the text is the end of its output."""


def run_task(
    name: str, device: str, limit_s: float, environment: Mapping[str, str] | None = None
) -> Any:
    """Runs one task in a child of its own session; returns its result.

    Raises HungError when no line comes for `limit_s` (the child and its ranks are killed then),
    FailedError when it ends without a result.
    """
    child = subprocess.Popen(
        [sys.executable, "-m", "hostkit.probe_tasks", name, device],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
        env={**os.environ, "PYTHONPATH": PACKAGES, **(environment or {})},
    )
    lines: queue.Queue[str | None] = queue.Queue()
    threading.Thread(target=_pump, args=(child, lines), daemon=True).start()
    last, noise = "starting", [""]
    try:
        while True:
            limit = IMPORT_LIMIT_S if last in ("starting", "importing torch") else limit_s
            line = lines.get(timeout=limit)
            if line is None:
                raise FailedError("\n".join(noise[-6:]).strip() or "no output")
            message = _message(line)
            if "result" in message:
                return message["result"]
            if "phase" in message:
                last = str(message["phase"])
            else:
                noise.append(line.rstrip())
    except queue.Empty:
        raise HungError(last) from None
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(child.pid, signal.SIGKILL)
        child.wait()


def _pump(child: subprocess.Popen[str], lines: "queue.Queue[str | None]") -> None:
    assert child.stdout is not None
    for line in child.stdout:
        lines.put(line)
    lines.put(None)


def _message(line: str) -> dict[str, Any]:
    """A line of the protocol; {} for anything else that a library printed."""
    try:
        message = json.loads(line)
    except ValueError:
        return {}
    return message if isinstance(message, dict) else {}


def probe_all(probes: list[str], device: str, limit_s: float) -> dict[str, Any]:
    """Runs the probes one after the other; returns the document without a comparison."""
    results: dict[str, Any] = {}
    findings: list[Finding] = []
    started = time.monotonic()
    for name in probes:
        print(f"probe {name} ...", file=sys.stderr, flush=True)
        try:
            results[name] = run_task(name, device, limit_s)
        except FailedError as error:
            findings.append(
                Finding("probe-failed", f"{name}: {error}", "read the message; is torch installed?")
            )
            if name == "environment":
                break
        except HungError as error:
            findings.append(name_hang(name, str(error), device, limit_s))
    return {
        "schema": SCHEMA,
        "created": datetime.now(UTC).isoformat(timespec="seconds"),
        "device": device,
        "seconds": round(time.monotonic() - started, 1),
        "results": results,
        "findings": [asdict(finding) for finding in [*findings, *judge(results)]],
    }


def name_hang(name: str, phase: str, device: str, limit_s: float) -> Finding:
    """Tries a hung all-reduce once more without peer-to-peer: if that works, P2P is the cause.

    NVIDIA/nccl#1999 and local-inference-lab/rtx6kpro#15 describe such hosts.
    """
    seen = f"{name}: no progress for {limit_s:.0f} s at '{phase}'"
    if name == "peer":
        return Finding(
            "probe-p2p-deadlock",
            seen,
            "check IOMMU and ACS; until then set NCCL_P2P_DISABLE=1; the GPUs may need a reset",
        )
    if name != "all_reduce":
        return Finding("probe-hang", seen, "nvidia-smi -q and the kernel log may name the GPU")
    try:
        run_task(name, device, limit_s, {"NCCL_P2P_DISABLE": "1"})
    except (HungError, FailedError) as again:
        return Finding(
            "probe-hang",
            f"{seen}; the same without P2P: {again}",
            "NCCL_DEBUG=INFO shows where; check IOMMU, ACS and the fabric manager",
        )
    return Finding(
        "probe-p2p-deadlock",
        f"{seen}; it works with NCCL_P2P_DISABLE=1",
        "E22: check IOMMU and ACS; until then set NCCL_P2P_DISABLE=1 for the engine",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda", help="default cuda")
    parser.add_argument("--only", help=f"comma-separated, of {', '.join(PROBES[1:])}")
    parser.add_argument("--limit", type=float, default=30.0, help="seconds without progress")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the document")
    parser.add_argument(
        "--baseline", type=Path, metavar="FILE", help="compare with it; stored when absent"
    )
    parser.add_argument(
        "--result", type=Path, metavar="FILE", help="judge this document, measure nothing"
    )


def run(args: argparse.Namespace) -> int:
    """Prints rates and findings; exit 0 without findings, 1 with."""
    chosen = args.only.split(",") if args.only else list(PROBES[1:])
    unknown = sorted(set(chosen) - set(PROBES))
    if unknown:
        raise HostkitError(f"--only: unknown probe {unknown[0]!r}; known: {', '.join(PROBES[1:])}")
    if args.result:
        document = read_json(args.result)
    else:
        document = probe_all(["environment", *chosen], args.device, args.limit)
    if args.baseline and args.baseline.exists():
        found = compare(document["results"], read_json(args.baseline)["results"])
        document["findings"] += [asdict(finding) for finding in found]
        document["baseline"] = str(args.baseline)
    elif args.baseline and not document["findings"]:
        files.write_json(args.baseline, document, durable=True)
    if args.json:
        files.write_json(args.json, document)
    for name, value in rates(document["results"]).items():
        print(f"  {name:<36} {value:>10.1f}")
    for finding in document["findings"]:
        print(f"{finding['id']}: {finding['evidence']}; {finding['remedy']}")
    if not document["findings"]:
        print("no findings")
    return 1 if document["findings"] else 0
