"""The sh command that reads a machine, run on this one with a folder of tools of the test's own."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from facts.machine import MachineFacts, script
from facts.machine_document import parse_document

CASES = Path(__file__).parents[1] / "cases"
# Nothing answers there, so that the tests need no network: refused at once.
NOWHERE = "http://127.0.0.1:9"
SHELLS = [shell for shell in ("dash", "bash", "busybox") if shutil.which(shell)]


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder that comes first on the command's PATH."""
    (tmp_path / "bin").mkdir()
    return tmp_path / "bin"


def read(
    tools: Path,
    shell: str = "sh",
    limit_s: int = 20,
    places: tuple[str, ...] = (),
    **environment: str,
) -> MachineFacts:
    """The facts that the command reads, with HOME an empty folder beside the tools."""
    home = tools.parent / "home"
    home.mkdir(exist_ok=True)
    argv = [shell, "sh"] if shell == "busybox" else [shell]
    result = subprocess.run(
        [*argv, "-c", script(["~/prefix", *places], hub=NOWHERE, limit_s=limit_s)],
        env={"PATH": f"{tools}:/usr/bin:/bin", "HOME": str(home), **environment},
        capture_output=True,
        check=True,
    )
    return parse_document(result.stdout.decode("ascii"))


def install(tools: Path, name: str, text: str) -> None:
    """A tool of the test's own."""
    (tools / name).write_text(f"#!/bin/sh\n{text}\n")
    (tools / name).chmod(0o755)


def fake_host(tools: Path, host: str, fault: str | None = None) -> Path:
    """The lab's fake tools, replaying a host's outputs; returns their folder."""
    saved = tools.parent / "saved"
    shutil.copytree(CASES / "hosts" / host, saved)
    for name in ("nvidia-smi", "nv-fabricmanager"):
        shutil.copy(CASES / "hosts/fake-nvidia-smi", tools / name)
    if fault:
        (saved / "fault").write_text(fault + "\n")
    return saved


@pytest.mark.parametrize("shell", SHELLS)
def test_the_command_works_in_each_shell_of_this_machine(shell, tools):
    machine = read(tools, shell)
    assert machine.memory_total_mib and machine.cpus and machine.kernel and machine.os_id
    assert machine.mount_of("/").size_mib > 0


def test_a_machine_without_gpu_tools_has_no_gpu_and_no_error(tools):
    if shutil.which("nvidia-smi"):
        pytest.skip("this machine has NVIDIA's tools")
    machine = read(tools)
    assert (machine.gpus, machine.gpu_error, machine.topology) == ((), None, None)


def test_the_command_leaves_no_file_behind(tools, tmp_path):
    read(tools, TMPDIR=str(tmp_path))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bin", "home"]


@pytest.mark.parametrize(
    ("curl", "reachable"),
    [
        ("printf 200", True),
        ("printf 429; exit 0", True),
        ("printf 403", False),
        ("printf 502", False),
        ("printf 000; exit 7", False),
    ],
)
def test_the_hub_is_reachable_if_it_answers_and_not_a_proxy_before_it(curl, reachable, tools):
    install(tools, "curl", curl)
    assert read(tools).hub_reachable is reachable


def test_a_place_below_home_is_reported_before_it_exists(tools):
    machine = read(tools)
    place = next(place for place in machine.places if place.path == f"{machine.home}/prefix")
    assert (place.exists, place.writable, place.resolved) == (False, True, machine.home)


def test_no_folder_can_be_made_where_a_file_lies(tools: Path) -> None:
    (tools / "file").touch()
    machine = read(tools, places=(f"{tools}/file", f"{tools}/file/below"))
    assert [place.writable for place in machine.places if "/file" in place.path] == [False, False]


def test_a_program_is_told_from_a_folder_and_from_a_file_that_can_t_be_run(tools):
    install(tools, "program", "exit 0")
    (tools / "file").touch()
    asked = {
        tools / "program": (True, True),
        tools / "file": (True, False),
        tools: (True, False),
        tools / "absent": (False, False),
    }
    machine = read(tools, places=tuple(map(str, asked)))
    for path, answers in asked.items():
        place = machine.place(str(path))
        assert (place.exists, place.program) == answers, path


def test_a_venv_below_a_place_is_found(tools):
    venv = tools.parent / "prefix/venvs/0123456789ab"
    venv.mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("version = 3.12.3\n")
    machine = read(tools, places=(str(tools.parent / "prefix"),))
    assert [entry.path for entry in machine.venvs if entry.path.endswith("ab")] == [str(venv)]


def test_a_token_is_reported_as_present_and_never_with_its_value(tools):
    home = tools.parent / "home/.cache/huggingface"
    home.mkdir(parents=True)
    (home / "token").write_text("hf_secretvalue")
    machine = read(tools, HF_TOKEN="hf_othersecret")
    assert machine.hf_token is True
    assert "secret" not in str(machine.to_json())


def test_model_folders_are_found_with_their_size(tools):
    model = tools.parent / "home/models/Kimi-K2.6"
    model.mkdir(parents=True)
    (model / "config.json").write_text("{}")
    (model / "weights").write_bytes(b"\1" * 3 * 2**20)
    (tools.parent / "home/models/notes").mkdir()
    found = {Path(entry.path).name: entry.size_mib for entry in read(tools).model_dirs}
    assert found["Kimi-K2.6"] == 3
    assert "notes" not in found


@pytest.mark.parametrize(
    ("host", "pairs"), [("b300", {"NV18": 28}), ("ct200", {"PIX": 4, "NODE": 8, "SYS": 16})]
)
def test_a_gpu_host_gives_the_facts_that_are_saved_for_it(host, pairs, tools):
    machine = read(tools, FAKE_NVIDIA=str(fake_host(tools, host)))
    saved = MachineFacts.from_json(json.loads((CASES / f"machines/{host}.json").read_text()))
    for field in ("gpus", "gpu_error", "topology", "nvlink", "driver", "cuda_driver"):
        assert getattr(machine, field) == getattr(saved, field)
    assert machine.topology.pairs == pairs


def test_seven_gpus_are_seven_in_every_fact(tools):
    machine = read(tools, FAKE_NVIDIA=str(fake_host(tools, "b300", "7of8")))
    assert machine.gpu_error is None
    assert len(machine.gpus) == machine.topology.gpus == len(machine.nvlink.gpus) == 7


def test_an_island_shows_in_the_topology(tools):
    machine = read(tools, FAKE_NVIDIA=str(fake_host(tools, "b300", "island")))
    assert machine.topology.islands == ((0, 1, 2, 3), (4, 5, 6, 7))


def test_a_lost_gpu_is_named_and_the_others_keep_their_indexes(tools):
    machine = read(tools, FAKE_NVIDIA=str(fake_host(tools, "ct200", "lost-gpu")))
    assert machine.gpus_lost == ("GPU3 0000:49:00.0",)
    assert machine.gpu_error == "GPU lost (GPU3 0000:49:00.0)"
    assert [gpu.index for gpu in machine.gpus] == [0, 1, 2, 4, 5, 6, 7]
    assert {gpu.compute_cap for gpu in machine.gpus} == {"12.0"}


def test_a_driver_mismatch_is_one_line_with_its_remedy(tools):
    machine = read(tools, FAKE_NVIDIA=str(fake_host(tools, "b300", "driver-mismatch")))
    assert machine.gpus == ()
    assert machine.gpu_error == (
        "driver/library mismatch (library 580.178): "
        "reboot, or unload and load the nvidia modules; don't reinstall"
    )


def test_an_old_fabric_manager_shows_its_own_version(tools):
    machine = read(tools, FAKE_NVIDIA=str(fake_host(tools, "b300", "old-fabricmanager")))
    assert machine.fabric_manager.installed_version == "580.173.02"
    assert machine.driver == "590.44.01"


def test_an_old_driver_that_refuses_compute_cap_is_asked_again_without_it(tools):
    saved = fake_host(tools, "ct200")
    text = (saved / "query.csv").read_text()
    (saved / "query.csv").write_text(text.replace("compute_cap", "unknown_field"))
    machine = read(tools, FAKE_NVIDIA=str(saved))
    assert machine.gpu_error is None
    assert [gpu.compute_cap for gpu in machine.gpus] == [None] * 8
    assert [gpu.index for gpu in machine.gpus] == list(range(8))


def test_a_tool_that_hangs_is_an_error_by_name_and_not_a_hang(tools):
    install(tools, "nvidia-smi", "trap '' TERM\nwhile :; do sleep 1; done")
    machine = read(tools, limit_s=1)
    assert machine.gpus == ()
    assert "no answer in time" in machine.gpu_error
    assert "no answer in time" in machine.topology_error


def test_bytes_that_are_not_ascii_do_not_end_the_document(tools):
    install(
        tools,
        "nvidia-smi",
        r"printf 'NVIDIA-SMI has failed because it couldn\342\200\231t '; "
        r"echo 'communicate with the NVIDIA driver.'; printf '\377\n'; exit 9",
    )
    machine = read(tools)
    assert machine.gpu_error.startswith("no driver communication")
    assert machine.memory_total_mib


def test_the_toolkit_on_path_is_the_default_where_usr_local_cuda_is_absent(tools):
    if Path("/usr/local/cuda").exists():
        pytest.skip("this machine has a CUDA toolkit of its own")
    shutil.copy(CASES / "hosts/fake-nvidia-smi", tools / "nvcc")
    machine = read(tools, FAKE_NVIDIA=str(CASES / "hosts/b300"))
    assert machine.nvcc.version == "13.0.88"
    assert machine.toolkits == ()


def test_the_command_stays_below_the_size_of_one_network_read():
    assert len(script()) < 12_000
