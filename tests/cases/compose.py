"""Writes hosts/ (raw tool outputs of two GPU hosts, with faults) and machines/ (their facts).

    python tests/cases/compose.py        (at the root of the checkout)

Nothing here was captured from a B300 or CT200: README.md beside this file says which line comes
from which public report, and what is made up.
"""

from __future__ import annotations

import json
import re
import sys
from dataclasses import dataclass, replace
from pathlib import Path

CASES = Path(__file__).parent
sys.path.insert(0, str(CASES.parents[1]))

from facts.machine_document import parse_document  # noqa: E402

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


IDENTITY = """kernel=6.8.0-138-generic
arch=x86_64
user=root
uid=0
home=/root
init=systemd
systemd_booted=yes
glibc=glibc 2.39
sudo=root
cpus=256
numa_nodes=2
numa_balancing=1
ptrace_scope=1
memlock=270480179200
nofile=1024
clock_unix=1796058000
uvm_disable_hmm=N
pip=/usr/bin/pip3
has_apt=yes
has_patch=yes
nvidia_smi=/usr/bin/nvidia-smi
"""
OS = 'ID=ubuntu\nVERSION_ID="24.04"\n'
SYSTEMD = "systemd 255 (255.4-1ubuntu8.11)\n"
PYTHONS = "/usr/bin/python3 Python 3.12.3\n"
PORTS = 'LISTEN 0 128 0.0.0.0:22 0.0.0.0:* users:(("sshd",pid=1203,fd=3))\n'


def document(sections: dict[str, str]) -> str:
    """A document as machine.sh prints it."""
    return "".join(
        f"@@ section {name} 0\n{body}\n@@ end\n" for name, body in sorted(sections.items())
    )


def disk_sections(disks: list[tuple[str, str, str, int, int]]) -> dict[str, str]:
    """Mounts and both df outputs from (source, path, fstype, size GiB, free GiB)."""
    mounts = "".join(f"{s} {p} {f} rw 0 0\n" for s, p, f, _, _ in disks)
    df = "".join(
        f"{s} {size << 20} {(size - free) << 20} {free << 20} 50% {p}\n"
        for s, p, _, size, free in disks
    )
    inodes = "".join(f"{s} 100000000 1000000 99000000 1% {p}\n" for s, p, *_ in disks)
    return {"mounts": mounts, "disks": df, "inodes": inodes}


def composed(
    card: Card,
    files: dict[str, str],
    identity: str,
    disks: list[tuple[str, str, str, int, int]],
    memory_kib: int,
    units: str,
    modules: str,
) -> str:
    """The document of a composed host."""
    cuda = (
        "toolkit /usr/local/cuda-13.0 /usr/local/cuda\n"
        + files["nvcc.txt"]
        + "ptxas /usr/local/cuda-13.0/bin/ptxas\n"
        + files["ptxas.txt"]
    )
    absent = ("/data", "/models")
    places = "".join(
        f"{path}\t/\tno\tyes\n" if path in absent else f"{path}\t{path}\tyes\tyes\n"
        for path in ("/", "/opt", "/root", "/home", "/var", "/srv", "/data", "/mnt", "/models")
    )
    sections = {
        "identity": identity,
        "os": OS,
        "systemd": SYSTEMD,
        "memory": f"MemTotal: {memory_kib} kB\nMemAvailable: {memory_kib - (16 << 20)} kB\n",
        "pythons": PYTHONS,
        "ports": PORTS,
        "units": units,
        "unit_files": re.sub(r"^(\S+) .*", r"\1 enabled enabled", units, flags=re.MULTILINE),
        "clock": "yes\n",
        "hub": "yes\n",
        "cuda": cuda,
        "query": files["query.csv"],
        "xml": files["q.xml"],
        "topology": files["topo_m.txt"],
        "nvlink": files["nvlink_s.txt"],
        "module": text("open/B10b.txt")
        .replace("580.173.02", DRIVER)
        .replace("UNIX x86_64 Kernel Module ", "UNIX Open Kernel Module for x86_64 "),
        "modules": modules,
        "places": places,
        "pci": "0x030200\n" * 8,
        "acs": "",
        **disk_sections(disks),
    }
    if "fabricmanager.txt" in files:
        sections["fabric_manager"] = files["fabricmanager.txt"]
    return document(sections)


def h200(gpus: int) -> str:
    """A host whose outputs lie in h200x1/ or h200x2/; its system part is made up."""
    folder = f"h200x{gpus}"
    cuda = "toolkit /usr/local/cuda-13.0 /usr/local/cuda\n" + text("h200x2/nvcc.txt")
    identity = IDENTITY.replace("systemd_booted=yes\n", "container=yes\n")
    identity = identity.replace("init=systemd", "init=sh").replace("cpus=256", f"cpus={16 * gpus}")
    identity = identity.replace("numa_nodes=2", "numa_nodes=1")
    identity += "hostname=h200\niommu_types=groups \n"
    return document(
        {
            "identity": identity,
            "os": OS,
            "memory": f"MemTotal: {gpus * 128 << 20} kB\nMemAvailable: {gpus * 125 << 20} kB\n",
            "pythons": PYTHONS,
            "hub": "no\n",
            "cuda": cuda,
            "query": text(f"{folder}/query.csv"),
            "xml": text(f"{folder}/q.xml"),
            "topology": text(f"{folder}/topo_m.txt"),
            "nvlink": text(f"{folder}/nvlink_s.txt"),
            "module": text("h200x1/module.txt"),
            "pci": "0x030200\n" * gpus,
            "places": "/\t/\tyes\tyes\n/opt\t/opt\tyes\tyes\n/root\t/root\tyes\tyes\n",
            **disk_sections(
                [
                    ("overlay", "/", "overlay", 64 * gpus, 55 * gpus),
                    ("shm", "/dev/shm", "tmpfs", 64 * gpus, 64 * gpus),
                ]
            ),
        }
    )


def main() -> None:
    """Write all files."""
    hosts = {
        "b300": host_files(B300, text("open/A04.txt")),
        "ct200": host_files(CT200, text("open/A01.txt")),
    }
    for host, files in hosts.items():
        for name, body in files.items():
            path = CASES / "hosts" / host / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body)
    helpers = "nvidia-persistenced.service loaded active running NVIDIA Persistence Daemon\n"
    documents = {
        "b300": composed(
            B300,
            hosts["b300"],
            IDENTITY + "hostname=b300-a\niommu_types=groups identity \n",
            [
                ("/dev/md0", "/", "ext4", 1792, 1300),
                ("tmpfs", "/dev/shm", "tmpfs", 1007, 1007),
            ],
            2_113_000_000,
            helpers + "nvidia-fabricmanager.service loaded active running NVIDIA fabric manager\n",
            "nvidia\nnvidia_uvm\nnvidia_modeset\nmlx5_core\nmlx5_ib\nib_core\nnvme\n",
        ),
        "ct200": composed(
            CT200,
            hosts["ct200"],
            IDENTITY + "hostname=ct200-a\niommu_types=groups identity \n",
            [
                ("/dev/nvme0n1p2", "/", "ext4", 3500, 1400),
                ("tmpfs", "/dev/shm", "tmpfs", 755, 755),
            ],
            1_584_000_000,
            helpers,
            "nvidia\nnvidia_uvm\nnvidia_modeset\nbnxt_en\nnvme\n",
        ),
        "h200x1": h200(1),
        "h200x2": h200(2),
    }
    for host, body in documents.items():
        facts = parse_document(body).to_json()
        path = CASES / "machines" / f"{host}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_text(json.dumps(facts, indent=1) + "\n")


if __name__ == "__main__":
    main()
