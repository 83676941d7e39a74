"""Which width DDTree verifies with, from measured costs and accept lengths. No torch needed."""

import pytest
from sglang_ddtree.policy import (
    PROBE_EVERY,
    PROBES_AT_START,
    WidthPolicy,
    chosen_costs,
    nearest_bs,
)

# ms by batch size and budget, near an H200's with a 5B target: trees pay at 1, the chain at 8
COSTS = {1: {0: 4.7, 16: 5.0, 64: 6.1}, 8: {0: 7.4, 16: 12.0, 64: 15.3}}


def learnt(accept, **changes):
    """A policy past its first probes that has seen these accept lengths."""
    policy = WidthPolicy((0, 16, 64), COSTS, **changes)
    policy.steps = PROBES_AT_START
    for _ in range(40):
        policy.learn(64, 100, [round(100 * a) for a in accept])
    return policy


def test_the_tree_runs_where_its_tokens_outweigh_its_cost():
    assert learnt([1.5, 2.1, 2.3]).choose(1) == 16


def test_the_chain_runs_where_the_tree_loses():
    assert learnt([1.5, 2.1, 2.3]).choose(8) == 0


def test_a_drafter_whose_siblings_never_hit_gets_the_chain():
    assert learnt([2.0, 2.0, 2.0]).choose(1) == 0


def test_the_widest_runs_first_and_then_now_and_then():
    policy = WidthPolicy((0, 16, 64), COSTS)
    assert [policy.choose(1) for _ in range(PROBES_AT_START)] == [64] * PROBES_AT_START
    policy.learn(64, 100, [300, 300, 300])
    later = [policy.choose(1) for _ in range(PROBE_EVERY)]
    assert later.count(64) == 1 and later.count(0) == PROBE_EVERY - 1


def test_a_verify_teaches_nothing_about_wider_trees():
    policy = learnt([1.5, 2.1, 2.3])
    before = policy.accept[64]
    policy.learn(16, 100, [100, 100, 100])
    assert policy.accept[64] == before and policy.accept[16] < 2.1


def test_a_choice_is_held_against_a_gain_within_noise():
    policy = learnt([1.5, 2.1, 2.3])
    assert policy.choose(1) == 16
    policy.accept[64] = 2.1 * 6.1 / 5.0 * 1.005
    assert policy.choose(1) == 16
    policy.accept[64] = 2.1 * 6.1 / 5.0 * 1.02
    assert policy.choose(1) == 64


def test_no_requests_teach_nothing():
    policy = WidthPolicy((0, 16, 64), COSTS)
    policy.learn(64, 0, [0, 0, 0])
    assert policy.accept == {}


@pytest.mark.parametrize("bs, stands", [(1, 1), (2, 8), (8, 8), (9, 8)])
def test_a_batch_costs_what_the_next_captured_size_costs(bs, stands):
    assert nearest_bs(COSTS, bs) == stands


def test_costs_by_budget_come_from_the_width_that_each_runs_on():
    table = chosen_costs((0, 16), {0: 16, 16: 17}, {1: {16: 4.0, 17: 5.0}, 2: {17: 6.0}})
    assert table == {1: {0: 4.0, 16: 5.0}}


def test_a_table_without_the_widths_is_refused():
    with pytest.raises(ValueError, match="expected figures for the widths"):
        chosen_costs((0, 16), {0: 16, 16: 17}, {1: {33: 1.0}})
