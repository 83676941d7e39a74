"""What a repository holds: its files, their sizes and the hashes that the Hub vouches for."""

import json
import os
from collections.abc import Iterable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import HostkitError
from .files import write_json
from .model_errors import reason, status_of
from .model_job import Job


class TemporaryError(HostkitError):
    """The network gave up, not we: worth another try."""


@dataclass(frozen=True)
class HubFile:
    """One file: `sha256` for LFS and Xet files, `blob` (git blob sha1) for the small ones."""

    path: str
    size: int
    sha256: str | None
    blob: str | None
    xet: str | None = None


def list_files(job: Job, token: str | None) -> tuple[HubFile, ...]:
    """All files of the job's commit, from the saved list of an earlier try or from the Hub.

    A commit never changes, so that a resumed download asks for no list again.
    """
    saved = job.work / "files.json"
    try:
        return tuple(HubFile(**entry) for entry in json.loads(saved.read_text()))
    except (OSError, ValueError, TypeError):
        pass
    return _ask(job, token)


def save_files(job: Job, files: Iterable[HubFile]) -> None:
    """Keep the list beside the unfinished files."""
    write_json(job.work / "files.json", [asdict(file) for file in files])


def _ask(job: Job, token: str | None) -> tuple[HubFile, ...]:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import RepoFile

    api = HfApi(endpoint=job.endpoint, token=token or False)
    try:
        entries = list(api.list_repo_tree(job.repo, recursive=True, revision=job.revision))
    except Exception as error:  # the client's errors have no common base across its versions
        status, code = status_of(error)
        said = reason(status, code, token is not None)
        if said is None:
            first = (str(error).strip() or type(error).__name__).splitlines()[0]
            raise TemporaryError(f"the Hub can't be reached from this host: {first}") from error
        if status is not None and (status == 429 or status >= 500):
            raise TemporaryError(said) from error
        raise HostkitError(said) from error
    files = [
        HubFile(e.path, e.size, e.lfs.sha256 if e.lfs else None, e.blob_id, e.xet_hash)
        for e in entries
        if isinstance(e, RepoFile)
    ]
    if not files:
        raise HostkitError(f"{job.repo} at {job.revision[:12]} holds no files")
    for file in files:
        if file.path.startswith("/") or ".." in file.path.split("/"):
            raise HostkitError(f"{job.repo} lists a path outside its folder: {file.path!r}")
    return tuple(sorted(files, key=lambda file: file.path))


@dataclass(frozen=True)
class Need:
    """What a job still has to bring: `have` bytes of its files are on the disk already."""

    job: Job
    files: tuple[HubFile, ...]
    have: int

    @property
    def to_come(self) -> int:
        return sum(file.size for file in self.files) - self.have


def need_of(job: Job, files: tuple[HubFile, ...]) -> Need:
    """Compare the list with what lies in the job's folder, finished or on its way."""
    have = 0
    for file in files:
        for path in (job.directory / file.path, job.work / f"{file.path}.part"):
            if path.is_file():
                have += min(file.size, path.stat().st_blocks * 512)
                break
    return Need(job, files, have)


def check_room(needs: Sequence[Need]) -> list[str]:
    """Compare what is to come with the free space and inodes of each mount; a line a mount.

    The sum is over all files of all jobs: huggingface_hub only warns, file by file.
    """
    mounts: dict[Path, list[Need]] = {}
    for need in needs:
        mounts.setdefault(mount_of(need.job.directory), []).append(need)
    return [_room(mount, found) for mount, found in mounts.items()]


def _room(mount: Path, needs: list[Need]) -> str:
    found = os.statvfs(mount)
    free = found.f_bavail * found.f_frsize
    count = sum(len(need.files) for need in needs)
    to_come = sum(need.to_come for need in needs)
    margin = max(need.job.margin_bytes for need in needs)
    what = f"{count} files, {to_come / 1e9:.2f} GB to come"
    if to_come + margin > free:
        raise HostkitError(
            f"{what} and {margin / 1e9:.2f} GB to leave, but {mount} has {free / 1e9:.2f} GB free: "
            f"free {(to_come + margin - free) / 1e9:.2f} GB there or choose another prefix"
        )
    if found.f_files and found.f_favail < 3 * count + 16:
        raise HostkitError(
            f"{what}: {mount} has {found.f_favail} inodes left, {3 * count + 16} are needed: "
            "remove small files there"
        )
    return f"{what}; {mount} has {free / 1e9:.2f} GB free"


def mount_of(place: Path) -> Path:
    """The mount point that a folder lies on, or will lie on."""
    while not place.exists():
        place = place.parent
    place = place.resolve()
    while not place.is_mount():
        place = place.parent
    return place
