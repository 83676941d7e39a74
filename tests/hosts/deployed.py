"""One host of an inventory, seen from outside: what it should be, and a way to ask it.

What it should be comes from the same pure functions as the deploy: facts, plan, release.
"""

from __future__ import annotations

import importlib.util
import json
import os
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import testinfra
from testinfra.host import Host

from facts.machine import Machine, MachineFacts
from operations.model_source import ModelSource, resolve
from operations.plan import ServingPlan, choose
from operations.release import Release, build, layout_of
from operations.wanted import Wanted, override, read_wanted


@dataclass(frozen=True)
class Deployed:
    """A host of an inventory file, and its merged data."""

    name: str
    data: Mapping[str, Any]

    @cached_property
    def remote(self) -> Host:
        """testinfra's host, reached the way that the inventory's data says."""
        sudo = bool(self.data.get("_sudo"))
        if self.name == "@local":
            return testinfra.get_host("local://", sudo=sudo)
        options = {
            "ssh_config": self.data.get("ssh_config_file"),
            "ssh_identity_file": self.data.get("ssh_key"),
        }
        user = f"{self.data['ssh_user']}@" if self.data.get("ssh_user") else ""
        port = f":{self.data['ssh_port']}" if self.data.get("ssh_port") else ""
        given = urlencode({k: str(Path(v).expanduser()) for k, v in options.items() if v})
        return testinfra.get_host(f"ssh://{user}{self.name}{port}?{given}", sudo=sudo)

    @cached_property
    def machine(self) -> MachineFacts:
        """The facts, read by the command that a deploy uses."""
        fact = Machine()
        output = self.remote.check_output("sh -c %s", fact.command())
        return fact.process(output.splitlines())

    @cached_property
    def wanted(self) -> Wanted:
        wanted = read_wanted(override(self.data.get("wanted"), self.data.get("set")), self.name)
        sources = {"target": wanted.target, "drafter": wanted.drafter}
        token = os.environ.get("HF_TOKEN") or None
        pinned = {
            key: str(resolve(ModelSource.parse(text), wanted.hub_endpoint, token))
            for key, text in sources.items()
            if text is not None
        }
        return wanted.model_copy(update=pinned)

    @cached_property
    def plan(self) -> ServingPlan:
        return choose(self.machine, self.wanted)

    @cached_property
    def release(self) -> Release:
        return build(self.plan, self.wanted, layout_of(self.plan, self.wanted))

    @property
    def current(self) -> str:
        return self.release.layout.current

    @property
    def service(self) -> str:
        return self.wanted.service

    def text(self, path: str) -> str:
        """The content of a file on the host."""
        return str(self.remote.file(path).content_string)

    def status(self) -> dict[str, Any]:
        """PREFIX/run/status.json: what the supervisor says of the engine."""
        found: dict[str, Any] = json.loads(self.text(self.release.layout.status))
        return found

    def http(self, path: str, body: Mapping[str, Any] | None = None) -> tuple[int, str]:
        """Asks the engine from the host itself; a `body` makes it a POST. (code, text)."""
        url = f"http://{self.plan.host_address}:{self.plan.port}{path}"
        command = ["curl", "-s", "-m", "240", "-w", r"\n%{http_code}", url]
        if body is not None:
            command += ["-H", "Content-Type: application/json", "-d", json.dumps(body)]
        text, _, code = self.remote.check_output(shlex.join(command)).rpartition("\n")
        return int(code), text


def read_inventory(path: Path) -> Iterator[Deployed]:
    """The hosts of an inventory file, each once, with group data under the host's own.

    Like pyinfra, takes every public list or (list, dict) of the module for a group.
    """
    spec = importlib.util.spec_from_file_location("inventory_under_test", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"expected an inventory file, found {path}")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    merged: dict[str, dict[str, Any]] = {}
    for key, value in vars(module).items():
        if key.startswith("_") or not isinstance(value, list | tuple):
            continue
        hosts, shared = value if isinstance(value, tuple) else (value, {})
        for entry in hosts:
            name, own = entry if isinstance(entry, tuple) else (entry, {})
            merged[name] = {**merged.get(name, {}), **shared, **own}
    for name, data in merged.items():
        yield Deployed(name, data)
