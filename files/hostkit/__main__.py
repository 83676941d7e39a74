"""`python -m hostkit COMMAND`: what runs on a host, one module a command.

A command's module has `add_arguments(parser)` and `run(args) -> int`. It is imported only when
it is asked for, so that one missing library doesn't take the other commands down.
"""

import argparse
import importlib
import os
import select
import signal
import sys
from collections.abc import Callable
from typing import Any

from .errors import HostkitError

COMMANDS = {
    "supervise": "start an engine, report READY when it really serves, restart it, stop all of it",
    "diagnose": "name the cause of a failed launch from the engine's log",
    "load": "send prompts to a running engine and print what each request got",
    "bench": "measure all arms of a bench.json into one result file",
    "probe": "measure the GPUs of this host with torch and compare with a baseline",
    "fetch": "download a model, watched and verified",
    "verify": "verify the files of a downloaded model",
}


def _module(command: str) -> Any:
    try:
        return importlib.import_module(f"hostkit.{command}")
    except ModuleNotFoundError as missing:
        raise HostkitError(
            f"'hostkit {command}' needs the module {missing.name}, which this Python lacks: "
            f"install hostkit's requirements.lock into {sys.prefix}"
        ) from missing


def main(argv: list[str] | None = None) -> int:
    """Runs one command; returns its exit code (1 with one line on stderr for a HostkitError)."""
    arguments = sys.argv[1:] if argv is None else argv
    parser = argparse.ArgumentParser(
        prog="hostkit",
        description=__doc__.splitlines()[0] if __doc__ else None,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        epilog="\n".join(f"  {name:<10} {purpose}" for name, purpose in COMMANDS.items()),
    )
    parser.add_argument("command", choices=COMMANDS, metavar="COMMAND")
    if not arguments or arguments[0].startswith("-"):
        parser.parse_args(arguments)
    command = parser.parse_args(arguments[:1]).command
    try:
        module = _module(command)
        own = argparse.ArgumentParser(prog=f"hostkit {command}", description=COMMANDS[command])
        module.add_arguments(own)
        return int(module.run(own.parse_args(arguments[1:])))
    except HostkitError as error:
        print(f"hostkit {command}: {error}", file=sys.stderr)
        return 1


def quietly(program: Callable[[], int]) -> int:
    """The program's exit code; 141, without a word, when nobody reads its output (`... | head`).

    Not by SIGPIPE: the same signal would end a service whose client hangs up.
    """
    try:
        try:
            return program()
        finally:
            print(end="", flush=True)
    except BrokenPipeError:
        output = select.poll()
        output.register(1, 0)
        if not output.poll(0):
            raise  # another pipe than ours
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        return 128 + signal.SIGPIPE


if __name__ == "__main__":
    sys.exit(quietly(main))
