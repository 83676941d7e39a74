"""Models on hosts: the download starts first, runs beside everything else, and is verified.

`start` leaves a job on the host and returns; `wait` polls it with progress lines. Both yield
nothing on a host whose models are stamped. The job itself is `hostkit fetch` (files/hostkit).
"""

from __future__ import annotations

import io
import json
import os
import shlex
from collections.abc import Generator, Mapping
from pathlib import PurePosixPath
from typing import Any

from pyinfra.api.command import FunctionCommand, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host
from pyinfra.operations import files

from facts.models import Models, ModelsState, Revisions
from operations.model_copy import Copy, copy
from operations.model_job import (
    UNIT,
    document,
    fetch_command,
    launch,
    question,
    size,
    unit_text,
    unused,
)
from operations.model_remote import poll, write_job
from operations.model_source import Kind, ModelSource

# What this run found on a host whose models were all stamped: later phases need not look again.
_settled: dict[tuple[str, tuple[str, ...]], ModelsState] = {}

# `host:` sources that `start` found missing, by host and model; `wait` copies them.
_copies: dict[tuple[str, str], Copy] = {}


def sources_of(plan: Any) -> tuple[ModelSource, ...]:
    """What the plan's target and drafter need fetched; takes ModelSource or the plan's ModelRef."""
    found = [_source(model) for model in (plan.target, plan.drafter) if model is not None]
    return tuple(dict.fromkeys(source for source in found if source.kind is not Kind.BUILTIN))


def _source(model: Any) -> ModelSource:
    if isinstance(model, ModelSource):
        return model
    source = ModelSource.parse(model.source)
    if source.from_hub and not source.pinned and model.revision:
        return ModelSource(source.kind, source.name, model.revision, source.origin)
    return source


@operation()
def start(
    plan: Any,
    tools_python: str,
    sources: str,
    uv: str,
    verify: str | None = None,
    environment: Mapping[str, str] | None = None,
) -> Generator[Any, None, None]:
    """Begin what is missing of the plan's models and go on at once.

    Before a byte is written the host lists the files and sums them against its free space; a
    repository that the token may not read, or a full disk, fails this host with one line.
    `verify="full"` hashes everything again. `environment` reaches the job (HF_ENDPOINT, proxies,
    UV_INDEX_URL); the token is the controller's HF_TOKEN and goes over stdin to a 0600 file.
    """
    prefix = PurePosixPath(plan.prefix)
    wanted = sources_of(plan)
    state = _ask(wanted, prefix)
    jobs = []
    for source in wanted:
        model = state.of(source.key)
        full = verify == "full" and source.kind is not Kind.PATH
        if model.running or (model.settled and not full):
            host.noop(f"{source}: {'on its way' if model.running else 'verified'}")
        elif source.kind is Kind.PATH:
            yield _check_path(source, prefix)
        else:
            job = document(source, prefix, uv, full, environment)
            if source.kind is Kind.HOST:  # `wait` does it: the neighbour must have it first
                _copies[host.name, source.key] = Copy(job, tools_python, sources)
            else:
                jobs.append(job)
    if plan.service_manager == "systemd" and (jobs or _copies_of(wanted)):
        unit = io.StringIO(unit_text(prefix, tools_python, sources))
        yield from files.put._inner(src=unit, dest=UNIT, mode="644", create_remote_dir=False)
    if jobs:
        yield from _begin(jobs, plan.service_manager, prefix, tools_python, sources)


def _begin(
    jobs: list[dict[str, Any]], manager: str, prefix: PurePosixPath, python: str, code: str
) -> Generator[StringCommand, None, None]:
    """Check all jobs together, since they share a mount; then start each."""
    token = os.environ.get("HF_TOKEN", "").strip()
    for job in jobs:
        yield from write_job(job, prefix, token)
    yield StringCommand(f"{fetch_command(prefix, python, code, *jobs)} --check")
    for job in jobs:
        yield StringCommand(launch(job, manager, prefix, fetch_command(prefix, python, code, job)))


def _copies_of(wanted: tuple[ModelSource, ...]) -> list[Copy]:
    found = (_copies.get((host.name, source.key)) for source in wanted)
    return [begun for begun in found if begun is not None]


def _ask(sources: tuple[ModelSource, ...], prefix: PurePosixPath) -> ModelsState:
    wanted = [question(source, prefix) for source in sources]
    found: ModelsState = host.get_fact(Models, models_dir=str(prefix / "models"), wanted=wanted)
    if all(found.of(source.key).settled for source in sources):
        _settled[_memo(sources)] = found
    return found


def _memo(sources: tuple[ModelSource, ...]) -> tuple[str, tuple[str, ...]]:
    return host.name, tuple(source.key for source in sources)


def _check_path(source: ModelSource, prefix: PurePosixPath) -> StringCommand:
    """A folder of the user's own: it must be there; nothing is ever written into it."""
    text = json.dumps({"source": str(source), "revision": "path", "verified": False})
    missing = f"{source}: expected a folder or file there, found none; copy the model or mend it"
    return StringCommand(
        f"test -e {shlex.quote(source.name)} || {{ echo {shlex.quote(missing)} >&2; exit 1; }}; "
        f"mkdir -p {shlex.quote(str(prefix / 'models'))} && "
        f"printf '%s\\n' {shlex.quote(text)} >{shlex.quote(str(source.stamp_path(prefix)))}"
    )


@operation()
def wait(plan: Any, verify: str | None = None) -> Generator[Any, None, None]:
    """Poll the downloads with progress lines until every stamp is there.

    A job that ended without its stamp fails this host alone, with the fetcher's own last line.
    """
    prefix = PurePosixPath(plan.prefix)
    wanted = sources_of(plan)
    if verify != "full" and _memo(wanted) in _settled:
        return
    state = _ask(wanted, prefix)
    for source in wanted:
        model = state.of(source.key)
        again = verify == "full" and source.kind is not Kind.PATH
        if source.kind is Kind.HOST and not model.running and (again or not model.settled):
            begun = _copies.get((host.name, source.key))
            yield FunctionCommand(copy, (source, prefix, plan.service_manager, begun), {})
        elif again or not model.settled:
            yield FunctionCommand(poll, (source, prefix, plan.service_manager, again), {})


@operation()
def prune(plan: Any, remove: bool = False) -> Generator[Any, None, None]:
    """List revisions under PREFIX/models that the plan does not use; with `remove`, delete them."""
    prefix = PurePosixPath(plan.prefix)
    wanted = sources_of(plan)
    seen = _settled.get(_memo(wanted)) or _ask(wanted, prefix)
    if not unused(seen.folders, wanted, prefix):
        return
    found = {r.folder: r for r in host.get_fact(Revisions, models_dir=str(prefix / "models"))}
    for revision in unused(found, wanted, prefix):
        what = f"{revision}, {size(found[revision].size_bytes)}"
        if not remove:
            host.log(f"old revision kept: {what}; --data prune=models removes it")
            continue
        host.log(f"old revision to remove: {what}")
        folder = shlex.quote(str(prefix / "models" / revision))
        yield StringCommand(f"rm -f {folder}.stamp.json {folder}.manifest.json && rm -rf {folder}")
