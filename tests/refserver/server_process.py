"""A refserver in a process of its own."""

import os
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import httpx

REPOSITORY = Path(__file__).resolve().parents[2]


@dataclass
class Server:
    """A refserver in a process of its own."""

    url: str
    process: subprocess.Popen[str]
    log: Path

    def http(self, **options: object) -> httpx.Client:
        return httpx.Client(base_url=self.url, timeout=60, trust_env=False, **options)


@dataclass
class Servers:
    """Starts servers and ends them all."""

    folder: Path
    started: list[Server] = field(default_factory=list)

    def start(self, *options: str) -> Server:
        port = free_port()
        log = self.folder / f"server-{port}.log"
        with log.open("w") as file:
            process = subprocess.Popen(
                command(*options, "--port", str(port)), env=environment(), stdout=file, stderr=file
            )
        server = Server(f"http://127.0.0.1:{port}", process, log)
        self.started.append(server)
        wait_until(lambda: is_ready(server), f"the server's /health; see {log.read_text()}")
        return server


def command(*options: str) -> list[str]:
    return [sys.executable, "-m", "refserver", *options]


def environment() -> dict[str, str]:
    return os.environ | {"PYTHONPATH": str(REPOSITORY / "files"), "OPENBLAS_NUM_THREADS": "1"}


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def is_ready(server: Server) -> bool:
    assert server.process.poll() is None, server.log.read_text()
    try:
        return httpx.get(f"{server.url}/health", trust_env=False).status_code == 200
    except httpx.TransportError:
        return False


def wait_until(condition: Callable[[], bool], what: str, seconds: float = 120) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, f"waited {seconds} s in vain for {what}"
        time.sleep(0.05)
