"""MachineFacts as JSON, and the questions that it answers."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from facts.machine import MachineError, MachineFacts, Mount, Place
from facts.nvidia import Gpu, Topology

MACHINES = sorted((Path(__file__).parents[1] / "cases/machines").glob("*.json"))
HALVES = tuple(
    tuple("X" if i == j else "NV18" if i // 2 == j // 2 else "SYS" for j in range(4))
    for i in range(4)
)


def load(path: Path) -> MachineFacts:
    return MachineFacts.from_json(json.loads(path.read_text()))


@pytest.mark.parametrize("path", MACHINES, ids=lambda path: path.stem)
def test_a_saved_machine_reads_and_writes_back_unchanged(path):
    assert load(path).to_json() == json.loads(path.read_text())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"colour": "red"}, "machine facts: colour: Unexpected keyword argument"),
        ({"cpus": "8"}, "machine facts: cpus: Input should be a valid integer"),
        ({"init": "runit"}, "machine facts: init: Input should be 'systemd' or 'other'"),
        ({"gpus": [{"nme": "x"}]}, "machine facts: gpus.0.nme: Unexpected keyword argument"),
        ({"mounts": [{"path": "/"}]}, "machine facts: mounts.0.source: Field required"),
    ],
)
def test_a_wrong_document_is_refused_in_one_line(change, message):
    document = MachineFacts(hostname="a").to_json() | change
    with pytest.raises(MachineError) as refused:
        MachineFacts.from_json(document)
    assert str(refused.value) == message


def test_a_document_without_a_hostname_is_refused():
    with pytest.raises(MachineError, match="hostname"):
        MachineFacts.from_json({})


def test_a_document_of_an_older_version_without_a_field_still_loads():
    assert MachineFacts.from_json({"hostname": "a"}) == MachineFacts(hostname="a")


def test_facts_can_be_hashed_and_compared_since_they_are_frozen():
    assert len({load(path) for path in MACHINES}) == len(MACHINES)


MOUNTS = (
    Mount("/", "/dev/a", "ext4", 100, 10),
    Mount("/mnt/nvme", "/dev/b", "xfs", 900, 800),
)


def test_a_path_lies_on_the_longest_mount_above_it():
    machine = MachineFacts(hostname="a", mounts=MOUNTS)
    assert machine.mount_of("/mnt/nvme/models").path == "/mnt/nvme"
    assert machine.mount_of("/mnt/nvme2").path == "/"


def test_a_linked_folder_lies_on_the_mount_that_its_link_leads_to():
    place = Place("/models", "/mnt/nvme/models", "/mnt/nvme", exists=True, writable=True)
    machine = MachineFacts(hostname="a", mounts=MOUNTS, places=(place,))
    assert machine.mount_of("/models/Kimi-K2.6").path == "/mnt/nvme"


def test_a_path_on_a_machine_without_known_mounts_has_none():
    assert MachineFacts(hostname="a").mount_of("/opt") is None


def test_a_place_above_a_deeper_mount_does_not_hide_that_mount():
    place = Place("/", "/", "/", exists=True, writable=True)
    machine = MachineFacts(hostname="a", mounts=MOUNTS, places=(place,))
    assert machine.mount_of("/mnt/nvme/models").path == "/mnt/nvme"


def test_islands_are_the_gpus_that_nvlink_connects():
    topology = Topology(links=HALVES, cpu_affinity=("0-1",) * 4, numa=(0, 0, 1, 1))
    assert topology.islands == ((0, 1), (2, 3))
    assert topology.all_nvlink is False


def test_one_gpu_is_neither_connected_by_nvlink_nor_not():
    assert Topology(links=(("X",),), cpu_affinity=("0",), numa=(0,)).all_nvlink is None


@pytest.mark.parametrize(
    ("mig", "enabled"), [("Enabled", True), ("Disabled", False), (None, False)]
)
def test_a_card_without_mig_counts_as_mig_off(mig, enabled):
    assert Gpu(mig=mig).mig_enabled is enabled
