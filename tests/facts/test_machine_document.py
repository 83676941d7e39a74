"""The document of machine.sh, read into facts."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from facts.machine import MachineError
from facts.machine_document import parse_document

CASES = Path(__file__).parents[1] / "cases"
NVCC = (CASES / "h200x2/nvcc.txt").read_text()
OLD = (CASES / "open/D03.txt").read_text()


def document(**sections: str) -> str:
    """A document with these sections, each with exit status 0."""
    sections = {"identity": "hostname=a\nnvidia_smi=/usr/bin/nvidia-smi\n"} | sections
    return f"@@ sections {' '.join(sorted(sections))}\n" + "".join(
        f"@@ section {name} 0\n{body}\n@@ end\n" for name, body in sorted(sections.items())
    )


def gpus(**sections: str):
    """The facts of the two-H200 host with sections replaced."""
    saved = {
        "query": (CASES / "h200x2/query.csv").read_text(),
        "xml": (CASES / "h200x2/q.xml").read_text(),
        "topology": (CASES / "h200x2/topo_m.txt").read_text(),
        "nvlink": (CASES / "h200x2/nvlink_s.txt").read_text(),
    }
    return parse_document(document(**saved | sections))


def test_query_and_xml_are_joined_by_bus_id():
    machine = gpus()
    first = machine.gpus[0]
    assert (first.compute_cap, first.bar1_total_mib, first.fabric_state) == (
        "9.0",
        262144,
        "Completed",
    )
    assert (machine.driver, machine.cuda_driver, machine.gpu_error) == ("580.159.04", "13.0", None)


def test_a_query_with_fewer_gpus_than_the_xml_is_an_error():
    query = "\n".join((CASES / "h200x2/query.csv").read_text().splitlines()[:2]) + "\n"
    assert gpus(query=query).gpu_error == "the query lists 1 GPUs, the XML 2"


def test_without_the_xml_the_query_still_gives_the_gpus():
    machine = gpus(xml="")
    assert [gpu.compute_cap for gpu in machine.gpus] == ["9.0", "9.0"]
    assert machine.gpu_error == "no XML document (found nothing)"


def test_processes_on_the_gpus_carry_their_user():
    xml = (CASES / "h200x2/q.xml").read_text()
    process = (
        "<processes><process_info><pid>77</pid><type>C</type><process_name>python</process_name>"
        "<used_memory>1024 MiB</used_memory></process_info></processes></gpu>"
    )
    start = xml.index("<processes>")
    end = xml.index("</gpu>", start) + len("</gpu>")
    machine = gpus(xml=xml[:start] + process + xml[end:], process_users="   77 alice\n")
    only = machine.gpu_processes[0]
    assert (only.pid, only.memory_mib, only.user, only.gpu_bus_id) == (
        77,
        1024,
        "alice",
        "00000000:00:06.0",
    )


def test_a_gpu_on_the_bus_without_a_driver_is_an_error_and_not_an_empty_machine():
    machine = parse_document(document(identity="hostname=a\n", pci="0x030200\n0x030200\n"))
    assert machine.gpus == ()
    assert machine.gpu_error == "nvidia-smi is not installed, 2 NVIDIA GPUs on the PCI bus"


def test_a_tool_without_an_exit_status_was_stopped_for_time():
    text = document(query="").replace("section query 0", "section query -")
    assert "no answer in time" in parse_document(text).gpu_error


def test_the_default_toolkit_is_the_one_that_usr_local_cuda_leads_to():
    machine = parse_document(
        document(
            cuda=f"toolkit /usr/local/cuda-12.8 /usr/local/cuda-12.8\n{OLD}"
            f"toolkit /usr/local/cuda-13.0 /usr/local/cuda\n{NVCC}nvcc /usr/bin/nvcc\n{OLD}"
        )
    )
    assert [toolkit.default for toolkit in machine.toolkits] == [False, True]
    assert machine.nvcc.path == "/usr/local/cuda-13.0/bin/nvcc"


def test_an_old_nvcc_on_path_is_the_nvcc_where_there_is_no_toolkit_folder():
    machine = parse_document(document(cuda=f"nvcc /usr/bin/nvcc\n{OLD}"))
    assert (machine.nvcc.release, machine.nvcc.path) == ("11.5", "/usr/bin/nvcc")
    assert machine.nvcc.knows("10.3") is False


def test_a_toolkit_folder_without_nvcc_is_listed_and_gives_no_nvcc():
    machine = parse_document(document(cuda="toolkit /usr/local/cuda-13.0 /usr/local/cuda\n"))
    assert (machine.toolkits[0].has_nvcc, machine.nvcc) == (False, None)


def test_a_fabric_manager_that_is_installed_and_down_is_not_active():
    machine = parse_document(
        document(
            identity="hostname=a\nsystemd_booted=yes\n",
            fabric_manager=(CASES / "open/G02.txt").read_text(),
            units="nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager\n",
        )
    )
    assert (machine.fabric_manager.installed_version, machine.fabric_manager.active) == (
        "610.57.04",
        False,
    )


def test_memory_is_the_containers_limit_where_that_is_less():
    machine = parse_document(
        document(identity=f"hostname=a\nmemory_limit={8 << 30}\n", memory="MemTotal: 33554432 kB\n")
    )
    assert machine.memory_total_mib == 8192


@pytest.mark.parametrize(
    ("acs", "bridges"),
    [
        ("ACSCtl: SrcValid+ TransBlk- ReqRedir+ CmpltRedir+\n" * 3, 3),
        ("ACSCtl: SrcValid- TransBlk- ReqRedir- CmpltRedir-\n", 0),
    ],
)
def test_acs_counts_the_bridges_that_redirect_requests(acs, bridges):
    assert parse_document(document(acs=acs)).acs_bridges == bridges


def test_limits_are_in_kib_and_unlimited_is_minus_one():
    machine = parse_document(document(identity="hostname=a\nmemlock=unlimited\nnofile=1024\n"))
    assert (machine.limits.memlock_kib, machine.limits.nofile) == (-1, 1024)


WHOLE = document(os="ID=debian\n", cuda=f"nvcc /usr/bin/nvcc\n{NVCC}")


@given(at=st.integers(0, len(WHOLE) - len("\n")))
def test_a_document_cut_anywhere_is_refused_or_whole(at):
    try:
        machine = parse_document(WHOLE[:at])
    except MachineError:
        return
    assert machine == parse_document(WHOLE)


def test_text_of_the_login_shell_before_the_document_does_no_harm():
    assert parse_document("Welcome to a!\n" + WHOLE) == parse_document(WHOLE)
