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
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from patchset import FileState, PatchSetError, Series
from patchtree import RECORD, PatchSet, Tree, describe, inspect, read_set

STAGED = ".ddtree-new"


def apply(chosen: PatchSet, venv: Path) -> tuple[str, ...]:
    """Bring the venv to the set; returns the paths written or removed, none if it was there."""
    tree = _checked(inspect(chosen, venv))
    assert tree.site is not None and tree.series is not None
    _sweep(tree)
    if tree.state == "applied":
        return ()
    wanted = {c.path: c.ours for c in tree.changes if c.state is not FileState.OURS}
    wanted |= dict.fromkeys(tree.stale)
    _replace(tree.site, wanted)
    _write_record(chosen, tree.series, venv)
    return tuple(wanted)


def reverse(chosen: PatchSet, venv: Path) -> tuple[str, ...]:
    """Take the set out byte for byte; returns the paths written or removed."""
    tree = _checked(inspect(chosen, venv))
    assert tree.site is not None
    _sweep(tree)
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


def _sweep(tree: Tree) -> None:
    """Remove what a killed run staged and did not rename."""
    assert tree.site is not None
    for path in (*(change.path for change in tree.changes), *tree.stale):
        target = tree.site / path
        staged = target.with_name(target.name + STAGED)
        if staged.exists():
            staged.unlink()
            _drop_empty(tree.site, target.parent)


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
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
