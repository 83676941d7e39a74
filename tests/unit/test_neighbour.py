"""A host copies only from another host that its inventory has."""

from __future__ import annotations

import pytest

from operations.neighbour import check
from operations.wanted import Wanted, WantedError

MODEL = "host:b300-1/moonshotai/Kimi-K2.6"


def wanted(**changes: str) -> Wanted:
    return Wanted.model_validate({"group": "B300", "target": "path:/m", **changes})


@pytest.mark.parametrize(
    ("setting", "changes"),
    [
        ("stack_from", {"stack": "copy", "stack_from": "b300-1"}),
        ("target", {"target": MODEL}),
        ("drafter", {"drafter": MODEL}),
    ],
)
def test_a_copy_from_a_host_that_is_no_neighbour_is_refused_with_those_that_are(setting, changes):
    check(wanted(**changes), "b300-2", ["b300-1", "b300-2"])
    for here, known in (("b300-2", "b300-2, b300-3"), ("b300-1", "b300-1, b300-3")):
        with pytest.raises(WantedError) as error:
            check(wanted(**changes), here, known.split(", "))
        assert str(error.value) == (
            f"wanted.{setting}: expected another host of this inventory (b300-3), found 'b300-1'; "
            "mend the inventory"
        )


def test_a_host_that_is_alone_has_nobody_to_copy_from():
    with pytest.raises(WantedError, match="there is none"):
        check(wanted(target=MODEL), "b300-1", ["b300-1"])


def test_what_copies_nothing_needs_no_neighbour():
    check(wanted(stack="wheelhouse", stack_from="/srv/wheels"), "b300-1", [])
