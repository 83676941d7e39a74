"""Typed access to the fields of a decoded JSON object, each fault in one line."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class ResultError(ValueError):
    """A result file that can't be used; the message is one line for the user."""


def kind_of(value: Any) -> str:
    """The type of a value, for a message."""
    return "nothing" if value is None else type(value).__name__


def field_of(raw: Any, name: str) -> Any:
    """A required field of an object."""
    if not isinstance(raw, Mapping):
        raise ResultError(f"expected an object with {name!r}, found {kind_of(raw)}")
    if name not in raw:
        raise ResultError(f"expected a field {name!r}, found only {', '.join(sorted(raw))}")
    return raw[name]


def wrong(name: str, wanted: str, value: Any) -> ResultError:
    """The error for a value of another type."""
    return ResultError(f"expected {name!r} to be {wanted}, found {value!r:.60}")


def text(raw: Any, name: str) -> str:
    """A required text."""
    value = field_of(raw, name)
    if not isinstance(value, str):
        raise wrong(name, "text", value)
    return value


def boolean(raw: Any, name: str) -> bool:
    """A required true or false."""
    value = field_of(raw, name)
    if not isinstance(value, bool):
        raise wrong(name, "true or false", value)
    return value


def number(raw: Any, name: str) -> float:
    """A required number, as a float."""
    value = field_of(raw, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise wrong(name, "a number", value)
    return float(value)


def optional_number(raw: Any, name: str) -> float | None:
    """A number, or None where it is absent or null."""
    return None if raw.get(name) is None else number(raw, name)


def optional_int(raw: Any, name: str) -> int | None:
    """A whole number, or None where it is absent or null."""
    return None if raw.get(name) is None else int(number(raw, name))


def items(raw: Any, name: str) -> list[Any]:
    """A required list."""
    value = field_of(raw, name)
    if not isinstance(value, list):
        raise wrong(name, "a list", value)
    return value


def mapping(raw: Any, name: str) -> Mapping[str, Any]:
    """A required object."""
    value = field_of(raw, name)
    if not isinstance(value, Mapping):
        raise wrong(name, "an object", value)
    return value
