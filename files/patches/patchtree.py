"""How a venv stands under a patch set: read only. Standard library only."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import patchset
from patchset import FileState, PatchSetError, Series

RECORD = "ddtree-patches"  # VENV/ddtree-patches: the set that was applied last, with its patches


@dataclass(frozen=True)
class PatchSet:
    """A set read from its folder: series, hunks by path, contents of the added files by path."""

    folder: Path
    series: Series
    hunks: Mapping[str, tuple[patchset.Hunk, ...]]
    new: Mapping[str, bytes]


@dataclass(frozen=True)
class Change:
    """One file: its state, its bytes now and as wanted (None: absent)."""

    path: str
    state: FileState
    found: bytes | None
    ours: bytes | None
    pristine: bytes | None
    note: str = ""


@dataclass(frozen=True)
class Tree:
    """A venv under a set. `state` as in `patchset.set_state`, or wrong-version, or absent."""

    site: Path | None
    version: str | None
    state: str
    changes: tuple[Change, ...] = ()
    stale: tuple[str, ...] = ()  # files of an older set that this one no longer has
    left_out: tuple[str, ...] = ()
    reason: str = ""
    series: Series | None = field(default=None)


def read_set(folder: Path) -> PatchSet:
    """Read and check a set's own files; PatchSetError if one is not what series.json says."""
    try:
        series = patchset.parse_series(json.loads((folder / "series.json").read_text()))
    except (OSError, ValueError) as error:
        raise PatchSetError(f"patch set {folder}: cannot read series.json: {error}") from error
    hunks: dict[str, tuple[patchset.Hunk, ...]] = {}
    for patch in series.patches:
        data = read(folder / patch.file)
        if data is None or patchset.sha256(data) != patch.sha256:
            raise PatchSetError(
                f"patch set {folder}: {patch.file} is not the file that series.json names; "
                "get the folder again, or seal it after an edit"
            )
        parsed = patchset.parse_patch(data.decode())
        if set(parsed) != {edit.path for edit in patch.edits}:
            raise PatchSetError(
                f"{patch.file}: touches {sorted(parsed)}, not what series.json says"
            )
        hunks |= parsed
    new: dict[str, bytes] = {}
    for path, digest in series.new.items():
        data = read(folder / "new" / path)
        if data is None or patchset.sha256(data) != digest:
            raise PatchSetError(f"patch set {folder}: new/{path} is not the file in series.json")
        new[path] = data
    return PatchSet(folder, series, hunks, new)


def site_packages(venv: Path) -> Path:
    """VENV/lib/python3.X/site-packages; raises PatchSetError if there is not exactly one."""
    found = sorted(venv.glob("lib/python3.*/site-packages"))
    if len(found) != 1:
        raise PatchSetError(f"{venv}: expected a venv with one lib/python3.X/site-packages")
    return found[0]


def installed_version(site: Path, distribution: str) -> str | None:
    """Version of a distribution in `site`, from its dist-info's name; None if it is not there."""
    stem = distribution.replace("-", "_")
    found = sorted(site.glob(f"{stem}-*.dist-info"))
    if len(found) > 1:
        raise PatchSetError(f"{site}: {distribution} is installed twice: {[f.name for f in found]}")
    return found[0].name.removeprefix(f"{stem}-").removesuffix(".dist-info") if found else None


def sees_system_packages(venv: Path) -> bool:
    """Whether the venv also takes packages of the Python that it was made from."""
    text = read(venv / "pyvenv.cfg") or b""
    return b"include-system-site-packages = true" in text.lower()


def inspect(chosen: PatchSet, venv: Path) -> Tree:
    """How the venv stands under the set; reads only."""
    if not venv.is_dir():
        return Tree(None, None, "absent", reason=f"{venv} is not there yet")
    site = site_packages(venv)
    series = chosen.series
    version = installed_version(site, series.distribution)
    left_out: tuple[str, ...] = ()
    if version is None and sees_system_packages(venv):
        # The owner's packages stay as they are: only files of our own are added, in the venv.
        version = _system_version(venv, series.distribution)
        needed = [patch.file for patch in series.patches if patch.required]
        if needed:
            return Tree(site, version, "foreign", reason=f"{needed} would change system packages")
        left_out = tuple(patch.file for patch in series.patches)
        series = series.without_optional_patches()
    if version != series.version:
        found = "is not installed" if version is None else f"is {version}"
        reason = (
            f"the set {series.name} fits {series.distribution} == {series.version}; in {venv} it "
            f"{found}: install {series.distribution}=={series.version}, or choose another set"
        )
        return Tree(site, version, "wrong-version", reason=reason)
    recorded = _recorded(venv)
    changes = [
        _edit_change(site, chosen, recorded, edit)
        for patch in series.patches
        for edit in patch.edits
    ]
    changes += [_new_change(site, path, chosen.new[path], recorded) for path in series.new]
    stale = _stale(site, recorded, series)
    state = patchset.set_state(change.state for change in changes)
    if state == "applied" and (stale or not _same_record(recorded, series)):
        state = "partial"
    return Tree(site, version, state, tuple(changes), stale, left_out, series=series)


def _system_version(venv: Path, distribution: str) -> str | None:
    code = (
        "import importlib.metadata as m, sys\n"
        "try: print(m.version(sys.argv[1]))\n"
        "except m.PackageNotFoundError: pass"
    )
    python = venv / "bin" / "python"
    run = subprocess.run(
        [python, "-c", code, distribution], capture_output=True, text=True, check=False
    )
    return run.stdout.strip() or None


def _recorded(venv: Path) -> PatchSet | None:
    """The set that was applied last, without its added files' contents; None if none was."""
    folder = venv / RECORD
    try:
        series = patchset.parse_series(json.loads((folder / "series.json").read_text()))
        hunks: dict[str, tuple[patchset.Hunk, ...]] = {}
        for patch in series.patches:
            hunks |= patchset.parse_patch((folder / patch.file).read_text())
    except (OSError, ValueError, PatchSetError):
        return None
    return PatchSet(folder, series, hunks, {})


def _same_record(recorded: PatchSet | None, series: Series) -> bool:
    return recorded is not None and (recorded.series.patches, dict(recorded.series.new)) == (
        series.patches,
        dict(series.new),
    )


def _edit_change(
    site: Path, chosen: PatchSet, recorded: PatchSet | None, edit: patchset.Edit
) -> Change:
    found = read(site / edit.path)
    digest = None if found is None else patchset.sha256(found)
    older = {
        old.after: recorded.hunks[old.path]
        for patch in (recorded.series.patches if recorded else ())
        for old in patch.edits
        if recorded and old.path == edit.path and old.before == edit.before
    }
    state = patchset.file_state(digest, edit.before, edit.after, older)
    hunks = chosen.hunks[edit.path]
    if found is None or state is FileState.FOREIGN:
        note = (
            f"{edit.path} is missing\n"
            if found is None
            else patchset.foreign_edit_diff(edit.path, found.decode(errors="replace"), hunks)
        )
        return Change(edit.path, FileState.FOREIGN, found, None, None, note)
    text = found.decode()
    match state:
        case FileState.OURS:
            pristine = patchset.apply_hunks(text, hunks, reverse=True)
        case FileState.OLDER:
            pristine = patchset.apply_hunks(text, older[str(digest)], reverse=True)
        case _:
            pristine = text
    ours = patchset.apply_hunks(pristine, hunks)
    for what, data, expected in (("before", pristine, edit.before), ("after", ours, edit.after)):
        if patchset.sha256(data.encode()) != expected:
            raise PatchSetError(f"{edit.path}: the patch does not give the {what} of series.json")
    return Change(edit.path, state, found, ours.encode(), pristine.encode())


def _new_change(site: Path, path: str, ours: bytes, recorded: PatchSet | None) -> Change:
    found = read(site / path)
    older = [recorded.series.new[path]] if recorded and path in recorded.series.new else []
    digest = None if found is None else patchset.sha256(found)
    state = patchset.file_state(digest, None, patchset.sha256(ours), older)
    note = ""
    if state is FileState.FOREIGN and found is not None:
        note = patchset.unified(path, _text(ours), _text(found))
    return Change(path, state, found, ours, None, note)


def _stale(site: Path, recorded: PatchSet | None, series: Series) -> tuple[str, ...]:
    """Files that an older set added, that are still as it left them, and that this set lacks."""
    if recorded is None:
        return ()
    gone = {path: sha for path, sha in recorded.series.new.items() if path not in series.new}
    return tuple(
        path
        for path, sha in gone.items()
        if (found := read(site / path)) is not None and patchset.sha256(found) == sha
    )


def diff(tree: Tree, *, back: bool = False) -> str:
    """What apply (or reverse) would change, as one unified diff."""
    parts = []
    for change in tree.changes:
        wanted = change.pristine if back else change.ours
        if change.state is FileState.FOREIGN or change.found == wanted:
            continue
        parts.append(
            patchset.unified(
                change.path,
                _text(change.found or b""),
                _text(wanted or b""),
                added=change.found is None,
                removed=wanted is None,
            )
        )
    return "".join(parts)


def describe(chosen: PatchSet, tree: Tree, *, with_diff: bool = False) -> dict[str, Any]:
    """The status as plain data: set, version, state, files that are not ours, notes."""
    document = {
        "set": chosen.series.name,
        "fits": f"{chosen.series.distribution} == {chosen.series.version}",
        "version": tree.version,
        "state": tree.state,
        "reason": tree.reason,
        "left_out": list(tree.left_out),
        "stale": list(tree.stale),
        "files": {c.path: c.state.value for c in tree.changes if c.state is not FileState.OURS},
        "foreign": {c.path: c.note for c in tree.changes if c.state is FileState.FOREIGN},
        "digest": digest(chosen.series),
    }
    return document | ({"diff": diff(tree)} if with_diff else {})


def digest(series: Series) -> str:
    """Names the set's content: sha256 over the hashes of its patches and files, 12 digits."""
    parts = [p.sha256 for p in series.patches]
    parts += [f"{path}={sha}" for path, sha in sorted(series.new.items())]
    return patchset.sha256("\n".join(parts).encode())[:12]


def read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")
