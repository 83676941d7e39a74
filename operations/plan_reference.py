"""The command line and environment of the CPU reference engine for one engine start."""

from __future__ import annotations

from facts.machine import MachineFacts
from facts.nvidia.values import version_tuple
from operations.plan_model import Launch, ModelRef
from operations.wanted import Wanted

LOCK = "reference"
PYTHON = "3.12"  # what uv brings where the system's own Python is too old
OLDEST, NEWEST = (3, 11), (3, 13)


def python_version(machine: MachineFacts) -> tuple[str, str]:
    """The engine venv's Python "3.11", and why: the system's own, so that nothing is downloaded.

    Only the interpreters in /usr count: others come and go, and a plan must not change with them.
    """
    for python in machine.pythons:
        found = version_tuple(python.version)
        system = python.path.startswith(("/usr/bin/", "/usr/local/bin/"))
        if system and found and OLDEST <= found[:2] <= NEWEST:
            return f"{found[0]}.{found[1]}", f"{python.path} is there"
    return PYTHON, "no Python 3.11 to 3.13 in /usr: uv brings one"


def launch(
    prefix: str,
    wanted: Wanted,
    target: ModelRef,
    drafter: ModelRef | None,
    block: int | None,
    key: str,
    algorithm: str | None,
    budget: int | None = None,
) -> Launch:
    """One engine start; `budget` B gives the verify width B + 1 of a DDTREE start."""
    argv = [
        f"{prefix}/current/venv/bin/python",
        "-m",
        "refserver",
        *("--model-path", target.path),
        *("--served-model-name", wanted.served_model_name or target.name),
        *("--host", wanted.host, "--port", str(wanted.port)),
        *("--random-seed", "0"),
    ]
    if wanted.context_length:
        argv += ["--context-length", str(wanted.context_length)]
    if algorithm is not None and drafter is not None:
        argv += ["--speculative-algorithm", algorithm]
        argv += ["--speculative-draft-model-path", drafter.path]
        width = budget + 1 if budget is not None else block
        if width is not None:
            argv += ["--speculative-num-draft-tokens", str(width)]
    argv += wanted.engine_args
    environment = {
        "PYTHONPATH": f"{prefix}/current/sources",
        "PYTHONUNBUFFERED": "1",
        **wanted.environment,
    }
    return Launch(key, tuple(argv), dict(sorted(environment.items())), algorithm, budget)
