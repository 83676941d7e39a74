"""Export in the llm-d benchmark report schema 0.2 (PyPI ``llmd-benchmark-report``).

That schema describes one workload on one stack, so each arm at each load becomes a report of its
own. It has no field for acceptance: that goes to ``results.profiling``, which the schema leaves
free, under ``speculative_decoding``.
"""

from __future__ import annotations

import hashlib
import json
import re
import uuid
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml
from llmd_benchmark_report import load_benchmark_report

from operations.results import BenchResult
from operations.statistics import ArmSummary, Comparison, Quantiles, quantiles, summarise

VERSION = "0.2.1"


def write_llmd(results: Sequence[BenchResult], path: Path) -> list[Path]:
    """Check the reports of ``results`` against the schema and write them; returns the files.

    A single one goes to ``path`` itself; several, as that schema holds one workload a file, to
    ``path`` without its suffix as a folder, named by host, arm and load.
    """
    reports = {
        f"{result.group}-{result.host}-{name}": report
        for result in results
        for name, report in llmd_reports(result).items()
    }
    for report in reports.values():
        load_benchmark_report(report)
    if len(reports) == 1:
        targets = [path]
    else:
        folder = path.with_suffix("") if path.suffix in (".yaml", ".yml") else path
        targets = [folder / f"{re.sub('[^A-Za-z0-9._-]', '_', name)}.yaml" for name in reports]
    for target, report in zip(targets, reports.values(), strict=True):
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(yaml.safe_dump(report, sort_keys=False), encoding="utf-8")
    return targets


def llmd_reports(result: BenchResult) -> dict[str, dict[str, Any]]:
    """``{"<arm>-<prompt set>-c<concurrency>": report}`` of a result, as plain data."""
    return {
        f"{row.arm}-{row.key.prompt_set}-c{row.key.concurrency}": _report(result, comparison, row)
        for comparison in summarise(result)
        for row in comparison.arms
    }


def _report(result: BenchResult, comparison: Comparison, row: ArmSummary) -> dict[str, Any]:
    identity = f"{result.fingerprint}/{result.host}/{row.arm}/{row.key.label()}"
    return {
        "version": VERSION,
        "run": {
            "uid": str(uuid.uuid5(uuid.NAMESPACE_URL, identity)),
            "eid": str(uuid.uuid5(uuid.NAMESPACE_URL, result.fingerprint)),
            "time": {"duration": f"PT{row.wall_s:.3f}S"},
            "description": f"{row.arm} on {result.group} / {result.host}, {row.key.label()}",
        },
        "scenario": {"stack": [_engine(result, row.arm)], "load": _load(result, row)},
        "results": {
            "request_performance": {"aggregate": _aggregate(result, row)},
            "profiling": {"speculative_decoding": _speculation(comparison, row)},
        },
    }


def _engine(result: BenchResult, arm: str) -> dict[str, Any]:
    launch = _launch(result, arm)
    target = result.plan.get("target")
    info = result.arm(arm)
    return {
        "metadata": {"label": "engine", "cfg_id": _hash({"launch": launch, "arm": arm})},
        "standardized": {
            "kind": "inference_engine",
            "tool": result.engine,
            "tool_version": str(result.versions.get("engine") or result.plan.get("lock")),
            "role": "replica",
            "replicas": 1,
            "model": {"name": str(target.get("name")) if isinstance(target, Mapping) else "?"},
            "accelerator": _accelerator(result, info.parallelism),
        },
        "native": {
            "args": _arguments(launch.get("argv") or ()),
            "envars": dict(launch.get("env") or {}),
            "config": {"arm": asdict(info), "drafter": result.plan.get("drafter")},
        },
    }


def _launch(result: BenchResult, arm: str) -> Mapping[str, Any]:
    """The engine start of ``arm``; empty if the plan does not tell."""
    key = next((a.get("launch") for a in result.document["arms"] if a.get("name") == arm), None)
    launches = result.plan.get("launches") or ()
    return next((launch for launch in launches if launch.get("key") == key), {})


def _accelerator(result: BenchResult, parallelism: str) -> dict[str, Any]:
    sizes = {kind.lower(): int(n) for kind, n in re.findall(r"(TP|EP|PP|DP)(\d+)", parallelism)}
    gpus = result.machine.get("gpus") or ()
    name = gpus[0].get("name") if gpus else result.machine.get("cpu_model")
    return {
        "model": str(name or "unknown"),
        "count": result.gpus or 0,
        "parallelism": {key: sizes.get(key, 1) for key in ("tp", "dp", "ep", "pp")},
    }


def _arguments(argv: Sequence[str]) -> dict[str, str | None]:
    """``--name value`` pairs of a command line; a flag without value is None."""
    arguments: dict[str, str | None] = {}
    for word, following in zip(argv, [*argv[1:], None], strict=True):
        if word.startswith("--"):
            takes = following is not None and not following.startswith("--")
            arguments[word] = following if takes else None
    return arguments


def _load(result: BenchResult, row: ArmSummary) -> dict[str, Any]:
    return {
        "metadata": {"cfg_id": _hash(result.settings), "description": row.key.label()},
        "standardized": {
            "tool": "hostkit bench",
            "tool_version": str(result.document["schema"]),
            "source": "sampled",
            "input_seq_len": {
                "distribution": "other",
                "value": _mean_of(result, row, "prompt_tokens"),
            },
            "output_seq_len": {"distribution": "other", "value": row.key.max_new_tokens},
            "concurrency": row.key.concurrency,
        },
        "native": {"config": dict(result.settings)},
    }


def _values(result: BenchResult, row: ArmSummary, field: str) -> list[float]:
    return [
        float(getattr(record, field))
        for cell in result.cells
        if not cell.warmup and cell.arm == row.arm and cell.key == row.key
        for record in cell.requests
        if record.error is None
    ]


def _mean_of(result: BenchResult, row: ArmSummary, field: str) -> float:
    values = _values(result, row, field)
    return sum(values) / len(values) if values else 0.0


def _aggregate(result: BenchResult, row: ArmSummary) -> dict[str, Any]:
    requests = {
        "total": row.requests,
        "failures": row.errors,
        "input_length": _stat(quantiles(_values(result, row, "prompt_tokens")), "count"),
        "output_length": _stat(quantiles(_values(result, row, "completion_tokens")), "count"),
    }
    latency = {
        "time_to_first_token": _stat(row.ttft, "s"),
        "time_per_output_token": _stat(row.tpot, "s/token"),
        "inter_token_latency": _stat(row.inter_token, "s/token"),
        "request_latency": _stat(row.e2e, "s"),
    }
    throughput = {
        "output_token_rate": _stat(quantiles(row.round_tokens_s), "tokens/s"),
        "request_rate": {
            "units": "queries/s",
            "mean": (row.requests - row.errors) / row.wall_s,
        }
        if row.wall_s > 0
        else None,
    }
    return {
        name: {key: value for key, value in part.items() if value is not None}
        for name, part in (("requests", requests), ("latency", latency), ("throughput", throughput))
    }


def _stat(value: Quantiles | None, units: str) -> dict[str, Any] | None:
    if value is None:
        return None
    return {
        "units": units,
        "mean": value.mean,
        "p50": value.p50,
        "p90": value.p90,
        "p99": value.p99,
    }


def _speculation(comparison: Comparison, row: ArmSummary) -> dict[str, Any]:
    accepted, ratio = row.acceptance, row.ratio
    return {
        "accept_length_definition": "emitted tokens / verify steps, pooled, bonus token included",
        "accept_length": accepted.pooled if accepted else None,
        "accept_length_unweighted": accepted.unweighted if accepted else None,
        "emitted_tokens": accepted.emitted if accepted else None,
        "verify_steps": accepted.steps if accepted else None,
        "accept_histogram": list(accepted.histogram) if accepted and accepted.histogram else None,
        "step_s": row.step_s,
        "speed_to_baseline": {
            "median": ratio.median,
            "low": ratio.low,
            "high": ratio.high,
            "rounds": ratio.rounds,
            "verdict": str(ratio.verdict),
        },
        "correctness_gate_passed": row.correct,
        "best_at_this_load": row.arm == comparison.winner,
    }


def _hash(value: Any) -> str:
    text = json.dumps(value, sort_keys=True, default=str)
    return hashlib.sha256(text.encode()).hexdigest()[:32]
