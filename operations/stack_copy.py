"""An engine venv copied from a host that has it, instead of from a package index.

The bytes go from host to host through this machine's two SSH connections, so that the hosts need
no keys for each other. What arrives is proven like a fresh install before it counts.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable
from typing import IO, Any

from pyinfra.api.command import StringCommand
from pyinfra.context import inventory

from facts.machine import Machine, MachineFacts
from operations import job
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
    there, output = other.run_shell_command(question, print_output=False, print_input=False)
    if not there:
        return job.failed(
            host, f"stack 'copy': {name} has no finished {layout.venv}; deploy it first"
        )
    total = int(output.stdout.split()[0]) * 1024
    folder, base = layout.venv.rpartition("/")[::2]
    read = f"tar -C {folder} --exclude {base}/{STAMP} -cf - {base}"
    write = f"mkdir -p {folder} && rm -rf {layout.venv} && tar -C {folder} -xf -"
    done = pump(_reader(other, read), _writer(host, write), total, host.log)
    return done or job.failed(host, f"stack 'copy': the stream from {name} broke off")


def pump(
    source: IO[bytes], sink: Callable[[bytes | None], bool], total: int, log: Callable[[str], Any]
) -> bool:
    """Moves bytes to their end with progress lines; `sink(None)` closes and says if all is well."""
    began = shown = time.monotonic()
    moved = 0
    while data := source.read(CHUNK):
        if not sink(data):
            return False
        moved += len(data)
        now = time.monotonic()
        if now - shown > REPEAT_S:
            rate = moved / (now - began) / 1e6
            log(f"engine venv: {moved / 1e9:.1f} of {total / 1e9:.1f} GB, {rate:.0f} MB/s")
            shown = now
    return sink(None) and moved > 0


def _reader(host: Any, command: str) -> IO[bytes]:
    client = getattr(host.connector, "client", None)
    if client is not None:
        _, stdout, _ = client.exec_command(command)
        return stdout  # type: ignore[no-any-return]
    process = subprocess.Popen(["sh", "-c", command], stdout=subprocess.PIPE)
    assert process.stdout is not None
    return process.stdout


def _writer(host: Any, command: str) -> Callable[[bytes | None], bool]:
    client = getattr(host.connector, "client", None)
    if client is not None:
        stdin, stdout, _ = client.exec_command(command)

        def to_channel(data: bytes | None) -> bool:
            if data is not None:
                stdin.channel.sendall(data)
                return True
            stdin.channel.shutdown_write()
            return bool(stdout.channel.recv_exit_status() == 0)

        return to_channel
    process = subprocess.Popen(["sh", "-c", command], stdin=subprocess.PIPE)

    def to_pipe(data: bytes | None) -> bool:
        assert process.stdin is not None
        if data is not None:
            process.stdin.write(data)
            return True
        process.stdin.close()
        return process.wait() == 0

    return to_pipe
