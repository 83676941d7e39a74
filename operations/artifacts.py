"""What this project copies to hosts, as content: hashes, file lists and a reproducible archive.

Pure functions over the folder files/. A host keeps each version under the hash of its content, so
that nothing is ever changed in place and a roll-back is a link.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import tarfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FILES = ROOT / "files"
PARTS = ("hostkit", "refserver", "drafters", "patches", "stack")

# Parts of hostkit that the running service never executes: a change there restarts nothing.
NOT_IN_SERVICE = ("bench", "load", "prompts", "fetch", "verify", "model_", "probe", "correctness")


@dataclass(frozen=True)
class Tree:
    """Files by path relative to files/, sorted, with their content."""

    files: Mapping[str, bytes]

    @property
    def hash(self) -> str:
        """sha256 over names and contents, 12 hexadecimal digits."""
        return digest(*(part for name in sorted(self.files) for part in self._entry(name)))

    def _entry(self, name: str) -> tuple[str, str]:
        return name, hashlib.sha256(self.files[name]).hexdigest()

    def sums(self) -> dict[str, str]:
        """sha256 of each file by its path."""
        return {name: hashlib.sha256(data).hexdigest() for name, data in sorted(self.files.items())}

    def archive(self) -> bytes:
        """A .tar.gz of the files: no times, no owners, so equal content gives equal bytes."""
        raw = io.BytesIO()
        with tarfile.open(fileobj=raw, mode="w", format=tarfile.USTAR_FORMAT) as tar:
            for name in sorted(self.files):
                entry = tarfile.TarInfo(name)
                entry.size = len(self.files[name])
                entry.mode = 0o644
                tar.addfile(entry, io.BytesIO(self.files[name]))
        return gzip.compress(raw.getvalue(), compresslevel=6, mtime=0)

    def below(self, *prefixes: str) -> Tree:
        """The files whose path starts with one of `prefixes`."""
        return Tree({n: d for n, d in self.files.items() if n.startswith(prefixes)})


def digest(*parts: str) -> str:
    """12 hexadecimal digits of the sha256 over `parts`, each ended by a NUL."""
    return hashlib.sha256("".join(f"{part}\0" for part in parts).encode()).hexdigest()[:12]


def read_tree(parts: Iterable[str] = PARTS, root: Path = FILES) -> Tree:
    """Reads files/ as it stands, without caches and hidden files."""
    found: dict[str, bytes] = {}
    for part in parts:
        for path in sorted((root / part).rglob("*")):
            hidden = any(p.startswith((".", "__pycache__")) for p in path.relative_to(root).parts)
            if path.is_file() and not hidden and path.suffix != ".pyc":
                found[path.relative_to(root).as_posix()] = path.read_bytes()
    return Tree(found)


@lru_cache(maxsize=1)
def sources() -> Tree:
    """The tree that is copied to hosts in this run; read once, the same for every host."""
    return read_tree()


def service_code(tree: Tree, engine: str, patch_set: str | None) -> str:
    """Hash of the code that the running service executes; a change of it restarts the service."""
    kept = {
        name: data
        for name, data in tree.below("hostkit/").files.items()
        if name.endswith(".py") and not name.removeprefix("hostkit/").startswith(NOT_IN_SERVICE)
    }
    if engine == "reference":
        kept |= tree.below("refserver/", "drafters/").files
    if patch_set is not None:
        kept |= tree.below(f"patches/{patch_set}/").files
    return Tree(kept).hash


def lock_text(lock: str) -> bytes:
    """The hashed requirements of a lock by its name ("reference", "tools", "sglang-...")."""
    return lock_path(lock).read_bytes()


def lock_path(lock: str) -> Path:
    known = {"reference": "refserver/requirements.lock", "tools": "hostkit/requirements.lock"}
    return FILES / known.get(lock, f"stack/{lock}.lock")


def lock_hash(lock: str, *more: str) -> str:
    """Names a venv: the hash of its lock and of what else makes it (Python "3.12", a patch set)."""
    return digest(lock_text(lock).decode(), *more)
