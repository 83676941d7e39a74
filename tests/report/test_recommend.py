"""The recommendation for a load, and the inventory file that adopts it."""

import json

import pytest
from made_results import made_result, two_groups

from operations import recommend as rec
from operations.recommend import Load, RecommendError, adopt, recommend
from operations.results import parse_result

AR = [100.0, 104.0, 96.0]


def times(factor):
    return [factor * rate for rate in AR]


def result(**kwargs):
    rates = {
        "ar": {1: AR, 8: times(6)},
        "dflash": {1: times(1.3), 8: times(6.6)},
        "ddtree-32": {1: times(1.8), 8: times(4)},
    }
    return parse_result(made_result(rates, **kwargs))


def refused(found):
    return {candidate.arm: candidate.refused for candidate in found.candidates}


def test_the_fastest_right_arm_at_that_concurrency_is_recommended():
    assert recommend(result(), Load(1)).arm == "ddtree-32"
    assert recommend(result(), Load(8)).arm == "dflash"


def test_a_load_that_was_not_measured_takes_the_next_higher_and_says_so():
    found = recommend(result(), Load(3))
    assert (found.arm, found.concurrency) == ("dflash", 8)
    assert "(asked for: 3)" in found.reason


def test_a_load_above_all_measurements_is_refused():
    with pytest.raises(RecommendError, match="concurrency 9 or more, found only 1, 8"):
        recommend(result(), Load(9))


def test_a_wrong_arm_is_never_recommended():
    found = recommend(result(failed=["ddtree-32"]), Load(1))
    assert found.arm == "dflash"
    assert refused(found)["ddtree-32"] == "its output is wrong"


def test_an_unjudged_arm_is_never_recommended():
    assert recommend(result(unjudged=["ddtree-32"]), Load(1)).arm == "dflash"


def test_the_baseline_is_recommended_when_nothing_is_faster():
    rates = {"ar": {1: AR}, "dflash": {1: times(0.9)}, "ddtree-8": {1: [140.0, 80.0, 99.0]}}
    found = recommend(parse_result(made_result(rates)), Load(1))
    assert found.arm == "ar"
    assert refused(found)["dflash"] == "against the baseline: slower"
    assert refused(found)["ddtree-8"] == "against the baseline: no decision"


def test_undecided_arms_are_a_reason_to_measure_more_not_to_adopt_the_baseline():
    rates = {"ar": {1: AR[:2]}, "dflash": {1: times(3)[:2]}}
    with pytest.raises(RecommendError, match="at least 3 rounds to decide, found fewer of dflash"):
        recommend(parse_result(made_result(rates)), Load(1))


def test_a_latency_limit_that_an_arm_misses_excludes_it():
    document = made_result({"ar": {1: AR}, "dflash": {1: times(2)}})
    for cell in document["cells"]:
        for record in cell["requests"] if cell["arm"] == "dflash" else []:
            record["first_token_s"] = record["start_s"] + 0.06
    found = recommend(parse_result(document), Load(1, max_ttft_s=0.055))
    assert found.arm == "ar"
    assert refused(found)["dflash"] == "TTFT p90 60.0 ms is over 55.0 ms"


def test_no_arm_within_the_limit_is_refused_in_one_line():
    with pytest.raises(RecommendError, match=r"found none .ar: TTFT p90 50.0 ms is over") as error:
        recommend(result(), Load(1, max_ttft_s=0.001))
    assert "\n" not in str(error.value)


def test_an_arm_must_be_faster_over_all_prompt_sets_together():
    document = made_result({"ar": {1: AR}, "dflash": {1: times(1.2)}})
    other = made_result({"ar": {1: AR}, "dflash": {1: times(0.5)}})
    for cell in other["cells"]:
        cell["prompt_set"] = "code"
    document["cells"] += other["cells"]
    assert recommend(parse_result(document), Load(1)).arm == "ar"


def test_adopting_writes_an_inventory_module_that_says_where_it_comes_from():
    made = result()
    adoption = adopt(made, recommend(made, Load(1, max_ttft_s=0.5)), None)
    namespace = {}
    exec(compile(adoption.new, "made_tuned.py", "exec"), namespace)
    assert namespace["TUNED"] == {"arm": "ddtree-32"}
    assert adoption.path.as_posix().endswith("/inventories/made_tuned.py")
    assert "TTFT p90 at most 500 ms" in adoption.new
    assert "result 0123456789ab of made-host" in adoption.new
    assert "+TUNED = {" in adoption.diff()


def test_settings_of_another_hand_stay():
    made = result()
    old = 'TUNED = {"page_size": 64, "arm": "ar", "engine_args": ["--x"]}\n'
    new = adopt(made, recommend(made, Load(1)), old).new
    assert rec.tuned(new) == {"page_size": 64, "arm": "ddtree-32", "engine_args": ["--x"]}


def test_adopting_twice_changes_nothing():
    made = result()
    first = adopt(made, recommend(made, Load(1)), None)
    again = adopt(made, recommend(made, Load(1)), first.new)
    assert not again.changes
    assert again.diff() == ""


def test_a_tuned_file_that_computes_is_refused():
    made = result()
    with pytest.raises(RecommendError, match=r"expected TUNED = .* with plain values"):
        adopt(made, recommend(made, Load(1)), "import os\nTUNED = {'arm': os.environ['ARM']}\n")


def test_command_line_shows_the_diff_and_writes_only_when_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("operations.tuned.INVENTORIES", tmp_path / "inventories")
    (tmp_path / "inventories").mkdir()
    source = tmp_path / "a.json"
    source.write_text(json.dumps(two_groups()[1]))
    target = tmp_path / "inventories" / "made-pcie_tuned.py"
    assert rec.main([str(source), "--concurrency", "4"]) == 0
    assert '+    "arm": "ddtree-8",' in capsys.readouterr().out
    assert not target.exists()
    assert rec.main([str(source), "--concurrency", "4", "--write"]) == 0
    assert rec.tuned(target.read_text()) == {"arm": "ddtree-8"}
    capsys.readouterr()
    assert rec.main([str(source), "--concurrency", "4"]) == 0
    assert "says so already" in capsys.readouterr().out


def test_command_line_refuses_in_one_line(tmp_path, capsys):
    source = tmp_path / "a.json"
    source.write_text(json.dumps(two_groups()[1]))
    assert rec.main([str(source), "--concurrency", "999"]) == 1
    assert capsys.readouterr().err.count("\n") == 1
