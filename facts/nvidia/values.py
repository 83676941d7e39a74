"""The values in NVIDIA's outputs: numbers with units, the many spellings of "unknown"."""

from __future__ import annotations

import re
from typing import Any


class ParseError(ValueError):
    """Text that can't be read as what it should be.

    `error` names what it is ("incomplete", "bad arguments", "no driver communication", ...);
    `details` are figures that a person wants beside it (rows seen, field refused, versions) and
    for a known message its meaning and remedy. As text: one line, "error (figures): remedy".
    """

    def __init__(self, error: str, **details: Any) -> None:
        self.error = error
        self.details = details
        shown = dict(details)
        for key in ("meaning", "exit", "stream"):
            shown.pop(key, None)
        remedy = shown.pop("remedy", None)
        figures = [*shown.pop("lost", ()), *(f"{key} {value}" for key, value in shown.items())]
        line = f"{error} ({', '.join(figures)})" if figures else error
        super().__init__(f"{line}: {remedy}" if remedy else line)

    def to_json(self) -> dict[str, Any]:
        """`{"error": ..., **details}`."""
        return {"error": self.error, **self.details}


# Real ANSI sequences, and the same ones in a text that lost the ESC byte on its way (A04).
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]|\[\d[0-9;]*m")


def plain(text: str) -> str:
    """Text without ANSI codes, NUL bytes and carriage returns."""
    return _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n").replace("\0", "")


def whole_lines(text: str) -> str:
    """Plain text without a last line that has no newline: it may be cut inside a value."""
    bare = plain(text)
    return bare[: bare.rfind("\n") + 1]


def first_line(text: str) -> str:
    """The first line that is not blank, cut to 80 characters: for "found ..." in a message."""
    return next((line.strip()[:80] for line in text.splitlines() if line.strip()), "nothing")


_UNKNOWN = {
    "",
    "-",
    "n/a",
    "none",
    "not found",
    "not supported",
    "unknown",
    "unknown error",
    "err!",
    "insufficient permissions",
    "no permissions",
    "requested functionality has been deprecated",
    "gpu is lost",
    "gpu requires reset",
    "module not found",
}


def known(value: str | None) -> str | None:
    """The value, or None for each spelling of "there is no value" (`[N/A]`, `Deprecated, see ...`).

    Brackets are taken off first. "None" counts as unknown too, so don't use it where "None" is an
    answer (a recovery action, an addressing mode).
    """
    if value is None:
        return None
    bare = value.strip().removeprefix("[").removesuffix("]").strip()
    lowered = bare.lower()
    if lowered in _UNKNOWN or lowered.startswith("deprecated"):
        return None
    return bare


_NUMBER = re.compile(r"([-+]?\d+(?:\.\d+)?)\s*([A-Za-z%/]*)", re.ASCII)


def number(value: str | None, units: tuple[str, ...] = ()) -> float | None:
    """The number of `"143771 MiB"`, `"5"`, `"16x"`, or None; a unit must be one of `units`."""
    bare = known(value)
    match = _NUMBER.fullmatch(bare) if bare else None
    if not match or (match[2] and match[2] not in units):
        return None
    return float(match[1])


def whole(value: str | None, units: tuple[str, ...] = ()) -> int | None:
    """Like `number`, for counts and MiB: a fraction is unknown, not rounded."""
    found = number(value, units)
    return int(found) if found is not None and found == int(found) else None


_VERSION = re.compile(r"\d+(?:\.\d+)+", re.ASCII)


def version(value: str | None) -> str | None:
    """The value if it is a version and nothing else ("580.159.04"), else None."""
    bare = known(value)
    return bare if bare and _VERSION.fullmatch(bare) else None


def version_tuple(value: str | None) -> tuple[int, ...] | None:
    """`"13.0.88"` -> `(13, 0, 88)` for comparing; None for None or anything else."""
    found = version(value)
    return tuple(int(part) for part in found.split(".")) if found else None
