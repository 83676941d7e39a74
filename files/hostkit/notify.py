"""sd_notify without a dependency: one datagram to the socket that systemd names.

Protocol: sd_notify(3). Under other service managers NOTIFY_SOCKET is unset and nothing is sent.
"""

import os
import socket


def notify(*assignments: str) -> bool:
    """Sends `NAME=value` lines; False when no service manager listens. Never raises."""
    address = os.environ.get("NOTIFY_SOCKET", "")
    if not address:
        return False
    if address.startswith("@"):  # abstract namespace: a leading NUL in place of the @
        address = "\0" + address[1:]
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sender:
            sender.connect(address)
            sender.sendall("\n".join(assignments).encode())
    except OSError:
        return False
    return True


def watchdog_interval_s() -> float | None:
    """Half of systemd's WATCHDOG_USEC, the rate that sd_watchdog_enabled(3) advises; else None."""
    if os.environ.get("WATCHDOG_PID", str(os.getpid())) != str(os.getpid()):
        return None
    try:
        return int(os.environ["WATCHDOG_USEC"]) / 2e6
    except (KeyError, ValueError):
        return None
