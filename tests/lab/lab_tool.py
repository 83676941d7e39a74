"""Runs lab.py as a user would, for tests."""

import hashlib
import os
import subprocess
import sys
from pathlib import Path

import lab
import pytest

TOOL = Path(lab.__file__)


# two checkouts can run their tests at once: each has its own folders, addresses and ports
CHECKOUT = int(hashlib.sha256(str(TOOL).encode()).hexdigest(), 16) % 80


class LabTool:
    """Runs lab.py as a user would, on a state folder and addresses of its own."""

    @classmethod
    def of_checkout(cls, name: str, number: int) -> "LabTool":
        """The lab called `name` of this checkout; `number` is 0 or 1, different for each name."""
        slot = 2 * CHECKOUT + number
        return cls(Path(f"/var/tmp/ddtree-lab-{name}-{CHECKOUT}"), 90 + slot, 20000 + 50 * slot)

    def __init__(self, state: Path, net: int, port: int) -> None:
        self.state = state
        self.net = net
        self.environment = {
            **os.environ,
            "DDTREE_LAB_STATE": str(state),
            "DDTREE_LAB_NET": str(net),
            "DDTREE_LAB_PORT": str(port),
        }

    def __call__(
        self, *arguments: str, check: bool = True, timeout_s: float = 280
    ) -> subprocess.CompletedProcess[str]:
        done = subprocess.run(
            [sys.executable, str(TOOL), *arguments],
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=timeout_s,
            check=False,
        )
        if check and done.returncode != 0:
            pytest.fail(f"lab.py {' '.join(arguments)}: exit {done.returncode}\n{done.stderr}")
        return done

    def ssh(self, name: str, command: str) -> str:
        """The standard output of a command that must succeed on a host."""
        return self("ssh", name, command).stdout
