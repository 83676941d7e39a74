"""What a DDTree server reads from its environment, and what it refuses."""

import pytest
from sglang_ddtree.settings import read_settings


def test_defaults_are_a_best_first_tree_of_one_width():
    settings = read_settings(16, 33, {})
    assert (settings.budget, settings.topk, settings.widths) == (32, 16, (33,))
    assert not settings.spine_first and not settings.adaptive and settings.self_check


def test_topk_never_exceeds_the_budget():
    assert read_settings(16, 5, {}).topk == 4
    assert [read_settings(16, width, {}).topk for width in (16, 33, 34, 256)] == [15, 16, 32, 32]


def test_widths_are_sorted_once_and_end_with_the_budgets():
    settings = read_settings(8, 33, {"SGLANG_DDTREE_WIDTHS": "17,9,17"})
    assert settings.widths == (9, 17, 33)


def test_choosing_by_cost_captures_the_chains_width_too():
    assert read_settings(16, 33, {"SGLANG_DDTREE_ADAPTIVE": "1"}).widths == (16, 33)


def test_a_cost_table_is_read_from_text_or_from_a_file(tmp_path):
    text = '{"1": {"16": 4.5, "33": 5}}'
    (tmp_path / "costs.json").write_text(text)
    for value in (text, str(tmp_path / "costs.json")):
        settings = read_settings(16, 33, {"SGLANG_DDTREE_COST_TABLE": value})
        assert settings.cost_table == {1: {16: 4.5, 33: 5.0}}


@pytest.mark.parametrize(
    "block, width, env, says",
    [
        (1, 17, {}, "block of 2 to 25"),
        (26, 17, {}, "block of 2 to 25"),
        (8, 1, {}, "of 2 to 256"),
        (8, 300, {}, "of 2 to 256"),
        (8, 17, {"SGLANG_DDTREE_TOPK": "33"}, "TOPK must be one number of 1 to 32"),
        (8, 17, {"SGLANG_DDTREE_TOPK": "many"}, "TOPK must be integers"),
        (8, 17, {"SGLANG_DDTREE_WIDTHS": "33"}, "WIDTHS must lie in 2..17"),
        (8, 17, {"SGLANG_DDTREE_SPINE_FIRST": "perhaps"}, "SPINE_FIRST must be 0 or 1"),
        (8, 17, {"SGLANG_DDTREE_COST_TABLE": '{"1": {"16": 0}}'}, "figures above zero"),
        (8, 17, {"SGLANG_DDTREE_COST_TABLE": '{"1": 3}'}, "COST_TABLE must be"),
    ],
)
def test_bad_values_are_refused_with_the_variable_and_the_range(block, width, env, says):
    with pytest.raises(ValueError, match=says):
        read_settings(block, width, env)
