"""A fake engine: speaks the engine's HTTP contract without a model; for hostkit's own tests only.

Its tokens are a hash of prompt and position, its accept lengths come from its options, its times
mean nothing. It can die, hang, be slow to start, or start a helper that leaves its group.
"""

import argparse
import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

parser = argparse.ArgumentParser()
parser.add_argument("--port", type=int, required=True)
parser.add_argument("--host", default="127.0.0.1")
parser.add_argument("--model-path")
parser.add_argument("--speculative-algorithm")
parser.add_argument("--speculative-num-draft-tokens", type=int, default=5)
parser.add_argument("--accept", type=int, default=3, help="tokens emitted a verify step")
parser.add_argument("--slow-start", type=float, default=0.0)
parser.add_argument("--slow-first", type=float, default=0.0, help="seconds of a generation")
parser.add_argument("--say", action="append", default=[], help="a log line at start")
parser.add_argument("--die", type=int, help="exit code, at start")
parser.add_argument("--die-by-kill", action="store_true")
parser.add_argument("--die-after", type=float, help="seconds of serving")
parser.add_argument("--die-once", type=Path, help="die at a request only while FILE is absent")
parser.add_argument("--die-at-request", type=int, help="number of the last generation")
parser.add_argument("--hang", action="store_true", help="never serve, no output")
parser.add_argument("--no-counters", action="store_true")
parser.add_argument("--no-budget", action="store_true", help="refuse /set_internal_state")
parser.add_argument("--helper", type=Path, help="start a stubborn helper that leaves the group")
parser.add_argument("--deaf", action="store_true", help="ignore SIGTERM")
parser.add_argument("--diverge-at", type=int, help="position of one wrong token")
parser.add_argument("--gap", type=float, default=3.0, help="top-1/top-2 logit gap everywhere")
parser.add_argument("--fail-every", type=int, help="each N-th generation answers 500")
args = parser.parse_args()
started = time.monotonic()
state = {"budget": args.speculative_num_draft_tokens - 1, "requests": 0, "running": 0, "peak": 0}
lock = threading.Lock()


def token(ids, position):
    text = json.dumps([ids[: len(ids)], position]).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:2], "big")


def prompt_of(body):
    if body.get("input_ids") is not None:
        return list(body["input_ids"])
    return [byte + 3 for byte in body["text"].encode()]


def generated(prompt, count, lie=True):
    """Token i depends on all before it; a chain of hashes."""
    ids = list(prompt)
    for position in range(count):
        new = token(ids, 0)
        if lie and args.diverge_at == position:
            new = new ^ 1
        ids.append(new)
    return ids[len(prompt) :]


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def log_message(self, *_):
        pass

    def reply(self, code, data):
        body = json.dumps(data).encode()
        self.send_response(code)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def tell(self, text):
        body = text.encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self):
        if self.path == "/metrics":
            running, total = state["running"], state["requests"]
            return self.tell(
                f"sglang:num_running_reqs {running}\nsglang:num_requests_total {total}\n"
            )
        if self.path == "/health":
            up = time.monotonic() - started >= args.slow_start
            return self.reply(200 if up else 503, {})
        if self.path == "/v1/models":
            return self.reply(200, {"object": "list", "data": [{"id": "fake"}]})
        if self.path == "/server_info":
            return self.reply(
                200,
                {
                    "version": "fake-1",
                    "speculative_algorithm": args.speculative_algorithm,
                    "speculative_ddtree_budget": state["budget"],
                    "requests": state["requests"],
                    "peak": state["peak"],
                    "pid": os.getpid(),
                    "environment": dict(os.environ),
                    "internal_states": [{"avg_spec_accept_length": 1.0}],
                },
            )
        return self.reply(404, {})

    def do_POST(self):
        length = int(self.headers.get("Content-Length") or 0)
        body = json.loads(self.rfile.read(length) or b"{}")
        if self.path == "/set_internal_state":
            if args.no_budget or args.speculative_algorithm != "DDTREE":
                return self.reply(400, {"error": "no DDTREE here"})
            state["budget"] = body["server_args"]["speculative_ddtree_budget"]
            return self.reply(200, {"updated": True})
        if self.path == "/flush_cache":
            return self.reply(200, {})
        if self.path == "/generate":
            with lock:
                state["requests"] += 1
                number = state["requests"]
                state["running"] += 1
                state["peak"] = max(state["peak"], state["running"])
            if number == args.die_at_request and not (args.die_once and args.die_once.exists()):
                if args.die_once:
                    args.die_once.touch()
                print("RuntimeError: told to die", flush=True)
                os._exit(3)
            try:
                if args.fail_every and number % args.fail_every == 0:
                    return self.reply(500, {"error": "told to fail"})
                time.sleep(args.slow_first if number == 1 else 0)
                return self.generate(body)
            finally:
                with lock:
                    state["running"] -= 1
        return self.reply(404, {})

    def meta(self, prompt, done, steps, ended):
        meta = {
            "id": "fake",
            "prompt_tokens": len(prompt),
            "completion_tokens": done,
            "finish_reason": {"type": "length"} if ended else None,
            "e2e_latency": 0.1,
        }
        if args.speculative_algorithm and not args.no_counters:
            meta |= {
                "spec_verify_ct": steps,
                "spec_accept_length": done / max(steps, 1),
                "spec_correct_drafts_histogram": [0] * (args.accept - 1) + [steps],
            }
        return meta

    def generate(self, body):
        prompt, params = prompt_of(body), body["sampling_params"]
        count = params["max_new_tokens"]
        ids = generated(prompt, count, lie=bool(args.speculative_algorithm))
        size = args.accept if args.speculative_algorithm else 1
        if not body.get("stream"):
            meta = self.meta(prompt, count, -(-count // size), True)
            if body.get("return_logprob"):
                best = ids[0]
                meta["input_token_logprobs"] = [[None, token_id, None] for token_id in prompt]
                meta["output_top_logprobs"] = [
                    [[-0.1, best, None], [-0.1 - args.gap, best ^ 1, None]]
                ]
            return self.reply(200, {"text": "x" * count, "output_ids": ids, "meta_info": meta})
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream")
        self.send_header("Connection", "close")
        self.end_headers()
        steps = 0
        for end in range(size, count + size, size):
            end, steps = min(end, count), steps + 1
            chunk = {
                "text": "x" * end,
                "output_ids": ids[:end],
                "meta_info": self.meta(prompt, end, steps, end == count),
            }
            self.wfile.write(f"data: {json.dumps(chunk)}\n\n".encode())
            self.wfile.flush()
            time.sleep(0.002)
        self.wfile.write(b"data: [DONE]\n\n")
        self.close_connection = True
        return None


for line in args.say:
    print(line, flush=True)
if args.deaf:
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
if args.helper:
    code = (
        "import os, signal, sys, time; os.setsid(); signal.signal(signal.SIGTERM, signal.SIG_IGN);"
        "open(sys.argv[1], 'w').write(str(os.getpid())); time.sleep(600)"
    )
    subprocess.Popen([sys.executable, "-c", code, str(args.helper)], start_new_session=False)
if args.die is not None:
    sys.exit(args.die)
if args.die_by_kill:
    os.kill(os.getpid(), signal.SIGKILL)
if args.hang:
    time.sleep(600)
if args.die_after is not None:

    def die():
        print("RuntimeError: told to die", flush=True)
        os._exit(3)

    threading.Timer(args.slow_start + args.die_after, die).start()
print("fake engine up", flush=True)
ThreadingHTTPServer((args.host, args.port), Handler).serve_forever()
