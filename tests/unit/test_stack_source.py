"""`stack` and `stack_from`: what they mean for uv, and which paths on the host they name."""

from __future__ import annotations

import pytest

from operations.stack_source import places, stack_source, wheel_folders
from operations.wanted import Wanted, WantedError


def wanted(**changes: str) -> Wanted:
    return Wanted.model_validate({"group": "B300", "target": "path:/m", **changes})


@pytest.mark.parametrize(
    ("stack", "place", "remedy"),
    [
        ("mirror", "/srv/wheels", "write https://HOST/simple"),
        ("wheelhouse", "wheels", "write an absolute path"),
        ("wheelhouse", "/srv/my wheels", "write an absolute path"),
        ("wheelhouse", None, "write an absolute path"),
        ("system", "python3.12", "write an absolute path"),
        ("system", "/opt/$(id)/python", "write an absolute path"),
    ],
)
def test_a_place_that_does_not_fit_its_stack_is_refused(stack, place, remedy):
    with pytest.raises(WantedError, match=f"wanted.stack '{stack}': expected .*; {remedy}"):
        stack_source(wanted(stack=stack, stack_from=place))


def test_a_folder_of_wheels_needs_no_network():
    source = stack_source(wanted(stack="wheelhouse", stack_from="/srv/wheels/"))
    assert source.flags == ("--no-index", "--find-links", "/srv/wheels/")


def test_the_host_is_asked_about_the_paths_that_the_plan_depends_on():
    engine = wanted(
        stack="system", stack_from="/opt/e/bin/python", tools_from="/srv/w", prefix="/p"
    )
    assert places(engine) == "/p /srv/w /opt/e/bin/python"
    assert places(wanted(stack="mirror", stack_from="https://x/simple")) == ""
    assert wheel_folders(wanted(tools_from="https://x/simple")) == {}
