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

from operations.result_fields import (
    ResultError,
    boolean,
    items,
    kind_of,
    mapping,
    number,
    optional_int,
    optional_number,
    text,
)

__all__ = ["BenchResult", "ResultError", "parse_result", "read_result", "result_path"]

SCHEMA = "ddtree-bench/1"
RESULTS_DIR = Path("results")


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
    """An arm that could not run here, or failed, and why."""

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
    passed: bool | None
    """None: a gap could not be asked, or nothing was compared; then the arm is not judged."""
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
    failed: tuple[NotPossible, ...]
    cells: tuple[Cell, ...]
    correctness: tuple[Correctness, ...]
    complete: bool
    document: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def baseline(self) -> str:
        """Name of the arm that the others are compared with."""
        return str(self.settings.get("baseline", "ar"))

    @property
    def interleaved(self) -> bool:
        """Whether arms of different engine starts took turns, round by round."""
        return (
            bool(self.settings.get("interleave_launches"))
            or len({arm.get("launch") for arm in self.document["arms"]}) == 1
        )

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
        raise ResultError(f"expected a JSON object of schema {SCHEMA}, found {kind_of(document)}")
    schema = document.get("schema")
    if schema != SCHEMA:
        raise ResultError(
            f"expected schema {SCHEMA!r}, found {schema!r}; "
            "read it with the release that wrote it, or run the benchmark again"
        )
    cells = tuple(_cell(c) for c in items(document, "cells"))
    _refuse_twins(cells)
    return BenchResult(
        fingerprint=text(document, "fingerprint"),
        group=text(document, "group"),
        host=text(document, "host"),
        engine=text(document, "engine"),
        created=text(document, "created"),
        plan=mapping(document, "plan"),
        machine=mapping(document, "machine"),
        versions=mapping(document, "versions"),
        settings=mapping(document, "settings"),
        arms=tuple(_arm(a) for a in items(document, "arms")),
        not_possible=_reasons(items(document, "not_possible")),
        failed=_reasons(document.get("failed") or []),
        cells=cells,
        correctness=tuple(_correctness(c) for c in items(document, "correctness")),
        complete=boolean(document, "complete"),
        document=document,
    )


def _reasons(raw: list[Any]) -> tuple[NotPossible, ...]:
    return tuple(NotPossible(text(n, "name"), text(n, "reason")) for n in raw)


def _refuse_twins(cells: Sequence[Cell]) -> None:
    seen = set()
    for cell in (cell for cell in cells if not cell.warmup):
        place = (cell.arm, cell.key, cell.round)
        if place in seen:
            raise ResultError(
                f"expected every cell measured once, found twice: {cell.arm}, {cell.key.label()}, "
                f"round {cell.round}"
            )
        seen.add(place)


def _arm(raw: Any) -> ArmInfo:
    return ArmInfo(
        name=text(raw, "name"),
        mode=text(raw, "mode"),
        parallelism=str(raw.get("parallelism") or ""),
        budget=optional_int(raw, "budget"),
    )


def _cell(raw: Any) -> Cell:
    key = CellKey(
        prompt_set=text(raw, "prompt_set"),
        temperature=number(raw, "temperature"),
        max_new_tokens=int(number(raw, "max_new_tokens")),
        concurrency=int(number(raw, "concurrency")),
    )
    return Cell(
        arm=text(raw, "arm"),
        key=key,
        round=int(number(raw, "round")),
        warmup=boolean(raw, "warmup"),
        wall_s=number(raw, "wall_s"),
        effective_concurrency=optional_number(raw, "effective_concurrency"),
        requests=tuple(_record(r) for r in items(raw, "requests")),
        gpu_before=raw.get("gpu_before"),
        gpu_after=raw.get("gpu_after"),
    )


def _record(raw: Any) -> Record:
    histogram, ids = raw.get("accept_histogram"), raw.get("output_ids")
    return Record(
        prompt_id=text(raw, "prompt_id"),
        error=None if raw.get("error") is None else str(raw["error"]),
        prompt_tokens=optional_int(raw, "prompt_tokens") or 0,
        completion_tokens=optional_int(raw, "completion_tokens") or 0,
        verify_steps=optional_int(raw, "verify_steps"),
        accept_histogram=None if histogram is None else tuple(int(n) for n in histogram),
        start_s=number(raw, "start_s"),
        first_token_s=optional_number(raw, "first_token_s"),
        end_s=number(raw, "end_s"),
        chunks=tuple((float(t), int(n)) for t, n in raw.get("chunks") or ()),
        output_ids=None if ids is None else tuple(int(i) for i in ids),
    )


def _correctness(raw: Any) -> Correctness:
    return Correctness(
        arm=text(raw, "arm"),
        prompts=int(number(raw, "prompts")),
        identical=int(number(raw, "identical")),
        near_tie=int(number(raw, "near_tie")),
        different=int(number(raw, "different")),
        max_gap=optional_number(raw, "max_gap"),
        passed=None if raw.get("passed") is None else boolean(raw, "passed"),
        threshold=optional_number(raw, "threshold"),
    )
