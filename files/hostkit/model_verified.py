"""Which files of an unfinished model are verified already."""

import json
from dataclasses import asdict
from pathlib import Path

from .model_hub import HubFile
from .verify import FileInfo


class Verified:
    """Files that were hashed and found whole, on disk as JSON lines: never hashed twice."""

    def __init__(self, work: Path) -> None:
        self._path = path = work / "verified.jsonl"
        self.files: dict[str, FileInfo] = {}
        self._times: dict[str, int] = {}
        path.parent.mkdir(parents=True, exist_ok=True)
        for line in path.read_text().splitlines() if path.exists() else ():
            try:
                entry = json.loads(line)
                self.files[entry["path"]] = FileInfo(entry["sha256"], entry["size"])
                self._times[entry["path"]] = entry["mtime_ns"]
            except (ValueError, KeyError, TypeError):
                continue  # a line cut by a kill

    def has(self, file: HubFile, final: Path) -> bool:
        """True when this very file, unchanged since, was verified. Forgets it otherwise."""
        info = self.files.get(file.path)
        try:
            found = final.stat()
        except OSError:
            found = None
        same = info is not None and found is not None and found.st_size == info.size == file.size
        if same and found is not None and found.st_mtime_ns == self._times[file.path]:
            return True
        self.files.pop(file.path, None)
        return False

    def add(self, name: str, info: FileInfo, final: Path) -> None:
        self.files[name] = info
        entry = {"path": name, **asdict(info), "mtime_ns": final.stat().st_mtime_ns}
        with self._path.open("a") as file:
            file.write(json.dumps(entry) + "\n")
