"""Which launch of a benchmark the running service is, if it may be measured as it stands."""

import asyncio
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families

from .bench_config import BenchConfig
from .errors import HostkitError
from .launch import Launch, read_json, read_launch
from .readiness import client

RUNNING, FINISHED = "sglang:num_running_reqs", "sglang:num_requests_total"
IDLE_LIMIT_S, POLL_S = 45.0, 1.0


async def served_launch(service: Path, config: BenchConfig) -> str | None:
    """The key of the launch with the service's command line and environment.

    None where the service is another launch, not ready, started from other flags than its
    launch.json holds, or at work for somebody; and where launches are to be interleaved.
    """
    try:
        launch = read_launch(service)
        status = read_json(Path(launch.run_dir) / "status.json")
    except HostkitError:
        return None
    ready = status.get("state") == "ready" and status.get("flags") == launch.flags
    if not ready or config.settings.interleave_launches:
        return None
    same = ((key, made) for key, made in config.launches.items() if made.port == launch.port)
    key = next((key for key, m in same if (m.argv, m.env) == (launch.argv, launch.env)), None)
    return key if key and await _idle(launch) else None


async def _idle(launch: Launch) -> bool:
    """Whether the engine says that it runs no request; its own check at the start may still count.

    SGLang refreshes that gauge every half minute while it is idle.
    """
    async with client(launch) as http:
        for _ in range(round(IDLE_LIMIT_S / POLL_S)):
            running = await _metric(http, RUNNING)
            if not running:
                return running is not None
            await asyncio.sleep(POLL_S)
    return False


async def finished(http: httpx.AsyncClient) -> float | None:
    """Requests that the engine has finished since its start; None if it does not tell."""
    return await _metric(http, FINISHED)


async def _metric(http: httpx.AsyncClient, name: str) -> float | None:
    """The sum of one of the engine's metrics; None if it does not tell."""
    try:
        families = list(text_string_to_metric_families((await http.get("/metrics")).text))
    except (httpx.HTTPError, ValueError):
        return None
    samples = [sample for family in families for sample in family.samples]
    found = [sample.value for sample in samples if sample.name == name]
    return sum(found) if found else None
