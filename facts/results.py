"""Benchmark results that a host holds."""

from __future__ import annotations

import shlex
from dataclasses import dataclass

from pyinfra.api.facts import FactBase


@dataclass(frozen=True)
class ResultState:
    """`complete`: the finished result is there, with its `sha256`; `running`: a job is at work."""

    complete: bool = False
    sha256: str | None = None
    running: bool = False


class Result(FactBase[ResultState]):
    """Whether PREFIX/results/<fingerprint>.json is there. The benchmark writes it last, at once."""

    def command(self, prefix: str, fingerprint: str) -> str:
        path = shlex.quote(f"{prefix}/results/{fingerprint}.json")
        pid = shlex.quote(f"{prefix}/run/jobs/bench.pid")
        return (
            f"sha256sum {path} 2>/dev/null; "
            f"grep -qs {pid} /proc/$(cat {pid} 2>/dev/null || echo none)/cmdline && echo running; "
            "true"
        )

    @staticmethod
    def default() -> ResultState:
        return ResultState()

    def process(self, output: list[str]) -> ResultState:
        sums = [line.split()[0] for line in output if line and line != "running"]
        return ResultState(bool(sums), sums[0] if sums else None, "running" in output)
