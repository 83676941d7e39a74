"""The CUDA toolkit that Triton and FlashInfer compile with at run time: nvcc and its headers only.

The driver is the host owner's affair and is never touched.
"""

from __future__ import annotations

from facts.machine import MachineFacts
from facts.nvidia.values import version_tuple
from operations.plan import ServingPlan
from operations.plan_sglang import oldest_nvcc

RELEASE = "13.0"  # what torch 2.11.0+cu130 is built for
PACKAGES = (
    "cuda-nvcc-13-0",
    "cuda-cudart-dev-13-0",
    "cuda-nvrtc-dev-13-0",
    "cuda-cccl-13-0",
    "libcublas-dev-13-0",
    "libcurand-dev-13-0",
)
BUILD = ("gcc", "g++", "ninja-build", "patch", "libnuma1")  # what run-time compilation calls
HEADERS = "python3.12-dev"  # Triton compiles a launcher against Python.h


def missing(plan: ServingPlan, machine: MachineFacts) -> tuple[str, ...]:
    """Debian packages to add, none where a toolkit that is new enough for the GPUs is there.

    Asks nothing of a host whose engine is the reference engine.
    """
    if plan.engine != "sglang" or not machine.has_apt:
        return ()
    need = version_tuple(oldest_nvcc(_compute_capability(machine))) or ()
    found = [t.release for t in machine.toolkits if t.has_nvcc]
    found += [machine.nvcc.release] if machine.nvcc and machine.nvcc.release else []
    if any((version_tuple(release) or ()) >= need for release in found if release):
        return ()
    return PACKAGES


def _compute_capability(machine: MachineFacts) -> str | None:
    return next((g.compute_cap for g in machine.gpus if g.compute_cap), None)


def build_script(packages: tuple[str, ...], headers: bool) -> str:
    """Installs what is not there yet; refuses with the remedy where apt knows no CUDA packages."""
    wanted = " ".join((*packages, *BUILD, *((HEADERS,) if headers else ())))
    remedy = (
        f"apt knows no {PACKAGES[0]}: add NVIDIA's repository for this release "
        "(the package cuda-keyring), then deploy again"
    )
    return (
        "export DEBIAN_FRONTEND=noninteractive; need=; "
        f'for p in {wanted}; do dpkg -s $p >/dev/null 2>&1 || need="$need $p"; done; '
        'if test -n "$need"; then apt-get update -qq; '
        f"for p in $need; do apt-cache show $p >/dev/null 2>&1 || "
        f'{{ case $p in cuda-*|libcu*) echo "{remedy}" >&2; exit 1;; '
        '*) echo "apt knows no $p" >&2; exit 1;; esac; }; done; '
        'echo "apt-get install$need"; '
        "apt-get install -y -qq --no-install-recommends $need; fi"
    )
