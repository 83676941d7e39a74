"""An unfinished file that can be gone on with: how far each segment of it has come.

`NAME.part` is the file itself, sparse until it is whole; `NAME.map` beside it holds two numbers a
segment: bytes written, and bytes that a sync has brought to the disk for sure. After a kill the
first count holds (the page cache survives a process); after a reboot only the second does.
huggingface_hub 2.4 deletes a partial file when its process ends (file_download.py,
`_download_to_tmp_and_move`), which would cost up to 80 GB of a 548 GB download.
"""

import os
import struct
import threading
from pathlib import Path

MAGIC = b"HKPART01"
_HEAD = struct.Struct("<8sQQ36s")  # magic, size, segment, boot id
_COUNT = struct.Struct("<Q")


def boot_id() -> bytes:
    """Names this boot of the kernel; 36 bytes."""
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_bytes().strip().ljust(36)[:36]
    except OSError:
        return b"unknown".ljust(36)


class PartFile:
    """One file on its way. Segments are written in order within, in any order among themselves.

    A segment has one writer at a time; different segments may be written by different threads.
    """

    def __init__(self, path: Path, size: int, segment: int) -> None:
        self.path = path
        self.size = size
        self.segment = segment
        self.count = -(-size // segment)
        self._guard = threading.Lock()  # of the descriptors: a sync may meet a close
        self._closed = False
        self._map = path.with_name(f"{path.name}.map")
        path.parent.mkdir(parents=True, exist_ok=True)
        self.written, self._synced = self._load()
        self._fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o644)
        self._map_fd = os.open(self._map, os.O_RDWR | os.O_CREAT, 0o644)
        os.ftruncate(self._fd, size)
        self._save()

    def _load(self) -> tuple[list[int], list[int]]:
        empty = [0] * self.count, [0] * self.count
        try:
            raw = self._map.read_bytes()
            magic, size, segment, boot = _HEAD.unpack_from(raw)
            counts = [c[0] for c in _COUNT.iter_unpack(raw[_HEAD.size :])]
        except (OSError, struct.error):
            return empty
        same = (magic, size, segment) == (MAGIC, self.size, self.segment)
        if not same or len(counts) != 2 * self.count or not self.path.exists():
            return empty
        synced = counts[self.count :]
        written = counts[: self.count] if boot == boot_id() else list(synced)
        return written, synced

    def _save(self) -> None:
        head = _HEAD.pack(MAGIC, self.size, self.segment, boot_id())
        counts = b"".join(_COUNT.pack(c) for c in (*self.written, *self._synced))
        os.pwrite(self._map_fd, head + counts, 0)
        os.ftruncate(self._map_fd, len(head) + len(counts))

    @property
    def done(self) -> int:
        """Bytes that are there."""
        return sum(self.written)

    @property
    def whole(self) -> bool:
        return self.done == self.size

    def length(self, index: int) -> int:
        """Bytes of a segment; the last one is shorter."""
        return min(self.segment, self.size - index * self.segment)

    def rest(self, index: int) -> tuple[int, int]:
        """What a segment still lacks, as (start, end) offsets in the file, end exclusive."""
        begin = index * self.segment
        return begin + self.written[index], begin + self.length(index)

    def write(self, index: int, data: memoryview) -> None:
        """Append to a segment. OSError (ENOSPC) leaves what was counted valid."""
        offset, end = self.rest(index)
        if offset + len(data) > end:
            raise ValueError(f"{self.path}: more bytes than segment {index} holds")
        while data:
            count = os.pwrite(self._fd, data, offset)
            data, offset = data[count:], offset + count
            self.written[index] += count
        place = _HEAD.size + index * _COUNT.size
        os.pwrite(self._map_fd, _COUNT.pack(self.written[index]), place)

    def sync(self) -> None:
        """Bring what is written to the disk; then, and only then, count it as safe."""
        with self._guard:
            written = list(self.written)
            if self._closed or written == self._synced:
                return
            os.fdatasync(self._fd)
            self._synced = written
            counts = b"".join(_COUNT.pack(c) for c in written)
            os.pwrite(self._map_fd, counts, _HEAD.size + self.count * _COUNT.size)
            os.fdatasync(self._map_fd)

    def clear(self) -> None:
        """Forget everything: the content was damaged."""
        self.written = [0] * self.count
        self._synced = [0] * self.count
        self._save()
        os.ftruncate(self._fd, 0)
        os.ftruncate(self._fd, self.size)

    def finish(self, destination: Path) -> None:
        """Move the whole, verified file to its place and drop the map."""
        with self._guard:
            os.fsync(self._fd)
            os.close(self._fd)
            os.close(self._map_fd)
            self._closed = True
        destination.parent.mkdir(parents=True, exist_ok=True)
        self.path.replace(destination)
        self._map.unlink(missing_ok=True)
