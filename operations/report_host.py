"""The host as the report shows it: machine facts, topology matrix, probes, GPU state."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

from operations.results import Cell

KINDS = {
    "NV": ("nvlink", "NVLink, with the number of links"),
    "PIX": ("near", "one PCIe bridge"),
    "PXB": ("near", "several PCIe bridges"),
    "PHB": ("mid", "a PCIe host bridge"),
    "NODE": ("mid", "several host bridges of one NUMA node"),
    "SYS": ("far", "the link between CPU sockets"),
}
"""Connections of ``nvidia-smi topo -m``, from near to far: (CSS class, meaning)."""

GPU_STATE = ("sm_clock_mhz", "temperature_c", "power_w")


@dataclass(frozen=True)
class Matrix:
    """How each pair of GPUs is connected: ``rows[i][j]`` is (text, CSS class)."""

    rows: Sequence[Sequence[tuple[str, str]]]
    numa: Sequence[str]
    legend: Sequence[tuple[str, str, str]]
    summary: str


def topology(machine: Mapping[str, Any]) -> Matrix | None:
    """The picture of the GPU links, None on a host without two GPUs."""
    links = (machine.get("topology") or {}).get("links") or ()
    if len(links) < 2:
        return None
    numa = (machine.get("topology") or {}).get("numa") or [None] * len(links)
    pairs = [links[i][j] for i, j in combinations(range(len(links)), 2)]
    kinds = sorted(
        set(pairs), key=lambda k: list(KINDS).index(_kind(k)) if _kind(k) in KINDS else 9
    )
    return Matrix(
        rows=[
            [("", "self") if i == j else (link, _css(link)) for j, link in enumerate(row)]
            for i, row in enumerate(links)
        ],
        numa=["" if node is None else f"NUMA {node}" for node in numa],
        legend=[(kind, _css(kind), KINDS.get(_kind(kind), ("", ""))[1]) for kind in kinds],
        summary=", ".join(f"{pairs.count(kind)} pairs {kind}" for kind in kinds),
    )


def _kind(link: str) -> str:
    return "NV" if link.startswith("NV") else link


def _css(link: str) -> str:
    return KINDS.get(_kind(link), ("unknown", ""))[0]


def machine_rows(machine: Mapping[str, Any]) -> Sequence[tuple[str, str]]:
    """What the host is, one line a noun; what the facts don't know is left out."""
    gpus = machine.get("gpus") or ()
    nvcc, pcie = machine.get("nvcc") or {}, _pcie(gpus)
    rows = [
        ("system", _join(machine.get("os_id"), machine.get("os_version"), machine.get("arch"))),
        ("kernel", machine.get("kernel")),
        ("CPU", _join(machine.get("cpus"), "x", machine.get("cpu_model"), need=2)),
        ("NUMA nodes", machine.get("numa_nodes")),
        ("memory", _gib(machine.get("memory_total_mib"))),
        ("GPU", _gpus(gpus) if gpus else "none"),
        ("compute capability", _same(gpus, "compute_cap")),
        ("PCIe", pcie),
        ("driver", machine.get("driver")),
        ("CUDA of the driver", machine.get("cuda_driver")),
        ("nvcc", nvcc.get("release") if isinstance(nvcc, Mapping) else None),
        ("PID 1", "not systemd" if machine.get("init") == "other" else machine.get("init")),
    ]
    return [(name, str(value)) for name, value in rows if value not in (None, "")]


def _join(*parts: Any, need: int = 0) -> str | None:
    known = [str(part) for part in parts if part is not None]
    return " ".join(known) if len(known) == len(parts) or not need else known[0] if known else None


def _gib(mib: Any) -> str | None:
    return f"{mib / 1024:,.0f} GiB" if isinstance(mib, (int, float)) else None


def _gpus(gpus: Sequence[Mapping[str, Any]]) -> str:
    names: dict[str, int] = {}
    for gpu in gpus:
        memory = _gib(gpu.get("memory_total_mib"))
        name = f"{gpu.get('name') or 'unknown'}" + (f", {memory}" if memory else "")
        names[name] = names.get(name, 0) + 1
    return "; ".join(f"{count} x {name}" for name, count in names.items())


def _same(gpus: Iterable[Mapping[str, Any]], field: str) -> str | None:
    values = {str(gpu[field]) for gpu in gpus if gpu.get(field) is not None}
    return ", ".join(sorted(values)) or None


def _pcie(gpus: Sequence[Mapping[str, Any]]) -> str | None:
    found = {
        f"Gen{gpu['pcie_gen_max']} x{gpu['pcie_width_max']}"
        for gpu in gpus
        if gpu.get("pcie_gen_max") and gpu.get("pcie_width_max")
    }
    return ", ".join(sorted(found)) or None


def probe_rows(probes: Any) -> Sequence[tuple[str, str]]:
    """Lines of a ``hostkit probe`` document: figures a probe, spread over GPUs or pairs; findings.

    Nothing if the result came without one.
    """
    if not isinstance(probes, Mapping):
        return []
    rows: list[tuple[str, str]] = []
    for name, value in (probes.get("results") or {}).items():
        label = str(name).replace("_", " ")
        if isinstance(value, list):
            rows += [(f"{label} {field}", text) for field, text in _spreads(value)]
        elif isinstance(value, Mapping):
            flat = {k: v for k, v in value.items() if isinstance(v, (str, int, float))}
            rows += [(f"{label} {k.replace('_', ' ')}", _short(v)) for k, v in flat.items()]
    rows += [("finding", str(found.get("evidence"))) for found in probes.get("findings") or ()]
    return rows


def _spreads(measured: Sequence[Mapping[str, Any]]) -> list[tuple[str, str]]:
    """``(field, "lowest to highest over n")`` of the numbers that a probe read a GPU or a pair."""
    what = "pairs" if any("from" in row for row in measured) else "GPUs"
    rows = []
    for field in dict.fromkeys(key for row in measured for key in row):
        values = [row[field] for row in measured if _is_figure(field, row.get(field))]
        if values:
            text = f"{_short(min(values))} to {_short(max(values))} over {len(values)} {what}"
            rows.append((field.replace("_", " "), text))
    return rows


def _is_figure(field: str, value: Any) -> bool:
    known = isinstance(value, (int, float)) and not isinstance(value, bool)
    return known and field not in ("gpu", "from", "to")


def _short(value: Any) -> str:
    return f"{value:,.4g}" if isinstance(value, float) else str(value)


def gpu_state(
    cells: Iterable[Cell],
) -> tuple[Sequence[str], Sequence[tuple[str, Sequence[float | None]]]]:
    """Clock, temperature and power of the GPUs before and after, a row an arm (means)."""
    samples: dict[str, dict[str, list[float]]] = {}
    for cell in cells:
        for when, gpus in (("before", cell.gpu_before), ("after", cell.gpu_after)):
            for gpu in gpus or ():
                for field, value in gpu.items():
                    if field in GPU_STATE and isinstance(value, (int, float)):
                        name = f"{field.replace('_', ' ')} {when}"
                        samples.setdefault(cell.arm, {}).setdefault(name, []).append(value)
    head = list(dict.fromkeys(name for arm in samples.values() for name in arm))
    return head, [
        (arm, [sum(v) / len(v) if (v := seen.get(name)) else None for name in head])
        for arm, seen in samples.items()
    ]
