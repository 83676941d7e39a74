"""Makes a host's connection fit for what we do: its socket, and the environment of its commands."""

from __future__ import annotations

import socket
from typing import Any

KEEPALIVE_S = 15
# which modules a Python finds; for the Hub's token see operations/layout.py
OTHER_MODULES = ("PYTHONPATH", "PYTHONHOME", "PYTHONSAFEPATH")


def clear_environment(host: Any) -> None:
    """Empties, for every command sent to a host from now on, what would lead its Pythons astray.

    A command has the environment of the login, on @local that of who deploys: a PYTHONPATH there
    puts other packages before those of our venvs, under the proof of the pins and for good in a
    service under supervisor. What the inventory's own `_env` says stays. (config.ENV of pyinfra
    3.10 does not reach a deploy file.)
    """
    host.data._env = {**dict.fromkeys(OTHER_MODULES, ""), **(host.data.get("_env") or {})}


def tune(host: Any) -> None:
    """Sets TCP_NODELAY and a keepalive on the live SSH connection of a pyinfra host.

    paramiko leaves Nagle's algorithm on, which costs some 40 ms a command; without a keepalive a
    firewall drops a connection that waits for a long download. Does nothing for @local or @fake,
    and leaves the socket of a jump host (a channel, not a TCP socket) alone.
    """
    client = getattr(host.connector, "client", None)
    transport = client.get_transport() if client is not None else None
    if transport is None:
        return
    transport.set_keepalive(KEEPALIVE_S)
    if isinstance(transport.sock, socket.socket):
        transport.sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
