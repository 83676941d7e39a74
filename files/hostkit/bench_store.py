"""What a benchmark leaves: the result with its part file, and a status for who waits."""

import time
from collections import deque
from collections.abc import Iterable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from . import files
from .bench_config import BenchConfig, Step
from .launch import read_json

SCHEMA = "ddtree-bench/1"
LOG_LINES = 12


class Store:
    """The result document. It lies in OUT.part after each cell, in OUT when it is complete."""

    def __init__(self, config: BenchConfig, out: Path):
        self.out = out
        self.part = out.with_name(f"{out.name}.part")
        given = config.document
        self.document: dict[str, Any] = {
            "schema": SCHEMA,
            "fingerprint": config.fingerprint,
            "group": given["group"],
            "host": given["host"],
            "engine": config.engine,
            "created": datetime.now(UTC).isoformat(timespec="seconds"),
            "plan": given.get("plan") or {},
            "machine": given.get("machine") or {},
            "versions": dict(given.get("versions") or {}),
            "settings": {**given["settings"], "chat_format": config.settings.chat_format},
            "arms": given["arms"],
            "not_possible": given.get("not_possible") or [],
            "failed": [],
            "cells": [],
            "correctness": [],
            "complete": False,
        }

    def finished(self) -> bool:
        """Whether OUT already holds the complete result of this fingerprint."""
        return self.out.is_file() and self._fits(read_json(self.out), complete=True)

    def resume(self) -> int:
        """Takes over the cells of an earlier call for this fingerprint; returns their number."""
        if self.part.is_file():
            earlier = read_json(self.part)
            if self._fits(earlier, complete=False):
                self.document["cells"] = earlier["cells"]
                self.document["created"] = earlier["created"]
                self.document["versions"] = earlier["versions"]
                if "cross_check" in earlier:
                    self.document["cross_check"] = earlier["cross_check"]
        return len(self.document["cells"])

    def _fits(self, other: dict[str, Any], complete: bool) -> bool:
        same = ("schema", "fingerprint", "settings", "arms")
        return other.get("complete") is complete and all(
            other.get(name) == self.document[name] for name in same
        )

    def has(self, step: Step) -> bool:
        return any(_key(cell) == step.key for cell in self.document["cells"])

    def add(self, cell: dict[str, Any]) -> None:
        """Adds a cell, in place of an earlier warm-up of the same key, and saves the part."""
        kept = [other for other in self.document["cells"] if _key(other) != _key(cell)]
        self.document["cells"] = [*kept, cell]
        self.save()

    def drop(self, steps: Iterable[Step]) -> None:
        """Takes back the cells of `steps`, and saves the part."""
        keys = {step.key for step in steps}
        cells = self.document["cells"]
        self.document["cells"] = [cell for cell in cells if _key(cell) not in keys]
        self.save()

    def save(self) -> None:
        files.write_json(self.part, self.document, indent=None, durable=True)

    def finish(self) -> None:
        """Writes the complete result and removes the part."""
        self.document["complete"] = True
        files.write_json(self.out, self.document, indent=None, durable=True)
        self.part.unlink(missing_ok=True)


def _key(cell: dict[str, Any]) -> tuple[Any, ...]:
    names = ("arm", "concurrency", "prompt_set", "round", "warmup")
    return tuple(cell[name] for name in names)


class Progress:
    """The status file: {"state", "done", "total", "eta_s", "message", "log"}; requests count.

    Of `total` requests `left` are left to this call; earlier ones did the rest.
    """

    def __init__(self, path: Path | None, total: int, left: int, launches: int):
        self.path = path
        self.total = total
        self.launches_left = launches
        self.earlier = self.done = total - left
        self.request_seconds = 0.0
        self.launch_seconds: list[float] = []
        self.log: deque[str] = deque(maxlen=LOG_LINES)
        self.message = ""

    def eta_s(self) -> float | None:
        """Seconds left by what requests and launches took so far; None before the first."""
        measured = self.done - self.earlier
        if not measured:
            return None
        launch = sum(self.launch_seconds) / max(1, len(self.launch_seconds))
        each = self.request_seconds / measured
        return round(each * (self.total - self.done) + launch * self.launches_left, 1)

    def tell(self, message: str, state: str = "running", keep: bool = True) -> None:
        """Writes the status; `keep` adds the message to the log, and prints it."""
        self.message = message
        if keep:
            self.log.append(f"{time.strftime('%H:%M:%S')} {message}")
            print(f"bench {self.done}/{self.total}: {message}", flush=True)
        if self.path is not None:
            status = {
                "state": state,
                "done": self.done,
                "total": self.total,
                "eta_s": self.eta_s() if state == "running" else None,
                "message": message,
                "log": list(self.log),
            }
            files.write_json(self.path, status)
