"""What `--data adopt=best` wrote for a group, laid over its `wanted`.

`inventories/<group>_tuned.py` holds `TUNED = {...}`, settings of `wanted` that a benchmark chose.
It is read as data, never executed; remove the file to go back to what the inventory says.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from operations.artifacts import ROOT
from operations.wanted import WantedError

INVENTORIES = ROOT / "inventories"


def tuned_path(group: str) -> Path:
    """`inventories/<group>_tuned.py`, in lower case."""
    return INVENTORIES / f"{group.lower()}_tuned.py"


def with_tuned(data: object) -> object:
    """`wanted` with the group's tuned settings over it; as it is where there are none.

    Raises WantedError for a file that holds something else.
    """
    group = data.get("group") if isinstance(data, Mapping) else None
    if not isinstance(data, Mapping) or not isinstance(group, str):
        return data
    path = tuned_path(group)
    return {**data, **read_tuned(path)} if path.is_file() else data


def read_tuned(path: Path) -> dict[str, Any]:
    """The TUNED of a file. Raises WantedError with the file's name."""
    try:
        return parse_tuned(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise WantedError(f"{path.name}: {error}") from None


def parse_tuned(text: str) -> dict[str, Any]:
    """The TUNED in the text of such a file. Raises ValueError with one line."""
    try:
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "TUNED":
                value = ast.literal_eval(node.value)
                if isinstance(value, dict):
                    return value
    except (SyntaxError, ValueError) as error:
        raise ValueError(
            f"expected TUNED = {{...}} with plain values, found {error}; mend or remove the file"
        ) from None
    raise ValueError("expected TUNED = {...}, found none; mend or remove the file")
