"""`hostkit verify`: is every file of a model what it should be? Hashes in parallel, at disk speed.

The manifest has the format of SGLang's `sglang.srt.utils.model_file_verifier` (0.5.12 and later):
`{"files": {NAME: {"sha256": HEX, "size": BYTES}}}`, so that SGLang can check the folder itself.
"""

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass
from pathlib import Path

from .errors import HostkitError
from .files import write_json
from .model_hub import HubFile

CHUNK = 4 << 20  # bytes read and hashed at once

Counted = Callable[[int], None]


class DamagedError(HostkitError):
    """A file's content is not what its hash says."""


@dataclass(frozen=True)
class FileInfo:
    """One entry of a manifest: hexadecimal sha256, size in bytes."""

    sha256: str
    size: int


def check_file(path: Path, file: HubFile, hashed: Counted = lambda size: None) -> FileInfo:
    """Hash one file once and compare with what the Hub says of it; DamagedError if it differs.

    Small files have no sha256 at the Hub but a git blob id: sha1 of `blob SIZE NUL content`.
    `hashed` is told the bytes as they are read.
    """
    size = path.stat().st_size
    if size != file.size:
        raise DamagedError(f"{file.path}: expected {file.size} bytes, found {size}")
    if file.sha256 is not None:
        found = sha256_of(path, hashed)
        if found != file.sha256:
            raise DamagedError(f"{file.path}: sha256 is {found[:12]}, expected {file.sha256[:12]}")
        return FileInfo(found, size)
    content = path.read_bytes()
    if file.blob is not None:
        blob = hashlib.sha1(b"blob %d\0" % size + content, usedforsecurity=False).hexdigest()
        if blob != file.blob:
            raise DamagedError(f"{file.path}: git blob is {blob[:12]}, expected {file.blob[:12]}")
    return FileInfo(hashlib.sha256(content).hexdigest(), size)


def sha256_of(path: Path, hashed: Counted = lambda size: None) -> str:
    """Hexadecimal sha256 of a file; the interpreter lock is free while it reads and hashes."""
    digest = hashlib.sha256()
    buffer = memoryview(bytearray(CHUNK))
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while count := file.readinto(buffer):
            digest.update(buffer[:count])
            hashed(count)
    return digest.hexdigest()


def write_manifest(path: Path, files: Mapping[str, FileInfo]) -> None:
    """Write a manifest atomically, names sorted."""
    write_json(path, {"files": {name: asdict(files[name]) for name in sorted(files)}})


def read_manifest(path: Path) -> dict[str, FileInfo]:
    """Read a manifest; HostkitError with one line if it isn't one."""
    try:
        entries = json.loads(path.read_text())["files"]
        return {name: FileInfo(**entry) for name, entry in entries.items()}
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise HostkitError(f"{path}: expected a manifest of files: {error}") from error


def damaged(
    directory: Path,
    manifest: Mapping[str, FileInfo],
    workers: int | None = None,
    hashed: Counted = lambda size: None,
) -> list[str]:
    """Names whose file is missing, of another size or of other content; sorted.

    `hashed` is told the bytes as they are read, from several threads.
    """

    def one(entry: tuple[str, FileInfo]) -> str | None:
        name, info = entry
        path = directory / name
        try:
            whole = path.stat().st_size == info.size and sha256_of(path, hashed) == info.sha256
        except OSError:
            whole = False
        return None if whole else name

    largest_first = sorted(manifest.items(), key=lambda entry: -entry[1].size)
    with ThreadPoolExecutor(workers or threads()) as pool:
        return sorted(name for name in pool.map(one, largest_first) if name is not None)


def threads() -> int:
    """Hashing threads: the cores this process may use, at most 16."""
    return max(1, min(16, len(os.sched_getaffinity(0))))


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--directory", type=Path, required=True, help="the model's folder")
    parser.add_argument("--manifest", type=Path, help="default: DIRECTORY.manifest.json")
    parser.add_argument("--workers", type=int, help="hashing threads; default: the cores")


def run(args: argparse.Namespace) -> int:
    manifest_path = args.manifest or args.directory.with_name(
        f"{args.directory.name}.manifest.json"
    )
    manifest = read_manifest(manifest_path)
    bad = damaged(args.directory, manifest, args.workers)
    total = sum(info.size for info in manifest.values())
    if bad:
        print(f"{len(bad)} of {len(manifest)} files damaged: {shorten(bad)}", file=sys.stderr)
        return 1
    print(f"{len(manifest)} files, {total / 1e9:.2f} GB, all whole")
    return 0


def shorten(names: Iterable[str], most: int = 3) -> str:
    """The first names, and how many more."""
    listed = list(names)
    more = f" and {len(listed) - most} more" if len(listed) > most else ""
    return ", ".join(listed[:most]) + more
