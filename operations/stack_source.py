"""Where Python packages come from: an index, a mirror, or a folder of wheels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from operations.wanted import Wanted, WantedError


@dataclass(frozen=True)
class StackSource:
    """`env` and `flags` for uv; `index` for our own fetch of uv ("" is the default index)."""

    env: dict[str, str] = field(default_factory=dict)
    flags: tuple[str, ...] = ()
    index: str = ""


def stack_source(wanted: Wanted) -> StackSource:
    """Reads `stack` and `stack_from`. Raises WantedError where the two do not fit."""
    place = wanted.stack_from or ""
    match wanted.stack:
        case "online" | "copy" | "system":
            return StackSource()
        case "mirror":
            if not place.startswith(("http://", "https://")):
                raise WantedError(
                    "wanted.stack 'mirror': expected the index URL in wanted.stack_from, "
                    f"found {wanted.stack_from!r}; write https://HOST/simple"
                )
            return StackSource(env={"UV_DEFAULT_INDEX": place}, index=place)
        case "wheelhouse":
            if not place.startswith("/"):
                raise WantedError(
                    "wanted.stack 'wheelhouse': expected a folder on the host in "
                    f"wanted.stack_from, found {wanted.stack_from!r}; write an absolute path"
                )
            return StackSource(flags=("--no-index", "--find-links", place), index=place)
