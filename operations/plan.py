"""Chooses what runs on a host, and says why: `choose(machine, wanted) -> ServingPlan`. Pure.

    python -m operations.plan show inventories/b300.py --facts FILE.json

prints the plan and its reasons for a saved machine, without a host.
"""

from __future__ import annotations

import math
import signal
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

    def add(self, name: str, value: str, reason: str) -> str:
        self.choices.append(Choice(name, value, reason))
        return value


def choose(machine: MachineFacts, wanted: Wanted) -> ServingPlan:
    """The plan for `machine` under the wish `wanted`.

    What the facts forbid (a model that does not fit) shows as arms that are not possible; a wish
    that contradicts itself (the served arm is a tree, the backend drops tree masks) is a PlanError.
    Values that drift (free disk, load, ports) never matter.
    """
    notes = _Notes()
    engine = notes.add("engine", *_engine(machine, wanted))
    manager = notes.add("service manager", *_service_manager(machine, wanted))
    prefix = wanted.prefix or default_prefix(machine.uid, machine.home)
    known = target_facts(wanted.target)
    target = _model(wanted.target, prefix, known.size_bytes)
    notes.add("target", target.name, f"{wanted.target}: {known.title}")
    drafter, block = _drafter(wanted, prefix, notes)
    decide = _sglang if engine == "sglang" else _reference
    own = decide(_Inputs(machine, wanted, prefix, known, target, drafter, block), notes)
    return ServingPlan(
        group=wanted.group,
        host=machine.hostname,
        engine=engine,
        service_manager=manager,
        prefix=prefix,
        python=own.python,
        lock=own.lock,
        patch_set=own.patch_set,
        host_address=wanted.host,
        port=wanted.port,
        served_model_name=wanted.served_model_name or target.name,
        gpus=own.gpus,
        target=target,
        drafter=drafter,
        block=block,
        arm=own.matrix.served,
        arms=own.matrix.arms,
        launches=own.matrix.launches,
        start_timeout_s=own.start_timeout_s,
        stop_timeout_s=own.stop_timeout_s,
        choices=tuple(notes.choices),
    )


@dataclass(frozen=True)
class _Inputs:
    """What both engines decide from."""

    machine: MachineFacts
    wanted: Wanted
    prefix: str
    known: TargetFacts
    target: ModelRef
    drafter: ModelRef | None
    block: int | None


@dataclass(frozen=True)
class _Decided:
    """What an engine decides for itself."""

    python: str
    lock: str
    patch_set: str | None
    gpus: int
    matrix: plan_arms.Matrix
    start_timeout_s: int
    stop_timeout_s: int


def _drafter(wanted: Wanted, prefix: str, notes: _Notes) -> tuple[ModelRef | None, int | None]:
    if wanted.drafter is None:
        return None, None
    known = drafter_facts(wanted.drafter)
    drafter = _model(wanted.drafter, prefix, known.size_bytes)
    notes.add("drafter", drafter.name, f"{wanted.drafter}: {known.title}")
    if known.block is None:
        notes.add("block", "the checkpoint's", "read from its config.json by SGLang")
    else:
        notes.add("block", str(known.block), "the drafter was trained for it")
    return drafter, known.block


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
    if wanted.service_manager == "systemd" and machine.init not in (None, "systemd"):
        raise PlanError(
            "systemd as PID 1 (wanted.service_manager)",
            machine.init or "",
            "write auto or supervisor",
        )
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


def _reference(inputs: _Inputs, notes: _Notes) -> _Decided:
    wanted = inputs.wanted
    python = notes.add("python", *plan_reference.python_version(inputs.machine))

    def render(start: plan_arms.Start) -> Launch:
        return plan_reference.launch(
            inputs.prefix,
            wanted,
            inputs.target,
            inputs.drafter,
            inputs.block,
            start.key,
            start.algorithm,
            start.budget,
        )

    rules = plan_arms.Rules(
        wanted=wanted,
        parallelism="CPU",
        has_drafter=inputs.drafter is not None,
        budgets=(8, 16),
        budgets_reason="small trees: on a CPU verification is compute-bound",
        nooverlap=False,
    )
    matrix = plan_arms.build(rules, render)
    notes.choices += matrix.choices
    limit = wanted.start_timeout_s or 300
    notes.add("start timeout", f"{limit} s", "reads and unpacks the weights on a CPU")
    return _Decided(python, plan_reference.LOCK, None, 0, matrix, limit, 30)


def _sglang(inputs: _Inputs, notes: _Notes) -> _Decided:
    machine, wanted = inputs.machine, inputs.wanted
    parallelism, reason = _parallelism(machine, wanted, inputs.known)
    notes.add("parallelism", parallelism.name, reason)
    ground = plan_sglang.Ground(
        machine=machine,
        wanted=wanted,
        prefix=inputs.prefix,
        target=inputs.target,
        target_facts=inputs.known,
        drafter=inputs.drafter,
        block=inputs.block,
        parallelism=parallelism,
        compute_cap=machine.gpus[0].compute_cap if machine.gpus else wanted.compute_capability,
    )
    _note_sglang(notes, ground)

    def render(start: plan_arms.Start) -> Launch:
        return plan_sglang.launch(
            ground, start.key, start.algorithm, start.budget, start.overlap, start.narrower
        )

    matrix = plan_arms.build(plan_arms.sglang_rules(ground), render)
    notes.choices += matrix.choices
    limit, reason = _start_timeout(wanted, inputs.target)
    notes.add("start timeout", f"{limit} s", reason)
    return _Decided(
        plan_sglang.PYTHON,
        plan_sglang.LOCK,
        plan_sglang.PATCH_SET,
        parallelism.gpus,
        matrix,
        limit,
        120,
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
        str(ground.wanted.mem_fraction_static or plan_sglang.MEM_FRACTION),
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

    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main(sys.argv[1:]))
