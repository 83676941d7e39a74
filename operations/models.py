"""Models on hosts: the download starts first, runs beside everything else, and is verified.

`start` leaves a job on the host and returns; `wait` polls it with progress lines. Both yield
nothing on a host whose models are stamped. The job itself is `hostkit fetch` (files/hostkit).
"""

from __future__ import annotations

import io
import json
import os
import shlex
import time
from collections.abc import Generator, Mapping
from pathlib import PurePosixPath
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FunctionCommand, QuoteString, StringCommand
from pyinfra.api.operation import operation
from pyinfra.context import host
from pyinfra.operations import files

from facts.models import Models, ModelsState, ModelState, Revisions, parse, probe, room
from operations.model_job import (
    UNIT,
    document,
    jobs_dir,
    launch,
    log_path,
    progress,
    size,
    status_path,
    unit_name,
    unit_text,
    unused,
)
from operations.model_source import Kind, ModelSource

POLL_S = 3.0
REPEAT_S = 30.0  # an unchanged line is shown again after so long
GONE_POLLS = 3  # so often in a row a job must be missing before it counts as ended

# What this run found on a host whose models were all stamped: later phases need not look again.
_settled: dict[tuple[str, tuple[str, ...]], ModelsState] = {}


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
    for source in wanted:
        model = state.of(source.key)
        full = verify == "full" and source.kind is not Kind.PATH
        if model.running or (model.settled and not full):
            host.noop(f"{source}: {'on its way' if model.running else 'verified'}")
        elif source.kind is Kind.PATH:
            yield _check_path(source, prefix)
        else:
            job = document(source, prefix, uv, full, environment)
            if plan.service_manager == "systemd":
                unit = io.StringIO(unit_text(prefix, tools_python, sources))
                yield from files.put._inner(
                    src=unit, dest=UNIT, mode="644", create_remote_dir=False
                )
            words = ("env", f"PYTHONPATH={sources}", tools_python, "-m", "hostkit", "fetch")
            yield from _begin(job, plan.service_manager, prefix, shlex.join(words))


def _ask(sources: tuple[ModelSource, ...], prefix: PurePosixPath) -> ModelsState:
    wanted = [_question(source, prefix) for source in sources]
    found: ModelsState = host.get_fact(Models, models_dir=str(prefix / "models"), wanted=wanted)
    if all(found.of(source.key).settled for source in sources):
        _settled[_memo(sources)] = found
    return found


def _question(source: ModelSource, prefix: PurePosixPath) -> tuple[str, str, str | None, str]:
    directory, stamp = str(source.directory(prefix)), source.stamp_path(prefix)
    return source.key, directory, str(stamp) if stamp else None, str(status_path(source, prefix))


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


def _begin(
    job: dict[str, Any], manager: str, prefix: PurePosixPath, fetch: str
) -> Generator[Any, None, None]:
    path = str(jobs_dir(prefix) / f"{job['key']}.json")
    command = f"{fetch} --job {shlex.quote(path)}"
    yield _write(path, json.dumps(job, indent=1) + "\n", "022")
    yield _write(job["token_file"], os.environ.get("HF_TOKEN", "").strip() + "\n", "077")
    yield StringCommand(f"{command} --check")
    yield StringCommand(launch(job, manager, prefix, command))


def _write(path: str, text: str, umask: str) -> StringCommand:
    """Write `text` over stdin, so that it shows in no command line, log or process list."""
    folder, new = QuoteString(str(PurePosixPath(path).parent)), QuoteString(f"{path}.new")
    bits = ("mkdir -p", folder, "&& umask", umask, "&& cat >", new, "&& mv", new, QuoteString(path))
    return StringCommand(*bits, _stdin=text)


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
        again = verify == "full" and source.kind is not Kind.PATH
        if again or not state.of(source.key).settled:
            yield FunctionCommand(poll, (source, prefix, plan.service_manager), {})


def poll(state: Any, host: Any, source: ModelSource, prefix: PurePosixPath, manager: str) -> bool:
    """Wait for one model on the host; True once it is stamped and no job is at work."""
    question = StringCommand(f"{probe(*_question(source, prefix))}; {room(str(prefix / 'models'))}")
    shown, shown_at, gone = "", 0.0, 0
    while True:
        answer = _run(host, question)
        if answer is None:
            return _fail(host, f"{source}: the host stopped answering; the download goes on there")
        model = parse(answer.splitlines()).of(source.key)
        if model.settled and not model.running:
            host.log(f"{source.name}: {model.job.message if model.job else 'verified'}")
            return True
        gone = 0 if model.running else gone + 1
        if gone >= GONE_POLLS:
            return _fail(host, f"{source}: {_last_line(model, host, source, prefix, manager)}")
        line = progress(model)
        if line != shown or time.monotonic() - shown_at > REPEAT_S:
            host.log(f"{source.name}: {line}")
            shown, shown_at = line, time.monotonic()
        time.sleep(POLL_S)


def _run(host: Any, command: StringCommand) -> str | None:
    """What a command printed; None when it failed or the connection is gone."""
    try:
        done, output = host.run_shell_command(command, print_output=False, print_input=False)
    except Exception as error:  # each connector has errors of its own for a lost connection
        logger.debug("%s: %s", type(error).__name__, error)
        return None
    return str(output.stdout) if done else None


def _last_line(
    model: ModelState, host: Any, source: ModelSource, prefix: PurePosixPath, manager: str
) -> str:
    """What the ended job said last: its status, else the journal or the log."""
    if model.job is not None and model.job.state in ("failed", "stopped"):
        return model.job.message
    if manager == "systemd":
        command = f"journalctl -u {unit_name(source.key)} -n 1 -o cat --no-pager"
    else:
        command = f"tail -n 1 {shlex.quote(str(log_path(source, prefix)))}"
    said = (_run(host, StringCommand(command)) or "").strip()
    return f"the download ended without a stamp: {said or 'no output'}"


def _fail(host: Any, message: str) -> bool:
    line = f"{message}; the next run goes on where it stopped"
    host.log_styled(line, fg="red", log_func=logger.error)
    return False


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
