"""A made-up model, a Hub that serves it, and the real fetcher as a process."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from hub_emulator import HubEmulator, make_model

FILES = Path(__file__).resolve().parents[2] / "files"
SEGMENT = 1 << 20


@dataclass
class Fetch:
    """One job on disk and the ways to run it."""

    folder: Path
    job: dict[str, Any]
    environment: dict[str, str]

    @property
    def path(self) -> Path:
        return self.folder / "job.json"

    @property
    def directory(self) -> Path:
        return Path(self.job["directory"])

    @property
    def listing(self) -> Path:
        return self.directory / ".fetch" / "files.json"

    @property
    def status(self) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(Path(self.job["status"]).read_text())
        return found

    @property
    def stamped(self) -> bool:
        return Path(self.job["stamp"]).exists()

    def list(self, hub: HubEmulator) -> None:
        """Leave the list of files as an earlier try does, to spare an import of huggingface_hub."""
        listed = [
            {"path": f.path, "size": f.size, "sha256": f.sha256, "blob": f.blob, "xet": f.xet}
            for f in hub.files.values()
        ]
        self.listing.parent.mkdir(parents=True, exist_ok=True)
        self.listing.write_text(json.dumps(listed))

    def start(self, *words: str, **changes: Any) -> "subprocess.Popen[str]":
        """Start the fetcher with changes of the job; output goes to `log`."""
        self.job.update(changes)
        self.path.write_text(json.dumps(self.job))
        command = [sys.executable, "-m", "hostkit", "fetch", "--job", str(self.path), *words]
        with self.log.open("a") as log:
            return subprocess.Popen(
                command, stdout=log, stderr=subprocess.STDOUT, text=True, env=self.environment
            )

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def run(self, *words: str, **changes: Any) -> int:
        """Run the fetcher to its end; returns the exit code."""
        return self.start(*words, **changes).wait(timeout=120)

    def kill(self, process: "subprocess.Popen[str]", number: int = signal.SIGKILL) -> int:
        process.send_signal(number)
        return process.wait(timeout=30)


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four shards of 8 MiB and some small files, the same bytes in every run."""
    return make_model(tmp_path_factory.mktemp("made"))


@pytest.fixture
def hub(made: Path) -> Iterator[HubEmulator]:
    with HubEmulator(made) as emulator:
        yield emulator


@pytest.fixture
def fetch(hub: HubEmulator, tmp_path: Path) -> Fetch:
    """A job for the hub's repository with short patience and small segments."""
    home = tmp_path / "models" / "lab--made-model"
    home.mkdir(parents=True)
    environment = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "HUGGING"))}
    environment |= {"PYTHONPATH": str(FILES), "HF_HOME": str(tmp_path / "hf")}
    job = {
        "key": "made",
        "source": f"mirror:{hub.url}/{hub.repo}@{hub.commit}",
        "kind": "hub",
        "repo": hub.repo,
        "revision": hub.commit,
        "endpoint": hub.url,
        "directory": str(home / hub.commit),
        "stamp": str(home / f"{hub.commit}.stamp.json"),
        "status": str(tmp_path / "status.json"),
        "token_file": str(tmp_path / "token"),
        "segment_bytes": SEGMENT,
        "margin_bytes": 1 << 20,
        "workers": 4,
        "stall_s": 60.0,
        "read_timeout_s": 60.0,
    }
    fetch = Fetch(tmp_path, job, environment)
    fetch.list(hub)
    return fetch


@pytest.fixture
def bare(fetch: Fetch) -> Fetch:
    """The job on a host that knows nothing yet: it asks the Hub for the list of files."""
    shutil.rmtree(fetch.directory)
    return fetch


@pytest.fixture
def until() -> Callable[[Callable[[], bool]], None]:
    """Wait for something that another process does; fails after a minute."""

    def wait(happened: Callable[[], bool]) -> None:
        deadline = time.monotonic() + 60
        while not happened():
            assert time.monotonic() < deadline, "it did not happen within a minute"
            time.sleep(0.02)

    return wait
