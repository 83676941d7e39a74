"""The GPUs of a host as nvidia-smi lists them for programs: `--query-gpu` CSV and `-q -x` XML."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Gpu:
    """One GPU. None is "unknown or not applicable", never zero. MiB, W, MHz, degrees C, percent.

    Fields differ by source: CSV has `compute_cap`, XML has BAR1, fabric and row-remap facts;
    `facts.machine` merges both by PCI bus id. Figures that drift (memory used, utilisation,
    temperature, current PCIe link) are for pre-flight only and must not influence a plan.
    """

    index: int | None = None
    name: str | None = None  # in full, "NVIDIA B300 SXM6 AC"; never from the table, which cuts it
    uuid: str | None = None
    bus_id: str | None = None  # "00000000:1A:00.0"
    compute_cap: str | None = None  # "10.3"
    driver: str | None = None  # "580.159.04"
    memory_total_mib: int | None = None
    memory_used_mib: int | None = None
    memory_free_mib: int | None = None
    bar1_total_mib: int | None = None  # 256 on a host that maps too little of the card
    utilization_gpu: int | None = None  # percent
    temperature_c: int | None = None
    power_limit_w: float | None = None
    sm_clock_max_mhz: int | None = None
    pcie_gen_current: int | None = None  # drops when idle
    pcie_gen_max: int | None = None  # of the slot and the card together
    pcie_gen_device_max: int | None = None  # of the card alone
    pcie_width_current: int | None = None  # lanes
    pcie_width_max: int | None = None
    mig: str | None = None  # "Enabled", "Disabled"; None on a card that has no MIG
    ecc: str | None = None  # "Enabled", "Disabled"
    persistence: str | None = None  # "Enabled", "Disabled"
    compute_mode: str | None = None  # "Default", "Exclusive_Process", "Prohibited"
    addressing_mode: str | None = (
        None  # "HMM", "ATS", "None", or an error text: not a fault of the GPU
    )
    fabric_state: str | None = (
        None  # "Completed" once an NVSwitch system is ready; None on PCIe cards
    )
    fabric_status: str | None = None  # "Success"
    ecc_uncorrected: int | None = None  # volatile, DRAM and SRAM together
    remap_pending: bool | None = None  # a row remap waits for a GPU reset
    remap_failure: bool | None = None  # the card must be replaced
    recovery_action: str | None = None  # "None" is good; "Reset", "Reboot", "Drain P2P", ...
    hw_slowdown: bool | None = None  # throttled by heat or power brake right now

    @property
    def mig_enabled(self) -> bool:
        """True only if MIG is on; a card without MIG counts as off."""
        return self.mig == "Enabled"


@dataclass(frozen=True)
class GpuProcess:
    """A process that holds GPU memory. `memory_mib` is None where the driver does not tell."""

    gpu_bus_id: str | None
    pid: int
    name: str
    memory_mib: int | None = None
    user: str | None = None
