"""Supervisors and fake engines as real processes, each on its own port."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

FILES = Path(__file__).resolve().parents[2] / "files"
FAKE = Path(__file__).with_name("fake_engine.py")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def eventually(condition: Callable[[], Any], seconds: float = 30.0) -> Any:
    """The condition's first true value; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        with contextlib.suppress(OSError, ValueError, KeyError):
            if value := condition():
                return value
        time.sleep(0.05)
    raise AssertionError(f"not within {seconds} s: {condition}")


def is_alive(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in "ZX"
    except OSError:
        return False


class Supervised:
    """A `hostkit supervise` process and its status file."""

    def __init__(self, launch: dict[str, Any], folder: Path, env: dict[str, str] | None = None):
        self.run_dir = Path(launch["run_dir"])
        file = folder / f"launch-{time.monotonic_ns()}.json"
        file.write_text(json.dumps(launch))
        self.process = subprocess.Popen(
            [sys.executable, "-m", "hostkit", "supervise", "--launch", str(file)],
            env={**os.environ, "PYTHONPATH": str(FILES), **(env or {})},
            stderr=subprocess.PIPE,
            text=True,
        )

    def status(self) -> dict[str, Any]:
        return dict(json.loads((self.run_dir / "status.json").read_text()))

    def until(self, state: str) -> dict[str, Any]:
        return dict(eventually(lambda: (s := self.status()) and s["state"] == state and s))

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(30)
