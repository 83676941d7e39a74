"""The guard: parent of one engine, there so that nothing of the engine outlives the supervisor.

supervise or bench -> guard -> engine -> whatever the engine starts. The guard is the reaper of
all below it, so a helper that leaves its group or session still is its descendant. It holds one
end of a socket; when the other end closes, even by kill -9 of the supervisor, it kills everything
below. On SIGTERM it stops the engine with patience, SIGKILL after `grace_s`.

First line it reads: {"argv", "env", "cwd", "grace_s"}. It answers {"pid": N} or {"error": text},
and {"exit": code} when the engine has ended and all its descendants too. Run with
`python -m hostkit.guard FD`; standard library only.
"""

import contextlib
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from typing import Any

from . import processes

FINAL_PATIENCE_S = 10.0  # a process in uninterruptible sleep can't be killed: give up then


class Guard:
    """One engine's life as seen by its parent."""

    def __init__(self, channel: socket.socket, order: dict[str, Any]):
        self.channel = channel
        self.grace_s = float(order["grace_s"])
        self.asked_to_stop = False
        self.exit_code: int | None = None
        self.wake_read, wake_write = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.set_wakeup_fd(wake_write, warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.signal(signal.SIGTERM, self._on_term)
        signal.signal(signal.SIGINT, self._on_term)
        self.engine = subprocess.Popen(
            order["argv"],
            env=order["env"],
            cwd=order["cwd"],
            start_new_session=True,
            preexec_fn=processes.die_with_parent,
        )

    def _on_term(self, *_: object) -> None:
        self.asked_to_stop = True

    def _wait(self, seconds: float) -> bool:
        """Sleeps until a signal or the channel's end; True when the supervisor is gone."""
        channel = self.channel.fileno()
        ready, _, _ = select.select([channel, self.wake_read], [], [], seconds)
        if self.wake_read in ready:
            with contextlib.suppress(BlockingIOError):
                os.read(self.wake_read, 512)
        if channel in ready:
            try:
                return self.channel.recv(64) == b""
            except OSError:
                return True
        return False

    def _reap(self) -> None:
        ended = processes.reap()
        if self.engine.pid in ended:
            self.exit_code = ended[self.engine.pid]
            self.engine.returncode = self.exit_code  # Popen must not wait for it again

    def watch(self) -> int:
        """Returns the engine's exit code once nothing of it is left."""
        orphaned = False
        while self.exit_code is None and not self.asked_to_stop and not orphaned:
            orphaned = self._wait(1.0)
            self._reap()
        self._end_all(0.0 if orphaned else self.grace_s)
        return self.exit_code if self.exit_code is not None else -signal.SIGKILL

    def _end_all(self, grace_s: float) -> None:
        """TERM to each descendant once, KILL to what is left after `grace_s`."""
        told: dict[int, int] = {}
        kill_at = time.monotonic() + grace_s
        give_up_at = kill_at + FINAL_PATIENCE_S
        while family := processes.descendants(os.getpid()):
            now = time.monotonic()
            if now > give_up_at:
                print(f"guard: processes {sorted(family)} could not be killed", flush=True)
                return
            for pid, started in family.items():
                if now >= kill_at:
                    processes.send(pid, signal.SIGKILL)
                elif told.get(pid) != started:
                    told[pid] = started
                    processes.send(pid, signal.SIGTERM)
            if self._wait_quietly(0.05):
                kill_at = 0.0  # the supervisor died while we were patient
            self._reap()
        self._reap()

    def _wait_quietly(self, seconds: float) -> bool:
        if self.channel.fileno() == -1:
            time.sleep(seconds)
            return False
        gone = self._wait(seconds)
        if gone:
            self.channel.close()
        return gone


def main() -> int:
    """Reads the order from the inherited socket and guards the engine until its end."""
    processes.become_subreaper()
    channel = socket.socket(fileno=int(sys.argv[1]))
    channel.set_inheritable(False)
    with channel.makefile("r") as reader:
        order = json.loads(reader.readline())
    try:
        guard = Guard(channel, order)
    except OSError as error:
        _tell(channel, {"error": f"{order['argv'][0]}: {error.strerror}"})
        return 127
    _tell(channel, {"pid": guard.engine.pid})
    code = guard.watch()
    _tell(channel, {"exit": code})
    return 0


def _tell(channel: socket.socket, message: dict[str, Any]) -> None:
    with contextlib.suppress(OSError):
        channel.sendall(json.dumps(message).encode() + b"\n")


if __name__ == "__main__":
    sys.exit(main())
