"""How one model is spread over the GPUs of a host: names, flags and the choice.

The names are those of the people who run these hosts. On n GPUs: TPn splits every layer n ways,
EPk splits every layer n ways and the experts k ways, PPn gives each GPU its own layers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.nvidia import Topology
from operations.plan_errors import PlanError
from operations.plan_models import TargetFacts


@dataclass(frozen=True)
class Parallelism:
    """A spread over GPUs: `tp` x `pp` GPUs are used, the experts are split `ep` ways."""

    name: str
    tp: int
    ep: int = 1
    pp: int = 1

    @property
    def gpus(self) -> int:
        return self.tp * self.pp

    def arguments(self) -> tuple[str, ...]:
        """SGLang's arguments: EP4 on 8 GPUs is `--tp-size 8 --ep-size 4`, PP8 is `--pp-size 8`."""
        found: tuple[str, ...] = ("--tp-size", str(self.tp))
        if self.ep > 1:
            found += ("--ep-size", str(self.ep))
        if self.pp > 1:
            found += ("--pp-size", str(self.pp))
        return found


def named(name: str, gpus: int) -> Parallelism:
    """The parallelism called `name` on a host with `gpus` GPUs. What can't be there: PlanError."""
    match = re.fullmatch(r"(TP|EP|PP)([1-9][0-9]*)", name)
    if match is None:
        raise PlanError("parallelism TPn, EPn or PPn", repr(name), "mend wanted.parallelism")
    kind, size = match[1], int(match[2])
    if size > gpus:
        raise PlanError(
            f"at least {size} GPUs for {name}", f"{gpus}", "choose a smaller wanted.parallelism"
        )
    if kind == "EP":
        if gpus % size:
            raise PlanError(
                f"an expert parallelism that divides {gpus} GPUs",
                name,
                "choose one of " + ", ".join(f"EP{n}" for n in range(1, gpus + 1) if gpus % n == 0),
            )
        return Parallelism(name, tp=gpus, ep=size)
    return Parallelism(name, tp=1, pp=size) if kind == "PP" else Parallelism(name, tp=size)


def links_of(topology: Topology | None) -> str:
    """The links between GPUs in a few words: "all 28 pairs NV18", "PCIe (4 PIX, 8 NODE)"."""
    if topology is None:
        return "links unknown"
    if topology.gpus < 2:
        return "one GPU, no links"
    pairs = topology.pairs
    counts = ", ".join(f"{count} {kind}" for kind, count in pairs.items())
    if topology.all_nvlink and len(pairs) == 1:
        total = sum(pairs.values())
        kind = next(iter(pairs))
        return f"all {total} pairs {kind}" if total > 1 else f"the pair is {kind}"
    if topology.all_nvlink:
        return f"all pairs NVLink ({counts})"
    kind = "NVLink in islands" if any(k.startswith("NV") for k in pairs) else "PCIe"
    return f"{kind} ({counts})"


def automatic(gpus: int, topology: Topology | None, target: TargetFacts) -> tuple[Parallelism, str]:
    """The parallelism for what is there, and why."""
    if gpus <= 1:
        return Parallelism("TP1", tp=1), "one GPU"
    size = _most_gpus(gpus, target.heads)
    links = links_of(topology)
    if size < gpus:
        return Parallelism(f"TP{size}", tp=size), (
            f"{target.heads} attention heads can't be split over {gpus} GPUs; {size} is the most"
        )
    if topology is not None and topology.all_nvlink:
        return Parallelism(f"TP{gpus}", tp=gpus), (
            f"{links}: the all-reduces of tensor parallelism stay on NVLink"
        )
    if target.experts == 0:
        return Parallelism(f"TP{gpus}", tp=gpus), f"{links}; a dense model has no experts to spread"
    if target.experts is None:
        return Parallelism(f"TP{gpus}", tp=gpus), (
            f"{links}; not known whether the model has experts to spread: set wanted.parallelism"
        )
    return Parallelism(f"EP{gpus}", tp=gpus, ep=gpus), (
        f"{links}: whole experts a GPU; on 8 PCIe cards EP8 was measured best of TP8, PP8, EP8, "
        "EP4 (65 tok/s for one request), the all-reduce over PCIe across the MoE layers being "
        "the bottleneck"
    )


def _most_gpus(gpus: int, heads: int | None) -> int:
    """The most GPUs that the heads can be split over evenly; all of them if unknown."""
    if heads is None:
        return gpus
    return max(size for size in range(1, gpus + 1) if heads % size == 0)
