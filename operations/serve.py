"""Converges the running service to the release: start, restart, wait until it is ready."""

from __future__ import annotations

import json
import time
from collections.abc import Generator
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host
from pyinfra.context import state as state_of_run

from facts.service import Service, ServiceState
from files.hostkit.launch import Launch
from operations import job, preflight, shell, show
from operations.layout import NO_TOKEN, Layout
from operations.run import Run, stop

POLL_S = 1.0
ORPHAN_S = 150  # seconds for an orderly stop: more than any plan's stop_timeout_s
REPEAT_S = 10.0  # a line in which only numbers changed is shown again after so long


def published(run: Run) -> bool:
    """False, and this host is stopped, where a part of a run would work on another release.

    Without the phase `units` PREFIX/current stays as it is: `serve` would restart the old release
    and wait for the new one, `bench` measure the old one under the new one's name.
    """
    if "units" in run.phases or not run.phases & {"serve", "bench"}:
        return True
    current = _state(run).current
    if current == run.layout.release:
        return True
    stop(
        f"expected {run.layout.current} to be release {run.layout.release}, found "
        f"{current or 'none'}; add the phase 'units' (--data 'only=[\"units\", ...]'), or run all"
    )
    return False


@operation()
def converge(run: Run) -> Generator[Any, None, None]:
    """The running process carries the release's fingerprint and flags, and says that it is ready.

    Another fingerprint, or flags of a launch.json or service.env that somebody edited: restart.
    Down: start. The same and ready: nothing. This holds after an interrupted run too, since it
    compares with the process itself, not with what a run remembers.
    """
    layout, service = run.layout, run.wanted.service
    state = _state(run)
    if state.bench_running:
        show.note("Will wait for the benchmark that holds this machine")
        yield FunctionCommand(
            job.wait, (layout.run, "bench", "benchmark of an earlier run", None), {}
        )
        state = ServiceState()
    why = _stray(run, state)
    if why is None and state.ready:
        return
    if why is not None:
        verb = "restart" if state.running else "start"
        show.note(f"Will {verb} {service} (fingerprint {layout.release}, {why})")
        # not `start`: a unit that is up without its status file would stay as it is
        yield StringCommand(control(layout, run.systemd, service, "restart"))
    yield FunctionCommand(wait_ready, (layout, run.plan.start_timeout_s), {})


def _stray(run: Run, state: ServiceState) -> str | None:
    """Why the running process is not this release's; None where it is."""
    if state.running is not None and not run.systemd and not state.enabled:
        return "its supervisord is gone"
    if state.running != run.layout.release:
        return f"now {state.running}"
    files = run.release.files
    service_env = {"service_env": files["service.env"]}
    launch = Launch.from_json(json.loads(files["launch.json"]) | service_env)
    if state.status.get("flags") != launch.flags:
        return "running with other flags than launch.json and service.env"
    return None


@operation()
def roll_back(run: Run, to: str) -> Generator[Any, None, None]:
    """Points PREFIX/current to an earlier release and restarts the service from it.

    `to` is a release's fingerprint, or "previous". A host that has no such release is stopped.
    """
    layout, service = run.layout, run.wanted.service
    place = layout.previous if to == "previous" else f"{layout.prefix}/releases/{to}"
    state = _state(run, [f"{place}/launch.json"])
    target = state.previous if to == "previous" else to
    if target is None or not state.files:
        what = "no earlier release on this host" if to == "previous" else f"no release {to}"
        line = f"roll-back: {what}; see the folders in {layout.prefix}/releases"
        if state_of_run.is_executing:
            yield FunctionCommand(lambda state, host: job.failed(host, line), (), {})
        else:
            job.failed(host, line)
            preflight.take_out()
        return
    if state.current == target and state.running == target and state.ready:
        return
    show.note(f"Will roll back from {state.current} to {target} and restart {service}")
    if state.current != target:
        yield StringCommand(
            f"ln -sfn releases/{state.current} {layout.previous} && "
            f"ln -sfn releases/{target} {layout.current}.new && "
            f"mv -T {layout.current}.new {layout.current}"
        )
    yield StringCommand(control(layout, run.systemd, service, "restart"))
    yield FunctionCommand(wait_ready, (layout, run.plan.start_timeout_s, target), {})


@operation()
def gate(run: Run) -> Generator[Any, None, None]:
    """Goes back to the release before when the new one's benchmark is worse by the gate.

    Yields nothing when the gate passes, or when the release that was judged serves no more.
    """
    from operations.gate import judge, stored_before
    from operations.results import read_result

    if not run.result.exists():
        return
    result = read_result(run.result)
    decision = judge(result, stored_before(result, run.result.parents[1]), [run.plan.arm])
    if decision.passed:
        return
    state = _state(run)
    if state.current != run.layout.release or state.previous is None:
        return
    for line in decision.lines():
        host.log_styled(line, fg="yellow", log_func=logger.warning)
    yield from roll_back._inner(run=run, to="previous")


def _state(run: Run, files: list[str] | None = None) -> ServiceState:
    found: ServiceState = host.get_fact(
        Service, prefix=run.layout.prefix, service=run.wanted.service, files=files or [], links=[]
    )
    return found


def control(layout: Layout, systemd: bool, service: str, verb: str) -> str:
    """The shell command that starts, stops or restarts the service; it does not wait for ready."""
    forget = "" if verb == "stop" else f"rm -f {layout.status}; "  # an old "ready" says nothing
    if systemd:
        wait = "" if verb == "stop" else "--no-block "
        reset = f"systemctl reset-failed {service}.service 2>/dev/null; "
        return f"{forget}{reset}systemctl {wait}{verb} {service}.service"
    conf = f"{layout.prefix}/supervisor/{service}.conf"
    # it hands its environment on
    python = f"{' '.join(NO_TOKEN)} {layout.current}/tools/bin/python"
    daemon = f"{python} -m supervisor.supervisord -c {conf}"
    ctl = f"{layout.current}/tools/bin/python -m supervisor.supervisorctl -c {conf}"
    pid = f"$(cat {layout.run}/supervisord.pid 2>/dev/null || echo none)"
    alive = f"grep -qsF {conf} /proc/{pid}/cmdline"
    if verb == "stop":
        return f"if {alive}; then {ctl} stop {service}; else {_stop_orphan(layout)}; fi"
    # a new configuration is read by `update`; a daemon that was just started runs the program
    return (
        f"{forget}if {alive}; then {ctl} update {service} >/dev/null; {ctl} restart {service}; "
        f"else {_stop_orphan(layout)}; {daemon}; fi"
    )


def _stop_orphan(layout: Layout) -> str:
    """Stops a service whose supervisord was killed: it would hold the port of the next one."""
    mine = f"grep -sxzF {layout.current}/launch.json"
    return (
        f"for f in $({mine} -l /proc/[0-9]*/cmdline); do p=${{f#/proc/}}; p=${{p%/cmdline}}; "
        f"kill $p; n=0; while {mine} -q $f; do sleep 0.1; n=$((n+1)); "
        f"test $n -lt {ORPHAN_S * 10} || kill -9 $p; done; done"
    )


def wait_ready(
    state: Any, host: Any, layout: Layout, timeout_s: int, release: str | None = None
) -> bool:
    """Polls RUN/status.json with progress lines. False (this host fails) when it is not ready."""
    wanted = release or layout.release
    began = shown_at = time.monotonic()
    line = shown = ""
    while time.monotonic() - began < timeout_s + 60:
        _, text = shell.run(host, StringCommand(f"cat {layout.status} 2>/dev/null || true"))
        status = _status(text)
        mine = status.get("fingerprint") == wanted
        if mine and status.get("state") == "ready":
            host.log(f"serving on port {status.get('port')}: {status.get('message', 'ready')}")
            return True
        if mine and status.get("state") == "failed":
            return job.failed(host, failure(status))
        line = str(status.get("message", "")) if mine else "starting"
        now = time.monotonic()
        if line and (job.words(line) != shown or now - shown_at > REPEAT_S):
            host.log(f"service: {job.shorten(line)}  [{now - began:.0f} s]")
            shown, shown_at = job.words(line), now
        time.sleep(POLL_S)
    return job.failed(
        host,
        f"service: not ready within {timeout_s} s (last: {line}); log: {layout.run}/engine.log",
    )


def failure(status: dict[str, Any]) -> str:
    """One line from a failed status: the named cause and its remedy where there is one."""
    cause = status.get("cause")
    if isinstance(cause, dict):
        return f"service: {cause.get('id')}: {cause.get('title')}; {cause.get('remedy')}"
    return f"service: {status.get('message') or 'failed without a message'}"


def _status(text: str) -> dict[str, Any]:
    try:
        document = json.loads(text)
    except ValueError:
        return {}
    return document if isinstance(document, dict) else {}
