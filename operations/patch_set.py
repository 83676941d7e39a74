"""Patch sets in this repository: read, seal after an edit, export from an edited tree.

A set's folder holds series.yaml (for people: what, why, upstream state) and series.json (the same,
for hosts, which need no YAML). Both are written by `seal`; the applier that hosts run is
files/patches/apply.py, and everything here goes through it.
"""

from __future__ import annotations

import base64
import csv
import hashlib
import importlib
import io
import json
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import yaml

from operations.artifacts import FILES

FOLDER = FILES / "patches"
ADDED = ("sglang_ddtree",)  # what the set adds to site-packages: packages, and their dist-info
HEADER = """\
# Written by `python -m operations.patches seal`, which fills in the hashes; edit what, upstream,
# drop_when and required by hand. series.json is the same for hosts, which have no YAML.
"""


def applier(module: str = "apply") -> ModuleType:
    """A module of files/patches: the one implementation, here and on hosts."""
    if str(FOLDER) not in sys.path:
        sys.path.insert(0, str(FOLDER))
    return importlib.import_module(module)


def folder_of(series: str) -> Path:
    """The folder of a set; raises ValueError with the sets that there are."""
    folder = FOLDER / series
    if not (folder / "series.yaml").is_file():
        known = sorted(p.parent.name for p in FOLDER.glob("*/series.yaml"))
        raise ValueError(f"patch set: expected one of {known}, found {series!r}")
    return folder


@dataclass(frozen=True)
class WantedSet:
    """A set as this repository has it; `digest` names its content, as the applier reports it."""

    folder: Path
    digest: str

    def as_diff(self) -> str:
        """The whole set as one unified diff: for a host that has nothing of it yet."""
        document = json.loads((self.folder / "series.json").read_text())
        parts = [(self.folder / patch["file"]).read_text() for patch in document["patches"]]
        unified = applier("patchset").unified
        parts += [
            unified(path, "", (self.folder / "new" / path).read_text(), added=True)
            for path in document["new"]
        ]
        return "".join(parts)


def load(series: str) -> WantedSet:
    """A set of this repository, checked against its series.json."""
    folder = folder_of(series)
    tree = applier("patchtree")
    return WantedSet(folder, tree.digest(tree.read_set(folder).series))


def split_diff(text: str) -> list[tuple[str, str]]:
    """(path, diff) of each file in a unified diff, without what stands above the first one."""
    parts = ("\n" + text).split("\n--- ")[1:]
    found = []
    for part in parts:
        lines = part.split("\n")
        old, new = lines[0], lines[1].removeprefix("+++ ")
        path = (old if new.startswith("/dev/null") else new).split("\t")[0]
        found.append((path.removeprefix("a/").removeprefix("b/"), f"--- {part}"))
    return found


def seal(folder: Path) -> dict[str, Any]:
    """Bring series.yaml and series.json to the files beside them; returns the document.

    The patches' `edits` (sha256 before and after) stay as they are: only `export`, which has the
    release's files, can make them.
    """
    document: dict[str, Any] = yaml.safe_load((folder / "series.yaml").read_text())
    for patch in document["patches"]:
        patch["sha256"] = _sha256((folder / patch["file"]).read_bytes())
    write_record(folder / "new")
    document["new"] = {
        path.relative_to(folder / "new").as_posix(): _sha256(path.read_bytes())
        for path in added_files(folder / "new")
    }
    _write(folder, document)
    return document


def _write(folder: Path, document: Mapping[str, Any]) -> None:
    text = yaml.safe_dump(dict(document), sort_keys=False, width=100, allow_unicode=True)
    (folder / "series.yaml").write_text(HEADER + text)
    (folder / "series.json").write_text(json.dumps(document, indent=1) + "\n")


def added_files(root: Path) -> list[Path]:
    """The files that a set adds, below `root`, without byte code."""
    found = [p for name in ADDED for p in root.glob(f"{name}*/**/*")]
    return sorted(p for p in found if p.is_file() and "__pycache__" not in p.parts)


def write_record(root: Path) -> None:
    """The RECORD of each added dist-info, as installers write it, so that tools can list it."""
    for info in sorted(root.glob("*.dist-info")):
        rows = [
            (path.relative_to(root).as_posix(), f"sha256={_urlsafe(data)}", str(len(data)))
            for path in added_files(root)
            if path.name != "RECORD"
            for data in [path.read_bytes()]
        ]
        rows.append((f"{info.name}/RECORD", "", ""))
        text = io.StringIO()
        csv.writer(text, lineterminator="\n").writerows(rows)
        (info / "RECORD").write_text(text.getvalue())


def export(folder: Path, venv: Path, wheel: Path) -> list[str]:
    """Remake the set from a venv in which its files were edited; returns what was written.

    `wheel`: the release's wheel, for the text before. A changed upstream file stays in the patch
    that has it, a newly changed one goes into a patch of its own, whose words are then to be
    written in series.yaml. Raises ValueError if the wheel is another release.
    """
    document: dict[str, Any] = yaml.safe_load((folder / "series.yaml").read_text())
    site = applier("patchtree").site_packages(venv)
    expected = f"{document['distribution']}-{document['version']}-"
    if not wheel.name.startswith(expected):
        raise ValueError(f"export: expected the wheel {expected}*.whl, found {wheel.name}")
    written = []
    with zipfile.ZipFile(wheel) as archive:
        changed = _changed(archive, site)
        owner = {edit["path"]: patch for patch in document["patches"] for edit in patch["edits"]}
        for path in sorted(set(changed) - set(owner)):
            number = len(document["patches"]) + 1
            patch = _new_patch(f"{number:04d}-{Path(path).stem.replace('_', '-')}.patch", path)
            document["patches"].append(patch)
            owner[path] = patch
        for patch in document["patches"]:
            paths = [edit["path"] for edit in patch["edits"] if edit["path"] in changed]
            _write_patch(folder / patch["file"], {p: changed[p] for p in paths}, patch)
            written.append(patch["file"])
    for file in added_files(site):
        target = folder / "new" / file.relative_to(site)
        target.parent.mkdir(parents=True, exist_ok=True)
        if not target.exists() or target.read_bytes() != file.read_bytes():
            target.write_bytes(file.read_bytes())
            written.append(f"new/{file.relative_to(site).as_posix()}")
    _write(folder, document)
    seal(folder)
    return written


def _new_patch(file: str, path: str) -> dict[str, Any]:
    return {
        "file": file,
        "sha256": "",
        "what": "to be written",
        "upstream": "not sent",
        "drop_when": "to be written",
        "required": True,
        "edits": [{"path": path, "before": "", "after": ""}],
    }


def _changed(archive: zipfile.ZipFile, site: Path) -> dict[str, tuple[str, str]]:
    """(text before, text now) of each file of the wheel that differs in the tree."""
    found: dict[str, tuple[str, str]] = {}
    for name in archive.namelist():
        path = site / name
        if ".dist-info/" in name or not path.is_file():
            continue
        before, now = archive.read(name), path.read_bytes()
        if before != now:
            found[name] = before.decode(), now.decode()
    return found


def _write_patch(target: Path, texts: Mapping[str, tuple[str, str]], patch: dict[str, Any]) -> None:
    """Keep the patch's words above its first file, and write its diffs and hashes anew."""
    words = target.read_text().split("--- a/", 1)[0] if target.exists() else ""
    unified = applier("patchset").unified
    target.write_text(words + "".join(unified(p, *both) for p, both in sorted(texts.items())))
    patch["edits"] = [
        {"path": p, "before": _sha256(old.encode()), "after": _sha256(new.encode())}
        for p, (old, new) in sorted(texts.items())
    ]


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _urlsafe(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
