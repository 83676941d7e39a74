"""Where Python packages come from: an index, a mirror, or a folder of wheels. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field

from operations.wanted import URLS, Wanted, WantedError, is_path


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
        case "online" | "copy":
            return StackSource()
        case "system":
            if place and not is_path(place):
                raise WantedError(
                    "wanted.stack 'system': expected a Python on the host in wanted.stack_from, "
                    f"found {wanted.stack_from!r}; write an absolute path"
                )
            return StackSource()
        case "mirror":
            if not place.startswith(URLS):
                raise WantedError(
                    "wanted.stack 'mirror': expected the index URL in wanted.stack_from, "
                    f"found {wanted.stack_from!r}; write https://HOST/simple"
                )
            return StackSource(env={"UV_DEFAULT_INDEX": place}, index=place)
        case "wheelhouse":
            if not is_path(place):
                raise WantedError(
                    "wanted.stack 'wheelhouse': expected a folder on the host in "
                    f"wanted.stack_from, found {wanted.stack_from!r}; write an absolute path"
                )
            return StackSource(flags=("--no-index", "--find-links", place), index=place)


def wheel_folders(wanted: Wanted) -> dict[str, str]:
    """The folders of wheels on the host, by the setting that names them."""
    found = {"tools_from": wanted.tools_from or ""}
    if wanted.stack == "wheelhouse":
        found["stack_from"] = wanted.stack_from or ""
    return {setting: place for setting, place in found.items() if place.startswith("/")}


def places(wanted: Wanted) -> str:
    """The paths on the host that the plan depends on, separated by blanks, for its facts."""
    python = [wanted.stack_from] if wanted.stack == "system" else []
    return " ".join(filter(None, [wanted.prefix, *wheel_folders(wanted).values(), *python]))
