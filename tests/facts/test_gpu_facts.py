"""facts/gpu.py and facts/machine.py as pyinfra sees them."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from pyinfra.api.exceptions import FactProcessError

from facts import gpu
from facts.machine import Machine, script

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
CASES = HERE.parent / "cases"
FACTS = sorted(
    name
    for name, value in vars(gpu).items()
    if isinstance(value, type) and value.__module__ == "facts.gpu" and not name.startswith("_")
)


def lines(path: str) -> list[str]:
    return (CASES / path).read_text().splitlines()


def test_upstreams_fixture_tests_pass_for_every_single_fact():
    result = subprocess.run(
        [sys.executable, "-W", "ignore", str(HERE / "gpu_fixtures.py")],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
    )
    assert result.returncode == 0, result.stdout + result.stderr
    cases = len(list(HERE.glob("gpu.*/*.json")))
    assert f"Ran {cases} tests" in result.stderr
    assert sorted(path.name for path in HERE.glob("gpu.*")) == [f"gpu.{name}" for name in FACTS]


@pytest.mark.parametrize("name", FACTS)
def test_a_host_without_the_tool_gives_null_from_a_command_that_succeeds(name, tmp_path):
    fact = getattr(gpu, name)
    (tmp_path / "sh").symlink_to(shutil.which("sh"))
    command = fact().command().replace("/usr/local/cuda/bin", str(tmp_path))
    result = subprocess.run(
        ["sh", "-c", command], env={"PATH": str(tmp_path)}, capture_output=True, check=True
    )
    assert (result.stdout, fact.default()) == (b"", None)


def test_fabric_state_names_state_and_status_of_each_gpu():
    expected = {0: "Completed, Success", 1: "Completed, Success"}
    assert gpu.FabricState().process(lines("h200x2/q.xml")) == expected


@pytest.mark.parametrize("case", ["B10.txt", "B11.txt", "A33.txt"])
def test_an_error_message_fails_the_fact_for_that_host_alone_and_says_what_to_do(case):
    with pytest.raises(FactProcessError, match=r"nvidia-smi: .*: "):
        gpu.NvlinkTopology().process(lines(f"open/{case}"))


def test_a_cut_topology_fails_the_fact_and_gives_no_count():
    with pytest.raises(FactProcessError, match="incomplete"):
        gpu.NvlinkTopology().process(lines("open/A24.txt"))


@pytest.mark.parametrize(
    "output",
    [
        ["sh: 1: Syntax error"],
        ["@@ section identity -", "hostname=a", "cpus=x", "@@ end", "@@ section os 0", "ID=deb"],
        ["@@ section identity -", "kernel=6", "@@ end"],
    ],
    ids=["another text", "cut", "no hostname"],
)
def test_an_answer_that_is_not_whole_fails_the_machine_for_that_host_alone(output):
    with pytest.raises(FactProcessError, match="cut or no answer"):
        Machine().process(output)


def test_the_machine_is_one_command_with_the_places_asked_for():
    assert Machine().command("/data/x /mnt/y") == script(["/data/x", "/mnt/y"])


def test_pyinfra_reads_the_machine_and_a_single_fact_from_this_host(tmp_path):
    (tmp_path / "bin").mkdir()
    shutil.copy(CASES / "hosts/fake-nvidia-smi", tmp_path / "bin/nvidia-smi")
    found = {}
    for fact in ("facts.machine.Machine", "facts.gpu.ComputeCapability"):
        program = "from pyinfra_cli.main import main; main()"
        result = subprocess.run(
            [sys.executable, "-c", program, "@local", "fact", fact, "--json"],
            cwd=ROOT,
            env=os.environ
            | {
                "PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}",
                "FAKE_NVIDIA": str(CASES / "hosts/ct200"),
            },
            capture_output=True,
            text=True,
            check=True,
        )
        found[fact] = json.loads(result.stdout)[fact]["@local"]
    assert found["facts.gpu.ComputeCapability"] == {str(index): "12.0" for index in range(8)}
    assert [gpu["compute_cap"] for gpu in found["facts.machine.Machine"]["gpus"]] == ["12.0"] * 8


def test_the_machine_prints_itself_at_a_shell():
    result = subprocess.run(
        [sys.executable, "-m", "facts.machine", "--hub", "http://127.0.0.1:9"],
        cwd=ROOT,
        capture_output=True,
        check=True,
    )
    assert json.loads(result.stdout)["arch"] == os.uname().machine
