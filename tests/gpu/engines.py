"""Start, ask and stop SGLang servers of one GPU; standard library only, since hosts may lack more.

Servers of several arms run side by side on one card: an idle server uses no GPU time, so arms can
be interleaved request by request without reloading anything.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

COMMON = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "host": "127.0.0.1",
    "context-length": "4096",
    "mem-fraction-static": "0.55",
    "cuda-graph-backend-prefill": "disabled",
    "random-seed": "1",
}


@dataclass
class Engine:
    """One server: `arm` is ar, dflash or ddtree; `extra` adds command-line words."""

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

    def start(self) -> Engine:
        self.logs.mkdir(parents=True, exist_ok=True)
        log = (self.logs / f"{self.arm}-{self.port}.log").open("wb")
        self.process = subprocess.Popen(
            self.argv(),
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            env={**os.environ, **self.env},
        )
        return self

    def wait(self, timeout_s: float) -> None:
        """Until a token was generated; RuntimeError with the log's end if it dies or is late."""
        end = time.monotonic() + timeout_s
        while time.monotonic() < end:
            if self.process is not None and self.process.poll() is not None:
                break
            try:
                self.generate([10, 11], 2)
                return
            except OSError:
                time.sleep(1)
        log = self.logs / f"{self.arm}-{self.port}.log"
        raise RuntimeError(f"{self.arm} did not start:\n" + log.read_text()[-6000:])

    def stop(self) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()

    def ask(self, body: dict, path: str = "/generate", timeout_s: float = 120):
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
        with ThreadPoolExecutor(concurrency) as pool:
            return list(pool.map(lambda p: self.generate(p, tokens, **sampling), prompts))

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


def hold(path: Path | None, seconds: float = 400) -> None:
    """Wait for a file, so that several scripts start servers at once and measure in turn."""
    end = time.monotonic() + seconds
    while path is not None and not path.exists() and time.monotonic() < end:
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
