"""CUDA toolkits: what nvcc says of itself, and which folders hold one."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from facts.nvidia.errors import find_error
from facts.nvidia.values import ParseError, first_line, plain, version_tuple

# First CUDA release whose nvcc and ptxas know an architecture, by its compute capability.
FIRST_RELEASE = {
    "8.0": (11, 0),
    "8.6": (11, 1),
    "8.9": (11, 8),
    "9.0": (11, 8),
    "10.0": (12, 8),
    "10.3": (12, 9),
    "12.0": (12, 8),
    "12.1": (12, 9),
}


@dataclass(frozen=True)
class Nvcc:
    """An nvcc (or ptxas) that ran: `release` "13.0", `version` "13.0.88", `path` if known."""

    release: str
    version: str
    path: str | None = None

    def knows(self, compute_cap: str) -> bool | None:
        """Whether it compiles for a compute capability ("10.3"); None if we don't know the limit.

        First releases by the CUDA release notes: 12.8 for 10.0 and 12.0, 12.9 for 10.3 and 12.1.
        """
        first = FIRST_RELEASE.get(compute_cap)
        release = version_tuple(self.release)
        return None if first is None or release is None else release >= first


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit folder, links resolved: `path` "/usr/local/cuda-13.0", `release` "13.0"."""

    path: str
    release: str | None = None
    default: bool = False  # the one that /usr/local/cuda leads to
    has_nvcc: bool = True


@dataclass(frozen=True)
class ToolkitListing:
    """`ls -l /usr/local`: `default` is where /usr/local/cuda leads, None if that is unclear."""

    default: str | None
    via: tuple[str, ...] = ()  # link targets outside the listing, in its order
    toolkits: tuple[str, ...] = field(default=())  # real folders


_RELEASE = re.compile(r"release (\d+\.\d+), V(\d+\.\d+\.\d+)\b(?!\.)", re.ASCII)
_LS = re.compile(
    r"^([dl])[rwxsStT-]{9}\S?\s+\d+\s+\S+\s+\S+\s+\d+\s+\S+\s+\S+\s+\S+\s+"
    r"(\S*cuda[^\s/]*)/?(?: -> (\S+))?$",
    re.MULTILINE | re.ASCII,
)


def parse_nvcc(text: str) -> Nvcc | None:
    """Read `nvcc --version` or `ptxas --version`; None if the shell says that there is none.

    A text cut inside the version has no newline or blank after it and is refused.
    """
    text = plain(text)
    found = _RELEASE.search(text)
    if found and found.end() < len(text):
        return Nvcc(release=found[1], version=found[2])
    error = find_error(text)
    if error and error["error"] == "command not found":
        return None
    raise ParseError("no nvcc version", found=first_line(text))


def parse_toolkit_listing(text: str, folder: str = "/usr/local") -> ToolkitListing:
    """Read `ls -l` of CUDA folders. A link is no toolkit; links through /etc/alternatives are
    followed only where one real folder is left to lead to."""
    links: dict[str, str] = {}
    real = []
    for kind, name, target in _LS.findall(plain(text)):
        path = name if name.startswith("/") else f"{folder}/{name}"
        if kind == "l" and target:
            links[path] = target
        elif kind == "d" and not target:
            real.append(path)
    if not links and not real:
        raise ParseError("no CUDA folder", found=first_line(text))
    default, seen = f"{folder}/cuda", set()
    while default in links and default not in seen:
        seen.add(default)
        target = links[default].rstrip("/")
        default = target if target.startswith("/") else f"{folder}/{target}"
    if default not in real:
        default = real[0] if len(real) == 1 and f"{folder}/cuda" in links else ""
    return ToolkitListing(
        default=default or None,
        via=tuple(target for target in links.values() if target.startswith("/etc/alternatives")),
        toolkits=tuple(real),
    )
