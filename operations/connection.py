"""Makes one SSH connection fit for many short commands and for long silent ones."""

from __future__ import annotations

import socket
from typing import Any

KEEPALIVE_S = 15


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
