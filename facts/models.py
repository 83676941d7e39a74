"""Models on a host: stamped, on their way, or absent; and the room there is for them.

One remote command for all models of a plan. The shell prints `name<TAB>value` lines, which
`parse` turns into frozen dataclasses; it needs nothing on the host but POSIX sh.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

from pyinfra.api.facts import FactBase


@dataclass(frozen=True)
class Job:
    """The last status that a download wrote; bytes, bytes a second, seconds. None is unknown."""

    state: str
    message: str
    bytes_done: int | None
    bytes_total: int | None
    rate: float | None
    eta_s: float | None


@dataclass(frozen=True)
class ModelState:
    """One model: its stamp's revision, whether its folder is there, whether a job is at work."""

    key: str
    present: bool
    stamped: str | None
    job: Job | None
    running: bool

    @property
    def settled(self) -> bool:
        """Stamped by a verification, and as many bytes still there."""
        return self.present and self.stamped is not None


@dataclass(frozen=True)
class ModelsState:
    """All models asked for; what else lies there; what the mount has left (None: unknown).

    `folders` are all revision folders under PREFIX/models, as `NAME/REVISION`.
    """

    models: tuple[ModelState, ...] = ()
    folders: tuple[str, ...] = ()
    free_bytes: int | None = None
    free_inodes: int | None = None

    def of(self, key: str) -> ModelState:
        """The state of one model; of one that the host said nothing about: absent."""
        absent = ModelState(key, present=False, stamped=None, job=None, running=False)
        return next((model for model in self.models if model.key == key), absent)


@dataclass(frozen=True)
class Revision:
    """A revision folder under PREFIX/models: `size_bytes` as allocated on disk."""

    name: str
    revision: str
    size_bytes: int
    stamped: bool

    @property
    def folder(self) -> str:
        """`NAME/REVISION` under PREFIX/models."""
        return f"{self.name}/{self.revision}"


def probe(key: str, directory: str, stamp: str | None, status: str | None) -> str:
    """Shell that prints the lines of one model; see `parse`."""
    lines = [f"printf 'model\\t%s\\n' {shlex.quote(key)}", _flag("present", "-e", directory)]
    if stamp is not None:
        lines.append(_document("stamp", stamp))
        lines.append(
            f"printf 'size\\t%s\\n' \"$(find -L {shlex.quote(directory)} -type f -printf '%s\\n' "
            '2>/dev/null | awk \'{n += $1} END {printf "%.0f", n}\')"'
        )
    if status is not None:
        quoted = shlex.quote(status)
        lines.append(_document("status", status))
        lines.append(
            f"pid=$(sed -n 's/.*\"pid\": *\\([0-9]*\\).*/\\1/p' {quoted} 2>/dev/null | head -n 1); "
            'if test -r "/proc/$pid/cmdline" && tr "\\0" " " <"/proc/$pid/cmdline" '
            "| grep -q 'hostkit fetch'; then printf 'running\\t1\\n'; fi"
        )
    return "; ".join(lines)


def room(directory: str) -> str:
    """Shell that prints free KiB and inodes of the mount that `directory` is, or will be, on."""
    return (
        f'd={shlex.quote(directory)}; while ! test -d "$d"; do d=$(dirname "$d"); done; '
        "printf 'free\\t%s\\n' \"$(df -Pk \"$d\" | awk 'NR==2 {print $4}')\"; "
        "printf 'inodes\\t%s\\n' \"$(df -Pi \"$d\" 2>/dev/null | awk 'NR==2 {print $4}')\""
    )


def folders(directory: str) -> str:
    """Shell that prints the revision folders under PREFIX/models."""
    return (
        f"for d in {shlex.quote(directory)}/*/*/; do "
        'if test -d "$d"; then printf \'folder\\t%s\\n\' "$d"; fi; done'
    )


def parse(output: Iterable[str]) -> ModelsState:
    """Read what `probe` and `room` printed. An unreadable document counts as absent."""
    models: list[dict[str, str]] = []
    host: dict[str, str] = {}
    found: list[str] = []
    for line in output:
        name, tab, value = line.partition("\t")
        if not tab:
            continue
        if name == "model":
            models.append({"key": value})
        elif name == "folder":
            found.append("/".join(value.rstrip("/").split("/")[-2:]))
        elif name in ("free", "inodes"):
            host[name] = value
        elif models:
            models[-1][name] = value
    return ModelsState(
        models=tuple(_model(lines) for lines in models),
        folders=tuple(sorted(found)),
        free_bytes=_times(host.get("free"), 1024),
        free_inodes=_times(host.get("inodes"), 1),
    )


def parse_revisions(output: Iterable[str]) -> tuple[Revision, ...]:
    """Read `KIB<TAB>PATH<TAB>yes|no` lines; sorted by name and revision."""
    found = []
    for line in output:
        size, path, stamped = [*line.split("\t"), "", ""][:3]
        parts = path.rstrip("/").split("/")
        if size.isdigit() and len(parts) >= 2:
            found.append(Revision(parts[-2], parts[-1], int(size) * 1024, stamped == "yes"))
    return tuple(sorted(found, key=lambda r: (r.name, r.revision)))


def _flag(name: str, test: str, path: str) -> str:
    return f"if test {test} {shlex.quote(path)}; then printf '{name}\\t1\\n'; fi"


def _document(name: str, path: str) -> str:
    quoted = shlex.quote(path)
    return (
        f"if test -f {quoted}; then printf '{name}\\t'; tr -d '\\n\\t' <{quoted}; printf '\\n'; fi"
    )


def _model(found: dict[str, str]) -> ModelState:
    stamp = _json(found.get("stamp"))
    status = _json(found.get("status"))
    revision = stamp.get("revision") if stamp and not _shrunk(stamp, found.get("size")) else None
    return ModelState(
        key=found["key"],
        present="present" in found,
        stamped=revision if isinstance(revision, str) else None,
        job=_job(status) if status else None,
        running="running" in found,
    )


def _shrunk(stamp: dict[str, Any], size: str | None) -> bool:
    """Files were removed or cut short since they were verified; more than there was is no harm."""
    total = _number(stamp.get("bytes"), int)
    return total is not None and size is not None and size.isdigit() and int(size) < total


def _job(status: dict[str, Any]) -> Job:
    return Job(
        state=str(status.get("state", "unknown")),
        message=str(status.get("message", "")),
        bytes_done=_number(status.get("bytes_done"), int),
        bytes_total=_number(status.get("bytes_total"), int),
        rate=_number(status.get("rate"), float),
        eta_s=_number(status.get("eta_s"), float),
    )


def _number(value: object, kind: type) -> Any:
    return kind(value) if isinstance(value, int | float) else None


def _times(text: str | None, unit: int) -> int | None:
    return int(text) * unit if text and text.isdigit() else None


def _json(text: str | None) -> dict[str, Any] | None:
    try:
        found = json.loads(text) if text else None
    except ValueError:
        return None
    return found if isinstance(found, dict) else None


class Models(FactBase[ModelsState]):
    """The models of a plan: `wanted` holds (key, directory, stamp or None, status or None) each."""

    def command(
        self, models_dir: str, wanted: Sequence[tuple[str, str, str | None, str | None]]
    ) -> str:
        parts = [*(probe(*model) for model in wanted), folders(models_dir), room(models_dir)]
        return "; ".join(parts)

    def process(self, output: list[str]) -> ModelsState:
        return parse(output)

    @staticmethod
    def default() -> ModelsState:
        return ModelsState()


class Revisions(FactBase[tuple[Revision, ...]]):
    """Every revision folder under PREFIX/models with its size on disk; slow disks take seconds."""

    def command(self, models_dir: str) -> str:
        quoted = shlex.quote(models_dir)
        return (
            f"if test -d {quoted}; then cd {quoted}; for d in */*/; do "
            'test -d "$d" || continue; test "${d#.}" = "$d" || continue; '
            'if test -f "${d%/}.stamp.json"; then s=yes; else s=no; fi; '
            'printf "%s\\t%s\\t%s\\n" "$(du -sk "$d" | cut -f1)" "$d" "$s"; done; fi'
        )

    def process(self, output: list[str]) -> tuple[Revision, ...]:
        return parse_revisions(output)

    @staticmethod
    def default() -> tuple[Revision, ...]:
        return ()
