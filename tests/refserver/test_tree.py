import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from refserver.tree import Tree, best_first, chain, walk

levels = st.integers(1, 4).flatmap(
    lambda depth: st.integers(1, 4).flatmap(
        lambda ranks: st.lists(
            st.lists(
                st.sampled_from([-0.1, -0.5, -1.0, -1.5, -2.25, -3.0]),
                min_size=ranks,
                max_size=ranks,
            ).map(lambda row: sorted(row, reverse=True)),
            min_size=depth,
            max_size=depth,
        )
    )
)


def token_table(log_probs):
    """Tokens that name their depth and rank: 100 * depth + rank."""
    return [[100 * (d + 1) + r for r in range(len(row))] for d, row in enumerate(log_probs)]


def build(log_probs, budget, **options):
    return best_first(7, log_probs, token_table(log_probs), budget, **options)


def paths_of(tree):
    """The tuple of ranks that leads to each node, the root's is empty."""
    paths = [()]
    for node in range(1, tree.width):
        paths.append((*paths[tree.parents[node]], tree.tokens[node] % 100))
    return paths


def heaviest_prefixes(log_probs, budget):
    """By enumeration: all prefixes, the heaviest first, ties by the tuple of ranks."""
    prefixes = []
    for depth in range(1, len(log_probs) + 1):
        prefixes += itertools.product(*(range(len(row)) for row in log_probs[:depth]))

    def weight(prefix):
        total = 0.0
        for d, r in enumerate(prefix):
            total += log_probs[d][r]
        return total

    return sorted(prefixes, key=lambda prefix: (-weight(prefix), prefix))[:budget]


@given(levels, st.integers(0, 40))
def test_the_tree_holds_the_heaviest_prefixes_in_order(log_probs, budget):
    assert paths_of(build(log_probs, budget))[1:] == heaviest_prefixes(log_probs, budget)


@given(levels, st.integers(1, 40), st.booleans())
def test_a_parent_comes_before_its_children_one_level_up(log_probs, budget, spine_first):
    tree = build(log_probs, budget, spine_first=spine_first)
    for node in range(1, tree.width):
        assert tree.parents[node] < node
        assert tree.depths[node] == tree.depths[tree.parents[node]] + 1


@given(levels, st.integers(1, 40), st.booleans())
def test_the_mask_marks_exactly_the_ancestors_and_the_node(log_probs, budget, spine_first):
    tree = build(log_probs, budget, spine_first=spine_first)
    paths = paths_of(tree)
    expected = [[seer[: len(seen)] == seen for seen in paths] for seer in paths]
    assert np.array_equal(tree.mask(), expected)


@given(levels, st.integers(1, 40), st.booleans())
def test_the_links_lead_through_all_children_in_order_of_rank(log_probs, budget, spine_first):
    tree = build(log_probs, budget, spine_first=spine_first)
    next_token, next_sibling = tree.links()
    for node in range(tree.width):
        found, child = [], next_token[node]
        while child >= 0:
            found.append(child)
            child = next_sibling[child]
        assert found == [n for n in range(tree.width) if tree.parents[n] == node]
        ranks = [tree.tokens[n] % 100 for n in found]
        assert ranks == list(range(len(found)))


@given(levels, st.integers(1, 40))
def test_spine_first_holds_the_whole_chain_and_then_the_heaviest_rest(log_probs, budget):
    paths = paths_of(build(log_probs, budget, spine_first=True))[1:]
    spine = [(0,) * (d + 1) for d in range(len(log_probs))][:budget]
    rest = [p for p in heaviest_prefixes(log_probs, 10_000) if p not in spine]
    assert paths == spine + rest[: max(budget - len(spine), 0)]


def test_a_budget_of_zero_is_the_root_alone():
    assert build([[-1.0, -2.0]], 0).tokens == (7,)


def test_a_chain_puts_each_draft_below_the_one_before():
    tree = chain(7, [5, 6, 5])
    assert (tree.tokens, tree.parents, tree.depths) == ((7, 5, 6, 5), (-1, 0, 1, 2), (0, 1, 2, 3))


@pytest.mark.parametrize(
    ("draws", "path", "bonus"),
    [
        ({0: 9}, [0], 9),
        ({0: 5, 1: 9}, [0, 1], 9),
        ({0: 6, 2: 8, 4: 1}, [0, 2, 4], 1),
        ({0: 5, 1: 7, 3: 2}, [0, 1, 3], 2),
    ],
)
def test_a_walk_ends_at_the_first_draw_that_the_tree_does_not_hold(draws, path, bonus):
    #        root(0) -> 5 (node 1) -> 7 (node 3)
    #                -> 6 (node 2) -> 8 (node 4)
    tree = Tree((0, 5, 6, 7, 8), (-1, 0, 0, 1, 2), (0, 1, 1, 2, 2))
    assert walk(tree, draws.__getitem__) == (path, bonus)
