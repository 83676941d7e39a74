"""Versions of driver, kernel module and fabric manager, each from the text that carries it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Versions:
    """`nvidia-smi --version`: each a version or None. `cuda` is the newest CUDA the driver runs."""

    smi: str | None = None
    nvml: str | None = None
    driver: str | None = None
    cuda: str | None = None


@dataclass(frozen=True)
class DriverModule:
    """The loaded kernel module: `version` "580.173.02", `kind` "open", "proprietary" or None."""

    version: str
    kind: str | None = None
