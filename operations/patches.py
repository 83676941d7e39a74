"""Brings a patch set into the engine's venv, or says why not. People use it as a command too:

python -m operations.patches status|apply|reverse|export|seal [VENV]
"""

from __future__ import annotations

import argparse
import shlex
import signal
import sys
from collections.abc import Generator
from pathlib import Path

import click
from pyinfra.api.operation import operation
from pyinfra.context import host

from facts.sources import Patched, PatchedState
from operations import patch_set, show


@operation()
def apply(venv: str, series: str | None, sources: str) -> Generator[str, None, None]:
    """Converges `venv` to the patch set `series` (None: nothing to do); settled, it yields nothing.

    `sources` is the host's copy of files/. One fact, one remote command. The applier checks all
    files before it writes one, so a refusal leaves the venv as it was: foreign files (shown with
    how they differ) and another version of the engine stop this host with one line.
    """
    if series is None:
        return
    state: PatchedState = host.get_fact(Patched, venv=venv, series=series, sources=sources)
    wanted = patch_set.load(series)
    if state.state == "applied" and state.digest == wanted.digest:
        return
    if state.state in ("foreign", "wrong-version"):
        for path, note in state.foreign.items():
            show.note(f"{path} is neither the release's nor ours:\n{note}")
        yield f"echo {shlex.quote(refusal(state, venv))} >&2; exit 1"
        return
    # A copy of another version of the set on the host says nothing about this one's diff.
    _show(state.diff if state.digest == wanted.digest else wanted.as_diff())
    words = [f"{venv}/bin/python", f"{sources}/patches/apply.py", "apply"]
    yield " ".join(shlex.quote(w) for w in [*words, f"{sources}/patches/{series}", venv])


def refusal(state: PatchedState, venv: str) -> str:
    """One line: expected, found, remedy."""
    if state.reason:
        return f"patches: {state.reason}"
    names = ", ".join(sorted(state.foreign))
    return (
        f"patches: expected the release's files in {venv}, found changes by others in {names}; "
        "nothing was changed: remove the venv folder, so that the next run makes it anew"
    )


def _show(text: str) -> None:
    """Prints a unified diff under --diff, coloured as pyinfra colours its own."""
    if not show.wants_diff():
        return
    colours = {"+": "green", "-": "red", "@": "cyan"}
    for path, part in patch_set.split_diff(text):
        host.log(f"Will patch {path}")
        for line in part.splitlines():
            host.log("  " + click.style(line, fg=colours.get(line[:1])))


COMMANDS = {
    "status": "the state of each file: pristine, ours, older or foreign",
    "apply": "brings the set in; all checks come before any write",
    "reverse": "takes the set out, byte for byte",
}


def main(argv: list[str] | None = None) -> int:
    """status, apply, reverse: as files/patches/apply.py; export, seal: for maintainers."""
    parser = argparse.ArgumentParser(
        prog="python -m operations.patches",
        description="Brings a patch set into an engine's venv, tells its state, takes it out.",
    )
    parser.add_argument("--set", default="sglang-0.5.16", help="patch set (default %(default)s)")
    commands = parser.add_subparsers(dest="command", required=True)
    for name, does in COMMANDS.items():
        command = commands.add_parser(name, help=does)
        command.add_argument("venv", type=Path, help="the engine's venv")
        command.add_argument("--json", action="store_true", help="the answer for machines")
        command.add_argument("--diff", action="store_true", help="also what apply would change")
    export = commands.add_parser("export", help="remake the set from an edited venv")
    export.add_argument("venv", type=Path)
    export.add_argument("--wheel", type=Path, required=True, help="the release's wheel")
    commands.add_parser("seal", help="write hashes and series.json after an edit of the set")
    args = parser.parse_args(argv)
    try:
        folder = patch_set.folder_of(args.set)
        if args.command == "seal":
            patch_set.seal(folder)
            return 0
        if args.command == "export":
            print("\n".join(patch_set.export(folder, args.venv, args.wheel)))
            return 0
    except (OSError, ValueError) as error:
        print(f"patches: {error}", file=sys.stderr)
        return 1
    flags = [flag for flag in ("json", "diff") if getattr(args, flag)]
    words = [*(f"--{flag}" for flag in flags), args.command, str(folder), str(args.venv)]
    code: int = patch_set.applier().main(words)
    return code


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
