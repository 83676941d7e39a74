import numpy as np
import pytest
from plain_forward import target_forward
from refserver.model import Model
from refserver.tree import best_first
from tiny_model import FEATURE_LAYERS, byte_tokens, target_tensors

PROMPT = [70, 101, 33, 200, 150, 9]


@pytest.fixture(scope="module")
def weights():
    return target_tensors(len(byte_tokens()), seed=1)


@pytest.fixture
def model(tiny_loaded):
    return Model(tiny_loaded.target, 64, tuple(FEATURE_LAYERS))


def step(model, token):
    hidden, features = model.forward(np.array([token]), np.array([0]), None)
    model.cache.keep([0])
    return model.logits(hidden[0]), features


def test_a_prefill_equals_a_plain_float64_forward(model, weights):
    hidden, features = model.prefill(PROMPT)
    expected_logits, expected_features = target_forward(weights, PROMPT)
    assert np.allclose(model.logits(hidden), expected_logits, atol=1e-4)
    assert np.allclose(features, expected_features, atol=1e-4)


def test_steps_through_the_cache_equal_a_whole_forward(model, weights):
    model.prefill(PROMPT[:2])
    for token in PROMPT[2:]:
        logits, features = step(model, token)
    expected_logits, expected_features = target_forward(weights, PROMPT)
    assert np.allclose(logits, expected_logits[-1], atol=1e-4)
    assert np.allclose(features, expected_features[-1:], atol=1e-4)


def test_a_prefill_in_pieces_equals_one_at_once(model, tiny_loaded):
    whole = Model(tiny_loaded.target, 64)
    hidden, _ = whole.prefill(PROMPT)
    model.prefill(PROMPT[:4])
    pieces, _ = model.prefill(PROMPT[4:])
    assert np.allclose(pieces, hidden[4:], atol=1e-5)


@pytest.fixture
def tree():
    log_probs = [[-0.2, -1.0, -2.0], [-0.3, -0.9, -3.0], [-0.1, -2.0, -2.5]]
    tokens = [[10, 20, 30], [40, 50, 60], [70, 80, 90]]
    return best_first(5, log_probs, tokens, 9)


def branch(tree, node):
    """Nodes from the root down to `node`."""
    path = [node]
    while path[-1]:
        path.append(tree.parents[path[-1]])
    return path[::-1]


def test_each_node_of_a_tree_sees_its_own_branch_alone(model, weights, tree):
    model.prefill(PROMPT)
    hidden, features = model.forward(np.array(tree.tokens), np.array(tree.depths), tree.mask())
    for node in range(tree.width):
        tokens = PROMPT + [tree.tokens[i] for i in branch(tree, node)]
        expected_logits, expected_features = target_forward(weights, tokens)
        assert np.allclose(model.logits(hidden[node]), expected_logits[-1], atol=1e-4)
        assert np.allclose(features[node], expected_features[-1], atol=1e-4)


def test_after_a_commit_only_the_accepted_branch_is_context(model, weights, tree):
    model.prefill(PROMPT)
    model.forward(np.array(tree.tokens), np.array(tree.depths), tree.mask())
    deepest = max(range(tree.width), key=lambda n: (tree.depths[n], n))
    path = branch(tree, deepest)
    assert path != list(range(len(path)))  # the path lies scattered over the tree
    model.cache.keep(path)
    logits, _ = step(model, 123)
    tokens = [*PROMPT, *(tree.tokens[i] for i in path), 123]
    assert np.allclose(logits, target_forward(weights, tokens)[0][-1], atol=1e-4)
