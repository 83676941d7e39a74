"""Settings of the benchmark that can't be measured are refused from the plan, before a host is."""

from __future__ import annotations

import pytest

from operations.bench_config import check
from operations.plan import choose
from operations.wanted import WantedError
from tests.unit.plan_cases import machine_of, wanted_for, with_wish


def checked(mode: str = "auto", **wish: object) -> None:
    wanted = with_wish(wanted_for("cpu"), **wish)
    check(choose(machine_of("cpu"), wanted), wanted, mode)


def test_a_context_that_holds_no_prompt_and_its_output_is_refused_with_what_it_takes():
    bench = {"max_new_tokens": 48, "prompts_per_cell": 2}  # 12 words, 15 of the chat template
    with pytest.raises(WantedError) as error:
        checked(context_length=74, bench=bench)
    assert str(error.value) == (
        "wanted.context_length: expected at least 75 tokens, for the benchmark's longest prompt "
        "and 48 new tokens, found 74; raise it, or lower wanted.bench.max_new_tokens"
    )
    checked(context_length=75, bench=bench)


def test_the_settings_of_the_asked_mode_count():
    bench = {"max_new_tokens": 48, "full": {"max_new_tokens": 512}}
    checked(context_length=256, bench=bench)
    with pytest.raises(WantedError, match="and 512 new tokens, found 256"):
        checked("full", context_length=256, bench=bench)


def test_of_prompts_in_a_file_of_the_host_only_the_output_is_counted():
    bench = {"max_new_tokens": 48, "prompt_sets": ["path:/srv/prompts.json"]}
    checked(context_length=49, bench=bench)
    with pytest.raises(WantedError, match="expected at least 49 tokens"):
        checked(context_length=48, bench=bench)
