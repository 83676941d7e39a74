"""The benchmark of a plan as data: what `hostkit bench` is told, and its fingerprint. Pure."""

from __future__ import annotations

import json
from typing import Any

from facts.machine import MachineFacts
from files.hostkit.prompts import read_prompts, render, requests_of
from operations import artifacts
from operations.layout import Layout
from operations.plan import ServingPlan
from operations.plan_models import target_facts
from operations.release import launch_document
from operations.wanted import BenchWanted, Wanted, WantedError

MODES = ("auto", "quick", "full", "force")
_DRIFTING = (  # facts that change from run to run and say nothing about the figures
    "memory_available_mib",
    "ports",
    "gpu_processes",
    "clock_unix",
    "clock_synchronised",
    "mounts",
    "places",
    "units",
    "venvs",
    "model_dirs",
)


def settings_of(wanted: Wanted, mode: str) -> BenchWanted:
    """The settings of `--data bench=MODE`: quick and full lay their changes over the group's own.

    Raises WantedError for an unknown mode or a change that does not fit.
    """
    if mode not in MODES:
        raise WantedError(f"--data bench: expected one of {', '.join(MODES)}, found '{mode}'")
    changes = {"quick": wanted.bench.quick, "full": wanted.bench.full}.get(mode) or {}
    try:
        return BenchWanted.model_validate(wanted.bench.model_dump() | changes)
    except ValueError as error:
        first = str(error).splitlines()[-2].strip() if "\n" in str(error) else str(error)
        raise WantedError(f"wanted.bench.{mode}: {first}; mend the inventory") from None


def check(plan: ServingPlan, wanted: Wanted, mode: str) -> None:
    """Refuses settings that would measure nothing, or fail on the host. Raises WantedError."""
    settings = settings_of(wanted, mode)
    names = [arm.name for arm in plan.arms]
    asked = {"arms": settings.arms or [], "baseline": [settings.baseline]}
    for key, arms in asked.items():
        for name in arms:
            if name not in names:
                raise WantedError(
                    f"wanted.bench.{key}: expected arms of the plan ({', '.join(names)}), "
                    f"found '{name}'; mend the inventory"
                )
    known = sorted(p.stem for p in (artifacts.FILES / "hostkit/prompts").glob("*.json"))
    for name in settings.prompt_sets:
        if name not in known and not name.startswith("path:/"):
            raise WantedError(
                f"wanted.bench.prompt_sets: expected {', '.join(known)} or path:/FILE, "
                f"found '{name}'; mend the inventory"
            )
    context = wanted.context_length or target_facts(wanted.target).context_length
    need = _least_prompt(plan, settings) + settings.max_new_tokens
    if context is not None and context < need:
        raise WantedError(
            f"wanted.context_length: expected at least {need} tokens, for the benchmark's longest "
            f"prompt and {settings.max_new_tokens} new tokens, found {context}; raise it, or lower "
            "wanted.bench.max_new_tokens"
        )


def _least_prompt(plan: ServingPlan, settings: BenchWanted) -> int:
    """Tokens that the longest built-in prompt takes at least: each word is one or more."""
    most = max(requests_of(settings.prompts_per_cell, c) for c in settings.concurrency)
    texts = [
        render(prompt.text, chat_format(plan))
        for name in settings.prompt_sets
        if not name.startswith("path:")
        for prompt in read_prompts(name)[:most]
    ]
    return max((len(text.split()) for text in texts), default=1)


def document(
    plan: ServingPlan, wanted: Wanted, layout: Layout, machine: MachineFacts, mode: str
) -> dict[str, Any]:
    """bench.json: launches, arms and settings, with the plan and the facts that belong to it."""
    settings = settings_of(wanted, mode)
    arms = [a for a in plan.arms if settings.arms is None or a.name in settings.arms]
    runnable = [arm for arm in arms if arm.possible]
    keys = {arm.launch for arm in runnable}
    body: dict[str, Any] = {
        "group": plan.group,
        "host": plan.host,
        "launches": {
            launch.key: launch_document(plan, launch, launch.key, launch.budget, "bench", wanted)
            | {"run_dir": f"{plan.prefix}/run/bench", "metrics_port": None, "restart_limit": 0}
            for launch in plan.launches
            if launch.key in keys
        },
        "arms": [
            {
                "name": arm.name,
                "mode": arm.mode,
                "parallelism": arm.parallelism,
                "budget": arm.budget,
                "launch": arm.launch,
            }
            for arm in runnable
        ],
        "not_possible": [
            {"name": arm.name, "reason": arm.reason} for arm in arms if not arm.possible
        ],
        "settings": settings.model_dump(exclude={"arms", "quick", "full"})
        | {"chat_format": chat_format(plan)},
        "versions": {
            "target": plan.target.revision,
            "drafter": plan.drafter.revision if plan.drafter else None,
            "venv": layout.venv_hash,
            "code": artifacts.service_code(artifacts.sources(), plan.engine, plan.patch_set),
            "harness": harness_hash(),
        },
    }
    name = artifacts.digest(json.dumps(body, sort_keys=True))
    for launch in body["launches"].values():
        launch["fingerprint"] = name
    facts = {k: v for k, v in machine.to_json().items() if k not in _DRIFTING}
    return body | {"fingerprint": name, "plan": plan.to_json(), "machine": facts}


def harness_hash() -> str:
    """Hash of what measures: the load generator and its prompts."""
    tree = artifacts.sources().below("hostkit/load", "hostkit/bench", "hostkit/prompts")
    return tree.hash


def chat_format(plan: ServingPlan) -> str:
    """How a chat prompt is written for the target: names of hostkit's formats."""
    name = plan.target.name.lower()
    if "kimi" in name:
        return "kimi"
    return "chatml" if "smol" in name else "none"
