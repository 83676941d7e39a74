"""Chooses what runs on a host, and says why: `choose(machine, wanted) -> ServingPlan`. Pure.

    python -m operations.plan show inventories/b300.py --facts FILE.json

prints the plan and its reasons for a saved machine, without a host.
"""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from pathlib import PurePosixPath

from facts.machine import MachineFacts
from operations import plan_arms, plan_reference, plan_sglang
from operations.attention import Backends
from operations.layout import default_prefix
from operations.model_source import ModelSource, ModelSourceError
from operations.parallelism import Parallelism, automatic, links_of, named
from operations.plan_errors import PlanError
from operations.plan_model import Arm, Choice, Launch, ModelRef, ServingPlan
from operations.plan_models import TargetFacts, drafter_facts, target_facts
from operations.wanted import Wanted

__all__ = ["Arm", "Choice", "Launch", "ModelRef", "PlanError", "ServingPlan", "choose"]

UNPINNED = "UNPINNED"  # stands for a commit that the deploy resolves


@dataclass
class _Notes:
    """The choices of a plan in the order in which they are made."""

    choices: list[Choice] = field(default_factory=list)

    def add(self, name: str, value: object, reason: str) -> None:
        self.choices.append(Choice(name, str(value), reason))


def choose(machine: MachineFacts, wanted: Wanted) -> ServingPlan:
    """The plan for `machine` under the wish `wanted`.

    What the facts forbid (a model that does not fit) shows as arms that are not possible; a wish
    that contradicts itself (the served arm is a tree, the backend drops tree masks) is a PlanError.
    Values that drift (free disk, load, ports) never matter.
    """
    notes = _Notes()
    engine, engine_reason = _engine(machine, wanted)
    notes.add("engine", engine, engine_reason)
    manager, manager_reason = _service_manager(machine, wanted)
    notes.add("service manager", manager, manager_reason)
    prefix = wanted.prefix or default_prefix(machine.uid, machine.home)
    target_known = target_facts(wanted.target)
    target = _model(wanted.target, prefix, target_known.size_bytes)
    notes.add("target", target.name, f"{wanted.target}: {target_known.title}")
    drafter, block = None, None
    if wanted.drafter is not None:
        drafter_known = drafter_facts(wanted.drafter)
        drafter = _model(wanted.drafter, prefix, drafter_known.size_bytes)
        block = drafter_known.block
        notes.add("drafter", drafter.name, f"{wanted.drafter}: {drafter_known.title}")
        notes.add(
            "block",
            block if block is not None else "the checkpoint's",
            "the drafter was trained for it" if block else "read from its config.json by SGLang",
        )
    if engine == "reference":
        return _reference(machine, wanted, notes, manager, prefix, target, drafter, block)
    return _sglang(machine, wanted, notes, manager, prefix, target, drafter, block, target_known)


def _engine(machine: MachineFacts, wanted: Wanted) -> tuple[str, str]:
    if wanted.engine != "auto":
        return wanted.engine, "set in wanted"
    if machine.gpus:
        name = machine.gpus[0].name or "GPU"
        return "sglang", f"{len(machine.gpus)}x {name}"
    claimed = wanted.gpus not in (None, 0) or wanted.compute_capability or wanted.gpu_name
    if claimed:
        return "sglang", "the group claims GPUs; the host shows none, see the pre-flight"
    return "reference", "no usable NVIDIA GPU" + (
        f": {machine.gpu_error}" if machine.gpu_error else ""
    )


def _service_manager(machine: MachineFacts, wanted: Wanted) -> tuple[str, str]:
    if wanted.service_manager != "auto":
        return wanted.service_manager, "set in wanted"
    if machine.init != "systemd":
        return "supervisor", "PID 1 is not systemd"
    if machine.uid != 0:
        return "supervisor", f"PID 1 is systemd, but {machine.user} may not install system units"
    return "systemd", "PID 1 is systemd"


def _model(text: str, prefix: str, size_bytes: int | None) -> ModelRef:
    try:
        source = ModelSource.parse(text)
        root = PurePosixPath(prefix)
        if source.pinned:
            path = str(source.model_path(root))
        else:
            path = str(root / "models" / source.folder / UNPINNED)
    except ModelSourceError as error:
        raise PlanError("a known model source", str(error), "mend wanted") from None
    return ModelRef(
        name=source.name.rsplit("/", 1)[-1],
        source=text,
        revision=(source.revision or "") if source.pinned else UNPINNED,
        path=path,
        size_bytes=size_bytes,
    )


def _reference(
    machine: MachineFacts,
    wanted: Wanted,
    notes: _Notes,
    manager: str,
    prefix: str,
    target: ModelRef,
    drafter: ModelRef | None,
    block: int | None,
) -> ServingPlan:
    python, python_reason = plan_reference.python_version(machine)
    notes.add("python", python, python_reason)

    def start(key: str, algorithm: str | None, budget: int | None, overlap: bool) -> Launch:
        return plan_reference.launch(prefix, wanted, target, drafter, block, key, algorithm, budget)

    rules = plan_arms.Rules(
        wanted=wanted,
        parallelism="CPU",
        has_drafter=drafter is not None,
        budgets=(8, 16),
        budgets_reason="small trees: on a CPU verification is compute-bound",
        nooverlap=False,
    )
    matrix = plan_arms.build(rules, start)
    notes.choices += matrix.choices
    start_timeout = wanted.start_timeout_s or 300
    notes.add("start timeout", f"{start_timeout} s", "reads and unpacks the weights on a CPU")
    return ServingPlan(
        group=wanted.group,
        host=machine.hostname,
        engine="reference",
        service_manager=manager,
        prefix=prefix,
        python=python,
        lock=plan_reference.LOCK,
        patch_set=None,
        host_address=wanted.host,
        port=wanted.port,
        served_model_name=wanted.served_model_name or target.name,
        gpus=0,
        target=target,
        drafter=drafter,
        block=block,
        arm=matrix.served,
        arms=matrix.arms,
        launches=matrix.launches,
        start_timeout_s=start_timeout,
        stop_timeout_s=30,
        choices=tuple(notes.choices),
    )


def _sglang(
    machine: MachineFacts,
    wanted: Wanted,
    notes: _Notes,
    manager: str,
    prefix: str,
    target: ModelRef,
    drafter: ModelRef | None,
    block: int | None,
    known: TargetFacts,
) -> ServingPlan:
    parallelism, reason = _parallelism(machine, wanted, known)
    notes.add("parallelism", parallelism.name, reason)
    compute_cap = machine.gpus[0].compute_cap if machine.gpus else wanted.compute_capability
    ground = plan_sglang.Ground(
        machine, wanted, prefix, target, known, drafter, block, parallelism, compute_cap
    )
    _note_sglang(notes, ground)

    def start(key: str, algorithm: str | None, budget: int | None, overlap: bool) -> Launch:
        return plan_sglang.launch(ground, key, algorithm, budget, overlap)

    matrix = plan_arms.build(plan_arms.sglang_rules(ground), start)
    notes.choices += matrix.choices
    start_timeout, timeout_reason = _start_timeout(wanted, target)
    notes.add("start timeout", f"{start_timeout} s", timeout_reason)
    return ServingPlan(
        group=wanted.group,
        host=machine.hostname,
        engine="sglang",
        service_manager=manager,
        prefix=prefix,
        python=plan_sglang.PYTHON,
        lock=plan_sglang.LOCK,
        patch_set=plan_sglang.PATCH_SET,
        host_address=wanted.host,
        port=wanted.port,
        served_model_name=wanted.served_model_name or target.name,
        gpus=parallelism.gpus,
        target=target,
        drafter=drafter,
        block=block,
        arm=matrix.served,
        arms=matrix.arms,
        launches=matrix.launches,
        start_timeout_s=start_timeout,
        stop_timeout_s=120,
        choices=tuple(notes.choices),
    )


def _parallelism(
    machine: MachineFacts, wanted: Wanted, known: TargetFacts
) -> tuple[Parallelism, str]:
    claimed = wanted.gpus if isinstance(wanted.gpus, int) else max(wanted.gpus or [1])
    gpus = len(machine.gpus) or claimed
    if wanted.parallelism != "auto":
        links = links_of(machine.topology)
        return named(wanted.parallelism, gpus), f"set in wanted ({links})"
    return automatic(gpus, machine.topology, known)


def _note_sglang(notes: _Notes, ground: plan_sglang.Ground) -> None:
    titles: dict[Backends, list[str]] = {}
    for title, algorithm in (("ar", None), ("dflash", "DFLASH"), ("ddtree", "DDTREE")):
        titles.setdefault(plan_sglang.backends(ground, algorithm), []).append(title)
    for chosen, modes in titles.items():
        sides = "" if chosen.prefill == chosen.decode else f"prefill {chosen.prefill}, verify "
        notes.add(f"attention {', '.join(modes)}", f"{sides}{chosen.decode}", chosen.reason)
    notes.add(
        "attention drafter",
        plan_sglang.DRAFT_BACKEND,
        "SGLang's DFLASH drafts with flashinfer, fa3, fa4 or triton; triton runs on every GPU",
    )
    notes.add("MoE runner", *plan_sglang.moe_runner(ground))
    notes.choices.append(plan_sglang.all_reduce(ground))
    notes.add(
        "memory fraction",
        ground.wanted.mem_fraction_static or plan_sglang.MEM_FRACTION,
        "set in wanted"
        if ground.wanted.mem_fraction_static
        else "weights and KV; the rest is for graphs, tree buffers and the drafter. Lower it first "
        "if a start ends out of memory (SGLang #23769)",
    )
    sizes = " ".join(str(size) for size in plan_sglang.graph_sizes(ground))
    notes.add("graph batch sizes", sizes, plan_sglang.graph_reason(ground))
    home, reason = plan_sglang.cuda_home(ground.machine, ground.compute_cap)
    notes.add("CUDA_HOME", home, reason)


def _start_timeout(wanted: Wanted, target: ModelRef) -> tuple[int, str]:
    """Twice the time to read the weights at 1 GB/s, and 15 minutes for JIT and CUDA graphs."""
    if wanted.start_timeout_s:
        return wanted.start_timeout_s, "set in wanted"
    if target.size_bytes is None:
        return 3600, "the model's size is not known to the planner"
    seconds = 900 + 2 * target.size_bytes / 1e9
    return math.ceil(seconds / 60) * 60, (
        f"15 min for JIT and CUDA graphs, twice {target.size_bytes / 1e9:.1f} GB at 1 GB/s"
    )


if __name__ == "__main__":
    from operations.plan_show import main

    sys.exit(main(sys.argv[1:]))
