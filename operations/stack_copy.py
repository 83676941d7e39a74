"""An engine venv copied from a host that has it, instead of from a package index.

The bytes go from host to host through this machine's two SSH connections, so that the hosts need
no keys for each other. What arrives is proven like a fresh install before it counts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from subprocess import PIPE
from typing import IO, Any

from pyinfra.api.command import StringCommand
from pyinfra.context import inventory

from facts.machine import Machine, MachineFacts
from operations import job, shell
from operations.layout import STAMP, Layout
from operations.tools_paths import python_of

CHUNK = 1 << 20
REPEAT_S = 5.0


def refusal(source: MachineFacts, target: MachineFacts, version: str) -> str | None:
    """Why a venv of `source` with Python `version` can't run on `target`; None where it can.

    Compiled code is bound to the architecture and the C library, a venv to its interpreter.
    GPU code is not compared: the lock's wheels carry the code of every supported GPU, and what is
    compiled at run time lies in a cache outside the venv.
    """
    pairs = {
        "architecture": (source.arch, target.arch),
        "glibc": (source.glibc, target.glibc),
        f"Python {version}": (_python(source, version), _python(target, version)),
    }
    for what, (there, here) in pairs.items():
        if there != here or there is None:
            return (
                f"stack 'copy': expected the same {what} on both hosts, found {there or 'unknown'} "
                f"there and {here or 'unknown'} here; use stack 'online' or 'wheelhouse'"
            )
    return None


def _python(machine: MachineFacts, version: str) -> str | None:
    """Path and full version of the host's Python that a venv links to."""
    path = python_of(machine, version)
    return next((f"{p.path} {p.version}" for p in machine.pythons if p.path == path), None)


def copy(
    state: Any, host: Any, name: str, layout: Layout, machine: MachineFacts, python: str
) -> bool:
    """Copies `layout.venv` from the inventory's host `name`; False (this host fails) if not."""
    other = inventory.get_host(name)
    if not other.connected:
        other.connect(show_errors=False)
    if not other.connected:
        return job.failed(host, f"stack 'copy': {name} can't be reached; copy needs both hosts")
    reason = refusal(other.get_fact(Machine), machine, python)
    if reason is not None:
        return job.failed(host, reason)
    question = StringCommand(f"test -e {layout.venv}/{STAMP} && du -sk {layout.venv} | cut -f1")
    there, text = shell.run(other, question)
    if not there:
        return job.failed(
            host, f"stack 'copy': {name} has no finished {layout.venv}; deploy it first"
        )
    folder, base = layout.venv.rpartition("/")[::2]
    read = f"tar -C {folder} --exclude {base}/{STAMP} -cf - {base}"
    write = f"mkdir -p {folder} && rm -rf {layout.venv} && tar -C {folder} -xf -"
    fault = transfer(Stream(other, read), Stream(host, write), int(text.split()[0]), host.log)
    if fault is not None:
        return job.failed(host, f"stack 'copy': the stream from {name} broke off: {fault}")
    return True


class Stream:
    """A command on a host whose input or output goes through this machine."""

    def __init__(self, host: Any, command: str) -> None:
        client = getattr(host.connector, "client", None)
        words = shell.line(host, command)
        self.stdin: IO[bytes]
        self.stdout: IO[bytes]
        self.stderr: IO[bytes]
        if client is not None:
            self.stdin, self.stdout, self.stderr = client.exec_command(words)
            self._exit_code = self.stdout.channel.recv_exit_status  # type: ignore[attr-defined]
            self.abort = self.stdout.channel.close  # type: ignore[attr-defined]
        else:
            process = subprocess.Popen(["sh", "-c", words], stdin=PIPE, stdout=PIPE, stderr=PIPE)
            assert process.stdin and process.stdout and process.stderr
            self.stdin, self.stdout, self.stderr = process.stdin, process.stdout, process.stderr
            self._exit_code, self.abort = process.wait, process.kill

    def fault(self) -> str | None:
        """Waits for its end; what it said last when it failed, None when it did not."""
        said = self.stderr.read().decode(errors="replace").strip()
        code = self._exit_code()
        return None if code == 0 else said.rpartition("\n")[2] or f"exit code {code}"


def transfer(source: Stream, sink: Stream, total_kib: int, log: Callable[[str], Any]) -> str | None:
    """Moves what `source` prints into `sink`, to the end of both; what went wrong, or None."""
    try:
        pump(source.stdout, sink.stdin, total_kib * 1024, log)
    except OSError:  # the sink has ended, and says why
        source.abort()
        return sink.fault() or "it ended before all was read"
    return source.fault() or sink.fault()


def pump(source: IO[bytes], sink: IO[bytes], total: int, log: Callable[[str], Any]) -> None:
    """Moves bytes to their end, with progress lines, and closes the sink. Raises OSError."""
    began = shown = time.monotonic()
    moved = 0
    while data := source.read(CHUNK):
        sink.write(data)
        moved += len(data)
        now = time.monotonic()
        if now - shown > REPEAT_S:
            rate = moved / (now - began) / 1e6
            log(f"engine venv: {moved / 1e9:.1f} of {total / 1e9:.1f} GB, {rate:.0f} MB/s")
            shown = now
    sink.close()
