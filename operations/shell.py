"""Commands that a function sends to a host itself, with the rights that the host's operations have.

pyinfra adds sudo and its like to the commands that an operation yields, and to facts; a function
that an operation calls, or a word with another host, gets them here.
"""

from __future__ import annotations

from typing import Any

from pyinfra.api.arguments import CONNECTOR_ARGUMENT_KEYS, pop_global_arguments
from pyinfra.api.command import StringCommand
from pyinfra.connectors.util import make_unix_command_for_host

_OF_THE_CHANNEL = ("_get_pty", "_timeout", "_stdin", "_success_exit_codes")


def run(host: Any, command: StringCommand) -> tuple[bool, str]:
    """Whether a command exited with 0, and what it printed on stdout."""
    arguments = {**_arguments(host), **command.connector_arguments}
    done, output = host.run_shell_command(
        command, print_output=False, print_input=False, **arguments
    )
    return done, str(output.stdout)


def line(host: Any, command: str) -> str:
    """The whole command line (sudo, sh, ...) for a stream that is opened beside pyinfra."""
    given = {k: v for k, v in _arguments(host).items() if k not in _OF_THE_CHANNEL}
    whole = make_unix_command_for_host(host.state, host, StringCommand(command), **given)
    return str(whole.get_raw_value())


def _arguments(host: Any) -> dict[str, Any]:
    """Those of the operation at work on the host, else what its data and the command line say."""
    given: Any = host.current_op_global_arguments or pop_global_arguments(host.state, host, {})[0]
    return {key: given[key] for key in CONNECTOR_ARGUMENT_KEYS if key in given}
