"""Measures a host's GPUs with the installed stack (`--data probe=run`), and compares the figures.

The first clean run is the host's baseline; later ones are compared with it, and with the newest of
the group's other hosts. The probes need the GPUs for themselves: a running service is stopped first
and started again afterwards, whatever the probes find.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Generator, Mapping
from importlib import import_module
from pathlib import Path
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FileDownloadCommand, FunctionCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from operations import job, serve, show
from operations.artifacts import FILES, ROOT
from operations.run import Run


@operation()
def measure(run: Run) -> Generator[Any, None, None]:
    """Runs `hostkit probe` with the engine's Python; a finding fails this host, with its line."""
    folder = f"{run.layout.prefix}/probes"
    show.note(f"Will probe the GPUs and store the figures in {folder}")
    home = ROOT / "results" / run.plan.group / "probes" / f"{host.name.lstrip('@')}.json"
    yield f"mkdir -p {folder}"
    yield from job.commands(run.layout.run, "probe", script(run, folder), "probe")
    home.parent.mkdir(parents=True, exist_ok=True)
    yield FileDownloadCommand(f"{folder}/latest.json", str(home))
    yield FunctionCommand(tell, (home,), {})


def script(run: Run, folder: str) -> str:
    """Stop, probe, start again if it ran. The exit code is the probe's: 1 for a finding."""
    layout, service = run.layout, run.wanted.service
    probe = (
        f"PYTHONPATH={layout.sources} {layout.venv}/bin/python -m hostkit probe "
        f"--json {folder}/latest.json --baseline {folder}/baseline.json"
    )
    serving = f"grep -qs ready {layout.status}"
    stop = serve.control(layout, run.systemd, service, "stop")
    start = serve.control(layout, run.systemd, service, "start")
    return (
        f"ran=; if {serving}; then ran=1; {stop}; fi; {probe}; code=$?; "
        f'if test -n "$ran"; then {start}; fi; exit $code'
    )


def tell(state: Any, host: Any, home: Path) -> bool:
    """Compares the figures with those of the group's other hosts. Slower is told, not a failure."""
    others = [path for path in sorted(home.parent.glob("*.json")) if path != home]
    own = json.loads(home.read_text())["results"]
    for path in others:
        for line in slower(own, json.loads(path.read_text())["results"]):
            host.log_styled(f"probe: beside {path.stem}: {line}", fg="yellow", log_func=logger.info)
    return True


def slower(own: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """One line for each figure that is worse than the other host's by hostkit's own rule."""
    if str(FILES) not in sys.path:
        sys.path.append(str(FILES))
    compare = import_module("hostkit.probe_judge").compare
    return [str(finding.evidence) for finding in compare(own, other)]
