"""Runs the deploy against lab hosts as a user would, and asks the hosts what became of it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lab_tool import LabTool

ROOT = Path(__file__).resolve().parents[2]
INVENTORY = "inventories/lab.py"
PREFIX = "/opt/ddtree"
TOKEN = "hf_LabCanaryThatMustNeverShowUp"  # in the environment of every run; looked for everywhere


class Deployment:
    """pyinfra with the lab's inventory; keeps all that the runs printed."""

    def __init__(self, tool: LabTool) -> None:
        self.tool = tool
        self.printed: list[str] = []

    def environment(self) -> dict[str, str]:
        return {**self.tool.environment, "HF_TOKEN": TOKEN, "COLUMNS": "200"}

    def command(self, *arguments: str, inventory: str = INVENTORY) -> list[str]:
        pyinfra = str(Path(sys.executable).with_name("pyinfra"))
        return [pyinfra, inventory, "deploy.py", *arguments]

    def run(
        self, *arguments: str, inventory: str = INVENTORY, state: Path | None = None
    ) -> subprocess.CompletedProcess[str]:
        """One run to its end; `state` stands in for the lab's own state folder."""
        environment = self.environment()
        if state is not None:
            environment["DDTREE_LAB_STATE"] = str(state)
        done = subprocess.run(
            self.command(*arguments, inventory=inventory),
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        self.printed += [done.stdout, done.stderr]
        return done

    def as_user(self, user: str) -> tuple[str, ...]:
        """Arguments of a run that reaches the hosts as `user`; one who is not root has sudo."""
        if user == "root":
            return ()
        keys = f"~{user}/.ssh"
        for name in ("b300-a", "ct200-a"):
            self.tool.ssh(
                name,
                f"id {user} >/dev/null 2>&1 || useradd --create-home {user}; "
                f"mkdir -p {keys}; cp ~/.ssh/authorized_keys {keys}/; chown -R {user} {keys}; "
                f"echo '{user} ALL=(ALL) NOPASSWD: ALL' >/etc/sudoers.d/{user}",
            )
        return ("--user", user, "--sudo")

    def apply(self, *arguments: str) -> dict[str, Any]:
        """The results document of a run that must succeed."""
        done = self.run("-y", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        found: dict[str, Any] = json.loads(done.stdout)["results"]
        return found

    def planned(self, *arguments: str) -> dict[str, list[str]]:
        """What a dry run would change: hosts by the name of the operation."""
        done = self.run("--dry", "--json", *arguments)
        assert done.returncode == 0, done.stderr
        plan = json.loads(done.stdout)["plan"]
        assert plan, done.stderr
        return {p["name"]: p["hosts_with_change"] for p in plan if p["hosts_with_change"]}

    def start(self, *arguments: str) -> subprocess.Popen[bytes]:
        """Starts a run that the test is going to kill."""
        return subprocess.Popen(
            self.command(*arguments),
            cwd=ROOT,
            env=self.environment(),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def status(self, name: str) -> dict[str, Any]:
        """The service's status file on a host; {} while there is none."""
        text = self.tool("ssh", name, f"cat {PREFIX}/run/status.json", check=False).stdout
        found: dict[str, Any] = json.loads(text) if text.strip() else {}
        return found

    def current(self, name: str) -> str:
        """The fingerprint of the release that PREFIX/current points to."""
        return self.tool.ssh(name, f"readlink {PREFIX}/current").strip().rpartition("/")[2]

    def wait_ready(self, name: str, unless: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The status once it says ready and `unless` no longer holds of it."""
        found: list[dict[str, Any]] = []

        def ready() -> bool:
            found.append(self.status(name))
            return found[-1].get("state") == "ready" and not unless(found[-1])

        wait_for(ready, lambda: f"{name} is not ready again: {found[-1]}")
        return found[-1]


def wait_for(
    condition: Callable[[], object], explain: Callable[[], str], timeout_s: float = 240
) -> None:
    """Polls until `condition` holds; the limit only keeps a broken host from hanging the suite."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        assert time.monotonic() < deadline, explain()
        time.sleep(0.3)


def kill_run(process: subprocess.Popen[bytes]) -> None:
    """kill -9 of the controller and whatever it started."""
    os.killpg(process.pid, 9)
    process.wait()
