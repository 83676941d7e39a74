"""The pre-flight's second stage (the ptxas that Triton will use), and what is ours on a host."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from operations.checks_stack import command, findings
from operations.plan import choose
from operations.preflight import OwnThings
from tests.unit.plan_cases import machine_of, wanted_for

# what the ptxas 12.8 in Triton 3.6's wheel says
SAID = "ptxas fatal   : Value 'sm_103a' is not defined for option 'gpu-name'"


def ask(environment: dict[str, str], compute_cap: str):
    done = subprocess.run(
        ["sh", "-c", command(environment, compute_cap)], capture_output=True, text=True
    )
    (finding,) = findings(done.stdout.splitlines())
    return finding


def fake_ptxas(folder: Path, body: str) -> str:
    path = folder / "ptxas"
    path.write_text(f'#!/bin/sh\ncat >{folder}/source\necho "$@" >{folder}/words\n{body}\n')
    path.chmod(0o755)
    return str(path)


def test_a_ptxas_that_does_not_know_the_architecture_fails_with_its_own_words(tmp_path):
    path = fake_ptxas(tmp_path, f'echo "{SAID}" >&2; exit 255')
    finding = ask({"TRITON_PTXAS_BLACKWELL_PATH": path}, "10.3")
    assert (str(finding.status), finding.id) == ("fail", "triton.ptxas")
    assert "'sm_103a' is not defined" in finding.evidence
    assert "TRITON_PTXAS_PATH" in finding.remedy


def test_a_ptxas_that_assembles_passes(tmp_path):
    path = fake_ptxas(tmp_path, "exit 0")
    assert str(ask({"TRITON_PTXAS_BLACKWELL_PATH": path}, "12.0").status) == "pass"
    assert "--gpu-name=sm_120a" in (tmp_path / "words").read_text()
    assert ".target sm_120a" in (tmp_path / "source").read_text()


def test_hopper_is_asked_with_the_other_variable(tmp_path):
    path = fake_ptxas(tmp_path, "exit 0")
    environment = {"TRITON_PTXAS_PATH": path, "TRITON_PTXAS_BLACKWELL_PATH": "/none"}
    assert str(ask(environment, "9.0").status) == "pass"


def test_a_ptxas_that_is_not_there_is_unknown(tmp_path):
    finding = ask({"TRITON_PTXAS_BLACKWELL_PATH": f"{tmp_path}/none"}, "10.3")
    assert str(finding.status) == "unknown"


def test_no_answer_at_all_is_unknown():
    (finding,) = findings([])
    assert str(finding.status) == "unknown"


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("tool", "compute_cap", "status"),
    [
        ("ptxas", "10.3", "fail"),
        ("ptxas-blackwell", "10.3", "pass"),
        ("ptxas-blackwell", "12.0", "pass"),
        ("ptxas", "9.0", "pass"),
    ],
)
def test_tritons_own_ptxas_answers_as_the_failure_record_says(tool, compute_cap, status):
    python = os.environ.get("SGLANG_PYTHON", sys.executable)
    code = "import triton, pathlib; print(pathlib.Path(triton.__file__).parent)"
    triton = subprocess.run([python, "-c", code], capture_output=True, text=True, check=True)
    path = f"{triton.stdout.strip()}/backends/nvidia/bin/{tool}"
    environment = {"TRITON_PTXAS_PATH": path, "TRITON_PTXAS_BLACKWELL_PATH": path}
    assert str(ask(environment, compute_cap).status) == status


def test_the_plan_and_the_probe_name_the_same_variables():
    environment = choose(machine_of("b300"), wanted_for("b300")).serving_launch.env
    assert "/usr/local/cuda-13.0/bin/ptxas" in command(dict(environment), "10.3")


# what is ours on a host


def own(prefix: Path, pids: list[int], folders: list[str]):
    fact = OwnThings()
    text = fact.command(str(prefix), pids, folders)
    done = subprocess.run(["sh", "-c", text], capture_output=True, text=True, check=True)
    return fact.process(done.stdout.splitlines())


@pytest.fixture
def sleeper():
    """Starts `sleep` in a folder and with an environment of one's own; ends it afterwards."""
    started = []

    def start(folder: Path, **environment: str) -> int:
        sleep = shutil.which("sleep")
        assert sleep
        process = subprocess.Popen([sleep, "60"], cwd=folder, env=environment)
        started.append(process)
        return process.pid

    yield start
    for process in started:
        process.kill()
        process.wait()


def test_a_process_is_ours_by_its_working_folder_or_its_environment(tmp_path, sleeper):
    prefix = tmp_path / "prefix"
    (prefix / "run").mkdir(parents=True)
    by_folder = sleeper(prefix / "run")
    by_environment = sleeper(tmp_path, PYTHONPATH=f"{prefix}/current/sources")
    stranger = sleeper(tmp_path, PYTHONPATH=f"{prefix}-other/current/sources")
    found = own(prefix, [by_folder, by_environment, stranger], [])
    assert found.pids == {by_folder, by_environment}


def test_the_size_of_a_model_folder_is_told_and_a_missing_one_is_not(tmp_path):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "weights").write_bytes(b"x" * 3_000_000)
    found = own(tmp_path, [], [f"{tmp_path}/model", f"{tmp_path}/none"])
    assert set(found.model_mib) == {f"{tmp_path}/model"}
    assert 2 <= found.model_mib[f"{tmp_path}/model"] <= 4
