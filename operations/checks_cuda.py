"""Checks of compilers, NCCL and what a kernel setting does to CUDA."""

from __future__ import annotations

from facts.nvidia.values import version_tuple
from operations.checks_base import (
    Answer,
    Checks,
    Context,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)
from operations.plan_sglang import TOOLKIT_HOME, oldest_nvcc

CHECKS = Checks()


@CHECKS.add("cuda.nvcc", "nvcc is there and new enough for the architecture")
def nvcc(c: Context) -> Answer:
    """FlashInfer and Triton compile at run time, with the nvcc that CUDA_HOME names (E04-E07)."""
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    need = oldest_nvcc(c.compute_cap)
    toolkits = [toolkit for toolkit in c.machine.toolkits if toolkit.has_nvcc]
    enough = [t for t in toolkits if (version_tuple(t.release) or ()) >= _tuple(need)]
    if enough:
        home = c.environment.get("CUDA_HOME")
        chosen = next((t for t in enough if t.path == home), enough[0])
        return passed(f"CUDA {chosen.release} in {chosen.path}; {c.sm} needs {need}")
    on_path = c.machine.nvcc
    seen = [f"{t.release or 'unknown'} in {t.path}" for t in toolkits]
    if on_path and not toolkits:
        seen.append(f"{on_path.release} in {on_path.path or 'PATH'}")
    if on_path and not toolkits and (version_tuple(on_path.release) or ()) >= _tuple(need):
        return passed(f"nvcc {on_path.version} in {on_path.path or 'PATH'}; {c.sm} needs {need}")
    if seen:
        return failed(
            f"CUDA {', '.join(seen)}; {c.sm} needs {need} or newer",
            "install the toolkit's nvcc: apt-get install cuda-nvcc-13-0 cuda-cudart-dev-13-0, and "
            f"leave it in {TOOLKIT_HOME}",
        )
    if not c.sglang:
        return skipped("no CUDA toolkit, and the reference engine needs none")
    if c.machine.has_apt and c.wanted.stack in ("online", "mirror"):
        return warned(
            f"no nvcc; {c.sm} needs {need}", f"the stack phase installs CUDA 13.0 in {TOOLKIT_HOME}"
        )
    return failed(
        f"no nvcc; {c.sm} needs {need} or newer",
        f"install CUDA 13.0's nvcc in {TOOLKIT_HOME} on the host",
    )


def _tuple(release: str) -> tuple[int, ...]:
    return tuple(int(part) for part in release.split("."))


@CHECKS.add("cuda.ptxas", "the ptxas that Triton is given knows the architecture")
def ptxas(c: Context) -> Answer:
    """Only versions here; `triton.ptxas` runs it once the stack is there (E01)."""
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    found = c.machine.ptxas
    if found is None:
        return unknown("no ptxas seen yet; it is run after the stack is installed (triton.ptxas)")
    need = oldest_nvcc(c.compute_cap)
    home = c.environment.get("CUDA_HOME", TOOLKIT_HOME)
    if (version_tuple(found.release) or ()) >= _tuple(need):
        return passed(f"ptxas {found.version}; {c.sm} needs {need}")
    if found.path and not found.path.startswith(f"{home}/"):
        return unknown(f"{found.path} is {found.version}; the plan takes {home}/bin/ptxas")
    return failed(
        f"ptxas {found.version}; {c.sm} needs {need} or newer",
        f"install CUDA 13.0 in {TOOLKIT_HOME}: the plan points TRITON_PTXAS_PATH there",
    )


@CHECKS.add("cuda.hmm", "heterogeneous memory management does not break CUDA's start")
def hmm(c: Context) -> Answer:
    """CUDA fails with error 3 on RTX PRO 6000 with some kernels while nvidia-smi is fine (E17)."""
    if not c.sglang or not (c.compute_cap or "").startswith("12."):
        return skipped("known on sm_12x cards only")
    remedy = (
        "write 'options nvidia_uvm uvm_disable_hmm=1' into /etc/modprobe.d/nvidia-uvm.conf and "
        "reload nvidia_uvm, or reboot"
    )
    if c.machine.uvm_disable_hmm is None:
        return unknown("uvm_disable_hmm is unknown (nvidia_uvm not loaded?)", remedy)
    if not c.machine.uvm_disable_hmm:
        return warned("uvm_disable_hmm is off: CUDA fails to start on some kernels", remedy)
    return passed("uvm_disable_hmm is on")


@CHECKS.add("pcie.iommu", "the IOMMU lets peer copies through")
def iommu(c: Context) -> Answer:
    """The usual cause of an all-reduce that hangs although `topo -p2p` says OK (E22)."""
    if not c.several_gpus or not c.over_pcie:
        return skipped("matters for peer copies over PCIe only")
    remedy = (
        "boot with iommu=pt or amd_iommu=off; until then NCCL_P2P_DISABLE=1 in wanted.environment"
    )
    if c.machine.iommu is None:
        return unknown("the IOMMU's mode is unknown", remedy)
    if c.machine.iommu == "on":
        if c.environment.get("NCCL_P2P_DISABLE") == "1":
            return passed("the IOMMU translates, and NCCL's peer copies are off")
        return warned("the IOMMU translates: peer copies may hang", remedy)
    return passed(c.machine.iommu)


@CHECKS.add("pcie.acs", "no PCIe bridge redirects peer copies (ACS)")
def acs(c: Context) -> Answer:
    if not c.several_gpus or not c.over_pcie:
        return skipped("matters for peer copies over PCIe only")
    if c.machine.acs_bridges is None:
        return unknown("ACS is unknown", "run lspci -vvv as root and look for ACSCtl")
    if c.machine.acs_bridges:
        return warned(
            f"{c.machine.acs_bridges} bridges redirect peer traffic",
            "turn ACS off in firmware, or with setpci at boot",
        )
    return passed("no bridge redirects")


@CHECKS.add("nccl.bnxt_re", "NCCL does not probe bnxt_re devices")
def bnxt_re(c: Context) -> Answer:
    """NCCL 2.28.9, which torch 2.11.0+cu130 brings, crashes while it probes them."""
    if not c.several_gpus:
        return skipped("one GPU needs no NCCL")
    if "bnxt_re" not in c.machine.modules:
        return passed("the module is not loaded")
    if c.environment.get("NCCL_IB_DISABLE") == "1":
        return passed("bnxt_re is loaded, and the plan sets NCCL_IB_DISABLE=1")
    return failed(
        "bnxt_re is loaded and NCCL may probe it",
        "leave NCCL_IB_DISABLE=1 in the environment: one host needs no InfiniBand",
    )


@CHECKS.add("kernel.ptrace", "processes may share CUDA memory handles")
def ptrace(c: Context) -> Answer:
    if not c.several_gpus:
        return skipped("one GPU shares nothing")
    scope = c.machine.ptrace_scope
    if scope is None:
        return unknown("kernel.yama.ptrace_scope is unknown")
    if scope >= 2:
        return warned(
            f"kernel.yama.ptrace_scope is {scope}: pidfd_getfd is refused",
            "sysctl kernel.yama.ptrace_scope=1",
        )
    return passed(f"kernel.yama.ptrace_scope is {scope}")


@CHECKS.add("kernel.numa_balancing", "the kernel does not move pages between NUMA nodes")
def numa_balancing(c: Context) -> Answer:
    if not c.several_gpus or (c.machine.numa_nodes or 1) < 2:
        return skipped("one GPU or one NUMA node")
    if c.machine.numa_balancing is None:
        return unknown("kernel.numa_balancing is unknown")
    if c.machine.numa_balancing:
        return warned(
            "kernel.numa_balancing is on: uneven step times", "sysctl kernel.numa_balancing=0"
        )
    return passed("off")
