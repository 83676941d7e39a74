"""The command line, with SGLang's option names."""

import argparse
import contextlib
import logging
import os
import signal
import socket
import sys
import time
from pathlib import Path
from types import FrameType

import uvicorn

from .config import DrafterConfig, Speculation
from .engine import Engine, load
from .errors import RefserverError
from .http import Api, Settings
from .metrics import Metrics
from .weights import find_gguf, read_json
from .worker import Worker


def parse(argv: list[str] | None = None) -> argparse.Namespace:
    """The options; unknown ones end the process with argparse's message."""
    parser = argparse.ArgumentParser(prog="refserver", description="The CPU reference engine.")
    add = parser.add_argument
    model = "a folder with one .gguf, the file itself, or a Hugging Face folder"
    add("--model-path", required=True, type=Path, metavar="MODEL", help=model)
    algorithm = "speculate with the drafter's chain (DFLASH) or a draft tree (DDTREE); else none"
    add("--speculative-algorithm", choices=["DFLASH", "DDTREE"], help=algorithm)
    drafter = "the DFlash drafter's folder"
    add("--speculative-draft-model-path", type=Path, metavar="FOLDER", help=drafter)
    width = "tokens of a verify step: budget + 1 (DDTREE), 2 up to the drafter's block (DFLASH)"
    add("--speculative-num-draft-tokens", type=int, metavar="N", help=width)
    spine = "a tree holds the drafter's most likely chain before any other node"
    add("--speculative-ddtree-spine-first", action="store_true", help=spine)
    add("--host", default="127.0.0.1", help="address to listen on (default %(default)s)")
    add("--port", default=30000, type=int, help="port to listen on (default %(default)s)")
    name = "the model's name in answers (default MODEL)"
    add("--served-model-name", metavar="NAME", help=name)
    seed = "seed of sampled output (default %(default)s)"
    add("--random-seed", default=0, type=int, metavar="SEED", help=seed)
    context = "most tokens of prompt and output together (default the model's own)"
    add("--context-length", type=int, metavar="N", help=context)
    return parser.parse_args(argv)


def speculation(args: argparse.Namespace) -> Speculation | None:
    """The speculation settings, checked as far as config files go (no weights are read)."""
    algorithm, drafter = args.speculative_algorithm, args.speculative_draft_model_path
    if algorithm is None:
        if drafter or args.speculative_num_draft_tokens is not None:
            raise RefserverError(
                "expected --speculative-algorithm with the other --speculative options, found none"
            )
        return None
    if drafter is None:
        raise RefserverError(
            f"expected --speculative-draft-model-path with {algorithm}, found none"
        )
    config = DrafterConfig.from_json(read_json(drafter / "config.json"))
    width = args.speculative_num_draft_tokens
    if width is None:
        if algorithm == "DDTREE":
            raise RefserverError(
                "expected --speculative-num-draft-tokens (budget + 1) with DDTREE, found none"
            )
        width = config.block_size
    settings = Speculation(algorithm, str(drafter), width)
    settings.check_width(config.block_size)
    return settings


def bind(host: str, port: int) -> socket.socket:
    """A listening socket. Raises RefserverError when the address can't be had."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=256)
    except (OSError, OverflowError) as error:
        raise RefserverError(
            f"expected {host}:{port} to be free, found: {error}; end what uses it or choose "
            "another --port"
        ) from None


def serve(args: argparse.Namespace) -> int:
    """Load and serve until a signal; returns the exit code."""
    find_gguf(args.model_path)
    settings = speculation(args)
    listener = bind(args.host, args.port)
    name = args.served_model_name or str(args.model_path)
    shown = {key: str(v) if isinstance(v, Path) else v for key, v in vars(args).items()}
    shown["served_model_name"] = name
    shown["speculative_num_draft_tokens"] = settings.verify_width if settings else None

    metrics = Metrics(name)
    worker = Worker(metrics)
    app = Api(worker, metrics, Settings(name, shown)).app()
    config = uvicorn.Config(app, log_level="warning", timeout_graceful_shutdown=2)
    server = Server(config, worker)

    def build() -> Engine:
        started = time.perf_counter()
        loaded = load(args.model_path, settings, say)
        engine = Engine(
            loaded,
            settings,
            args.context_length,
            args.random_seed,
            args.speculative_ddtree_spine_first,
        )
        seconds, threads = time.perf_counter() - started, os.environ.get("OPENBLAS_NUM_THREADS")
        say(f"ready on {args.host}:{args.port} after {seconds:.1f} s, BLAS threads: {threads}")
        return engine

    def stop() -> None:
        server.should_exit = True

    # uvicorn raises the signal again after its shutdown: a stop that was asked for is no failure
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: None)
    worker.start(build, failed=stop)
    with contextlib.closing(listener):
        server.run(sockets=[listener])
    if worker.error:
        raise RefserverError(worker.error)
    say("stopped")
    return 0


class Server(uvicorn.Server):
    """Ends the requests at a signal, so that their connections close at once."""

    def __init__(self, config: uvicorn.Config, worker: Worker) -> None:
        super().__init__(config)
        self._worker = worker

    def handle_exit(self, sig: int, frame: FrameType | None) -> None:
        """uvicorn's signal handler."""
        self._worker.cancel_all()
        super().handle_exit(sig, frame)


def say(line: str) -> None:
    """A progress line."""
    print(f"refserver: {line}", flush=True)


def main() -> int:
    """Entry point; bad input is one line on standard error and exit code 1."""
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    try:
        return serve(parse())
    except RefserverError as error:
        print(f"refserver: error: {error}", file=sys.stderr)
        return 1
