"""The other hosts of an inventory that a host copies from: its engine's venv, its models. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from operations.model_source import Kind, ModelSource
from operations.wanted import Wanted, WantedError


def neighbours(wanted: Wanted) -> dict[str, str]:
    """The hosts that `wanted` copies from, by the setting that names them."""
    found = {"stack_from": wanted.stack_from or ""} if wanted.stack == "copy" else {}
    for name, text in (("target", wanted.target), ("drafter", wanted.drafter)):
        source = ModelSource.parse(text) if text else None
        if source is not None and source.kind is Kind.HOST:
            found[name] = source.origin or ""
    return found


def check(wanted: Wanted, host: str, inventory: Iterable[str]) -> None:
    """Refuses a neighbour of `host` that is not in the inventory, or `host`. Raises WantedError."""
    others = sorted(set(inventory) - {host})
    for setting, name in neighbours(wanted).items():
        if name not in others:
            raise WantedError(
                f"wanted.{setting}: expected another host of this inventory "
                f"({', '.join(others) or 'there is none'}), found '{name}'; mend the inventory"
            )
