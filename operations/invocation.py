"""Refuses command lines that pyinfra would take for an empty run and end with exit code 0.

config.py, which pyinfra reads before the inventory, calls `check`.
"""

from __future__ import annotations

import re
import runpy
import sys
from collections.abc import Sequence, Set
from fnmatch import fnmatch
from itertools import pairwise
from pathlib import Path

OLDEST_PYTHON = (3, 11)


class InvocationError(ValueError):
    """The command line can't be used. The message is one line for people."""


def check(
    argv: Sequence[str],
    folder: Path,
    valued: Set[str],
    version: Sequence[int] = sys.version_info[:3],
    answers: bool = True,
) -> None:
    """`argv` as pyinfra's own command line, without the program's name. Raises InvocationError.

    `valued`: the flags of pyinfra that are followed by a value. `answers`: somebody can answer
    pyinfra's question before it changes anything; it ends in a traceback where nobody can.
    """
    if tuple(version[:2]) < OLDEST_PYTHON:
        found = ".".join(str(part) for part in version[:2])
        raise InvocationError(
            f"expected Python 3.11 or newer, found {found}; run `make` with PYTHON=python3.12"
        )
    if not answers and _asks(argv):
        raise InvocationError(
            "expected a terminal to ask 'continue?', found none; add -y to do it, or --dry to look"
        )
    inventory = _inventory(argv, valued)
    if inventory is None or not _looks_like_a_path(inventory):
        return
    path = folder / inventory
    if not path.exists():
        known = sorted(f"inventories/{p.name}" for p in (folder / "inventories").glob("*.py"))
        raise InvocationError(
            f"expected an inventory, found no file '{inventory}'; "
            f"there are {', '.join(known) or 'none in inventories/'}"
        )
    patterns = _values(argv, "--limit")
    if patterns and path.suffix == ".py":
        names = _names(path)
        for pattern in patterns:
            if not any(fnmatch(name, pattern) for name in names):
                raise InvocationError(
                    f"--limit {pattern}: expected a host or group of {inventory}, found none that "
                    f"matches; it has {', '.join(sorted(names))}"
                )


def _asks(argv: Sequence[str]) -> bool:
    """A deploy that is neither dry nor agreed to; other commands of pyinfra change nothing."""
    deploys = any(word.endswith("deploy.py") for word in argv)
    quiet = ("--yes", "--dry", "--debug-operations", "--help", "--support", "--version")
    if only_looks(argv):
        return False
    short = any(re.fullmatch(r"-[a-z]*y[a-z]*", word) for word in argv)
    return deploys and not short and not any(word in quiet for word in argv)


def only_looks(argv: Sequence[str]) -> bool:
    """A run of the pre-flight alone: it changes nothing, so nothing is left to agree to."""
    return "only=preflight" in argv or "--data=only=preflight" in argv


def _inventory(argv: Sequence[str], valued: Set[str]) -> str | None:
    """The first argument that is neither a flag nor a flag's value."""
    skip = False
    for word in argv:
        if skip:
            skip = False
        elif word.startswith("-"):
            skip = word in valued
        else:
            return word
    return None


def _values(argv: Sequence[str], flag: str) -> list[str]:
    found = [word.split("=", 1)[1] for word in argv if word.startswith(f"{flag}=")]
    return found + [after for word, after in pairwise(argv) if word == flag]


def _looks_like_a_path(inventory: str) -> bool:
    return inventory.endswith((".py", ".yaml", ".yml", ".json")) and not inventory.startswith("@")


def _names(path: Path) -> set[str]:
    """Hosts and groups of an inventory file."""
    found = runpy.run_path(str(path))
    names: set[str] = {path.stem, "all"}
    for key, value in found.items():
        if key.startswith("_") or not isinstance(value, list | tuple) or not value:
            continue
        hosts = value[0] if isinstance(value, tuple) else value
        names.add(key)
        names.update(h[0] if isinstance(h, tuple) else h for h in hosts)
    return names
