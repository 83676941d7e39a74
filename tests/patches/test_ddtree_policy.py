"""Which width DDTree verifies with, from measured costs and accept lengths. No torch needed."""

import random

import pytest
from sglang_ddtree.policy import (
    FIRST_PROBES,
    LEAST_MEMORY,
    MEMORY,
    PROBE_SHARE,
    WidthPolicy,
    chosen_costs,
    nearest_bs,
)

# ms by batch size and budget, near an H200's with a 5B target: trees pay at 1, the chain at 8
COSTS = {1: {0: 4.7, 16: 5.0, 64: 6.1}, 8: {0: 7.4, 16: 12.0, 64: 15.3}}


def learnt(accept):
    """A policy past its first probes that has seen these accept lengths."""
    policy = WidthPolicy((0, 16, 64), COSTS)
    policy.learn(64, 400, [round(400 * a) for a in accept])
    return policy


def test_the_tree_runs_where_its_tokens_outweigh_its_cost():
    assert learnt([1.5, 2.1, 2.3]).choose(1) == 16


def test_the_chain_runs_where_the_tree_loses():
    assert learnt([1.5, 2.1, 2.3]).choose(8) == 0


def test_a_drafter_whose_siblings_never_hit_gets_the_chain():
    assert learnt([2.0, 2.0, 2.0]).choose(1) == 0


def test_the_widest_runs_until_enough_of_its_requests_are_counted():
    policy = WidthPolicy((0, 16, 64), COSTS)
    assert policy.choose(8) == 64
    policy.learn(64, FIRST_PROBES - 1, [2 * (FIRST_PROBES - 1)] * 3)
    assert policy.choose(8) == 64
    policy.learn(64, 1, [2] * 3)
    assert policy.choose(8) == 0


@pytest.mark.parametrize("bs", [1, 8])
def test_later_probes_cost_their_share_of_the_time(bs):
    policy = learnt([1.8, 2.1, 2.3])
    row, accept = COSTS[bs], policy.accept
    best = policy.choose(bs)
    ran = [policy.choose(bs) for _ in range(4000)]
    assert set(ran) == {best, 64}
    tokens, ms = sum(accept[budget] for budget in ran), sum(row[budget] for budget in ran)
    lost = 1 - tokens / ms / (accept[best] / row[best])
    assert 0.8 * PROBE_SHARE < lost <= PROBE_SHARE


def test_a_step_of_any_width_tells_of_all_by_the_known_differences():
    policy = learnt([1.5, 2.1, 2.3])
    for _ in range(40):
        policy.learn(16, MEMORY, [MEMORY, 3 * MEMORY, 0])
    assert policy.accept == pytest.approx({0: 2.4, 16: 3.0, 64: 3.2})


def test_a_few_probes_renew_what_no_other_step_tells():
    policy = learnt([1.5, 2.1, 2.3])
    policy.learn(16, 10**4, [15000, 21000, 0])
    policy.learn(64, LEAST_MEMORY, [1.5 * LEAST_MEMORY, 2.1 * LEAST_MEMORY, 2.7 * LEAST_MEMORY])
    assert policy.accept == pytest.approx({0: 1.5, 16: 2.1, 64: 2.5}, rel=0.01)


def test_a_tree_that_cuts_the_chain_does_not_teach_how_long_that_is():
    policy = learnt([4.0, 3.0, 3.5])
    policy.learn(16, 400, [1200, 1200, 0])
    assert policy.accept == pytest.approx({0: 4.0, 16: 3.0, 64: 3.5})


def test_the_chain_emits_a_token_at_least():
    policy = learnt([1.0, 5.0, 5.0])
    policy.learn(16, 10**6, [10**6, 10**6, 0])
    assert policy.accept[0] == 1.0


def test_requests_weigh_the_same_in_any_batch():
    rng = random.Random(1)
    steps = [[rng.randrange(1, 4) + wider for wider in (0, 1, 1)] for _ in range(MEMORY)]
    one, eight = (WidthPolicy((0, 16, 64), COSTS) for _ in range(2))
    for step in steps:
        one.learn(64, 1, step)
    for start in range(0, MEMORY, 8):
        eight.learn(64, 8, [sum(tokens) for tokens in zip(*steps[start : start + 8], strict=True)])
    assert one.accept == pytest.approx(eight.accept, rel=0.01)


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


# -- a server over thousands of steps, with an H200's costs ----------------------------------

CHOICES = (0, 7, 15, 31)
H200 = {1: {0: 3.82, 7: 3.715, 15: 3.82, 31: 4.015}, 8: {0: 5.08, 7: 4.497, 15: 5.08, 31: 6.64}}
COUNTS_COME_EVERY = 16  # steps, and as many later: accept_counts.py

# Mean tokens of a chain step, the depth to which each tree holds the chain, and what each tree's
# siblings add to the one before it. Chat: the fp32 reference over an engine's texts.
DRAFTERS = {
    "chat": (1.79, (8, 16, 16), (0.36, 0.15, 0.17)),
    "few siblings hit": (1.77, (8, 16, 16), (0.33, 0.03, 0.03)),
    "many siblings hit": (1.7, (8, 16, 16), (0.36, 0.32, 0.34)),
    "no sibling hits": (4.5, (4, 5, 8), (0.0, 0.0, 0.0)),
}
BEST = {  # at batch sizes 1 and 8
    "chat": (31, 7),
    "few siblings hit": (7, 7),
    "many siblings hit": (31, 15),
    "no sibling hits": (0, 0),
}


def texts(drafter, rng):
    """Steps of text after text, easier and harder ones: [chain, *trees] emitted."""
    mean, depths, gains = DRAFTERS[drafter]
    while True:
        chain_ease, *ease = (rng.uniform(0.5, 1.5) for _ in range(1 + len(depths)))
        longer = (mean - 1) * chain_ease
        for _ in range(rng.randrange(20, 120)):
            chain, beside, step = 1, 0, []
            while chain < 16 and rng.random() < longer / (1 + longer):
                chain += 1
            for depth, gain, easy in zip(depths, gains, ease, strict=True):
                beside += rng.choice((1, 2)) * (rng.random() < gain * easy / 1.5)
                step.append(min(16, min(chain, depth) + beside))
            yield [chain, *step]


def counted(step, at):
    """What the accept kernel counts of a step when CHOICES[at] ran: no more than that emitted."""
    return [min(tokens, step[at]) for tokens in step]


def served(bs, phases, seed):
    """(tokens per ms with the policy, with each fixed choice) over `phases`: (drafter, steps).

    All of them meet the same draws.
    """
    rng = random.Random(seed)
    policy = WidthPolicy(CHOICES, H200)
    nothing = {budget: [0] * (1 + len(CHOICES)) for budget in CHOICES}
    rows, copied = nothing, nothing
    tokens, ms, steps, fixed = 0, 0.0, 0, [0] * len(CHOICES)
    for drafter, length in phases:
        requests = [texts(drafter, rng) for _ in range(bs)]
        for _ in range(length):
            budget = policy.choose(bs)
            at = CHOICES.index(budget)
            drawn = [next(request) for request in requests]
            tokens += sum(step[at] for step in drawn)
            ms += H200[bs][budget]
            steps += 1
            fixed = [sum(column) for column in zip(fixed, *drawn, strict=True)]
            new = [(1, *counted(step, at)) for step in drawn]
            rows = {
                **rows,
                budget: [sum(column) for column in zip(rows[budget], *new, strict=True)],
            }
            if steps % COUNTS_COME_EVERY == 0:
                for ran, (count, *accepted) in copied.items():
                    policy.learn(ran, count, accepted)
                rows, copied = nothing, rows
    speeds = {c: total / H200[bs][c] / steps for c, total in zip(CHOICES, fixed, strict=True)}
    return tokens / ms, speeds


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bs, steps", [(1, 4000), (8, 2000)])
@pytest.mark.parametrize("drafter", DRAFTERS)
def test_choosing_is_near_the_best_fixed_choice(drafter, bs, steps, seed):
    chosen, fixed = served(bs, [(drafter, steps)], seed)
    assert max(fixed, key=fixed.__getitem__) == BEST[drafter][bs == 8]
    assert chosen > 0.975 * max(fixed.values())


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("bs, steps, least", [(1, 2000, 1.0), (8, 1000, 1.0)])
@pytest.mark.parametrize(
    "order",
    [
        ("no sibling hits", "few siblings hit", "chat", "many siblings hit"),
        ("few siblings hit", "many siblings hit", "no sibling hits", "chat"),
    ],
)
def test_choosing_follows_texts_that_change(order, bs, steps, least, seed):
    """At batch 1 beyond any fixed choice; at 8 probes are dear, so rare, and it takes longer."""
    chosen, fixed = served(bs, [(drafter, steps) for drafter in order], seed)
    assert chosen > least * max(fixed.values())
