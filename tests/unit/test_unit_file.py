"""The rendered units: systemd takes them, they are hardened, and no secret is in them."""

import json
import shutil
import subprocess
from dataclasses import replace
from pathlib import Path, PurePosixPath

import pytest

from facts.machine import MachineFacts
from operations.model_job import unit_text
from operations.plan import choose
from operations.release import Release, build, layout_of
from operations.wanted import Wanted

MACHINES = Path(__file__).parents[1] / "cases/machines"
COMMIT = "0" * 40
EXPOSURE = 40  # systemd-analyze's score times ten

needs_systemd = pytest.mark.skipif(
    shutil.which("systemd-analyze") is None, reason="no systemd-analyze on this machine"
)


@pytest.fixture
def release(tmp_path) -> Release:
    """A B300's release under a prefix of the test's own, with the programs that it names."""
    document = json.loads((MACHINES / "b300.json").read_text())
    machine = replace(MachineFacts.from_json(document), init="systemd")
    wanted = Wanted(
        group="B300",
        target=f"hf:moonshotai/Kimi-K2.6@{COMMIT}",
        drafter=f"hf:SubSir/Kimi-K2.6-DFlash-tmp-long@{COMMIT}",
        prefix=str(tmp_path),
    )
    plan = choose(machine, wanted)
    assert plan.service_manager == "systemd"
    python = tmp_path / "current/tools/bin/python"
    python.parent.mkdir(parents=True)
    python.write_text("#!/bin/sh\n")
    python.chmod(0o755)
    return build(plan, wanted, layout_of(plan, wanted))


def units(release: Release, folder: Path) -> list[Path]:
    """Both units as files: the service and the downloads."""
    python = f"{folder}/current/tools/bin/python"
    fetch = unit_text(PurePosixPath(folder), python, f"{folder}/sources/0")
    made = {"ddtree.service": release.service_text, "model-fetch@one.service": fetch}
    for name, text in made.items():
        (folder / name).write_text(text)
    return [folder / name for name in made]


@needs_systemd
def test_systemd_finds_no_fault_in_the_units(release, tmp_path):
    for unit in units(release, tmp_path):
        done = subprocess.run(
            ["systemd-analyze", "verify", "--man=no", unit], capture_output=True, text=True
        )
        own = [line for line in done.stderr.splitlines() if unit.name in line]
        assert own == []


@needs_systemd
def test_the_units_are_hardened(release, tmp_path):
    for unit in units(release, tmp_path):
        done = subprocess.run(
            ["systemd-analyze", "security", "--offline=true", f"--threshold={EXPOSURE}", unit],
            capture_output=True,
            text=True,
        )
        assert done.returncode == 0, done.stdout[-300:] + done.stderr


def test_nothing_that_breaks_kernels_compiled_at_run_time_is_switched_on(release):
    directives = [line.split("=")[0] for line in release.service_text.splitlines()]
    assert "MemoryDenyWriteExecute" not in directives
    assert "PrivateDevices" not in directives


def test_the_unit_lets_nccl_register_memory_and_kills_what_left_the_process_tree(release):
    lines = release.service_text.splitlines()
    assert "LimitMEMLOCK=infinity" in lines
    assert "KillMode=control-group" in lines


def test_no_setting_of_the_unit_shuts_out_the_gpus(release):
    """PrivateDevices hides them; the others bring a list of devices, and theirs aren't on it."""
    names = [line.partition("=")[0] for line in release.service_text.splitlines()]
    assert not {"PrivateDevices", "DevicePolicy", "DeviceAllow", "ProtectClock"} & set(names)
    assert "CapabilityBoundingSet" in names
    assert "@clock" in release.service_text.partition("SystemCallFilter=~")[2].splitlines()[0]


def test_the_engine_finds_its_device_nodes_and_reads_weights_in_a_closed_home(release):
    """What the hardening would take: nodes that a setuid program makes, root's look everywhere."""
    lines = release.service_text.splitlines()
    before = next(line for line in lines if line.startswith("ExecStartPre="))
    assert before.startswith("ExecStartPre=+-")  # with all rights, and no failure of the unit
    assert "nvidia-modprobe -u" in before
    assert "CapabilityBoundingSet=CAP_DAC_READ_SEARCH" in lines


def test_no_token_is_in_a_release(release):
    text = release.service_text + "".join(release.files.values())
    assert "HF_TOKEN" not in text
    assert "LoadCredential" not in release.service_text
