"""Typed reading of result files: what is read, and the one line that a bad file gets."""

import json

import pytest
from made_results import changed, made_result

from operations.results import ResultError, parse_result, read_result, result_path

DOCUMENT = made_result({"ar": {1: [100.0]}, "dflash": {1: [150.0]}})


def test_a_result_is_read_into_typed_parts():
    result = parse_result(DOCUMENT)
    assert [a.name for a in result.arms] == ["ar", "dflash"]
    assert result.arm("dflash").mode == "dflash"
    assert result.cells[1].key.concurrency == 1
    assert result.gate("dflash").passed
    assert result.gate("ar") is None
    assert result.baseline == "ar"


def test_an_engine_that_counts_no_steps_has_none_not_zero():
    assert parse_result(DOCUMENT).cells[0].requests[0].verify_steps is None


def test_a_result_lies_by_group_fingerprint_and_host():
    path = result_path("B300", "0123456789abcdef", "b300-1")
    assert path.as_posix() == "results/B300/0123456789ab/b300-1.json"


def test_a_connector_name_is_no_folder():
    assert result_path("LOCAL", "0" * 64, "@local").name == "local.json"
    assert result_path("LAB", "0" * 64, "@ssh/a").name == "ssh_a.json"


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"schema": "ddtree-bench/2"}, "expected schema 'ddtree-bench/1', found 'ddtree-bench/2'"),
        ({"schema": None}, "expected schema 'ddtree-bench/1', found None"),
        ({"cells": None}, "expected 'cells' to be a list, found None"),
        ({"complete": "yes"}, "expected 'complete' to be true or false, found 'yes'"),
        ({"arms": ["ar"]}, "expected an object with 'name', found str"),
        ({"cells": [{"arm": "ar"}]}, "expected a field 'prompt_set', found only arm"),
    ],
)
def test_a_document_of_another_shape_is_refused_in_one_line(fields, message):
    with pytest.raises(ResultError) as refused:
        parse_result(changed(DOCUMENT, **fields))
    assert message in str(refused.value)
    assert "\n" not in str(refused.value)


def test_a_cell_measured_twice_is_refused():
    with pytest.raises(ResultError, match="measured once, found twice: ar, chat"):
        parse_result(changed(DOCUMENT, cells=DOCUMENT["cells"] * 2))


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(ResultError, match=r"gone\.json: no such file"):
        read_result(tmp_path / "gone.json")


def test_a_cut_file_is_refused_with_its_name(tmp_path):
    path = tmp_path / "cut.json"
    path.write_text(json.dumps(DOCUMENT)[:-50])
    with pytest.raises(ResultError, match=r"cut\.json: expected a JSON result"):
        read_result(path)
