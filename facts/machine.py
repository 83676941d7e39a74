"""The machine that a host is: all facts of a run, read by one command in one round trip.

pyinfra inventories/local.py fact facts.machine.Machine --json
python -m facts.machine > machine.json      # this machine, as --facts takes it
"""

from __future__ import annotations

import argparse
import json
import shlex
import signal
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from pyinfra.api.exceptions import FactProcessError
from pyinfra.api.facts import FactBase

from facts.machine_document import parse_document
from facts.machine_facts import (
    FabricManager,
    Limits,
    MachineError,
    MachineFacts,
    ModelDir,
    Mount,
    Place,
    Port,
    Python,
    Unit,
    Venv,
)

__all__ = [
    "FabricManager",
    "Limits",
    "Machine",
    "MachineError",
    "MachineFacts",
    "ModelDir",
    "Mount",
    "Place",
    "Port",
    "Python",
    "Unit",
    "Venv",
    "script",
]

HUB = "https://huggingface.co"
# Folders that a prefix or a model is likely to go to; each is reported with the mount it lies on.
PLACES = ("/", "/opt", "/root", "/home", "/var", "/srv", "/data", "/mnt", "/models", "~")


def script(places: Iterable[str] = (), hub: str = HUB, limit_s: int = 20) -> str:
    """The POSIX sh command that prints the document.

    `places` are paths to report beside the usual ones, `hub` the URL tried once (3 s at most),
    `limit_s` the seconds that any tool may take; the command ends at the latest 3 s after that.
    """
    lines = Path(__file__).with_name("machine.sh").read_text().splitlines()
    body = "\n".join(line for line in lines if not line.lstrip().startswith("#"))
    wanted = " ".join(dict.fromkeys([*PLACES, *places]))
    return f"LIMIT={limit_s}\nHUB={shlex.quote(hub)}\nPLACES={shlex.quote(wanted)}\n{body}\n"


class Machine(FactBase[MachineFacts]):
    """The facts of a host as `MachineFacts`.

    Arguments: `places`, paths to report beside the usual ones, separated by blanks; `hub`, the
    URL whose reachability is tried. A host whose answer can't be read fails alone.
    """

    def command(self, places: str = "", hub: str = HUB) -> str:
        return script(places.split(), hub)

    def process(self, output: Iterable[str]) -> MachineFacts:
        try:
            return parse_document("\n".join(output) + "\n")
        except Exception as error:  # any other exception would end the run of all hosts
            raise FactProcessError(str(error)) from error


def main(arguments: list[str] | None = None) -> int:
    """Print the facts of this machine as JSON; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m facts.machine",
        description="Prints the facts of this machine as JSON, as a run would read them.",
    )
    parser.add_argument("--places", default="", help="paths to report beside the usual ones")
    parser.add_argument("--hub", default=HUB, help="URL whose reachability is tried")
    parser.add_argument("--script", action="store_true", help="print the sh command instead")
    options = parser.parse_args(arguments)
    text = script(options.places.split(), options.hub)
    if options.script:
        print(text, end="")
        return 0
    result = subprocess.run(["sh", "-c", text], capture_output=True, check=False)
    try:
        facts = parse_document(result.stdout.decode("ascii", "replace"))
    except MachineError as error:
        print(f"{error}: {result.stderr.decode('utf-8', 'replace').strip()}", file=sys.stderr)
        return 1
    print(json.dumps(facts.to_json(), indent=2))
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
