"""Begins a run on one host: reads its facts, checks what is wanted, and chooses the plan.

Everything later in deploy.py works from the frozen `Run` that `begin` returns. Whatever is wrong
with the input stops this host alone, with one line, before anything has changed.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

from pyinfra import logger
from pyinfra.context import host

from facts.machine import Machine, MachineFacts
from operations import (
    artifacts,
    bench_config,
    connection,
    neighbour,
    phases,
    preflight,
    switches,
    tools_paths,
)
from operations.layout import Layout
from operations.load import Load
from operations.model_source import ModelSource, ModelSourceError, resolve
from operations.plan import PlanError, ServingPlan, choose
from operations.release import Release, build, layout_of
from operations.results import result_path
from operations.stack_source import StackSource, places, stack_source
from operations.tuned import with_tuned
from operations.wanted import Wanted, WantedError, override, read_wanted


@dataclass(frozen=True)
class Run:
    """What one host is, what is wanted of it, and what follows."""

    machine: MachineFacts
    wanted: Wanted
    plan: ServingPlan
    layout: Layout
    release: Release
    source: StackSource
    tools_source: StackSource
    phases: frozenset[str]
    bench_mode: str  # "auto" | "quick" | "full" | "force"
    verify: str | None  # "full": hash all models again
    prune: bool  # remove model revisions that the plan does not use
    rollback: str | None  # a release's fingerprint, or "previous"
    gate: bool  # go back if the new release is slower than the stored one, or wrong
    probe: bool  # measure the GPUs with the installed stack
    adopt: Load | None  # write the best arm for this load into the group's tuned settings

    @property
    def systemd(self) -> bool:
        return self.plan.service_manager == "systemd"

    @property
    def system_python(self) -> str | None:
        """The host's own Python whose packages the engine uses (`stack: system`)."""
        return (self.wanted.stack_from or "python3") if self.wanted.stack == "system" else None

    @cached_property
    def bench(self) -> dict[str, Any]:
        """bench.json of this run; "fingerprint" names the result."""
        return bench_config.document(
            self.plan, self.wanted, self.layout, self.machine, self.bench_mode
        )

    @property
    def result(self) -> Path:
        """Where the result lies on this machine."""
        return result_path(
            self.plan.group, self.bench["fingerprint"], host.name, artifacts.ROOT / "results"
        )

    @property
    def models(self) -> dict[str, Any]:
        """Arguments of `models.start`."""
        endpoint = {"HF_ENDPOINT": self.wanted.hub_endpoint} if self.wanted.hub_endpoint else {}
        return {
            "plan": self.plan,
            "tools_python": self.layout.tools_python,
            "sources": self.layout.sources,
            "uv": tools_paths.uv_path(self.layout, self.machine),
            "verify": self.verify,
            "environment": {**tools_paths.UV_ENVIRONMENT, **self.source.env, **endpoint},
        }

    @property
    def patches(self) -> dict[str, Any]:
        """Arguments of `patches.apply`."""
        return {
            "venv": self.layout.venv,
            "series": self.plan.patch_set,
            "sources": self.layout.sources,
        }


def begin() -> Run | None:
    """Reads, checks and plans; None when this host was stopped."""
    connection.tune(host)
    connection.clear_environment(host)
    try:
        data = _data()
        chosen = phases.selected(data["only"])
        mode = str(data["bench"] or "auto")
        wanted = _wanted()
        bench_config.settings_of(wanted, mode)
        neighbour.check(wanted, host.name, (other.name for other in host.inventory))
        load = switches.load_of(data)
        sources = stack_source(wanted), stack_source(_tools(wanted))
        machine = host.get_fact(Machine, places=places(wanted))
        plan = choose(machine, wanted)
        bench_config.check(plan, wanted, mode)
        switches.check_probe(data["probe"], plan.engine)
    except (phases.PhaseError, WantedError, ModelSourceError, PlanError) as error:
        stop(str(error))
        return None
    layout = layout_of(plan, wanted)
    run = Run(
        machine,
        wanted,
        plan,
        layout,
        build(plan, wanted, layout),
        *sources,
        chosen,
        mode,
        verify=data["verify"],
        prune=data["prune"] == "models",
        rollback=data["rollback"],
        gate=data["gate"] == "rollback",
        probe=data["probe"] == "run",
        adopt=load if data["adopt"] else None,
    )
    if ("kit" in chosen or run.adopt) and "bench" not in chosen and not run.result.exists():
        stop(f"expected a result in {run.result}, found none; run the phase 'bench' first")
        return None
    return run


def stop(reason: str) -> None:
    """Ends the run for this host alone: one line, and exit code 1 at the end."""
    host.log_styled(reason, fg="red", log_func=logger.error)
    preflight.take_out()


def _data() -> dict[str, Any]:
    """The run's own switches. One that nobody knows is refused, not ignored."""
    given = host.inventory.get_override_data()  # type: ignore[no-untyped-call]
    own = {key for layer in _inventory_data() for key in layer}
    switches.refuse_unknown(given, own)
    return switches.checked({key: host.data.get(key) for key in switches.SWITCHES})


def _inventory_data() -> list[dict[str, Any]]:
    """What the inventory itself says of this host, without the command line's --data."""
    inventory: Any = host.inventory
    groups = [inventory.get_group_data(group) for group in (*host.groups, "all")]
    return [inventory.get_host_data(host.name), *groups]


def _wanted() -> Wanted:
    where = f"{host.name}"
    data = override(with_tuned(host.data.get("wanted")), host.data.get("set"))
    wanted = read_wanted(data, where)
    pinned = {"target": _pinned(wanted.target, wanted)}
    if wanted.drafter is not None:
        pinned["drafter"] = _pinned(wanted.drafter, wanted)
    return wanted.model_copy(update=pinned)


def _tools(wanted: Wanted) -> Wanted:
    """The tools venv comes from where the engine's comes from, unless `tools_from` says else."""
    place = wanted.tools_from
    if place is None:
        return wanted
    kind = "mirror" if place.startswith("http") else "wheelhouse"
    return wanted.model_copy(update={"stack": kind, "stack_from": place})


def _pinned(source: str, wanted: Wanted) -> str:
    return str(_resolved(source, wanted.hub_endpoint))


@lru_cache(maxsize=64)
def _resolved(source: str, endpoint: str | None) -> ModelSource:
    """One question to the Hub a source and run, however many hosts want it."""
    return resolve(ModelSource.parse(source), endpoint, os.environ.get("HF_TOKEN") or None)
