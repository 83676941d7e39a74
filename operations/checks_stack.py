"""The second stage of the pre-flight: what only the installed stack can answer. One command.

Triton is given a ptxas by the plan; here that very ptxas assembles two lines for the GPU's own
architecture, in the environment of the service (E01).
"""

from __future__ import annotations

import shlex

from operations.attention import sm
from operations.checks_base import Answer, Finding, failed, passed, unknown

ID = "triton.ptxas"
TITLE = "the ptxas that Triton will use knows the architecture"
# The first PTX version that knows a target, by NVIDIA's PTX ISA release notes.
_PTX = {"9.0": ("8.0", "sm_90a"), "10.0": ("8.6", "sm_100a"), "10.3": ("8.8", "sm_103a")}
_PTX |= {"12.0": ("8.7", "sm_120a")}


def command(environment: dict[str, str], compute_cap: str | None) -> str:
    """A shell command that prints "PATH", "STATUS CODE" and ptxas's own words, a line each."""
    version, target = _PTX.get(compute_cap or "", ("7.0", "sm_80"))
    names = ("TRITON_PTXAS_PATH", "TRITON_PTXAS_BLACKWELL_PATH")
    blackwell = (compute_cap or "").startswith(("10.", "12."))
    path = environment.get(names[1] if blackwell else names[0], "ptxas")
    source = f".version {version}\n.target {target}\n.address_size 64\n"
    home = environment.get("CUDA_HOME", "")
    return (
        f"echo {shlex.quote(path)} {sm(compute_cap)}; "
        f"printf {shlex.quote(source)} | env -i CUDA_HOME={shlex.quote(home)} "
        f"PATH={shlex.quote(environment.get('PATH', '/usr/bin:/bin'))} "
        f"timeout -k 5 30 {shlex.quote(path)} --gpu-name={target} -o /dev/null - 2>&1; "
        'echo "status $?"'
    )


def findings(output: list[str]) -> tuple[Finding, ...]:
    """Reads what `command` printed."""
    answer = _read([line.strip() for line in output if line.strip()])
    return (Finding(ID, answer.status, TITLE, answer.evidence, answer.remedy),)


def _read(lines: list[str]) -> Answer:
    if len(lines) < 2 or not lines[-1].startswith("status "):
        return unknown("ptxas could not be asked", "run it by hand")
    path, _, architecture = lines[0].partition(" ")
    said = " ".join(lines[1:-1])[:200]
    code = lines[-1].removeprefix("status ")
    if code == "0":
        return passed(f"{path} assembles for {architecture}")
    if code in ("126", "127"):
        return unknown(f"{path} is not there", "the stack phase installs CUDA 13.0")
    return failed(
        f"{path} does not assemble for {architecture}: {said or f'exit {code}'}",
        "install CUDA 13.0's nvcc: the plan points TRITON_PTXAS_PATH to it",
    )
