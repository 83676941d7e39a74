"""Damaged outputs: never a traceback, never a wrong count, whatever is cut or lost."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from facts.nvidia import ParseError, views
from facts.nvidia.__main__ import _READERS, read
from facts.nvidia.nvlink import parse_nvlink
from facts.nvidia.query import parse_query
from facts.nvidia.smi import parse_query_text, parse_table
from facts.nvidia.topology import parse_topology
from facts.nvidia.xml import parse_xml

CASES = Path(__file__).parents[1] / "cases"
FILES = sorted([*(CASES / "open").iterdir(), *(CASES / "h200x2").iterdir()])


@dataclass(frozen=True)
class Rule:
    """How a format is read, and what may be read from a damaged text given the whole one."""

    parse: Callable[[str], Any]
    allows: Callable[[Any, Any], bool]


def same_gpu_facts(full: Any, got: Any) -> bool:
    """A topology: all GPU facts as in the whole text; NIC rows and names may be missing."""
    return (full.links, full.cpu_affinity, full.numa) == (got.links, got.cpu_affinity, got.numa)


def no_value_changed(full: Any, got: Any) -> bool:
    """An XML log: as many GPUs, and each value as it was or unknown."""
    pairs = zip(full.gpus, got.gpus, strict=True)
    return len(full.gpus) == len(got.gpus) and all(
        vars(new)[key] in (None, value) for old, new in pairs for key, value in vars(old).items()
    )


def count_or_none(full: Any, got: Any) -> bool:
    """A table or -q text: a count only if nothing is missing."""
    return not got.complete or got.gpus == full.gpus


def known_rows_only(full: Any, got: Any) -> bool:
    """A query: each row as it was; with a `count` field all of them."""
    if "count" in got.fields and len(got.rows) != len(full.rows):
        return False
    return all(row in full.rows for row in got.rows)


def known_gpus_only(full: Any, got: Any) -> bool:
    """An NVLink status: each GPU that is listed as it was."""
    return all(gpu in full.gpus for gpu in got.gpus)


def values_or_none(full: Any, got: Any) -> bool:
    """Versions: each as it was or unknown."""
    return all(got[key] in (None, False, value) for key, value in full.items() if key in SCALARS)


SCALARS = {"smi", "nvml", "driver", "cuda", "module", "kind", "fabric_manager"} | {
    *("nvcc", "release", "version", "torch", "flashinfer", "jit_cache", "cc", "gpus", "name")
}
RULES = {
    "topology": Rule(parse_topology, same_gpu_facts),
    "xml": Rule(parse_xml, no_value_changed),
    "table": Rule(parse_table, count_or_none),
    "query_text": Rule(parse_query_text, count_or_none),
    "query": Rule(parse_query, known_rows_only),
    "nvlink": Rule(parse_nvlink, known_gpus_only),
}


def rule_of(text: str) -> Rule:
    """The rule of the format that a text is in."""
    name, view = views.recognise(text)
    return RULES.get(name, Rule(view, values_or_none))


def whole(rule: Rule, text: str) -> Any:
    """The undamaged text as read, None if it is an error output or refused as it stands."""
    try:
        return rule.parse(text)
    except ParseError:
        return None


def check(rule: Rule, full: Any, damaged: str) -> None:
    """Damaged text is refused, or what is read from it is allowed by the rule."""
    try:
        got = rule.parse(damaged)
    except ParseError:
        return
    assert full is not None and rule.allows(full, got), got


@given(raw=st.binary(max_size=400), reader=st.sampled_from(sorted(_READERS)))
def test_random_bytes_never_give_a_traceback(raw, reader):
    try:
        read(reader, raw.decode("utf-8", "replace"))
    except ParseError as error:
        assert error.error


@settings(max_examples=300)
@given(data=st.data())
def test_random_bytes_in_a_real_output_never_give_a_traceback(data):
    raw = data.draw(st.sampled_from(FILES)).read_bytes()[:4000]
    at = data.draw(st.integers(0, len(raw)))
    damaged = raw[:at] + data.draw(st.binary(max_size=20)) + raw[at + 5 :]
    try:
        read(data.draw(st.sampled_from(sorted(_READERS))), damaged.decode("utf-8", "replace"))
    except ParseError as error:
        assert error.error


@settings(max_examples=800)
@given(data=st.data())
def test_a_text_cut_anywhere_is_refused_or_gives_nothing_wrong(data):
    text = data.draw(st.sampled_from(FILES)).read_text()
    rule = rule_of(text)
    check(rule, whole(rule, text), text[: data.draw(st.integers(0, len(text) - 1))])


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_a_text_without_any_one_line_is_refused_or_gives_nothing_wrong(path):
    lines = path.read_text().splitlines(keepends=True)
    rule = rule_of("".join(lines))
    full = whole(rule, "".join(lines))
    for number in range(len(lines)):
        check(rule, full, "".join(lines[:number] + lines[number + 1 :]))


@settings(max_examples=100)
@given(data=st.data())
def test_a_topology_cut_and_closed_with_a_newline_is_still_not_miscounted(data):
    text = data.draw(st.sampled_from(sorted((CASES / "open").glob("A*.txt")))).read_text()
    rule = RULES["topology"]
    full = whole(rule, text)
    cut = text[: data.draw(st.integers(0, len(text) - 1))] + "\n"
    try:
        got = parse_topology(cut)
    except ParseError:
        return
    assert got.links == full.links
