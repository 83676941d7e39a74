"""`hostkit supervise`: one engine as a service, alike under systemd and under supervisor(d).

Start, wait until it really serves, report READY, watch, restart after a crash within limits, stop
everything. The state is in RUN_DIR/status.json at any moment, the engine's output in
RUN_DIR/engine.log, and a failure carries its cause (see `diagnose`).
"""

import argparse
import asyncio
import contextlib
import logging
import os
import signal
import sys
import time
from collections import deque
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from . import files, processes
from .diagnose import Cause, diagnose
from .engine import Engine, refuse_if_busy
from .errors import HostkitError
from .launch import Launch, read_json, read_launch
from .metrics import SupervisorMetrics
from .notify import notify, watchdog_interval_s
from .readiness import NotReadyError, client, healthy, wait_ready

LONGEST_DELAY_S = 60.0
# While an engine starts, the launch's own limits decide, and they name the cause: the service
# manager's start limit and watchdog are moved 90 s ahead with each progress line.
PATIENCE = ("EXTEND_TIMEOUT_USEC=90000000", "WATCHDOG=1")
log = logging.getLogger("hostkit")


@dataclass(frozen=True)
class Status:
    """What status.json holds; `since` is the epoch second of the state's beginning.

    `flags` names the command line and the environment that this process has read, whatever
    launch.json and service.env say by now.
    """

    state: str
    fingerprint: str
    flags: str
    arm: str
    pid: int
    port: int
    engine_pid: int | None = None
    since: float = field(default_factory=time.time)
    ready_s: float | None = None
    restarts: int = 0
    message: str = ""
    cause: Cause | None = None

    @classmethod
    def of(cls, launch: Launch, state: str, **more: Any) -> "Status":
        """This process's status for a launch."""
        names = (launch.fingerprint, launch.flags, launch.arm, os.getpid(), launch.port)
        return cls(state, *names, **more)


class Supervisor:
    """Runs one launch until it is told to stop or its restarts are used up."""

    def __init__(self, launch: Launch):
        self.launch = launch
        self.metrics = SupervisorMetrics(launch)
        self.status = Status.of(launch, "starting")
        self.engine = Engine(launch)
        self.stopping = asyncio.Event()
        self._written = ""
        self._unwritten = False

    # -- state ------------------------------------------------------------------------------

    def tell(self, message: str, **changes: Any) -> None:
        """Changes the status; writes file, metrics and the service manager's STATUS line."""
        if changes.get("state", self.status.state) != self.status.state:
            changes["since"] = time.time()
        self.status = replace(self.status, message=message, **changes)
        self._write()
        self.metrics.state.state(self.status.state)
        notify(f"STATUS={message[:500]}")
        if message != self._written and "state" in changes:
            log.info("%s: %s", self.status.state, message)
        self._written = message

    def _write(self) -> None:
        """A full disk does not end the service; an old "ready" does not outlive what it said."""
        path = Path(self.launch.run_dir) / "status.json"
        try:
            files.write_json(path, asdict(self.status))
            self._unwritten = False
        except OSError as error:
            with contextlib.suppress(OSError):
                path.unlink(missing_ok=True)
            if not self._unwritten:
                log.warning("%s can't be written: %s", path, error.strerror)
            self._unwritten = True

    def _progress(self, message: str) -> None:
        self.tell(message, engine_pid=self.engine.pid)
        notify(*PATIENCE)

    # -- life -------------------------------------------------------------------------------

    async def run(self) -> int:
        """0 after an asked stop, 1 when the engine could not be kept serving."""
        await refuse_if_busy(self.launch.port, f"engine of arm {self.launch.arm}")
        if self.launch.metrics_port is not None:
            await refuse_if_busy(self.launch.metrics_port, "metrics of the supervisor")
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, self.stopping.set)
        self.metrics.serve()
        life = asyncio.create_task(self._keep_serving())
        asked = asyncio.create_task(self.stopping.wait())
        await asyncio.wait({life, asked}, return_when=asyncio.FIRST_COMPLETED)
        failure: str | None = None
        if life.done() and not self.stopping.is_set():
            failure = life.result()
        else:
            notify("STOPPING=1", "STATUS=stopping the engine")
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)
        asked.cancel()
        await self.engine.stop()
        processes.kill_family(processes.descendants(os.getpid()))
        if failure is None:
            self.tell("stopped on request", state="stopped", engine_pid=None)
            return 0
        self.tell(failure, state="failed", engine_pid=None)
        print(f"hostkit supervise: {failure}", file=sys.stderr)
        return 1

    async def _keep_serving(self) -> str:
        """Starts the engine again and again; returns why that ended."""
        recent: deque[float] = deque()
        never_ready = 0
        while True:
            self.engine = Engine(self.launch)
            self.tell("starting the engine", state="starting", engine_pid=None, ready_s=None)
            try:
                await self.engine.start()
                await self._become_ready()
                never_ready = 0
                failure = await self._watch()
            except NotReadyError as error:
                never_ready += 1
                failure = error
            except HostkitError as error:
                return str(error)
            await self.engine.stop()
            self.status = replace(self.status, cause=failure.cause)
            if failure.cause is not None and not failure.cause.retry:
                return str(failure)
            # A slow failure leaves the window before it fills it: starts in a row count too.
            now = time.monotonic()
            while recent and now - recent[0] > self.launch.restart_window_s:
                recent.popleft()
            if max(len(recent), never_ready - 1) >= self.launch.restart_limit:
                return f"gave up after {self.status.restarts} restarts: {failure}"
            recent.append(now)
            delay = min(self.launch.restart_delay_s * 2 ** (len(recent) - 1), LONGEST_DELAY_S)
            self.metrics.restarts.inc()
            self.tell(
                f"{failure}; restart in {delay:.0f} s",
                state="starting",
                engine_pid=None,
                restarts=self.status.restarts + 1,
            )
            await self._pause(delay)

    async def _pause(self, seconds: float) -> None:
        """Sleeps between two starts, the service manager kept patient."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0:
            notify(*PATIENCE)
            await asyncio.sleep(min(left, 1.0))

    async def _become_ready(self) -> None:
        seconds = await wait_ready(self.engine, self._progress)
        self.metrics.ready_seconds.set(seconds)
        self.tell(
            f"serving arm {self.launch.arm} on port {self.launch.port}",
            state="ready",
            engine_pid=self.engine.pid,
            ready_s=round(seconds, 3),
            cause=None,
        )
        notify("READY=1", f"STATUS=serving arm {self.launch.arm} on port {self.launch.port}")

    async def _watch(self) -> NotReadyError:
        """Watches a ready engine; returns how it failed."""
        probing = asyncio.create_task(self._probe_until_hung())
        ended = asyncio.create_task(self.engine.wait())
        try:
            await asyncio.wait({probing, ended}, return_when=asyncio.FIRST_COMPLETED)
            tail = self.engine.log_tail()
            if not ended.done():
                silent = f"no answer on /health for {self.launch.hang_timeout_s:.0f} s"
                return NotReadyError(silent, _retryable(diagnose(tail, hung=True)))
            code = ended.result()
            last = tail[-1][:200] if tail else "no output"
            cause = diagnose(tail, code, oom_killed=self.engine.oom_killed)
            return NotReadyError(f"the engine ended with code {code}: {last}", _retryable(cause))
        finally:
            for task in (probing, ended):
                task.cancel()
            await asyncio.gather(probing, ended, return_exceptions=True)

    async def _probe_until_hung(self) -> None:
        interval = self.launch.health_interval_s
        watchdog = watchdog_interval_s()
        pause = min(interval, watchdog) if watchdog else interval
        last_good = time.monotonic()
        async with client(self.launch) as http:
            while time.monotonic() - last_good < self.launch.hang_timeout_s:
                if await healthy(http):
                    last_good = time.monotonic()
                    notify("WATCHDOG=1")
                else:
                    self.metrics.health_failures.inc()
                if self._unwritten:
                    self._write()
                with contextlib.suppress(OSError):  # no room for the copy: the next round tries
                    self.engine.keep_log_small()
                self.engine.note_family()
                await asyncio.sleep(pause)


def _retryable(cause: Cause | None) -> Cause | None:
    """An engine that has served once may be started again whatever ended it."""
    return replace(cause, retry=True) if cause else None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--launch", type=Path, required=True, help="launch.json of the plan")


def run(args: argparse.Namespace) -> int:
    """Supervises until SIGTERM or SIGINT; 0 then, 1 when the engine can't be kept serving."""
    logging.basicConfig(level=logging.INFO, format="hostkit %(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    launch = read_launch(args.launch)
    processes.become_subreaper()
    try:
        return asyncio.run(Supervisor(launch).run())
    except HostkitError as error:
        _write_refusal(launch, str(error))
        raise


def _write_refusal(launch: Launch, message: str) -> None:
    """Status 'failed', unless the status file belongs to a supervisor that is still alive."""
    path = Path(launch.run_dir) / "status.json"
    with contextlib.suppress(HostkitError, OSError, KeyError):
        owner = int(read_json(path)["pid"])
        if owner != os.getpid() and "hostkit" in Path(f"/proc/{owner}/cmdline").read_text():
            return
    kind = "port-in-use" if message.startswith("port ") else "launch"
    title, _, remedy = message.partition("; ")
    status = Status.of(launch, "failed", message=message, cause=Cause(kind, title, "", remedy))
    with contextlib.suppress(OSError):
        files.write_json(path, asdict(status))
