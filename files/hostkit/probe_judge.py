"""Findings from probe results, pure: wrong values, stragglers, and what a baseline says."""

import statistics
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

SLOW_PAIR = 0.8  # of the median of pairs with the same kind of access; gpumedic's idea
SLOW_GPU = 0.9  # of the median GPU of the same host
SLOWER_THAN_BASELINE = 0.9


@dataclass(frozen=True)
class Finding:
    """One thing that is wrong: a stable id, the evidence and what to do."""

    id: str
    evidence: str
    remedy: str


def judge(results: Mapping[str, Any]) -> list[Finding]:
    """Findings of one run; a probe that isn't in `results` says nothing."""
    return [*_wrong_values(results), *_stragglers(results)]


def _wrong_values(results: Mapping[str, Any]) -> Iterator[Finding]:
    for row in results.get("matmul") or []:
        if not row["repeatable"]:
            yield Finding(
                "probe-corrupt",
                f"GPU {row['gpu']}: the same bf16 product differs between runs or is not finite",
                "take the GPU out of service and run dcgmi diag -r 3 on it",
            )
    for row in results.get("peer") or []:
        if not row["right"]:
            yield Finding(
                "probe-peer-corrupt",
                f"bytes copied from GPU {row['from']} to GPU {row['to']} arrive changed",
                "check IOMMU and ACS; until then set NCCL_P2P_DISABLE=1",
            )
    reduce = results.get("all_reduce") or {}
    if reduce and not reduce["sums_right"]:
        yield Finding(
            "probe-sum",
            f"an all-reduce of {reduce['ranks']} ranks gives a wrong sum",
            "set NCCL_P2P_DISABLE=1 and probe again; with right sums then, P2P is at fault",
        )


def _stragglers(results: Mapping[str, Any]) -> Iterator[Finding]:
    for probe, name, unit in (("matmul", "tflops", "TFLOP/s"), ("memory", "gb_s", "GB/s")):
        rows = results.get(probe) or []
        middle = statistics.median(row[name] for row in rows) if rows else 0.0
        for row in rows:
            if row[name] < SLOW_GPU * middle:
                yield Finding(
                    "probe-slow-gpu",
                    f"GPU {row['gpu']}: {probe} {row[name]:.0f} {unit}, the host's median is "
                    f"{middle:.0f}",
                    "compare clocks, power limit and temperature with the other GPUs",
                )
    for access in (True, False):
        pairs = [row for row in results.get("peer") or [] if row["access"] is access]
        middle = statistics.median(row["gb_s"] for row in pairs) if pairs else 0.0
        for row in pairs:
            if row["gb_s"] < SLOW_PAIR * middle:
                yield Finding(
                    "probe-slow-pair",
                    f"GPU {row['from']} to GPU {row['to']}: {row['gb_s']:.1f} GB/s, pairs of the "
                    f"same kind have {middle:.1f}",
                    "check the PCIe or NVLink state of both; pairs across sockets may be slower",
                )


def rates(results: Mapping[str, Any]) -> dict[str, float]:
    """All measured rates by a name, higher is better (a latency counts as its inverse)."""
    found: dict[str, float] = {}
    for row in results.get("matmul") or []:
        found[f"matmul of GPU {row['gpu']} (TFLOP/s)"] = row["tflops"]
    for row in results.get("memory") or []:
        found[f"memory of GPU {row['gpu']} (GB/s)"] = row["gb_s"]
    for row in results.get("host_copy") or []:
        found[f"host to GPU {row['gpu']} (GB/s)"] = row["to_device_gb_s"]
        found[f"GPU {row['gpu']} to host (GB/s)"] = row["to_host_gb_s"]
    for row in results.get("peer") or []:
        found[f"GPU {row['from']} to GPU {row['to']} (GB/s)"] = row["gb_s"]
    reduce = results.get("all_reduce") or {}
    if reduce:
        found["all-reduce of 256 MiB (bus GB/s)"] = reduce["large_bus_gb_s"]
        found["all-reduces of 32 KiB (a millisecond)"] = 1000.0 / reduce["small_us"]
    return found


def compare(results: Mapping[str, Any], baseline: Mapping[str, Any]) -> list[Finding]:
    """What is slower than in `baseline` (an earlier run here, or another host of the group)."""
    before, now = rates(baseline), rates(results)
    slower = [
        Finding(
            "probe-slower",
            f"{name}: {now[name]:.1f}, baseline {value:.1f}",
            "look for lower clocks, a narrower link or other load; store a new baseline if the "
            "change is wanted",
        )
        for name, value in before.items()
        if name in now and now[name] < SLOWER_THAN_BASELINE * value
    ]
    gone = [
        Finding("probe-missing", f"{name}: measured in the baseline, not now", "see the findings")
        for name in before
        if name not in now
    ]
    return slower + gone
