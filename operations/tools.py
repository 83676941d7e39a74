"""Lays out what every later phase needs on a host: our sources, uv, and the tools venv."""

from __future__ import annotations

import io
import json
import shlex
from collections.abc import Generator, Mapping
from typing import Any

from pyinfra.api.command import FileUploadCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from facts.stack import Contents, Installed, InstalledState
from operations import artifacts, job, show
from operations.layout import STAMP, Layout
from operations.run import Run
from operations.tools_paths import python_for, uv_folder, uv_path, venv_script


@operation()
def install(run: Run) -> Generator[Any, None, None]:
    """Converges sources, uv and tools venv of this run; yields nothing when they are there.

    Each folder is named by its content and carries a stamp written last, so an interrupted
    install is done again and a finished one is never touched.
    """
    layout, machine, source = run.layout, run.machine, run.tools_source
    state: InstalledState = host.get_fact(
        Installed,
        prefix=layout.prefix,
        folders=[layout.sources, layout.tools],
        uv_folder=uv_folder(layout),
    )
    tree, uv = artifacts.sources(), uv_path(layout, machine)
    no_sources = layout.sources not in state.complete
    no_tools = layout.tools not in state.complete
    no_uv = uv == f"{uv_folder(layout)}/uv" and state.uv is None
    if no_sources:
        _show_sources(state, tree, layout)
    if no_uv:
        show.note(f"Will install uv in {uv_folder(layout)}")
    if no_tools:
        show.note(f"Will create the tools venv {layout.tools}")
    if no_sources:
        yield f"mkdir -p {layout.prefix}/sources {layout.prefix}/run {layout.prefix}/results"
        yield FileUploadCommand(io.BytesIO(tree.archive()), f"{layout.sources}.tar.gz")
        yield unpack_command(layout, tree.sums())
    if no_uv:
        script = f"python3 {layout.sources}/hostkit/get_uv.py {uv_folder(layout)} {source.index}"
        yield from job.commands(layout.run, "uv", script, "uv")
    if no_tools:
        lock = f"{layout.sources}/hostkit/requirements.lock"
        script = venv_script(uv, layout.tools, python_for(machine), lock, source)
        yield from job.commands(layout.run, "tools", script, "tools venv")


def unpack_command(layout: Layout, sums: Mapping[str, str]) -> str:
    """Unpacks the uploaded archive beside its place and renames: never half a tree."""
    part = f"{layout.sources}.part"
    stamp = shlex.quote(json.dumps(dict(sums), indent=0, sort_keys=True))
    return (
        f"rm -rf {part} && mkdir {part} && tar -xzf {layout.sources}.tar.gz -C {part} && "
        f"printf '%s\\n' {stamp} >{part}/{STAMP} && rm -rf {layout.sources} && "
        f"mv {part} {layout.sources} && rm -f {layout.sources}.tar.gz"
    )


def _show_sources(state: InstalledState, tree: artifacts.Tree, layout: Layout) -> None:
    """Under --diff: each new, changed and removed file against the sources that serve now."""
    if not show.wants_diff():
        return
    new = tree.sums()
    changed = [n for n in new if n in state.sums and state.sums[n] != new[n]]
    old_text: dict[str, str] = {}
    if changed:
        old_text = host.get_fact(Contents, folder=f"{layout.prefix}/current/sources", names=changed)
    for name in sorted(new.keys() | state.sums.keys()):
        path = f"{layout.sources}/{name}"
        if name not in state.sums:
            show.note(f"Will create {path} ({len(tree.files[name])} bytes)")
        elif name not in new:
            show.note(f"Will leave out {name}")
        elif name in changed:
            try:
                show.diff(path, old_text.get(name), tree.files[name].decode())
            except UnicodeDecodeError:
                show.note(f"Will change {path} (binary)")
