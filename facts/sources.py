"""How a patch set stands in a venv, by one command: the set's own applier, run on the host."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase


@dataclass(frozen=True)
class PatchedState:
    """`state`: applied, pristine, outdated, partial, foreign, wrong-version, or absent.

    `absent`: there is no venv or no copy of the set on the host yet. `diff`: what applying would
    change. `foreign`: for each file that is neither the release's nor ours, how it differs.
    """

    state: str = "absent"
    digest: str = ""
    version: str | None = None
    reason: str = ""
    diff: str = ""
    foreign: dict[str, str] = field(default_factory=dict)


class Patched(FactBase[PatchedState]):
    """State of the patch set `series` in `venv`; `sources` is the host's copy of files/.

    .. code:: python

        host.get_fact(Patched, venv="/opt/ddtree/venvs/0a1b", series="sglang-0.5.16",
                      sources="/opt/ddtree/sources/2c3d")
    """

    def command(self, venv: str, series: str, sources: str) -> str:
        python, applier = f"{venv}/bin/python", f"{sources}/patches/apply.py"
        words = [python, applier, "--json", "--diff", "status", f"{sources}/patches/{series}", venv]
        quoted = " ".join(shlex.quote(word) for word in words)
        there = f"test -x {shlex.quote(python)} && test -f {shlex.quote(applier)}"
        return f"if {there}; then {quoted}; fi"

    @staticmethod
    def default() -> PatchedState:
        return PatchedState()

    def process(self, output: list[str]) -> PatchedState:
        try:
            document: dict[str, Any] = json.loads("\n".join(output))
            return PatchedState(
                state=document["state"],
                digest=document["digest"],
                version=document["version"],
                reason=document["reason"],
                diff=document["diff"],
                foreign=document["foreign"],
            )
        except (ValueError, KeyError, TypeError) as error:
            raise FactProcessError(f"unreadable status of a patch set: {error!r}") from error
