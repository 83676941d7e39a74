"""`hostkit load`: sends prompts to any running engine and prints what each request got."""

import argparse
import asyncio
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from . import files
from .errors import HostkitError
from .load_client import Sampling, choose, load_http, run_cell
from .prompts import BUILT_IN, CHAT_FORMATS, guess_format, read_prompts, render
from .readiness import server_info


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--url", default="http://127.0.0.1:30000", help="the engine's address")
    parser.add_argument(
        "--prompts", default="chat", help=f"{', '.join(BUILT_IN)} or path:FILE (default chat)"
    )
    parser.add_argument("--concurrency", type=int, default=1, help="requests in flight (default 1)")
    parser.add_argument("--requests", type=int, default=8, help="how many (default 8)")
    parser.add_argument("--max-new-tokens", type=int, default=64, help="at most (default 64)")
    parser.add_argument("--temperature", type=float, default=0.0, help="0 is greedy (default 0)")
    parser.add_argument("--ignore-eos", action="store_true", help="always max-new-tokens long")
    parser.add_argument(
        "--chat-format",
        default="auto",
        help=f"{', '.join(CHAT_FORMATS)} or auto (by the model's name)",
    )
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the records")


def run(args: argparse.Namespace) -> int:
    """Exit 0 when every request was answered, 1 when one failed."""
    for name in ("concurrency", "requests", "max_new_tokens"):
        if getattr(args, name) < 1:
            option = "--" + name.replace("_", "-")
            raise HostkitError(f"{option} expected at least 1, found {getattr(args, name)}")
    cell = asyncio.run(_load(args))
    print(table(cell))
    if args.json:
        files.write_json(args.json, cell)
    return 1 if any(record["error"] for record in cell["requests"]) else 0


async def _load(args: argparse.Namespace) -> dict[str, Any]:
    prompts = choose(read_prompts(args.prompts), args.requests)
    async with load_http(args.url, args.concurrency) as http:
        info = await server_info(http)
        if not info:
            raise HostkitError(f"{args.url}: no engine answers on /server_info; is it running?")
        form = args.chat_format
        if form == "auto":
            form = guess_format(f"{info.get('served_model_name')} {info.get('model_path')}")
        render("", form)
        sampling = Sampling(args.max_new_tokens, args.temperature, args.ignore_eos, form)
        cell = await run_cell(http, prompts, sampling, args.concurrency)
    head = {
        "url": args.url,
        "prompt_set": args.prompts,
        "concurrency": args.concurrency,
        "temperature": args.temperature,
        "max_new_tokens": args.max_new_tokens,
        "chat_format": form,
    }
    return head | cell


def accept_length(records: Sequence[dict[str, Any]]) -> float | None:
    """Pooled: emitted tokens / verify steps, bonus token included. None without speculation."""
    good = [r for r in records if not r["error"] and r["verify_steps"]]
    steps = sum(r["verify_steps"] for r in good)
    return sum(r["completion_tokens"] for r in good) / steps if steps else None


def table(cell: dict[str, Any]) -> str:
    """The cell as text: one line a request, then the sums."""
    lines = [f"{'prompt':<16} {'in':>5} {'out':>5} {'ttft s':>7} {'tok/s':>7} {'accept':>6}"]
    for record in cell["requests"]:
        name = record["prompt_id"][:16]
        if record["error"]:
            lines.append(f"{name:<16} ERROR {record['error'][:80]}")
            continue
        first, seconds = record["first_token_s"], record["end_s"] - record["start_s"]
        ttft = f"{first - record['start_s']:.3f}" if first is not None else "-"
        length = accept_length([record])
        lines.append(
            f"{name:<16} {record['prompt_tokens']:>5} {record['completion_tokens']:>5} {ttft:>7} "
            f"{record['completion_tokens'] / seconds:>7.1f} "
            f"{f'{length:.2f}' if length else '-':>6}"
        )
    good = [record for record in cell["requests"] if not record["error"]]
    tokens = sum(record["completion_tokens"] for record in good)
    waits = [r["first_token_s"] - r["start_s"] for r in good if r["first_token_s"] is not None]
    pooled = accept_length(cell["requests"])
    lines.append(
        f"{len(good)} of {len(cell['requests'])} requests, concurrency {cell['concurrency']} "
        f"(effective {cell['effective_concurrency']:.2f}), {tokens} tokens in "
        f"{cell['wall_s']:.1f} s: {tokens / cell['wall_s']:.1f} tok/s, median TTFT "
        f"{f'{statistics.median(waits):.3f} s' if waits else '-'}, accept length "
        f"{f'{pooled:.3f} (pooled)' if pooled else '-'}"
    )
    return "\n".join(lines)
