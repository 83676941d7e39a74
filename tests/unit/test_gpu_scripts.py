"""Scripts of tests/gpu on a machine without torch or GPU."""

import contextlib
import importlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

SCRIPTS = Path(__file__).parents[1] / "gpu"
WITHOUT_TORCH = """
import runpy, sys
sys.modules.update(torch=None, safetensors=None)
sys.argv = sys.argv[1:]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


def test_the_models_script_says_how_it_is_used():
    words = [sys.executable, "-c", WITHOUT_TORCH, str(SCRIPTS / "models.py"), "--help"]
    done = subprocess.run(words, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert "models.py widen HF_DIR OUT FACTOR" in done.stdout


# A server that answers anything with two tokens; port 27001's cannot start.
SERVER = """
import sys
from http.server import BaseHTTPRequestHandler, HTTPServer

port = int(sys.argv[sys.argv.index("--port") + 1])
if port == 27001:
    sys.exit("not enough memory")

class Handler(BaseHTTPRequestHandler):
    def do_POST(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(b'{"output_ids": [1, 2]}')

HTTPServer(("127.0.0.1", port), Handler).serve_forever()
"""
SCRIPT = """
import time
from pathlib import Path
from engines import Engine, running, wait

servers = [Engine(arm, "m", "d", 27000 + i, Path()) for i, arm in enumerate(("ar", "dflash"))]
with running(servers):
    wait(servers)
    print("pid", servers[0].process.pid, flush=True)
    time.sleep(600)
"""


@pytest.fixture
def script(tmp_path):
    """A GPU script with a server that comes up and one that does not; ended after the test."""
    (tmp_path / "sglang").mkdir()
    (tmp_path / "sglang/launch_server.py").write_text(SERVER)
    env = {**os.environ, "PYTHONPATH": f"{tmp_path}:{SCRIPTS}"}
    words = [sys.executable, "-c", SCRIPT]
    process = subprocess.Popen(
        words, cwd=tmp_path, env=env, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    yield process
    process.kill()
    process.wait()
    process.stdout.close()


def lines_until_up(script) -> list[str]:
    lines = []
    for line in script.stdout:
        lines.append(line.strip())
        if line.startswith("pid "):
            return lines
    raise AssertionError(lines)


def test_a_server_that_cannot_start_is_named_and_the_others_go_on(script):
    *said, last = lines_until_up(script)
    assert said == [
        "not enough memory",
        "",
        "FAIL dflash on port 27001: ended with exit code 1, see dflash-27001.log",
        "servers are up, but for those that failed",
    ]
    os.kill(int(last.split()[1]), 0)


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_servers_end_with_their_script(script, how):
    server = int(lines_until_up(script)[-1].split()[1])
    script.send_signal(how)
    said, _ = script.communicate()
    assert said == ("" if how == signal.SIGKILL else f"ended by {how.name}\n")
    with contextlib.suppress(FileNotFoundError):
        while "\nState:\tZ" not in Path(f"/proc/{server}/status").read_text():  # not yet reaped
            time.sleep(0.05)
    assert script.returncode == (-how if how == signal.SIGKILL else 1)


def test_a_taken_port_is_an_error_and_no_server_to_ask(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    engines = importlib.import_module("engines")
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        with pytest.raises(SystemExit, match=f"port {port} of ar is taken"):
            engines.Engine("ar", "m", "d", port, tmp_path).start()


def test_no_two_servers_of_the_scripts_share_a_port(tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(SCRIPTS)
    engines = []

    def running(servers):
        engines.extend(servers)
        raise KeyboardInterrupt

    words = ["--target", "T", "--drafter", "D", "--out", str(tmp_path)]
    extra = {"table": ["--arms", "ar,dflash,ddtree,extend"]}
    for name in ("check", "table", "mla_moe", "steps"):
        module = importlib.import_module(name)
        monkeypatch.setattr(module, "running", running)
        monkeypatch.setattr(sys, "argv", [name, *words, *extra.get(name, [])])
        with pytest.raises(KeyboardInterrupt):
            module.main()
    ports = [port for engine in engines for port in (engine.port, engine.port + 500)]
    assert len(engines) == 11
    assert len(set(ports)) == len(ports)
    assert max(ports) < 32768  # where Linux's ports for clients begin
