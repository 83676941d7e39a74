"""The environment report that users paste into issues (`python -m sglang.check_env`)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from facts.nvidia.driver import key_values
from facts.nvidia.values import ParseError, known, version, whole_lines


@dataclass(frozen=True)
class Environment:
    """What such a report says. "CUDA Driver Version" there is the driver's release, not a CUDA."""

    gpus: int
    name: str | None
    compute_cap: str | None
    driver: str | None
    nvcc: str | None
    cuda_home: str | None
    packages: dict[str, str]  # with local version suffixes, "2.11.0+cu130"; absent ones left out


_GPU = re.compile(r"^GPU ([\d,]+): (.+)$", re.MULTILINE | re.ASCII)
_CAP = re.compile(r"^GPU [\d,]+ Compute Capability: (\d+\.\d+)$", re.MULTILINE | re.ASCII)
_NVCC = re.compile(r"release \d+\.\d+, V(\d+(?:\.\d+)+)$", re.MULTILINE | re.ASCII)
_PACKAGE = re.compile(r"^([A-Za-z][\w.-]*): (\d\S*)$", re.MULTILINE | re.ASCII)


def parse_environment(text: str) -> Environment:
    """Read the report; ParseError if it lists no GPU."""
    text = whole_lines(text)
    listed = _GPU.findall(text)
    if not listed:
        raise ParseError("no environment report")
    indexes = [index for group, _ in listed for index in group.split(",") if index]
    names = {name for _, name in listed}
    caps = set(_CAP.findall(text))
    nvcc = _NVCC.search(text)
    pairs = key_values(text)
    return Environment(
        gpus=len(set(indexes)),
        name=names.pop() if len(names) == 1 else None,
        compute_cap=caps.pop() if len(caps) == 1 else None,
        driver=version(pairs.get("cuda driver version")),
        nvcc=nvcc[1] if nvcc else None,
        cuda_home=known(pairs.get("cuda_home")),
        packages=dict(_PACKAGE.findall(text)),
    )
