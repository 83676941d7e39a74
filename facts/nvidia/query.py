"""`nvidia-smi --query-gpu=... --format=csv`: a row a GPU."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from facts.nvidia.errors import lost_gpus, refuse_errors
from facts.nvidia.gpus import Gpu
from facts.nvidia.values import ParseError, first_line, known, number, plain, whole

# What the order of columns is taken for where there is no header (`noheader`) and no `fields`.
DEFAULT_FIELDS = ("index", "name", "memory.total", "memory.used", "memory.free")

_TEXTS = {
    "name": "name",
    "uuid": "uuid",
    "pci.bus_id": "bus_id",
    "compute_cap": "compute_cap",
    "driver_version": "driver",
    "mig.mode.current": "mig",
    "ecc.mode.current": "ecc",
    "persistence_mode": "persistence",
    "compute_mode": "compute_mode",
    "fabric.state": "fabric_state",
    "fabric.status": "fabric_status",
}
_COUNTS = {
    "index": "index",
    "memory.total": "memory_total_mib",
    "memory.used": "memory_used_mib",
    "memory.free": "memory_free_mib",
    "utilization.gpu": "utilization_gpu",
    "temperature.gpu": "temperature_c",
    "clocks.max.sm": "sm_clock_max_mhz",
    "pcie.link.gen.current": "pcie_gen_current",
    "pcie.link.gen.max": "pcie_gen_max",
    "pcie.link.gen.gpumax": "pcie_gen_device_max",
    "pcie.link.width.current": "pcie_width_current",
    "pcie.link.width.max": "pcie_width_max",
}
_UNITS = ("MiB", "MHz", "W", "%")
_REASON = re.compile(r"\[(?!N/A\])([^\]]+)\]")


@dataclass(frozen=True)
class Query:
    """The answer to a query: `rows` hold each cell as printed, by field name without its unit."""

    fields: tuple[str, ...]
    rows: tuple[dict[str, str], ...]
    lost: tuple[str, ...] = ()  # GPUs named in error lines before the rows

    @property
    def gpus(self) -> tuple[Gpu, ...]:
        """The rows as GPUs; fields that were not asked for are None."""
        return tuple(_gpu(row) for row in self.rows)

    def reason(self) -> str | None:
        """Why memory is unknown, if the driver says more than N/A ("Insufficient Permissions")."""
        cells = (row.get("memory.total", "") for row in self.rows)
        return next((match[1] for cell in cells if (match := _REASON.fullmatch(cell))), None)


def parse_query(text: str, fields: tuple[str, ...] | None = None) -> Query:
    """Read the CSV, with or without header and units.

    `fields` are those asked for, for output without a header. Each row must have all cells and end
    in a newline, and if the field `count` was asked for there must be that many rows (less those
    that are lost); otherwise ParseError("incomplete"). An error message in place of rows raises the
    error it names.
    """
    text = plain(text)
    lines = [line for line in text.split("\n")[:-1] if line.strip()]
    lost = tuple(lost_gpus(text))
    lines = [line for line in lines if not lost_gpus(line)]
    refuse_errors("\n".join(lines) if lines else text)
    if text and not text.endswith("\n"):
        raise ParseError("incomplete", reason="the last line has no newline")
    if lines and _is_header(lines[0]):
        fields = tuple(_field(cell) for cell in lines.pop(0).split(","))
    elif fields is None:
        fields = DEFAULT_FIELDS
    rows = []
    for line in lines:
        cells = [cell.strip() for cell in line.split(",")]
        if len(cells) != len(fields):
            if len(cells) == 1:
                raise ParseError("not a query answer", found=first_line(line))
            raise ParseError("incomplete", cells=len(cells), fields=len(fields))
        rows.append(dict(zip(fields, cells, strict=True)))
    if not rows:
        raise ParseError("no rows")
    for row in rows:
        if "index" in row and whole(row["index"]) is None:
            raise ParseError("not a query answer", found=first_line(", ".join(row.values())))
        if "count" in row and whole(row["count"]) not in (len(rows), len(rows) + len(lost)):
            raise ParseError("incomplete", rows=len(rows), count=row["count"][:40])
    indexes = [row["index"] for row in rows if "index" in row]
    if len(set(indexes)) != len(indexes):
        raise ParseError("inconsistent", reason="a GPU index twice")
    return Query(fields, tuple(rows), lost)


def _is_header(line: str) -> bool:
    """Whether a line names fields: lower-case dotted words, some with a unit in brackets."""
    cells = [cell.strip() for cell in line.split(",")]
    return all(re.fullmatch(r"[a-z][\w.]*( \[[^\]]*\])?", cell, re.ASCII) for cell in cells)


def _field(cell: str) -> str:
    return cell.strip().split(" ")[0]


def _gpu(row: dict[str, str]) -> Gpu:
    values: dict[str, Any] = {to: known(row.get(field)) for field, to in _TEXTS.items()}
    values |= {to: whole(row.get(field), _UNITS) for field, to in _COUNTS.items()}
    return Gpu(**values, power_limit_w=number(row.get("power.limit"), _UNITS))
