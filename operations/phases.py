"""The phases of a deploy, and which of them a run is asked to do (`--data only=...`)."""

from __future__ import annotations

import difflib

PHASES = (
    "preflight",
    "models",
    "stack",
    "patches",
    "units",
    "serve",
    "bench",
    "kit",
)
ON_REQUEST = frozenset({"kit"})  # not part of a whole run


class PhaseError(ValueError):
    """`only` can't be used. The message is one line for people."""


def selected(only: object) -> frozenset[str]:
    """The phases to run: all but the ones on request, or those that `only` names.

    `only` is what `--data only=...` gives: None, a name, or a list of names. Raises PhaseError.
    """
    if only is None:
        return frozenset(PHASES) - ON_REQUEST
    names = only.split(",") if isinstance(only, str) else only
    if not isinstance(names, list) or not names or not all(isinstance(n, str) for n in names):
        raise PhaseError(
            f"--data only: expected a phase or a list of phases, found {only!r}; "
            """write only=serve or 'only=["stack","patches"]'"""
        )
    for name in names:
        if name not in PHASES:
            near = difflib.get_close_matches(name, PHASES, n=1)
            hint = f"did you mean '{near[0]}'? " if near else ""
            raise PhaseError(
                f"--data only: expected one of {', '.join(PHASES)}, found '{name}'; {hint}"
                'a list is written \'only=["stack","patches"]\''
            )
    return frozenset(names)
