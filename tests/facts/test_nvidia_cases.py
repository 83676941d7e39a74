"""Every case of tests/cases/index.tsv, read by the subcommand that a person would take."""

from __future__ import annotations

import csv
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from facts.nvidia.__main__ import main

CASES = Path(__file__).parents[1] / "cases"
with (CASES / "index.tsv").open() as index:
    ROWS = list(csv.DictReader(index, delimiter="\t", quoting=csv.QUOTE_NONE))

# The subcommand by kind; those that are not the kind's usual one by case.
BY_KIND = {"A": "topo", "B": "gpus", "C": "nvlink", "D": "nvcc", "G": "versions"}
BY_CASE = {
    "B03": "smi",
    "B04": "versions",
    "B06": "errors",
    "B10": "errors",
    "B10b": "versions",
    "B11": "errors",
    "B15": "smi",
    "B18": "xml",
    "B21": "query",
    "B24": "query",
    "B26": "smi",
    "B31": "smi",
    "D05": "cuda",
    "D10": "env",
    "D13": "versions",
}
# Keys of index.tsv that the subcommand's JSON does not hold: none.


def read(reader: str, path: Path, capsys: pytest.CaptureFixture[str]) -> tuple[int, Any]:
    """Exit status and JSON of `python -m facts.nvidia READER PATH`."""
    status = main([reader, str(path)])
    return status, json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_each_expected_key_has_the_expected_value(row, capsys):
    reader = BY_CASE.get(row["id"], BY_KIND[row["kind"]])
    expected = json.loads(row["expected"])
    status, got = read(reader, CASES / row["file"], capsys)
    assert {key: got.get(key, "missing") for key in expected} == expected
    assert status == (1 if "error" in expected and reader != "errors" else 0)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row["id"])
def test_auto_recognises_each_case_or_names_its_error(row, capsys):
    expected = json.loads(row["expected"])
    _, got = read("auto", CASES / row["file"], capsys)
    assert {key: got.get(key, "missing") for key in expected} == expected


@pytest.mark.parametrize(
    ("reader", "file", "expected"),
    [
        ("topo", "topo_m.txt", {"gpus": 2, "pairs": {"NV18": 1}, "all_nvlink": True}),
        ("gpus", "query.csv", {"rows": 2, "compute_cap": "9.0", "memory_total_mib": 143771}),
        ("xml", "q.xml", {"gpus": 2, "cuda": "13.0", "fabric_state": "Completed"}),
        ("smi", "smi.txt", {"gpus": 2, "driver": "580.159.04", "complete": True}),
        ("nvlink", "nvlink_s.txt", {"gpus": 2, "links_per_gpu": 18, "gbps": 26.562}),
        ("nvcc", "nvcc.txt", {"version": "13.0.88", "sm103": True, "flashinfer_sm12x": True}),
        ("cuda", "cuda_ls.txt", {"default": "/usr/local/cuda-13.0"}),
    ],
)
def test_the_outputs_of_our_own_two_h200_are_read(reader, file, expected, capsys):
    status, got = read(reader, CASES / "h200x2" / file, capsys)
    assert status == 0
    assert {key: got[key] for key in expected} == expected


@pytest.mark.parametrize("file", ["nvlink_c.txt", "topo_p2p_n.txt"])
def test_outputs_of_other_invocations_are_refused(file, capsys):
    status, got = read("nvlink" if "nvlink" in file else "topo", CASES / "h200x2" / file, capsys)
    assert status == 1
    assert "error" in got


@pytest.mark.parametrize("reader", ["topo", "xml", "nvlink", "smi"])
def test_a_text_of_another_kind_is_refused_and_its_first_line_shown(reader, capsys):
    status, got = read(reader, CASES / "h200x2/nvcc.txt", capsys)
    assert status == 1
    assert got["found"] == "nvcc: NVIDIA (R) Cuda compiler driver"


def test_an_error_output_gets_its_meaning_and_remedy(capsys):
    status, got = read("errors", CASES / "open/B10.txt", capsys)
    assert status == 0
    assert got["remedy"].startswith("reboot")


def test_errors_says_null_for_a_good_output(capsys):
    status, got = read("errors", CASES / "h200x2/topo_m.txt", capsys)
    assert (status, got["error"], got["ok"], got["gpus"]) == (0, None, True, 2)


def test_errors_refuses_a_text_in_which_it_knows_nothing(tmp_path, capsys):
    (tmp_path / "text").write_text("all is well\n")
    status, got = read("errors", tmp_path / "text", capsys)
    assert status == 1
    assert got == {"error": "not a query answer", "found": "all is well"}


def test_a_file_that_is_not_there_is_one_line_and_exit_1(tmp_path, capsys):
    status, got = read("topo", tmp_path / "none", capsys)
    assert status == 1
    assert got["error"].endswith("none: No such file or directory")


def test_the_module_runs_from_the_command_line_and_reads_standard_input():
    result = subprocess.run(
        [sys.executable, "-m", "facts.nvidia", "nvcc", "-"],
        input=(CASES / "open/D08.txt").read_bytes(),
        capture_output=True,
        cwd=CASES.parents[1],
        check=True,
    )
    assert json.loads(result.stdout)["release"] == "12.8"
