"""`host:` sources: a model comes from the host of the inventory that has it, not from the network.

Runs on the controller inside `models.wait`. The neighbour serves its verified folder for one
token; the list of files with their sha256 goes from host to host over SSH, so that the plain HTTP
in between need not be trusted. The fetcher on the other side is the same as for a Hub.
"""

from __future__ import annotations

import json
import secrets
import shlex
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

from pyinfra.api.command import StringCommand
from pyinfra.api.exceptions import NoHostError

from facts.models import ModelState, parse, probe
from operations import job as detached
from operations import shell
from operations.model_job import fetch_command, jobs_dir, launch, question
from operations.model_remote import fail, poll, run, write, write_job
from operations.model_source import ModelSource

POLL_S = 3.0


class CopyError(RuntimeError):
    """One line: why the neighbour can't hand the model over."""


def neighbour_of(state: Any, source: ModelSource, host: Any) -> Any:
    """The other host that a `host:` source names, connected; CopyError if there is none."""
    if source.origin == host.name:
        raise CopyError(f"{source}: a host can't copy from itself; name another one, or hf:")
    try:
        found = state.inventory.get_host(source.origin)
    except NoHostError:
        names = ", ".join(sorted(other.name for other in state.inventory))
        raise CopyError(
            f"{source}: expected a host of this inventory, found '{source.origin}'; "
            f"there are {names}"
        ) from None
    if not found.connected:
        found.connect(show_errors=False)
    if not found.connected:
        raise CopyError(f"{source}: {source.origin} can't be reached; copy needs both hosts")
    return found


def address_of(neighbour: Any) -> str:
    """Where the other host reaches the neighbour: `copy_address`, else the address SSH uses."""
    told = neighbour.data.get("copy_address")
    client = getattr(neighbour.connector, "client", None)
    if told:
        return str(told)
    if client is None:
        return "127.0.0.1"  # @local
    return str(client.get_transport().getpeername()[0])


def await_stamp(neighbour: Any, question: str, source: ModelSource, log: Any) -> None:
    """Wait until the neighbour has the model verified; CopyError when nothing brings it there."""
    told = False
    missing = 0
    while True:
        model = _ask(neighbour, question, source)
        if model.settled:
            return
        missing = 0 if model.running else missing + 1
        if missing > 3:
            raise CopyError(
                f"{source}: {source.origin} has no verified copy and fetches none; "
                "deploy it first, or write hf: here"
            )
        if not told:
            log(f"{source.name}: waits for {source.origin} to have it verified")
            told = True
        time.sleep(POLL_S)


def _ask(neighbour: Any, question: str, source: ModelSource) -> ModelState:
    done, text = shell.run(neighbour, StringCommand(question))
    if not done:
        raise CopyError(f"{source}: {source.origin} stopped answering")
    return parse(text.splitlines()).of(source.key)


class Handover:
    """A neighbour that serves one model for one token; `close` ends it."""

    def __init__(
        self, neighbour: Any, source: ModelSource, prefix: PurePosixPath, python: str, code: str
    ) -> None:
        self.neighbour = neighbour
        self.token = secrets.token_urlsafe(32)
        self._name = f"serve-{source.key}-{secrets.token_hex(4)}"
        self._run = str(prefix / "run")
        base = f"{jobs_dir(prefix)}/{self._name}"
        directory = source.directory(prefix)
        self._send(f"umask 077 && mkdir -p {jobs_dir(prefix)} && cat >{base}.token", self.token)
        old = prefix / "current"
        script = (
            f"p={shlex.quote(python)}; c={shlex.quote(code)}; "
            f"test -x $p || {{ p={old}/tools/bin/python; c={old}/sources; }}; "
            f"exec env PYTHONPATH=$c $p -m hostkit.model_serve --directory {directory} "
            f"--token-file {base}.token --port-file {base}.port"
        )
        port = self._send(
            f"{detached.start_command(self._run, self._name, script)}; "
            f"for i in $(seq 50); do test -s {base}.port && break; sleep 0.2; done; "
            f"cat {base}.port || tail -n 1 {self._run}/jobs/{self._name}.log >&2"
        ).strip()
        self._base = base
        if not port.isdigit():
            raise CopyError(f"{source}: {source.origin} could not serve its copy")
        self.url = f"http://{address_of(neighbour)}:{port}"
        self.listing = _listing(self._send(f"cat {directory}.manifest.json"))

    def _send(self, command: str, text: str = "") -> str:
        done, said = shell.run(self.neighbour, StringCommand(command, _stdin=text + "\n"))
        return said if done else ""

    def close(self) -> None:
        """End the server and remove what it left."""
        job = f"{self._run}/jobs/{self._name}"
        self._send(f"kill -- -$(cat {job}.pid) 2>/dev/null; rm -f {self._base}.* {job}.*")


def _listing(manifest: str) -> str:
    """The list of files as the fetcher keeps it, out of a manifest."""
    files = json.loads(manifest or "{}").get("files", {})
    if not files:
        raise CopyError("the neighbour's copy has no manifest; verify it there with verify=full")
    entries = [
        {"path": name, "size": info["size"], "sha256": info["sha256"], "blob": None, "xet": None}
        for name, info in sorted(files.items())
    ]
    return json.dumps(entries) + "\n"


@dataclass(frozen=True)
class Copy:
    """What `copy` needs for a `host:` source that is missing here."""

    job: Mapping[str, Any]
    tools_python: str
    sources: str


def copy(
    state: Any,
    host: Any,
    source: ModelSource,
    prefix: PurePosixPath,
    manager: str,
    begun: Copy | None,
) -> bool:
    """Fetch a model from the host of the inventory that has it; True once it is stamped here."""
    if begun is None:
        return fail(host, f"{source}: no copy was begun; run the models phase as a whole")
    handover = None
    try:
        neighbour = neighbour_of(state, source, host)
        await_stamp(neighbour, probe(*question(source, prefix)), source, host.log)
        handover = Handover(neighbour, source, prefix, begun.tools_python, begun.sources)
        job = {**begun.job, "endpoint": handover.url}
        listing = str(PurePosixPath(job["directory"]) / ".fetch" / "files.json")
        fetch = fetch_command(prefix, begun.tools_python, begun.sources, job)
        for command in (
            write(listing, handover.listing, "022"),
            *write_job(job, prefix, handover.token),
            StringCommand(launch(job, manager, prefix, fetch)),
        ):
            if run(host, command) is None:
                return fail(host, f"{source}: the host stopped answering")
        host.log(f"{source.name}: copied from {neighbour.name}")
        return poll(state, host, source, prefix, manager, again=job["full"])
    except CopyError as error:
        return fail(host, str(error))
    finally:
        if handover is not None:
            handover.close()
