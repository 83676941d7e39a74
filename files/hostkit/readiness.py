"""What 'ready' means: health, one real generation, and speculation that really speculates.

`/v1/models` answers before an engine can generate (gpustack #6203) and SGLang's `/health` takes
a second by design, so each probe has at least 5 s.
"""

import asyncio
import time
from collections.abc import Callable
from typing import Any

import httpx

from .diagnose import Cause, diagnose
from .engine import Engine
from .launch import Launch

PROBE_TIMEOUT_S = 10.0
POLL_S = 0.5
DYING_S = 2.0
FIRST_TEXT = "Question: What is the capital of France?\nAnswer:"


class NotReadyError(Exception):
    """The engine will not serve; `cause` is None when nothing known is seen in its log."""

    def __init__(self, message: str, cause: Cause | None = None):
        super().__init__(str(cause) if cause else message)
        self.cause = cause


def client(launch: Launch, timeout_s: float = PROBE_TIMEOUT_S) -> httpx.AsyncClient:
    """An HTTP client of the engine; proxies of the environment don't apply to this host."""
    return httpx.AsyncClient(base_url=launch.url, timeout=timeout_s, trust_env=False)


async def healthy(http: httpx.AsyncClient) -> bool:
    """Whether /health answers 200."""
    try:
        return (await http.get("/health")).status_code == 200
    except httpx.HTTPError:
        return False


async def wait_ready(
    engine: Engine,
    progress: Callable[[str], None] = lambda line: None,
) -> float:
    """Waits until the engine serves; returns the seconds since its start.

    `progress` gets a line for people about once a second: what is waited for, and the log's last.
    Raises NotReadyError when the engine ends, times out or serves something else than launched.
    """
    launch = engine.launch
    deadline = engine.started + launch.start_timeout_s
    ended = asyncio.create_task(engine.wait())
    phase = "starting"

    def enter(name: str) -> None:
        nonlocal phase
        phase = name

    serving = asyncio.create_task(_serve_check(launch, deadline, enter))
    ticking = asyncio.create_task(_tick(engine, lambda line: progress(f"{phase}, {line}")))
    try:
        limit = max(0.0, deadline - time.monotonic())
        await asyncio.wait({ended, serving}, timeout=limit, return_when=asyncio.FIRST_COMPLETED)
        if serving.done() and serving.exception():  # perhaps because the engine is just dying
            await asyncio.wait({ended}, timeout=DYING_S)
        if ended.done():
            raise _died(engine, ended.result())
        if serving.done():
            serving.result()
            return time.monotonic() - engine.started
        raise _timed_out(engine)
    finally:
        for task in (ended, serving, ticking):
            task.cancel()
        await asyncio.gather(ended, serving, ticking, return_exceptions=True)


async def _tick(engine: Engine, progress: Callable[[str], None]) -> None:
    while True:
        engine.keep_log_small()
        engine.note_family()
        last = (engine.log_tail(1) or ["no output yet"])[0]
        waited = time.monotonic() - engine.started
        progress(f"{waited:.0f} s: {last[-160:]}")
        await asyncio.sleep(1.0)


def _died(engine: Engine, code: int) -> NotReadyError:
    tail = engine.log_tail()
    cause = diagnose(tail, code, oom_killed=engine.oom_killed)
    last = tail[-1][:200] if tail else "no output"
    return NotReadyError(f"the engine ended with code {code} before it served: {last}", cause)


def _timed_out(engine: Engine) -> NotReadyError:
    limit = engine.launch.start_timeout_s
    quiet = time.time() - engine.launch.log.stat().st_mtime if engine.launch.log.exists() else limit
    tail = engine.log_tail()
    if quiet > min(60.0, limit / 2):
        return NotReadyError(f"no output for {quiet:.0f} s", diagnose(tail, hung=True))
    cause = diagnose(tail) or Cause(
        "E31",
        f"the engine was still loading when its start limit of {limit:.0f} s ended",
        tail[-1][:300] if tail else "",
        "raise start_timeout_s of the plan to the bytes to load over the read rate",
    )
    return NotReadyError(f"not ready after {limit:.0f} s", cause)


async def _serve_check(launch: Launch, deadline: float, enter: Callable[[str], None]) -> None:
    async with client(launch) as http:
        while not await healthy(http):
            await asyncio.sleep(POLL_S)
        remaining = max(PROBE_TIMEOUT_S, deadline - time.monotonic())
        await check_algorithm(http, launch)
        if launch.algorithm == "DDTREE" and launch.budget is not None:
            await set_budget(http, launch.budget)
        enter("waits for a first generation")
        await check_generation(http, launch, remaining)


async def server_info(http: httpx.AsyncClient) -> dict[str, Any]:
    """/server_info, or the older /get_server_info; {} when the engine has neither."""
    for path in ("/server_info", "/get_server_info"):
        try:
            answer = await http.get(path)
            if answer.status_code == 200 and isinstance(answer.json(), dict):
                return dict(answer.json())
        except (httpx.HTTPError, ValueError):
            continue
    return {}


async def check_algorithm(http: httpx.AsyncClient, launch: Launch) -> None:
    """Raises NotReadyError when the engine runs another algorithm than the launch names."""
    info = await server_info(http)
    running = info.get("speculative_algorithm")
    if "speculative_algorithm" not in info and launch.algorithm is None:
        return
    if (running or None) != launch.algorithm:
        raise NotReadyError(
            f"/server_info names the algorithm {running}, the launch wants {launch.algorithm}"
        )


async def set_budget(http: httpx.AsyncClient, budget: int) -> None:
    """Switches a DDTREE engine's budget at run time; raises NotReadyError when it refuses."""
    body = {"server_args": {"speculative_ddtree_budget": budget}}
    try:
        answer = await http.post("/set_internal_state", json=body)
    except httpx.HTTPError as error:
        raise NotReadyError(f"/set_internal_state failed: {error!r}") from error
    try:
        content = answer.json()
    except ValueError:
        content = answer.text
    # SGLang answers [true] or [false], one for each data-parallel rank
    parts = content if isinstance(content, list) else [content]
    flags = [part.get("updated") if isinstance(part, dict) else part for part in parts]
    refused = any(flag is False for flag in flags)
    if answer.status_code != 200 or refused:
        raise NotReadyError(f"the engine refuses budget {budget}: {str(content)[:200]}")


async def check_generation(http: httpx.AsyncClient, launch: Launch, timeout_s: float) -> None:
    """One real generation; with speculation its counters must move."""
    body = {
        "text": FIRST_TEXT,
        "sampling_params": {"max_new_tokens": 16, "temperature": 0.0, "ignore_eos": True},
    }
    try:
        answer = await http.post("/generate", json=body, timeout=timeout_s)
        meta = answer.json()["meta_info"]
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        raise NotReadyError(f"the first generation failed: {error!r}"[:300]) from error
    if answer.status_code != 200 or not meta.get("completion_tokens"):
        raise NotReadyError(f"the first generation gave no token: {answer.text[:200]}")
    if not launch.speculative:
        return
    verified, length = meta.get("spec_verify_ct"), meta.get("spec_accept_length")
    if not verified:
        raise NotReadyError(
            "speculation is not live: meta_info.spec_verify_ct expected > 0, "
            f"found {verified} after {meta['completion_tokens']} tokens"
        )
    if not isinstance(length, int | float) or length < 1.0:
        raise NotReadyError(f"spec_accept_length expected >= 1.0, found {length}")
