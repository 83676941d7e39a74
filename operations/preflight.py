"""The pre-flight on a host: asks the checks, prints what a person should read, stops that host.

    pyinfra inventories/b300.py deploy.py --data only=preflight
    ... --data preflight=text     every finding, not the problems alone
    ... --data preflight=json     one JSON document on stdout, for machines

A host with a failure is taken out of the run before anything has changed, in a dry run too (which
then ends with exit code 1); the other hosts go on. docs/checks.md lists the checks.
"""

from __future__ import annotations

import atexit
import json
import os
import shlex
import time
from collections.abc import Generator
from functools import lru_cache
from typing import Any, Protocol

from pyinfra import logger
from pyinfra.api.command import StringCommand
from pyinfra.api.facts import FactBase
from pyinfra.api.operation import operation
from pyinfra.context import ctx_host, host, state
from rich.console import Console

from facts.machine import MachineFacts
from operations import checks_stack
from operations.checks_all import (
    SCHEMA,
    check,
    document,
    failures,
    problems,
    summary,
    table,
)
from operations.checks_base import Context, Finding, Hub, Own, Status
from operations.checks_host import hub_models
from operations.model_source import ModelSource
from operations.plan_model import ServingPlan
from operations.wanted import Wanted

_documents: list[dict[str, Any]] = []  # of all hosts of this run, printed at its end

# Findings that depend on what is ours; only then is the host asked once more.
_ABOUT_OURS = {"port.free", "gpu.idle", "disk.space", "hub.reachable"}


class OnHost(Protocol):
    """The part of a run that the pre-flight reads."""

    @property
    def machine(self) -> MachineFacts: ...

    @property
    def wanted(self) -> Wanted: ...

    @property
    def plan(self) -> ServingPlan: ...


class OwnThings(FactBase[Own]):
    """Which of `pids` belong to a service under `prefix`, and how large `folders` are.

    A process is ours by its environment or its working folder: an engine's workers rewrite their
    command line, and some their environment too.
    """

    def command(self, prefix: str, pids: list[int], folders: list[str]) -> str:
        p = shlex.quote(prefix)
        numbers = " ".join(str(pid) for pid in pids)
        quoted = " ".join(shlex.quote(folder) for folder in folders)
        return (
            f"for n in {numbers}; do "
            f"case $(readlink /proc/$n/cwd)/ in {p}/*) echo pid $n; continue;; esac; "
            f"tr '\\0' '\\n' </proc/$n/environ 2>/dev/null | grep -qF ={p}/ && echo pid $n; done; "
            f"for d in {quoted}; do test -d $d && echo size $(du -sk $d | cut -f1) $d; done; true"
        )

    @staticmethod
    def default() -> Own:
        return Own()

    def process(self, output: list[str]) -> Own:
        words = [line.split(None, 2) for line in output]
        return Own(
            pids=frozenset(int(w[1]) for w in words if w[0] == "pid" and w[1].isdigit()),
            model_mib={w[2]: int(w[1]) // 1024 for w in words if w[0] == "size" and len(w) == 3},
        )


def passes(run: OnHost) -> bool:
    """Asks all checks of this host; prints the problems. False when the host was stopped."""
    known: dict[str, Any] = {"now_unix": int(time.time())}
    findings = check(run.machine, run.wanted, run.plan, **known)
    if any(f.id in _ABOUT_OURS for f in failures(findings)):
        known["own"] = host.get_fact(OwnThings, **_own_question(run))
        findings = check(run.machine, run.wanted, run.plan, **known)
    if any(f.id == "hub.token" and f.status is Status.UNKNOWN for f in findings):
        known["hub"] = _ask_hub(run)
        findings = check(run.machine, run.wanted, run.plan, **known)
    _publish(run.plan, findings)
    if failures(findings):
        take_out()
        return False
    return True


def take_out() -> None:
    """Ends the run for this host alone, without a question.

    Without -y pyinfra asks "continue?" after each failed host, and ends in a traceback where nobody
    is there to answer; the other hosts go on here in any case. A --fail-percent still counts.
    """
    asks = state.should_raise_failed_hosts
    if asks is not None:
        state.should_raise_failed_hosts = lambda _: False
    try:
        state.fail_hosts({ctx_host.get()})  # type: ignore[no-untyped-call]
    finally:
        state.should_raise_failed_hosts = asks


def _own_question(run: OnHost) -> dict[str, Any]:
    ports = {run.plan.port, run.wanted.metrics_port}
    pids = [port.pid for port in run.machine.ports if port.port in ports and port.pid]
    pids += [process.pid for process in run.machine.gpu_processes]
    models = [model for model in (run.plan.target, run.plan.drafter) if model is not None]
    return {
        "prefix": run.plan.prefix,
        "pids": sorted(set(pids)),
        "folders": [model.path for model in models],
    }


def _ask_hub(run: OnHost) -> Hub:
    """Whether models that are to be downloaded are gated; what can't be asked is left out."""
    missing = hub_models(Context(run.machine, run.wanted, run.plan))
    answers = {m.source: _gated(m.source, run.wanted.hub_endpoint) for m in missing}
    known = {source: gated for source, gated in answers.items() if gated is not None}
    return Hub(known, token=bool(os.environ.get("HF_TOKEN")))


@lru_cache(maxsize=64)
def _gated(text: str, endpoint: str | None) -> bool | None:
    """Asks once a run, however many hosts want the model; 10 s at most."""
    from huggingface_hub import HfApi

    source = ModelSource.parse(text)
    api = HfApi(endpoint=endpoint or source.endpoint, token=os.environ.get("HF_TOKEN") or False)
    try:
        return bool(api.model_info(source.name, revision=source.revision, timeout=10).gated)
    except Exception:
        return None  # the models phase asks again, and explains


def _publish(plan: ServingPlan, findings: tuple[Finding, ...]) -> None:
    mode = host.data.get("preflight")
    if mode == "json":
        if not _documents:
            atexit.register(_print_documents)
        _documents.append(document(host.name, plan, findings))
    elif mode == "text":
        Console(stderr=True).print(table(f"{host.name}: pre-flight", findings))
    else:
        _log(problems(findings))
        host.log(f"preflight: {summary(findings)}")


def _log(findings: tuple[Finding, ...]) -> None:
    """One line a finding."""
    for finding in findings:
        bad = finding.status is Status.FAIL
        host.log_styled(
            finding.line,
            fg="red" if bad else "yellow",
            log_func=logger.error if bad else logger.warning,
        )


def _print_documents() -> None:
    print(json.dumps({"schema": SCHEMA, "hosts": _documents}, indent=2))


class StackProbe(FactBase[tuple[Finding, ...]]):
    """Runs what the engine will run, in its environment; see `checks_stack`."""

    def command(self, environment: dict[str, str], compute_cap: str | None) -> str:
        return checks_stack.command(environment, compute_cap)

    @staticmethod
    def default() -> tuple[Finding, ...]:
        return ()

    def process(self, output: list[str]) -> tuple[Finding, ...]:
        return checks_stack.findings(output)


@operation()
def after_stack(run: OnHost) -> Generator[Any, None, None]:
    """The checks that need the installed stack. Yields nothing when they pass.

    Before the stack is there (a dry run on a fresh host) there is nothing to ask.
    """
    if run.plan.engine != "sglang" or not run.plan.launches:
        return
    found: tuple[Finding, ...] = host.get_fact(
        StackProbe,
        environment=dict(run.plan.serving_launch.env),
        compute_cap=run.machine.gpus[0].compute_cap if run.machine.gpus else None,
    )
    bad = failures(found)
    absent = any(finding.status is Status.UNKNOWN for finding in found)
    if absent and not state.is_executing:
        return
    for finding in bad:
        yield StringCommand(f"echo {shlex.quote(finding.line)} >&2; exit 1")
