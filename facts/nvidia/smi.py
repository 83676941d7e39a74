"""nvidia-smi's output for people: the table, and the `-q` text. For reports that users paste.

The product itself reads CSV and XML; a table cuts names ("NVIDIA RTX PRO 6000 Blac...") and may be
cut itself, so a count from here is given only where the text is whole.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.nvidia.driver import Versions, key_values, versions_of
from facts.nvidia.errors import lost_gpus, refuse_errors
from facts.nvidia.gpus import Gpu
from facts.nvidia.values import ParseError, first_line, known, plain, whole


@dataclass(frozen=True)
class Table:
    """The table: `gpus` as far as listed, `complete` only if nothing after them is missing."""

    versions: Versions
    gpus: tuple[Gpu, ...]
    names: tuple[str, ...]  # as printed, cut ones too
    mig_memory_mib: tuple[int, ...]  # total memory of each MIG device
    lost: tuple[str, ...]
    complete: bool


_FIRST = re.compile(
    r"\|\s+(\d+)\s+(\S.*?)\s+(?:On|Off|N/A)\s+\|\s+([0-9A-Fa-f]{8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.\d)"
    r"\s+\S+\s+\|\s*(\S+)\s+\|",
    re.ASCII,
)
_SECOND = re.compile(
    r"\|\s*\S+\s+\S+\s+\S+\s+\S+\s*/\s*(\S+)\s+\|\s*(\S+?)(?:MiB)?\s*/\s*(\S+?)(?:MiB)?\s+\|.*\|",
    re.ASCII,
)
_THIRD = re.compile(r"\|\s+\|\s+\|\s*(Enabled\*?|Disabled\*?|N/A|ERR!)\s+\|", re.ASCII)
_MIG = re.compile(
    r"^\|\s+\d+\s+\d+\s+\d+\s+\d+\s+\|\s+\d+MiB\s*/\s*(\d+)MiB\s", re.ASCII | re.MULTILINE
)

_MIG_BAR1 = re.compile(r"^\|\s+\|\s+\d+MiB\s*/\s*\d+MiB\s+\|.*\|$", re.ASCII | re.MULTILINE)


def parse_table(text: str) -> Table:
    """Read the table of plain `nvidia-smi`.

    A GPU takes three lines; if one of them is missing the table is cut: ParseError("incomplete").
    """
    text = plain(text)
    header = re.search(r"^\| NVIDIA-SMI (\S.*?)\s*\|$", text, re.MULTILINE)
    if header is None:
        refuse_errors(text)
        raise ParseError("no nvidia-smi table", found=first_line(text))
    pairs = re.findall(r"([A-Z][A-Za-z ]+?)\s*:\s+(\S+)", header[1])
    versions = versions_of({key.lower(): value for key, value in pairs})
    body = text[header.end() :]
    end = re.search(r"^\|\s+(?:MIG devices|Processes):", body, re.MULTILINE)
    gpus, names = _rows(body[: end.start()] if end else body)
    lost = tuple(lost_gpus(text[: header.start()]))
    mig = _MIG.findall(body)
    if len(_MIG_BAR1.findall(body)) != len(mig):
        raise ParseError("incomplete", mig_rows=len(mig))
    indexes = [gpu.index for gpu in gpus if gpu.index is not None]
    gaps = max(indexes, default=-1) + 1 - len(indexes)
    return Table(
        versions=versions,
        gpus=tuple(gpus),
        names=tuple(names),
        mig_memory_mib=tuple(int(total) for total in mig),
        lost=lost,
        complete=end is not None and gaps <= len(lost),
    )


def _rows(section: str) -> tuple[list[Gpu], list[str]]:
    """The GPUs of the table's first section, three lines each."""
    gpus: list[Gpu] = []
    names: list[str] = []
    lines = section.splitlines()
    starts = [number for number, line in enumerate(lines) if _FIRST.match(line)]
    seconds = sum(bool(_SECOND.match(line)) for line in lines)
    if len([line for line in lines if _THIRD.match(line)]) != len(starts) or seconds != len(starts):
        raise ParseError("incomplete", gpu_rows=len(starts), memory_rows=seconds)
    for start in starts:
        first = _FIRST.match(lines[start])
        second = _SECOND.match(lines[start + 1])
        third = _THIRD.match(lines[start + 2]) if start + 2 < len(lines) else None
        if not (first and second and third):
            raise ParseError("incomplete", gpu_rows=len(starts))
        names.append(first[2])
        gpus.append(
            Gpu(
                index=int(first[1]),
                name=None if first[2].endswith("...") else first[2],
                bus_id=first[3],
                power_limit_w=float(cap) if (cap := whole(second[1], ("W",))) is not None else None,
                memory_used_mib=whole(second[2]),
                memory_total_mib=whole(second[3]),
                mig=known(third[1].rstrip("*")),
            )
        )
    return gpus, names


@dataclass(frozen=True)
class QueryText:
    """The `-q` text: `attached` GPUs by its header, and the blocks that are there."""

    versions: Versions
    attached: int
    gpus: tuple[Gpu, ...]

    @property
    def complete(self) -> bool:
        """Whether the text holds as many blocks as its header says."""
        return len(self.gpus) == self.attached


def parse_query_text(text: str) -> QueryText:
    """Read `nvidia-smi -q`. Blocks may be fewer than `attached` (a paste is cut), never more."""
    text = plain(text)
    start = re.search(r"^GPU [0-9A-Fa-f]{8}:", text, re.MULTILINE)
    header = key_values(text[: start.start() if start else len(text)])
    attached = whole(header.get("attached gpus"))
    if attached is None or "NVSMI LOG" not in text or "driver version" not in header:
        refuse_errors(text)
        raise ParseError("no nvidia-smi -q text", found=first_line(text))
    blocks = re.split(r"^GPU ([0-9A-Fa-f]{8}:\S+)$", text, flags=re.MULTILINE)[1:]
    gpus = tuple(
        _block(bus_id, block) for bus_id, block in zip(blocks[::2], blocks[1::2], strict=True)
    )
    if len(gpus) > attached:
        raise ParseError("inconsistent", attached=attached, gpu_blocks=len(gpus))
    return QueryText(versions_of(header), attached, gpus)


def _block(bus_id: str, block: str) -> Gpu:
    """One GPU of the `-q` text; keys repeat in its sections, so each section is read alone."""
    top = key_values("\n".join(line for line in block.splitlines() if line.startswith(" " * 4)))
    memory = key_values(_section(block, "FB Memory Usage"))
    return Gpu(
        bus_id=bus_id,
        name=known(top.get("product name")),
        uuid=known(top.get("gpu uuid")),
        addressing_mode=top.get("addressing mode"),
        memory_total_mib=whole(memory.get("total"), ("MiB",)),
        memory_used_mib=whole(memory.get("used"), ("MiB",)),
        memory_free_mib=whole(memory.get("free"), ("MiB",)),
        mig=known(key_values(_section(block, "MIG Mode")).get("current")),
        fabric_state=known(key_values(_section(block, "Fabric")).get("state")),
    )


def _section(block: str, title: str) -> str:
    """The lines of a section: those indented deeper than its title."""
    found = re.search(rf"^    {title}\n((?:        .*\n)*)", block, re.MULTILINE)
    return found[1] if found else ""
