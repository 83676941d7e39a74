"""Measures the arms of the plan on the host, once a fingerprint, and brings the result home."""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Generator
from pathlib import Path
from typing import Any

from pyinfra.api.command import FileDownloadCommand, FileUploadCommand, FunctionCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from facts.results import Result, ResultState
from operations import job, serve, show
from operations.layout import Layout
from operations.run import Run


@operation()
def measure(run: Run) -> Generator[Any, None, None]:
    """Runs `hostkit bench` unless the result of this fingerprint is stored, and fetches it.

    The benchmark needs the whole machine. The job measures the service as it stands where it is one
    of the launches, stops it, measures the rest, and starts the service again by itself, so that a
    lost connection leaves a serving host.
    """
    config, layout, again = run.bench, run.layout, run.bench_mode == "force"
    name = config["fingerprint"]
    state: ResultState = host.get_fact(Result, prefix=layout.prefix, fingerprint=name)
    home = run.result
    if state.complete and not again and _sha256(home) == state.sha256:
        return
    if again or not state.complete:
        show.note(f"Will measure {len(config['arms'])} arms: " + ", ".join(_names(config)))
        base = f"{layout.run}/bench-{name}"
        if again and not state.running:
            yield f"rm -f {layout.result(name)} {layout.result(name)}.part"
        yield FileUploadCommand(io.BytesIO(json.dumps(config).encode()), f"{base}.json")
        yield from job.commands(
            layout.run,
            "bench",
            script(layout, run.systemd, run.wanted.service, name),
            "benchmark",
            status_file=f"{base}.status.json",
            show=progress,
        )
        yield FunctionCommand(serve.wait_ready, (layout, 3600), {})
    home.parent.mkdir(parents=True, exist_ok=True)
    yield FileDownloadCommand(layout.result(name), str(home))


def script(layout: Layout, systemd: bool, service: str, name: str) -> str:
    """The job: measure what is served, stop, measure the rest, start whatever the end was."""
    base = f"{layout.run}/bench-{name}"
    measure = " ".join(
        layout.hostkit(
            "bench",
            "--config",
            f"{base}.json",
            "--out",
            layout.result(name),
            "--status",
            f"{base}.status.json",
        )
    )
    stop = serve.control(layout, systemd, service, "stop")
    start = serve.control(layout, systemd, service, "start")
    return (
        f"rm -f {base}.status.json; {measure} --served {layout.current}/launch.json; "
        f"{stop}; {measure}; code=$?; {start}; "
        f"rm -f {base}.status.json; exit $code"
    )


def progress(text: str) -> str:
    """One line from the status file of `hostkit bench`; other text (its log) as it stands."""
    try:
        status = json.loads(text)
    except ValueError:
        return text.splitlines()[-1] if text else ""
    left = status.get("eta_s")
    rest = f", about {left:.0f} s left" if isinstance(left, int | float) and left > 0 else ""
    return f"{status.get('done', 0)}/{status.get('total', '?')} {status.get('message', '')}{rest}"


def _names(config: dict[str, Any]) -> list[str]:
    return [str(arm["name"]) for arm in config["arms"]]


def _sha256(path: Path) -> str | None:
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.exists() else None
