"""Long work on a host as a detached job: it survives a dropped connection and shows progress.

A job is a command in a session of its own with RUN/jobs/NAME.{pid,log,rc}. A run that finds the
job at work joins it instead of starting it twice.
"""

from __future__ import annotations

import re
import shlex
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pyinfra.api.command import FunctionCommand, StringCommand

from operations import shell

POLL_S = 2.0
LONGEST = 120  # characters of a progress line
REPEAT_S = 10.0  # a line in which only numbers changed is shown again after so long


@dataclass(frozen=True)
class JobState:
    """`exit_code` is None while the job runs; `lost` if it ended without leaving one."""

    running: bool
    exit_code: int | None
    line: str

    @property
    def lost(self) -> bool:
        return not self.running and self.exit_code is None


def start_command(run_dir: str, name: str, script: str) -> str:
    """A shell command that starts `script` (sh) as job `name`, unless it is at work already."""
    base = f"{run_dir}/jobs/{name}"
    inner = f"( {script}\n) >{base}.log 2>&1; echo $? >{base}.rc.new; mv {base}.rc.new {base}.rc"
    return (
        f"mkdir -p {run_dir}/jobs; "
        f"if ! {_alive(base)}; then rm -f {base}.rc {base}.pid; : >{base}.log; "
        f"setsid sh -c {shlex.quote(f'echo $$ >{base}.pid; {inner}')} </dev/null >/dev/null 2>&1 & "
        f"n=0; while [ ! -s {base}.pid ] && [ $n -lt 100 ]; do sleep 0.05; n=$((n+1)); done; fi"
    )


def poll_command(run_dir: str, name: str, status_file: str | None = None) -> str:
    """Prints the exit code (or -), alive or gone, and the last line of the log or status file."""
    base = f"{run_dir}/jobs/{name}"
    last = f"tail -c 2000 {base}.log 2>/dev/null | tr '\\r' '\\n' | grep . | tail -n 1"
    shown = f"cat {status_file} 2>/dev/null || {last}" if status_file else last
    return (
        f"if {_alive(base)}; then echo alive; else echo gone; fi; "
        f"cat {base}.rc 2>/dev/null || echo -; {shown}"
    )


def read_poll(output: str) -> JobState:
    """Reads what `poll_command` printed."""
    lines = output.strip().splitlines()
    alive, code = lines[:2] if len(lines) > 1 else ("gone", "-")
    text = "\n".join(lines[2:]).strip()
    return JobState(alive == "alive", int(code) if code.strip().isdigit() else None, text)


def _alive(base: str) -> str:
    """True for the process that wrote the pid file, not for a later one of the same number."""
    return f"grep -qs {base}.pid /proc/$(cat {base}.pid 2>/dev/null || echo none)/cmdline"


def commands(
    run_dir: str,
    name: str,
    script: str,
    what: str,
    status_file: str | None = None,
    show: Callable[[str], str] = lambda text: text,
) -> tuple[StringCommand, FunctionCommand]:
    """The two commands of an operation that runs `script` as a job and waits for its end."""
    return (
        StringCommand(start_command(run_dir, name, script)),
        FunctionCommand(wait, (run_dir, name, what, status_file, show), {}),
    )


def wait(
    state: Any,
    host: Any,
    run_dir: str,
    name: str,
    what: str,
    status_file: str | None = None,
    show: Callable[[str], str] = lambda text: text,
) -> bool:
    """Polls a job until it ends, with progress lines. False (this host fails) on a bad end."""
    began = shown_at = time.monotonic()
    shown = ""
    while True:
        done, text = shell.run(host, StringCommand(poll_command(run_dir, name, status_file)))
        job = read_poll(text if done else "")
        now = time.monotonic()
        line = show(job.line)
        if line and (words(line) != shown or now - shown_at > REPEAT_S):
            host.log(f"{what}: {shorten(line)}  [{now - began:.0f} s]")
            shown, shown_at = words(line), now
        if not done or job.running:
            time.sleep(POLL_S if done else 2 * POLL_S)
            if not done and now - began > 600:
                return failed(host, f"{what}: the host has not answered for 10 minutes")
            continue
        if job.exit_code == 0:
            return True
        lost = "killed, or the disk is full"  # either way it left no exit code
        reason = lost if job.lost else f"exit code {job.exit_code}"
        return failed(
            host, f"{what}: {reason}; {line or 'no output'}; log: {run_dir}/jobs/{name}.log"
        )


def shorten(line: str) -> str:
    """Fits a line of somebody's log into one of ours."""
    return line if len(line) <= LONGEST else line[: LONGEST - 3] + "..."


def words(line: str) -> str:
    """A line without its numbers: a counter that ticks is no news."""
    return re.sub(r"[0-9.]+", "", line)


def failed(host: Any, message: str) -> bool:
    """Says why on one line; the False of a FunctionCommand fails this host alone."""
    from pyinfra import logger

    host.log_styled(message, fg="red", log_func=logger.error)
    return False
