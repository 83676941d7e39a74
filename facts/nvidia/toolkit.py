"""CUDA toolkits: what nvcc says of itself, and which folders hold one."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Nvcc:
    """An nvcc (or ptxas) that ran: `release` "13.0", `version` "13.0.88", `path` if known."""

    release: str
    version: str
    path: str | None = None


@dataclass(frozen=True)
class Toolkit:
    """A CUDA toolkit folder, links resolved: `path` "/usr/local/cuda-13.0", `release` "13.0"."""

    path: str
    release: str | None = None
    default: bool = False  # the one that /usr/local/cuda leads to
    has_nvcc: bool = True
