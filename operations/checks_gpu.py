"""Checks of the GPUs' health, of the driver and of the fabric."""

from __future__ import annotations

from collections import Counter

from facts.nvidia import Gpu
from facts.nvidia.values import version_tuple
from operations.checks_base import (
    Answer,
    Checks,
    Context,
    consequence,
    counted,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)

CHECKS = Checks()
OLDEST_DRIVER = (580,)  # the first branch that runs CUDA 13.0


def _name(gpu: Gpu) -> str:
    return f"GPU {gpu.index}" if gpu.index is not None else f"GPU {gpu.bus_id}"


@CHECKS.add("driver.version", "the driver runs CUDA 13")
def driver_version(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    found = version_tuple(c.machine.driver)
    if found is None and not c.machine.gpus:
        return consequence("gpu.driver")
    if found is None:
        return unknown("the driver's version is unknown", "run nvidia-smi", required=True)
    cuda = c.machine.cuda_driver
    if found < OLDEST_DRIVER:
        return failed(
            f"driver {c.machine.driver} runs CUDA {cuda or 'older than 13'}",
            "update the NVIDIA driver to 580 or newer: torch is built for CUDA 13.0",
        )
    return passed(f"driver {c.machine.driver} runs CUDA {cuda or '13.0 or newer'}")


@CHECKS.add("driver.module", "the loaded kernel module is the installed driver's")
def driver_module(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    module = c.machine.driver_module
    if module is None or c.machine.driver is None:
        return unknown("module or driver version unknown")
    if module.version != c.machine.driver:
        return failed(
            f"module {module.version} is loaded, driver {c.machine.driver} is installed",
            "reboot, or unload and reload the nvidia modules",
        )
    return passed(f"{module.version} ({module.kind or 'kind unknown'})")


def _switched(c: Context) -> bool:
    """The GPUs need a fabric: an NVSwitch is on the bus, or a GPU reports a fabric state."""
    return bool(c.machine.nvswitches) or any(gpu.fabric_state for gpu in c.machine.gpus)


@CHECKS.add("fabric.state", "the NVLink fabric is up")
def fabric_state(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    if not _switched(c):
        return skipped("no NVSwitch: neither on the PCI bus nor reported by a GPU")
    states = Counter((gpu.fabric_state, gpu.fabric_status) for gpu in c.machine.gpus)
    if any(state is None for state, _ in states):
        return unknown("some GPUs report no fabric state", "run `nvidia-smi -q` on the host")
    good = {("Completed", "Success"), ("Completed", None)}
    bad = {f"{state}/{status}": n for (state, status), n in states.items()}
    if not states.keys() <= good:
        return failed(
            counted(bad),
            "start nvidia-fabricmanager and wait until every GPU says Completed: CUDA fails with "
            "error 802 before that, although nvidia-smi lists the GPUs",
        )
    return passed(f"Completed on {len(c.machine.gpus)} GPUs")


@CHECKS.add("fabric.manager", "the fabric manager runs and is of the driver's version")
def fabric_manager(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    if not _switched(c):
        return skipped("no NVSwitch")
    manager = c.machine.fabric_manager
    up = all(gpu.fabric_state == "Completed" for gpu in c.machine.gpus)
    if manager is None:
        if up and not c.machine.nvswitches:
            return skipped("no NVSwitch on this bus and the fabric is up: its manager runs outside")
        return failed(
            "NVSwitches, but no fabric manager",
            f"install nvidia-fabricmanager of exactly version {c.machine.driver}, enable it",
        )
    if manager.installed_version is None:
        return unknown("the fabric manager's version is unknown", "run nv-fabricmanager --version")
    if c.machine.driver and manager.installed_version != c.machine.driver:
        return failed(
            f"fabric manager {manager.installed_version}, driver {c.machine.driver}",
            "install both in the same version and reboot: CUDA does not start otherwise",
        )
    if manager.active is False:
        return failed(
            f"fabric manager {manager.installed_version} does not run",
            "systemctl enable --now nvidia-fabricmanager",
        )
    if manager.active is None:
        return unknown("whether the fabric manager runs is unknown (no systemd)")
    return passed(f"{manager.installed_version}, running")


@CHECKS.add("gpu.mig", "MIG is off")
def mig_off(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    on = [_name(gpu) for gpu in c.machine.gpus if gpu.mig_enabled]
    if on:
        return failed(f"on at {', '.join(on)}", "nvidia-smi -mig 0 on these GPUs")
    return passed("off, or not a feature of these cards")


@CHECKS.add("gpu.compute_mode", "the compute mode lets our processes in")
def compute_mode(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    odd = [
        f"{_name(gpu)} {gpu.compute_mode}"
        for gpu in c.machine.gpus
        if gpu.compute_mode not in (None, "Default")
    ]
    if odd:
        return failed(", ".join(odd), "nvidia-smi -c 0 sets it to Default")
    return passed("Default")


@CHECKS.add("gpu.memory_health", "no memory fault waits for a reset or a replacement")
def memory_health(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    gpus = c.machine.gpus
    broken = [_name(gpu) for gpu in gpus if gpu.remap_failure]
    if broken:
        return failed(f"row remapping failed: {', '.join(broken)}", "have the card replaced")
    action = [
        f"{_name(gpu)}: {gpu.recovery_action}"
        for gpu in gpus
        if gpu.recovery_action not in (None, "None", "")
    ]
    if action:
        return failed(f"the driver asks for {', '.join(action)}", "do so before serving")
    pending = [_name(gpu) for gpu in gpus if gpu.remap_pending]
    if pending:
        return warned(f"a row remap waits on {', '.join(pending)}", "reset the GPU when it is idle")
    errors = [f"{_name(gpu)} {gpu.ecc_uncorrected}" for gpu in gpus if gpu.ecc_uncorrected]
    if errors:
        return warned(f"uncorrected ECC errors: {', '.join(errors)}", "reset the GPU; watch it")
    return passed("no fault is reported")


@CHECKS.add("gpu.throttle", "no GPU is slowed by heat or power")
def throttle(c: Context) -> Answer:
    if not c.sglang:
        return skipped("the reference engine runs on the CPU")
    slow = [_name(gpu) for gpu in c.machine.gpus if gpu.hw_slowdown]
    if slow:
        return warned(f"hardware slowdown on {', '.join(slow)}", "check cooling and power cables")
    return passed("no hardware slowdown")


@CHECKS.add("gpu.persistence", "persistence mode is on")
def persistence(c: Context) -> Answer:
    if not c.sglang:
        return skipped("the reference engine runs on the CPU")
    off = [_name(gpu) for gpu in c.machine.gpus if gpu.persistence == "Disabled"]
    if off:
        return warned(
            f"off on {', '.join(off)}", "systemctl enable --now nvidia-persistenced: starts sooner"
        )
    return passed("on, or not reported")


@CHECKS.add("gpu.idle", "no stranger uses the GPUs")
def gpus_idle(c: Context) -> Answer:
    if not c.sglang:
        return skipped("the reference engine runs on the CPU")
    strangers = [p for p in c.machine.gpu_processes if p.pid not in c.own.pids]
    if strangers:
        seen = ", ".join(
            f"pid {p.pid} {p.name}" + (f" {p.memory_mib} MiB" if p.memory_mib else "")
            for p in strangers[:4]
        )
        more = f" and {len(strangers) - 4} more" if len(strangers) > 4 else ""
        return failed(
            f"{seen}{more}",
            "stop them: the weights need the memory. Schedulers of a killed server outlive it",
        )
    ours = len(c.machine.gpu_processes)
    return passed(f"{ours} processes, all of our own service" if ours else "no process")


@CHECKS.add("gpu.pcie", "the PCIe links run at full width and speed")
def pcie_links(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    slow = []
    for gpu in c.machine.gpus:
        if gpu.pcie_width_max is not None and gpu.pcie_width_max < 16:
            slow.append(f"{_name(gpu)} x{gpu.pcie_width_max}")
        generations = (gpu.pcie_gen_max, gpu.pcie_gen_device_max)
        if None not in generations and generations[0] != generations[1]:
            slow.append(f"{_name(gpu)} generation {generations[0]} of {generations[1]}")
    if slow:
        return warned(
            ", ".join(slow), "check slot, riser and firmware settings: loads and all-reduces slow"
        )
    return passed("x16 at the cards' own generation, as far as reported")


@CHECKS.add("gpu.bar1", "the cards' memory is fully mapped (resizable BAR)")
def bar1(c: Context) -> Answer:
    if not c.several_gpus or not c.over_pcie:
        return skipped("matters for peer copies over PCIe only")
    sizes = [gpu.bar1_total_mib for gpu in c.machine.gpus]
    if None in sizes or not sizes:
        return unknown("BAR1 sizes are unknown")
    small = [
        f"{_name(gpu)} {gpu.bar1_total_mib} MiB"
        for gpu in c.machine.gpus
        if (gpu.bar1_total_mib or 0) < (gpu.memory_total_mib or 0)
    ]
    if small:
        return warned(", ".join(small), "turn on Resizable BAR and Above 4G Decoding in firmware")
    return passed(f"{min(size for size in sizes if size is not None)} MiB or more")
