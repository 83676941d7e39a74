"""The serving plan as data: what runs on one host, and why.

Everything here is frozen and free of pyinfra. `operations.plan.choose` makes a plan; units,
environment, benchmark and kit render from it alone, and it is stored with every result.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from operations.plan_errors import PlanError

MODES = ("ar", "dflash", "ddtree")


@dataclass(frozen=True)
class Choice:
    """One decision: `name` ("parallelism"), `value` ("TP8") and the `reason` in one sentence."""

    name: str
    value: str
    reason: str


@dataclass(frozen=True)
class ModelRef:
    """A target or drafter as the plan sees it.

    `path` is what the engine is given on the host; `size_bytes` is None when nobody said it.
    """

    name: str
    source: str
    revision: str
    path: str
    size_bytes: int | None = None


@dataclass(frozen=True)
class Launch:
    """One distinct engine start.

    `algorithm` is None (autoregressive), "DFLASH" or "DDTREE"; `budget` is the budget B that the
    engine starts with (its verify width is B + 1), None unless `algorithm` is "DDTREE".
    """

    key: str
    argv: tuple[str, ...]
    env: Mapping[str, str]
    algorithm: str | None
    budget: int | None

    @property
    def speculative(self) -> bool:
        return self.algorithm is not None


@dataclass(frozen=True)
class Arm:
    """One configuration to benchmark; `launch` is the key of the engine start that serves it.

    Arms of one DDTREE launch differ by `budget`, which the engine changes at run time.
    An arm that can't run has `possible=False` and says why in `reason`; its `launch` is None where
    no command line could serve it.
    """

    name: str
    mode: str
    parallelism: str
    budget: int | None
    launch: str | None
    possible: bool
    reason: str


@dataclass(frozen=True)
class ServingPlan:
    """What runs on one host. `arm` is the served one; sizes are bytes, times are seconds."""

    group: str
    host: str
    engine: str  # "sglang" | "reference"
    service_manager: str  # "systemd" | "supervisor"
    prefix: str
    python: str  # the engine venv's Python, e.g. "3.12"
    lock: str  # "sglang-0.5.16-cu130" | "reference"
    patch_set: str | None  # folder under files/patches, None for the reference engine
    host_address: str
    port: int
    served_model_name: str
    gpus: int
    target: ModelRef
    drafter: ModelRef | None
    block: int | None
    arm: str
    arms: tuple[Arm, ...]
    launches: tuple[Launch, ...]
    start_timeout_s: int
    stop_timeout_s: int
    choices: tuple[Choice, ...]

    def arm_named(self, name: str) -> Arm:
        """The arm of that name, possible or not."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        known = ", ".join(arm.name for arm in self.arms)
        raise PlanError(f"arm {name!r}", f"the arms {known}", "name one of these")

    def launch_for(self, arm: Arm | str) -> Launch:
        """The engine start that serves `arm`. An arm that is not possible has none: PlanError."""
        found = self.arm_named(arm) if isinstance(arm, str) else arm
        for launch in self.launches:
            if launch.key == found.launch:
                return launch
        raise PlanError(
            f"a launch for arm {found.name}", f"not possible: {found.reason}", "choose another arm"
        )

    @property
    def serving_arm(self) -> Arm:
        return self.arm_named(self.arm)

    @property
    def serving_launch(self) -> Launch:
        """The engine start of the service; a tree is exactly as wide as the served one."""
        for launch in self.launches:
            if launch.key == "serve":
                return launch
        return self.launch_for(self.arm)

    @property
    def possible_arms(self) -> tuple[Arm, ...]:
        return tuple(arm for arm in self.arms if arm.possible)

    def choice(self, name: str) -> Choice:
        for choice in self.choices:
            if choice.name == name:
                return choice
        raise KeyError(name)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON types; `from_json(to_json())` gives an equal plan."""
        document = asdict(self)
        document["arms"] = [asdict(arm) for arm in self.arms]
        document["choices"] = [asdict(choice) for choice in self.choices]
        document["launches"] = [
            {**asdict(launch), "argv": list(launch.argv), "env": dict(sorted(launch.env.items()))}
            for launch in self.launches
        ]
        return document

    @classmethod
    def from_json(cls, document: Mapping[str, Any]) -> ServingPlan:
        """The plan that `to_json` wrote. Unknown or missing keys: PlanError."""
        known = {field.name for field in fields(cls)}
        if set(document) != known:
            odd = ", ".join(sorted(set(document) ^ known))
            raise PlanError(
                "a stored plan of this version", f"keys that differ: {odd}", "deploy the host again"
            )
        values = dict(document)
        values["target"] = ModelRef(**document["target"])
        values["drafter"] = ModelRef(**document["drafter"]) if document["drafter"] else None
        values["arms"] = tuple(Arm(**arm) for arm in document["arms"])
        values["choices"] = tuple(Choice(**choice) for choice in document["choices"])
        values["launches"] = tuple(
            Launch(**{**launch, "argv": tuple(launch["argv"]), "env": dict(launch["env"])})
            for launch in document["launches"]
        )
        return cls(**values)
