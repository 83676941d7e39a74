"""Which content-addressed folders a host has: sources, tools, venvs, and uv. One command."""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase


@dataclass(frozen=True)
class InstalledState:
    """`complete`: the asked folders that carry their stamp, each with the stamp's text.

    `sums`: sha256 by file name of the sources that serve now, for a diff. `uv`: path, if found.
    """

    complete: dict[str, str] = field(default_factory=dict)
    sums: dict[str, str] = field(default_factory=dict)
    uv: str | None = None


class Installed(FactBase[InstalledState]):
    """Reads the stamps of folders. An absent folder is absent, never an error.

    A venv whose interpreter is gone (an update of the system's Python) is not complete.

    .. code:: python

        host.get_fact(Installed, prefix="/opt/ddtree", folders=["/opt/ddtree/sources/0a1b2c3d4e5f"])
    """

    def command(self, prefix: str, folders: list[str], uv_folder: str = "") -> str:
        lines = [
            f"if test -e {s} && {{ ! test -d {q}/bin && ! test -e {q}/pyvenv.cfg || "
            f"test -x {q}/bin/python; }}; then echo {q} $(wc -l <{s}); cat {s}; fi"
            for q, s in ((shlex.quote(f), shlex.quote(f"{f}/.complete")) for f in folders)
        ]
        prefix = shlex.quote(prefix)
        lines.append(f"echo SUMS; cat {prefix}/current/sources/.complete 2>/dev/null || true")
        lines.append("echo UV")
        if uv_folder:
            lines.append(f"ls {shlex.quote(uv_folder)}/uv 2>/dev/null || true")
        return "; ".join(lines)

    @staticmethod
    def default() -> InstalledState:
        return InstalledState()

    def process(self, output: list[str]) -> InstalledState:
        try:
            return _read(list(output))
        except (ValueError, IndexError) as error:
            raise FactProcessError(f"unreadable stamps: {error}") from error


def _read(lines: list[str]) -> InstalledState:
    complete: dict[str, str] = {}
    while lines[0] != "SUMS":
        folder, count = lines[0].rsplit(" ", 1)
        complete[folder] = "\n".join(lines[1 : 1 + int(count)])
        lines = lines[1 + int(count) :]
    end = lines.index("UV")
    sums: dict[str, Any] = json.loads("\n".join(lines[1:end]) or "{}")
    uv = lines[end + 1] if len(lines) > end + 1 else None
    return InstalledState(complete, {str(k): str(v) for k, v in sums.items()}, uv)


class Contents(FactBase[dict[str, str]]):
    """Text of files below a folder, by their path relative to it; absent files are left out."""

    def command(self, folder: str, names: list[str]) -> str:
        quoted = " ".join(map(shlex.quote, names))
        return (
            f"cd {shlex.quote(folder)} 2>/dev/null || exit 0; for f in {quoted}; do "
            'if test -f "$f"; then echo "$f"; base64 -w0 <"$f"; echo; fi; done'
        )

    @staticmethod
    def default() -> dict[str, str]:
        return {}

    def process(self, output: list[str]) -> dict[str, str]:
        import base64

        pairs = zip(output[::2], output[1::2], strict=True)
        return {n: base64.b64decode(data).decode(errors="replace") for n, data in pairs}
