"""The process that downloads: a child of `hostkit fetch`, so that a hung one can be killed.

Reads one JSON line on stdin (job file, token, way), writes JSON lines on stdout: progress
`{"bytes", "hashed", "wait_s", "note"}` about twice a second, then `{"done": {NAME: {"sha256",
"size"}}}` or `{"fatal": TEXT, "temporary": BOOL}`. Ends when stdin closes, so never outlives its
parent.
"""

import errno
import json
import os
import random
import signal
import sys
import threading
import time
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from .errors import HostkitError
from .model_hub import HubFile, TemporaryError, list_files, mount_of
from .model_job import Job
from .model_parts import PartFile
from .model_streams import HUB, HttpStreams, Streams, WaitError, XetStreams
from .model_verified import Verified
from .verify import DamagedError, FileInfo, check_file, threads

SYNC_S = 5.0  # what a power cut may cost
TRIES = 7  # of one range without a byte; with the pauses between them about two minutes
DAMAGED_TRIES = 3  # downloads of one file before its source counts as broken
STATUS_S = 0.5


@dataclass
class Pending:
    """A file that is not verified yet. `part` is None until its first segment begins."""

    file: HubFile
    left: int  # segments not finished
    part: PartFile | None = None
    damaged: int = 0


class Worker:
    """Downloads and verifies all files of a job; one thread a range, hashing beside it."""

    def __init__(
        self, job: Job, files: tuple[HubFile, ...], streams: Streams, connections: int
    ) -> None:
        self.job = job
        self.streams = streams
        self.connections = connections
        self.verified = Verified(job.work)
        self.error: HostkitError | None = None
        self.note = ""
        self.stopping = threading.Event()
        self._lock = threading.Condition()
        self._tasks: deque[tuple[Pending, int]] = deque()
        self._pool = ThreadPoolExecutor(threads(), thread_name_prefix="hash")
        self._not_before = 0.0
        self._bytes = self._hashed = 0
        self._open: dict[str, Pending] = {}
        self._unverified = 0
        self._total = sum(file.size for file in files)
        for file in files:
            self._add(file)

    def _add(self, file: HubFile) -> None:
        final = self.job.directory / file.path
        if self.verified.has(file, final):
            self._bytes += file.size
            self._hashed += file.size
            return
        self._unverified += 1
        pending = Pending(file, -(-file.size // self.job.segment_bytes))
        if final.is_file() and final.stat().st_size == file.size:
            self._bytes += file.size
            self._pool.submit(self._verify, pending, final)
            return
        part = self._part_path(file)
        if file.size == 0 or part.exists():
            self._bytes += self._part(pending).done
        self._enqueue(pending)

    def _part_path(self, file: HubFile) -> Path:
        return self.job.work / f"{file.path}.part"

    def _enqueue(self, pending: Pending) -> None:
        part = pending.part
        count = -(-pending.file.size // self.job.segment_bytes)
        open_ones = [i for i in range(count) if part is None or part.rest(i)[0] < part.rest(i)[1]]
        pending.left = len(open_ones)
        if not open_ones:
            self._pool.submit(self._verify, pending, None)
        self._tasks.extend((pending, index) for index in open_ones)

    def run(self) -> dict[str, FileInfo]:
        """Work until everything is verified; raises what stopped it, with all parts synced."""
        pullers = [
            threading.Thread(target=self._pull, daemon=True) for _ in range(self.connections)
        ]
        for thread in pullers:
            thread.start()
        synced = time.monotonic()
        try:
            while not self.stopping.is_set():
                with self._lock:
                    if self._unverified == 0 or self.error:
                        break
                    self._lock.wait(STATUS_S)
                self.report()
                if time.monotonic() - synced > SYNC_S:
                    self._sync()
                    synced = time.monotonic()
        finally:
            self.stopping.set()
            self._sync()
            self.report()
        if self.error:
            raise self.error
        return self.verified.files

    def report(self) -> None:
        wait = max(0.0, self._not_before - time.time())
        say(bytes=self._bytes, hashed=self._hashed, wait_s=round(wait, 1), note=self.note)

    def _sync(self) -> None:
        with self._lock:
            parts = [p.part for p in self._open.values() if p.part is not None]
        try:
            for part in parts:
                part.sync()
        except OSError as error:
            self._fail(error)

    def _pull(self) -> None:
        while not self.stopping.is_set():
            with self._lock:
                if not self._tasks:
                    self._lock.wait(0.2)
                    continue
                pending, index = self._tasks.popleft()
            try:
                self._range(pending, self._part(pending), index)
            except Exception as error:  # a thread that dies in silence would look like a stall
                self._fail(error)
                return

    def _part(self, pending: Pending) -> PartFile:
        with self._lock:
            if pending.part is None:
                path = self._part_path(pending.file)
                pending.part = PartFile(path, pending.file.size, self.job.segment_bytes)
                self._open[pending.file.path] = pending
            return pending.part

    def _range(self, pending: Pending, part: PartFile, index: int) -> None:
        """Fetch what one segment lacks, with pauses and new tries while the network fails."""
        tries = 0
        while not self.stopping.is_set():
            start, end = part.rest(index)
            if start == end:
                break
            self._patience()
            try:
                for data in self.streams.stream(pending.file, start, end):
                    part.write(index, data)
                    with self._lock:
                        self._bytes += len(data)
                    if self.stopping.is_set():
                        return
                continue
            except (TemporaryError, OSError, EOFError) as error:
                if _full(error):
                    raise
                tries = 1 if part.rest(index)[0] > start else tries + 1
                if tries > TRIES:
                    raise TemporaryError(str(error) or type(error).__name__) from error
                self._pause(tries, error)
        with self._lock:
            pending.left -= 1
            if pending.left == 0 and part.whole:
                self._pool.submit(self._verify, pending, None)

    def _patience(self) -> None:
        while not self.stopping.is_set() and (left := self._not_before - time.time()) > 0:
            time.sleep(min(left, 0.2))
        self.note = ""

    def _pause(self, tries: int, error: Exception) -> None:
        """Back off. A rate limit holds all connections, anything else only this one."""
        seconds = min(60.0, 0.5 * 2**tries) * random.uniform(0.75, 1.25)
        first = (str(error) or type(error).__name__).splitlines()[0]
        if isinstance(error, WaitError):
            seconds = error.seconds if error.seconds is not None else seconds
            self._not_before = max(self._not_before, time.time() + seconds)
        self.note = f"{first}; next try in {seconds:.0f} s"
        self.stopping.wait(seconds)

    def _verify(self, pending: Pending, final: Path | None) -> None:
        try:
            self._check(pending, final)
        except Exception as error:
            self._fail(error)

    def _count_hashed(self, size: int) -> None:
        with self._lock:
            self._hashed += size

    def _check(self, pending: Pending, final: Path | None) -> None:
        file, part = pending.file, pending.part
        path = final or self._part_path(file)
        try:
            info = check_file(path, file, self._count_hashed)
        except DamagedError as error:
            self._again(pending, final, error)
            return
        destination = self.job.directory / file.path
        with self._lock:
            self._open.pop(file.path, None)
        if final is None and part is not None:
            part.finish(destination)
        with self._lock:
            self.verified.add(file.path, info, destination)
            self._unverified -= 1
            self._lock.notify_all()

    def _again(self, pending: Pending, final: Path | None, error: DamagedError) -> None:
        """A damaged file is fetched again, alone."""
        pending.damaged += 1
        if pending.damaged >= DAMAGED_TRIES:
            raise HostkitError(f"{error}; {DAMAGED_TRIES} times in a row: its source is broken")
        self.note = f"{error}; fetched again"
        say(note=self.note)
        with self._lock:
            self._bytes -= pending.file.size
            if final is not None:
                final.unlink()
            if pending.part is not None:
                pending.part.clear()
            self._enqueue(pending)
            self._lock.notify_all()

    def _fail(self, error: Exception) -> None:
        if _full(error):
            to_come = self._total - self._bytes
            mount = mount_of(self.job.directory)
            found = os.statvfs(mount)
            free = found.f_bavail * found.f_frsize
            error = HostkitError(
                f"disk full: {to_come / 1e9:.2f} GB still to come, {free / 1e9:.2f} GB free on "
                f"{mount}: make room for {max(0, to_come - free) / 1e9:.2f} GB and run again"
            )
        elif not isinstance(error, HostkitError):
            error = HostkitError(f"{type(error).__name__}: {error}")
        with self._lock:
            self.error = self.error or error
            self._lock.notify_all()


def _full(error: Exception) -> bool:
    return isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT)


_say_lock = threading.Lock()


def say(**fields: Any) -> None:
    """One JSON line to the parent."""
    with _say_lock:
        sys.stdout.write(json.dumps(fields) + "\n")
        sys.stdout.flush()


def main() -> int:
    order = json.loads(sys.stdin.readline())
    job = Job.read(Path(order["job"]))
    token = order["token"]
    endpoint = (job.endpoint or os.environ.get("HF_ENDPOINT") or HUB).rstrip("/")
    plain = HttpStreams(endpoint, job.repo, job.revision, token, job.read_timeout_s)
    streams: Streams = plain
    if order["way"] == "xet":
        streams = XetStreams(endpoint, job.repo, job.revision, token, plain)
    try:
        worker = Worker(job, list_files(job, token), streams, order["connections"])
        signal.signal(signal.SIGTERM, lambda *_: worker.stopping.set())
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        threading.Thread(target=_end_with_parent, args=(worker,), daemon=True).start()
        done = worker.run()
        if worker.stopping.is_set() and len(done) < len(list_files(job, token)):
            return 143
        say(done={name: asdict(info) for name, info in done.items()})
    except HostkitError as error:
        say(fatal=str(error), temporary=isinstance(error, TemporaryError))
    return 0


def _end_with_parent(worker: Worker) -> None:
    sys.stdin.read()
    worker.stopping.set()


if __name__ == "__main__":
    code = main()
    sys.stdout.flush()
    os._exit(code)  # threads may hang in a read: the parts are synced, nothing else matters
