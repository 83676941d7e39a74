"""Saved machines with the groups that they belong to, and small changes to both, for plan tests."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

from facts.machine import MachineFacts
from facts.machine_document import parse_document
from facts.nvidia import Topology
from operations.plan_show import read_facts, wanted_of
from operations.wanted import Wanted

ROOT = Path(__file__).resolve().parents[2]
COMMIT = "0123456789abcdef0123456789abcdef01234567"

# machine file -> inventory, group
CASES = {
    "b300": ("b300", "B300"),
    "ct200": ("ct200", "CT200"),
    "h200x1": ("h200", "H200"),
    "h200x2": ("h200", "H200"),
    "cpu": ("local", "LOCAL"),
}


@cache
def machine_of(name: str) -> MachineFacts:
    return read_facts(ROOT / "tests" / "cases" / "machines" / f"{name}.json")


@cache
def wanted_for(name: str) -> Wanted:
    """The group's wish with revisions pinned, as a deploy pins them before it plans."""
    inventory, group = CASES[name]
    wanted = wanted_of(ROOT / "inventories" / f"{inventory}.py")[group]
    return wanted.model_copy(
        update={"target": _pinned(wanted.target), "drafter": _pinned(wanted.drafter)}
    )


def _pinned(source: str | None) -> str | None:
    if source and source.startswith("hf:") and "@" not in source:
        return f"{source}@{COMMIT}"
    return source


def with_wish(wanted: Wanted, **changes: object) -> Wanted:
    """`wanted` with some keys changed, and checked again."""
    return Wanted.model_validate({**wanted.model_dump(), **changes})


def with_gpus(machine: MachineFacts, **changes: object) -> MachineFacts:
    """`machine` with the same change to each of its GPUs."""
    return replace(machine, gpus=tuple(replace(gpu, **changes) for gpu in machine.gpus))


def first_gpus(machine: MachineFacts, count: int) -> MachineFacts:
    """`machine` when only its first `count` GPUs are listed."""
    topology = machine.topology
    assert topology is not None
    links = tuple(row[:count] for row in topology.links[:count])
    return replace(
        machine,
        gpus=machine.gpus[:count],
        topology=replace(topology, links=links, cpu_affinity=topology.cpu_affinity[:count]),
    )


def linked(machine: MachineFacts, pairs: dict[tuple[int, int], str]) -> MachineFacts:
    """`machine` with the connection of some pairs of GPUs changed."""
    assert machine.topology is not None
    links = [list(row) for row in machine.topology.links]
    for (one, other), kind in pairs.items():
        links[one][other] = links[other][one] = kind
    topology: Topology = replace(machine.topology, links=tuple(tuple(row) for row in links))
    return replace(machine, topology=topology)


def broken(name: str, fault: str) -> MachineFacts:
    """A saved host whose NVIDIA tools print what tests/cases/hosts/NAME/faults/FAULT holds."""
    folder = ROOT / "tests" / "cases" / "hosts" / name
    changed = folder / "faults" / fault
    files = {path.name: path.read_text() for path in (*folder.glob("*.*"), *changed.glob("*"))}
    code = files.get("exit", "0").strip()
    smi = {"query": "query.csv", "xml": "q.xml", "topology": "topo_m.txt", "nvlink": "nvlink_s.txt"}
    sections = {key: files.get("all", files[file]) for key, file in smi.items()}
    cuda = "toolkit /usr/local/cuda-13.0 /usr/local/cuda\n" + files["nvcc.txt"]
    sections["cuda"] = f"{cuda}ptxas /usr/local/cuda-13.0/bin/ptxas\n{files['ptxas.txt']}"
    sections["identity"] = "hostname=x\ninit=systemd\nnvidia_smi=/usr/bin/nvidia-smi\n"
    if "fabricmanager.txt" in files:
        sections["fabric_manager"] = files["fabricmanager.txt"]
    text = "".join(
        f"@@ section {key} {code if key in smi else 0}\n{body}\n@@ end\n"
        for key, body in sorted(sections.items())
    )
    seen, healthy = parse_document(text), machine_of(name)
    manager = seen.fabric_manager and replace(seen.fabric_manager, active=True)
    names = ("gpus", "gpu_error", "gpus_lost", "topology", "topology_error", "nvlink")
    tools = ("driver", "cuda_driver", "toolkits", "nvcc", "ptxas")
    found = {key: getattr(seen, key) for key in (*names, *tools)}
    return replace(healthy, **found, fabric_manager=manager)
