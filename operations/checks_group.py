"""Checks of the group's claim: what the inventory says of its hosts against what a host shows."""

from __future__ import annotations

import re
from collections import Counter

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
)

CHECKS = Checks()
TORCH_CODE = ("7.5", "8.0", "8.6", "9.0", "10.0", "12.0")  # torch 2.11.0+cu130's get_arch_list()


@CHECKS.add("gpu.driver", "the driver answers")
def driver_answers(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    if c.machine.gpu_error and not c.machine.gpus:
        error, _, remedy = c.machine.gpu_error.partition(": ")
        return failed(
            f"nvidia-smi: {error}", remedy or "run nvidia-smi on the host and mend what it says"
        )
    if not c.machine.gpus:
        on_bus = c.machine.gpu_pci_devices
        seen = f"{on_bus} NVIDIA devices on the PCI bus" if on_bus else "no NVIDIA device"
        return failed(
            f"nvidia-smi lists no GPU; {seen}",
            "install the NVIDIA driver, 580 or newer, or correct the group in the inventory",
        )
    return passed(f"{len(c.machine.gpus)} GPUs listed, driver {c.machine.driver or 'unknown'}")


@CHECKS.add("gpu.lost", "no GPU has fallen off the bus")
def no_gpu_lost(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    if c.machine.gpus_lost:
        return failed(
            f"lost: {', '.join(c.machine.gpus_lost)}",
            "reboot the host; if it comes back, look for XID 79 in dmesg and have the card, its "
            "power and its riser checked",
        )
    return passed("none is lost")


@CHECKS.add("gpu.count", "as many GPUs as the group claims")
def gpu_count(c: Context) -> Answer:
    claim = c.wanted.gpus
    if claim is None:
        return skipped("the group claims no number")
    if c.follows == "gpu.driver" and claim != 0:
        return consequence("gpu.driver")
    allowed = [claim] if isinstance(claim, int) else claim
    found = len(c.machine.gpus)
    claimed = " or ".join(str(n) for n in allowed)
    if found in allowed:
        return passed(f"{found}, the group claims {claimed}")
    if found + len(c.machine.gpus_lost) in allowed:
        return consequence("gpu.lost")
    on_bus = c.machine.gpu_pci_devices
    where = "" if on_bus is None else f", {on_bus} on the PCI bus"
    if on_bus is not None and on_bus > found:
        remedy = "the driver does not take a card that is on the bus: see dmesg, reboot, reseat it"
    else:
        remedy = "check power and seating of the missing card, or correct wanted.gpus"
    return failed(f"expected {claimed} GPUs, found {found}{where}", remedy)


@CHECKS.add("gpu.name", "the GPUs are those that the group claims")
def gpu_name(c: Context) -> Answer:
    if c.wanted.gpu_name is None:
        return skipped("the group claims no name")
    if not c.machine.gpus:
        return consequence("gpu.driver")
    names = Counter(gpu.name or "a GPU without a name" for gpu in c.machine.gpus)
    odd = [name for name in names if not re.search(c.wanted.gpu_name, name)]
    if odd:
        return failed(
            f"expected {c.wanted.gpu_name}, found {counted(names)}",
            "move the host to the right inventory, or correct wanted.gpu_name",
        )
    return passed(counted(names))


@CHECKS.add("gpu.same", "all GPUs are of one kind")
def gpus_same(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    kinds = Counter(
        f"{gpu.name} {gpu.memory_total_mib or '?'} MiB sm {gpu.compute_cap or '?'}"
        for gpu in c.machine.gpus
    )
    if len(kinds) > 1:
        return failed(
            f"mixed: {counted(kinds)}",
            "a model is split evenly over equal cards: hide the odd ones or take them out",
        )
    return passed(counted(kinds) or "no GPU is listed")


@CHECKS.add("gpu.compute_capability", "the architecture is the claimed one")
def compute_capability(c: Context) -> Answer:
    claim = c.wanted.compute_capability
    if claim is None:
        return skipped("the group claims no compute capability")
    if not c.machine.gpus:
        return consequence("gpu.driver")
    found = Counter(gpu.compute_cap for gpu in c.machine.gpus)
    if None in found:
        return unknown(
            f"expected {claim}, the driver does not tell",
            "update the driver to 580 or newer",
            required=True,
        )
    if set(found) != {claim}:
        return failed(
            f"expected {claim}, found {counted(found)}",
            "move the host to the right inventory, or correct wanted.compute_capability",
        )
    return passed(claim)


@CHECKS.add("gpu.code", "torch 2.11.0+cu130 has code for the architecture")
def torch_code(c: Context) -> Answer:
    if not c.gpu_group:
        return skipped("no GPU is wanted")
    capability = c.compute_cap
    if capability is None:
        return consequence("gpu.compute_capability")
    code = code_for(capability)
    if code is None:
        return failed(
            f"{c.sm} is not served by torch's code for sm_"
            + ", sm_".join(cap.replace(".", "") for cap in TORCH_CODE),
            "use GPUs of sm_75 or newer that torch knows, or another stack lock",
        )
    return passed(f"{c.sm} runs torch's code for sm_{code.replace('.', '')}")


def code_for(capability: str) -> str | None:
    """The code that a GPU runs: of the same major, with the highest minor not above its own."""
    major, minor = (int(part) for part in capability.split("."))
    fitting = [
        code
        for code in TORCH_CODE
        if int(code.split(".")[0]) == major and int(code.split(".")[1]) <= minor
    ]
    return max(fitting, key=lambda code: int(code.split(".")[1])) if fitting else None


@CHECKS.add("gpu.links", "the GPUs are connected as the group claims")
def gpu_links(c: Context) -> Answer:
    claim = c.wanted.links
    if claim is None:
        return skipped("the group claims no links")
    if len(c.machine.gpus) == 1:
        return skipped("one GPU has no links")
    topology = c.machine.topology
    if topology is None and c.follows:
        return consequence(c.follows)
    if topology is None or topology.gpus < 2:
        return unknown(
            f"expected {claim}, topology: {c.machine.topology_error or 'not readable'}",
            "run `nvidia-smi topo -m` on the host",
            required=True,
        )
    if claim == "pcie":
        if topology.all_nvlink:
            return failed(f"expected PCIe, found {c.links}", "move the host to the right inventory")
        return passed(c.links)
    if topology.all_nvlink:
        return passed(c.links)
    islands = " | ".join(" ".join(str(gpu) for gpu in island) for island in topology.islands)
    return failed(
        f"expected NVLink between all GPUs, found {c.links}; joined by NVLink: {islands}",
        "see gpu.nvlink and fabric.state; a bridged or partly lost fabric can't run this plan",
    )


@CHECKS.add("gpu.nvlink", "every NVLink is active")
def nvlink_active(c: Context) -> Answer:
    if c.wanted.links != "nvlink" and not (c.gpu_group and c.links.startswith("all")):
        return skipped("no NVLink is wanted")
    status = c.machine.nvlink
    if len(c.machine.gpus) == 1:
        return skipped("one GPU has no links to others")
    if status is None or not status.gpus or any(gpu.links is None for gpu in status.gpus):
        reasons = {gpu.reason for gpu in status.gpus if gpu.reason} if status else set()
        return unknown(
            f"link status: {', '.join(sorted(reasons)) or 'not readable'}",
            "run `nvidia-smi nvlink -s` on the host",
        )
    down = {gpu.index: gpu.inactive for gpu in status.gpus if gpu.inactive}
    counts = Counter(gpu.active for gpu in status.gpus)
    if down or len(counts) > 1 or 0 in counts:
        seen = "; ".join(f"GPU {index}: links {list(links)} down" for index, links in down.items())
        return failed(
            seen or f"active links a GPU: {', '.join(str(gpu.active) for gpu in status.gpus)}",
            "reset the GPUs or reboot; if links stay down, have the board checked",
        )
    return passed(f"{next(iter(counts))} links active on each of {len(status.gpus)} GPUs")
