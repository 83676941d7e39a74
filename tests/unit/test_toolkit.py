"""Which CUDA packages a host lacks, and when a copied venv is refused."""

import json
from dataclasses import replace
from pathlib import Path

import pytest

from facts.machine import MachineFacts
from facts.nvidia import Toolkit
from operations.plan import choose
from operations.stack_copy import pump, refusal
from operations.toolkit import PACKAGES, build_script, missing
from operations.wanted import Wanted

MACHINES = Path(__file__).parents[1] / "cases/machines"
COMMIT = "0" * 40
KIMI = Wanted(group="B300", target=f"hf:moonshotai/Kimi-K2.6@{COMMIT}")


def machine(name: str, **changes) -> MachineFacts:
    facts = MachineFacts.from_json(json.loads((MACHINES / f"{name}.json").read_text()))
    return replace(facts, **changes)


def test_a_host_with_cuda_13_lacks_nothing():
    b300 = machine("b300")
    assert missing(choose(b300, KIMI), b300) == ()


@pytest.mark.parametrize("toolkits", [(), (Toolkit("/usr/local/cuda-12.4", "12.4"),)])
def test_a_host_without_a_new_enough_nvcc_lacks_the_toolkit(toolkits):
    b300 = machine("b300", toolkits=toolkits, nvcc=None)
    assert missing(choose(b300, KIMI), b300) == PACKAGES


def test_the_reference_engine_needs_no_toolkit():
    cpu = machine("cpu")
    plan = choose(cpu, Wanted(group="LOCAL", engine="reference", target="path:/m"))
    assert missing(plan, cpu) == ()


def test_the_script_names_the_remedy_where_apt_knows_no_cuda():
    assert "cuda-keyring" in build_script(PACKAGES, headers=True)
    assert "python3.12-dev" not in build_script((), headers=False)


def test_a_venv_may_move_between_hosts_of_one_kind():
    assert refusal(machine("b300"), machine("b300"), "3.12") is None


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"arch": "aarch64"}, "architecture"),
        ({"glibc": "2.31"}, "glibc"),
        ({"pythons": ()}, "Python 3.12"),
    ],
)
def test_a_venv_for_another_host_is_refused_with_what_differs(change, word):
    reason = refusal(machine("b300"), machine("b300", **change), "3.12")
    assert reason is not None
    assert f"expected the same {word} on both hosts" in reason


def test_a_stream_arrives_whole_and_a_broken_one_is_noticed(tmp_path):
    source = tmp_path / "source"
    source.write_bytes(bytes(range(256)) * 20000)
    got = bytearray()

    def sink(data):
        got.extend(data or b"")
        return True

    with source.open("rb") as stream:
        assert pump(stream, sink, 1, print)
    assert bytes(got) == source.read_bytes()
    with source.open("rb") as stream:
        assert not pump(stream, lambda data: data is not None, 1, print)
