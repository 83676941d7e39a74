"""`nvidia-smi -q -x`: all that the driver knows of each GPU."""

from __future__ import annotations

from dataclasses import dataclass
from xml.etree import ElementTree

from facts.nvidia.driver import Versions, versions_of
from facts.nvidia.errors import lost_gpus, refuse_errors
from facts.nvidia.gpus import Gpu, GpuProcess
from facts.nvidia.values import ParseError, first_line, known, number, plain, whole


@dataclass(frozen=True)
class Log:
    """The document: GPUs in the driver's order, without compute capability; their processes."""

    versions: Versions
    gpus: tuple[Gpu, ...]
    processes: tuple[GpuProcess, ...] = ()
    lost: tuple[str, ...] = ()  # GPUs named in an error line before the document


def parse_xml(text: str) -> Log:
    """Read the document; error lines before it are kept as `lost` GPUs.

    Refused: a document that is cut, that declares entities, or that holds another number of GPUs
    than its own `attached_gpus` (ParseError("incomplete", attached, gpus)).
    """
    text = plain(text)
    start = text.find("<?xml")
    if start < 0:
        refuse_errors(text)
        raise ParseError("no XML document", found=first_line(text))
    if "<!ENTITY" in text:
        raise ParseError("XML with entities")
    try:
        root = ElementTree.fromstring(text[start:])
    except (ElementTree.ParseError, ValueError) as error:
        raise ParseError("incomplete", reason=str(error)) from None
    if root.tag != "nvidia_smi_log":
        raise ParseError("not an nvidia-smi log", root=root.tag[:40])
    lost = tuple(lost_gpus(text[:start]))
    blocks = root.findall("gpu")
    attached = whole(root.findtext("attached_gpus"))
    if attached is None or len(blocks) != attached - (len(lost) if len(blocks) < attached else 0):
        raise ParseError("incomplete", attached=attached, gpus=len(blocks))
    if any(len(block.findall("product_name")) > 1 for block in blocks):
        raise ParseError("inconsistent", reason="two GPUs in one block")
    versions = versions_of({key.replace("_", " "): _text(root, key) for key in _HEADER})
    return Log(
        versions,
        tuple(
            _gpu(block, None if lost else index, versions.driver)
            for index, block in enumerate(blocks)
        ),
        tuple(process for block in blocks for process in _processes(block)),
        lost,
    )


_HEADER = ("driver_version", "kmd_version", "cuda_version", "cuda_umd_version")


def _text(element: ElementTree.Element, path: str) -> str:
    return (element.findtext(path) or "").strip()


def _gpu(block: ElementTree.Element, index: int | None, driver: str | None) -> Gpu:
    def text(path: str) -> str | None:
        return known(_text(block, path))

    def count(path: str) -> int | None:
        return whole(_text(block, path), ("MiB", "MHz", "C", "%", "x"))

    pcie = "pci/pci_gpu_link_info/"
    power = [
        number(_text(block, path), ("W",))
        for path in (
            "gpu_power_readings/current_power_limit",
            "gpu_power_readings/power_limit",
            "power_readings/power_limit",
        )
    ]
    return Gpu(
        index=index,
        name=text("product_name"),
        uuid=text("uuid"),
        bus_id=text("pci/pci_bus_id") or block.get("id"),
        driver=driver,
        memory_total_mib=count("fb_memory_usage/total"),
        memory_used_mib=count("fb_memory_usage/used"),
        memory_free_mib=count("fb_memory_usage/free"),
        bar1_total_mib=count("bar1_memory_usage/total"),
        utilization_gpu=count("utilization/gpu_util"),
        temperature_c=count("temperature/gpu_temp"),
        power_limit_w=next((watts for watts in power if watts is not None), None),
        sm_clock_max_mhz=count("max_clocks/sm_clock"),
        pcie_gen_current=count(pcie + "pcie_gen/current_link_gen"),
        pcie_gen_max=count(pcie + "pcie_gen/max_link_gen"),
        pcie_gen_device_max=count(pcie + "pcie_gen/max_device_link_gen"),
        pcie_width_current=count(pcie + "link_widths/current_link_width"),
        pcie_width_max=count(pcie + "link_widths/max_link_width"),
        mig=text("mig_mode/current_mig"),
        ecc=text("ecc_mode/current_ecc"),
        persistence=text("persistence_mode"),
        compute_mode=text("compute_mode"),
        addressing_mode=_text(block, "addressing_mode") or None,
        fabric_state=text("fabric/state"),
        fabric_status=text("fabric/status"),
        ecc_uncorrected=_uncorrected(block),
        remap_pending=_yes(text("remapped_rows/remapped_row_pending")),
        remap_failure=_yes(text("remapped_rows/remapped_row_failure")),
        recovery_action=_text(block, "gpu_recovery_action") or None,
        hw_slowdown=_slowdown(block),
    )


def _yes(value: str | None) -> bool | None:
    return {"Yes": True, "No": False, "Active": True, "Not Active": False}.get(value or "")


def _uncorrected(block: ElementTree.Element) -> int | None:
    """Uncorrected memory errors since the driver was loaded; None without ECC."""
    counts = [
        found
        for element in block.findall("ecc_errors/volatile/*")
        if "uncorrectable" in element.tag and (found := whole(element.text)) is not None
    ]
    return sum(counts) if counts else None


def _slowdown(block: ElementTree.Element) -> bool | None:
    """Whether heat or the power brake slow it down now; tag names by driver generation."""
    states = [
        state
        for parent, prefix in (
            ("clocks_event_reasons", "clocks_event_reason_hw_"),
            ("clocks_throttle_reasons", "clocks_throttle_reason_hw_"),
        )
        for element in block.findall(f"{parent}/*")
        if element.tag.startswith(prefix)
        and (state := _yes((element.text or "").strip())) is not None
    ]
    return any(states) if states else None


def _processes(block: ElementTree.Element) -> list[GpuProcess]:
    found = []
    for info in block.findall("processes/process_info"):
        pid = whole(_text(info, "pid"))
        if pid is not None:
            memory = whole(_text(info, "used_memory"), ("MiB",))
            name = _text(info, "process_name")
            found.append(GpuProcess(block.get("id"), pid, name, memory))
    return found
