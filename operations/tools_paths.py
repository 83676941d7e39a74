"""Which uv and which Python of a host are used, and the script that makes a venv. Pure."""

from __future__ import annotations

import json
import shlex

from facts.machine import MachineFacts
from operations import artifacts
from operations.layout import STAMP, Layout
from operations.stack_source import StackSource

OLDEST_UV = (0, 8)  # the first with `uv venv --clear`
OLDEST_PYTHON = (3, 11)
# Hosts behind a company's certificate authority: uv carries its own roots unless told so.
UV_ENVIRONMENT = {"UV_SYSTEM_CERTS": "1", "UV_NO_PROGRESS": "1", "UV_PYTHON_PREFERENCE": "system"}


def uv_folder(layout: Layout) -> str:
    version = json.loads((artifacts.FILES / "hostkit/uv.json").read_text())["version"]
    return f"{layout.prefix}/uv/{version}"


def uv_path(layout: Layout, machine: MachineFacts) -> str:
    """The host's own uv where it is new enough, ours else."""
    if machine.uv and _version(machine.uv_version) >= OLDEST_UV:
        return machine.uv
    return f"{uv_folder(layout)}/uv"


def python_for(machine: MachineFacts, oldest: tuple[int, int] = OLDEST_PYTHON) -> str:
    """The newest of the host's Pythons that is new enough, or a version for uv to fetch."""
    fit = [p for p in machine.pythons if _version(p.version) >= oldest]
    best = max(fit, key=lambda p: _version(p.version), default=None)
    return best.path if best else "3.12"


def python_of(machine: MachineFacts, version: str) -> str:
    """The host's Python of a minor version ("3.12"), or the version for uv to fetch.

    The distribution's own comes first: one in a home folder may go away with its owner.
    """
    fit = [p.path for p in machine.pythons if p.version.startswith(f"{version}.")]
    return min(fit, key=lambda path: (not path.startswith("/usr/"), path), default=version)


def venv_script(uv: str, venv: str, python: str, lock: str, source: StackSource) -> str:
    """A shell script that makes a venv of exactly the pins in `lock`; the stamp comes last."""
    variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in (UV_ENVIRONMENT | source.env).items())
    flags = " ".join(map(shlex.quote, source.flags))
    return (
        f"set -e; export {variables}; "
        f"{uv} venv --quiet --clear --python {shlex.quote(python)} {venv}; "
        f"{uv} pip sync --python {venv}/bin/python --require-hashes {flags} {lock}; "
        f"{uv} pip check --python {venv}/bin/python; "
        f"sha256sum {lock} >{venv}/{STAMP}.new; mv {venv}/{STAMP}.new {venv}/{STAMP}"
    )


def _version(text: str | None) -> tuple[int, ...]:
    parts = (text or "").split(".")[:3]
    return tuple(int(p) for p in parts) if all(p.isdigit() for p in parts) else (0,)
