"""The cgroup of a lab: one folder a lab, one a host, in the version 2 hierarchy.

It is the only record of what runs that can't be lost: killing the folder ends every process of
every host, whatever became of the state folder or of the program that started them.
"""

import contextlib
import os
import time
from pathlib import Path


def hierarchy() -> Path | None:
    """Where cgroup version 2 is mounted on this machine (alone, or beside version 1)."""
    for line in Path("/proc/self/mounts").read_text().splitlines():
        _, where, kind, *_ = line.split()
        if kind == "cgroup2":
            return Path(where)
    return None


def own(mount: Path) -> "Cgroup":
    """The calling process's version 2 cgroup, seen through a new `mount` of the hierarchy."""
    for line in Path("/proc/self/cgroup").read_text().splitlines():
        if line.startswith("0::"):
            return Cgroup(mount / line.removeprefix("0::").lstrip("/"))
    raise FileNotFoundError("/proc/self/cgroup has no version 2 entry")


class Cgroup:
    """One folder of the hierarchy, and all below it."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def child(self, name: str) -> "Cgroup":
        return Cgroup(self.path / name)

    def join(self) -> None:
        """Move the calling process here."""
        self.path.mkdir(parents=True, exist_ok=True)
        (self.path / "cgroup.procs").write_text(str(os.getpid()))

    def alive(self) -> bool:
        """Whether any process is here or below."""
        try:
            return "populated 1" in (self.path / "cgroup.events").read_text()
        except FileNotFoundError:
            return False

    def kill(self, timeout_s: float = 10.0) -> None:
        """End every process here and below, then remove the folders.

        Raises:
            TimeoutError: something was still there after `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while self.path.exists():
            self._signal()
            self._remove()
            if time.monotonic() > deadline:
                raise TimeoutError(f"{self.path} still has processes after {timeout_s:g} s")
            time.sleep(0.02)

    def _signal(self) -> None:
        switch = self.path / "cgroup.kill"
        with contextlib.suppress(FileNotFoundError):
            if switch.exists():
                switch.write_text("1")
                return
            for procs in self.path.rglob("cgroup.procs"):  # kernels before 5.14
                for pid in procs.read_text().split():
                    with contextlib.suppress(ProcessLookupError):
                        os.kill(int(pid), 9)

    def _remove(self) -> None:
        for folder, _, _ in os.walk(self.path, topdown=False):
            with contextlib.suppress(OSError):
                Path(folder).rmdir()
