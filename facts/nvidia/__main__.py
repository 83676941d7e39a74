"""Reads a saved output of NVIDIA's tools and prints it as JSON.

    python -m facts.nvidia topo topo_m.txt        nvidia-smi topo -m
    nvidia-smi -q -x | python -m facts.nvidia xml -

Exit status 0, or 1 with {"error": ...} for text that can't be read: cut, refused, or of another
kind. `errors` names what an error output means, and then exits 0.
"""

from __future__ import annotations

import argparse
import json
import signal
import sys
from collections.abc import Callable
from pathlib import Path

from facts.nvidia import views
from facts.nvidia.values import ParseError

_READERS: dict[str, tuple[str, tuple[Callable[[str], views.Json], ...]]] = {
    "topo": ("`nvidia-smi topo -m`", (views.topology,)),
    "gpus": (
        "`nvidia-smi --query-gpu=... --format=csv` (without a header: index, name, memory.total, "
        "memory.used, memory.free; also the table, -q, -q -x and versions)",
        (views.query, views.table, views.query_text, views.xml, views.versions, views.module),
    ),
    "xml": ("`nvidia-smi -q -x`", (views.xml,)),
    "nvlink": ("`nvidia-smi nvlink -s`", (views.nvlink,)),
    "nvcc": (
        "`nvcc --version` (also `ls -l /usr/local`, an environment report, `modinfo nvidia`)",
        (views.nvcc, views.toolkits, views.environment, views.module),
    ),
    "errors": ("an error message of any of these tools", (views.errors,)),
    "smi": ("plain `nvidia-smi`, the table", (views.table,)),
    "query": ("`nvidia-smi -q`, text", (views.query_text,)),
    "versions": (
        "`nvidia-smi --version`, /proc/driver/nvidia/version, `modinfo nvidia`, "
        "`nv-fabricmanager --version`",
        (views.versions, views.module, views.fabric_manager),
    ),
    "cuda": ("`ls -l` of CUDA folders", (views.toolkits,)),
    "env": ("an environment report (`python -m sglang.check_env`)", (views.environment,)),
    "auto": ("any of them, recognised by its text", ()),
}


def read(reader: str, text: str) -> views.Json:
    """The JSON that a subcommand prints; raises ParseError.

    A subcommand that reads several formats takes the one that the text is in; its first format is
    tried where the text is in none of them, so that the error speaks of that one.
    """
    wanted = _READERS[reader][1]
    if len(wanted) == 1:
        return wanted[0](text)
    _, view = views.recognise(text)
    return view(text) if not wanted or view in wanted else wanted[0](text)


def main(arguments: list[str] | None = None) -> int:
    """Entry point; returns the exit status."""
    parser = argparse.ArgumentParser(
        prog="python -m facts.nvidia",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    commands = parser.add_subparsers(dest="reader", required=True, metavar="KIND")
    for name, (what, _) in _READERS.items():
        command = commands.add_parser(name, help=f"reads {what}", description=f"Reads {what}.")
        command.add_argument("file", metavar="FILE", help="the saved output; - is standard input")
    options = parser.parse_args(arguments)
    try:
        raw = sys.stdin.buffer.read() if options.file == "-" else Path(options.file).read_bytes()
        answer, status = read(options.reader, raw.decode("utf-8", "replace")), 0
    except OSError as error:
        answer, status = {"error": f"can't read {options.file}: {error.strerror}"}, 1
    except ParseError as error:
        answer, status = error.to_json(), 1
    print(json.dumps(answer, indent=2, ensure_ascii=False))
    return status


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
