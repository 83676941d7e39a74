"""The export validates against the llm-d benchmark report's own schema."""

import json

import pytest
import yaml
from llmd_benchmark_report import BenchmarkReportV02, load_benchmark_report
from made_results import made_result, two_groups

from operations.report import main
from operations.report_llmd import llmd_reports, write_llmd
from operations.results import parse_result

AR = [10.0, 10.4, 9.6]
CPU = made_result({"ar": {1: AR}, "ddtree-32": {1: [1.5 * r for r in AR]}})
GPU = two_groups()[0]


@pytest.mark.parametrize("document", [CPU, GPU], ids=["cpu", "gpu"])
def test_every_report_validates_against_the_schema(document):
    reports = llmd_reports(parse_result(document))
    for report in reports.values():
        assert isinstance(load_benchmark_report(report), BenchmarkReportV02)
    assert len(reports) == len(document["arms"]) * len(document["settings"]["concurrency"])


def test_acceptance_stands_in_the_free_part():
    free = llmd_reports(parse_result(CPU))["ddtree-32-chat-c1"]["results"]["profiling"]
    acceptance = free["speculative_decoding"]
    assert acceptance["accept_length"] == pytest.approx(2.0)
    assert acceptance["accept_histogram"] == [36, 36, 12, 12]
    assert acceptance["speed_to_baseline"]["median"] == pytest.approx(1.5)


def test_arm_without_speculation_has_no_accept_length():
    free = llmd_reports(parse_result(CPU))["ar-chat-c1"]["results"]["profiling"]
    assert free["speculative_decoding"]["accept_length"] is None


def test_gpu_and_parallelism_are_the_plans():
    engine = llmd_reports(parse_result(GPU))["ar-chat-c1"]["scenario"]["stack"][0]
    accelerator = engine["standardized"]["accelerator"]
    assert accelerator["model"] == "NVIDIA Made B300"
    assert accelerator["count"] == 8
    assert accelerator["parallelism"]["tp"] == 8
    assert engine["native"]["args"]["--model-path"] == "/made/target"


def test_same_result_has_the_same_ids():
    first, again = (llmd_reports(parse_result(CPU)) for _ in range(2))
    assert [r["run"] for r in first.values()] == [r["run"] for r in again.values()]
    assert len({r["run"]["uid"] for r in first.values()}) == 2
    assert len({r["run"]["eid"] for r in first.values()}) == 1


def test_several_loads_become_a_file_each(tmp_path):
    files = write_llmd([parse_result(GPU)], tmp_path / "out.yaml")
    assert len(files) == 16
    assert files[0] == tmp_path / "out" / "MADE-NVLINK-made-n1-ar-chat-c1.yaml"
    assert isinstance(
        load_benchmark_report(yaml.safe_load(files[0].read_text())), BenchmarkReportV02
    )


def test_command_line_exports(tmp_path, capsys):
    source = tmp_path / "a.json"
    source.write_text(json.dumps(made_result({"ar": {1: AR}})))
    out = tmp_path / "out.yaml"
    assert main([str(source), "--out", str(tmp_path / "r.html"), "--llmd", str(out)]) == 0
    assert load_benchmark_report(yaml.safe_load(out.read_text())).scenario.load.standardized
    assert str(out) in capsys.readouterr().out
