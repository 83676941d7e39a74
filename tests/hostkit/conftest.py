"""Launches of the fake engine and supervisors as real processes."""

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hostkit_processes import FAKE, Supervised, free_port


@pytest.fixture
def make_launch(tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """A launch document of the fake engine with extra engine options."""

    def make(*options: str, arm: str = "ar", **changes: Any) -> dict[str, Any]:
        port = changes.pop("port", None) or free_port()
        launch = {
            "fingerprint": "f" * 12,
            "arm": arm,
            "argv": [sys.executable, str(FAKE), "--port", str(port), *options],
            "env": {},
            "cwd": None,
            "host": "127.0.0.1",
            "port": port,
            "start_timeout_s": 30,
            "stop_timeout_s": 2,
            "health_interval_s": 0.2,
            "speculative": "--speculative-algorithm" in options,
            "algorithm": None,
            "budget": None,
            "run_dir": str(tmp_path / "run"),
            "restart_limit": 2,
            "restart_window_s": 60,
            "metrics_port": None,
        }
        if "--speculative-algorithm" in options:
            launch["algorithm"] = options[options.index("--speculative-algorithm") + 1]
        return launch | changes

    return make


@pytest.fixture
def supervise(tmp_path: Path) -> Iterator[Callable[..., Supervised]]:
    """Starts supervisors; whatever a test leaves is stopped."""
    running: list[Supervised] = []

    def start(launch: dict[str, Any], env: dict[str, str] | None = None) -> Supervised:
        running.append(Supervised(launch, tmp_path, env))
        return running[-1]

    yield start
    for supervised in running:
        supervised.stop()
