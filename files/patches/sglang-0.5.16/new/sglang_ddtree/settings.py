"""What DDTREE reads besides SGLang's own arguments: environment variables SGLANG_DDTREE_*.

| variable | meaning | default |
|---|---|---|
| SGLANG_DDTREE_TOPK | candidates K a position, 1..32 | min(budget, 16); 32 above budget 32 |
| SGLANG_DDTREE_SPINE_FIRST | 1: the whole top-1 chain enters the tree before anything else | 0 |
| SGLANG_DDTREE_WIDTHS | further verify widths to capture, e.g. "17,33" | none |
| SGLANG_DDTREE_ADAPTIVE | 1: choose the width of each step from measured costs | 0 |
| SGLANG_DDTREE_COST_TABLE | {"batch size": {"width": ms}} or its path, for ADAPTIVE | measured |
| SGLANG_DDTREE_SPLIT_ATTENTION | 0: verify with SGLang's own prefill kernel | 1 |
| SGLANG_DDTREE_SELF_CHECK | 0: skip the check of the tree mask at start | 1 |

The block L is the drafter checkpoint's; the budget is --speculative-num-draft-tokens - 1.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

MAX_TOPK = 32
MAX_BLOCK = 25
MAX_WIDTH = 256
# By budget: a tree of 64 nodes loses 1 to 3 % of its accept length with 16 (docs/ddtree.md).
DEFAULT_TOPK = {32: 16, MAX_WIDTH: 32}

CostTable = dict[int, dict[int, float]]


@dataclass(frozen=True)
class Settings:
    """Settings of one server: L, N = B + 1, K, and how a step chooses its width."""

    block: int
    width: int
    topk: int
    spine_first: bool
    widths: tuple[int, ...]
    adaptive: bool
    cost_table: CostTable | None
    split_attention: bool
    self_check: bool

    @property
    def budget(self) -> int:
        return self.width - 1


def _flag(env: Mapping[str, str], name: str, default: bool) -> bool:
    text = env.get(name, "").strip().lower()
    if not text:
        return default
    if text in ("1", "true", "yes", "on"):
        return True
    if text in ("0", "false", "no", "off"):
        return False
    raise ValueError(f"{name} must be 0 or 1, got {text!r}.")


def _integers(env: Mapping[str, str], name: str) -> tuple[int, ...]:
    text = env.get(name, "").strip()
    try:
        return tuple(int(part) for part in text.split(",") if part.strip())
    except ValueError:
        raise ValueError(f"{name} must be integers with commas between, got {text!r}.") from None


def read_cost_table(text: str) -> CostTable:
    """{"batch size": {"width": milliseconds of a step}} from JSON text or a file's path.

    Raises ValueError if it is neither, or a figure is not above zero.
    """
    source = text if text.lstrip().startswith("{") else Path(text).read_text()
    try:
        table = {
            int(bs): {int(width): float(ms) for width, ms in row.items()}
            for bs, row in json.loads(source).items()
        }
    except (ValueError, AttributeError, TypeError) as error:
        raise ValueError(
            f'SGLANG_DDTREE_COST_TABLE must be {{"batch size": {{"width": ms}}}}: {error}.'
        ) from None
    if not table or any(ms <= 0 for row in table.values() for ms in row.values()):
        raise ValueError("SGLANG_DDTREE_COST_TABLE needs figures above zero.")
    return table


def read_settings(block: int, width: int, env: Mapping[str, str] | None = None) -> Settings:
    """Check and return the settings of a server with block L = `block` and width N = `width`."""
    env = os.environ if env is None else env
    if not 2 <= block <= MAX_BLOCK:
        raise ValueError(f"DDTREE needs a block of 2 to {MAX_BLOCK} tokens, got {block}.")
    if not 2 <= width <= MAX_WIDTH:
        raise ValueError(
            f"DDTREE needs --speculative-num-draft-tokens (budget + 1) of 2 to {MAX_WIDTH}, "
            f"got {width}."
        )
    default = next(topk for most, topk in DEFAULT_TOPK.items() if width - 1 <= most)
    topk = _integers(env, "SGLANG_DDTREE_TOPK") or (min(width - 1, default),)
    if len(topk) != 1 or not 1 <= topk[0] <= MAX_TOPK:
        raise ValueError(f"SGLANG_DDTREE_TOPK must be one number of 1 to {MAX_TOPK}, got {topk}.")
    widths = _integers(env, "SGLANG_DDTREE_WIDTHS")
    if any(not 2 <= extra <= width for extra in widths):
        raise ValueError(
            f"SGLANG_DDTREE_WIDTHS must lie in 2..{width} (--speculative-num-draft-tokens), "
            f"got {widths}."
        )
    adaptive = _flag(env, "SGLANG_DDTREE_ADAPTIVE", False)
    if adaptive and block <= width:
        widths = (*widths, block)
    table = env.get("SGLANG_DDTREE_COST_TABLE", "").strip()
    return Settings(
        block=block,
        width=width,
        topk=topk[0],
        spine_first=_flag(env, "SGLANG_DDTREE_SPINE_FIRST", False),
        widths=tuple(sorted({*widths, width})),
        adaptive=adaptive,
        cost_table=read_cost_table(table) if table else None,
        split_attention=_flag(env, "SGLANG_DDTREE_SPLIT_ATTENTION", True),
        self_check=_flag(env, "SGLANG_DDTREE_SELF_CHECK", True),
    )
