"""The GPU half of the machine's document: nvidia-smi's answers, toolkits, fabric manager."""

from __future__ import annotations

import re
from dataclasses import replace

from facts import linux
from facts.machine_facts import FabricManager, MachineFacts, Unit
from facts.nvidia import (
    DriverModule,
    Gpu,
    GpuProcess,
    Nvcc,
    NvlinkStatus,
    ParseError,
    Toolkit,
    Topology,
)
from facts.nvidia.driver import parse_fabric_manager, parse_module
from facts.nvidia.errors import find_error, lost_gpus
from facts.nvidia.nvlink import parse_nvlink
from facts.nvidia.query import Query, parse_query
from facts.nvidia.toolkit import parse_nvcc
from facts.nvidia.topology import parse_topology
from facts.nvidia.xml import Log, parse_xml

Sections = dict[str, str]
Exits = dict[str, int | None]  # None: the tool was stopped for time
# Kernel modules that a check asks for; others are left out of the facts.
_MODULES = re.compile(
    r"nvidia(_\w+)?|nouveau|bnxt_(en|re)|mlx5_(core|ib)|ib_core|gdrdrv|nvme|nv_peer_mem|amdgpu"
)
_HUNG = "no answer in time (hung driver?)"


def add_gpus(machine: MachineFacts, sections: Sections, exits: Exits) -> MachineFacts:
    """GPU facts: the query and the XML must agree on the GPUs, else that is the error."""
    problems: list[str] = []
    query: Query | None = None
    log: Log | None = None
    lost = lost_gpus(sections.get("query", "") + "\n" + sections.get("xml", ""))
    try:
        query = parse_query(_answer("query", sections, exits))
    except ParseError as error:
        problems.append(str(error))
    try:
        log = parse_xml(_answer("xml", sections, exits))
    except ParseError as error:
        problems.append(str(error))
    gpus = _merge(query.gpus if query else (), log.gpus if log else ())
    if query and log and len(query.rows) != len(log.gpus):
        problems.append(f"the query lists {len(query.rows)} GPUs, the XML {len(log.gpus)}")
    if lost:
        problems.append(f"GPU lost ({', '.join(lost)})")
    topology, topology_error = _topology(sections, exits)
    drivers = {gpu.driver for gpu in gpus if gpu.driver}
    return replace(
        machine,
        gpus=gpus,
        gpu_error="; ".join(dict.fromkeys(problems)) or None,
        gpus_lost=tuple(lost),
        topology=topology,
        topology_error=topology_error,
        nvlink=_nvlink(sections, exits),
        gpu_processes=_processes(log, sections.get("process_users", "")),
        driver=drivers.pop() if len(drivers) == 1 else None,
        cuda_driver=log.versions.cuda if log else None,
    )


def _answer(name: str, sections: Sections, exits: Exits) -> str:
    """A section's text; a tool that was stopped for time is a ParseError of its own."""
    if name not in sections or exits[name] in (None, 124, 137):
        raise ParseError(_HUNG, tool=name)
    return sections[name]


def _merge(query: tuple[Gpu, ...], log: tuple[Gpu, ...]) -> tuple[Gpu, ...]:
    """The GPUs of both sources, joined by PCI bus id; the XML's fields win where both have one."""
    if not query or not log:
        return query or log
    details = {(gpu.bus_id or "").lower(): gpu for gpu in log}
    merged = []
    for gpu in query:
        more = details.get((gpu.bus_id or "").lower())
        if more is None:
            merged.append(gpu)
            continue
        own = {key: value for key, value in vars(gpu).items() if value is not None}
        filled = {key: value for key, value in own.items() if getattr(more, key) is None}
        merged.append(replace(more, **(filled | {"index": gpu.index})))
    return tuple(merged)


def _topology(sections: Sections, exits: Exits) -> tuple[Topology | None, str | None]:
    try:
        return parse_topology(_answer("topology", sections, exits)), None
    except ParseError as error:
        return None, str(error)


def _nvlink(sections: Sections, exits: Exits) -> NvlinkStatus | None:
    """None where the answer can't be read; a GPU without NVLink is listed with no links."""
    try:
        text = _answer("nvlink", sections, exits)
        return parse_nvlink(text) if text.strip() or exits["nvlink"] else NvlinkStatus()
    except ParseError:
        return None


def _processes(log: Log | None, users: str) -> tuple[GpuProcess, ...]:
    names = dict(re.findall(r"^\s*(\d+)\s+(\S+)\s*$", users, re.MULTILINE | re.ASCII))
    found = log.processes if log else ()
    return tuple(replace(process, user=names.get(str(process.pid))) for process in found)


def add_cuda(
    machine: MachineFacts,
    sections: Sections,
    exits: Exits,
    identity: dict[str, str],
) -> MachineFacts:
    """PCI devices, kernel modules, toolkits and fabric manager: there even without nvidia-smi."""
    classes = sections.get("pci", "").split()
    gpu_devices = sum(code.startswith(("0x0300", "0x0302")) for code in classes)
    bus_is_seen = "pci" in sections and bool(gpu_devices or not machine.gpus)
    switches = sum(code.startswith("0x0680") for code in classes)
    gpu_error = machine.gpu_error
    if gpu_devices and not machine.gpus and gpu_error is None:
        gpu_error = f"nvidia-smi is not installed, {gpu_devices} NVIDIA GPUs on the PCI bus"
    toolkits, nvcc, ptxas = _toolkits(sections.get("cuda", ""))
    module = _module(sections.get("module", ""))
    iommu = linux.parse_iommu(identity.get("iommu_types"))
    return replace(
        machine,
        gpu_error=gpu_error,
        # /sys may be masked in a container: GPUs that answer are then not "0 on the bus".
        gpu_pci_devices=gpu_devices if bus_is_seen else None,
        nvswitches=switches if bus_is_seen else None,
        driver=machine.driver or (module.version if module else None),
        driver_module=module,
        fabric_manager=_fabric_manager(sections, machine.units, machine.init),
        toolkits=toolkits,
        nvcc=nvcc,
        ptxas=ptxas,
        iommu=iommu,
        acs_bridges=_acs(sections) if exits.get("acs") == 0 else None,
        uvm_disable_hmm=linux.flag(identity.get("uvm_disable_hmm")),
        modules=tuple(
            sorted(m for m in sections.get("modules", "").split() if _MODULES.fullmatch(m))
        ),
    )


def _acs(sections: Sections) -> int:
    """Bridges that send peer-to-peer traffic up to the root (ReqRedir+)."""
    return len(re.findall(r"ACSCtl:.*ReqRedir\+", sections["acs"]))


def _module(text: str) -> DriverModule | None:
    try:
        return parse_module(text)
    except ParseError:
        return None


def _fabric_manager(sections: Sections, units: tuple[Unit, ...], init: str) -> FabricManager | None:
    unit = next((unit for unit in units if unit.name == "nvidia-fabricmanager.service"), None)
    if "fabric_manager" not in sections and unit is None:
        return None
    try:
        version = parse_fabric_manager(sections.get("fabric_manager", ""))
    except ParseError:
        version = None
    active = None if init != "systemd" else unit is not None and unit.active == "active"
    return FabricManager(version, active)


def _toolkits(text: str) -> tuple[tuple[Toolkit, ...], Nvcc | None, Nvcc | None]:
    """Toolkit folders, the default nvcc (/usr/local/cuda's, else the one on PATH) and its ptxas."""
    parts = re.split(r"^(toolkit|ptxas|nvcc) (/.*)$", text, flags=re.MULTILINE)
    toolkits: list[Toolkit] = []
    compilers: dict[str, Nvcc] = {}
    assemblers: dict[str, Nvcc] = {}
    on_path: Nvcc | None = None
    for kind, where, output in zip(parts[1::3], parts[2::3], parts[3::3], strict=True):
        tool = _tool(output)
        path = where.split(" ")[0]
        if kind == "toolkit":
            default = where.endswith(" /usr/local/cuda")
            release = tool.release if tool else None
            toolkits.append(Toolkit(path, release, default, has_nvcc=tool is not None))
            if tool:
                compilers[path] = replace(tool, path=f"{path}/bin/nvcc")
        elif kind == "ptxas" and tool:
            assemblers[path.removesuffix("/bin/ptxas")] = replace(tool, path=path)
        elif kind == "nvcc" and tool:
            on_path = replace(tool, path=path)
    first = sorted(toolkits, key=lambda toolkit: not toolkit.default)
    nvcc = next((compilers[t.path] for t in first if t.path in compilers), on_path)
    ptxas = next((assemblers[t.path] for t in first if t.path in assemblers), None)
    return tuple(toolkits), nvcc, ptxas


def _tool(output: str) -> Nvcc | None:
    if find_error(output):
        return None
    try:
        return parse_nvcc(output)
    except ParseError:
        return None
