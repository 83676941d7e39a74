"""What goes into a kit besides the result: the code, pins and units that were measured.

The command line of :mod:`operations.kit`. Sources are taken from this checkout, and only if they
are what the result was measured with: the result carries their hashes.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from operations import artifacts
from operations.artifacts import Tree
from operations.bench_config import harness_hash
from operations.kit import KitError, build_kit, kit_name, write_kit
from operations.plan import PlanError, ServingPlan
from operations.release import build, fingerprint, layout_of
from operations.results import BenchResult, ResultError, read_result
from operations.wanted import Wanted

ReadFile = Callable[[str], bytes | None]


def gather(result: BenchResult, wanted: Wanted | None = None) -> dict[str, bytes]:
    """Harness, engine or patch set, pins, and the release as it is rendered, by path in the kit.

    Without ``wanted`` the release is rendered with its defaults (service name ``ddtree``).
    """
    tree = artifacts.sources()
    kept = tree.below("hostkit/").files
    engine, patch_set = result.engine, result.plan.get("patch_set")
    if engine == "reference":
        kept = {**kept, **tree.below("refserver/", "drafters/").files}
    if patch_set:
        applier = ("patches/apply.py", "patches/patchset.py", "patches/patchtree.py")
        kept = {**kept, **tree.below(*applier, f"patches/{patch_set}/").files}
    files = {f"sources/{name}": data for name, data in kept.items()}
    for lock in (str(result.plan.get("lock") or ""), "tools"):
        if lock and artifacts.lock_path(lock).is_file():
            files[f"stack/{lock}.lock"] = artifacts.lock_text(lock)
    return files | release_files(result, wanted)


def release_files(result: BenchResult, wanted: Wanted | None = None) -> dict[str, bytes]:
    """launch.json, service.env and the unit of the plan; nothing if the result has no full plan.

    The release bears the name of the venv that was measured, which ``wanted`` alone may not know.
    """
    try:
        plan = ServingPlan.from_json(result.plan)
    except (PlanError, KeyError, TypeError):
        return {}
    wanted = wanted or Wanted(group=plan.group, target=plan.target.source)
    layout = layout_of(plan, wanted)
    layout = replace(layout, venv_hash=str(result.versions.get("venv") or layout.venv_hash))
    layout = replace(layout, release=fingerprint(plan, wanted, layout))
    release = build(plan, wanted, layout)
    files = {f"release/{n}": t.encode() for n, t in release.files.items() if n != "plan.json"}
    files[f"units/{release.service_file.rpartition('/')[2]}"] = release.service_text.encode()
    return files


def stale_parts(result: BenchResult, tree: Tree | None = None) -> list[str]:
    """Which sources here are not those that were measured, by the hashes in the result."""
    tree = tree or artifacts.sources()
    code = artifacts.service_code(tree, result.engine, result.plan.get("patch_set"))
    now = {"code": code, "harness": harness_hash()}
    measured = {name: result.versions.get(name) for name in now}
    return [
        f"{name}: measured with {measured[name]}, this checkout has {now[name]}"
        for name in now
        if measured[name] is not None and measured[name] != now[name]
    ]


def patched_sources(series: Mapping[str, Any], read: ReadFile) -> dict[str, bytes]:
    """The files that the patch set changes, as they result, under ``patched/``.

    ``series`` is series.json, ``read`` gives a file of site-packages by its path. Raises
    :class:`KitError` when a file is not what the series says it must be after patching.
    """
    files = {}
    edits = [edit for patch in series.get("patches", ()) for edit in patch.get("edits", ())]
    final = {edit["path"]: edit["after"] for edit in edits}
    for path, after in sorted(final.items()):
        data = read(path)
        if data is None or hashlib.sha256(data).hexdigest() != after:
            raise KitError(
                f"expected {path} as patch set {series.get('name')} leaves it, found "
                f"{'no such file' if data is None else 'other content'}; apply the set first"
            )
        files[f"patched/{path}"] = data
    return files


def slim(files: Mapping[str, bytes]) -> dict[str, bytes]:
    """``files`` without ``sources/``, whose hashes go to ``sources.sha256``."""
    sums = "".join(
        f"{hashlib.sha256(data).hexdigest()}  {name}\n"
        for name, data in sorted(files.items())
        if name.startswith("sources/")
    )
    kept = {name: data for name, data in files.items() if not name.startswith("sources/")}
    return kept | {"sources.sha256": sums.encode()}


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m operations.kit",
        description="Builds a reproduction kit of a benchmark result, with what was measured.",
    )
    commands = parser.add_subparsers(dest="command", required=True)
    build_it = commands.add_parser("build", help="one folder: KITS/<group>-<fingerprint>")
    build_it.add_argument("result", type=Path, metavar="RESULT.json")
    build_it.add_argument(
        "--out",
        type=Path,
        default=Path("kits"),
        metavar="FOLDER",
        help="where the kit's folder goes (default %(default)s)",
    )
    build_it.add_argument("--venv", type=Path, help="patched engine venv, for the changed files")
    build_it.add_argument(
        "--other-sources",
        action="store_true",
        help="build although this checkout is not what was measured; REPRODUCE.md says so",
    )
    build_it.add_argument(
        "--slim",
        action="store_true",
        help="leave sources/ out, with the built-in drafter 9 MB; their hashes stay",
    )
    given = parser.parse_args(argv)
    try:
        folder = _build(given)
    except (ResultError, KitError) as error:
        print(error, file=sys.stderr)
        return 1
    print(f"kit: {folder} (check it with: python {folder / 'verify.py'})")
    return 0


def _build(given: argparse.Namespace) -> Path:
    result = read_result(given.result)
    stale = stale_parts(result)
    if stale and not given.other_sources:
        raise KitError(
            f"expected the sources that were measured, found others ({'; '.join(stale)}); "
            "check out the commit of the measurement, or add --other-sources"
        )
    files = gather(result)
    notes = [f"The sources in this kit are not those that were measured: {s}." for s in stale]
    if given.slim:
        files = slim(files)
    patch_set = result.plan.get("patch_set")
    if patch_set and given.venv:
        series = artifacts.FILES / "patches" / str(patch_set) / "series.json"
        files |= patched_sources(
            json.loads(series.read_text(encoding="utf-8")), _site_packages(given.venv)
        )
    folder = Path(given.out) / kit_name(result)
    folder.parent.mkdir(parents=True, exist_ok=True)
    write_kit(build_kit(result, files, notes), folder)
    return folder


def _site_packages(venv: Path) -> ReadFile:
    folders = sorted(venv.glob("lib/python3*/site-packages"))

    def read(path: str) -> bytes | None:
        found = [folder / path for folder in folders if (folder / path).is_file()]
        return found[0].read_bytes() if found else None

    return read
