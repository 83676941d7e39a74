"""Writes hosts/ (raw tool outputs of two GPU hosts, with faults) and machines/ (their facts).

python tests/cases/compose.py        (at the root of the checkout)
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

CASES = Path(__file__).parent
sys.path[:0] = [str(CASES.parents[1]), str(CASES)]

from composed_hosts import B300, CT200, DRIVER, host_files, text  # noqa: E402

from facts.machine_document import parse_document  # noqa: E402

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
        f"{path}\t/\tno\tyes\tno\n" if path in absent else f"{path}\t{path}\tyes\tyes\tno\n"
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
            "places": "/\t/\tyes\tyes\tno\n/opt\t/opt\tyes\tyes\tno\n/root\t/root\tyes\tyes\tno\n",
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
