"""A reproduction kit: all that a reviewer needs to check a result, and to measure it again.

    python -m operations.kit build RESULT.json --out kits/

The kit holds the raw records and everything behind them, under hashes, with a verify.py that needs
nothing but Python. Equal input gives equal bytes. A kit with a secret in it is refused.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from operations.artifacts import FILES
from operations.render import render
from operations.report import render_report
from operations.results import BenchResult
from operations.statistics import ArmSummary, summarise

SUMS = "SHA256SUMS"
RECORDS = "records/result.json"
SECRET_NAMES = re.compile(r"TOKEN|SECRET|PASSWORD|PASSWD|API_?KEY|CREDENTIAL", re.IGNORECASE)
SECRET_TEXTS = {
    "a Hugging Face token": re.compile(rb"hf_[A-Za-z0-9]{20,}"),
    "a private key": re.compile(rb"-----BEGIN [A-Z ]*PRIVATE KEY-----"),
    "an AWS key": re.compile(rb"\bAKIA[0-9A-Z]{16}\b"),
}
NOT_REDERIVABLE = (
    "machine facts, plan and versions: as read on the host when it was measured",
    "near ties and logit gaps of the correctness gate: asked of the running engine "
    "(identical outputs are recounted)",
    "clocks, power and temperature of the GPUs",
    "times and token counts of each request: the records are the source of every other figure",
)

NOT_PATCHED = (
    "The files that the patch set changes are not in `patched/`: applying it to the pinned wheel "
    "gives them, and `apply.py` checks their hashes. What it adds is in `sources/patches`."
)


class KitError(ValueError):
    """A kit that can't be built; the message is one line for the user."""


def kit_name(result: BenchResult) -> str:
    """``<group>-<fingerprint12>``, the folder's name."""
    return f"{result.group}-{result.fingerprint[:12]}"


def build_kit(
    result: BenchResult,
    files: Mapping[str, bytes],
    notes: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
) -> dict[str, bytes]:
    """Every file of the kit by its path in it.

    ``files`` come from the caller under their paths in the kit (:mod:`operations.kit_parts`):
    ``sources/`` (harness, engine, patch set), ``stack/``, ``release/``, ``units/``, ``patched/``.
    ``notes`` are sentences for REPRODUCE.md on what is missing. ``environment`` is searched for
    secrets (default: this process's). Raises :class:`KitError` for a secret in any file.
    """
    machine, plan = dict(result.machine), dict(result.plan)
    kit = dict(files)
    kit |= {
        RECORDS: _json(result.document, indent=None),
        "headline.json": _json(headline(result)),
        "host/machine.json": _json(machine),
        "release/plan.json": _json(plan),
        "bench.json": _json(bench_config(result)),
        "report.html": render_report([result]).encode(),
        "verify.py": (FILES / "kit" / "verify.py").read_bytes(),
    }
    if plan.get("patch_set") and not any(name.startswith("patched/") for name in kit):
        notes = [*notes, NOT_PATCHED]
    kit["REPRODUCE.md"] = render("REPRODUCE.md.j2", _context(result, kit, notes)).encode()
    refuse_secrets(kit, os.environ if environment is None else environment)
    kit[SUMS] = "".join(
        f"{hashlib.sha256(kit[name]).hexdigest()}  {name}\n" for name in sorted(kit)
    ).encode()
    return dict(sorted(kit.items()))


def headline(result: BenchResult) -> dict[str, Any]:
    """The figures that verify.py redraws; floats keep 6 significant digits."""
    comparisons = summarise(result)
    return {
        "schema": "ddtree-kit/1",
        "records": RECORDS,
        "fingerprint": result.fingerprint,
        "group": result.group,
        "host": result.host,
        "baseline": result.baseline,
        "rows": [_row(row) for comparison in comparisons for row in comparison.arms],
        "best": [
            {"load": comparison.key.label(), "arm": comparison.winner} for comparison in comparisons
        ],
        "not_rederivable": list(NOT_REDERIVABLE),
    }


def _row(row: ArmSummary) -> dict[str, Any]:
    accepted = row.acceptance
    figures: dict[str, Any] = {
        "rounds": row.rounds,
        "requests": row.requests,
        "errors": row.errors,
        "output_tokens": row.output_tokens,
        "total_tokens_s": row.total_tokens_s,
        "user_tokens_s": row.user_tokens_s,
        "ttft_p50_s": row.ttft.p50 if row.ttft else None,
        "tpot_p50_s": row.tpot.p50 if row.tpot else None,
        "verify_steps": accepted.steps if accepted else None,
        "accept_length": accepted.pooled if accepted else None,
        "accept_length_unweighted": accepted.unweighted if accepted else None,
        "ratio": row.ratio.median,
        "ratio_low": row.ratio.low,
        "ratio_high": row.ratio.high,
        "verdict": str(row.ratio.verdict),
    }
    return {
        "arm": row.arm,
        "prompt_set": row.key.prompt_set,
        "temperature": row.key.temperature,
        "max_new_tokens": row.key.max_new_tokens,
        "concurrency": row.key.concurrency,
    } | {k: float(f"{v:.6g}") if isinstance(v, float) else v for k, v in figures.items()}


def bench_config(result: BenchResult) -> dict[str, Any]:
    """A bench.json that measures the same again: `hostkit bench --config bench.json`."""
    plan = result.plan
    launches = {
        launch["key"]: {
            "fingerprint": result.fingerprint,
            "arm": launch["key"],
            "argv": list(launch["argv"]),
            "env": dict(launch["env"]),
            "cwd": plan.get("prefix"),
            "port": plan.get("port"),
            "run_dir": f"{plan.get('prefix')}/run/bench",
            "start_timeout_s": plan.get("start_timeout_s", 600),
            "stop_timeout_s": plan.get("stop_timeout_s", 30),
            "speculative": launch.get("algorithm") is not None,
            "algorithm": launch.get("algorithm"),
            "budget": launch.get("budget"),
            "restart_limit": 0,
        }
        for launch in plan.get("launches") or ()
        if launch["key"] in {arm.get("launch") for arm in result.document["arms"]}
    }
    kept = ("fingerprint", "group", "host", "arms", "not_possible", "settings", "versions")
    return {name: result.document[name] for name in kept} | {
        "launches": launches,
        "plan": plan,
        "machine": result.machine,
    }


def refuse_secrets(kit: Mapping[str, bytes], environment: Mapping[str, str]) -> None:
    """Raise :class:`KitError` if a file holds a token, a key, or the value of a secret variable.

    The message names the file and the kind, never the secret.
    """
    values = {
        name: value.encode()
        for name, value in environment.items()
        if SECRET_NAMES.search(name) and len(value) >= 8 and not Path(value).exists()
    }
    for path, data in sorted(kit.items()):
        found = [what for what, pattern in SECRET_TEXTS.items() if pattern.search(data)]
        found += [f"the value of ${name}" for name, value in values.items() if value in data]
        if found:
            raise KitError(
                f"expected a kit without secrets, found {found[0]} in {path}; "
                "take it out of the inventory or the environment and measure again"
            )


def write_kit(kit: Mapping[str, bytes], folder: Path) -> None:
    """Write the kit beside ``folder``, then put it in its place; an older kit there goes."""
    part = folder.with_name(folder.name + ".part")
    shutil.rmtree(part, ignore_errors=True)
    for name, data in kit.items():
        target = part / name
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_bytes(data)
    shutil.rmtree(folder, ignore_errors=True)
    part.rename(folder)


def _context(result: BenchResult, kit: Mapping[str, bytes], notes: Sequence[str]) -> dict[str, Any]:
    plan, machine = result.plan, result.machine
    gpus = machine.get("gpus") or []
    return {
        "name": kit_name(result),
        "result": result,
        "plan": plan,
        "machine": machine,
        "gpu_name": gpus[0].get("name") if gpus else None,
        "compute_cap": gpus[0].get("compute_cap") if gpus else None,
        "commands": [(x["key"], _command(x)) for x in plan.get("launches") or ()],
        "notes": list(notes),
        "parts": _parts(kit),
        "has": lambda prefix: any(name.startswith(prefix) for name in kit),
        "locks": sorted(n for n in kit if n.startswith("stack/") and n.endswith(".lock")),
        "own_prompts": [
            s for s in result.settings.get("prompt_sets", ()) if str(s).startswith("path:")
        ],
        "comparisons": summarise(result),
    }


def _command(launch: Mapping[str, Any]) -> str:
    """Environment and command line as one would type them."""
    env = [f"{name}={shlex.quote(value)}" for name, value in sorted(launch["env"].items())]
    return " ".join([*env, shlex.join(launch["argv"])])


def _parts(kit: Mapping[str, bytes]) -> list[tuple[str, int, int]]:
    """(top-level name, files, bytes) of the kit."""
    tops = sorted({name.split("/")[0] for name in kit})
    return [
        (
            top,
            sum(name.split("/")[0] == top for name in kit),
            sum(len(data) for name, data in kit.items() if name.split("/")[0] == top),
        )
        for top in tops
    ]


def _json(document: Any, indent: int | None = 1) -> bytes:
    text = json.dumps(document, indent=indent, sort_keys=True, ensure_ascii=False)
    return (text + "\n").encode()


if __name__ == "__main__":
    import signal
    import sys

    from operations.kit_parts import main

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
