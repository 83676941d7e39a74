"""A release: what one fingerprint stands for, rendered. Pure.

A release is a folder PREFIX/releases/<fingerprint> with the plan, the launch description that
`hostkit supervise` reads, the service's environment, and links to the engine's venv, the tools venv
and the sources. PREFIX/current points to the release that serves; a roll-back is that link.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from operations import artifacts
from operations.layout import Layout
from operations.plan import Launch, ServingPlan
from operations.render import render
from operations.wanted import Wanted

HEALTH_INTERVAL_S = 10
RESTART_LIMIT = 5
RESTART_WINDOW_S = 3600


@dataclass(frozen=True)
class Release:
    """Files by name inside the release folder, links by name, and the service's own files."""

    layout: Layout
    fingerprint: str
    files: Mapping[str, str]
    links: Mapping[str, str]
    service_file: str  # the unit, or supervisor's configuration: absolute path
    service_text: str

    @property
    def service_files(self) -> Mapping[str, str]:
        return {self.service_file: self.service_text}


def layout_of(plan: ServingPlan, wanted: Wanted) -> Layout:
    """The paths of this run; the release's name is its fingerprint."""
    tree = artifacts.sources()
    stack = stack_name(plan, wanted)
    layout = Layout(
        prefix=plan.prefix,
        sources_hash=tree.hash,
        tools_hash=artifacts.lock_hash("tools"),
        venv_hash=stack,
        release="",
    )
    return replace(layout, release=fingerprint(plan, wanted, layout))


def stack_name(plan: ServingPlan, wanted: Wanted) -> str:
    """Names the engine's venv by what is in it: lock and patch set, or the Python that it extends.

    Each patch set has a venv of its own, so that a roll-back is a link and nothing is un-patched
    under a running service; uv makes the second one from its cache.
    """
    if wanted.stack == "system":
        return f"system-{artifacts.digest(wanted.stack_from or 'python3')}"
    patched = artifacts.sources().below(f"patches/{plan.patch_set}/").hash if plan.patch_set else ""
    return artifacts.lock_hash(plan.lock, plan.python, patched)


def fingerprint(plan: ServingPlan, wanted: Wanted, layout: Layout) -> str:
    """What the running service depends on: launch, pins, code, patch set and model revisions."""
    launch = plan.serving_launch
    facts = {
        "arm": plan.arm,
        "argv": list(launch.argv),
        "env": dict(launch.env),
        "budget": plan.serving_arm.budget,
        "venv": layout.venv_hash,
        "code": artifacts.service_code(artifacts.sources(), plan.engine, plan.patch_set),
        "target": plan.target.revision,
        "drafter": plan.drafter.revision if plan.drafter else None,
        "port": plan.port,
        "metrics_port": wanted.metrics_port,
        "tools": layout.tools_hash,
    }
    return artifacts.digest(json.dumps(facts, sort_keys=True))


def launch_document(
    plan: ServingPlan, launch: Launch, arm: str, budget: int | None, name: str, wanted: Wanted
) -> dict[str, Any]:
    """What `hostkit supervise` needs to start one engine (contract: hostkit/launch.py)."""
    return {
        "fingerprint": name,
        "arm": arm,
        "argv": list(launch.argv),
        "env": dict(sorted(launch.env.items())),
        "cwd": plan.prefix,
        "host": plan.host_address,
        "port": plan.port,
        "start_timeout_s": plan.start_timeout_s,
        "stop_timeout_s": plan.stop_timeout_s,
        "health_interval_s": HEALTH_INTERVAL_S,
        "speculative": launch.speculative,
        "algorithm": launch.algorithm,
        "budget": budget,
        "run_dir": f"{plan.prefix}/run",
        "restart_limit": RESTART_LIMIT,
        "restart_window_s": RESTART_WINDOW_S,
        "metrics_port": wanted.metrics_port,
    }


def build(plan: ServingPlan, wanted: Wanted, layout: Layout) -> Release:
    """Renders everything that a release holds."""
    name = layout.release
    serving = plan.serving_arm
    launch = launch_document(plan, plan.serving_launch, plan.arm, serving.budget, name, wanted)
    context = {"plan": plan, "wanted": wanted, "layout": layout, "fingerprint": name}
    if plan.service_manager == "systemd":
        service_file = f"/etc/systemd/system/{wanted.service}.service"
        service_text = render("ddtree.service.j2", context)
    else:
        service_file = f"{plan.prefix}/supervisor/{wanted.service}.conf"
        service_text = render("supervisord.conf.j2", context)
    return Release(
        layout=layout,
        fingerprint=name,
        files={
            "plan.json": _pretty(plan.to_json()),
            "launch.json": _pretty(launch),
            "service.env": render("service.env.j2", context),
        },
        links={"venv": layout.venv, "tools": layout.tools, "sources": layout.sources},
        service_file=service_file,
        service_text=service_text,
    )


def _pretty(document: Any) -> str:
    return json.dumps(document, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
