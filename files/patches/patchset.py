"""What a patch set is, and the state of a tree under it. Pure, standard library only.

A set is a folder with series.json (made from series.yaml by `python -m operations.patches seal`),
the patches of upstream files, and new/ with the files that the set adds. The state of a file comes
from its sha256 alone, so it is the same question before a run, after a kill, and a year later.
"""

from __future__ import annotations

import difflib
import hashlib
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any


class PatchSetError(Exception):
    """What was expected, what was found, and what to do; one or a few lines."""


class FileState(StrEnum):
    """A file under a set: as upstream ships it, as the set makes it, by an older set, by others."""

    PRISTINE = "pristine"
    OURS = "ours"
    OLDER = "older"
    FOREIGN = "foreign"


@dataclass(frozen=True)
class Edit:
    """One upstream file that a patch changes, by its path below site-packages."""

    path: str
    before: str
    after: str


@dataclass(frozen=True)
class Patch:
    """One patch file. A patch that is not `required` is left out where it cannot be applied."""

    file: str
    sha256: str
    what: str
    upstream: str
    drop_when: str
    required: bool
    edits: tuple[Edit, ...]


@dataclass(frozen=True)
class Series:
    """A patch set: fits one distribution at one version; `new`: sha256 by path."""

    name: str
    distribution: str
    version: str
    patches: tuple[Patch, ...]
    new: Mapping[str, str]

    def without_optional_patches(self) -> Series:
        kept = tuple(patch for patch in self.patches if patch.required)
        return Series(self.name, self.distribution, self.version, kept, self.new)


@dataclass(frozen=True)
class Hunk:
    """Lines (ends included) at 1-based line `start` of the old file, and what replaces them."""

    start: int
    old: tuple[str, ...]
    new: tuple[str, ...]


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def parse_series(document: Mapping[str, Any]) -> Series:
    """Read series.json's or series.yaml's content; raises PatchSetError where it is malformed."""
    try:
        patches = tuple(
            Patch(
                file=str(p["file"]),
                sha256=str(p["sha256"]),
                what=str(p["what"]),
                upstream=str(p["upstream"]),
                drop_when=str(p["drop_when"]),
                required=bool(p["required"]),
                edits=tuple(
                    Edit(_inside(e["path"]), str(e["before"]), str(e["after"])) for e in p["edits"]
                ),
            )
            for p in document["patches"]
        )
        new = {_inside(path): str(digest) for path, digest in document["new"].items()}
        series = Series(
            name=str(document["name"]),
            distribution=str(document["distribution"]),
            version=str(document["version"]),
            patches=patches,
            new=new,
        )
    except (KeyError, TypeError, AttributeError) as error:
        raise PatchSetError(f"series: expected the fields of a patch set, {error!r}") from error
    touched = [e.path for p in patches for e in p.edits] + list(new)
    twice = sorted({path for path in touched if touched.count(path) > 1})
    if twice:
        raise PatchSetError(f"series {series.name}: each file once, found twice: {twice}")
    return series


def _inside(path: str) -> str:
    parts = str(path).split("/")
    if not path or path.startswith("/") or ".." in parts or "" in parts:
        raise PatchSetError(f"series: expected paths below site-packages, found {path!r}")
    return str(path)


def file_state(
    found: str | None, before: str | None, after: str, older: Iterable[str] = ()
) -> FileState:
    """State of a file whose sha256 is `found` (None: absent).

    `before`: sha256 as upstream ships it, None for a file that the set adds. `older`: sha256s that
    an earlier version of the set left.
    """
    if found == after:
        return FileState.OURS
    if found == before:
        return FileState.PRISTINE
    return FileState.OLDER if found is not None and found in older else FileState.FOREIGN


def set_state(states: Iterable[FileState]) -> str:
    """applied, pristine, foreign, outdated, or partial (an interrupted run: run again)."""
    found = set(states)
    if FileState.FOREIGN in found:
        return "foreign"
    if found <= {FileState.OURS}:
        return "applied"
    if found == {FileState.PRISTINE}:
        return "pristine"
    return "outdated" if FileState.OLDER in found else "partial"


_FILE = re.compile(r"^\+\+\+ (?:b/)?([^\t\n]+)")
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@")


def lines_of(text: str) -> list[str]:
    """Lines with their ends; only a newline ends a line (a form feed in a source does not)."""
    parts = text.split("\n")
    lines = [f"{part}\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def parse_patch(text: str) -> dict[str, tuple[Hunk, ...]]:
    """Hunks of a unified diff by path; raises PatchSetError on a count that does not fit."""
    found: dict[str, list[Hunk]] = {}
    path = ""
    lines = lines_of(text)
    at = 0
    while at < len(lines):
        if head := _FILE.match(lines[at]):
            path = head.group(1)
            found[path] = []
        elif head := _HUNK.match(lines[at]):
            start = int(head.group(1))
            counts = int(head.group(2) or "1"), int(head.group(4) or "1")
            start += counts[0] == 0  # "-N,0" stands for the place after line N
            hunk, at = _read_hunk(lines, at + 1, start, counts)
            found[path].append(hunk)
            continue
        at += 1
    return {path: tuple(hunks) for path, hunks in found.items()}


def _read_hunk(lines: list[str], at: int, start: int, counts: tuple[int, int]) -> tuple[Hunk, int]:
    old: list[str] = []
    new: list[str] = []
    last: tuple[list[str], ...] = ()
    while at < len(lines) and lines[at][0] in " +-\\":
        mark, rest = lines[at][0], lines[at][1:]
        if mark == "\\":  # no newline at the end of the file
            for side in last:
                side[-1] = side[-1].removesuffix("\n")
        elif (len(old), len(new)) == counts:
            break
        else:
            last = {" ": (old, new), "-": (old,), "+": (new,)}[mark]
            for side in last:
                side.append(rest)
        at += 1
    if (len(old), len(new)) != counts:
        raise PatchSetError(f"patch: hunk at line {start} says {counts}, has {len(old), len(new)}")
    return Hunk(start, tuple(old), tuple(new)), at


def apply_hunks(text: str, hunks: Iterable[Hunk], *, reverse: bool = False) -> str:
    """`text` with the hunks applied at exactly their lines: no fuzz, no offset.

    `reverse` takes a patched text back. Raises PatchSetError at the first hunk that does not fit.
    """
    lines = lines_of(text)
    shift = 0
    for hunk in hunks:
        old, new = (hunk.new, hunk.old) if reverse else (hunk.old, hunk.new)
        at = hunk.start - 1 + (0 if reverse else shift)
        if tuple(lines[at : at + len(old)]) != old:
            raise PatchSetError(f"patch: the lines at {at + 1} are not those that it expects")
        lines[at : at + len(old)] = new
        shift += len(new) - len(old)
    return "".join(lines)


def unified(path: str, old: str, new: str, *, added: bool = False, removed: bool = False) -> str:
    """A unified diff as git writes it, empty if nothing differs."""
    diff = difflib.unified_diff(
        lines_of(old),
        lines_of(new),
        "/dev/null" if added else f"a/{path}",
        "/dev/null" if removed else f"b/{path}",
    )
    return "".join(
        line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n" for line in diff
    )


def foreign_edit_diff(path: str, text: str, hunks: Iterable[Hunk]) -> str:
    """Where a foreign upstream file differs from the lines that the patch expects."""
    lines = lines_of(text)
    parts = []
    for hunk in hunks:
        found = lines[hunk.start - 1 : hunk.start - 1 + len(hunk.old)]
        if tuple(found) not in (hunk.old, hunk.new):
            parts.append(unified(path, "".join(hunk.old), "".join(found)))
    return "".join(parts) or f"{path}: differs from the release outside the patched lines\n"
