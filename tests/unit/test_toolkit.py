"""Which CUDA packages a host lacks, and when a copied venv is refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import ClassVar

import pytest

from facts.machine import MachineFacts
from facts.nvidia import Toolkit
from operations.plan import choose
from operations.stack_copy import Stream, refusal, transfer
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


class Here:
    """This machine as pyinfra's @local: no SSH client, no sudo."""

    connector = state = None
    current_op_global_arguments: ClassVar[dict] = {"_shell_executable": "sh"}


def test_a_stream_arrives_whole(tmp_path):
    (tmp_path / "source").write_bytes(bytes(range(256)) * 20000)
    read, write = f"cat {tmp_path}/source", f"cat >{tmp_path}/sink"
    assert transfer(Stream(Here, read), Stream(Here, write), 1, print) is None
    assert (tmp_path / "sink").read_bytes() == (tmp_path / "source").read_bytes()


@pytest.mark.parametrize(
    ("read", "write", "why"),
    [
        ("cat /dev/zero", "echo no room >&2; exit 2", "no room"),
        ("cat /dev/zero", "exit 0", "it ended before all was read"),
        ("printf half; echo lost >&2; exit 1", "cat >/dev/null", "lost"),
        ("printf all", "cat >/dev/null; exit 3", "exit code 3"),
    ],
)
def test_a_stream_that_breaks_off_is_noticed_with_the_reason_of_the_end_that_broke(
    read, write, why
):
    assert transfer(Stream(Here, read), Stream(Here, write), 1, print) == why
