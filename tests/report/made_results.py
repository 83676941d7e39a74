"""Made results: documents of schema ddtree-bench/1 whose truth is known because we chose it.

Nothing here was measured. Rates, accept lengths and histograms are given, the records are built
so that exactly these come out; tests compare the statistics with them.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

STEPS_IN_A_RECORD = 8


def made_record(
    number: int, start_s: float, duration_s: float, ttft_s: float, steps: Sequence[int] | None
) -> dict[str, Any]:
    """A request that emits ``steps[i]`` tokens in verify step i, evenly spaced in time.

    ``steps=None``: autoregressive, 16 tokens one by one. The first chunk is the first token.
    """
    counts = [1] * 16 if steps is None else list(steps)
    pace = (duration_s - ttft_s) / (len(counts) - 1)
    chunks = [[start_s + ttft_s + i * pace, n] for i, n in enumerate(counts)]
    histogram = [counts.count(n) for n in range(1, max(counts) + 1)]
    return {
        "prompt_id": f"made-{number}",
        "error": None,
        "prompt_tokens": 10,
        "completion_tokens": sum(counts),
        "verify_steps": None if steps is None else len(counts),
        "accept_histogram": None if steps is None else histogram,
        "start_s": start_s,
        "first_token_s": start_s + ttft_s,
        "end_s": start_s + duration_s,
        "chunks": chunks,
        "output_ids": list(range(sum(counts))),
    }


def made_cell(
    arm: str,
    rate: float,
    number: int,
    *,
    concurrency: int = 1,
    prompts: int = 4,
    steps: Sequence[int] | None = None,
    ttft_s: float = 0.05,
    warmup: bool = False,
    prompt_set: str = "chat",
) -> dict[str, Any]:
    """A cell whose output tokens / wall time is exactly ``rate`` tokens/s."""
    tokens = 16 if steps is None else sum(steps)
    wall_s = prompts * tokens / rate
    each_s = wall_s * concurrency / prompts
    requests = [
        made_record(i, (i // concurrency) * each_s, each_s, ttft_s, steps) for i in range(prompts)
    ]
    return {
        "arm": arm,
        "concurrency": concurrency,
        "prompt_set": prompt_set,
        "temperature": 0.0,
        "max_new_tokens": 48,
        "round": number,
        "warmup": warmup,
        "wall_s": wall_s,
        "effective_concurrency": float(concurrency),
        "requests": requests,
        "gpu_before": None,
        "gpu_after": None,
    }


STEPS: Mapping[str, Sequence[int] | None] = {
    "ar": None,
    "dflash": [1, 2, 1, 2, 1, 2, 1, 2],  # accept length 1.5
    "ddtree-8": [1, 2, 2, 2, 1, 3, 2, 1],  # 1.75
    "ddtree-32": [1, 3, 2, 2, 1, 4, 2, 1],  # 2.0
}
BUDGETS = {"ddtree-8": 8, "ddtree-32": 32}


def made_result(
    rates: Mapping[str, Mapping[int, Sequence[float]]],
    *,
    engine: str = "reference",
    group: str = "MADE",
    host: str = "made-host",
    failed: Sequence[str] = (),
    unjudged: Sequence[str] = (),
    machine: Mapping[str, Any] | None = None,
    plan: Mapping[str, Any] | None = None,
    ttft_s: float = 0.05,
    prompts: int = 4,
) -> dict[str, Any]:
    """A result document: ``rates[arm][concurrency]`` are the tokens/s of its rounds."""
    cells = []
    for arm, loads in rates.items():
        for concurrency, rounds in loads.items():
            made = {
                "concurrency": concurrency,
                "steps": STEPS.get(arm),
                "ttft_s": ttft_s,
                "prompts": max(prompts, concurrency),
            }
            cells.append(made_cell(arm, 1.0, 0, warmup=True, **made))
            cells += [made_cell(arm, rate, n + 1, **made) for n, rate in enumerate(rounds)]
    return {
        "schema": "ddtree-bench/1",
        "fingerprint": "0123456789abcdef" * 4,
        "group": group,
        "host": host,
        "engine": engine,
        "created": "2026-11-30T12:00:00Z",
        "plan": dict(plan or made_plan(engine)),
        "machine": dict(machine or {"hostname": host, "cpus": 2, "cpu_model": "made CPU"}),
        "versions": {"engine": "made 0.0", "python": "3.11.0"},
        "settings": {
            "concurrency": sorted({c for loads in rates.values() for c in loads}),
            "prompt_sets": ["chat"],
            "prompts_per_cell": prompts,
            "max_new_tokens": 48,
            "temperature": 0.0,
            "repeats": max(len(r) for loads in rates.values() for r in loads.values()),
            "warmup_requests": 1,
            "ignore_eos": False,
            "baseline": "ar",
        },
        "arms": [
            {
                "name": arm,
                "mode": arm.split("-")[0],
                "parallelism": "TP8" if engine == "sglang" else "TP1",
                "budget": BUDGETS.get(arm),
                "launch": arm.split("-")[0],
            }
            for arm in rates
        ],
        "not_possible": [
            {"name": "pp8-dflash", "reason": "made: DFLASH refuses pipeline parallelism"}
        ],
        "cells": cells,
        "correctness": [
            {
                "arm": arm,
                "prompts": 4,
                "identical": 3,
                "near_tie": 1,
                "different": 1 if arm in failed else 0,
                "max_gap": 2.0 if arm in failed else 0.01,
                "passed": arm not in failed,
                "threshold": 0.1,
            }
            for arm in rates
            if arm != "ar" and arm not in unjudged
        ],
        "complete": True,
    }


def made_plan(engine: str) -> dict[str, Any]:
    """As much of a plan as the report shows; the values are made."""
    gpus = 8 if engine == "sglang" else 0
    launches = [
        {
            "key": key,
            "argv": ["engine", "--model-path", "/made/target", "--port", "30000"],
            "env": {"OMP_NUM_THREADS": "8"},
            "algorithm": None if key == "ar" else key.upper(),
            "budget": 32 if key == "ddtree" else None,
        }
        for key in ("ar", "dflash", "ddtree")
    ]
    return {
        "group": "MADE",
        "engine": engine,
        "service_manager": "systemd",
        "prefix": "/opt/ddtree",
        "python": "3.12",
        "lock": "sglang-0.5.16-cu130" if engine == "sglang" else "reference",
        "patch_set": "sglang-0.5.16" if engine == "sglang" else None,
        "gpus": gpus,
        "target": {"name": "made-target", "source": "path:/made", "revision": "r1", "path": "/m"},
        "drafter": {"name": "made-drafter", "source": "path:/made", "revision": "r2", "path": "/d"},
        "block": 8,
        "arm": "ddtree-32",
        "arms": [],
        "launches": launches,
        "choices": [
            {"name": "engine", "value": engine, "reason": "made: chosen by the test"},
            {"name": "parallelism", "value": "TP8" if gpus else "TP1", "reason": "made: all NV18"},
        ],
    }


def made_gpu_machine(link: str, name: str = "NVIDIA Made 6000", gpus: int = 8) -> dict[str, Any]:
    """Machine facts of a host with ``gpus`` cards, all pairs joined by ``link``."""
    rows = [["X" if i == j else link for j in range(gpus)] for i in range(gpus)]
    return {
        "hostname": "made-host",
        "os_id": "ubuntu",
        "os_version": "24.04",
        "cpus": 128,
        "cpu_model": "made CPU",
        "memory_total_mib": 2_000_000,
        "driver": "580.00",
        "gpus": [
            {"index": i, "name": name, "memory_total_mib": 97_887, "compute_cap": "12.0"}
            for i in range(gpus)
        ],
        "topology": {
            "links": rows,
            "cpu_affinity": [None] * gpus,
            "numa": [i // (gpus // 2) for i in range(gpus)],
        },
    }


def two_groups() -> tuple[dict[str, Any], dict[str, Any]]:
    """A made NVLink group and a made PCIe group with the same arms at four concurrencies."""
    base = {1: 80.0, 4: 290.0, 16: 900.0, 64: 2100.0}
    gain = {"ar": (1.0,) * 4, "dflash": (1.35, 1.25, 1.05, 0.88)}
    gain |= {"ddtree-8": (1.55, 1.32, 1.02, 0.8), "ddtree-32": (1.72, 1.3, 0.93, 0.66)}
    jitter = (1.0, 1.01, 0.99, 1.02, 0.98)
    own = {"ar": (1.0,) * 5, "dflash": (1.0, 1.004, 0.996, 1.002, 0.998)}

    def rates(scale: float, tree: float) -> dict[str, dict[int, list[float]]]:
        return {
            arm: {
                c: [
                    scale * base[c] * (g if arm == "ar" else g * tree) * j * o
                    for j, o in zip(jitter, own.get(arm, own["dflash"]), strict=True)
                ]
                for c, g in zip(base, gains, strict=True)
            }
            for arm, gains in gain.items()
        }

    nvlink = made_result(
        rates(1.6, 1.05),
        engine="sglang",
        group="MADE-NVLINK",
        host="made-n1",
        prompts=8,
        machine=made_gpu_machine("NV18", "NVIDIA Made B300"),
        ttft_s=0.01,
    )
    pcie = made_result(
        rates(1.0, 0.92),
        engine="sglang",
        group="MADE-PCIE",
        host="made-p1",
        prompts=8,
        machine=made_gpu_machine("NODE"),
        ttft_s=0.01,
    )
    pcie["fingerprint"] = "fedcba9876543210" * 4
    return nvlink, pcie


def changed(document: Mapping[str, Any], **fields: Any) -> dict[str, Any]:
    """A deep copy with top-level fields replaced."""
    return copy.deepcopy(dict(document)) | fields
