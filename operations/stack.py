"""The engine's venv, keyed by the hash of its lock. pyinfra's own `uv.venv` is broken in 3.10."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from pyinfra.api.command import FunctionCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from facts.stack import Installed
from operations import job, show, stack_copy, toolkit
from operations.artifacts import FILES, lock_path
from operations.layout import STAMP, Layout
from operations.run import Run
from operations.tools_paths import python_of, uv_path, venv_script


@operation()
def install(run: Run) -> Generator[Any, None, None]:
    """Makes the engine's venv and proves its pins; yields nothing when it is there.

    With `stack: system` it is a venv over a Python of the host, whose packages stay as they are;
    with `stack: copy` it comes from another host of the inventory.
    """
    plan, layout, machine, system = run.plan, run.layout, run.machine, run.system_python
    state = host.get_fact(Installed, prefix=layout.prefix, folders=[layout.venv])
    if layout.venv in state.complete:
        return
    if system is not None:
        show.note(f"Will create the venv {layout.venv} over the packages of {system}")
        copied = ("sglang",) if plan.patch_set else ()
        script = system_script(system, layout, copied)
        yield from job.commands(layout.run, "stack", script, "engine venv")
        return
    lock = f"{layout.sources}/{lock_path(plan.lock).relative_to(FILES)}"
    show.note(f"Will create the engine venv {layout.venv} from {lock}")
    packages = toolkit.missing(plan, machine)
    if plan.engine == "sglang" and machine.has_apt and machine.uid == 0:
        names = " ".join((*packages, *toolkit.BUILD))
        show.note(f"Will install with apt what is missing of: {names}")
        python = python_of(machine, plan.python)
        script = toolkit.build_script(packages, headers=python.startswith("/usr/bin/"))
        yield from job.commands(layout.run, "packages", script, "build packages")
    if run.wanted.stack == "copy":
        words = (run.wanted.stack_from, layout, machine, plan.python)
        yield FunctionCommand(stack_copy.copy, words, {})
        yield from job.commands(
            layout.run, "stack", "set -e; " + proof(layout, lock, plan.engine), "engine venv"
        )
        return
    python = python_of(machine, plan.python)
    script = venv_script(uv_path(layout, machine), layout.venv, python, lock, run.source)
    yield from job.commands(
        layout.run, "stack", with_proof(script, layout, lock, plan.engine), "engine venv"
    )


def with_proof(script: str, layout: Layout, lock: str, engine: str) -> str:
    """Proves the pins before the stamp is written, so that a wrong venv is never taken for done."""
    head, _, _ = script.rpartition("sha256sum ")
    return head + proof(layout, lock, engine)


def proof(layout: Layout, lock: str, engine: str) -> str:
    """Compares what is installed with the lock, then writes the stamp."""
    cuda = f" --cuda {toolkit.RELEASE}" if engine == "sglang" else ""
    stamp = f"{layout.venv}/{STAMP}"
    return (
        f"{layout.venv}/bin/python {layout.sources}/hostkit/pins.py {lock}{cuda}; "
        f"sha256sum {lock} >{stamp}.new; mv {stamp}.new {stamp}"
    )


def system_script(python: str, layout: Layout, copied: tuple[str, ...]) -> str:
    """A venv that sees the packages of a Python which the host's owner looks after.

    `copied` are the distributions that a patch set changes: the venv gets its own copy of them.
    """
    stamp = f"{layout.venv}/{STAMP}"
    return (
        f"set -e; {python} -m venv --clear --without-pip {layout.venv}; "
        f"{python} {layout.sources}/hostkit/overlay.py {layout.venv} {' '.join(copied)}; "
        f"{layout.venv}/bin/python -c 'import sys; print(sys.version)' >{stamp}.new; "
        f"mv {stamp}.new {stamp}"
    )
