"""The gate: what counts as worse than the stored result of the same arm."""

import json
import math

import numpy as np
import pytest
from made_results import changed, made_result
from scipy import stats

from operations.gate import judge, stored_before, unpaired_ratio
from operations.results import parse_result

AR = [100.0, 104.0, 96.0, 102.0, 98.0]


def result(scale=1.0, arm="ddtree-32", fingerprint="a" * 64, rounds=5, **fields):
    rates = {"ar": {1: AR[:rounds]}, arm: {1: [1.5 * scale * r for r in AR[:rounds]]}}
    failed, prompts = fields.pop("failed", ()), fields.pop("prompts", 4)
    document = made_result(rates, failed=failed, prompts=prompts)
    return parse_result(changed(document, fingerprint=fingerprint, **fields))


def kinds(decision):
    return [finding.kind for finding in decision.findings]


def test_the_same_speed_passes():
    decision = judge(result(), result())
    assert decision.passed
    assert decision.compared == 2
    assert "no slower" in decision.lines()[0]


def test_an_arm_slower_by_more_than_the_interval_is_a_finding():
    decision = judge(result(0.8), result())
    assert kinds(decision) == ["slower"]
    assert not decision.passed
    assert "120 tokens/s, before 150; ratio 0.7" in decision.lines()[0]


def test_a_loss_within_the_noise_passes():
    assert judge(result(0.98), result()).passed


def test_a_faster_release_passes():
    assert judge(result(1.3), result()).passed


def test_wrong_output_fails_whatever_the_speed():
    decision = judge(result(3.0, failed=["ddtree-32"]), result())
    assert kinds(decision) == ["incorrect"]
    assert not decision.passed


def test_wrong_output_fails_a_first_release_too():
    assert kinds(judge(result(failed=["ddtree-32"]), None)) == ["incorrect"]


def test_a_first_release_that_is_right_passes():
    decision = judge(result(), None)
    assert decision.passed
    assert "nothing to be compared with" in decision.lines()[0]


def test_only_the_named_arms_are_judged():
    assert judge(result(0.5), result(), arms=["ar"]).passed


def test_an_arm_that_could_not_be_measured_is_a_finding():
    decision = judge(result(arm="dflash"), result(), arms=["ddtree-32"])
    assert kinds(decision) == ["not measured"]
    assert not decision.passed


def test_failed_requests_are_a_finding():
    document = made_result({"ar": {1: AR}})
    document["cells"][1]["requests"][0]["error"] = "made"
    assert kinds(judge(parse_result(document), None)) == ["errors"]


def test_a_lower_accept_length_is_told_but_does_not_roll_back():
    document = made_result({"ar": {1: AR}, "ddtree-32": {1: AR}})
    for cell in document["cells"]:
        for record in cell["requests"] if cell["arm"] == "ddtree-32" else []:
            record["verify_steps"] += 2
    decision = judge(
        parse_result(document), parse_result(made_result({"ar": {1: AR}, "ddtree-32": {1: AR}}))
    )
    assert kinds(decision) == ["accept length"]
    assert decision.passed


def test_two_rounds_are_not_compared_and_the_line_says_so():
    decision = judge(result(0.5, rounds=2), result(rounds=2))
    assert decision.passed
    assert decision.compared == 0
    assert "fewer than 3 rounds" in decision.lines()[0]


def test_rounds_of_other_many_requests_are_not_compared():
    """Two waves a round are faster than one by themselves, and would hide a loss."""
    decision = judge(result(0.8, prompts=8), result())
    assert decision.passed
    assert decision.compared == 0
    assert "with as many requests" in decision.lines()[0]


def test_interval_is_welchs_on_the_logs():
    new, old = [90.0, 94.0, 99.0], [100.0, 101.0, 99.0, 100.5]
    test = stats.ttest_ind(np.log(new), np.log(old), equal_var=False).confidence_interval(0.95)
    assert unpaired_ratio(new, old) == pytest.approx((math.exp(test.low), math.exp(test.high)))


def test_the_result_before_is_the_newest_earlier_one_of_the_same_host(tmp_path):
    made = {"1": "10:00", "2": "11:00", "3": "13:00"}
    for name, time in made.items():
        document = changed(
            made_result({"ar": {1: AR}}), fingerprint=name * 64, created=f"2026-11-30T{time}:00Z"
        )
        folder = tmp_path / (name * 12)
        folder.mkdir()
        (folder / "made-host.json").write_text(json.dumps(document))
        (folder / "other.json").write_text(json.dumps(changed(document, host="other")))
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "made-host.json").write_text('{"schema": "ddtree-bench/0"}')
    before = stored_before(result(fingerprint="n" * 64), tmp_path)  # made at 12:00
    assert before.fingerprint == "2" * 64
    assert before.host == "made-host"


def test_without_an_earlier_result_there_is_none(tmp_path):
    assert stored_before(result(), tmp_path) is None
