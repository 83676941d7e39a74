"""`hostkit bench`: measures all arms of a bench.json into one result file.

Each launch is started once (or once a round, see `interleave_launches`), warmed at the measured
concurrency, then its arms run interleaved, round by round, so that drift of clocks and
temperature meets all of them. An interrupted run goes on where it stopped.

With --served the running service is measured as it stands, if it is one of the launches: loading a
large model once less. A second call, after the service was stopped, measures the rest.
"""

import argparse
import asyncio
import contextlib
import signal
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import httpx

from . import processes
from .bench_config import BenchArm, BenchConfig, Step, read_config
from .bench_correctness import Divergence, compare, logit_gap, verdict
from .bench_crosscheck import cross_check, in_words
from .bench_gpu import gpu_state
from .bench_served import finished, served_launch
from .bench_store import Progress, Store
from .diagnose import diagnose
from .engine import Engine, refuse_if_busy
from .errors import HostkitError, StartError
from .launch import read_launch
from .load import accept_length
from .load_client import Record, Sampling, choose, load_http, run_cell
from .readiness import NotReadyError, healthy, server_info, set_budget, wait_ready


class EngineLostError(Exception):
    """The engine of a launch ended while it was measured."""


class Bench:
    """One run of `hostkit bench`."""

    def __init__(self, config: BenchConfig, store: Store, status: Path | None):
        self.config = config
        self.store = store
        self.settings = config.settings
        self.gaps: dict[Divergence, float | None] = {}
        visits = config.visits()
        todo = [self._todo(*visit) for visit in visits]
        total, left = (
            sum(step.requests for steps in parts for step in steps)
            for parts in ([config.steps(*visit) for visit in visits], todo)
        )
        self.progress = Progress(status, total, left, sum(bool(steps) for steps in todo))

    def _todo(self, key: str, rounds: list[int]) -> list[Step]:
        """Steps not yet stored; a warm-up only where its arm has something left at that load."""
        steps = self.config.steps(key, rounds)
        left = [step for step in steps if not step.warmup and not self.store.has(step)]
        loads = {(step.arm, step.concurrency) for step in left}
        warm = [step for step in steps if step.warmup and (step.arm, step.concurrency) in loads]
        return [*warm, *left]

    async def run_served(self, service: Path) -> bool:
        """Measures the arms of the launch that `service`, a launch.json, is running, if one is.

        Not the baseline's, whose turn comes when the other arms' texts are known.
        """
        key = await served_launch(service, self.config)
        if key is None or (self.config.baseline and key == self.config.baseline.launch):
            return False
        rounds = next(rounds for launch, rounds in self.config.visits() if launch == key)
        budget = read_launch(service).budget
        with contextlib.suppress(EngineLostError, NotReadyError):  # the next call starts its own
            async with self._serving(key, self.config.launches[key].url) as http:
                try:
                    await self._measure_alone(http, self._todo(key, rounds))
                finally:
                    if budget is not None:  # a killed job may leave the service running
                        await set_budget(http, budget)
        return True

    async def _measure_alone(self, http: httpx.AsyncClient, steps: list[Step]) -> None:
        """Measures on an engine that others reach; keeps nothing if somebody asked it meanwhile."""
        expected = await finished(http)
        if expected is None:
            return
        for step in steps:
            await self._measure(http, [step])
            expected += step.requests
            if await finished(http) != expected:
                self.progress.tell("the service is in use: what was measured on it does not count")
                self.store.drop(steps)
                return

    async def run(self) -> bool:
        """Measures what is left. True when every arm was measured."""
        for launch in self.config.launches.values():
            await refuse_if_busy(launch.port, f"engine of launch {launch.arm}; is it serving?")
        for key, rounds in self.config.visits():
            steps = self._todo(key, rounds)
            if not steps:
                continue
            try:
                async with self._serving(key) as http:
                    await self._measure(http, steps)
                    await self._ask_gaps(http, key)
                    await self._cross_check(http, key)
            except (NotReadyError, EngineLostError, StartError) as error:
                self._failed(key, str(error))
            self.progress.launches_left -= 1
        await self._judge()
        return not self.store.document["failed"]

    @contextlib.asynccontextmanager
    async def _serving(
        self, key: str, running: str | None = None
    ) -> AsyncIterator[httpx.AsyncClient]:
        """An engine of the launch that is ready, stopped afterwards if it was started here."""
        concurrency = max(self.settings.concurrency)
        url = running or self.config.running.get(key)
        if url is not None:
            async with load_http(url, concurrency) as http:
                if not await healthy(http):
                    raise HostkitError(f"use_running of launch {key!r}: no healthy engine at {url}")
                await self._note_versions(http)
                yield http
            return
        engine = Engine(self.config.launches[key])
        try:
            await engine.start()
            self.progress.tell(f"launch {key}: starting the engine")
            seconds = await wait_ready(
                engine, lambda line: self.progress.tell(f"launch {key}: {line}", keep=False)
            )
            self.progress.launch_seconds.append(seconds)
            self.progress.tell(f"launch {key}: ready after {seconds:.1f} s")
            async with load_http(engine.launch.url, concurrency) as http:
                await self._note_versions(http)
                yield http
        except EngineLostError as error:
            await engine.stop()
            tail = engine.log_tail()
            cause = diagnose(tail, engine.exit_code, oom_killed=engine.oom_killed)
            last = tail[-1][:200] if tail else "no output"
            raise EngineLostError(str(cause) if cause else f"{error}: {last}") from error
        finally:
            await engine.stop()

    async def _note_versions(self, http: httpx.AsyncClient) -> None:
        info = await server_info(http)
        if isinstance(info.get("version"), str):
            self.store.document["versions"]["engine"] = info["version"]

    async def _measure(self, http: httpx.AsyncClient, steps: list[Step]) -> None:
        arms = {arm.name: arm for arm in self.config.arms}
        for step in steps:
            await self._prepare(http, arms[step.arm])
            before = await gpu_state()
            cell = await self._cell(http, step)
            errors = any(record["error"] for record in cell["requests"])
            if errors and not await healthy(http):
                raise EngineLostError(f"no engine answers after {step.arm} was measured")
            self.store.add(
                {
                    "arm": step.arm,
                    "concurrency": step.concurrency,
                    "prompt_set": step.prompt_set,
                    "temperature": self.settings.temperature,
                    "max_new_tokens": self.settings.max_new_tokens,
                    "round": step.round,
                    "warmup": step.warmup,
                    **cell,
                    "gpu_before": before,
                    "gpu_after": await gpu_state(),
                }
            )

    async def _prepare(self, http: httpx.AsyncClient, arm: BenchArm) -> None:
        """The arm's budget, and an empty prefix cache so that no arm profits from another."""
        launch = self.config.launches.get(arm.launch)
        if arm.budget is not None and (launch is None or launch.algorithm == "DDTREE"):
            await set_budget(http, arm.budget)
        with contextlib.suppress(httpx.HTTPError):  # an engine without a cache has no such route
            await http.post("/flush_cache")

    async def _cell(self, http: httpx.AsyncClient, step: Step) -> dict[str, Any]:
        settings = self.settings
        kind = "warm-up" if step.warmup else f"round {step.round}/{settings.measured_rounds}"
        name = f"{step.arm}, {step.prompt_set}, concurrency {step.concurrency}, {kind}"
        self.progress.tell(name, keep=False)
        started, count = time.perf_counter(), 0

        def on_request(record: Record) -> None:
            nonlocal count
            count += 1
            self.progress.done += 1
            error = f", error: {record.error}" if record.error else ""
            message = f"{name}: {count}/{step.requests} requests{error}"
            self.progress.tell(message, keep=bool(error))

        sampling = Sampling(
            settings.max_new_tokens,
            settings.temperature,
            settings.ignore_eos,
            settings.chat_format,
        )
        prompts = choose(self.config.prompts[step.prompt_set], step.requests)
        cell = await run_cell(http, prompts, sampling, step.concurrency, on_request)
        self.progress.request_seconds += time.perf_counter() - started
        tokens = sum(record["completion_tokens"] for record in cell["requests"])
        length = accept_length(cell["requests"])
        told = f"{name}: {tokens / cell['wall_s']:.1f} tok/s"
        self.progress.tell(told + (f", accept length {length:.2f}" if length else ""))
        return cell

    async def _cross_check(self, http: httpx.AsyncClient, key: str) -> None:
        """Once, on the baseline's engine: one row measured by a second client too."""
        baseline, launch = self.config.baseline, self.config.launches.get(key)
        wanted = self.config.cross_check and "cross_check" not in self.store.document
        if not wanted or launch is None or baseline is None or baseline.launch != key:
            return
        self.progress.tell("cross-check by sglang.bench_serving")
        settings = self.settings
        sampling = Sampling(settings.max_new_tokens, chat_format=settings.chat_format)
        prompts = self.config.prompts[settings.prompt_sets[0]]
        found = await cross_check(http, launch, prompts, sampling, min(settings.concurrency))
        self.store.document["cross_check"] = found
        self.progress.tell(f"cross-check: {in_words(found)}")

    # -- correctness ------------------------------------------------------------------------

    def _divergences(self) -> list[Divergence]:
        baseline = self.config.baseline
        if baseline is None or self.settings.temperature > 0:
            return []
        cells = self.store.document["cells"]
        names = [arm.name for arm in self.config.arms if arm.name != baseline.name]
        return [item for name in names for item in compare(self.config, cells, name)[1]]

    async def _ask_gaps(self, http: httpx.AsyncClient, key: str) -> None:
        """While the baseline's engine is up: the logit gap of each divergence known by now."""
        baseline = self.config.baseline
        if baseline is None or baseline.launch != key or self.config.near_tie_logits == 0:
            return
        for divergence in self._divergences():
            if self.gaps.get(divergence) is None:
                self.gaps[divergence] = await logit_gap(http, self.config, divergence)

    async def _judge(self) -> None:
        """Writes the correctness rows; starts the baseline's engine again if gaps are missing."""
        baseline = self.config.baseline
        if baseline is None or self.settings.temperature > 0:
            return
        missing = [item for item in self._divergences() if item not in self.gaps]
        if missing and self.config.near_tie_logits > 0:
            try:
                async with self._serving(baseline.launch) as http:
                    await self._ask_gaps(http, baseline.launch)
            except (NotReadyError, EngineLostError, StartError) as error:
                self.progress.tell(f"no logit gaps: {error}")
        rows = []
        for arm in self.config.arms:
            if arm.name != baseline.name:
                count, parted = compare(self.config, self.store.document["cells"], arm.name)
                gaps = [self.gaps.get(item) for item in parted]
                rows.append(verdict(arm.name, count, gaps, self.config.near_tie_logits))
        self.store.document["correctness"] = rows

    def _failed(self, key: str, reason: str) -> None:
        self.progress.tell(f"launch {key} failed: {reason}")
        left = {step.arm for at, rounds in self.config.visits() for step in self._todo(at, rounds)}
        known = {row["name"] for row in self.store.document["failed"]}
        for arm in self.config.arms_of(key):
            if arm.name in left - known:
                self.store.document["failed"].append({"name": arm.name, "reason": reason})
        self.store.save()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--config", type=Path, required=True, help="bench.json of the plan")
    parser.add_argument("--out", type=Path, required=True, help="the result file")
    parser.add_argument("--status", type=Path, help="progress as JSON, for who waits")
    parser.add_argument("--force", action="store_true", help="measure again what is stored")
    parser.add_argument("--served", type=Path, help="the service's launch.json: measure it alone")


def run(args: argparse.Namespace) -> int:
    """0 when the result is complete, 1 when an arm failed or the run was stopped."""
    config = read_config(args.config)
    store = Store(config, args.out)
    if args.force:
        args.out.unlink(missing_ok=True)
        store.part.unlink(missing_ok=True)
    if store.finished():
        print(f"bench: {args.out} already holds the result of {config.fingerprint}")
        return 0
    taken = store.resume()
    if taken:
        print(f"bench: goes on after {taken} cells that are stored")
    processes.become_subreaper()
    bench = Bench(config, store, args.status)
    try:
        if args.served:
            asyncio.run(_until_signal(bench.run_served(args.served), bench))
            return 0
        complete = asyncio.run(_until_signal(bench.run(), bench))
    except HostkitError as error:
        bench.progress.tell(str(error), state="failed", keep=False)
        raise
    if complete:
        store.finish()
        bench.progress.tell("complete", state="complete")
        return 0
    failed = "; ".join(f"{row['name']}: {row['reason']}" for row in store.document["failed"])
    reason = f"not complete, the cells so far are in {store.part}; {failed}"
    bench.progress.tell(reason, state="failed", keep=False)
    raise HostkitError(reason)


async def _until_signal(run: Coroutine[Any, Any, bool], bench: Bench) -> bool:
    """Runs the benchmark; SIGTERM and SIGINT stop the engine and end it with one line."""
    work = asyncio.create_task(run)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, work.cancel)
    try:
        return await work
    except asyncio.CancelledError:
        raise HostkitError(
            f"stopped by a signal; run the same command again to go on after "
            f"{len(bench.store.document['cells'])} cells"
        ) from None
