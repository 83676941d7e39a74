"""What the report page says, without a browser."""

import functools
import json
import re

import pytest
from made_results import changed, made_gpu_machine, made_result, two_groups

from operations.report import main, render_report
from operations.results import parse_result

AR = [10.0, 10.4, 9.6]
RATES = {
    "ar": {1: AR},
    "dflash": {1: [0.8 * r for r in AR]},
    "ddtree-8": {1: [1.5 * r for r in AR]},
}


def rendered(*documents):
    return rendered_once(json.dumps(documents))


@functools.cache
def rendered_once(text):
    return render_report([parse_result(document) for document in json.loads(text)])


def text_of(page):
    return re.sub(
        r"\s+", " ", re.sub(r"<[^>]+>", " ", re.sub(r"<style.*?</style>", "", page, flags=re.S))
    )


def test_same_result_gives_the_same_bytes():
    again = render_report([parse_result(made_result(RATES))])
    assert again == rendered(made_result(RATES))


def test_page_of_two_groups_stays_under_a_megabyte():
    assert len(rendered(*two_groups()).encode()) < 1_000_000


def test_page_names_no_address_but_xml_namespaces():
    found = set(re.findall(r"https?://[^\s\"'<]+", rendered(made_result(RATES))))
    assert found <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}


def test_figures_carry_no_fixed_colour():
    figures = "".join(re.findall(r"<svg.*?</svg>", rendered(*two_groups()), flags=re.S))
    assert len(figures) > 1000
    assert re.findall(r"#[0-9a-fA-F]{6}\b", figures) == []


def test_best_arm_and_its_interval_stand_in_the_tiles():
    assert "faster than ar 1.50x ddtree-8, concurrency 1; 95 % interval 1.50–1.50" in text_of(
        rendered(made_result(RATES))
    )


def test_without_a_winner_the_tile_says_why():
    slow = {"ar": {1: AR}, "dflash": {1: [0.8 * r for r in AR]}}
    assert "none no arm beats ar at concurrency 1" in text_of(rendered(made_result(slow)))
    few = {"ar": {1: AR[:2]}, "dflash": {1: AR[:2]}}
    assert "none too few repeats to decide" in text_of(rendered(made_result(few)))
    page = text_of(rendered(made_result(RATES, failed=["ddtree-8"])))
    assert "none the faster arms did not pass their correctness gate" in page


def test_no_arm_is_marked_best_without_a_passed_gate():
    assert 'class="word best' in rendered(made_result(RATES))
    assert 'class="word best' not in rendered(made_result(RATES, failed=["ddtree-8"]))


@pytest.mark.parametrize(
    "said",
    [
        "pp8-dflash made: DFLASH refuses pipeline parallelism",  # what could not run
        "parallelism TP8 made: all NV18",  # plan and reason
        "engine made 0.0",  # versions
        "28 pairs NODE",  # topology
        "8 x NVIDIA Made 6000, 96 GiB",
        "OMP_NUM_THREADS=8 engine --model-path /made/target",  # command line
    ],
)
def test_page_says(said):
    document = made_result(RATES, engine="sglang", machine=made_gpu_machine("NODE"))
    assert said in text_of(rendered(document))


def test_topology_matrix_has_a_coloured_cell_for_each_ordered_pair():
    document = made_result(RATES, engine="sglang", machine=made_gpu_machine("NV18"))
    assert rendered(document).count('<td class="nvlink">NV18</td>') == 56


def test_host_without_gpus_has_no_matrix():
    assert 'class="matrix"' not in rendered(made_result(RATES))


def test_step_split_is_drawn_when_the_engine_reports_one():
    split = {"ddtree-8": {"draft": 0.002, "tree": 0.001, "verify": 0.02}}
    page = text_of(rendered(changed(made_result(RATES), step_split=split)))
    assert "Where a step&#39;s time goes" in page
    assert "reports no split" not in page
    assert "reports no split" in text_of(rendered(made_result(RATES)))


def test_cross_check_by_a_second_client_is_shown():
    check = {"client": "made second client", "agrees": True}
    page = text_of(rendered(changed(made_result(RATES), cross_check=check)))
    assert "client made second client" in page


def test_hostile_text_is_escaped():
    page = rendered(changed(made_result(RATES), host="<script>alert(1)</script>"))
    assert "<script>alert" not in page


def test_result_without_a_finished_cell_is_a_page_that_says_so():
    document = changed(made_result(RATES), cells=[], complete=False)
    page = text_of(rendered(document))
    assert "nothing measured" in page
    assert "cut short" in page


def test_command_line_writes_the_page_and_prints_the_table(tmp_path, capsys):
    source, out = tmp_path / "a.json", tmp_path / "deep" / "report.html"
    source.write_text(json.dumps(made_result(RATES)))
    assert main([str(source), "--out", str(out)]) == 0
    assert out.read_text().startswith("<!DOCTYPE html>")
    assert "ddtree-8" in capsys.readouterr().out


def test_command_line_refuses_a_bad_file_in_one_line(tmp_path, capsys):
    source, out = tmp_path / "a.json", tmp_path / "report.html"
    source.write_text("{}")
    assert main([str(source), "--out", str(out)]) == 1
    assert capsys.readouterr().err.count("\n") == 1
    assert not out.exists()


def test_probes_of_the_host_are_summed_up():
    peer = [
        {"from": a, "to": b, "access": True, "gb_s": 100.0 + a, "right": True}
        for a in (0, 1)
        for b in (0, 1)
        if a != b
    ]
    probes = {
        "results": {"peer": peer, "all_reduce": {"ranks": 2, "bus_gb_s": 300.8}},
        "findings": [{"id": "made", "evidence": "GPU 1: made to be slow", "remedy": "none"}],
    }
    page = text_of(rendered(changed(made_result(RATES), probes=probes)))
    assert "peer gb s 100 to 101 over 2 pairs" in page
    assert "all reduce bus gb s 300.8" in page
    assert "finding GPU 1: made to be slow" in page


def test_the_time_of_a_measurement_is_for_people():
    document = changed(made_result(RATES), created="2026-11-30T20:04:58+01:00")
    assert "measured 2026-11-30 19:04 UTC" in text_of(rendered(document))


def test_a_version_that_is_empty_is_left_out():
    document = made_result(RATES)
    document["versions"] = {"target": "0.1.2", "drafter": "", "engine": "9.9"}
    page = text_of(rendered(document))
    assert "Versions target 0.1.2 engine 9.9" in page
