"""Parsers of what Linux says of itself."""

from __future__ import annotations

import pytest

from facts.linux import (
    parse_df,
    parse_iommu,
    parse_meminfo,
    parse_mounts,
    parse_os_release,
    parse_places,
    parse_ports,
    parse_pythons,
    parse_units,
    parse_venvs,
)
from facts.machine import Mount, Port, Python, Unit, Venv

DF = """Filesystem           1024-blocks      Used Available Capacity Mounted on
/dev/sda1              102400000  51200000  51200000      50% /
tmpfs                    1048576         0   1048576       0% /dev/shm
server:/a b/c          204800000         0 204800000       0% /mnt/two words
overlay                102400000  51200000  51200000      50% /var/lib/docker/overlay2/x/merged
"""


def test_df_columns_are_counted_from_the_numbers_so_blanks_in_names_do_no_harm():
    assert parse_df(DF)["/mnt/two words"] == (204800000, 204800000)


def test_df_without_inode_counts_leaves_the_file_system_out():
    assert parse_df("Filesystem Inodes IUsed IFree IUse% Mounted on\nefs - - - - /mnt/efs\n") == {}


def test_mounts_are_real_file_systems_with_their_sizes_in_mib():
    mounts = (
        "/dev/sda1 / ext4 rw 0 0\ntmpfs /dev/shm tmpfs rw 0 0\nproc /proc proc rw 0 0\n"
        "server:/a\\040b/c /mnt/two\\040words nfs4 rw 0 0\n"
        "overlay /var/lib/docker/overlay2/x/merged overlay rw 0 0\n"
    )
    found = parse_mounts(mounts, DF, "")
    assert found == (
        Mount("/", "/dev/sda1", "ext4", 100000, 50000),
        Mount("/dev/shm", "tmpfs", "tmpfs", 1024, 1024),
        Mount("/mnt/two words", "server:/a b/c", "nfs4", 200000, 200000),
    )


def test_a_ram_disk_counts_where_data_may_lie():
    df = "tmpfs 40960 0 40960 0% /mnt/ram\ntmpfs 40960 0 40960 0% /run/user/0\n"
    mounts = "tmpfs /mnt/ram tmpfs rw 0 0\ntmpfs /run/user/0 tmpfs rw 0 0\n"
    assert parse_mounts(mounts, df, "") == (Mount("/mnt/ram", "tmpfs", "tmpfs", 40, 40),)


def test_a_mount_over_another_hides_it():
    mounts = "/dev/sda1 / ext4 rw 0 0\n/dev/sdb / xfs rw 0 0\n"
    assert [mount.fstype for mount in parse_mounts(mounts, DF, "")] == ["xfs"]


def test_a_place_lies_on_the_longest_mount_above_its_resolved_path():
    mounts = parse_mounts("/dev/sda1 / ext4\nserver:/a\\040b/c /mnt/two\\040words nfs4\n", DF, "")
    places = parse_places("/models\t/mnt/two words/models\tyes\tno\tno\n", mounts)
    assert (places[0].mount, places[0].exists, places[0].writable) == (
        "/mnt/two words",
        True,
        False,
    )


def test_os_release_values_lose_their_quotes():
    text = 'ID=ubuntu\nVERSION_ID="24.04"\n# comment\nBROKEN="x\n'
    assert parse_os_release(text) == {"ID": "ubuntu", "VERSION_ID": "24.04"}


def test_meminfo_is_in_mib():
    assert parse_meminfo("MemTotal:       24684092 kB\n") == {"MemTotal": 24105}


SS = """LISTEN 0      128          0.0.0.0:22         0.0.0.0:*    users:(("sshd",pid=812,fd=3))
LISTEN 0      128             [::]:22            [::]:*    users:(("sshd",pid=812,fd=4))
LISTEN 0      4096   127.0.0.53%lo:53         0.0.0.0:*
LISTEN 0      4096               *:30000            *:*    users:(("python3",pid=9,fd=7))
"""


def test_ports_of_ss():
    assert parse_ports(SS) == (
        Port(22, "0.0.0.0", 812, "sshd"),
        Port(22, "::", 812, "sshd"),
        Port(53, "127.0.0.53"),
        Port(30000, "0.0.0.0", 9, "python3"),
    )


PROC = f"""  sl local_address rem_address st tx_queue rx_queue tr tm->when retrnsmt uid to inode
   0: 0100007F:7530 00000000:0000 0A 00000000:00000000 00:00000000 00000000     0        0 4711 1
   1: 0100007F:7530 0100007F:A000 01 00000000:00000000 00:00000000 00000000     0        0 4712 1
   0: {"0" * 32}:0016 {"0" * 32}:0000 0A 00000000:00000000 00:00000000 00000000     0        0 99 1
   0: {"0" * 24}01000000:1F90 {"0" * 32}:0000 0A 00000000:00000000 00:00000000 00000000 0 0 98 1
"""


def test_ports_of_proc_net_tcp_where_ss_is_absent():
    owners = "socket:[4711] 321 python3\n"
    assert parse_ports(PROC, owners) == (
        Port(22, "::"),
        Port(8080, "::1"),
        Port(30000, "127.0.0.1", 321, "python3"),
    )


def test_units_join_what_runs_with_what_is_enabled():
    listed = (
        "nvidia-fabricmanager.service loaded failed failed NVIDIA fabric manager\n"
        "ollama.service not-found inactive dead ollama.service\n"
    )
    files = (
        "nvidia-fabricmanager.service enabled enabled\n"
        "vllm.service disabled enabled\nddtree-model@.service static -\n"
    )
    assert parse_units(listed, files) == (
        Unit("nvidia-fabricmanager.service", "failed", "enabled"),
        Unit("vllm.service", "inactive", "disabled"),
    )


@pytest.mark.parametrize(
    ("types", "state"),
    [
        (None, None),
        ("groups", "off"),
        ("groups identity", "passthrough"),
        ("groups DMA identity", "on"),
        ("groups DMA-FQ", "on"),
    ],
)
def test_iommu_by_the_types_of_its_groups(types, state):
    assert parse_iommu(types) == state


def test_pythons_are_lines_with_a_whole_version():
    text = "/usr/bin/python3 Python 3.12.3\n/opt/x/python3 Segmentation fault\n"
    assert parse_pythons(text) == (Python("/usr/bin/python3", "3.12.3"),)


def test_venvs_of_both_makers_carry_their_python():
    text = "/opt/a/pyvenv.cfg:version = 3.11.2\n/opt/b/pyvenv.cfg:version_info = 3.12.3\n"
    assert parse_venvs(text) == (Venv("/opt/a", "3.11.2"), Venv("/opt/b", "3.12.3"))
