"""One row measured a second time by another client: SGLang's own `sglang.bench_serving`.

A client can be wrong in ways that its own figures don't show. Both clients send the same prompts
with the same lengths to the same server, one right after the other; their tokens/s must agree.
"""

import asyncio
import json
import os
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import httpx

from .launch import Launch
from .load_client import Sampling, choose, run_cell
from .prompts import Prompt, render

TOOL = "sglang.bench_serving"
LIMIT_S = 600.0
# Eight repeats of one cell on 8 GPUs spread by 2.7 to 3.9 % (rtx6kpro, kimi-k26-v3).
AGREE_PERCENT = 5.0
REQUESTS_PER_CONNECTION = 4


async def cross_check(
    http: httpx.AsyncClient,
    launch: Launch,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    concurrency: int,
) -> dict[str, Any]:
    """Flat figures of both clients, or {"error": text}; a failed cross-check fails nothing else.

    Greedy, end-of-sequence ignored, as bench_serving does by default; so the figures differ from
    those of the measured cells. Rates are output tokens/s over the whole run.
    """
    try:
        return await _cross_check(http, launch, prompts, sampling, concurrency)
    except (httpx.HTTPError, OSError, ValueError, KeyError, IndexError, ZeroDivisionError) as error:
        return {"tool": TOOL, "error": f"{type(error).__name__}: {error}"[:300]}


def in_words(found: dict[str, Any]) -> str:
    """A line on a cross-check's outcome, short enough for a progress line."""
    if "error" in found:
        return str(found["error"])
    ours, theirs = found["tokens_per_s"], found["tokens_per_s_bench_serving"]
    verdict = "agree" if found["agrees"] else "DISAGREE"
    apart = f"{found['difference_percent']:+.1f} %"
    return f"{ours:.1f} tok/s here, {theirs:.1f} there ({apart}): they {verdict}"


async def _cross_check(
    http: httpx.AsyncClient,
    launch: Launch,
    prompts: Sequence[Prompt],
    sampling: Sampling,
    concurrency: int,
) -> dict[str, Any]:
    count = max(REQUESTS_PER_CONNECTION * concurrency, 4)
    chosen = choose(prompts, count)
    with tempfile.TemporaryDirectory() as folder:
        data, out = Path(folder) / "prompts.jsonl", Path(folder) / "out.jsonl"
        lines = [{"conversations": _turns(prompt, sampling)} for prompt in chosen]
        data.write_text("".join(json.dumps(line) + "\n" for line in lines))
        command = _command(launch, data, out, count, concurrency, sampling.max_new_tokens)
        problem = await _run(command, launch.env)
        if problem:
            return {"tool": TOOL, "error": problem}
        theirs = json.loads(out.read_text().splitlines()[-1])
    await http.post("/flush_cache")
    same = Sampling(sampling.max_new_tokens, 0.0, True, sampling.chat_format)
    cell = await run_cell(http, chosen, same, concurrency)
    tokens = sum(record["completion_tokens"] for record in cell["requests"])
    ours, other = tokens / cell["wall_s"], float(theirs["output_throughput"])
    apart = 100.0 * (ours / other - 1.0)
    return {
        "tool": TOOL,
        "arm": launch.arm,
        "concurrency": concurrency,
        "requests": count,
        "max_new_tokens": sampling.max_new_tokens,
        "tokens_per_s": round(ours, 2),
        "tokens_per_s_bench_serving": round(other, 2),
        "difference_percent": round(apart, 2),
        "allowed_percent": AGREE_PERCENT,
        "agrees": abs(apart) <= AGREE_PERCENT,
    }


def _turns(prompt: Prompt, sampling: Sampling) -> list[dict[str, str]]:
    text = render(prompt.text, sampling.chat_format)
    return [{"role": "user", "content": text}, {"role": "assistant", "content": "unused"}]


def _command(
    launch: Launch, data: Path, out: Path, count: int, concurrency: int, length: int
) -> list[str]:
    if "--model-path" not in launch.argv:
        raise ValueError("the launch's argv has no --model-path")
    model = launch.argv[launch.argv.index("--model-path") + 1]
    options = {
        "backend": "sglang",
        "base-url": launch.url,
        "model": model,
        "tokenizer": model,
        "dataset-name": "custom",
        "dataset-path": str(data),
        "num-prompts": str(count),
        "max-concurrency": str(concurrency),
        "sharegpt-output-len": str(max(length, 4)),
        "warmup-requests": str(concurrency),
        "output-file": str(out),
    }
    flat = [word for name, value in options.items() for word in (f"--{name}", value)]
    return [launch.argv[0], "-m", TOOL, *flat, "--flush-cache", "--disable-tqdm"]


async def _run(command: list[str], environment: dict[str, str]) -> str | None:
    """Runs the other client; returns why it failed, None when it did not."""
    child = await asyncio.create_subprocess_exec(
        *command,
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**os.environ, **environment},
    )
    try:
        output, _ = await asyncio.wait_for(child.communicate(), LIMIT_S)
    except TimeoutError:
        return f"no end within {LIMIT_S:.0f} s"
    finally:
        if child.returncode is None:
            child.kill()
            await child.wait()
    if child.returncode == 0:
        return None
    lines = output.decode(errors="replace").strip().splitlines()
    return f"exit code {child.returncode}: {lines[-1][:300] if lines else 'no output'}"
