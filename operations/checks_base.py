"""What a pre-flight check is: a question with a stable id, answered from the facts of a host.

A check is a pure function of a `Context`. Unknown is an answer of its own: it is neither good nor
bad, unless the check says that the item is required, and then it stops the host as a failure does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

from facts.machine import MachineFacts
from operations.attention import sm
from operations.parallelism import links_of
from operations.plan_model import ServingPlan
from operations.wanted import Wanted


class Status(StrEnum):
    """The outcome of a check. Only `FAIL` stops a host."""

    PASS = "pass"
    FAIL = "fail"
    WARN = "warn"
    UNKNOWN = "unknown"
    SKIP = "skip"  # does not apply here; the evidence says why


@dataclass(frozen=True)
class Finding:
    """One answer. `evidence` is what was seen; `remedy` is empty where nothing needs to be done."""

    id: str
    status: Status
    title: str
    evidence: str
    remedy: str = ""

    @property
    def line(self) -> str:
        """The finding in one line for people."""
        tail = f"; {self.remedy}" if self.remedy else ""
        return f"{self.status} {self.id}: {self.evidence}{tail}"

    def to_json(self) -> dict[str, str]:
        return {
            "id": self.id,
            "status": str(self.status),
            "title": self.title,
            "evidence": self.evidence,
            "remedy": self.remedy,
        }


@dataclass(frozen=True)
class Answer:
    """What a check's function returns; `ask` adds the id and the title."""

    status: Status
    evidence: str
    remedy: str = ""


@dataclass(frozen=True)
class Own:
    """What of ours is on the host already: processes of our service, sizes of models by path."""

    pids: frozenset[int] = frozenset()
    model_mib: Mapping[str, int] = field(default_factory=dict)


NOTHING_KNOWN = Own()


@dataclass(frozen=True)
class Hub:
    """What the hub said of model sources, asked from the controller; whether that has a token.

    `gated`: by source, True or False; a source that could not be asked about is not in it.
    """

    gated: Mapping[str, bool] = field(default_factory=dict)
    token: bool = False


NOT_ASKED = Hub()


@dataclass(frozen=True)
class Context:
    """What the checks read.

    `now_unix` is the controller's clock when the facts were read; None: don't compare.
    """

    machine: MachineFacts
    wanted: Wanted
    plan: ServingPlan
    own: Own = NOTHING_KNOWN
    hub: Hub = NOT_ASKED
    now_unix: int | None = None

    @property
    def sglang(self) -> bool:
        return self.plan.engine == "sglang"

    @property
    def gpu_group(self) -> bool:
        """The engine needs GPUs, or the group claims to have some."""
        w = self.wanted
        claims = w.gpus not in (None, 0) or w.gpu_name or w.compute_capability or w.links
        return self.sglang or bool(claims)

    @property
    def several_gpus(self) -> bool:
        return self.sglang and self.plan.gpus > 1

    @property
    def follows(self) -> str | None:
        """The check whose failure explains what else can't be read; None if nothing is amiss."""
        if self.machine.gpus_lost:
            return "gpu.lost"
        return None if self.machine.gpus else "gpu.driver"

    @property
    def counts_differ(self) -> bool:
        """The host shows another number of GPUs than its group claims."""
        claim = self.wanted.gpus
        allowed = [claim] if isinstance(claim, int) else claim
        return allowed is not None and len(self.machine.gpus) not in allowed

    @property
    def compute_cap(self) -> str | None:
        """The architecture "12.0" of the GPUs that are there, else the claimed one."""
        seen = self.machine.gpus[0].compute_cap if self.machine.gpus else None
        return seen or self.wanted.compute_capability

    @property
    def sm(self) -> str:
        return sm(self.compute_cap)

    @property
    def links(self) -> str:
        return links_of(self.machine.topology)

    @property
    def over_pcie(self) -> bool:
        topology = self.machine.topology
        return topology is not None and topology.gpus > 1 and topology.all_nvlink is False

    @property
    def environment(self) -> Mapping[str, str]:
        """The environment of the engine that will serve; empty where no launch can be made."""
        launches = self.plan.launches
        return launches[0].env if launches else {}


Judge = Callable[[Context], Answer]


@dataclass(frozen=True)
class Check:
    """One registered check."""

    id: str
    title: str
    judge: Judge

    def ask(self, context: Context) -> Finding:
        answer = self.judge(context)
        return Finding(self.id, answer.status, self.title, answer.evidence, answer.remedy)


@dataclass
class Checks:
    """The checks of one module, in the order in which they are written."""

    all: list[Check] = field(default_factory=list)

    def add(self, id: str, title: str) -> Callable[[Judge], Judge]:
        """Decorator: registers a function as the check `id`."""

        def register(judge: Judge) -> Judge:
            self.all.append(Check(id, title, judge))
            return judge

        return register


def passed(evidence: str) -> Answer:
    return Answer(Status.PASS, evidence)


def failed(evidence: str, remedy: str) -> Answer:
    return Answer(Status.FAIL, evidence, remedy)


def warned(evidence: str, remedy: str) -> Answer:
    return Answer(Status.WARN, evidence, remedy)


def unknown(evidence: str, remedy: str = "", required: bool = False) -> Answer:
    """Not known. If the item is required, that is a failure: nothing may rest on a guess."""
    return Answer(Status.FAIL if required else Status.UNKNOWN, evidence, remedy)


def skipped(reason: str) -> Answer:
    return Answer(Status.SKIP, reason)


def consequence(of: str) -> Answer:
    """Can't be judged because another check failed; said once, there."""
    return Answer(Status.SKIP, f"can't be judged, see {of}")


def counted(values: Mapping[Any, int]) -> str:
    """ "7x NVIDIA B300, 1x NVIDIA H200"."""
    return ", ".join(f"{count}x {value}" for value, count in values.items())
