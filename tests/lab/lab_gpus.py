"""The fake GPUs of a lab host: NVIDIA's command-line tools, replaying saved outputs.

There is no GPU behind them. The outputs, and what they are made of, are in tests/cases/hosts.
"""

import shutil
from pathlib import Path

CASES = Path(__file__).resolve().parents[1] / "cases" / "hosts"
TOOLS = ("usr/bin/nvidia-smi", "usr/local/cuda-13.0/bin/nvcc", "usr/local/cuda-13.0/bin/ptxas")
OUTPUTS = "etc/fake-nvidia"
FABRIC_MANAGER = """\
[Unit]
Description=FAKE fabric manager of a lab host: active, and nothing else
[Service]
Type=oneshot
RemainAfterExit=yes
ExecStart=/bin/true
[Install]
WantedBy=multi-user.target
"""


def install_fake_gpus(disk: Path, kind: str) -> None:
    """Puts the tools and the outputs of `kind` ("b300", "ct200") on a host's `disk`."""
    shutil.copytree(CASES / kind, disk / OUTPUTS)
    tools = list(TOOLS)
    if (CASES / kind / "fabricmanager.txt").exists():
        tools.append("usr/bin/nv-fabricmanager")
        units = disk / "etc/systemd/system"
        (units / "multi-user.target.wants").mkdir(parents=True)
        (units / "nvidia-fabricmanager.service").write_text(FABRIC_MANAGER)
        wants = units / "multi-user.target.wants/nvidia-fabricmanager.service"
        wants.symlink_to("/etc/systemd/system/nvidia-fabricmanager.service")
    for tool in tools:
        (disk / tool).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(CASES / "fake-nvidia-smi", disk / tool)
        (disk / tool).chmod(0o755)
    (disk / "usr/local/cuda").symlink_to("cuda-13.0")


def faults(kind: str) -> list[str]:
    """The faults that the fake GPUs of `kind` can show."""
    folder = CASES / kind / "faults"
    return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []


def fault_command(fault: str) -> str:
    """The shell command that makes a host's fake GPUs show `fault`; "none" mends them."""
    if fault == "none":
        return f"rm -f /{OUTPUTS}/fault"
    return f"echo {fault} >/{OUTPUTS}/fault"
