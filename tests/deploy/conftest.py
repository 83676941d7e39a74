"""A real deploy to this machine, in a folder and on a port of the test's own."""

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_CanaryThatOnlyADownloadMayHave"
PYINFRA = [sys.executable, "-c", "from pyinfra_cli.main import main; main()"]


@dataclass(frozen=True)
class Deploy:
    """Runs `pyinfra inventories/local.py deploy.py` with settings of the test's own."""

    prefix: Path
    port: int
    others: Path  # a folder of packages that the PYTHONPATH of who deploys leads to

    def run(self, *words: str, cwd: Path = ROOT, inventory: str = "inventories/local.py", **wanted):
        """The finished process; `wanted` is laid over the inventory's data."""
        settings = {
            "prefix": str(self.prefix),
            "port": self.port,
            "budgets": [8, 16],
            # other tests share the cores: BLAS threads that wait for each other crawl then
            "environment": {"OPENBLAS_NUM_THREADS": "1"},
            "bench": {"prompts_per_cell": 1, "max_new_tokens": 8, "repeats": 1},
            **wanted,
        }
        root = "" if cwd == ROOT else f"{ROOT}/"
        return subprocess.run(
            [
                *PYINFRA,
                f"{root}{inventory}",
                f"{root}deploy.py",
                "--data",
                f"set={json.dumps(settings)}",
                *words,
            ],
            cwd=cwd,
            capture_output=True,
            text=True,
            timeout=600,
            stdin=subprocess.DEVNULL,
            env={
                **os.environ,
                "HF_TOKEN": TOKEN,
                "HUGGING_FACE_HUB_TOKEN": TOKEN,
                "PYTHONPATH": str(self.others),
            },
        )

    def plan(self, *words: str, **wanted) -> dict[str, list[str]]:
        """Operations of a dry run with the hosts that they would change."""
        done = self.run("--dry", "--json", *words, **wanted)
        assert done.returncode == 0, done.stderr
        return {op["name"]: op["hosts_with_change"] for op in json.loads(done.stdout)["plan"]}

    def status(self) -> dict:
        """What the service says of itself."""
        return json.loads((self.prefix / "run/status.json").read_text())


def other_packages(folder: Path) -> Path:
    """Other versions of what our venvs hold: found first, they fail the pins and the daemon."""
    metadata = folder / "numpy-0.0.1.dist-info/METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: numpy\nVersion: 0.0.1\n")
    (folder / "supervisor.py").write_text("raise ImportError('not the supervisor of our tools')\n")
    return folder


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
def bare_port() -> int:
    """A port that nobody holds, the session's own service included."""
    return free_port()


@pytest.fixture(scope="session")
def deploy(tmp_path_factory):
    """A deploy whose service is stopped, and whose results are removed, at the end."""
    others = other_packages(tmp_path_factory.mktemp("others"))
    found = Deploy(tmp_path_factory.mktemp("host") / "ddtree", free_port(), others)
    before = set((ROOT / "results/LOCAL").glob("*"))
    yield found
    pid = found.prefix / "run/supervisord.pid"
    if pid.exists():
        daemon = int(pid.read_text())
        os.kill(daemon, signal.SIGTERM)
        for _ in range(300):
            if not Path(f"/proc/{daemon}").exists():
                break
            signal.sigtimedwait([], 0.1)
    for folder in set((ROOT / "results/LOCAL").glob("*")) - before:
        shutil.rmtree(folder)
