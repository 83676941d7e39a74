"""`nvidia-smi nvlink -s`: the links of each GPU and their speed."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.nvidia.errors import refuse_errors
from facts.nvidia.values import ParseError, first_line, plain


@dataclass(frozen=True)
class NvlinkGpu:
    """The NVLinks of one GPU: `links[i]` is GB/s a direction, None where link i is inactive.

    `links` is None where it is unknown ("MIG mode") and empty where the GPU says that no link is
    active ("all links inActive"); `reason` says which.
    """

    index: int
    name: str | None
    links: tuple[float | None, ...] | None
    reason: str | None = None

    @property
    def active(self) -> int | None:
        """Number of active links, None if unknown."""
        return None if self.links is None else sum(speed is not None for speed in self.links)

    @property
    def inactive(self) -> tuple[int, ...]:
        """Indexes of the links that are there and inactive."""
        return tuple(i for i, speed in enumerate(self.links or ()) if speed is None)


@dataclass(frozen=True)
class NvlinkStatus:
    """What `nvidia-smi nvlink -s` lists, a GPU each. No GPU listed: this host has no NVLink."""

    gpus: tuple[NvlinkGpu, ...] = ()


_GPU = re.compile(r"GPU (\d+): (.+?)(?: \(UUID: (\S+)\))?$", re.ASCII)
_LINK = re.compile(r"Link (\d+): (?:(\d+(?:\.\d+)?) GB/s|(<inactive>))$", re.ASCII | re.IGNORECASE)
_CAPABILITY = re.compile(r"Link \d+, \S.*: \S+$", re.ASCII)
_REASONS = (
    ("MIG mode", re.compile(r"not supported for devices in MIG mode", re.IGNORECASE), None),
    ("all links inActive", re.compile(r"all links are inactive", re.IGNORECASE), ()),
    ("no NVLink", re.compile(r"not supported", re.IGNORECASE), ()),
)


def parse_nvlink(text: str) -> NvlinkStatus:
    """Read `nvidia-smi nvlink -s`; lines of `nvlink -c` in the same paste are passed over.

    Links of a GPU count from 0 without a gap, and the last line must be whole, else the text is
    cut: ParseError("incomplete"). That GPUs are missing at the end can't be seen here; compare
    with the GPU count. Empty text is an empty status: hosts without NVLink print nothing.
    """
    text = plain(text)
    if text and not text.endswith("\n") and not _ends_whole(text):
        raise ParseError("incomplete", reason="the last line is cut")
    gpus: dict[int, NvlinkGpu] = {}
    current: int | None = None
    speeds: dict[int, list[float | None]] = {}
    for line in filter(None, map(str.strip, text.splitlines())):
        if header := _GPU.match(line):
            current = int(header[1])
            gpus.setdefault(current, NvlinkGpu(current, header[2], links=None))
        elif current is not None and (link := _LINK.match(line)):
            links = speeds.setdefault(current, [])
            if int(link[1]) != len(links):
                raise ParseError("incomplete", gpu=current, expected_link=len(links))
            links.append(float(link[2]) if link[2] else None)
        elif current is not None and (found := _reason(line)):
            gpus[current] = NvlinkGpu(current, gpus[current].name, found[1], found[0])
        elif not _CAPABILITY.match(line):
            refuse_errors(line)
            raise ParseError("not an NVLink status", found=first_line(line))
    if list(gpus) != sorted(gpus):
        raise ParseError("inconsistent", reason="GPUs out of order")
    for index, links in speeds.items():
        gpus[index] = NvlinkGpu(index, gpus[index].name, tuple(links))
    for gpu in gpus.values():
        if gpu.links is None and gpu.reason is None:
            raise ParseError("incomplete", gpu=gpu.index, reason="no link and no reason")
    return NvlinkStatus(tuple(gpus.values()))


def _reason(line: str) -> tuple[str, tuple[()] | None] | None:
    """The name of the sentence that stands in place of links, and the links it means."""
    for name, pattern, links in _REASONS:
        if pattern.search(line):
            return name, links
    return None


def _ends_whole(text: str) -> bool:
    """Whether a text without a final newline still ends in a whole link line."""
    last = text.rsplit("\n", 1)[-1].strip()
    return bool(_LINK.match(last) or _reason(last))
