"""The engine's venv, keyed by the hash of its lock. pyinfra's own `uv.venv` is broken in 3.10."""

from __future__ import annotations

import shlex
from collections.abc import Generator
from typing import Any

from pyinfra.api.operation import operation
from pyinfra.context import host

from facts.machine import MachineFacts
from facts.stack import Installed
from operations import job, show
from operations.artifacts import lock_path
from operations.layout import STAMP, Layout
from operations.run import Run
from operations.tools_paths import UV_ENVIRONMENT, python_for, uv_path, venv_script

CUDA = "13.0"  # what torch 2.11.0+cu130 is built for
BUILD_PACKAGES = ("gcc", "ninja-build", "patch")  # Triton and FlashInfer compile at run time


@operation()
def install(run: Run) -> Generator[Any, None, None]:
    """Makes the engine's venv and proves its pins; yields nothing when it is there.

    With `stack: system` it is a venv over a Python of the host, whose packages stay as they are.
    """
    plan, layout, machine, system = run.plan, run.layout, run.machine, run.system_python
    state = host.get_fact(Installed, prefix=layout.prefix, folders=[layout.venv])
    if layout.venv in state.complete:
        return
    uv = uv_path(layout, machine)
    if system is not None:
        show.note(f"Will create the venv {layout.venv} over the packages of {system}")
        yield from job.commands(layout.run, "stack", system_script(system, layout), "engine venv")
        return
    lock = f"{layout.sources}/{lock_path(plan.lock).relative_to(lock_path('tools').parents[1])}"
    python = python_for(machine) if plan.engine == "reference" else _exact(machine, plan.python)
    show.note(f"Will create the engine venv {layout.venv} from {lock}")
    script = venv_script(uv, layout.venv, python, lock, run.source)
    yield from job.commands(
        layout.run, "stack", with_proof(script, layout, lock, plan.engine), "engine venv"
    )


def with_proof(script: str, layout: Layout, lock: str, engine: str) -> str:
    """Proves the pins before the stamp is written, so that a wrong venv is never taken for done."""
    cuda = f" --cuda {CUDA}" if engine == "sglang" else ""
    proof = f"{layout.venv}/bin/python {layout.sources}/hostkit/pins.py {lock}{cuda}; "
    head, stamp, tail = script.rpartition("sha256sum ")
    return head + proof + stamp + tail


def system_script(python: str, layout: Layout) -> str:
    """A venv that sees the packages of a Python which the host's owner looks after."""
    variables = " ".join(f"{k}={shlex.quote(v)}" for k, v in UV_ENVIRONMENT.items())
    return (
        f"set -e; export {variables}; "
        f"{python} -m venv --clear --system-site-packages --without-pip {layout.venv}; "
        f"{layout.venv}/bin/python -c 'import sys; print(sys.version)' >{layout.venv}/{STAMP}.new; "
        f"mv {layout.venv}/{STAMP}.new {layout.venv}/{STAMP}"
    )


def _exact(machine: MachineFacts, version: str) -> str:
    """The host's Python of that minor version, or the version for uv to fetch."""
    for python in machine.pythons:
        if python.version.startswith(f"{version}."):
            return python.path
    return version
