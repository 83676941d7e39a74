"""bench.json: which arms are measured, on which launches, under which load. Read and checked."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from .errors import HostkitError
from .launch import Launch, check_type, read_json
from .prompts import CHAT_FORMATS, Prompt, guess_format, read_prompts, requests_of

MODES = ("ar", "dflash", "ddtree")
# bf16 logits of 16 to 32 are 0.125 apart: a gap of two such steps may turn either way when the
# batch has another shape. fp32 (the reference engine) must be identical: 0.
NEAR_TIE_LOGITS = {"reference": 0.0, "sglang": 0.25}


@dataclass(frozen=True)
class BenchArm:
    """One benchmarked configuration; `launch` names the engine start that serves it."""

    name: str
    mode: str
    launch: str
    parallelism: str = ""
    budget: int | None = None


@dataclass(frozen=True)
class Settings:
    """The load. Lengths are tokens; `repeats` are measured rounds, warm-up comes on top.

    `near_tie_logits`: largest gap of the target's logits at which a first divergence from the
    baseline arm is rounding; None takes the engine's own (see NEAR_TIE_LOGITS).
    `cross_check`: measure one row with a second client too; None does so for SGLang.
    """

    concurrency: list[int] = field(default_factory=lambda: [1])
    prompt_sets: list[str] = field(default_factory=lambda: ["chat"])
    prompts_per_cell: int = 4
    max_new_tokens: int = 48
    temperature: float = 0.0
    repeats: int = 1
    rounds: int | None = None
    warmup_requests: int = 1
    ignore_eos: bool = False
    baseline: str = "ar"
    chat_format: str = "auto"
    interleave_launches: bool = False
    near_tie_logits: float | None = None
    cross_check: bool | None = None

    @property
    def measured_rounds(self) -> int:
        return self.rounds if self.rounds is not None else self.repeats


@dataclass(frozen=True)
class Step:
    """One cell to run: `requests` prompts of `prompt_set` by `arm` at `concurrency`."""

    arm: str
    concurrency: int
    prompt_set: str
    round: int
    warmup: bool
    requests: int

    @property
    def key(self) -> tuple[str, int, str, int, bool]:
        return (self.arm, self.concurrency, self.prompt_set, self.round, self.warmup)


@dataclass(frozen=True)
class BenchConfig:
    """A checked bench.json. `running` maps a launch key to the URL of an engine that runs."""

    document: Mapping[str, Any]
    arms: list[BenchArm]
    launches: dict[str, Launch]
    running: dict[str, str]
    settings: Settings
    prompts: dict[str, list[Prompt]]

    @property
    def fingerprint(self) -> str:
        return str(self.document["fingerprint"])

    @property
    def engine(self) -> str:
        return str((self.document.get("plan") or {}).get("engine", "unknown"))

    @property
    def near_tie_logits(self) -> float:
        wanted = self.settings.near_tie_logits
        return NEAR_TIE_LOGITS.get(self.engine, 0.0) if wanted is None else wanted

    @property
    def cross_check(self) -> bool:
        wanted = self.settings.cross_check
        return self.engine == "sglang" if wanted is None else wanted

    def arms_of(self, launch: str) -> list[BenchArm]:
        return [arm for arm in self.arms if arm.launch == launch]

    @property
    def baseline(self) -> BenchArm | None:
        return next((arm for arm in self.arms if arm.name == self.settings.baseline), None)

    def launch_order(self) -> list[str]:
        """The baseline's launch last: when it is up, every divergence from it is known."""
        keys = list(dict.fromkeys(arm.launch for arm in self.arms))
        last = self.baseline.launch if self.baseline else None
        return sorted(keys, key=lambda key: key == last)

    def visits(self) -> list[tuple[str, list[int]]]:
        """Engine starts as (launch, rounds measured in it): one each, or one for each round."""
        rounds = list(range(1, self.settings.measured_rounds + 1))
        if not self.settings.interleave_launches:
            return [(key, rounds) for key in self.launch_order()]
        return [(key, [number]) for number in rounds for key in self.launch_order()]

    def steps(self, launch: str, rounds: list[int]) -> list[Step]:
        """Cells of one engine start: warm-up at each concurrency, then the arms interleaved."""
        settings, arms = self.settings, self.arms_of(launch)
        found: list[Step] = []
        if settings.warmup_requests:
            for concurrency in settings.concurrency:
                count = max(settings.warmup_requests, concurrency)
                for arm in arms:
                    first = settings.prompt_sets[0]
                    found.append(Step(arm.name, concurrency, first, rounds[0], True, count))
        for number in rounds:
            for concurrency in settings.concurrency:
                count = requests_of(settings.prompts_per_cell, concurrency)
                for prompt_set in settings.prompt_sets:
                    for arm in arms:
                        found.append(Step(arm.name, concurrency, prompt_set, number, False, count))
        return found


def read_config(path: Path) -> BenchConfig:
    """Raises HostkitError with one line for whatever can't be used in `path`."""
    document = read_json(path)
    for name in ("fingerprint", "group", "host", "launches", "arms", "settings"):
        if name not in document:
            raise HostkitError(f"{path}: key {name!r} is missing")
    settings = _settings(path, document)
    launches: dict[str, Launch] = {}
    running: dict[str, str] = {}
    for key, data in document["launches"].items():
        if data.get("use_running"):
            running[key] = str(data["use_running"])
        else:
            launches[key] = Launch.from_json(data, f"{path}: launch {key!r}")
    arms = [_arm(path, data, {*launches, *running}) for data in document["arms"]]
    if not arms:
        raise HostkitError(f"{path}: no arm to measure; expected at least one in 'arms'")
    prompts = {name: read_prompts(name) for name in settings.prompt_sets}
    config = BenchConfig(document, arms, launches, running, settings, prompts)
    if settings.chat_format == "auto":
        target = (document.get("plan") or {}).get("target") or {}
        name = str(target.get("name", "") if isinstance(target, dict) else target)
        config = replace(config, settings=replace(settings, chat_format=guess_format(name)))
    return config


def _settings(path: Path, document: Mapping[str, Any]) -> Settings:
    data = dict(document["settings"])
    if "interleave_launches" in document:
        data["interleave_launches"] = document["interleave_launches"]
    known = {item.name for item in fields(Settings)}
    unknown = sorted(set(data) - known)
    if unknown:
        raise HostkitError(
            f"{path}: settings has the unknown key {unknown[0]!r}; known: {', '.join(known)}"
        )
    for name, value in data.items():
        check_type(f"{path}: settings", name, value, Settings.__annotations__[name])
    settings = Settings(**data)
    whole = [settings.prompts_per_cell, settings.max_new_tokens, settings.measured_rounds]
    for number in [*whole, *settings.concurrency]:
        if number < 1:
            raise HostkitError(
                f"{path}: settings expected whole numbers of at least 1 for prompts_per_cell, "
                f"max_new_tokens, repeats and concurrency, found {number!r}"
            )
    if settings.chat_format not in (*CHAT_FORMATS, "auto"):
        raise HostkitError(
            f"{path}: chat_format {settings.chat_format!r} is unknown; "
            f"expected auto or one of {', '.join(CHAT_FORMATS)}"
        )
    return settings


def _arm(path: Path, data: Mapping[str, Any], launches: set[str]) -> BenchArm:
    known = {item.name for item in fields(BenchArm)}
    try:
        arm = BenchArm(**{name: value for name, value in data.items() if name in known})
    except TypeError as error:
        raise HostkitError(f"{path}: arm {data}: {error}") from error
    if arm.launch not in launches:
        raise HostkitError(f"{path}: arm {arm.name!r} names no launch of the file: {arm.launch!r}")
    if arm.mode not in MODES:
        raise HostkitError(f"{path}: arm {arm.name!r} has mode {arm.mode!r}, not one of {MODES}")
    return arm
