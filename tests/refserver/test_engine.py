import itertools

import numpy as np
import pytest
from refserver.config import Speculation
from refserver.engine import Engine, Loaded, load
from refserver.errors import BadRequestError, RefserverError
from refserver.model import Model
from refserver.output import Request
from refserver.sampling import Sampling, distribution
from scipy.stats import chisquare
from tiny_model import CONTEXT, write_pair

PROMPT = (70, 101, 33, 200)


def plain(loaded, **options):
    return Engine(Loaded(loaded.target, loaded.tokenizer), **options)


def speculative(loaded, algorithm="DDTREE", width=9, **options):
    return Engine(loaded, Speculation(algorithm, "", width), **options)


def greedy(engine, tokens=60):
    return engine.generate(Request(PROMPT, tokens, ignore_eos=True))


@pytest.mark.parametrize(
    ("algorithm", "width", "options"),
    [
        ("DFLASH", 5, {}),
        ("DFLASH", 3, {}),
        ("DDTREE", 2, {}),
        ("DDTREE", 9, {}),
        ("DDTREE", 65, {}),
        ("DDTREE", 9, {"spine_first": True}),
    ],
)
def test_greedy_output_is_that_of_plain_decoding(tiny_loaded, algorithm, width, options):
    expected = greedy(plain(tiny_loaded)).output_ids
    assert greedy(speculative(tiny_loaded, algorithm, width, **options)).output_ids == expected


def test_a_wide_tree_accepts_drafts_of_a_random_drafter(tiny_loaded):
    assert greedy(speculative(tiny_loaded, width=257)).accepted > 0


def test_a_request_leaves_nothing_behind_for_the_next(tiny_loaded):
    engine = speculative(tiny_loaded)
    first = greedy(engine)
    engine.generate(Request((9, 8, 7), 20))
    assert greedy(engine) == first


def test_a_long_prompt_is_run_in_pieces(tiny_loaded, monkeypatch):
    whole = greedy(speculative(tiny_loaded))
    monkeypatch.setattr("refserver.engine.PREFILL_CHUNK", 3)
    assert greedy(speculative(tiny_loaded)) == whole


@pytest.fixture(scope="module")
def few_tokens(tmp_path_factory):
    """A pair with a vocabulary of eight, where even a random drafter is often right."""
    tokens = ["<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|mask|>", "a", "b", "c", "d"]
    pair = write_pair(tmp_path_factory.mktemp("few"), tokens, seed=5)
    return load(pair.target, Speculation("DDTREE", str(pair.drafter), 9), lambda line: None)


def sequence_odds(loaded, prompt, sampling, length):
    """Exact probability of each output of `length` tokens, by enumeration of the target."""
    vocabulary, odds = range(loaded.target.config.vocab_size), {}
    for output in itertools.product(vocabulary, repeat=length):
        odds[output] = 1.0
    for depth in range(length):
        for prefix in itertools.product(vocabulary, repeat=depth):
            model = Model(loaded.target, 32)
            hidden, _ = model.prefill(prompt + prefix)
            tokens, weights = distribution(model.logits(hidden[-1]), sampling)
            step = dict(zip(tokens.tolist(), weights / weights.sum(), strict=True))
            for output in odds:
                if output[:depth] == prefix:
                    odds[output] *= step.get(output[depth], 0.0)
    return odds


@pytest.mark.parametrize(("algorithm", "width"), [("DFLASH", 4), ("DDTREE", 9), ("DDTREE", 33)])
@pytest.mark.parametrize("sampling", [Sampling(1.0), Sampling(0.8, top_k=5, top_p=0.9)])
def test_sampled_output_is_distributed_as_the_target_alone(few_tokens, algorithm, width, sampling):
    prompt, samples = (5, 4, 7), 1200
    odds = sequence_odds(few_tokens, prompt, sampling, length=3)
    engine = speculative(few_tokens, algorithm, width, seed=3)
    counts, accepted = dict.fromkeys(odds, 0), 0
    for _ in range(samples):
        update = engine.generate(Request(prompt, 3, sampling, ignore_eos=True))
        counts[update.output_ids] += 1
        accepted += update.accepted
    assert accepted > 50  # else the test would say little about drafts
    assert all(odds[output] > 0 for output, n in counts.items() if n)
    likely = [output for output in odds if odds[output] * samples >= 5]
    observed = [counts[output] for output in likely]
    expected = [odds[output] * samples for output in likely]
    observed.append(samples - sum(observed))
    expected.append(samples - sum(expected))
    if expected[-1] < 1e-6:
        observed.pop(), expected.pop()
    assert chisquare(observed, expected).pvalue > 1e-4


def test_the_same_seed_gives_the_same_output(tiny_loaded):
    engine = speculative(tiny_loaded)
    request = Request(PROMPT, 20, Sampling(1.0), ignore_eos=True, seed=5)
    assert engine.generate(request) == engine.generate(request)


def test_without_a_seed_two_requests_differ(tiny_loaded):
    engine = speculative(tiny_loaded)
    request = Request(PROMPT, 20, Sampling(1.0), ignore_eos=True)
    assert engine.generate(request).output_ids != engine.generate(request).output_ids


def test_updates_grow_step_by_step_and_the_last_has_the_end(tiny_loaded):
    updates = []
    speculative(tiny_loaded).generate(Request(PROMPT, 12, ignore_eos=True), updates.append)
    lengths = [len(update.output_ids) for update in updates]
    assert lengths == sorted(set(lengths))
    assert [bool(update.finish) for update in updates] == [False] * (len(updates) - 1) + [True]


def test_a_cancelled_request_ends_with_abort(tiny_loaded):
    calls = iter([False, False, False, True])
    update = speculative(tiny_loaded).generate(Request(PROMPT, 50), cancelled=lambda: next(calls))
    assert update.finish["type"] == "abort"
    assert 0 < len(update.output_ids) < 50


def test_a_request_cancelled_while_it_waits_gives_no_token(tiny_loaded):
    update = plain(tiny_loaded).generate(Request(PROMPT, 50), cancelled=lambda: True)
    assert (update.output_ids, update.finish["type"]) == ((), "abort")


def test_a_smaller_budget_at_run_time_proposes_fewer_drafts(tiny_loaded):
    engine = speculative(tiny_loaded)
    engine.set_budget(4)
    update = greedy(engine)
    assert update.proposed == 4 * update.verify_steps


def test_budget_zero_drafts_the_whole_chain(tiny_loaded):
    engine = speculative(tiny_loaded)
    engine.set_budget(0)
    update = greedy(engine)
    assert update.proposed == 4 * update.verify_steps  # block of 5


@pytest.mark.parametrize("budget", [-1, 9])
def test_a_budget_outside_the_server_s_is_refused(tiny_loaded, budget):
    with pytest.raises(BadRequestError, match=r"expected speculative_ddtree_budget in 0\.\.8"):
        speculative(tiny_loaded).set_budget(budget)


def test_a_dflash_engine_has_no_budget(tiny_loaded):
    with pytest.raises(BadRequestError, match="needs a server started with DDTREE"):
        speculative(tiny_loaded, "DFLASH", 5).set_budget(4)


def test_a_request_may_fill_the_context_to_the_last_token(tiny_loaded):
    update = speculative(tiny_loaded).generate(
        Request(PROMPT, CONTEXT - len(PROMPT), ignore_eos=True)
    )
    assert len(update.output_ids) == CONTEXT - len(PROMPT)


def test_a_request_beyond_the_context_is_refused(tiny_loaded):
    with pytest.raises(BadRequestError, match=r"at most 256 tokens of context, found 257 \(4 of"):
        plain(tiny_loaded).generate(Request(PROMPT, CONTEXT - len(PROMPT) + 1))


def test_an_unknown_token_id_is_refused(tiny_loaded):
    with pytest.raises(BadRequestError, match=r"expected token ids in 0\.\.259"):
        plain(tiny_loaded).generate(Request((1, 260), 4))


def test_a_context_beyond_the_target_s_is_refused(tiny_loaded):
    with pytest.raises(RefserverError, match=r"expected --context-length in 1\.\.256"):
        plain(tiny_loaded, context_length=257)


def test_log_probabilities_hold_no_nan_after_a_long_run(tiny_loaded):
    engine = speculative(tiny_loaded)
    greedy(engine, 200)
    assert np.isfinite(engine._drafter.propose(70)).all()
