"""What the models' operations say to a host, and what they hear: files, polls, last words."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Generator, Mapping
from pathlib import PurePosixPath
from typing import Any

from pyinfra import logger
from pyinfra.api.command import QuoteString, StringCommand

from facts.models import ModelState, parse, probe
from operations import shell
from operations.model_job import job_path, log_path, progress, question, unit_name
from operations.model_source import ModelSource

POLL_S = 3.0
REPEAT_S = 30.0  # an unchanged line is shown again after so long
GONE_POLLS = 5  # so often in a row a job must be missing: a unit may start it again


def write_job(
    job: Mapping[str, Any], prefix: PurePosixPath, token: str
) -> Generator[StringCommand, None, None]:
    """The job's file and its token's, empty without one; both 0600: an index URL can hold a key."""
    yield write(job_path(job, prefix), json.dumps(job, indent=1) + "\n", "077")
    yield write(job["token_file"], f"{token}\n", "077")


def write(path: str, text: str, umask: str) -> StringCommand:
    """Write `text` over stdin, so that it shows in no command line, log or process list."""
    folder, new = QuoteString(str(PurePosixPath(path).parent)), QuoteString(f"{path}.new")
    bits = ("mkdir -p", folder, "&& umask", umask, "&& cat >", new, "&& mv", new, QuoteString(path))
    return StringCommand(*bits, _stdin=text)


def poll(
    state: Any,
    host: Any,
    source: ModelSource,
    prefix: PurePosixPath,
    manager: str,
    again: bool = False,
) -> bool:
    """Wait for one model on the host; True once it is stamped and no job is at work.

    `again`: it was stamped before, so that only the job's own word counts as its end.
    """
    asked = StringCommand(probe(*question(source, prefix)))
    shown, shown_at, gone = "", 0.0, 0
    while True:
        answer = run(host, asked)
        if answer is None:
            return fail(host, f"{source}: the host stopped answering; the download goes on there")
        model = parse(answer.splitlines()).of(source.key)
        done = model.job is not None and model.job.state == "done"
        if model.settled and not model.running and (done or not again):
            host.log(f"{source.name}: {model.job.message if model.job else 'verified'}")
            return True
        gone = 0 if model.running else gone + 1
        refused = gone > 0 and model.job is not None and model.job.state == "refused"
        if refused or gone >= GONE_POLLS:
            return fail(host, f"{source}: {_last_line(model, host, source, prefix, manager)}")
        line = progress(model)
        if line != shown or time.monotonic() - shown_at > REPEAT_S:
            host.log(f"{source.name}: {line}")
            shown, shown_at = line, time.monotonic()
        time.sleep(POLL_S)


def run(host: Any, command: StringCommand) -> str | None:
    """What a command printed; None when it failed or the connection is gone."""
    try:
        done, text = shell.run(host, command)
    except Exception as error:  # each connector has errors of its own for a lost connection
        logger.debug("%s: %s", type(error).__name__, error)
        return None
    return text if done else None


def _last_line(
    model: ModelState, host: Any, source: ModelSource, prefix: PurePosixPath, manager: str
) -> str:
    """What the ended job said last: its status, else the journal or the log."""
    if model.job is not None and model.job.state in ("refused", "failed", "stopped"):
        return model.job.message
    if manager == "systemd":
        command = f"journalctl -u {unit_name(source.key)} -n 1 -o cat --no-pager"
    else:
        command = f"tail -n 1 {shlex.quote(str(log_path(source, prefix)))}"
    said = (run(host, StringCommand(command)) or "").strip()
    return f"the download ended without a stamp: {said or 'no output'}"


def fail(host: Any, message: str) -> bool:
    line = f"{message}; the next run goes on where it stopped"
    host.log_styled(line, fg="red", log_func=logger.error)
    return False
