"""Parsed outputs as flat JSON for people and scripts: what `python -m facts.nvidia` prints."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from typing import Any

from facts.nvidia.driver import parse_fabric_manager, parse_module, parse_versions
from facts.nvidia.environment import parse_environment
from facts.nvidia.errors import find_error
from facts.nvidia.gpus import Gpu
from facts.nvidia.nvlink import parse_nvlink
from facts.nvidia.query import parse_query
from facts.nvidia.smi import parse_query_text, parse_table
from facts.nvidia.toolkit import parse_nvcc, parse_toolkit_listing
from facts.nvidia.topology import Topology, parse_topology
from facts.nvidia.values import ParseError, known, plain, version_tuple, whole
from facts.nvidia.xml import parse_xml

Json = dict[str, Any]


def topology(text: str) -> Json:
    """`topo -m`: counts, pairs by kind, affinity, NICs, islands of NVLink."""
    found = parse_topology(text)
    return {
        "gpus": found.gpus,
        "pairs": found.pairs,
        "all_nvlink": found.all_nvlink,
        "islands": [list(island) for island in found.islands],
        "numa": None if found.numa is None else list(found.numa),
        "cpu": list(found.cpu_affinity),
        "nics": list(found.nics),
        "nic_names_known": found.nic_names_known,
        "near": {f"GPU{gpu}": nic for gpu, nic in enumerate(found.near) if nic},
        "complete": _completeness(found),
        "links": [list(row) for row in found.links],
    }


def _completeness(found: Topology) -> bool | str:
    if found.nic_rows == len(found.nics):
        return True
    return f"GPU part yes, NIC rows {found.nic_rows} of {len(found.nics)}"


def query(text: str) -> Json:
    """`--query-gpu` CSV: values that all rows share at the top, each row below."""
    found = parse_query(text)
    rows = [
        {key.replace(".", "_"): _cell(value) for key, value in row.items()} for row in found.rows
    ]
    gpus = [asdict(gpu) for gpu in found.gpus]
    asked = _shared(rows)
    return {
        **asked,
        **{key: value for key, value in _shared(gpus).items() if value is not None},
        "rows": len(rows),
        "gpus": len(rows),
        "memory_total_mib": _same(gpu.memory_total_mib for gpu in found.gpus),
        "memory_used_mib": _same(gpu.memory_used_mib for gpu in found.gpus),
        "memory_free_mib": _same(gpu.memory_free_mib for gpu in found.gpus),
        "mig": _same(gpu.mig for gpu in found.gpus),
        "mig_current": _same(gpu.mig for gpu in found.gpus),
        "temp_c": _same(gpu.temperature_c for gpu in found.gpus),
        "reason": found.reason(),
        "gpu": rows,
    }


def _cell(value: str) -> str | int | None:
    found = whole(value)
    return known(value) if found is None else found


def xml(text: str) -> Json:
    """`-q -x`: versions, what all GPUs share at the top, each GPU below."""
    found = parse_xml(text)
    return {
        **_shared([asdict(gpu) for gpu in found.gpus]),
        "gpus": len(found.gpus),
        "driver": found.versions.driver,
        "cuda": found.versions.cuda,
        "bus": _same(gpu.bus_id for gpu in found.gpus),
        "lost": list(found.lost),
        "processes": [asdict(process) for process in found.processes],
        "gpu": [asdict(gpu) for gpu in found.gpus],
    }


def nvlink(text: str) -> Json:
    """`nvlink -s`: links a GPU, how many are active, GB/s a link and direction."""
    found = parse_nvlink(text).gpus
    counts = [None if gpu.links is None or gpu.reason else len(gpu.links) for gpu in found]
    speeds = {speed for gpu in found for speed in gpu.links or () if speed is not None}
    single = found[0] if len(found) == 1 else None
    return {
        "gpus": len(found),
        "name": _same(gpu.name for gpu in found),
        "links_per_gpu": _same(counts),
        "active_per_gpu": _same(gpu.active for gpu in found),
        "gbps": speeds.pop() if len(speeds) == 1 else None,
        "reason": _same(gpu.reason for gpu in found),
        "gpu": single.index if single else None,
        "links": counts[0] if single else None,
        "active": single.active if single else None,
        "inactive": list(single.inactive) if single else None,
        "each": [
            {"gpu": gpu.index, "active": gpu.active, "inactive": list(gpu.inactive)}
            for gpu in found
        ],
    }


def table(text: str) -> Json:
    """The table of plain `nvidia-smi`: `gpus` only if it is whole and no GPU is lost."""
    found = parse_table(text)
    whole_count = found.complete and not found.lost
    return {
        "gpus": len(found.gpus) if whole_count else None,
        "gpus_listed": len(found.gpus),
        "indexes": [gpu.index for gpu in found.gpus],
        "complete": found.complete,
        "ok": whole_count,
        "lost": list(found.lost),
        "driver": found.versions.driver,
        "cuda": found.versions.cuda,
        "name": _same(gpu.name for gpu in found.gpus),
        "name_in_table": _same(found.names),
        "memory_total_mib": _same(gpu.memory_total_mib for gpu in found.gpus),
        "memory_used_mib": _same(gpu.memory_used_mib for gpu in found.gpus),
        "power_cap_w": _same(_watts(gpu) for gpu in found.gpus),
        "bus_ids": [gpu.bus_id for gpu in found.gpus],
        "bus_ids_domain1": sum((gpu.bus_id or "").startswith("00000001:") for gpu in found.gpus),
        "mig": _same(gpu.mig for gpu in found.gpus),
        "mig_devices": len(found.mig_memory_mib),
        "mig_memory_mib": list(found.mig_memory_mib),
    }


def _watts(gpu: Gpu) -> int | None:
    return None if gpu.power_limit_w is None else int(gpu.power_limit_w)


def query_text(text: str) -> Json:
    """`-q` text: `gpus` only if it holds as many blocks as GPUs are attached."""
    found = parse_query_text(text)
    return {
        "gpus": found.attached if found.complete else None,
        "attached": found.attached,
        "gpu_blocks": len(found.gpus),
        "complete": found.complete,
        "driver": found.versions.driver,
        "cuda": found.versions.cuda,
        "name": _same(gpu.name for gpu in found.gpus),
        "addressing_mode": _same(gpu.addressing_mode for gpu in found.gpus),
        "memory_total_mib": _same(gpu.memory_total_mib for gpu in found.gpus),
        "memory_ok": all(gpu.memory_total_mib for gpu in found.gpus) if found.gpus else None,
    }


def versions(text: str) -> Json:
    """`nvidia-smi --version`."""
    return asdict(parse_versions(text))


def module(text: str) -> Json:
    """/proc/driver/nvidia/version or `modinfo nvidia`: version and flavour of the kernel module."""
    found = parse_module(text)
    return {"module": found.version, "kind": found.kind, "path_kind": found.path_kind}


def fabric_manager(text: str) -> Json:
    """`nv-fabricmanager --version`."""
    return {"fabric_manager": parse_fabric_manager(text)}


def nvcc(text: str) -> Json:
    """`nvcc --version`: null if the shell says that there is none."""
    found = parse_nvcc(text)
    if found is None:
        return {"nvcc": None, "release": None, "version": None, "usable_for_blackwell": False}
    release = version_tuple(found.release) or ()
    return {
        "nvcc": found.version,
        "release": found.release,
        "version": found.version,
        "usable_for_blackwell": bool(found.knows("10.0")),
        "sm90": bool(found.knows("9.0")),
        "sm100": bool(found.knows("10.0")),
        "sm103": bool(found.knows("10.3")),
        "sm120": bool(found.knows("12.0")),
        # FlashInfer asks for 12.9 on all of SM 12.x (flashinfer/compilation_context.py).
        "flashinfer_sm12x": release >= (12, 9),
    }


def toolkits(text: str) -> Json:
    """`ls -l` of CUDA folders."""
    found = parse_toolkit_listing(text)
    return {"default": found.default, "via": list(found.via), "toolkits": list(found.toolkits)}


def environment(text: str) -> Json:
    """An environment report from an issue."""
    found = parse_environment(text)
    return {
        "gpus": found.gpus,
        "name": found.name,
        "cc": found.compute_cap,
        "driver": found.driver,
        "nvcc": found.nvcc,
        "cuda_home": found.cuda_home,
        "torch": found.packages.get("PyTorch"),
        "flashinfer": found.packages.get("flashinfer_python"),
        "jit_cache": found.packages.get("flashinfer_jit_cache"),
        "packages": found.packages,
    }


def errors(text: str) -> Json:
    """What an error message means, beside what else the output says; `error` null: none found."""
    found = find_error(text)
    if found is not None and found["error"] == "command not found" and "nvcc" in text:
        return {**found, **nvcc(text)}
    try:
        _, view = recognise(text)
        read = view(text)
    except ParseError as error:
        if found is None:
            raise
        read = {} if error.error == found["error"] else {"unreadable": error.error}
    return {"error": None, "ok": found is None, **read, **(found or {})}


# The text that gives a format away, most particular first.
_MARKS: tuple[tuple[str, Callable[[str], Json]], ...] = (
    ("<?xml", xml),
    ("NVSMI LOG", query_text),
    ("| NVIDIA-SMI", table),
    ("CPU Affinity", topology),
    ("NVIDIA-SMI version", versions),
    ("NVRM version", module),
    ("vermagic:", module),
    ("Fabric Manager version", fabric_manager),
    ("Compute Capability:", environment),
    ("Cuda compilation tools", nvcc),
    ("'nvcc' not found", nvcc),
    ("nvcc: command not found", nvcc),
    ("nvcc: not found", nvcc),
    ("/etc/alternatives/cuda", toolkits),
    ("(UUID: ", nvlink),
)


def recognise(text: str) -> tuple[str, Callable[[str], Json]]:
    """Name and view of the format that the text is in; CSV is what nothing else claims."""
    text = plain(text)
    for mark, view in _MARKS:
        if mark in text:
            return view.__name__, view
    return query.__name__, query


def _same(values: Iterable[Any]) -> Any:
    """The value that all share, else None."""
    found = list(values)
    return found[0] if found and all(value == found[0] for value in found) else None


def _shared(rows: list[Json]) -> Json:
    """The keys whose value is the same in all rows."""
    return (
        {key: rows[0][key] for key in rows[0] if all(row[key] == rows[0][key] for row in rows)}
        if rows
        else {}
    )
