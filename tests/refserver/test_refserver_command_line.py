import asyncio
import json
import re
import shutil
import socket
import subprocess
import sys

import httpx
import pytest
from refserver.command_line import parse
from refserver.http import Api, Settings
from refserver.metrics import Metrics
from refserver.worker import Worker
from server_process import command, environment, free_port


def run(*options):
    """Exit code and standard error of a server that is expected to end by itself."""
    done = subprocess.run(
        command(*options), env=environment(), capture_output=True, text=True, timeout=60
    )
    return done.returncode, done.stderr


def refused(*options):
    """The one line that the server says before it ends with code 1."""
    code, text = run("--port", str(free_port()), *options)
    assert code == 1, text
    (line,) = text.splitlines()
    return line


def tree(pair, width="9"):
    return (
        *("--model-path", str(pair.target), "--speculative-algorithm", "DDTREE"),
        *("--speculative-draft-model-path", str(pair.drafter)),
        *("--speculative-num-draft-tokens", width),
    )


def test_help_says_what_each_option_is(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["--help"])
    assert end.value.code == 0
    options = re.split(r"\n  (?=-)", capsys.readouterr().out.partition("\noptions:")[2])[1:]
    assert len(options) == 11
    for option in options:
        assert re.search(r"\S\s{2,}\S", option), option


def test_a_missing_model_is_refused(tmp_path):
    line = refused("--model-path", str(tmp_path / "none"))
    assert line.startswith("refserver: error: expected --model-path to be a model folder")


def test_a_folder_without_a_model_is_refused(tmp_path):
    assert "found 0 .gguf files" in refused("--model-path", str(tmp_path))


def test_a_missing_drafter_is_refused(tiny, tmp_path):
    options = tree(tiny)
    line = refused(*options, "--speculative-draft-model-path", str(tmp_path / "none"))
    assert line.endswith("config.json, found no such file")


def test_an_algorithm_without_a_drafter_is_refused(tiny):
    line = refused("--model-path", str(tiny.target), "--speculative-algorithm", "DFLASH")
    assert "expected --speculative-draft-model-path with DFLASH" in line


def test_a_drafter_without_an_algorithm_is_refused(tiny):
    options = ("--speculative-draft-model-path", str(tiny.drafter))
    line = refused("--model-path", str(tiny.target), *options)
    assert "expected --speculative-algorithm" in line


@pytest.mark.parametrize("width", ["1", "6"])
def test_a_chain_longer_than_the_block_is_refused(tiny, width):
    options = (*tree(tiny, width), "--speculative-algorithm", "DFLASH")
    assert "in 2..5 for DFLASH (the drafter's block is 5), found " + width in refused(*options)


def test_a_tree_without_nodes_is_refused(tiny):
    assert "= B + 1 in 2..1025 for DDTREE, found 1" in refused(*tree(tiny, "1"))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hidden_size": 64}, "expected hidden_size 32, found 64"),
        ({"vocab_size": 99}, "expected vocab_size 260, found 99"),
        ({"num_target_layers": 9}, "expected num_target_layers 3, found 9"),
        (
            {"dflash_config": {"target_layer_ids": [0, 3], "mask_token_id": 3}},
            "expected target_layer_ids in 0..2, found [0, 3]",
        ),
        (
            {"dflash_config": {"target_layer_ids": [0, 2], "mask_token_id": 260}},
            "expected mask_token_id below 260, found 260",
        ),
        ({"architectures": ["LlamaForCausalLM"]}, "of architecture 'DFlashDraftModel'"),
    ],
)
def test_a_drafter_for_another_target_is_refused(tiny, tmp_path, change, message):
    drafter = tmp_path / "drafter"
    shutil.copytree(tiny.drafter, drafter)
    config = json.loads((drafter / "config.json").read_text()) | change
    (drafter / "config.json").write_text(json.dumps(config))
    options = (*tree(tiny), "--speculative-draft-model-path", str(drafter))
    assert message in refused(*options)


def test_a_port_in_use_is_refused(tiny):
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = str(other.getsockname()[1])
        line = refused("--model-path", str(tiny.target), "--port", port)
    assert f"expected 127.0.0.1:{port} to be free" in line


def test_damaged_weights_end_the_server_with_one_line(tiny, tmp_path):
    target = tmp_path / "target"
    shutil.copytree(tiny.target, target)
    (target / "model.safetensors").write_bytes(b"nonsense")
    code, text = run("--model-path", str(target), "--port", str(free_port()))
    assert code == 1
    assert "refserver: error: expected a whole safetensors file" in text
    assert len(text.splitlines()) == 1


def test_a_context_longer_than_the_target_s_is_refused(tiny):
    line = refused("--model-path", str(tiny.target), "--context-length", "9999")
    assert "expected --context-length in 1..256 (the target's own), found 9999" in line


def test_progress_is_printed_up_to_ready(tree_server):
    lines = tree_server.log.read_text().splitlines()
    assert [line.split()[1] for line in lines[:3]] == ["reading", "reading", "ready"]


def test_sigterm_stops_a_busy_server_with_code_zero(servers, tiny):
    server = servers.start("--model-path", str(tiny.target))
    body = {"text": "hello", "stream": True, "sampling_params": {"max_new_tokens": 250}}
    body["sampling_params"]["ignore_eos"] = True
    with server.http() as http, http.stream("POST", "/generate", json=body) as answer:
        next(answer.iter_lines())
        server.process.terminate()
        assert server.process.wait(timeout=30) == 0


def test_a_server_still_loading_answers_503():
    metrics = Metrics("m")
    app = Api(Worker(metrics), metrics, Settings("m", {"model_path": "m"})).app()

    async def ask():
        transport = httpx.ASGITransport(app)
        async with httpx.AsyncClient(transport=transport, base_url="http://m") as http:
            return await http.get("/health"), await http.post("/generate", json={"text": "x"})

    health, generated = asyncio.run(ask())
    assert (health.status_code, generated.status_code) == (503, 503)
    assert generated.json()["error"]["message"] == "the model is still loading"


def test_the_accept_length_is_unknown_before_the_first_verify_step():
    assert Metrics("m").average_accept_length is None


def test_a_python_without_the_modules_is_told_in_one_line():
    code = (
        "import runpy, sys; sys.modules['uvicorn'] = None; "
        "runpy.run_module('refserver', None, '__main__')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment(), capture_output=True, text=True, timeout=60
    )
    assert done.returncode == 1
    (line,) = done.stderr.splitlines()
    assert "needs the module uvicorn" in line and "requirements.lock" in line
