"""Shapes of `topo -m` beyond the cases: real ones that no case has, and false ones."""

from __future__ import annotations

from pathlib import Path

import pytest

from facts.nvidia import ParseError
from facts.nvidia.topology import parse_topology

PLAIN = (Path(__file__).parents[1] / "cases/open/A31.txt").read_text()
HEAD = "\tGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\n"


def test_blank_affinities_as_on_wsl_are_unknown():
    found = parse_topology(HEAD + "GPU0\t X \tSYS\t\t\t\tN/A\nGPU1\tSYS\t X \t\t\t\tN/A\n")
    assert found.pairs == {"SYS": 1}
    assert (found.cpu_affinity, found.numa) == ((None, None), (None, None))


def test_an_affinity_to_several_numa_nodes_is_no_node():
    text = HEAD + "GPU0\t X \tSYS\t0-31\t0-1\t\tN/A\nGPU1\tSYS\t X \t0-31\t0-1\t\tN/A\n"
    assert parse_topology(text).numa == (None, None)


def test_the_order_of_the_header_need_not_begin_with_gpu_0():
    found = parse_topology(PLAIN.replace("GPU1", "GPU2").replace("GPU0", "GPU1"))
    assert found.pairs == {"PHB": 1}


def test_ansi_codes_anywhere_change_nothing():
    painted = "\n".join(f"\x1b[1m{line}\x1b[0m" for line in PLAIN.split("\n"))
    assert parse_topology(painted) == parse_topology(PLAIN)


def test_windows_line_ends_change_nothing():
    assert parse_topology(PLAIN.replace("\n", "\r\n")) == parse_topology(PLAIN)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("GPU1\tPHB", "GPU1\tSYS"),
        ("GPU0\t X ", "GPU0\tPHB"),
        ("GPU1\tPHB", "GPU0\tPHB"),
        ("GPU1\tPHB", "GPU7\tPHB"),
        ("GPU0\tGPU1\tCPU", "GPU0\tGPU0\tCPU"),
        ("GPU0\tGPU1\tCPU", "GPU0\tNIC0\tGPU1\tCPU"),
    ],
    ids=["asymmetric", "no X", "row twice", "row unknown", "column twice", "NIC between"],
)
def test_a_matrix_that_contradicts_itself_is_refused(old, new):
    assert old in PLAIN
    with pytest.raises(ParseError) as refused:
        parse_topology(PLAIN.replace(old, new))
    assert refused.value.error == "inconsistent"


@pytest.mark.parametrize("kind", ["NV", "FOO", "x", "N/A"])
def test_a_connection_of_an_unknown_kind_is_refused(kind):
    with pytest.raises(ParseError, match="incomplete"):
        parse_topology(PLAIN.replace("PHB\t", f"{kind}\t"))
