"""Renders templates/. An undefined name is an error, never an empty string."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from operations.artifacts import ROOT


@lru_cache(maxsize=1)
def _environment() -> Environment:
    return Environment(
        loader=FileSystemLoader(ROOT / "templates"),
        undefined=StrictUndefined,
        keep_trailing_newline=True,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def render(template: str, context: Mapping[str, Any]) -> str:
    """The text of templates/`template` with the names of `context`."""
    return _environment().get_template(template).render(context)
