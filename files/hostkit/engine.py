"""One engine process under its guard: started, watched, stopped with all its descendants."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
import time
from pathlib import Path

from . import files, processes
from .errors import HostkitError, StartError
from .launch import Launch

PACKAGES = str(Path(__file__).resolve().parent.parent)
NOTIFY = ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID")
STEERING = ("SGLANG_", "NCCL_", "TRITON_", "FLASHINFER_", "TORCH_", "TORCHINDUCTOR_", "PYTORCH_")
PORT_PATIENCE_S = 5.0  # a port that a just killed engine held is free again within this


async def refuse_if_busy(port: int, what: str) -> None:
    """Raises HostkitError naming who listens on `port`, unless it is freed within seconds."""
    deadline = time.monotonic() + PORT_PATIENCE_S
    while holder := processes.listener(port):
        if time.monotonic() > deadline:
            raise HostkitError(
                f"port {port} ({what}) is in use by {holder}; "
                "expected it free: stop that process or choose another port"
            )
        await asyncio.sleep(0.25)


class Engine:
    """One run of a launch; `start` may be called once.

    `exit_code` is None while it runs; -N stands for signal N. `oom_killed` is whether the kernel
    killed any process for memory during the run.
    """

    def __init__(self, launch: Launch):
        self.launch = launch
        self.pid: int | None = None
        self.exit_code: int | None = None
        self.started = 0.0
        self._oom_kills = 0
        self._family: dict[int, int] = {}
        self._guard: asyncio.subprocess.Process | None = None
        self._ended: asyncio.Task[None] | None = None
        self._writer: asyncio.StreamWriter | None = None

    def _environment(self) -> dict[str, str]:
        """The caller's environment with the launch's on top, without the notify socket.

        And without what steers an engine: under supervisor the caller is a login, and what its
        shell says of these would be in no launch and no fingerprint.
        """
        own = {
            name: value
            for name, value in os.environ.items()
            if name not in NOTIFY and not name.startswith(STEERING)
        }
        return {**own, "PYTHONUNBUFFERED": "1", **self.launch.env}

    async def start(self) -> None:
        """Starts the engine, its output appended to a fresh engine.log.

        Raises HostkitError when the port is taken or the command can't be run.
        """
        await refuse_if_busy(self.launch.port, f"engine of arm {self.launch.arm}")
        log = self.launch.log
        log.parent.mkdir(parents=True, exist_ok=True)
        files.rotate(log)
        self.started = time.monotonic()
        self._oom_kills = processes.oom_kills()
        ours, theirs = socket.socketpair()
        with log.open("ab") as output, theirs:
            self._guard = await asyncio.create_subprocess_exec(
                sys.executable,
                "-m",
                "hostkit.guard",
                str(theirs.fileno()),
                stdin=asyncio.subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
                env={**os.environ, "PYTHONPATH": PACKAGES},
            )
        try:
            await self._hand_over(ours)
        except BaseException:  # also a cancellation: the guard ends all when the channel closes
            ours.close()
            raise

    async def _hand_over(self, ours: socket.socket) -> None:
        """Gives the guard its order and learns the engine's pid."""
        assert self._guard is not None
        order = {
            "argv": list(self.launch.argv),
            "env": self._environment(),
            "cwd": self.launch.cwd,
            "grace_s": self.launch.stop_timeout_s,
        }
        reader, writer = await asyncio.open_connection(sock=ours)
        self._writer = writer  # kept: closing it tells the guard to kill all
        writer.write(json.dumps(order).encode() + b"\n")
        await writer.drain()
        answer = json.loads(await reader.readline() or b'{"error": "the guard died"}')
        if "error" in answer:
            await self._guard.wait()
            raise StartError(
                f"the engine of arm {self.launch.arm} can't be started: {answer['error']}; "
                "expected an executable command in argv and an existing cwd"
            )
        self.pid = int(answer["pid"])
        self._ended = asyncio.create_task(self._follow(reader))

    async def _follow(self, reader: asyncio.StreamReader) -> None:
        assert self._guard is not None
        line = await reader.readline()
        await self._guard.wait()
        await asyncio.to_thread(processes.kill_family, self._family)  # only if the guard was killed
        self.exit_code = json.loads(line)["exit"] if line else -signal.SIGKILL
        if self._writer is not None:
            self._writer.close()

    async def wait(self) -> int:
        """Returns the exit code once the engine and all that it started are gone."""
        assert self._ended is not None
        await asyncio.shield(self._ended)
        assert self.exit_code is not None
        return self.exit_code

    async def stop(self) -> None:
        """TERM, then KILL after the launch's stop_timeout_s; returns when nothing is left."""
        if self._guard is None or self._ended is None:
            return
        if not self._ended.done():
            self.note_family()
            with contextlib.suppress(ProcessLookupError):
                self._guard.send_signal(signal.SIGTERM)
        await self.wait()

    def note_family(self) -> None:
        """Remembers the present descendants, for the day on which the guard itself is killed."""
        if self._guard is not None:
            self._family = processes.descendants(self._guard.pid) or self._family

    def keep_log_small(self) -> None:
        files.cap(self.launch.log, self.launch.log_limit_bytes)

    @property
    def oom_killed(self) -> bool:
        return processes.oom_kills() > self._oom_kills

    def log_tail(self, lines: int = 400) -> list[str]:
        return files.tail(self.launch.log, lines)
