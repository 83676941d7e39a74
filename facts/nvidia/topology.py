"""`nvidia-smi topo -m`: how each pair of GPUs is connected."""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import combinations

from facts.nvidia.errors import refuse_errors
from facts.nvidia.values import ParseError, first_line, known, plain, whole


@dataclass(frozen=True)
class Topology:
    """The matrix of `nvidia-smi topo -m`.

    `links[i][j]` is the connection of GPU i and GPU j as printed ("NV18", "PIX", "PXB", "PHB",
    "NODE", "SYS"; "X" on the diagonal). It says nothing about whether peer-to-peer copies work.
    """

    links: tuple[tuple[str, ...], ...]
    cpu_affinity: tuple[str | None, ...]  # "0-63,128-191" a GPU
    numa: tuple[int | None, ...] | None  # NUMA node a GPU; None if there is no such column
    nics: tuple[str, ...] = ()  # device names by the legend ("mlx5_10"), else the column names
    nic_names_known: bool = True  # False: the legend was missing, `nics` are "NIC0", ...
    nic_rows: int = (
        0  # NIC rows read; fewer than len(nics): the output was cut, GPU facts still hold
    )
    near: tuple[str | None, ...] = ()  # column name of the nearest NIC a GPU, None if not unique

    @property
    def gpus(self) -> int:
        """Number of GPUs."""
        return len(self.links)

    @property
    def pairs(self) -> dict[str, int]:
        """Unordered GPU pairs a kind of connection, `{"NV18": 28}`."""
        return dict(Counter(self.links[i][j] for i, j in combinations(range(self.gpus), 2)))

    @property
    def all_nvlink(self) -> bool | None:
        """Whether each pair is NVLink; None for a single GPU, which has no pairs."""
        pairs = self.pairs
        return all(kind.startswith("NV") for kind in pairs) if pairs else None

    @property
    def islands(self) -> tuple[tuple[int, ...], ...]:
        """Sets of GPUs that are connected by NVLink, single GPUs included, by lowest index."""
        left = set(range(self.gpus))
        found = []
        while left:
            island, todo = set(), [min(left)]
            while todo:
                gpu = todo.pop()
                island.add(gpu)
                todo += [
                    other
                    for other in left - island
                    if self.links[gpu][other].startswith("NV") and other not in todo
                ]
            left -= island
            found.append(tuple(sorted(island)))
        return tuple(found)


_HEADER = re.compile(r"^[ \t]*(GPU\d+\b.*?)(CPU Affinity)(.*)$", re.MULTILINE | re.ASCII)
_GPU = re.compile(r"GPU\d+", re.ASCII)
_KIND = re.compile(r"X|NV\d+|PIX|PXB|PHB|NODE|SYS|SOC|PSB|C2C", re.ASCII)
_NIC_LEGEND = re.compile(r"^[ \t]*(NIC\d+):[ \t]*(\S+)[ \t]*\n", re.MULTILINE)
_NEAREST_FIRST = ("PIX", "PXB", "PHB", "NODE", "SYS")


@dataclass(frozen=True)
class _Columns:
    """The header: device columns, and how many of the three affinity columns follow."""

    gpus: list[str]
    nics: list[str]
    affinities: int


@dataclass(frozen=True)
class _Row:
    """A GPU's row: its connections to all devices, and its affinities."""

    kinds: list[str]
    affinities: list[str]


def parse_topology(text: str) -> Topology:
    """Read `nvidia-smi topo -m`. A matrix with rows, cells or columns missing is refused.

    The columns before "CPU Affinity" are the devices: those named GPU<n> are GPUs, all others are
    NICs whatever they are called. Raises ParseError("incomplete", gpus_in_header, gpu_rows, nics),
    ParseError("inconsistent"), or the error that nvidia-smi printed instead of a matrix.
    """
    text = plain(text)
    header = _HEADER.search(text)
    if header is None:
        refuse_errors(text)
        raise ParseError("no topology matrix", found=first_line(text))
    columns = _columns(header[1].split(), header[3])
    body = text[header.end() + 1 :]
    rows, nic_rows = _rows(body, columns)
    count = len(columns.gpus)
    links = tuple(tuple(row.kinds[:count]) for row in rows)
    _check_symmetric(links)
    names = dict(_NIC_LEGEND.findall(body))
    generic = any(re.fullmatch(r"NIC\d+", name) for name in columns.nics)
    names_known = not generic or all(name in names for name in columns.nics)
    return Topology(
        links=links,
        cpu_affinity=tuple(known(row.affinities[0]) for row in rows),
        numa=tuple(whole(row.affinities[1]) for row in rows) if columns.affinities > 1 else None,
        nics=tuple(names.get(name, name) if names_known else name for name in columns.nics),
        nic_names_known=names_known,
        nic_rows=nic_rows,
        near=tuple(_nearest(row.kinds[count:], columns.nics) for row in rows),
    )


def _columns(devices: list[str], after: str) -> _Columns:
    """The columns by the header's words before and after "CPU Affinity"."""
    gpus = [name for name in devices if _GPU.fullmatch(name)]
    if devices[: len(gpus)] != gpus or len(set(devices)) != len(devices):
        raise ParseError("inconsistent", reason="GPU columns repeated or mixed with others")
    affinities = 1 + ("NUMA Affinity" in after) + ("GPU NUMA ID" in after)
    return _Columns(gpus, devices[len(gpus) :], affinities)


def _rows(body: str, columns: _Columns) -> tuple[list[_Row], int]:
    """The GPUs' rows in the header's order, and the number of whole NIC rows."""
    devices = len(columns.gpus) + len(columns.nics)
    rows: dict[str, _Row] = {}
    nic_rows = 0
    for line in body.splitlines(keepends=True):
        name, _, rest = line.strip(" \t\n").partition("\t" if "\t" in line else " ")
        name = name.strip()
        if name in columns.nics:
            nic_rows += _cells(rest, devices) is not None
        elif _GPU.fullmatch(name):
            if name not in columns.gpus or name in rows:
                raise ParseError("inconsistent", reason=f"row {name} unexpected")
            cells = _cells(rest, devices)
            tail = _tail(cells[1], columns.affinities, line.endswith("\n")) if cells else None
            if cells is not None and tail is not None:
                rows[name] = _Row(cells[0], tail)
    if list(rows) != columns.gpus:
        raise ParseError(
            "incomplete",
            gpus_in_header=len(columns.gpus),
            gpu_rows=len(rows),
            nics=len(columns.nics),
        )
    return list(rows.values()), nic_rows


def _cells(rest: str, columns: int) -> tuple[list[str], str] | None:
    """The first `columns` connections of a row and the text after them; None if any is missing."""
    cells = []
    for _ in range(columns):
        rest = rest.lstrip(" \t")
        match = re.match(r"\S+", rest)
        if match is None or not _KIND.fullmatch(match[0]):
            return None
        cells.append(match[0])
        rest = rest[match.end() :]
    return cells, rest


def _tail(rest: str, columns: int, ended: bool) -> list[str] | None:
    """CPU affinity, NUMA affinity and GPU NUMA ID of a row, as many as the header has; None if cut.

    Without a newline at its end the row may be cut inside a value, unless its last value is N/A.
    In rows with tabs a value may be blank (WSL prints no CPU affinity).
    """
    if "\t" in rest:
        cells = [cell.strip() for cell in rest.strip(" \n").removeprefix("\t").split("\t")]
        if columns == 3:
            cells = [*cells[:2], next((cell for cell in reversed(cells[2:]) if cell), "")]
            if not cells[-1]:
                return None
    else:
        cells = rest.split()
    cells = cells[:columns] if not any(cells[columns:]) else []
    if len(cells) < columns or not (ended or cells[-1] == "N/A"):
        return None
    if cells[0] and known(cells[0]) and not re.fullmatch(r"[\d,-]+", cells[0], re.ASCII):
        return None
    return cells


def _check_symmetric(links: tuple[tuple[str, ...], ...]) -> None:
    """A connection is the same seen from both ends, and only a GPU's own cell is X."""
    for i, row in enumerate(links):
        for j, kind in enumerate(row):
            if kind != links[j][i] or (kind == "X") != (i == j):
                raise ParseError("inconsistent", reason=f"GPU{i} and GPU{j} disagree")


def _nearest(kinds: list[str], nics: list[str]) -> str | None:
    """Name of the NIC column with the nearest connection, None if several are as near."""
    for kind in _NEAREST_FIRST:
        found = [nic for nic, this in zip(nics, kinds, strict=True) if this == kind]
        if found:
            return found[0] if len(found) == 1 else None
    return None
