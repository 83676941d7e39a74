"""The one error of the planning layer."""

from __future__ import annotations


class PlanError(ValueError):
    """A plan can't be made. The message is one line: expected, found, remedy."""

    def __init__(self, expected: str, found: str, remedy: str) -> None:
        super().__init__(f"expected {expected}; found {found}; remedy: {remedy}")
        self.expected = expected
        self.found = found
        self.remedy = remedy
