"""Unified diffs and the state machine, without files."""

import random

import pytest

from operations import patch_set

tools = patch_set.applier("patchset")
State = tools.FileState


@pytest.mark.parametrize(
    "found, before, after, older, expected",
    [
        ("a", "b", "a", (), State.OURS),
        ("b", "b", "a", (), State.PRISTINE),
        (None, None, "a", (), State.PRISTINE),
        ("c", "b", "a", ("c",), State.OLDER),
        ("c", "b", "a", (), State.FOREIGN),
        (None, "b", "a", (), State.FOREIGN),
        ("c", None, "a", (), State.FOREIGN),
    ],
)
def test_a_files_state_comes_from_its_hash(found, before, after, older, expected):
    assert tools.file_state(found, before, after, older) is expected


@pytest.mark.parametrize(
    "states, expected",
    [
        ([State.OURS, State.OURS], "applied"),
        ([State.PRISTINE], "pristine"),
        ([State.OURS, State.PRISTINE], "partial"),
        ([State.OURS, State.OLDER], "outdated"),
        ([State.OURS, State.FOREIGN, State.OLDER], "foreign"),
    ],
)
def test_a_sets_state_comes_from_its_files(states, expected):
    assert tools.set_state(states) == expected


def random_text(rng):
    lines = [rng.choice("abcde") for _ in range(rng.randrange(30))]
    return "\n".join(lines) + rng.choice(["", "\n"])


def test_a_diff_takes_a_text_there_and_back_whatever_the_texts():
    rng = random.Random(7)
    for _ in range(500):
        old, new = random_text(rng), random_text(rng)
        hunks = tools.parse_patch(tools.unified("f.py", old, new)).get("f.py", ())
        assert tools.apply_hunks(old, hunks) == new
        assert tools.apply_hunks(new, hunks, reverse=True) == old


def test_a_hunk_that_does_not_fit_exactly_is_refused():
    hunks = tools.parse_patch(tools.unified("f", "a\nb\nc\n", "a\nB\nc\n"))["f"]
    with pytest.raises(tools.PatchSetError, match="the lines at 1"):
        tools.apply_hunks("x\na\nb\nc\n", hunks)


def test_a_form_feed_ends_no_line():
    assert tools.lines_of("a\x0cb\nc") == ["a\x0cb\n", "c"]


@pytest.mark.parametrize("path", ["/etc/passwd", "a/../b", "", "a//b"])
def test_paths_outside_site_packages_are_refused(path):
    document = {"name": "n", "distribution": "d", "version": "1", "patches": [], "new": {path: ""}}
    with pytest.raises(tools.PatchSetError, match="below site-packages"):
        tools.parse_series(document)


def test_a_file_that_two_patches_touch_is_refused():
    edit = {"path": "a.py", "before": "", "after": ""}
    patch = dict.fromkeys(("file", "sha256", "what", "upstream", "drop_when"), "x")
    patch |= {"required": True, "edits": [edit]}
    document = {"name": "n", "distribution": "d", "version": "1", "patches": [patch] * 2, "new": {}}
    with pytest.raises(tools.PatchSetError, match="found twice"):
        tools.parse_series(document)
