"""What an inventory asks for: the `wanted` data of a group, checked before anything else happens.

`wanted` is plain data (a dict in an inventory file). `read_wanted` turns it into a frozen `Wanted`
or raises `WantedError` with one line that says what was expected, what was found and what to do.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeVar

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError
from pydantic_core import PydanticCustomError

PARALLELISM = r"^(auto|(TP|EP|PP)[1-9][0-9]*)$"
ARM = r"^(auto|ar|dflash|dflash-nooverlap|ddtree-[1-9][0-9]*)$"
GROUP = r"^[A-Za-z][A-Za-z0-9_-]*$"
SERVICE = r"^[a-z][a-z0-9-]*$"
# Paths go into units, sh and uv's command lines: no blanks and nothing that a shell reads.
PATH = r"^(/\.?[A-Za-z0-9_+@,-][A-Za-z0-9._+@,-]*)+$"
ADDRESS = r"^[A-Za-z0-9:][A-Za-z0-9.:_-]*$"
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
LINE = r"^[^\n\r\x00]*$"
URL = r"^https?://[^\s]+$"
URLS = ("http://", "https://")
CAPABILITY = r"^[0-9]+\.[0-9]$"
MOST_BUDGET = 255  # the patch set verifies at most 256 tokens a step: budget + 1
_WORDS = {  # what a pattern means, for people
    PARALLELISM: "'auto', or a name like 'TP8', 'EP8', 'EP4' or 'PP8'",
    ARM: "'auto', 'ar', 'dflash', 'dflash-nooverlap' or 'ddtree-BUDGET'",
    GROUP: "a name of letters, digits, '_' and '-', such as 'B300'",
    SERVICE: "a name of lower-case letters, digits and '-', such as 'ddtree'",
    PATH: "an absolute path without blanks, '..' or signs that a shell reads, like '/opt/ddtree'",
    ADDRESS: "an address or a host name, such as '127.0.0.1'",
    VARIABLE: "names of environment variables, such as 'NCCL_DEBUG'",
    LINE: "one line of text",
    URL: "a URL that begins with http:// or https://",
    CAPABILITY: "a compute capability such as '10.3'",
}
Item = TypeVar("Item")


def _verifiable(arm: str) -> str:
    if arm.startswith("ddtree-") and int(arm.removeprefix("ddtree-")) > MOST_BUDGET:
        raise PydanticCustomError("budget", "a budget of at most {most}", {"most": MOST_BUDGET})
    return arm


def _unique(values: list[Item]) -> list[Item]:
    if len(set(values)) < len(values):
        raise PydanticCustomError("unique", "each value once")
    return values


ArmName = Annotated[str, Field(pattern=ARM), AfterValidator(_verifiable)]
Budget = Annotated[int, Field(ge=1, le=MOST_BUDGET)]
Distinct = Annotated[list[Item], Field(min_length=1), AfterValidator(_unique)]
Positive = Annotated[int, Field(gt=0)]
Port = Annotated[int, Field(ge=1, le=65535)]
Text = Annotated[str, Field(pattern=LINE)]


class WantedError(ValueError):
    """The `wanted` data can't be used. The message is one line for people."""


class _Data(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True, allow_inf_nan=False)


class BenchWanted(_Data):
    """The benchmark matrix. Times are seconds, lengths are tokens."""

    arms: Distinct[ArmName] | None = None  # None: all in the plan
    concurrency: Distinct[Positive] = [1]
    prompt_sets: Distinct[str] = ["chat"]  # built-in names or path:FILE
    prompts_per_cell: Positive = 4
    max_new_tokens: Positive = 48
    temperature: Annotated[float, Field(ge=0)] = 0.0
    repeats: Positive = 1  # measured rounds; fewer than 3 give no verdict
    warmup_requests: Annotated[int, Field(ge=0)] = 1
    ignore_eos: bool = False
    interleave_launches: bool = False  # restart the engine every round: for cheap starts only
    baseline: ArmName = "ar"
    quick: dict[str, Any] | None = None  # what `--data bench=quick` changes in these settings
    full: dict[str, Any] | None = None  # what `--data bench=full` changes


class Wanted(_Data):
    """One group's wish. Everything that is left out is chosen from the facts of the host."""

    group: Annotated[str, Field(pattern=GROUP)]
    target: str  # a model source: hf:REPO@REVISION, path:/DIR, pypi:NAME==VERSION, mirror:, host:
    drafter: str | None = None  # None: autoregressive decoding only
    engine: Literal["auto", "sglang", "reference"] = "auto"

    # the group's claim: a host that shows something else is stopped by the pre-flight
    gpus: Annotated[int, Field(ge=0)] | list[int] | None = None  # a count, or the counts allowed
    gpu_name: str | None = None  # a regular expression that each GPU's name must match
    compute_capability: Annotated[str, Field(pattern=CAPABILITY)] | None = None
    links: Literal["nvlink", "pcie"] | None = None

    # the plan: 'auto' lets the facts decide
    parallelism: Annotated[str, Field(pattern=PARALLELISM)] = "auto"
    arm: ArmName = "auto"  # the arm that serves
    budgets: Distinct[Budget] | None = None  # benchmarked draft trees
    attention_backend: str | None = None  # the verify (decode) backend
    moe_runner_backend: str | None = None
    page_size: Positive | None = None
    mem_fraction_static: Annotated[float, Field(gt=0, lt=1)] | None = None
    context_length: Positive | None = None
    max_running_requests: Positive | None = None
    engine_args: list[Text] = []  # appended to the engine's command line as they stand
    environment: dict[
        Annotated[str, Field(pattern=VARIABLE)], Text
    ] = {}  # added to the engine's environment; no secrets here

    # the service
    host: Annotated[str, Field(pattern=ADDRESS)] = (
        "127.0.0.1"  # the address that the engine listens on
    )
    port: Port = 30000
    metrics_port: Port | None = None
    service: Annotated[str, Field(pattern=SERVICE)] = "ddtree"  # unit and program name
    service_manager: Literal["auto", "systemd", "supervisor"] = "auto"
    prefix: Annotated[str, Field(pattern=PATH)] | None = None
    served_model_name: Annotated[str, Field(pattern=LINE, min_length=1)] | None = None
    start_timeout_s: Positive | None = None

    # where things come from
    stack: Literal["online", "mirror", "wheelhouse", "copy", "system"] = "online"
    stack_from: str | None = None  # index URL, wheelhouse folder, host of the inventory, Python
    tools_from: str | None = None  # the same for our own small tools: index URL or wheelhouse
    hub: Literal["auto", "offline"] = "auto"  # offline: no check of the hub, no download
    hub_endpoint: Annotated[str, Field(pattern=URL)] | None = None

    bench: BenchWanted = BenchWanted()


def read_wanted(data: object, where: str) -> Wanted:
    """Checks `data`; `where` names its place for the message ("b300-1 in inventories/b300.py").

    Raises WantedError.
    """
    if not isinstance(data, Mapping):
        raise WantedError(
            f"{where}: expected a dict called 'wanted' with at least 'group' and 'target', "
            f"found {_shown(data)}; see inventories/local.py for an example"
        )
    try:
        wanted = Wanted.model_validate(dict(data))
    except ValidationError as error:
        raise WantedError(f"{where}: {_first_fault(error, dict(data))}") from None
    fault = _contradiction(wanted)
    if fault is not None:
        raise WantedError(f"{where}: {fault}; mend the inventory")
    return wanted


def _contradiction(wanted: Wanted) -> str | None:
    """What two settings say against each other, None if they agree."""
    if wanted.metrics_port == wanted.port:
        return f"wanted.metrics_port: expected another port than wanted.port, found {wanted.port}"
    if wanted.stack == "copy" and not wanted.stack_from:
        return (
            "wanted.stack 'copy': expected a host of the inventory in wanted.stack_from, "
            f"found {wanted.stack_from!r}"
        )
    place = wanted.tools_from
    if place is not None and not (place.startswith(URLS) or is_path(place)):
        return (
            "wanted.tools_from: expected an index URL or an absolute folder of wheels, "
            f"found {_shown(place)}"
        )
    return None


def is_path(text: str) -> bool:
    """An absolute path that sh and uv take as it stands; a folder's may end with a slash."""
    return re.fullmatch(PATH, text.rstrip("/")) is not None


def override(data: object, changes: object) -> object:
    """`wanted` with the run's own changes (`--data 'set={"port": 30001}'`) laid over it, deep."""
    if not changes:
        return data
    if not isinstance(changes, Mapping):
        raise WantedError(
            f'--data set: expected a JSON object such as {{"port": 30001}}, '
            f"found {_shown(changes)}; quote it: --data 'set={{\"port\": 30001}}'"
        )
    return _merged(data, changes) if isinstance(data, Mapping) else data


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    out = dict(old)
    for key, value in new.items():
        both = isinstance(value, Mapping) and isinstance(out.get(key), Mapping)
        out[key] = _merged(out[key], value) if both else value
    return out


def _first_fault(error: ValidationError, data: dict[str, Any]) -> str:
    fault = error.errors()[0]
    place = "wanted." + ".".join(str(part) for part in fault["loc"] if not _is_branch(part))
    more = f" (and {error.error_count() - 1} more)" if error.error_count() > 1 else ""
    if fault["type"] == "extra_forbidden":
        known = BenchWanted.model_fields if "bench" in fault["loc"][:-1] else Wanted.model_fields
        name = str(fault["loc"][-1])
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"known keys: {', '.join(sorted(known))}"
        return f"{place}: unknown key{more}; {hint}"
    if fault["type"] == "missing":
        return f"{place}: expected a value, found nothing{more}; add it to the inventory"
    pattern = str(fault.get("ctx", {}).get("pattern", ""))
    message = _WORDS.get(pattern) or re.sub(r"^Input should (be )?", "", fault["msg"])
    return f"{place}: expected {message}, found {_shown(fault['input'])}{more}; mend the inventory"


def _is_branch(part: object) -> bool:
    """pydantic names the branch of a union in the place; people never wrote it."""
    return isinstance(part, str) and (
        "[" in part or part.startswith(("constrained-", "int", "str"))
    )


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
