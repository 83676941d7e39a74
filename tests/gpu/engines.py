"""Start, ask and stop SGLang servers of one GPU; standard library only, since hosts may lack more.

Servers of several arms run side by side on one card: an idle server uses no GPU time, so arms can
be interleaved request by request without reloading anything.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

COMMON = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "host": "127.0.0.1",
    "context-length": "4096",
    # of the whole card, the other servers on it included; --max-total-tokens sets the pool
    "mem-fraction-static": "0.85",
    "cuda-graph-backend-prefill": "disabled",
    "random-seed": "1",
}


@dataclass
class Engine:
    """One server: `arm` is ar, dflash or ddtree; `extra` adds command-line words.

    `port` and `port` + 500 are its own among all scripts, and below the ports that Linux gives to
    clients (32768 on): starting takes a minute, in which such a client could take one.
    """

    arm: str
    target: str
    drafter: str
    port: int
    logs: Path
    width: int = 65
    extra: tuple[str, ...] = ()
    env: dict[str, str] = field(default_factory=dict)
    process: subprocess.Popen[bytes] | None = None

    def argv(self) -> list[str]:
        words = [sys.executable, "-m", "sglang.launch_server", "--model-path", self.target]
        words += [word for key, value in COMMON.items() for word in (f"--{key}", value)]
        words += ["--port", str(self.port), "--nccl-port", str(self.port + 500)]
        if self.arm != "ar":
            words += ["--speculative-algorithm", self.arm.upper()]
            words += ["--speculative-draft-model-path", self.drafter]
        if self.arm == "ddtree":
            words += ["--speculative-num-draft-tokens", str(self.width)]
        return [*words, *self.extra]

    @property
    def log(self) -> Path:
        return self.logs / f"{self.arm}-{self.port}.log"

    def start(self) -> None:
        for port in (self.port, self.port + 500):
            with socket.socket() as probe:
                probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
                try:
                    probe.bind(("127.0.0.1", port))
                except OSError:  # else an older server would be taken for this one
                    sys.exit(f"port {port} of {self.arm} is taken; end the process that listens")
        self.logs.mkdir(parents=True, exist_ok=True)
        env = {**os.environ, **self.env}
        self.process = spawn(self.argv(), self.log, signal.SIGKILL, env)

    def is_up(self) -> bool:
        """Whether it generates."""
        try:
            return "output_ids" in self.generate([10, 11], 2)
        except OSError:
            return False

    def stop(self) -> None:
        process, self.process = self.process, None
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()

    def ask(self, body: dict, path: str = "/generate", timeout_s: float = 60):
        """The server's answer; {"status", "error"} of one that is no 200. OSError: none came."""
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}{path}",
            json.dumps(body).encode(),
            {"Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=timeout_s) as answer:
                text = answer.read().decode()
        except urllib.error.HTTPError as error:
            return {"status": error.code, "error": error.read().decode()}
        except OSError as error:
            kind = TimeoutError if isinstance(error, TimeoutError) else OSError
            raise kind(f"{self.arm} on port {self.port}: {error}, see {self.log}") from error
        try:
            return json.loads(text)
        except ValueError:
            return text

    def state(self) -> dict:
        """What the server says of its tree."""
        with urllib.request.urlopen(f"http://127.0.0.1:{self.port}/server_info", timeout=20) as a:
            return json.load(a)["internal_states"][0]["ddtree"]

    def generate(self, ids: list[int], tokens: int, **sampling) -> dict:
        sampling = {"temperature": 0, "max_new_tokens": tokens, **sampling}
        return self.ask({"input_ids": ids, "sampling_params": sampling})

    def generate_all(self, prompts: list[list[int]], tokens: int, concurrency: int, **sampling):
        def answer(prompt: list[int]) -> dict:
            try:
                return self.generate(prompt, tokens, **sampling)
            except TimeoutError:  # a server that hangs must not cost every request its timeout
                self.stop()
                raise

        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(answer, prompts))

    def set_budget(self, budget: int) -> None:
        answer = self.ask(
            {"server_args": {"speculative_ddtree_budget": budget}}, "/set_internal_state"
        )
        if answer.get("updated") is not True:
            raise RuntimeError(f"budget {budget}: {answer}")


def accept_length(answers: list[dict]) -> float:
    """Pooled: tokens emitted by verify steps over verify steps; a prefill emits the first token."""
    emitted = sum(a["meta_info"]["completion_tokens"] - 1 for a in answers)
    return emitted / sum(a["meta_info"]["spec_verify_ct"] for a in answers)


def step_ms(row: dict) -> float:
    """Milliseconds a step of a row of table.py, its share of the prefill included."""
    return 1e3 * float(row["wall_s"]) * row["concurrency"] / row.get("steps", row["tokens"])


def spawn(argv: Sequence[str], log: Path, last: signal.Signals, env: dict[str, str]):
    """A process in a session of its own that gets the signal `last` when this one is gone.

    So nothing stays behind even where this process is killed outright; SGLang's own children end
    with their parent likewise.
    """
    libc = ctypes.CDLL(None)
    with log.open("wb") as output:
        return subprocess.Popen(
            argv,
            stdout=output,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env=env,
            preexec_fn=lambda: libc.prctl(1, last),  # PR_SET_PDEATHSIG
        )


@contextlib.contextmanager
def running(engines: Sequence[Engine]) -> Iterator[None]:
    """Start servers, and stop them however the block ends, Ctrl-C and SIGTERM included."""

    def stop(*signalled) -> None:
        for engine in engines:
            engine.stop()
        if signalled:  # servers first: a request under way would be waited for
            sys.exit(f"ended by {signal.Signals(signalled[0]).name}")

    signal.signal(signal.SIGINT, stop)
    signal.signal(signal.SIGTERM, stop)
    try:
        for engine in engines:
            engine.start()
        yield
    finally:
        stop()


def wait(engines: Sequence[Engine], timeout_s: float = 240) -> None:
    """Until all generate. One that dies or is late is stopped, and the end of its log printed.

    Whatever is asked of it then fails at once; the others can still be checked.
    """
    end = time.monotonic() + timeout_s
    missing = list(engines)
    while missing := [e for e in missing if e.process is not None and not e.is_up()]:
        for engine in missing:
            code = engine.process.poll() if engine.process else None
            if code is not None or time.monotonic() > end:
                what = "late" if code is None else f"ended with exit code {code}"
                print(engine.log.read_text(errors="replace")[-2500:])
                print(f"FAIL {engine.arm} on port {engine.port}: {what}, see {engine.log}")
                engine.stop()
        time.sleep(1)
    failed = not all(engine.process for engine in engines)
    print("servers are up" + ", but for those that failed" * failed, flush=True)


def hold(path: Path | None) -> None:
    """Wait for a file, so that several scripts start servers at once and measure in turn."""
    while path is not None and not path.exists():
        time.sleep(0.2)


PROMPTS = (
    "What is the capital of France and what is it known for?",
    "Write a short story about a robot who learns to paint.",
    "Explain how photosynthesis works.",
    "Write a Python function that checks whether a number is prime.",
    "List five tips for better sleep.",
    "Describe the water cycle.",
    "What are the benefits of regular exercise?",
    "Write a poem about the sea.",
)


def prompt_ids(target: str) -> list[list[int]]:
    """The eight chat prompts as token ids of the target's own template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(target)
    ids = []
    for text in PROMPTS:
        out = tokenizer.apply_chat_template(
            [{"role": "user", "content": text}], tokenize=True, add_generation_prompt=True
        )
        ids.append(list(out if isinstance(out, list) else out["input_ids"]))
    return ids
