"""The service as it is: its files, its running process and what it says of itself. One command."""

from __future__ import annotations

import base64
import json
import shlex
from dataclasses import dataclass, field
from typing import Any

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase


@dataclass(frozen=True)
class ServiceState:
    """`current`, `previous`: names of the releases that the links point to.

    `files`: text by path of the files asked for. `links`: target by path of the links asked for;
    one that leads nowhere is left out.
    `running`: fingerprint in the environment of the process that supervises, None when it is down.
    `enabled`: starts at boot (systemd), or its supervisord is up. `status`: RUN/status.json.
    `bench_running`: a benchmark holds the machine. `drop_ins`: files that change this unit, and not
    others too.
    """

    current: str | None = None
    previous: str | None = None
    files: dict[str, str] = field(default_factory=dict)
    links: dict[str, str] = field(default_factory=dict)
    running: str | None = None
    enabled: bool = False
    status: dict[str, Any] = field(default_factory=dict)
    bench_running: bool = False
    drop_ins: tuple[str, ...] = ()

    @property
    def ready(self) -> bool:
        """The running process itself says that it serves."""
        return (
            self.running is not None
            and self.status.get("state") == "ready"
            and self.status.get("fingerprint") == self.running
        )


class Service(FactBase[ServiceState]):
    """Reads a service by its name under one prefix.

    The process is found by RUN/status.json and proven by its own environment in /proc, so that a
    number that was given to another process later is not taken for it.
    """

    def command(
        self, prefix: str, service: str, files: list[str], links: list[str] | None = None
    ) -> str:
        p = shlex.quote(prefix)
        shown = " ".join(map(shlex.quote, files)) or "''"
        linked = " ".join(map(shlex.quote, links or [])) or "''"
        unit = shlex.quote(f"{service}.service")
        return (
            f"echo current $(readlink {p}/current); echo previous $(readlink {p}/previous); "
            f'for f in {shown}; do test -f "$f" && echo file "$f" $(base64 -w0 <"$f"); done; '
            f'for f in {linked}; do test -L "$f" && test -e "$f" && '
            'echo link "$f" $(readlink "$f"); done; '
            f"echo status $(base64 -w0 {p}/run/status.json 2>/dev/null); "
            f"pid=$(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' {p}/run/status.json 2>/dev/null "
            "| head -n 1); "
            "if test -n \"$pid\"; then echo running $(tr '\\0' '\\n' 2>/dev/null "
            "</proc/$pid/environ | sed -n 's/^DDTREE_FINGERPRINT=//p'); fi; "
            f"if test -d /run/systemd/system; then "
            f"systemctl show -p UnitFileState -p DropInPaths {unit} 2>/dev/null | "
            "sed -n 's/^UnitFileState=enabled$/enabled/p; s/^DropInPaths=/dropins /p'; "
            f"elif grep -qsF {p}/supervisor/{shlex.quote(service)}.conf "
            f"{_cmdline(f'{p}/run/supervisord.pid')}; "
            "then echo enabled; fi; "
            f"grep -qs {p}/run/jobs/bench.pid {_cmdline(f'{p}/run/jobs/bench.pid')} && echo bench; "
            "true"
        )

    @staticmethod
    def default() -> ServiceState:
        return ServiceState()

    def process(self, output: list[str]) -> ServiceState:
        try:
            return _read(output)
        except (ValueError, IndexError) as error:
            raise FactProcessError(f"unreadable state of the service: {error}") from error


def _cmdline(pid_file: str) -> str:
    """The command line of the process that a pid file names; a path that is not there else."""
    return f"/proc/$(cat {pid_file} 2>/dev/null || echo none)/cmdline"


def _read(output: list[str]) -> ServiceState:
    files: dict[str, str] = {}
    links: dict[str, str] = {}
    values: dict[str, str] = {}
    for line in output:
        key, _, rest = line.partition(" ")
        if key == "file":
            path, _, data = rest.partition(" ")
            files[path] = base64.b64decode(data).decode(errors="replace")
        elif key == "link":
            path, _, target = rest.partition(" ")
            links[path] = target
        else:
            values[key] = rest.strip()
    status = base64.b64decode(values.get("status", "")).decode(errors="replace")
    return ServiceState(
        current=_name(values.get("current")),
        previous=_name(values.get("previous")),
        files=files,
        links=links,
        running=values.get("running") or None,
        enabled="enabled" in values,
        status=_document(status),
        bench_running="bench" in values,
        drop_ins=tuple(p for p in values.get("dropins", "").split() if ".service.d/" in p),
    )


def _document(text: str) -> dict[str, Any]:
    """A status file that something else broke says nothing; the process speaks for itself."""
    try:
        found = json.loads(text)
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _name(target: str | None) -> str | None:
    return target.rstrip("/").rsplit("/", 1)[-1] if target else None
