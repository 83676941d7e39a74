"""Raw tool outputs of two GPU hosts, with faults, composed from public reports.

Nothing here was captured from a B300 or CT200: README.md beside this file says which line comes
from which report, and what is made up. compose.py writes the files.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import Path

CASES = Path(__file__).parent
DRIVER, CUDA = "590.44.01", "13.1"  # the pair that B18 shows; D10 has this driver on a B300


AS_PTXAS = ("nvcc: NVIDIA (R) Cuda compiler driver", "ptxas: NVIDIA (R) Ptx optimizing assembler")


@dataclass(frozen=True)
class Card:
    """What one kind of GPU prints."""

    name: str
    compute_cap: str
    memory_mib: int
    bar1_mib: int
    watts: int
    bus_ids: tuple[str, ...]
    fabric: tuple[str, str]
    mig: str
    ecc: str
    uuid: str  # the first digits; the rest is the GPU's number


B300 = Card(
    "NVIDIA B300 SXM6 AC",
    "10.3",
    275040,
    524288,
    1100,
    (
        "00000000:1A:00.0",
        "00000000:69:00.0",
        "00000000:B5:00.0",
        "00000000:DB:00.0",
        "00000001:1A:00.0",
        "00000001:69:00.0",
        "00000001:B5:00.0",
        "00000001:DB:00.0",
    ),
    ("Completed", "Success"),
    "Disabled",
    "Enabled",
    "b3000000",
)
CT200 = Card(
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "12.0",
    97887,
    131072,
    600,
    tuple(f"00000000:{bus}:00.0" for bus in ("16", "27", "38", "49", "9A", "AC", "BD", "CA")),
    ("N/A", "N/A"),
    "Disabled",
    "Disabled",
    "c2000000",
)


def text(path: str) -> str:
    """A captured output of this folder."""
    return (CASES / path).read_text()


def uuid(card: Card, gpu: int) -> str:
    """A UUID that nobody's GPU has."""
    return f"GPU-{card.uuid}-0000-4000-8000-{gpu:012d}"


def query_csv(card: Card, gpus: list[int], count: int | None = None) -> str:
    """`--query-gpu` with all fields that the fake can be asked for."""
    head = (
        "count, index, name, uuid, pci.bus_id, compute_cap, driver_version, memory.total [MiB], "
        "memory.used [MiB], memory.free [MiB], mig.mode.current, ecc.mode.current, "
        "persistence_mode, power.limit [W], utilization.gpu [%], temperature.gpu, "
        "pcie.link.gen.max, pcie.link.width.max, fabric.state, fabric.status"
    )
    fabric = [value if value != "N/A" else "[N/A]" for value in card.fabric]
    rows = [
        f"{count or len(gpus)}, {gpu}, {card.name}, {uuid(card, gpu)}, {card.bus_ids[gpu]}, "
        f"{card.compute_cap}, {DRIVER}, {card.memory_mib} MiB, 0 MiB, {card.memory_mib - 640} MiB, "
        f"{card.mig}, {card.ecc}, Enabled, {card.watts}.00 W, 0 %, 30, 5, 16, "
        f"{fabric[0]}, {fabric[1]}"
        for gpu in gpus
    ]
    return "\n".join([head, *rows]) + "\n"


def q_xml(card: Card, gpus: list[int], attached: int | None = None) -> str:
    """`-q -x` in the shape of B18, filled in."""
    source = text("open/B18.xml")
    head, rest = source.split("\t<gpu ", 1)
    block = "\t<gpu " + rest.split("</nvidia_smi_log>")[0]
    for old, new in (
        ("<driver_version>590.44.01", f"<driver_version>{DRIVER}"),
        ("<cuda_version>13.1", f"<cuda_version>{CUDA}"),
        ("<attached_gpus>1<", f"<attached_gpus>{attached or len(gpus)}<"),
    ):
        assert old in head, old
        head = head.replace(old, new)
    uncorrected = "0" if card.ecc == "Enabled" else "N/A"
    ecc = (
        "\t\t<ecc_errors>\n\t\t\t<volatile>\n"
        f"\t\t\t\t<sram_uncorrectable_parity>{uncorrected}</sram_uncorrectable_parity>\n"
        f"\t\t\t\t<dram_uncorrectable>{uncorrected}</dram_uncorrectable>\n"
        "\t\t\t</volatile>\n\t\t</ecc_errors>\n"
        "\t\t<remapped_rows>\n\t\t\t<remapped_row_pending>No</remapped_row_pending>\n"
        "\t\t\t<remapped_row_failure>No</remapped_row_failure>\n\t\t</remapped_rows>\n"
        "\t\t<utilization>\n\t\t\t<gpu_util>0 %</gpu_util>\n\t\t</utilization>\n"
        "\t\t<processes>\n\t\t</processes>\n"
    )

    def filled(gpu: int) -> str:
        bus = card.bus_ids[gpu]
        used, free = 0, card.memory_mib - 640
        out = block.replace("00000000:61:00.0", bus)
        for pattern, value in (
            (r"(<product_name>)[^<]*", card.name),
            (r"(<uuid>)[^<]*", uuid(card, gpu)),
            (r"(<serial>)[^<]*", f"{gpu:013d}"),
            (r"(<minor_number>)[^<]*", str(gpu)),
            (r"(<current_mig>)[^<]*", card.mig),
            (r"(<pending_mig>)[^<]*", card.mig),
            (r"(<pci_bus>)[^<]*", bus[9:11]),
            (r"(<pci_domain>)[^<]*", bus[4:8]),
            (r"(<(?:max_link_gen|max_host_link_gen)>)[^<]*", "5"),
            (r"(<fb_memory_usage>\s*<total>)[^<]*", f"{card.memory_mib} MiB"),
            (r"(<reserved>)[^<]*", "640 MiB"),
            (r"(<used>)65720 MiB", f"{used} MiB"),
            (r"(<free>)31531 MiB", f"{free} MiB"),
            (r"(<bar1_memory_usage>\s*<total>)[^<]*", f"{card.bar1_mib} MiB"),
            (r"(<used>)65721 MiB", "1 MiB"),
            (r"(<free>)65351 MiB", f"{card.bar1_mib - 1} MiB"),
            (r"(<current_ecc>)[^<]*", card.ecc),
            (r"(<pending_ecc>)[^<]*", card.ecc),
            (r"(<current_power_limit>)[^<]*", f"{card.watts}.00 W"),
            (r"(<default_power_limit>)[^<]*", f"{card.watts}.00 W"),
            (r"(<max_power_limit>)[^<]*", f"{card.watts}.00 W"),
            (r"(<state>)[^<]*", card.fabric[0]),
            (r"(<status>)[^<]*", card.fabric[1]),
        ):
            out, count = re.subn(pattern, lambda m, v=value: m[1] + v, out)
            assert count, pattern
        return out.replace("\t\t<fabric>", ecc + "\t\t<fabric>")

    return head + "".join(filled(gpu) for gpu in gpus) + "</nvidia_smi_log>\n"


def listing(card: Card, gpus: list[int]) -> str:
    """`nvidia-smi -L`."""
    return "".join(f"GPU {gpu}: {card.name} (UUID: {uuid(card, gpu)})\n" for gpu in gpus)


def nvlink(card: Card, gpus: list[int]) -> str:
    """`nvlink -s`: 18 links a B300, C04's sentence on a card without NVLink."""
    sentence = text("open/C04.txt").splitlines()[1]
    links = "".join(f"\t Link {link}: 53.125 GB/s\n" for link in range(18))
    body = links if card is B300 else sentence + "\n"
    return "".join(line + "\n" + body for line in listing(card, gpus).splitlines())


def topology(rows: list[list[str]], cpu: list[str], numa: list[int]) -> str:
    """`topo -m` without NICs, as A31 is laid out."""
    names = [f"GPU{gpu}" for gpu in range(len(rows))]
    head = "\t\x1b[4m" + "\t".join([*names, "CPU Affinity", "NUMA Affinity", "GPU NUMA ID\x1b[0m"])
    body = [
        "\t".join([name, *(" X " if kind == "X" else kind for kind in row), c, str(n), "", "N/A"])
        for name, row, c, n in zip(names, rows, cpu, numa, strict=True)
    ]
    legend = text("open/A31.txt").split("\n\n", 1)[1]
    return "\n".join([head, *body]) + "\n\n" + legend


NEAR, FAR = ["0-63,128-191"] * 4, ["64-127,192-255"] * 4
NODES = [0] * 4 + [1] * 4


def island() -> str:
    """Eight B300 whose links between the two halves are gone."""
    rows = [
        ["X" if i == j else "NV18" if i // 4 == j // 4 else "SYS" for j in range(8)]
        for i in range(8)
    ]
    return topology(rows, NEAR + FAR, NODES)


def seven(full: str) -> str:
    """A `topo -m` text without its GPU7: row and column taken out."""
    lines = full.split("\n")
    rows = [line for line in lines if not line.startswith("GPU7")]
    for number, line in enumerate(rows):
        if "CPU Affinity" in line:
            rows[number] = line.replace("GPU7\t", "")
        elif re.match(r"GPU\d|NIC\d", line):
            cells = line.split("\t")
            rows[number] = "\t".join(cells[:8] + cells[9:])
    return "\n".join(rows)


def host_files(card: Card, topo: str) -> dict[str, str]:
    """All outputs of a host, by file name."""
    everyone = list(range(8))
    d03, nvcc = text("open/D03.txt"), text("h200x2/nvcc.txt")
    some = [0, 1, 2, 4, 5, 6, 7]
    lost = f"Unable to determine the device handle for GPU3: {card.bus_ids[3][4:]}: Unknown Error\n"
    files = {
        "query.csv": query_csv(card, everyone),
        "q.xml": q_xml(card, everyone),
        "topo_m.txt": topo,
        "nvlink_s.txt": nvlink(card, everyone),
        "L.txt": listing(card, everyone),
        "nvcc.txt": nvcc,
        "ptxas.txt": nvcc.replace(*AS_PTXAS),
        "faults/7of8/query.csv": query_csv(card, everyone[:7]),
        "faults/7of8/q.xml": q_xml(card, everyone[:7]),
        "faults/7of8/topo_m.txt": seven(topo),
        "faults/7of8/nvlink_s.txt": nvlink(card, everyone[:7]),
        "faults/7of8/L.txt": listing(card, everyone[:7]),
        "faults/lost-gpu/query.csv": lost + query_csv(card, some, count=8),
        "faults/lost-gpu/q.xml": lost + q_xml(card, some, attached=8),
        "faults/lost-gpu/L.txt": lost + listing(card, some),
        "faults/lost-gpu/topo_m.txt": lost,
        "faults/lost-gpu/nvlink_s.txt": lost + nvlink(card, some),
        "faults/lost-gpu/exit": "15\n",
        "faults/driver-mismatch/all": text("open/B10.txt"),
        "faults/driver-mismatch/exit": "18\n",
        "faults/old-nvcc/nvcc.txt": d03,
        "faults/old-nvcc/ptxas.txt": d03.replace(*AS_PTXAS),
        "faults/old-ptxas/ptxas.txt": text("open/D08.txt").replace(*AS_PTXAS),
    }
    if card is B300:
        files |= {
            "faults/island/topo_m.txt": island(),
            "faults/fabric/q.xml": q_xml(replace(card, fabric=("In Progress", "N/A")), everyone),
            "fabricmanager.txt": text("open/G02.txt").replace("610.57.04", DRIVER),
            "faults/old-fabricmanager/fabricmanager.txt": text("open/G02.txt").replace(
                "610.57.04", "580.173.02"
            ),
        }
    return files
