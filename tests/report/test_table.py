"""The terminal table: what stands in it, and how wide it may be."""

import io
import re

import pytest
from made_results import changed, made_result, two_groups
from rich.console import Console

from operations.report_table import print_table
from operations.report_text import CPU_NOTE, milliseconds, number
from operations.results import parse_result

AR = [10.0, 10.4, 9.6]
COLOURS = {True: "standard", False: "auto"}
RATES = {
    "ar": {1: AR},
    "dflash": {1: [0.8 * r for r in AR]},
    "ddtree-8": {1: [1.1 * r for r in AR]},
    "ddtree-32": {1: [1.5 * r for r in AR]},
}


def printed(document, width=120, terminal=False):
    out = io.StringIO()
    console = Console(
        file=out, width=width, force_terminal=terminal, color_system=COLOURS[terminal]
    )
    print_table(parse_result(document), console)
    return out.getvalue()


def row_of(text, arm):
    return next(line.strip() for line in text.splitlines() if line.split()[:1] == [arm])


def test_a_row_has_the_arms_figures():
    row = row_of(printed(made_result(RATES)), "ddtree-32")
    assert row.split() == [
        "ddtree-32", "2.00", "96", "192", "15.0", "50.0", "1.50x", "1.50–1.50", "faster,", "best",
    ]  # fmt: skip


def test_accept_length_and_verify_steps_stand_first_on_a_cpu():
    text = printed(made_result(RATES))
    assert next(line for line in text.splitlines() if "length" in line).split()[:3] == [
        "arm", "length", "steps",
    ]  # fmt: skip
    assert CPU_NOTE[:80] in text


def test_tokens_per_second_stand_first_on_a_gpu_and_the_cpu_note_is_absent():
    text = printed(two_groups()[0])
    assert next(line for line in text.splitlines() if "user" in line).split()[:3] == [
        "arm", "user", "total",
    ]  # fmt: skip
    assert "On a CPU" not in text


@pytest.mark.parametrize("document", [made_result(RATES), *two_groups()])
def test_table_fits_100_columns_on_a_wide_terminal(document):
    assert max(map(len, printed(document, width=200).splitlines())) <= 100


@pytest.mark.parametrize("width", [40, 80, 120])
def test_no_column_and_no_figure_is_cut_on_a_terminal_of_any_width(width):
    wide, text = printed(two_groups()[0]), printed(two_groups()[0], width, terminal=True)
    arms = [arm["name"] for arm in two_groups()[0]["arms"]]
    plain = re.sub(r"\x1b\[[0-9;]*m", "", text)
    assert "…" not in plain
    assert [row_of(plain, arm) for arm in arms] == [row_of(wide, arm) for arm in arms]


def test_the_table_of_the_usual_arms_fits_80_columns():
    rules = [line for line in printed(made_result(RATES)).splitlines() if "───" in line]
    assert rules
    assert max(map(len, map(str.rstrip, rules))) <= 80


def test_colours_only_on_a_terminal():
    assert "\x1b[" not in printed(made_result(RATES))
    assert "\x1b[" in printed(made_result(RATES), terminal=True)


def test_wrong_output_stands_in_place_of_the_verdict_and_is_explained():
    text = printed(made_result(RATES, failed=["ddtree-32"]))
    assert row_of(text, "ddtree-32").endswith("wrong output")
    assert "ddtree-32: output differs from ar on 1 of 4 prompts" in text
    assert row_of(text, "ddtree-8").endswith("faster, best")


def test_unjudged_arm_says_so():
    text = printed(made_result(RATES, unjudged=["ddtree-32"]))
    assert row_of(text, "ddtree-32").endswith("faster, unjudged")
    assert "Output not judged: ddtree-32" in text


def test_arm_that_could_not_run_is_listed_with_its_reason():
    assert "Not run: pp8-dflash: made: DFLASH refuses" in printed(made_result(RATES))


def test_a_cut_benchmark_says_so():
    assert "cut short" in printed(changed(made_result(RATES), complete=False))


def test_markup_in_a_name_is_text():
    document = changed(made_result(RATES), host="[red]host[/red]")
    assert "[red]host[/red]" in printed(document)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.0, "0.00"),
        (1.984, "1.98"),
        (9.996, "10.0"),
        (99.96, "100"),
        (2386.4, "2,386"),
    ],
)
def test_numbers_have_three_significant_digits(value, text):
    assert number(value) == text


def test_seconds_are_printed_as_milliseconds():
    assert milliseconds(0.0534) == "53.4"


def test_arm_whose_gate_could_not_decide_counts_as_unjudged():
    document = made_result(RATES)
    document["correctness"][-1]["passed"] = None
    text = printed(document)
    assert row_of(text, "ddtree-32").endswith("faster, unjudged")
    assert "Output not judged: ddtree-32" in text


def test_engine_starts_that_did_not_take_turns_are_said():
    assert "ran one after the other" in printed(made_result(RATES))
    turns = made_result(RATES)
    turns["settings"]["interleave_launches"] = True
    assert "ran one after the other" not in printed(turns)


def test_failed_arm_is_said_with_its_cause():
    failed = [{"name": "ddtree-64", "reason": "made: out of memory"}]
    text = printed(changed(made_result(RATES), failed=failed, complete=False))
    assert "ddtree-64 failed: made: out of memory" in text


@pytest.mark.parametrize(("agrees", "said"), [(True, "agrees with"), (False, "CONTRADICTS")])
def test_cross_check_by_a_second_client_is_told(agrees, said):
    found = {
        "tool": "sglang.bench_serving", "arm": "dflash", "concurrency": 1, "agrees": agrees,
        "tokens_per_s": 101.0, "tokens_per_s_bench_serving": 100.0,
    }  # fmt: skip
    text = " ".join(printed(changed(made_result(RATES), cross_check=found)).split())
    assert f"sglang.bench_serving {said} these figures (100 against 101 tokens/s)" in text
