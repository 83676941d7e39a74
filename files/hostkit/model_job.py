"""The job of one download: what to fetch and where to, its status file, its lock."""

import fcntl
import json
import os
import time
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Self

from .errors import HostkitError
from .files import write_json

SEGMENT = 256 << 20  # bytes of one request; large, so that a 10 GB file costs 40 requests
MARGIN = 1 << 30  # bytes that a download leaves free on its mount


@dataclass(frozen=True)
class Job:
    """A job file. `directory` is the finished model; `.fetch/` in it holds what is on its way."""

    key: str
    source: str
    kind: str  # "hub" or "pypi"
    repo: str
    revision: str
    directory: Path
    stamp: Path
    status: Path
    token_file: Path | None = None
    endpoint: str | None = None
    uv: str = "uv"
    full: bool = False
    workers: int = 8
    segment_bytes: int = SEGMENT
    margin_bytes: int = MARGIN
    stall_s: float = 300.0  # no byte for so long: the worker is killed
    read_timeout_s: float = 30.0  # no byte on one connection: a new one
    environment: dict[str, str] = field(default_factory=dict)

    @classmethod
    def read(cls, path: Path) -> Self:
        """Read a job file; HostkitError with one line if it isn't one."""
        try:
            data = json.loads(path.read_text())
            known = {f.name for f in fields(cls)}
            odd = sorted(set(data) - known)
            if odd:
                raise ValueError(f"unknown keys {', '.join(odd)}")
            for name in ("directory", "stamp", "status", "token_file"):
                if data.get(name) is not None:
                    data[name] = Path(data[name])
            return cls(**data)
        except (OSError, ValueError, TypeError) as error:
            raise HostkitError(f"{path}: expected a download's job file: {error}") from error

    @property
    def work(self) -> Path:
        """The folder of unfinished files, inside the model's own, so that a rename is enough."""
        return self.directory / ".fetch"

    @property
    def manifest(self) -> Path:
        """Sizes and sha256 of all files, as SGLang's model_file_verifier reads them."""
        return self.directory.with_name(f"{self.directory.name}.manifest.json")

    def token(self) -> str | None:
        """The Hub token: systemd's credential, else the 0600 file, else HF_TOKEN."""
        credentials = os.environ.get("CREDENTIALS_DIRECTORY")
        places = [Path(credentials) / "hf_token"] if credentials else []
        if self.token_file is not None:
            places.append(self.token_file)
        for place in places:
            try:
                text = place.read_text().strip()
            except OSError:
                continue
            if text:
                return text
        return os.environ.get("HF_TOKEN") or None

    def forget_token(self) -> None:
        """Empty the 0600 file: a finished download needs it no more."""
        if self.token_file is not None and self.token_file.exists():
            self.token_file.write_text("")

    def stamped(self) -> bool:
        """True when the stamp names this revision and the folder is there."""
        try:
            found = json.loads(self.stamp.read_text())
        except (OSError, ValueError):
            return False
        return self.directory.is_dir() and found.get("revision") == self.revision

    def shrunk(self) -> bool:
        """Files were removed or cut short since the stamp was written."""
        try:
            total = int(json.loads(self.stamp.read_text())["bytes"])
            files = [path for path in self.directory.rglob("*") if path.is_file()]
            return sum(path.stat().st_size for path in files) < total
        except (OSError, ValueError, KeyError, TypeError):
            return False

    def write_stamp(self, files: int, size: int) -> None:
        """The last act of a download: from here on the model is trusted."""
        write_json(
            self.stamp,
            {
                "source": self.source,
                "revision": self.revision,
                "files": files,
                "bytes": size,
                "verified": True,
                "verified_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()),
            },
        )


class Lock:
    """One fetch a model: held by the fetcher and inherited by its worker, so never stale."""

    def __init__(self, directory: Path) -> None:
        directory.parent.mkdir(parents=True, exist_ok=True)
        self.path = directory.with_name(f"{directory.name}.lock")
        self.fd = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o644)

    def take(self, wait_s: float = 5.0) -> None:
        """HostkitError when it is held after `wait_s`; a dying worker needs a moment to let go."""
        deadline = time.monotonic() + wait_s
        while True:
            try:
                fcntl.flock(self.fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() > deadline:
                    holder = self.path.read_text().strip() or "unknown"
                    raise HostkitError(
                        f"another fetch of this model is at work (pid {holder}); wait for it"
                    ) from None
                time.sleep(0.1)
        os.ftruncate(self.fd, 0)
        os.pwrite(self.fd, f"{os.getpid()}\n".encode(), 0)


class Status:
    """The status file: written at most once a second, at once when the state changes.

    States: checking, fetching, verifying, done; refused (a person must act), failed (worth
    another try), stopped (by a signal).
    """

    def __init__(self, job: Job) -> None:
        self._path = job.status
        self._data: dict[str, Any] = {
            "key": job.key,
            "source": job.source,
            "pid": os.getpid(),
            "state": "checking",
            "message": "asking for the list of files",
            "bytes_done": None,
            "bytes_total": None,
            "rate": None,
            "eta_s": None,
        }
        self._written = 0.0

    def update(self, **changes: Any) -> None:
        """Change fields of the document; see `Status` for when it is written."""
        state = changes.get("state", self._data["state"])
        now = time.monotonic()
        turned = state != self._data["state"] or self._written == 0.0
        self._data.update(changes, updated=time.time())
        if turned or now - self._written >= 1.0:
            write_json(self._path, self._data)
            self._written = now
