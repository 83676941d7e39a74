#!/usr/bin/env python3
"""Apply a patch set to a venv, take it back, or say how they stand. Standard library only.

    python apply.py [--json] [--diff] status|apply|reverse SET VENV

SET is a folder such as sglang-0.5.16 beside this file. Run it with any Python >= 3.11; the venv's
own interpreter is only asked where its packages lie when the usual place does not show them.

All checks come before any write. A file is never changed in place (installers hard-link
site-packages to their cache): the new content is written beside it, then renamed over it. Each
file's state comes from its hash, so whatever a killed run left is told apart and finished, or taken
back, by the next one. Exit 0 when the wanted state is reached, 1 with one reason otherwise.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import patchset
from patchset import FileState, PatchSetError, Series

RECORD = "ddtree-patches"  # VENV/ddtree-patches: the set that was applied last, with its patches
STAGED = ".ddtree-new"


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
        data = _read(folder / patch.file)
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
        data = _read(folder / "new" / path)
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
    text = _read(venv / "pyvenv.cfg") or b""
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
    import subprocess

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
    found = _read(site / edit.path)
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
    found = _read(site / path)
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
        if (found := _read(site / path)) is not None and patchset.sha256(found) == sha
    )


def apply(chosen: PatchSet, venv: Path) -> tuple[str, ...]:
    """Bring the venv to the set; returns the paths written or removed, none if it was there."""
    tree = _checked(inspect(chosen, venv))
    if tree.state == "applied":
        return ()
    assert tree.site is not None and tree.series is not None
    wanted = {c.path: c.ours for c in tree.changes if c.state is not FileState.OURS}
    wanted |= dict.fromkeys(tree.stale)
    _replace(tree.site, wanted)
    _write_record(chosen, tree.series, venv)
    return tuple(wanted)


def reverse(chosen: PatchSet, venv: Path) -> tuple[str, ...]:
    """Take the set out byte for byte; returns the paths written or removed."""
    tree = _checked(inspect(chosen, venv))
    assert tree.site is not None
    wanted = {c.path: c.pristine for c in tree.changes if c.state is not FileState.PRISTINE}
    wanted |= dict.fromkeys(tree.stale)
    _replace(tree.site, wanted)
    shutil.rmtree(venv / RECORD, ignore_errors=True)
    return tuple(wanted)


def _checked(tree: Tree) -> Tree:
    if tree.state in ("absent", "wrong-version") or tree.reason:
        raise PatchSetError(tree.reason)
    foreign = [change for change in tree.changes if change.state is FileState.FOREIGN]
    if foreign:
        shown = "".join(change.note for change in foreign)
        raise PatchSetError(
            f"{len(foreign)} file(s) are neither the release's nor this set's, nothing was "
            f"changed: {', '.join(c.path for c in foreign)}; reinstall the package, or move the "
            f"files away\n{shown}"
        )
    return tree


def _replace(site: Path, wanted: Mapping[str, bytes | None]) -> None:
    """Write all new contents beside their files, then rename or remove; None removes."""
    for path, data in wanted.items():
        if data is None:
            continue
        target = site / path
        target.parent.mkdir(parents=True, exist_ok=True)
        staged = target.with_name(target.name + STAGED)
        with staged.open("wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        staged.chmod(target.stat().st_mode & 0o7777 if target.exists() else 0o644)
    for path, data in wanted.items():
        target = site / path
        if data is None:
            target.unlink(missing_ok=True)
            _drop_empty(site, target.parent)
        else:
            target.with_name(target.name + STAGED).replace(target)


def _drop_empty(site: Path, folder: Path) -> None:
    """Remove folders that the set emptied, with the byte code and staged files left in them."""
    while folder != site and folder.is_dir():
        left = list(folder.iterdir())
        if any(not _byproduct(entry) for entry in left):
            return
        shutil.rmtree(folder)
        folder = folder.parent


def _byproduct(entry: Path) -> bool:
    return entry.name == "__pycache__" or entry.name.endswith(STAGED)


def _write_record(chosen: PatchSet, series: Series, venv: Path) -> None:
    """Keep the applied set's definition in the venv, series.json last."""
    folder = venv / RECORD
    folder.mkdir(exist_ok=True)
    document = json.loads((chosen.folder / "series.json").read_text())
    kept = {patch.file for patch in series.patches}
    document["patches"] = [p for p in document["patches"] if p["file"] in kept]
    names = [*sorted(kept), "series.json"]
    for name in names:
        data = (
            json.dumps(document, indent=1).encode()
            if name == "series.json"
            else (chosen.folder / name).read_bytes()
        )
        staged = folder / f"{name}{STAGED}"
        staged.write_bytes(data)
        staged.replace(folder / name)


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


def _read(path: Path) -> bytes | None:
    try:
        return path.read_bytes()
    except (FileNotFoundError, NotADirectoryError):
        return None


def _text(data: bytes) -> str:
    return data.decode(errors="replace")


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description="Apply, reverse or show a patch set in a venv.")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--diff", action="store_true", help="status: add what apply would change")
    parser.add_argument("command", choices=("status", "apply", "reverse"))
    parser.add_argument("set", type=Path, help="folder of the patch set")
    parser.add_argument("venv", type=Path)
    args = parser.parse_args(argv)
    try:
        chosen = read_set(args.set)
        changed: tuple[str, ...] = ()
        if args.command == "apply":
            changed = apply(chosen, args.venv)
        elif args.command == "reverse":
            changed = reverse(chosen, args.venv)
        document = describe(chosen, inspect(chosen, args.venv), with_diff=args.diff)
    except (PatchSetError, OSError) as error:
        print(f"patches: {error}", file=sys.stderr)
        return 1
    document["changed"] = list(changed)
    if args.json:
        print(json.dumps(document))
    else:
        print(_summary(document))
    return 0


def _summary(document: Mapping[str, Any]) -> str:
    lines = [f"{document['set']} ({document['fits']}): {document['state']}"]
    lines += [f"  {state:9} {path}" for path, state in document["files"].items()]
    lines += [f"  left out  {name}" for name in document["left_out"]]
    lines += [f"  changed   {path}" for path in document["changed"]]
    lines += [document[key] for key in ("reason", "diff") if document.get(key)]
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
