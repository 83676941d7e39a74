"""Files that readers may open at any moment: written beside, then renamed."""

import json
import os
import shutil
from pathlib import Path
from typing import Any


def write_json(path: Path, data: Any, indent: int | None = 1, durable: bool = False) -> None:
    """Replaces `path` atomically; a reader sees the old document or the new one, never a part.

    `durable` waits until the bytes are on the disk: for results, not for a status.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with beside.open("w") as file:
            json.dump(data, file, indent=indent)
            file.write("\n")
            if durable:
                file.flush()
                os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        beside.unlink(missing_ok=True)
        raise


def rotate(path: Path, keep: int = 3) -> None:
    """Moves `path` to `path.1`, `path.1` to `path.2`, and so on, `keep` old files in all."""
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    if path.exists():
        path.replace(path.with_name(f"{path.name}.1"))


def cap(path: Path, limit_bytes: int, keep: int = 3) -> bool:
    """Rotates a log that a process holds open for appending: copied away, then cut to nothing.

    Lines written between the copy and the cut are lost; the writer needs no signal.
    """
    if not path.exists() or path.stat().st_size <= limit_bytes:
        return False
    copy = path.with_name(f".{path.name}.copy")
    shutil.copyfile(path, copy)
    os.truncate(path, 0)
    for number in range(keep - 1, 0, -1):
        older = path.with_name(f"{path.name}.{number}")
        if older.exists():
            older.replace(path.with_name(f"{path.name}.{number + 1}"))
    copy.replace(path.with_name(f"{path.name}.1"))
    return True


def tail(path: Path, lines: int = 400, most_bytes: int = 256 * 1024) -> list[str]:
    """The last non-empty lines of a log; a progress bar's carriage returns end lines too."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            file.seek(max(0, size - most_bytes))
            text = file.read().decode(errors="replace")
    except OSError:
        return []
    found = [line.rstrip() for line in text.replace("\r", "\n").split("\n") if line.strip()]
    return found[-lines:]
