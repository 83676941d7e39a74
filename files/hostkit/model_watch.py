"""The watch over a download: bytes must grow. A live process says nothing (xet-core issue 883).

The worker is a child; when neither downloaded nor hashed bytes grow for `stall_s` it is killed
and another takes over, one rung further down: Xet, Xet once more, HTTP ranges, one connection.
"""

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from .errors import HostkitError
from .model_hub import HubFile, TemporaryError
from .model_job import Job, Lock, Status
from .verify import FileInfo

LINE_S = 10.0  # between progress lines of the journal
IDLE_TRIES = 3  # on the last rung, without a byte, before the fetch gives up
PATIENCE_S = 900.0  # the longest announced pause (a rate limit) that the watch waits out
RATE_S = 20.0  # time constant of the shown rate


@dataclass(frozen=True)
class Rung:
    """One way to download: `way` is "xet" or "http"."""

    way: str
    connections: int

    def __str__(self) -> str:
        one = self.connections == 1
        return (
            f"{'Xet' if self.way == 'xet' else 'HTTP'}, {'one connection' if one else 'parallel'}"
        )


@dataclass(frozen=True)
class Ended:
    """How a worker ended: `files` when all is verified, else why not; `grew` if bytes came."""

    files: dict[str, FileInfo] | None
    why: str
    refused: bool
    grew: bool


def ladder(job: Job, files: tuple[HubFile, ...]) -> tuple[Rung, ...]:
    """The rungs of a job: Xet only where the repository has it and hf_xet is there and allowed."""
    plain = (Rung("http", job.workers), Rung("http", 1))
    off = os.environ.get("HF_HUB_DISABLE_XET", "").upper() in ("1", "TRUE", "YES", "ON")
    if off or not any(file.xet for file in files) or not _has_xet():
        return (Rung("http", job.workers), *plain)
    return (Rung("xet", job.workers), Rung("xet", job.workers), *plain)


def _has_xet() -> bool:
    try:
        import hf_xet  # type: ignore[import-untyped]  # noqa: F401
    except ImportError:
        return False
    return True


def watch(
    job: Job, job_path: Path, files: tuple[HubFile, ...], status: Status, lock: Lock
) -> dict[str, FileInfo]:
    """Run workers until all files are verified; HostkitError or TemporaryError if they can't be."""
    rungs = ladder(job, files)
    at = idle = 0
    while True:
        ended = _attempt(job, job_path, rungs[at], sum(f.size for f in files), status, lock)
        if ended.files is not None:
            return ended.files
        if ended.refused:
            raise HostkitError(ended.why)
        idle = 0 if ended.grew else idle + 1
        if at == len(rungs) - 1 and idle >= IDLE_TRIES:
            raise TemporaryError(f"gave up after {idle} tries without a byte: {ended.why}")
        at = min(at + 1, len(rungs) - 1)
        line = f"{ended.why}; going on with {rungs[at]}"
        print(f"{job.source}: {line}", flush=True)
        status.update(message=line)


def _attempt(job: Job, job_path: Path, rung: Rung, total: int, status: Status, lock: Lock) -> Ended:
    worker = subprocess.Popen(
        [sys.executable, "-m", "hostkit.model_worker"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        pass_fds=(lock.fd,),  # a worker that outlives us keeps the lock
        start_new_session=True,
        env={**os.environ, **_xet_environment()},
    )
    order = {
        "job": str(job_path),
        "token": job.token(),  # over the pipe: not in an environment, not in a command line
        "way": rung.way,
        "connections": rung.connections,
    }
    assert worker.stdin is not None
    try:
        worker.stdin.write(json.dumps(order) + "\n")
        worker.stdin.flush()
        return _follow(job, worker, total, status)
    except BrokenPipeError:
        return Ended(None, f"the worker ended at once (code {worker.wait()})", False, False)
    finally:
        _end(worker)


def _xet_environment() -> dict[str, str]:
    """hf_xet's larger buffers where they don't matter: on a host with 64 GiB or more."""
    quiet = {"HF_HUB_DISABLE_TELEMETRY": "1"}
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return quiet | ({"HF_XET_HIGH_PERFORMANCE": "1"} if memory >= 64 << 30 else {})


def _follow(job: Job, worker: "subprocess.Popen[str]", total: int, status: Status) -> Ended:
    progress = Progress(total)
    deadline = time.monotonic() + job.stall_s
    for said in _lines(worker):
        now = time.monotonic()
        if said is None:
            if now > deadline:
                why = f"no byte for {job.stall_s:.0f} s"
                return Ended(None, why, refused=False, grew=progress.grew)
            continue
        if "done" in said:
            files = {name: FileInfo(**info) for name, info in said["done"].items()}
            return Ended(files, "", refused=False, grew=True)
        if "fatal" in said:
            return Ended(None, said["fatal"], not said["temporary"], progress.grew)
        if progress.take(said, now):
            deadline = now + job.stall_s
        deadline = max(deadline, now + min(said.get("wait_s", 0.0), PATIENCE_S))
        status.update(**progress.fields(said.get("note", "")))
        if line := progress.line(now, said.get("note", "")):
            print(f"{job.source}: {line}", flush=True)
    code = worker.wait()
    return Ended(None, f"the worker was killed (code {code})", False, progress.grew)


def _lines(worker: "subprocess.Popen[str]") -> Iterator[dict[str, Any] | None]:
    """The worker's lines as they come; None whenever it was silent for half a second."""
    said: queue.Queue[str | None] = queue.Queue()

    def read() -> None:
        assert worker.stdout is not None
        for line in worker.stdout:
            said.put(line)
        said.put(None)

    threading.Thread(target=read, daemon=True).start()
    while True:
        try:
            line = said.get(timeout=0.5)
        except queue.Empty:
            yield None
            continue
        if line is None:
            return
        try:
            yield json.loads(line)
        except ValueError:
            print(line.rstrip(), flush=True)  # a library's own words
        yield None


def _end(worker: "subprocess.Popen[str]") -> None:
    """End a worker and what it started: first asked, then killed."""
    if worker.stdin is not None:
        with contextlib.suppress(OSError):
            worker.stdin.close()
    for number, patience in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 30.0)):
        if worker.poll() is not None:
            break
        try:
            os.killpg(worker.pid, number)
            worker.wait(patience)
        except (ProcessLookupError, subprocess.TimeoutExpired):
            continue
    if worker.stdout is not None:
        worker.stdout.close()


class Progress:
    """Bytes, rate and time left; `grew` once anything came."""

    def __init__(self, total: int) -> None:
        self.total = total
        self.grew = False
        self._bytes = self._hashed = -1
        self._rate: float | None = None
        self._at = 0.0
        self._shown = 0.0
        self._note = ""

    def take(self, said: dict[str, Any], now: float) -> bool:
        """Count a report; True if bytes or hashed bytes changed."""
        done, hashed = said.get("bytes", self._bytes), said.get("hashed", self._hashed)
        if self._bytes >= 0 and now > self._at:
            seconds = now - self._at
            rate = max(0, done - self._bytes) / seconds
            weight = min(1.0, seconds / RATE_S) if self._rate is not None else 1.0
            self._rate = rate if self._rate is None else self._rate + weight * (rate - self._rate)
        changed = (done, hashed) != (self._bytes, self._hashed)
        self.grew = self.grew or (changed and self._bytes >= 0)
        self._bytes, self._hashed, self._at = done, hashed, now
        return bool(changed)

    def fields(self, note: str) -> dict[str, Any]:
        """What the status file gets."""
        left = self.total - self._bytes
        fetched = left <= 0
        message = note or (f"verifying, {self._hashed / 1e9:.2f} GB hashed" if fetched else "")
        return {
            "state": "verifying" if fetched else "fetching",
            "bytes_done": max(0, self._bytes),
            "bytes_total": self.total,
            "rate": None if fetched else self._rate,
            "eta_s": left / self._rate if self._rate and not fetched else None,
            "message": message,
        }

    def line(self, now: float, note: str) -> str:
        """A line for the journal, every 10 s and for each new note; else empty."""
        if now - self._shown < LINE_S and (not note or note == self._note):
            return ""
        self._shown, self._note = now, note
        rate = f", {self._rate / 1e6:.0f} MB/s" if self._rate else ""
        share = f"{max(0, self._bytes) / 1e9:.2f} of {self.total / 1e9:.2f} GB{rate}"
        return f"{share}; {note}" if note else share
