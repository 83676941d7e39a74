"""The table of test_preflight_checks.py: a check, a machine, and what the check answers there."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from facts.machine import (
    FabricManager,
    Limits,
    MachineFacts,
    ModelDir,
    Mount,
    Place,
    Port,
    Python,
    Unit,
    Venv,
)
from facts.nvidia import DriverModule, GpuProcess, Nvcc, NvlinkGpu, NvlinkStatus
from operations.checks_all import check
from operations.checks_base import Finding, Hub, Own
from operations.plan import choose
from tests.unit.plan_cases import (
    first_gpus,
    linked,
    machine_of,
    wanted_for,
    with_gpus,
    with_wish,
)

Change = Callable[[MachineFacts], MachineFacts]


def findings_of(
    name: str,
    change: Change | None = None,
    wish: dict[str, Any] | None = None,
    own: Own | None = None,
    now_unix: int | None = None,
    hub: Hub | None = None,
) -> dict[str, Finding]:
    machine = change(machine_of(name)) if change else machine_of(name)
    wanted = with_wish(wanted_for(name), **(wish or {}))
    plan = choose(machine, wanted)
    own, hub = own or Own(), hub or Hub()
    found = check(machine, wanted, plan, own=own, hub=hub, now_unix=now_unix)
    return {finding.id: finding for finding in found}


def facts(**changes: Any) -> Change:
    return lambda machine: replace(machine, **changes)


def gpus(**changes: Any) -> Change:
    return lambda machine: with_gpus(machine, **changes)


def one_gpu(**changes: Any) -> Change:
    """Changes GPU 2 alone."""

    def change(machine: MachineFacts) -> MachineFacts:
        new = list(machine.gpus)
        new[2] = replace(new[2], **changes)
        return replace(machine, gpus=tuple(new))

    return change


def disk(free_mib: int, **changes: Any) -> Change:
    def change(machine: MachineFacts) -> MachineFacts:
        mounts = (Mount("/", "/dev/md0", "ext4", 4_000_000, free_mib, **changes),)
        return replace(machine, mounts=mounts, places=())

    return change


def place(path: str, exists: bool = True, program: bool = False) -> Change:
    """What the host says of a path that it was asked about."""
    found = Place(path, path if exists else "/", "/", exists, writable=True, program=program)
    return lambda machine: replace(machine, places=(*machine.places, found))


def links_down(machine: MachineFacts) -> MachineFacts:
    assert machine.nvlink is not None
    status = list(machine.nvlink.gpus)
    speeds = status[3].links
    assert speeds is not None
    status[3] = replace(status[3], links=(None, *speeds[1:]))
    return replace(machine, nvlink=NvlinkStatus(tuple(status)))


def unreadable_links(machine: MachineFacts) -> MachineFacts:
    gone = tuple(NvlinkGpu(i, None, None, "MIG mode") for i in range(8))
    return replace(machine, nvlink=NvlinkStatus(gone))


@dataclass(frozen=True)
class Case:
    """On machine `on` after `change`, the check `id` answers `status` and says `said`."""

    id: str
    on: str
    status: str
    said: str
    change: Change | None = None
    wish: dict[str, Any] = field(default_factory=dict)
    own: Own = field(default_factory=Own)
    now_unix: int | None = None
    hub: Hub = field(default_factory=Hub)

    def __str__(self) -> str:
        return f"{self.id}-{self.status}-{self.said[:24].strip()}"


COMMIT = "0123456789abcdef0123456789abcdef01234567"
TARGET = f"hf:moonshotai/Kimi-K2.6@{COMMIT}"
DRAFTER = f"hf:SubSir/Kimi-K2.6-DFlash-tmp-long@{COMMIT}"
KIMI = f"/opt/ddtree/models/moonshotai--Kimi-K2.6/{COMMIT}"
BUSY = GpuProcess("00000000:1A:00.0", 4711, "python3", 80_000)
PORT = Port(30000, "127.0.0.1", 4712, "python")
PYTHON = "/opt/engine/bin/python"
SYSTEM = {"stack": "system", "stack_from": PYTHON}
WHEELS = {"stack": "wheelhouse", "stack_from": "/srv/wheels"}
INSTALLED = (Venv("/opt/ddtree/venvs/0123456789ab"),)
USER = {"uid": 1000, "user": "me", "home": "/home/me"}

CASES_OF_CHECKS = [
    Case("gpu.driver", "b300", "pass", "8 GPUs listed"),
    Case(
        "gpu.driver", "b300", "fail", "no driver communication",
        facts(gpus=(), gpu_error="no driver communication"),
    ),
    Case("gpu.driver", "b300", "fail", "8 NVIDIA devices on the PCI bus", facts(gpus=())),
    Case("gpu.driver", "cpu", "skip", "no GPU is wanted"),
    Case("gpu.lost", "b300", "pass", "none"),
    Case(
        "gpu.lost", "b300", "fail", "GPU1 0000:34:00.0", facts(gpus_lost=("GPU1 0000:34:00.0",))
    ),
    Case("gpu.count", "b300", "pass", "8"),
    Case("gpu.count", "h200x1", "pass", "1 or 2"),
    Case("gpu.count", "b300", "fail", "expected 8 GPUs, found 7", lambda m: first_gpus(m, 7)),
    Case("gpu.count", "h200x2", "fail", "expected 4 GPUs, found 2", wish={"gpus": 4}),
    Case("gpu.name", "ct200", "pass", "8x NVIDIA RTX PRO 6000"),
    Case("gpu.name", "ct200", "fail", "found 8x NVIDIA RTX PRO", wish={"gpu_name": "B300"}),
    Case("gpu.same", "b300", "pass", "8x NVIDIA B300"),
    Case("gpu.same", "b300", "fail", "1x NVIDIA H200", one_gpu(name="NVIDIA H200")),
    Case("gpu.same", "b300", "fail", "7x NVIDIA B300", one_gpu(memory_total_mib=1000)),
    Case("gpu.compute_capability", "b300", "pass", "10.3"),
    Case(
        "gpu.compute_capability", "b300", "fail", "expected 12.0, found 8x 10.3",
        wish={"compute_capability": "12.0"},
    ),
    Case("gpu.compute_capability", "b300", "fail", "does not tell", gpus(compute_cap=None)),
    Case("gpu.code", "b300", "pass", "sm_103 runs torch's code for sm_100"),
    Case(
        "gpu.code", "b300", "fail", "sm_110 is not served", gpus(compute_cap="11.0"),
        wish={"compute_capability": None},
    ),
    Case("gpu.links", "b300", "pass", "all 28 pairs NV18"),
    Case("gpu.links", "ct200", "pass", "PCIe (4 PIX, 8 NODE, 16 SYS)"),
    Case("gpu.links", "b300", "fail", "1 SYS", lambda m: linked(m, {(0, 5): "SYS"})),
    Case("gpu.links", "ct200", "fail", "expected NVLink between all", wish={"links": "nvlink"}),
    Case("gpu.links", "b300", "fail", "expected PCIe, found all 28", wish={"links": "pcie"}),
    Case(
        "gpu.links", "b300", "fail", "incomplete",
        facts(topology=None, topology_error="incomplete"),
    ),
    Case("gpu.links", "h200x1", "skip", "one GPU"),
    Case("gpu.nvlink", "b300", "pass", "18 links active on each of 8"),
    Case("gpu.nvlink", "b300", "fail", "GPU 3: links [0] down", links_down),
    Case("gpu.nvlink", "b300", "unknown", "MIG mode", unreadable_links),
    Case("gpu.nvlink", "ct200", "skip", "no NVLink"),
    Case("driver.version", "b300", "pass", "driver 590.44.01"),
    Case("driver.version", "b300", "fail", "driver 570.10", facts(driver="570.10")),
    Case("driver.version", "b300", "fail", "unknown", facts(driver=None)),
    Case("driver.module", "b300", "pass", "590.44.01 (open)"),
    Case(
        "driver.module", "b300", "fail", "module 580.1 is loaded",
        facts(driver_module=DriverModule("580.1")),
    ),
    Case("driver.module", "b300", "unknown", "unknown", facts(driver_module=None)),
    Case("fabric.state", "b300", "pass", "Completed on 8 GPUs"),
    Case("fabric.state", "b300", "fail", "1x In Progress", one_gpu(fabric_state="In Progress")),
    Case("fabric.state", "b300", "fail", "Failure", one_gpu(fabric_status="Failure")),
    Case("fabric.state", "ct200", "skip", "no NVSwitch"),
    Case("fabric.manager", "b300", "pass", "590.44.01, running"),
    Case(
        "fabric.manager", "b300", "fail", "fabric manager 580.1, driver 590.44.01",
        facts(fabric_manager=FabricManager("580.1", True)),
    ),
    Case(
        "fabric.manager", "b300", "fail", "does not run",
        facts(fabric_manager=FabricManager("590.44.01", False)),
    ),
    Case(
        "fabric.manager", "b300", "fail", "NVSwitches, but no fabric manager",
        facts(fabric_manager=None, nvswitches=4),
    ),
    Case("fabric.manager", "h200x2", "skip", "its manager runs outside"),
    Case("gpu.mig", "b300", "pass", "off"),
    Case("gpu.mig", "b300", "fail", "on at GPU 2", one_gpu(mig="Enabled")),
    Case("gpu.compute_mode", "b300", "pass", "Default"),
    Case("gpu.compute_mode", "b300", "fail", "GPU 2 Prohib", one_gpu(compute_mode="Prohibited")),
    Case("gpu.memory_health", "b300", "pass", "no fault"),
    Case("gpu.memory_health", "b300", "fail", "failed: GPU 2", one_gpu(remap_failure=True)),
    Case("gpu.memory_health", "b300", "fail", "GPU 2: Reset", one_gpu(recovery_action="Reset")),
    Case("gpu.memory_health", "b300", "warn", "waits on GPU 2", one_gpu(remap_pending=True)),
    Case("gpu.memory_health", "b300", "warn", "GPU 2 3", one_gpu(ecc_uncorrected=3)),
    Case("gpu.throttle", "b300", "pass", "no hardware slowdown"),
    Case("gpu.throttle", "b300", "warn", "GPU 2", one_gpu(hw_slowdown=True)),
    Case("gpu.persistence", "b300", "pass", "on"),
    Case("gpu.persistence", "b300", "warn", "off on GPU 2", one_gpu(persistence="Disabled")),
    Case("gpu.idle", "b300", "pass", "no process"),
    Case("gpu.idle", "b300", "fail", "pid 4711 python3 80000 MiB", facts(gpu_processes=(BUSY,))),
    Case(
        "gpu.idle", "b300", "pass", "our own", facts(gpu_processes=(BUSY,)),
        own=Own(frozenset({4711})),
    ),
    Case("gpu.pcie", "b300", "pass", "x16"),
    Case("gpu.pcie", "b300", "warn", "GPU 2 x8", one_gpu(pcie_width_max=8)),
    Case(
        "gpu.pcie", "b300", "warn", "GPU 2 generation 4 of 5",
        one_gpu(pcie_gen_max=4, pcie_gen_device_max=5),
    ),
    Case("gpu.bar1", "ct200", "pass", "131072 MiB"),
    Case("gpu.bar1", "ct200", "warn", "GPU 2 256 MiB", one_gpu(bar1_total_mib=256)),
    Case("gpu.bar1", "ct200", "unknown", "unknown", one_gpu(bar1_total_mib=None)),
    Case("cuda.nvcc", "b300", "pass", "CUDA 13.0 in /usr/local/cuda-13.0"),
    Case(
        "cuda.nvcc", "b300", "fail", "11.5 in /usr/bin/nvcc",
        facts(toolkits=(), nvcc=Nvcc("11.5", "11.5.119", "/usr/bin/nvcc")),
    ),
    Case(
        "cuda.nvcc", "b300", "warn", "no nvcc", facts(toolkits=(), nvcc=None, ptxas=None)
    ),
    Case(
        "cuda.nvcc", "b300", "fail", "no nvcc", facts(toolkits=(), nvcc=None, has_apt=False)
    ),
    Case("cuda.ptxas", "b300", "pass", "ptxas 13.0.88"),
    Case(
        "cuda.ptxas", "b300", "fail", "ptxas 12.8.93; sm_103 needs 13.0",
        facts(ptxas=Nvcc("12.8", "12.8.93", "/usr/local/cuda-13.0/bin/ptxas")),
    ),
    Case(
        "cuda.ptxas", "b300", "unknown", "the plan takes /usr/local/cuda-13.0/bin/ptxas",
        facts(ptxas=Nvcc("12.8", "12.8.93", "/usr/bin/ptxas")),
    ),
    Case("cuda.ptxas", "h200x2", "unknown", "triton.ptxas", facts(ptxas=None)),
    Case("cuda.hmm", "ct200", "pass", "on", facts(uvm_disable_hmm=True)),
    Case("cuda.hmm", "ct200", "warn", "uvm_disable_hmm is off", facts(uvm_disable_hmm=False)),
    Case("cuda.hmm", "ct200", "unknown", "unknown", facts(uvm_disable_hmm=None)),
    Case("cuda.hmm", "b300", "skip", "sm_12x"),
    Case("pcie.iommu", "ct200", "pass", "passthrough"),
    Case("pcie.iommu", "ct200", "warn", "may hang", facts(iommu="on")),
    Case("pcie.iommu", "ct200", "unknown", "unknown", facts(iommu=None)),
    Case(
        "pcie.iommu", "ct200", "pass", "peer copies are off", facts(iommu="on"),
        wish={"environment": {"NCCL_P2P_DISABLE": "1"}},
    ),
    Case("pcie.iommu", "b300", "skip", "over PCIe only", facts(iommu="on")),
    Case("pcie.acs", "ct200", "pass", "no bridge"),
    Case("pcie.acs", "ct200", "warn", "12 bridges", facts(acs_bridges=12)),
    Case("pcie.acs", "ct200", "unknown", "unknown", facts(acs_bridges=None)),
    Case("nccl.bnxt_re", "ct200", "pass", "not loaded"),
    Case("nccl.bnxt_re", "ct200", "pass", "NCCL_IB_DISABLE=1", facts(modules=("bnxt_re",))),
    Case(
        "nccl.bnxt_re", "ct200", "fail", "NCCL may probe it", facts(modules=("bnxt_re",)),
        wish={"environment": {"NCCL_IB_DISABLE": "0"}},
    ),
    Case("kernel.ptrace", "b300", "pass", "is 1"),
    Case("kernel.ptrace", "b300", "warn", "is 3", facts(ptrace_scope=3)),
    Case("kernel.ptrace", "b300", "unknown", "unknown", facts(ptrace_scope=None)),
    Case("kernel.numa_balancing", "b300", "pass", "off", facts(numa_balancing=False)),
    Case("kernel.numa_balancing", "b300", "warn", "on", facts(numa_balancing=True)),
    Case("os.platform", "b300", "pass", "ubuntu 24.04, x86_64, glibc 2.39"),
    Case("os.platform", "b300", "fail", "aarch64", facts(arch="aarch64")),
    Case("os.platform", "b300", "fail", "glibc 2.31, needs 2.34", facts(glibc="2.31")),
    Case("os.platform", "cpu", "pass", "glibc", facts(glibc="2.31")),
    Case("os.platform", "cpu", "fail", "no glibc", facts(glibc=None)),
    Case("os.python", "b300", "pass", "/usr/bin/python3 is 3.12.3"),
    Case(
        "os.python", "b300", "pass", "uv brings it",
        facts(pythons=(Python("/usr/bin/python3", "3.10.4"),)),
    ),
    Case(
        "os.python", "b300", "fail", "Python 3.12 is not there (found 3.10.4)",
        facts(pythons=(Python("/usr/bin/python3", "3.10.4"),)),
        wish=WHEELS,
    ),
    Case("os.python", "cpu", "pass", "python3", wish=SYSTEM | {"stack_from": None}),
    Case(
        "os.python", "cpu", "fail", "no Python on PATH", facts(pythons=()),
        wish=SYSTEM | {"stack_from": None},
    ),
    Case("os.python", "cpu", "unknown", "was not asked", wish=SYSTEM),
    Case("os.python", "cpu", "pass", PYTHON, place(PYTHON, program=True), wish=SYSTEM),
    Case("os.python", "cpu", "fail", "can't be run", place(PYTHON), wish=SYSTEM),
    Case("os.python", "cpu", "fail", "found no such file", place(PYTHON, False), wish=SYSTEM),
    Case("stack.wheels", "b300", "skip", "no folder"),
    Case("stack.wheels", "b300", "unknown", "was not asked", wish=WHEELS),
    Case("stack.wheels", "b300", "pass", "/srv/wheels", place("/srv/wheels"), wish=WHEELS),
    Case(
        "stack.wheels", "b300", "fail", "expected a folder of wheels in /srv/wheels, found none",
        place("/srv/wheels", False), wish=WHEELS,
    ),
    Case(
        "stack.wheels", "b300", "fail", "/srv/wheels", place("/srv/wheels", False),
        wish={"tools_from": "/srv/wheels"},
    ),
    Case(
        "stack.wheels", "b300", "warn", "/srv/wheels",
        lambda m: replace(place("/srv/wheels", False)(m), venvs=INSTALLED), wish=WHEELS,
    ),
    Case("host.rights", "b300", "pass", "root"),
    Case("host.rights", "cpu", "pass", "everything lies under /home/me", facts(**USER)),
    Case(
        "host.rights", "b300", "fail", "may not install system units", facts(**USER),
        wish={"service_manager": "systemd"},
    ),
    Case("disk.space", "b300", "pass", "608.4 GB needed"),
    Case("disk.space", "b300", "fail", "104.9 GB free", disk(100_000)),
    Case("disk.space", "b300", "unknown", "no mount", facts(mounts=(), places=())),
    Case(
        "disk.space", "b300", "pass", "7.9 GB needed",
        lambda m: replace(
            disk(100_000)(m),
            model_dirs=(ModelDir(KIMI, "folder", 523_000),),
            venvs=INSTALLED,
        ),
    ),
    Case(
        "disk.space", "b300", "pass", "7.9 GB needed",
        lambda m: replace(
            disk(100_000)(m), venvs=INSTALLED
        ),
        own=Own(model_mib={KIMI: 523_000}),
    ),
    Case("disk.inodes", "b300", "pass", "99000000"),
    Case("disk.inodes", "b300", "fail", "10 left on /", disk(2_000_000, inodes_free=10)),
    Case("disk.inodes", "b300", "skip", "does not count", disk(2_000_000)),
    Case("memory.ram", "b300", "pass", "2063476 MiB"),
    Case("memory.ram", "b300", "fail", "64000 MiB", facts(memory_total_mib=64_000)),
    Case("memory.ram", "b300", "warn", "less than the", facts(memory_total_mib=256_000)),
    Case("memory.ram", "cpu", "fail", "1024 MiB, needs 2048", facts(memory_total_mib=1024)),
    Case("memory.ram", "cpu", "unknown", "unknown", facts(memory_total_mib=None)),
    Case("memory.shm", "b300", "pass", "MiB"),
    Case("memory.shm", "b300", "fail", "64 MiB, needs 8192", facts(shm_total_mib=64)),
    Case("memory.shm", "b300", "unknown", "unknown", facts(shm_total_mib=None)),
    Case("host.clock", "b300", "pass", "synchronised"),
    Case("host.clock", "b300", "warn", "not sync", facts(clock_synchronised=False)),
    Case(
        "host.clock", "b300", "fail", "1000 s behind this machine", facts(clock_unix=5000),
        now_unix=6000,
    ),
    Case(
        "host.clock", "b300", "fail", "1000 s ahead of this machine", facts(clock_unix=7000),
        now_unix=6000,
    ),
    Case(
        "host.clock", "cpu", "pass", "agrees",
        facts(clock_unix=6001, clock_synchronised=None), now_unix=6000,
    ),
    Case("hub.reachable", "b300", "pass", "reachable, for Kimi-K2.6"),
    Case("hub.reachable", "b300", "fail", "can't reach", facts(hub_reachable=False)),
    Case("hub.reachable", "b300", "unknown", "neither", facts(hub_reachable=None)),
    Case("hub.reachable", "b300", "fail", "declared offline", wish={"hub": "offline"}),
    Case("hub.reachable", "cpu", "skip", "nothing is to be downloaded"),
    Case("hub.token", "b300", "pass", "not gated", hub=Hub({TARGET: False, DRAFTER: False})),
    Case(
        "hub.token", "b300", "fail", "Kimi-K2.6 is gated, and there is no token",
        hub=Hub({TARGET: True, DRAFTER: False}),
    ),
    Case(
        "hub.token", "b300", "pass", "there is a token",
        hub=Hub({TARGET: True, DRAFTER: False}, token=True),
    ),
    Case("hub.token", "b300", "pass", "there is a token", facts(hf_token=True),
         hub=Hub({TARGET: True, DRAFTER: False})),
    Case("hub.token", "b300", "unknown", "whether Kimi-K2.6-DFlash", hub=Hub({TARGET: False})),
    Case("hub.token", "cpu", "skip", "nothing is to be downloaded"),
    Case("model.pinned", "b300", "pass", "Kimi-K2.6 0123456789ab"),
    Case(
        "model.pinned", "b300", "fail", "no commit for Kimi-K2.6",
        wish={"target": "hf:moonshotai/Kimi-K2.6"},
    ),
    Case("plan.served", "b300", "pass", "ddtree-15, TP8"),
    Case(
        "plan.served", "ct200", "fail", "137.0 GB on each of 4 GPUs",
        lambda m: first_gpus(m, 4), wish={"gpus": 4},
    ),
    Case("port.free", "b300", "pass", "30000: free"),
    Case("port.free", "b300", "fail", "held by pid 4712 (python)", facts(ports=(PORT,))),
    Case(
        "port.free", "b300", "fail", "another user's process",
        facts(ports=(replace(PORT, pid=None),)),
    ),
    Case(
        "port.free", "b300", "pass", "our own", facts(ports=(PORT,)), own=Own(frozenset({4712}))
    ),
    Case(
        "port.free", "b300", "fail", "port 9400 is held", facts(ports=(replace(PORT, port=9400),)),
        wish={"metrics_port": 9400},
    ),
    Case("unit.conflict", "b300", "pass", "none"),
    Case(
        "unit.conflict", "b300", "fail", "vllm.service runs",
        facts(units=(Unit("vllm.service", "active", "enabled"),)),
    ),
    Case(
        "unit.conflict", "b300", "warn", "vllm.service is there",
        facts(units=(Unit("vllm.service", "inactive", "enabled"),)),
    ),
    Case(
        "unit.conflict", "b300", "pass", "none",
        facts(units=(Unit("ddtree.service", "active", "enabled"),)),
    ),
    Case("unit.memlock", "b300", "pass", "LimitMEMLOCK=infinity"),
    Case(
        "unit.memlock", "b300", "warn", "64 KiB", facts(limits=Limits(memlock_kib=64)),
        wish={"service_manager": "supervisor"},
    ),
    Case(
        "unit.memlock", "b300", "pass", "unlimited", facts(limits=Limits(memlock_kib=-1)),
        wish={"service_manager": "supervisor"},
    ),
    Case(
        "unit.memlock", "b300", "unknown", "unknown", facts(limits=Limits()),
        wish={"service_manager": "supervisor"},
    ),
    Case("unit.nofile", "b300", "pass", "LimitNOFILE=1048576"),
    Case("unit.nofile", "h200x2", "warn", "1024", facts(limits=Limits(nofile=1024))),
    Case("unit.nofile", "h200x2", "pass", "1048576", facts(limits=Limits(nofile=1_048_576))),
]  # fmt: skip
