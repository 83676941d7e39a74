"""`nvidia-smi nvlink -s`: the links of each GPU and their speed."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace

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
    ("MIG mode", re.compile(r"not supported for devices in MIG mode$", re.IGNORECASE), None),
    ("all links inActive", re.compile(r"all links are inactive$", re.IGNORECASE), ()),
)
# Links that a card has by NVIDIA's data sheets, where the name leaves no doubt; inactive ones are
# listed, so fewer lines than these mean a cut text.
_LINKS = (("V100-SXM", 6), ("A100-SXM", 12), ("H100 80GB HBM3", 18), ("B200", 18), ("B300", 18))


def parse_nvlink(text: str) -> NvlinkStatus:
    """Read `nvidia-smi nvlink -s`; lines of `nvlink -c` in the same paste are passed over.

    Links of a GPU count from 0 without a gap, GPUs of one name have as many (inactive ones are
    listed, too), and the last line must be whole, else the text is cut: ParseError("incomplete").
    That GPUs are missing at the end can't be seen here; compare with the GPU count.
    """
    text = plain(text)
    if not text.strip():
        raise ParseError("not an NVLink status", found="nothing")
    if not text.endswith("\n") and not _ends_whole(text):
        raise ParseError("incomplete", reason="the last line is cut")
    gpus = _read(text)
    if list(gpus) != sorted(gpus):
        raise ParseError("inconsistent", reason="GPUs out of order")
    counts: dict[str | None, int] = {}
    for gpu in gpus.values():
        if gpu.links is None and gpu.reason is None:
            raise ParseError("incomplete", gpu=gpu.index, reason="no link and no reason")
        count = len(gpu.links or ())
        if count and (counts.setdefault(gpu.name, count) != count or count < _least(gpu.name)):
            raise ParseError("incomplete", gpu=gpu.index, links=count)
    return NvlinkStatus(tuple(gpus.values()))


def _read(text: str) -> dict[int, NvlinkGpu]:
    """The GPUs of the text by index, as far as their lines go."""
    gpus: dict[int, NvlinkGpu] = {}
    current: NvlinkGpu | None = None
    for line in filter(None, map(str.strip, text.splitlines())):
        if header := _GPU.match(line):
            current = gpus.setdefault(int(header[1]), NvlinkGpu(int(header[1]), header[2], None))
        elif current and (link := _LINK.match(line)):
            links = current.links or ()
            if int(link[1]) != len(links):
                raise ParseError("incomplete", gpu=current.index, expected_link=len(links))
            speed = float(link[2]) if link[2] else None
            current = replace(current, links=(*links, speed))
        elif current and (found := _reason(line)):
            current = replace(current, reason=found[0], links=found[1])
        elif not _CAPABILITY.match(line):
            refuse_errors(line)
            raise ParseError("not an NVLink status", found=first_line(line))
        if current:
            gpus[current.index] = current
    return gpus


def _least(name: str | None) -> int:
    """The links that a card of this name must list; 1 if we don't know."""
    found = (links for part, links in _LINKS if part in (name or ""))
    return 18 if name == "NVIDIA H200" else next(found, 1)


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
