import numpy as np
import pytest
from plain_forward import drafter_forward
from refserver.drafter import Drafter
from tiny_model import BLOCK, FEATURE_LAYERS, HIDDEN, drafter_tensors


@pytest.fixture
def features():
    return np.random.default_rng(3).normal(size=(7, len(FEATURE_LAYERS) * HIDDEN)).astype("f4")


@pytest.fixture
def expected(tiny_loaded, features):
    """The plain implementation's proposal behind token 44."""
    embedding = tiny_loaded.target.embedding
    return drafter_forward(drafter_tensors(seed=2), embedding, features, 44, BLOCK)


def make(loaded):
    return Drafter(loaded.drafter, loaded.target, 64)


def test_a_proposal_equals_a_plain_float64_forward(tiny_loaded, features, expected):
    drafter = make(tiny_loaded)
    drafter.extend(features)
    assert np.allclose(drafter.propose(44), expected, atol=1e-4)


def test_a_context_extended_bit_by_bit_proposes_the_same(tiny_loaded, features, expected):
    drafter = make(tiny_loaded)
    for start, end in ((0, 3), (3, 4), (4, 7)):
        drafter.extend(features[start:end])
        drafter.propose(9)  # a proposal leaves nothing behind
    assert np.allclose(drafter.propose(44), expected, atol=1e-4)
