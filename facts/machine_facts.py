"""The facts of a host as frozen dataclasses, and their JSON: no pyinfra import."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any, Literal

from pydantic import ConfigDict, TypeAdapter, ValidationError

from facts.nvidia import (
    DriverModule,
    Gpu,
    GpuProcess,
    Nvcc,
    NvlinkStatus,
    Toolkit,
    Topology,
)


class MachineError(ValueError):
    """A document that is not a `MachineFacts`: one line, where and what is wrong."""


@dataclass(frozen=True)
class Mount:
    """A mounted file system. MiB of 2**20 bytes; `free_mib` is what this user may still write."""

    path: str
    source: str
    fstype: str
    size_mib: int
    free_mib: int
    inodes_free: int | None = None  # None where the file system does not count them


@dataclass(frozen=True)
class Place:
    """A path that the host was asked about, mostly a folder that may take the prefix or a model.

    Links resolved, and the mount it lies on.
    """

    path: str  # as asked, "/models"
    resolved: str  # "/mnt/nvme0/models"; of the nearest parent that exists
    mount: str  # `Mount.path`
    exists: bool
    writable: bool  # a folder that this user may write, or can make
    program: bool = False  # a file that this user may run


@dataclass(frozen=True)
class Python:
    """A Python interpreter: `version` "3.12.3"."""

    path: str
    version: str


@dataclass(frozen=True)
class Venv:
    """A virtual environment (a folder with pyvenv.cfg): `version` of its Python, if it says so."""

    path: str
    version: str | None = None


@dataclass(frozen=True)
class ModelDir:
    """A model: `kind` "folder" (config.json or *.gguf in it), or "hub-cache" (models--* there)."""

    path: str
    kind: Literal["folder", "hub-cache"]
    size_mib: int | None = None


@dataclass(frozen=True)
class Port:
    """A listening TCP port; `pid` and `command` are None where this user may not see them."""

    port: int
    address: str  # "0.0.0.0", "::", "127.0.0.1"
    pid: int | None = None
    command: str | None = None


@dataclass(frozen=True)
class Unit:
    """A systemd unit: `active` as in `systemctl is-active`, `enabled` as in `is-enabled`."""

    name: str
    active: str  # "active", "inactive", "failed", "activating", ...
    enabled: str | None = None  # "enabled", "disabled", "static", ...


@dataclass(frozen=True)
class FabricManager:
    """nvidia-fabricmanager: `installed_version` "580.159.04"; `active` None without systemd."""

    installed_version: str | None = None
    active: bool | None = None


@dataclass(frozen=True)
class Limits:
    """Soft limits of the login session, not of a unit; -1 is unlimited."""

    memlock_kib: int | None = None
    nofile: int | None = None


@dataclass(frozen=True)
class MachineFacts:
    """A host. None is "unknown" or "not there", an empty tuple "looked and found nothing".

    Memory and disk in MiB (2**20 bytes). Values that drift between runs (free memory, free disk,
    ports, processes, clock) are for pre-flight; a plan must not depend on them.
    """

    hostname: str
    os_id: str | None = None  # "ubuntu", "debian"
    os_version: str | None = None  # "24.04"
    kernel: str | None = None  # "6.8.0-138-generic"
    arch: str | None = None  # "x86_64"
    glibc: str | None = None  # "2.39"; None on musl
    init: Literal["systemd", "other"] = "other"
    systemd_version: int | None = None
    container: bool | None = None
    user: str = "root"
    uid: int = 0
    home: str = "/root"
    sudo: Literal["root", "passwordless", "none"] = "none"

    cpus: int | None = None
    cpu_model: str | None = None
    numa_nodes: int | None = None
    numa_balancing: bool | None = None
    memory_total_mib: int | None = None
    memory_available_mib: int | None = None
    shm_total_mib: int | None = None  # size of /dev/shm
    mounts: tuple[Mount, ...] = ()
    places: tuple[Place, ...] = ()

    gpus: tuple[Gpu, ...] = ()
    gpu_error: str | None = None  # nvidia-smi is there but failed: the error's name and details
    gpus_lost: tuple[str, ...] = ()  # as nvidia-smi names them, "GPU1 0000:34:00.0"
    gpu_pci_devices: int | None = None  # NVIDIA display devices on the PCI bus, driver or not
    topology: Topology | None = None
    topology_error: str | None = None
    nvlink: NvlinkStatus | None = None
    gpu_processes: tuple[GpuProcess, ...] = ()
    driver: str | None = None  # "580.159.04"
    cuda_driver: str | None = None  # newest CUDA that the driver runs, "13.0"
    driver_module: DriverModule | None = None
    fabric_manager: FabricManager | None = None  # None: not installed
    nvswitches: int | None = None  # NVSwitch bridges on the PCI bus
    toolkits: tuple[Toolkit, ...] = ()
    nvcc: Nvcc | None = None  # the default toolkit's, else the one on PATH
    ptxas: Nvcc | None = None  # the toolkit's ptxas; Triton's own lies in the engine's venv
    iommu: Literal["off", "on", "passthrough"] | None = None
    acs_bridges: int | None = None  # PCIe bridges that redirect peer-to-peer traffic (ACS on)
    uvm_disable_hmm: bool | None = None
    modules: tuple[str, ...] = ()  # loaded kernel modules of interest: bnxt_re, nvidia_uvm, ...

    pythons: tuple[Python, ...] = ()
    uv: str | None = None  # path
    uv_version: str | None = None
    conda: str | None = None  # path
    pip: str | None = None  # path
    venvs: tuple[Venv, ...] = ()
    model_dirs: tuple[ModelDir, ...] = ()
    hf_token: bool = False  # whether the host holds one; never its value
    hub_reachable: bool | None = None  # None: no tool to try it with
    has_apt: bool = False
    has_patch: bool = False
    ports: tuple[Port, ...] = ()
    units: tuple[Unit, ...] = ()  # ours, model servers' and the driver's helpers'
    limits: Limits = Limits()
    ptrace_scope: int | None = None
    clock_synchronised: bool | None = None
    clock_unix: int | None = None  # seconds since 1970 when the facts were read

    @staticmethod
    def from_json(document: dict[str, Any]) -> MachineFacts:
        """The facts of a parsed JSON document; unknown keys and wrong types raise MachineError."""
        try:
            return _ADAPTER.validate_json(json.dumps(document), strict=True)
        except ValidationError as error:
            first = error.errors()[0]
            where = ".".join(str(part) for part in first["loc"]) or "document"
            raise MachineError(f"machine facts: {where}: {first['msg']}") from None

    def to_json(self) -> dict[str, Any]:
        """The facts as plain JSON types; `from_json` reads it back to an equal value."""
        document: dict[str, Any] = _ADAPTER.dump_python(self, mode="json")
        return document

    def place(self, path: str) -> Place | None:
        """What is known of `path`; None if the host was not asked about it."""
        return next((place for place in self.places if place.path == path), None)

    def mount_of(self, path: str) -> Mount | None:
        """The mount that `path` lies on: by `places`, where links are resolved, else by prefix."""
        wanted = PurePosixPath(path)
        above = [place for place in self.places if wanted.is_relative_to(place.path)]
        if above:
            place = max(above, key=lambda place: len(place.path))
            below = wanted.relative_to(place.path) if place.exists else ""
            wanted = PurePosixPath(place.resolved) / below
        parents = [mount for mount in self.mounts if wanted.is_relative_to(mount.path)]
        return max(parents, key=lambda mount: len(mount.path), default=None)


MachineFacts.__pydantic_config__ = ConfigDict(extra="forbid")  # type: ignore[attr-defined]
_ADAPTER = TypeAdapter(MachineFacts)
