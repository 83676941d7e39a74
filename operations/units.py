"""Puts a release on the host: its folder, the link that serves, and the service's unit."""

from __future__ import annotations

import io
import shlex
from collections.abc import Generator
from typing import Any

from pyinfra import logger
from pyinfra.api.command import FileUploadCommand
from pyinfra.api.operation import operation
from pyinfra.context import host

from facts.service import Service, ServiceState
from operations import show
from operations.layout import STAMP, Layout
from operations.release import Release
from operations.run import Run


@operation()
def publish(run: Run) -> Generator[Any, None, None]:
    """Converges PREFIX/releases/<fingerprint>, PREFIX/current and the unit.

    The release is written beside its place and renamed, then the link is switched; a run that is
    cut off leaves either the old release or the new one, never a mixture.
    """
    release, service = run.release, run.wanted.service
    layout = release.layout
    folder = layout.release_dir
    inside = [f"{folder}/{name}" for name in release.files]
    links = [f"{folder}/{name}" for name in release.links]
    serving = [f"{layout.current}/{name}" for name in release.files]
    state: ServiceState = host.get_fact(
        Service,
        prefix=layout.prefix,
        service=service,
        files=[*inside, *serving, *release.service_files],
        links=links,
    )
    stale = [n for n, text in release.files.items() if state.files.get(f"{folder}/{n}") != text]
    changed = [p for p, text in release.service_files.items() if state.files.get(p) != text]
    _show(run, state, stale, changed)
    if state.current != release.fingerprint:
        yield _refuse_without(layout)
    if "launch.json" in stale or not _linked(release, state):
        yield from _write_folder(release)
    else:
        for name in stale:
            yield from _write_file(f"{folder}/{name}", release.files[name])
    if state.current != release.fingerprint:
        yield _switch(layout.current, layout.previous, folder, state.current)
    for path in changed:
        yield f"mkdir -p {shlex.quote(path.rpartition('/')[0])}"
        yield from _write_file(path, release.service_files[path])
    if changed and run.systemd:
        yield "systemctl daemon-reload"
    if run.systemd and not state.enabled:
        yield f"systemctl enable {service}.service"


def _show(run: Run, state: ServiceState, stale: list[str], changed: list[str]) -> None:
    """All diffs at once: pyinfra's dry run sees an operation only up to its first command."""
    release, layout = run.release, run.layout
    for name in stale:
        new = f"{layout.release_dir}/{name}"
        old = state.files.get(new) or state.files.get(f"{layout.current}/{name}")
        show.diff(new, old, release.files[name])
    for path in changed:
        show.diff(path, state.files.get(path), release.service_files[path])
    if state.current != release.fingerprint:
        show.note(f"Will point {layout.current} to {release.fingerprint} (now {state.current})")
    if run.systemd and not state.enabled:
        show.note(f"Will enable {run.wanted.service}.service")
    if state.drop_ins:
        what = f"{run.wanted.service}.service is changed by {', '.join(state.drop_ins)}"
        line = f"{what}: no plan, fingerprint or result knows of it; remove it if that is not meant"
        host.log_styled(line, fg="yellow", log_func=logger.warning)


def _linked(release: Release, state: ServiceState) -> bool:
    """All links are there. The sources' may lead to an older tree whose service code is the same:
    the fingerprint says so, and a running service's sources are never changed under it."""
    folder = release.layout.release_dir
    found = {name: state.links.get(f"{folder}/{name}") for name in release.links}
    return all(
        target is not None if name == "sources" else target == release.links[name]
        for name, target in found.items()
    )


def _write_file(path: str, text: str) -> Generator[Any, None, None]:
    """Writes beside its place, then renames."""
    yield FileUploadCommand(io.BytesIO(text.encode()), f"{path}.new")
    yield f"chmod 0644 {path}.new && mv {path}.new {path}"


def _write_folder(release: Release) -> Generator[Any, None, None]:
    """One upload of all files, one rename."""
    folder = release.layout.release_dir
    part = f"{folder}.part"
    yield f"rm -rf {part} && mkdir -p {part}"
    for name, text in release.files.items():
        yield FileUploadCommand(io.BytesIO(text.encode()), f"{part}/{name}")
    links = " && ".join(f"ln -sfn {target} {part}/{name}" for name, target in release.links.items())
    yield f"chmod 0644 {part}/* && {links} && rm -rf {folder} && mv {part} {folder}"


def _refuse_without(layout: Layout) -> str:
    """Fails where the engine's venv is not there: a part of a run may leave its phase out."""
    line = f"expected the engine's venv in {layout.venv}, found none; run the phase 'stack' first"
    return f"test -e {layout.venv}/{STAMP} || {{ echo {shlex.quote(line)} >&2; false; }}"


def _switch(current: str, previous: str, folder: str, was: str | None) -> str:
    """Switches the link by rename, and remembers the release before it for a roll-back."""
    remember = f"ln -sfn releases/{was} {previous} && " if was else ""
    target = "releases/" + folder.rpartition("/")[2]
    return f"{remember}ln -sfn {target} {current}.new && mv -T {current}.new {current}"
