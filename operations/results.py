"""Reading of benchmark results: one JSON document (schema ``ddtree-bench/1``) -> dataclasses.

``hostkit bench`` writes the document on the host, the run fetches it to
``results/<group>/<fingerprint12>/<host>.json``. Times are seconds since the cell's start.
Unknown stays ``None``: an engine that counts no verify steps has no accept length, not 0.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SCHEMA = "ddtree-bench/1"
RESULTS_DIR = Path("results")


class ResultError(ValueError):
    """A result file that can't be used; the message is one line for the user."""


@dataclass(frozen=True)
class Record:
    """One request as the client saw it; tokens are the engine's own counts."""

    prompt_id: str
    error: str | None
    prompt_tokens: int
    completion_tokens: int
    verify_steps: int | None
    accept_histogram: tuple[int, ...] | None
    """Steps by the number of drafted tokens they accepted: index i emitted i + 1 tokens."""
    start_s: float
    first_token_s: float | None
    end_s: float
    chunks: tuple[tuple[float, int], ...]
    """(arrival in seconds, tokens in it): under speculation a chunk carries several tokens."""
    output_ids: tuple[int, ...] | None


@dataclass(frozen=True, order=True)
class CellKey:
    """What the arms of one comparison share."""

    prompt_set: str
    temperature: float
    max_new_tokens: int
    concurrency: int

    def label(self) -> str:
        """Short text, as in ``chat, T=0, 48 new tokens, concurrency 1``."""
        return (
            f"{self.prompt_set}, T={self.temperature:g}, {self.max_new_tokens} new tokens, "
            f"concurrency {self.concurrency}"
        )


@dataclass(frozen=True)
class Cell:
    """One arm at one load in one round."""

    arm: str
    key: CellKey
    round: int
    warmup: bool
    wall_s: float
    effective_concurrency: float | None
    requests: tuple[Record, ...]
    gpu_before: Sequence[Mapping[str, Any]] | None
    gpu_after: Sequence[Mapping[str, Any]] | None


@dataclass(frozen=True)
class ArmInfo:
    """A benchmarked configuration; ``budget`` is None where there is no tree."""

    name: str
    mode: str
    parallelism: str
    budget: int | None


@dataclass(frozen=True)
class NotPossible:
    """An arm that could not run here, and why."""

    name: str
    reason: str


@dataclass(frozen=True)
class Correctness:
    """Greedy agreement of an arm with ``ar``, judged at the first divergence by the logit gap."""

    arm: str
    prompts: int
    identical: int
    near_tie: int
    different: int
    max_gap: float | None
    passed: bool
    threshold: float | None


@dataclass(frozen=True)
class BenchResult:
    """A whole result; ``document`` is the JSON as read, for what is not typed here."""

    fingerprint: str
    group: str
    host: str
    engine: str
    created: str
    plan: Mapping[str, Any]
    machine: Mapping[str, Any]
    versions: Mapping[str, Any]
    settings: Mapping[str, Any]
    arms: tuple[ArmInfo, ...]
    not_possible: tuple[NotPossible, ...]
    cells: tuple[Cell, ...]
    correctness: tuple[Correctness, ...]
    complete: bool
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def baseline(self) -> str:
        """Name of the arm that the others are compared with."""
        return str(self.settings.get("baseline", "ar"))

    @property
    def on_cpu(self) -> bool:
        """True for the CPU reference engine, whose tokens/s say nothing about a GPU."""
        return self.engine == "reference"

    @property
    def gpus(self) -> int | None:
        """GPUs that the plan serves on; None without a GPU."""
        gpus = self.plan.get("gpus")
        return gpus if isinstance(gpus, int) and gpus > 0 else None

    def arm(self, name: str) -> ArmInfo:
        """The arm called ``name``; KeyError names the arms there are."""
        for arm in self.arms:
            if arm.name == name:
                return arm
        raise KeyError(f"no arm {name!r} among {', '.join(a.name for a in self.arms)}")

    def gate(self, arm: str) -> Correctness | None:
        """The arm's correctness record, or None where it was not judged."""
        return next((c for c in self.correctness if c.arm == arm), None)


def result_path(group: str, fingerprint: str, host: str, root: Path = RESULTS_DIR) -> Path:
    """``results/<group>/<fingerprint12>/<host>.json``: where a result lies on the controller.

    A ``/`` in a name (pyinfra's ``@local/...`` connectors) becomes ``_``.
    """
    return root / _slug(group) / fingerprint[:12] / f"{_slug(host)}.json"


def _slug(name: str) -> str:
    return name.replace("/", "_").lstrip("@") or "_"


def read_result(path: Path) -> BenchResult:
    """Read one result file. Raises :class:`ResultError` with the file's name in its one line."""
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ResultError(
            f"{path}: no such file; results lie in results/<group>/<fingerprint>/<host>.json"
        ) from None
    except (OSError, UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ResultError(
            f"{path}: expected a JSON result of schema {SCHEMA}, found {error}"
        ) from error
    try:
        return parse_result(document)
    except ResultError as error:
        raise ResultError(f"{path}: {error}") from error


def parse_result(document: Any) -> BenchResult:
    """Check and type a decoded result. Raises :class:`ResultError`."""
    if not isinstance(document, Mapping):
        raise ResultError(f"expected a JSON object of schema {SCHEMA}, found {_kind(document)}")
    schema = document.get("schema")
    if schema != SCHEMA:
        raise ResultError(
            f"expected schema {SCHEMA!r}, found {schema!r}; "
            "read it with the release that wrote it, or run the benchmark again"
        )
    cells = tuple(_cell(c) for c in _list(document, "cells"))
    _refuse_twins(cells)
    return BenchResult(
        fingerprint=_text(document, "fingerprint"),
        group=_text(document, "group"),
        host=_text(document, "host"),
        engine=_text(document, "engine"),
        created=_text(document, "created"),
        plan=_mapping(document, "plan"),
        machine=_mapping(document, "machine"),
        versions=_mapping(document, "versions"),
        settings=_mapping(document, "settings"),
        arms=tuple(_arm(a) for a in _list(document, "arms")),
        not_possible=tuple(
            NotPossible(_text(n, "name"), _text(n, "reason"))
            for n in _list(document, "not_possible")
        ),
        cells=cells,
        correctness=tuple(_correctness(c) for c in _list(document, "correctness")),
        complete=_bool(document, "complete"),
        document=document,
    )


def _refuse_twins(cells: Sequence[Cell]) -> None:
    seen = set()
    for cell in cells:
        place = (cell.arm, cell.key, cell.round, cell.warmup)
        if place in seen:
            raise ResultError(
                f"expected every cell measured once, found twice: {cell.arm}, {cell.key.label()}, "
                f"round {cell.round}"
            )
        seen.add(place)


def _arm(raw: Any) -> ArmInfo:
    return ArmInfo(
        name=_text(raw, "name"),
        mode=_text(raw, "mode"),
        parallelism=str(raw.get("parallelism") or ""),
        budget=_optional_int(raw, "budget"),
    )


def _cell(raw: Any) -> Cell:
    key = CellKey(
        prompt_set=_text(raw, "prompt_set"),
        temperature=_number(raw, "temperature"),
        max_new_tokens=int(_number(raw, "max_new_tokens")),
        concurrency=int(_number(raw, "concurrency")),
    )
    return Cell(
        arm=_text(raw, "arm"),
        key=key,
        round=int(_number(raw, "round")),
        warmup=_bool(raw, "warmup"),
        wall_s=_number(raw, "wall_s"),
        effective_concurrency=_optional_number(raw, "effective_concurrency"),
        requests=tuple(_record(r) for r in _list(raw, "requests")),
        gpu_before=raw.get("gpu_before"),
        gpu_after=raw.get("gpu_after"),
    )


def _record(raw: Any) -> Record:
    histogram, ids = raw.get("accept_histogram"), raw.get("output_ids")
    return Record(
        prompt_id=_text(raw, "prompt_id"),
        error=None if raw.get("error") is None else str(raw["error"]),
        prompt_tokens=_optional_int(raw, "prompt_tokens") or 0,
        completion_tokens=_optional_int(raw, "completion_tokens") or 0,
        verify_steps=_optional_int(raw, "verify_steps"),
        accept_histogram=None if histogram is None else tuple(int(n) for n in histogram),
        start_s=_number(raw, "start_s"),
        first_token_s=_optional_number(raw, "first_token_s"),
        end_s=_number(raw, "end_s"),
        chunks=tuple((float(t), int(n)) for t, n in raw.get("chunks") or ()),
        output_ids=None if ids is None else tuple(int(i) for i in ids),
    )


def _correctness(raw: Any) -> Correctness:
    return Correctness(
        arm=_text(raw, "arm"),
        prompts=int(_number(raw, "prompts")),
        identical=int(_number(raw, "identical")),
        near_tie=int(_number(raw, "near_tie")),
        different=int(_number(raw, "different")),
        max_gap=_optional_number(raw, "max_gap"),
        passed=_bool(raw, "passed"),
        threshold=_optional_number(raw, "threshold"),
    )


def _kind(value: Any) -> str:
    return "nothing" if value is None else type(value).__name__


def _field(raw: Any, name: str) -> Any:
    if not isinstance(raw, Mapping):
        raise ResultError(f"expected an object with {name!r}, found {_kind(raw)}")
    if name not in raw:
        raise ResultError(f"expected a field {name!r}, found only {', '.join(sorted(raw))}")
    return raw[name]


def _wrong(name: str, wanted: str, value: Any) -> ResultError:
    return ResultError(f"expected {name!r} to be {wanted}, found {value!r:.60}")


def _text(raw: Any, name: str) -> str:
    value = _field(raw, name)
    if not isinstance(value, str):
        raise _wrong(name, "text", value)
    return value


def _bool(raw: Any, name: str) -> bool:
    value = _field(raw, name)
    if not isinstance(value, bool):
        raise _wrong(name, "true or false", value)
    return value


def _number(raw: Any, name: str) -> float:
    value = _field(raw, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise _wrong(name, "a number", value)
    return float(value)


def _optional_number(raw: Any, name: str) -> float | None:
    return None if raw.get(name) is None else _number(raw, name)


def _optional_int(raw: Any, name: str) -> int | None:
    return None if raw.get(name) is None else int(_number(raw, name))


def _list(raw: Any, name: str) -> list[Any]:
    value = _field(raw, name)
    if not isinstance(value, list):
        raise _wrong(name, "a list", value)
    return value


def _mapping(raw: Any, name: str) -> Mapping[str, Any]:
    value = _field(raw, name)
    if not isinstance(value, Mapping):
        raise _wrong(name, "an object", value)
    return value
