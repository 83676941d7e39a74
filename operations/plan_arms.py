"""The arms of a plan: which configurations are benchmarked, which one serves, what can't run."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from operations import plan_sglang
from operations.attention import tree_mask_fault
from operations.plan_errors import PlanError
from operations.plan_model import Arm, Choice, Launch
from operations.wanted import Wanted

FIRST_BUDGET = 15  # in the starting range of every group; the benchmark finds the best one


@dataclass(frozen=True)
class Start:
    """An engine start to render. `narrower` are budgets below `budget` that it must serve too."""

    key: str
    algorithm: str | None = None
    budget: int | None = None
    overlap: bool = True
    narrower: tuple[int, ...] = ()


Render = Callable[[Start], Launch]


@dataclass(frozen=True)
class Rules:
    """What decides the arms. The faults are reasons why something can't run, None if it can.

    `fault` holds for every arm (the model does not fit), `chain_fault` for all that speculate,
    `tree_fault` for draft trees.
    """

    wanted: Wanted
    parallelism: str
    has_drafter: bool
    budgets: tuple[int, ...]
    budgets_reason: str
    nooverlap: bool = True
    fault: str | None = None
    chain_fault: str | None = None
    tree_fault: str | None = None


@dataclass(frozen=True)
class Matrix:
    """Arms and the engine starts that serve them; `served` is an arm's name."""

    arms: tuple[Arm, ...]
    launches: tuple[Launch, ...]
    served: str
    choices: tuple[Choice, ...]


def sglang_rules(ground: plan_sglang.Ground) -> Rules:
    """The rules of SGLang 0.5.16 on this host."""
    chain_fault = None
    if ground.parallelism.pp > 1:
        chain_fault = "SGLang's DFLASH and DDTREE refuse pp_size != 1"
    tree_fault = tree_mask_fault(
        plan_sglang.backends(ground, "DDTREE").decode,
        ground.target_facts.attention,
        ground.compute_cap,
    )
    if ground.over_pcie and ground.target_facts.experts != 0:
        budgets, reason = (
            (7, 15),
            (
                "over PCIe each tree node costs expert reads and all-reduce: start with 8 to 16 "
                "nodes (our cost model for 384 experts); multiples of 8 cost the least a node"
            ),
        )
    else:
        budgets, reason = (
            (15, 31),
            "fast links and memory: start with 16 to 32 nodes; multiples of 8 cost the least a "
            "node (measured on an H200, docs/ddtree.md)",
        )
    return Rules(
        wanted=ground.wanted,
        parallelism=ground.parallelism.name,
        has_drafter=ground.drafter is not None,
        budgets=budgets,
        budgets_reason=reason,
        fault=_fit_fault(ground),
        chain_fault=chain_fault,
        tree_fault=tree_fault,
    )


def _fit_fault(ground: plan_sglang.Ground) -> str | None:
    """Why the weights don't fit into the GPUs, or None if they do or nobody knows."""
    if not ground.machine.gpus:
        return f"no usable GPU ({ground.machine.gpu_error or 'none is listed'})"
    memory = plan_sglang.gpu_memory_bytes(ground.machine)
    size = ground.target.size_bytes
    if memory is None or size is None:
        return None
    fraction = ground.wanted.mem_fraction_static or plan_sglang.MEM_FRACTION
    need, room = size / ground.parallelism.gpus, memory * fraction
    if need <= room:
        return None
    return (
        f"the weights need {need / 1e9:.1f} GB on each of {ground.parallelism.gpus} GPUs, "
        f"and {room / 1e9:.1f} GB are there (memory fraction {fraction:g})"
    )


def build(rules: Rules, render: Render) -> Matrix:
    """All arms with their engine starts. The draft trees share one start, as wide as the widest.

    If a smaller tree serves than the widest that is benchmarked, it has a start of its own
    ("serve"), so that no request pays for nodes that are not used.
    """
    if rules.has_drafter:
        chain_fault, tree_fault = rules.chain_fault, rules.chain_fault or rules.tree_fault
    else:
        chain_fault = tree_fault = "no drafter in wanted"
    budgets, budgets_reason = _budgets(rules)
    names = ["ar", "dflash", *(["dflash-nooverlap"] if rules.nooverlap else [])]
    names += [f"ddtree-{budget}" for budget in budgets]
    arms: list[Arm] = []
    launches: dict[str, Launch] = {}
    for name in names:
        mode = name.split("-")[0]
        fault = {"ar": None, "dflash": chain_fault, "ddtree": tree_fault}[mode]
        key = mode if mode == "ddtree" else name
        if fault is None and key not in launches:
            launches[key] = render(_start(key, budgets))
        arms.append(_arm(rules, name, mode, key, fault))
    served, reason = _served(rules, arms)
    budget = next(arm.budget for arm in arms if arm.name == served)
    if budget is not None and budget != budgets[-1]:
        launches["serve"] = render(Start("serve", "DDTREE", budget))
    choices = [Choice("arm", served, reason)]
    if rules.has_drafter:
        choices.append(Choice("budgets", " ".join(str(b) for b in budgets), budgets_reason))
    return Matrix(tuple(arms), tuple(launches.values()), served, tuple(choices))


def _start(key: str, budgets: tuple[int, ...]) -> Start:
    if key == "ddtree":
        *narrower, widest = budgets
        return Start(key, "DDTREE", widest, narrower=tuple(narrower))
    algorithm = None if key == "ar" else "DFLASH"
    return Start(key, algorithm, overlap=key != "dflash-nooverlap")


def _arm(rules: Rules, name: str, mode: str, key: str, fault: str | None) -> Arm:
    reasons = {
        "ar": "one token a step: the baseline",
        "dflash": "the drafter's block as a chain",
        "dflash-nooverlap": "the chain without the overlap scheduler, for a fair comparison",
    }
    budget = int(name.removeprefix("ddtree-")) if mode == "ddtree" else None
    if fault or rules.fault:
        reason = fault or rules.fault or ""
    else:
        reason = reasons.get(name, f"a draft tree of {budget} nodes")
    return Arm(
        name=name,
        mode=mode,
        parallelism=rules.parallelism,
        budget=budget,
        launch=None if fault else key,
        possible=not (fault or rules.fault),
        reason=reason,
    )


def _budgets(rules: Rules) -> tuple[tuple[int, ...], str]:
    """The benchmarked budgets, ascending: those wished for, and every one that an arm names."""
    wanted = rules.wanted
    chosen = set(wanted.budgets or rules.budgets)
    for name in [wanted.arm, *(wanted.bench.arms or [])]:
        if name.startswith("ddtree-"):
            chosen.add(int(name.removeprefix("ddtree-")))
    reason = "set in wanted" if wanted.budgets else rules.budgets_reason
    return tuple(sorted(chosen)), reason


def _served(rules: Rules, arms: list[Arm]) -> tuple[str, str]:
    """The arm that serves, and why. A wish that can't be met on any host: PlanError."""
    by_name = {arm.name: arm for arm in arms}
    asked = rules.wanted.arm
    if asked != "auto":
        if asked not in by_name:
            known = ", ".join(by_name)
            raise PlanError(f"one of the arms {known}", asked, "mend wanted.arm")
        if by_name[asked].launch is None:
            raise PlanError(
                f"a plan in which {asked} can serve",
                by_name[asked].reason,
                "mend wanted.arm or what forbids it",
            )
        return asked, "set in wanted"
    trees = [arm for arm in arms if arm.mode == "ddtree" and arm.launch is not None]
    if trees:
        first = min(trees, key=lambda arm: (abs((arm.budget or 0) - FIRST_BUDGET), arm.budget or 0))
        return first.name, f"the budget nearest to {FIRST_BUDGET}, until a benchmark names a better"
    if by_name["dflash"].launch is not None:
        tree = next(arm for arm in arms if arm.mode == "ddtree")
        return "dflash", f"no draft tree: {tree.reason}"
    return "ar", f"no speculation: {by_name['dflash'].reason}"
