"""Which phases `--data only=...` selects."""

import pytest

from operations.phases import PHASES, PhaseError, selected


def test_a_whole_run_does_everything_but_what_is_on_request():
    assert selected(None) == frozenset(PHASES) - {"kit"}


@pytest.mark.parametrize("only", ["serve", ["serve"], "serve,bench", ["serve", "bench"]])
def test_only_names_one_phase_or_several(only):
    expected = {"serve"} if "bench" not in str(only) else {"serve", "bench"}
    assert selected(only) == expected


def test_a_mistyped_phase_is_refused_with_the_list_and_the_likely_one():
    with pytest.raises(PhaseError) as error:
        selected("serv")
    assert "did you mean 'serve'?" in str(error.value)
    assert ", ".join(PHASES) in str(error.value)


@pytest.mark.parametrize("only", [[], 7, {"serve": 1}, [1]])
def test_something_else_is_refused_with_an_example(only):
    with pytest.raises(PhaseError, match="write only=serve"):
        selected(only)
