import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refserver.sampling import Sampling, distribution, draw, top_log_probs
from scipy.stats import chisquare

LOGITS = np.log(np.array([0.05, 0.4, 0.1, 0.3, 0.15], np.float32))


def kept(**settings):
    return set(distribution(LOGITS, Sampling(**settings))[0].tolist())


def test_temperature_zero_takes_the_largest_logit():
    assert draw(LOGITS, Sampling(temperature=0.0), np.random.default_rng(0)) == 1


@pytest.mark.parametrize("k", [1, 2, 3, 5, 9])
def test_top_k_keeps_the_k_heaviest_tokens(k):
    assert kept(top_k=k) == set([1, 3, 4, 2, 0][:k])


@pytest.mark.parametrize(("p", "tokens"), [(0.3, {1}), (0.5, {1, 3}), (0.8, {1, 3, 4})])
def test_top_p_keeps_the_heaviest_tokens_until_their_mass_reaches_p(p, tokens):
    assert kept(top_p=p) == tokens


def test_min_p_keeps_tokens_above_a_share_of_the_heaviest():
    assert kept(min_p=0.3) == {1, 3, 4}


def test_a_token_must_pass_all_filters():
    assert kept(top_k=3, top_p=0.5, min_p=0.1) == {1, 3}


def test_a_lower_temperature_sharpens_the_distribution():
    _, weights = distribution(LOGITS, Sampling(temperature=0.5))
    expected = np.exp(LOGITS.astype(float)) ** 2
    assert np.allclose(weights / weights.sum(), expected / expected.sum())


def test_draws_follow_the_distribution():
    rng = np.random.default_rng(11)
    settings = Sampling(temperature=1.0, top_k=4)
    drawn = [draw(LOGITS, settings, rng) for _ in range(4000)]
    tokens, weights = distribution(LOGITS, settings)
    expected = weights / weights.sum() * len(drawn)
    observed = [drawn.count(token) for token in tokens]
    assert chisquare(observed, expected).pvalue > 1e-3


@given(st.integers(1, 20), st.integers(0, 10_000))
def test_top_log_probs_are_the_first_k_of_a_full_sort(k, seed):
    logits = np.random.default_rng(seed).normal(0, 3, (3, 17)).astype(np.float32)
    values, tokens = top_log_probs(logits, k)
    full = logits - np.log(np.exp(logits.astype(float)).sum(1, keepdims=True))
    order = np.argsort(-logits, axis=1, kind="stable")[:, :k]
    assert np.array_equal(tokens, order)
    assert np.allclose(values, np.take_along_axis(full, order, 1), atol=1e-5)
