"""Shows in a dry run what an operation would write, as pyinfra's own operations do."""

from __future__ import annotations

from pyinfra.context import host, state
from pyinfra.operations.util.files import generate_color_diff


def wants_diff() -> bool:
    """True under --diff, in the pass that detects changes (so that nothing is shown twice)."""
    return bool(state.config.DIFF) and not state.is_executing


def diff(path: str, old: str | None, new: str | None) -> None:
    """Prints the diff of one text file; None stands for a file that is not there."""
    if not wants_diff() or old == new:
        return
    verb = "create" if old is None else "remove" if new is None else "modify"
    host.log(f"Will {verb} {path}")
    for line in generate_color_diff((old or "").splitlines(), (new or "").splitlines()):
        host.log(f"  {line}")


def note(text: str) -> None:
    """Prints one line under --diff, for a change that is no text."""
    if wants_diff():
        host.log(text)
