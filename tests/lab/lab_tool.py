"""Runs lab.py as a user would, for tests."""

import os
import subprocess
import sys
from pathlib import Path

import lab
import pytest

TOOL = Path(lab.__file__)


class LabTool:
    """Runs lab.py as a user would, on a state folder and addresses of its own."""

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
