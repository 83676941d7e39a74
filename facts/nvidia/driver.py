"""Versions of driver, kernel module and fabric manager, each from the text that carries it."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.nvidia.errors import refuse_errors
from facts.nvidia.values import ParseError, first_line, known, plain, version, whole_lines


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
    path_kind: str | None = None  # "dkms" (built on this host) or "package", from modinfo only


# Driver 610 renamed "Driver Version" to "KMD Version" and "CUDA Version" to "CUDA UMD Version", and
# prints the sentence 'Deprecated, see "KMD version" instead' under the old names.
_DRIVER_KEYS = ("kmd version", "driver version")
_CUDA_KEYS = ("cuda umd version", "cuda version")


def versions_of(pairs: dict[str, str]) -> Versions:
    """Versions from `key: value` lines of any of nvidia-smi's headers, keys in lower case."""

    def first(keys: tuple[str, ...]) -> str | None:
        return next((found for key in keys if (found := version(pairs.get(key)))), None)

    return Versions(
        smi=first(("nvidia-smi version",)),
        nvml=first(("nvml version",)),
        driver=first(_DRIVER_KEYS),
        cuda=first(_CUDA_KEYS),
    )


def key_values(text: str) -> dict[str, str]:
    """`Key   : value` lines as a dictionary with lower-case keys; the first of equal keys wins."""
    pairs: dict[str, str] = {}
    for line in plain(text).splitlines():
        key, colon, value = line.partition(":")
        if colon:
            pairs.setdefault(" ".join(key.lower().split()), value.strip())
    return pairs


def parse_versions(text: str) -> Versions:
    """Read `nvidia-smi --version`."""
    refuse_errors(text)
    found = versions_of(key_values(whole_lines(text)))
    if found.smi is None and found.driver is None:
        raise ParseError("no nvidia-smi version", found=first_line(text))
    return found


_NVRM = re.compile(
    r"NVRM version: NVIDIA UNIX (?:(Open Kernel Module) for )?\S+ +(?:Kernel Module +)?"
    r"(\d+\.\d+(?:\.\d+)?)\s",
    re.ASCII,
)


def parse_module(text: str) -> DriverModule:
    """Read /proc/driver/nvidia/version or `modinfo nvidia`, which hold other versions, too."""
    text = plain(text)
    if nvrm := _NVRM.search(text):
        return DriverModule(nvrm[2], "open" if nvrm[1] else "proprietary")
    pairs = key_values(whole_lines(text))
    found = version(pairs.get("version"))
    if found is None:
        refuse_errors(text)
        raise ParseError("no driver module version", found=first_line(text))
    licence = known(pairs.get("license"))
    kind = None if licence is None else "proprietary" if licence == "NVIDIA" else "open"
    path = known(pairs.get("filename"))
    path_kind = None if path is None else "dkms" if "/dkms/" in path else "package"
    return DriverModule(found, kind, path_kind)


_FABRIC_MANAGER = re.compile(r"Fabric Manager version is\s*:\s*(\d+(?:\.\d+)+)\s", re.ASCII)


def parse_fabric_manager(text: str) -> str:
    """Read `nv-fabricmanager --version`; its second line may have a prompt glued on."""
    found = _FABRIC_MANAGER.search(plain(text))
    if found is None:
        refuse_errors(text)
        raise ParseError("no fabric manager version", found=first_line(text))
    return found[1]
