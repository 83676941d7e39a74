"""Process trees read from /proc: who descends from whom, who listens on a port, who is left.

Linux only. Used so that an engine's helpers that leave the process group (failure record E30)
are still found and stopped.
"""

import contextlib
import ctypes
import os
import signal
import time
from pathlib import Path

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
_libc = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Orphans below this process become its children instead of init's (prctl(2))."""
    if _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def die_with_parent() -> None:
    """In a child before exec: the kernel kills it when the thread that started it ends."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _stat(pid: int) -> tuple[str, int, int] | None:
    """(state, parent, start time in ticks) of one process, None when it is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    rest = text.rpartition(")")[2].split()  # the command name may hold blanks and brackets
    return rest[0], int(rest[1]), int(rest[19])


def descendants(root: int) -> dict[int, int]:
    """Live processes below `root` as {pid: start time}; zombies and `root` itself left out."""
    children: dict[int, list[int]] = {}
    facts: dict[int, tuple[str, int]] = {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        pid = int(entry.name)
        stat = _stat(pid)
        if stat:
            facts[pid] = (stat[0], stat[2])
            children.setdefault(stat[1], []).append(pid)
    found: dict[int, int] = {}
    queue = list(children.get(root, []))
    while queue:
        pid = queue.pop()
        queue.extend(children.get(pid, []))
        if facts[pid][0] not in "ZX":
            found[pid] = facts[pid][1]
    return found


def alive(pid: int, started: int) -> bool:
    """Whether this very process still runs, not a later one under the same number."""
    stat = _stat(pid)
    return stat is not None and stat[2] == started and stat[0] not in "ZX"


def send(pid: int, number: signal.Signals) -> None:
    """Signals one process; gone meanwhile is fine."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.kill(pid, number)


def reap() -> dict[int, int]:
    """Collects ended children of this process: {pid: exit code}, -N for signal N."""
    ended: dict[int, int] = {}
    while True:
        try:
            pid, status = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return ended
        if pid == 0:
            return ended
        ended[pid] = os.waitstatus_to_exitcode(status)


def kill_family(family: dict[int, int], patience_s: float = 5.0) -> list[int]:
    """SIGKILL to each of {pid: start time}; returns those that outlive `patience_s`."""
    deadline = time.monotonic() + patience_s
    while left := [pid for pid, started in family.items() if alive(pid, started)]:
        for pid in left:
            send(pid, signal.SIGKILL)
        if time.monotonic() > deadline:
            return left
        time.sleep(0.02)
    return []


def oom_kills() -> int:
    """How often the kernel has killed for memory since boot; 0 where it doesn't tell."""
    with contextlib.suppress(OSError, ValueError):
        for line in Path("/proc/vmstat").read_text().splitlines():
            name, _, value = line.partition(" ")
            if name == "oom_kill":
                return int(value)
    return 0


def listener(port: int) -> str | None:
    """Who listens on a TCP port of this host: 'process 17 (nginx: master)', None if nobody."""
    inodes: set[str] = set()
    for table in ("tcp", "tcp6"):
        with contextlib.suppress(OSError):
            for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
                cells = line.split()
                if cells[3] == "0A" and int(cells[1].rpartition(":")[2], 16) == port:
                    inodes.add(f"socket:[{cells[9]}]")
    if not inodes:
        return None
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        with contextlib.suppress(OSError):
            for link in (process / "fd").iterdir():
                if str(link.readlink()) in inodes:
                    words = (process / "cmdline").read_bytes().split(b"\0")
                    command = b" ".join(words).decode(errors="replace").strip()
                    return f"process {process.name} ({command[:120]})"
    return "a process whose name this user can't read"
