"""The benchmark client: streams `/generate` requests at a fixed concurrency and records each.

Tokens are the engine's counts (meta_info), times are this client's clock. A request that fails is
a record with its error, never a missing one.
"""

import asyncio
import json
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import httpx

from .prompts import Prompt, render

REQUEST_TIMEOUT_S = 600.0  # between two chunks, not for a whole request


@dataclass(frozen=True)
class Sampling:
    """How each request is generated; `max_new_tokens` counts tokens, temperature 0 is greedy."""

    max_new_tokens: int
    temperature: float = 0.0
    ignore_eos: bool = False
    chat_format: str = "none"

    def parameters(self) -> dict[str, Any]:
        return {
            "max_new_tokens": self.max_new_tokens,
            "temperature": self.temperature,
            "ignore_eos": self.ignore_eos,
        }


@dataclass
class Record:
    """One request. Times are seconds since the cell's start, `chunks` are (time, new tokens).

    `verify_steps` and `accept_histogram` are None for an engine that doesn't speculate;
    `accept_histogram[i]` is how many verify steps accepted i drafted tokens.
    """

    prompt_id: str
    start_s: float
    error: str | None = None
    prompt_tokens: int = 0
    completion_tokens: int = 0
    verify_steps: int | None = None
    accept_histogram: list[int] | None = None
    first_token_s: float | None = None
    end_s: float = 0.0
    chunks: list[tuple[float, int]] = field(default_factory=list)
    output_ids: list[int] | None = None

    def take(self, item: dict[str, Any], now: float) -> None:
        """Adds one message of the stream; raises KeyError when it isn't what the engine sends."""
        meta = item["meta_info"]
        total = int(meta["completion_tokens"])
        if total > self.completion_tokens:
            if self.first_token_s is None:
                self.first_token_s = now
            self.chunks.append((round(now, 6), total - self.completion_tokens))
        ids = item.get("output_ids")
        if ids is not None:  # cumulative by default, only what is new in SGLang's incremental mode
            before = self.output_ids or []
            self.output_ids = list(ids) if len(ids) >= total else before + list(ids)
        self.completion_tokens = total
        self.prompt_tokens = int(meta.get("prompt_tokens", self.prompt_tokens))
        self.verify_steps = meta.get("spec_verify_ct", self.verify_steps)
        for name in ("spec_correct_drafts_histogram", "spec_accept_histogram"):
            self.accept_histogram = meta.get(name) or self.accept_histogram
        reason = meta.get("finish_reason") or {}
        if isinstance(reason, dict) and reason.get("type") == "abort":
            self.error = f"aborted by the engine: {reason.get('message', '')}"[:300]


async def generate(
    http: httpx.AsyncClient, prompt: Prompt, sampling: Sampling, origin: float
) -> Record:
    """One streamed request. `origin` is the cell's start on time.perf_counter's clock."""
    record = Record(prompt.id, time.perf_counter() - origin)
    body = {
        "text": render(prompt.text, sampling.chat_format),
        "sampling_params": sampling.parameters(),
        "stream": True,
    }
    finished = False
    try:
        async with http.stream("POST", "/generate", json=body) as answer:
            if answer.status_code != 200:
                text = (await answer.aread()).decode(errors="replace")
                record.error = f"HTTP {answer.status_code}: {text[:300]}"
            async for line in answer.aiter_lines():
                if record.error or not line.startswith("data:"):
                    continue
                data = line.removeprefix("data:").strip()
                if data == "[DONE]":
                    finished = True
                    break
                item = json.loads(data)
                if "error" in item:
                    record.error = f"engine: {item['error']}"[:300]
                else:
                    record.take(item, time.perf_counter() - origin)
        if not finished and record.error is None:
            record.error = "the stream ended without [DONE]"
    except (httpx.HTTPError, ValueError, KeyError, TypeError) as error:
        record.error = f"{type(error).__name__}: {error}"[:300]
    record.end_s = time.perf_counter() - origin
    return record


async def run_cell(
    http: httpx.AsyncClient,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    concurrency: int,
    on_request: Callable[[Record], None] = lambda record: None,
) -> dict[str, Any]:
    """Sends all prompts, `concurrency` at a time (closed loop).

    Returns {"wall_s", "effective_concurrency", "requests"}: the effective concurrency is the mean
    number of requests under way, lower than asked for at a cell's end or with too few prompts.
    """
    waiting = iter(prompts)
    records: list[Record] = []
    origin = time.perf_counter()

    async def worker() -> None:
        for prompt in waiting:
            record = await generate(http, prompt, sampling, origin)
            records.append(record)
            on_request(record)

    await asyncio.gather(*(worker() for _ in range(concurrency)))
    wall = time.perf_counter() - origin
    busy = sum(record.end_s - record.start_s for record in records)
    return {
        "wall_s": wall,
        "effective_concurrency": busy / wall if wall > 0 else None,
        "requests": [asdict(record) for record in records],
    }


def choose(prompts: Sequence[Prompt], count: int) -> list[Prompt]:
    """`count` prompts in order, from the start again when the set is smaller."""
    return [prompts[number % len(prompts)] for number in range(count)]


def load_http(url: str, concurrency: int) -> httpx.AsyncClient:
    """A client with a connection for each request under way."""
    return httpx.AsyncClient(
        base_url=url,
        timeout=httpx.Timeout(REQUEST_TIMEOUT_S, connect=10.0),
        limits=httpx.Limits(max_connections=concurrency + 2, max_keepalive_connections=concurrency),
        trust_env=False,
    )
