"""Statistics against results whose truth was chosen (made_results)."""

import math

import numpy as np
import pytest
from made_results import changed, made_result
from scipy import stats

from operations.results import parse_result
from operations.statistics import (
    Verdict,
    acceptance,
    compare_rounds,
    quantiles,
    summarise,
    tokens_per_second,
)

AR = [100.0, 104.0, 96.0, 102.0, 98.0]


def only(document):
    (comparison,) = summarise(parse_result(document))
    return comparison


def arms(**rates):
    return {name.replace("_", "-"): {1: values} for name, values in rates.items()}


def test_exact_ratio_in_every_round_comes_out_as_that_ratio_with_a_closed_interval():
    comparison = only(made_result(arms(ar=AR, dflash=[1.25 * r for r in AR])))
    ratio = comparison.arm("dflash").ratio
    assert (ratio.median, ratio.low, ratio.high) == pytest.approx((1.25, 1.25, 1.25))
    assert ratio.rounds == 5
    assert ratio.verdict is Verdict.FASTER


def test_drift_common_to_both_arms_cancels_because_rounds_are_paired():
    drift = [100.0, 50.0, 25.0, 12.5, 6.25]
    assert compare_rounds([1.1 * r for r in drift], drift).verdict is Verdict.FASTER


def test_interval_is_students_t_on_the_log_ratios():
    ratios = [1.2, 1.1, 1.3, 1.15]
    low, high = stats.t.interval(0.95, 3, np.mean(np.log(ratios)), stats.sem(np.log(ratios)))
    ratio = compare_rounds(ratios, [1.0] * 4)
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(low), math.exp(high)))
    assert ratio.median == pytest.approx(math.sqrt(1.2 * 1.15))


def test_interval_covers_the_true_ratio_in_about_95_percent_of_made_experiments():
    rng = np.random.default_rng(6)
    covered = 0
    for _ in range(1000):
        noise = rng.normal(0, 0.03, size=(2, 5))
        ratio = compare_rounds(1.2 * np.exp(noise[0]), np.exp(noise[1]))
        covered += ratio.low <= 1.2 <= ratio.high
    assert 925 <= covered <= 975


def test_slower_arm_is_called_slower():
    comparison = only(made_result(arms(ar=AR, dflash=[0.8 * r for r in AR])))
    assert comparison.arm("dflash").ratio.verdict is Verdict.SLOWER
    assert comparison.winner is None


def test_interval_that_holds_one_is_no_decision():
    comparison = only(made_result(arms(ar=AR, dflash=AR[::-1])))
    assert comparison.arm("dflash").ratio.verdict is Verdict.NO_DECISION
    assert comparison.winner is None


def test_two_rounds_are_too_few_even_for_a_tenfold_speed():
    comparison = only(made_result(arms(ar=[100.0, 100.0], dflash=[1000.0, 1000.0])))
    ratio = comparison.arm("dflash").ratio
    assert ratio.verdict is Verdict.TOO_FEW
    assert ratio.median == pytest.approx(10)
    assert ratio.low is None
    assert comparison.winner is None


def test_rounds_that_only_one_arm_measured_do_not_count():
    comparison = only(made_result(arms(ar=AR[:3], dflash=[2 * r for r in AR])))
    assert comparison.arm("dflash").ratio.rounds == 3


def test_arm_without_a_measured_baseline_has_no_ratio():
    comparison = only(made_result(arms(dflash=AR)))
    assert comparison.arm("dflash").ratio.verdict is Verdict.NOT_MEASURED
    assert comparison.arm("dflash").ratio.median is None


def test_warmup_cells_do_not_count():
    comparison = only(made_result(arms(ar=AR)))
    assert comparison.arm("ar").round_tokens_s == pytest.approx(AR)  # the warm-up ran at 1 token/s


def test_winner_is_the_fastest_arm_that_passed_its_gate():
    rates = arms(ar=AR, dflash=[1.5 * r for r in AR], ddtree_8=[2 * r for r in AR])
    assert only(made_result(rates)).winner == "ddtree-8"
    assert only(made_result(rates, failed=["ddtree-8"])).winner == "dflash"


def test_arm_that_was_not_judged_never_wins():
    comparison = only(made_result(arms(ar=AR, dflash=[9 * r for r in AR]), unjudged=["dflash"]))
    assert comparison.arm("dflash").ratio.verdict is Verdict.FASTER
    assert comparison.arm("dflash").correct is None
    assert comparison.winner is None


def test_arm_with_a_failed_request_never_wins_and_the_error_is_counted():
    document = made_result(arms(ar=AR, dflash=[9 * r for r in AR]))
    broken = next(c for c in document["cells"] if c["arm"] == "dflash" and not c["warmup"])
    broken["requests"][0]["error"] = "made: connection reset"
    comparison = only(document)
    assert comparison.arm("dflash").errors == 1
    assert comparison.arm("dflash").requests == 20
    assert comparison.winner is None


def test_arm_that_the_rounds_cannot_tell_from_the_winner_is_named():
    noisy = [2.0 * a * j for a, j in zip(AR, (1.03, 0.98, 1.01, 0.97, 1.02), strict=True)]
    rates = arms(
        ar=AR, dflash=noisy, ddtree_8=[2.01 * r for r in AR], ddtree_32=[1.5 * r for r in AR]
    )
    comparison = only(made_result(rates))
    assert {comparison.winner, *comparison.level_with} == {"dflash", "ddtree-8"}


def test_accept_length_is_pooled_and_the_unweighted_mean_stands_beside_it():
    document = made_result(arms(ar=AR, dflash=AR))
    long = [c for c in document["cells"] if c["arm"] == "dflash" and not c["warmup"]]
    for cell in long:  # one request of 100 steps and 300 tokens among three of 8 and 12
        cell["requests"][0] |= {"completion_tokens": 300, "verify_steps": 100}
    accepted = only(document).arm("dflash").acceptance
    assert accepted.pooled == pytest.approx((300 + 3 * 12) / (100 + 3 * 8))
    assert accepted.unweighted == pytest.approx((3 + 3 * 1.5) / 4)
    assert (accepted.emitted, accepted.steps) == (5 * 336, 5 * 124)


def test_histogram_adds_up_over_requests_of_unequal_width():
    document = made_result(arms(dflash=AR, ddtree_32=AR))
    records = parse_result(document).cells
    chain, tree = records[1].requests[0], records[7].requests[0]
    assert acceptance([chain, tree]).histogram == (4 + 3, 4 + 3, 1, 1)


def test_histogram_explains_the_accept_length():
    accepted = only(made_result(arms(ar=AR, ddtree_32=AR))).arm("ddtree-32").acceptance
    emitted = sum((i + 1) * n for i, n in enumerate(accepted.histogram))
    assert emitted / sum(accepted.histogram) == pytest.approx(accepted.pooled) == 2.0


def test_arm_without_verify_steps_has_no_accept_length_rather_than_zero():
    assert only(made_result(arms(ar=AR))).arm("ar").acceptance is None


def test_latencies_come_out_as_made():
    row = only(made_result(arms(ar=[100.0] * 3))).arm("ar")  # 16 tokens in 0.16 s, first at 0.05 s
    assert (row.ttft.p50, row.ttft.p99) == pytest.approx((0.05, 0.05))
    assert row.e2e.p90 == pytest.approx(0.16)
    assert row.tpot.p50 == pytest.approx(0.11 / 15)
    assert row.user_tokens_s == pytest.approx(15 / 0.11)
    assert row.total_tokens_s == pytest.approx(100.0)


def test_a_decode_step_is_a_token_without_speculation_and_a_verify_step_with_it():
    comparison = only(made_result(arms(ar=[100.0] * 3, ddtree_32=[100.0] * 3)))
    assert comparison.arm("ar").step_s == pytest.approx(0.11 / 15)
    assert comparison.arm("ddtree-32").step_s == pytest.approx(0.11 / 8)


def test_inter_token_gap_shares_a_chunks_wait_among_its_tokens():
    row = only(made_result(arms(ddtree_32=[100.0] * 3))).arm("ddtree-32")
    pace = (0.16 - 0.05) / 7
    assert row.chunk_gap.p50 == pytest.approx(pace)
    assert row.inter_token.n == 3 * 4 * 15  # every token but the first
    assert row.inter_token.mean == pytest.approx(0.11 / 15)


def test_total_tokens_per_second_at_concurrency_counts_all_requests():
    cell = parse_result(made_result({"ar": {4: [400.0] * 3}})).cells[1]
    assert tokens_per_second(cell) == pytest.approx(400.0)
    assert cell.requests[0].end_s == pytest.approx(cell.wall_s)


def test_loads_are_compared_each_for_itself():
    fast_alone = {
        "ar": {1: AR, 8: AR},
        "dflash": {1: [2 * r for r in AR], 8: [0.5 * r for r in AR]},
    }
    alone, together = summarise(parse_result(made_result(fast_alone)))
    assert (alone.key.concurrency, alone.winner) == (1, "dflash")
    assert together.arm("dflash").ratio.verdict is Verdict.SLOWER


def test_percentiles_of_one_to_a_hundred():
    found = quantiles(range(1, 101))
    assert (found.p50, found.p90, found.p99, found.n) == pytest.approx((50.5, 90.1, 99.01, 100))


def test_no_samples_have_no_percentiles():
    assert quantiles([]) is None


def test_result_without_measured_cells_has_no_comparison():
    assert summarise(parse_result(changed(made_result(arms(ar=AR)), cells=[]))) == ()
