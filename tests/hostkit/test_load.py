"""`hostkit load` against the fake engine: what is recorded, counted and refused."""

import asyncio
import json
import subprocess
import sys

import httpx
import pytest
from hostkit.__main__ import main
from hostkit.errors import HostkitError
from hostkit.load import accept_length, table
from hostkit.load_client import Record, Sampling, choose, load_http, run_cell
from hostkit.prompts import BUILT_IN, Prompt, guess_format, read_prompts, render
from hostkit_processes import FAKE, eventually, free_port


@pytest.fixture
def fake():
    """Starts fake engines; gives their URL."""
    processes = []

    def start(*options):
        port = free_port()
        processes.append(
            subprocess.Popen([sys.executable, str(FAKE), "--port", str(port), *options])
        )
        url = f"http://127.0.0.1:{port}"

        def up():
            try:
                return httpx.get(f"{url}/health").status_code == 200
            except httpx.HTTPError:
                return False

        eventually(up)
        return url

    yield start
    for process in processes:
        process.kill()
        process.wait()


def cell_of(url, count=4, concurrency=2, tokens=7):
    async def measure():
        async with load_http(url, concurrency) as http:
            prompts = choose(read_prompts("chat"), count)
            return await run_cell(http, prompts, Sampling(tokens), concurrency)

    return asyncio.run(measure())


def test_each_request_is_recorded_with_the_engines_counts(fake):
    cell = cell_of(fake("--speculative-algorithm", "DFLASH", "--accept", "3"))
    assert [record["completion_tokens"] for record in cell["requests"]] == [7] * 4
    first = cell["requests"][0]
    assert first["verify_steps"] == 3
    assert [tokens for _, tokens in first["chunks"]] == [3, 3, 1]
    assert len(first["output_ids"]) == 7
    assert 0 <= first["start_s"] < first["first_token_s"] <= first["end_s"] <= cell["wall_s"]


def test_an_autoregressive_engine_has_no_verify_steps(fake):
    record = cell_of(fake(), count=1)["requests"][0]
    assert (record["verify_steps"], record["accept_histogram"]) == (None, None)


def test_the_asked_concurrency_reaches_the_engine(fake):
    url = fake()
    cell = cell_of(url, count=8, concurrency=4)
    assert httpx.get(f"{url}/server_info").json()["peak"] == 4
    assert 1 < cell["effective_concurrency"] <= 4


def test_a_failed_request_is_a_record_with_its_error(fake):
    cell = cell_of(fake("--fail-every", "2"), count=4)
    errors = [record["error"] for record in cell["requests"] if record["error"]]
    assert len(cell["requests"]) == 4
    assert len(errors) == 2
    assert errors[0].startswith("HTTP 500")


def test_no_engine_at_all_is_an_error_on_every_record():
    cell = cell_of(f"http://127.0.0.1:{free_port()}", count=2)
    assert all("ConnectError" in record["error"] for record in cell["requests"])


def test_accept_length_is_pooled_over_requests():
    records = [
        {"error": None, "verify_steps": 10, "completion_tokens": 10},
        {"error": None, "verify_steps": 1, "completion_tokens": 5},
        {"error": "x", "verify_steps": 1, "completion_tokens": 100},
    ]
    assert accept_length(records) == pytest.approx(15 / 11)


def test_tokens_of_an_incremental_stream_are_joined():
    record = Record("p", 0.0)
    for total, ids in ((2, [1, 2]), (3, [3])):
        meta = {"completion_tokens": total, "prompt_tokens": 4}
        record.take({"meta_info": meta, "output_ids": ids}, 1.0)
    assert record.output_ids == [1, 2, 3]


def test_the_command_prints_a_table_and_writes_the_records(fake, tmp_path, capsys):
    url = fake("--speculative-algorithm", "DDTREE")
    out = tmp_path / "cell.json"
    options = ["--requests", "3", "--concurrency", "2", "--max-new-tokens", "6"]
    assert main(["load", "--url", url, *options, "--json", str(out)]) == 0
    printed = capsys.readouterr().out
    assert "3 of 3 requests, concurrency 2" in printed
    assert "accept length 3.000 (pooled)" in printed
    assert len(json.loads(out.read_text())["requests"]) == 3


def test_the_command_ends_with_1_when_a_request_failed(fake, capsys):
    assert main(["load", "--url", fake("--fail-every", "3"), "--requests", "3"]) == 1
    assert "ERROR HTTP 500" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--prompts", "poems"], "prompt set 'poems' is unknown; expected one of chat, code"),
        (["--prompts", "path:/nonexistent"], "prompts can't be read"),
        (["--concurrency", "0"], "--concurrency expected at least 1, found 0"),
        ([], "no engine answers on /server_info"),
    ],
)
def test_bad_input_gets_one_line(options, words, capsys):
    url = f"http://127.0.0.1:{free_port()}"
    assert main(["load", "--url", url, *options]) == 1
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1


def test_a_cell_without_any_answer_still_prints():
    bad = {"prompt_id": "a", "error": "HTTP 500", "verify_steps": None, "completion_tokens": 0}
    cell = {"requests": [bad], "concurrency": 1, "effective_concurrency": 1.0, "wall_s": 1.0}
    assert "0 of 1 requests" in table(cell)


@pytest.mark.parametrize("name", BUILT_IN)
def test_built_in_sets_are_licensed_and_hold_8_to_16_different_prompts(name):
    prompts = read_prompts(name)
    assert 8 <= len({prompt.text for prompt in prompts}) == len(prompts) <= 16
    path = FAKE.parents[2] / "files" / "hostkit" / "prompts" / f"{name}.json"
    assert "Apache-2.0" in json.loads(path.read_text())["licence"]


@pytest.mark.parametrize(
    "item",
    [
        {"prompt": "hello"},
        {"conversations": [{"from": "system", "value": "s"}, {"from": "human", "value": "hello"}]},
        {"question_id": 7, "category": "coding", "turns": ["hello", "and then"]},
        {"messages": [{"role": "user", "content": "hello"}]},
    ],
)
def test_prompt_files_of_the_usual_kinds_are_read(tmp_path, item):
    for text in (json.dumps(item) + "\n", json.dumps([item])):
        file = tmp_path / "set.jsonl"
        file.write_text(text)
        assert [prompt.text for prompt in read_prompts(f"path:{file}")] == ["hello"]


def test_prompts_with_equal_ids_are_numbered(tmp_path):
    file = tmp_path / "set.jsonl"
    file.write_text('{"id": 1, "prompt": "a"}\n{"id": 1, "prompt": "b"}\n')
    assert [prompt.id for prompt in read_prompts(f"path:{file}")] == ["set/0", "set/1"]


@pytest.mark.parametrize("text", ['{"prompt": "a"}\n{', "{}", "[1, 2]", ""])
def test_a_prompt_file_without_prompts_is_refused(tmp_path, text):
    file = tmp_path / "set.jsonl"
    file.write_text(text)
    with pytest.raises(HostkitError, match=r"set\.jsonl"):
        read_prompts(f"path:{file}")


def test_braces_in_a_prompt_are_left_alone():
    assert render("a {0} {b}", "none") == "a {0} {b}"


def test_the_chat_format_follows_the_models_name():
    names = ("/m/SmolLM2-135M-Instruct", "Kimi-K2.6", "other")
    assert [guess_format(name) for name in names] == ["chatml", "kimi", "none"]


def test_an_unknown_chat_format_is_refused():
    with pytest.raises(HostkitError, match="chat format 'x' is unknown"):
        render("a", "x")


def test_a_small_set_is_repeated_to_the_asked_count():
    prompts = [Prompt("a", "a"), Prompt("b", "b")]
    assert [prompt.id for prompt in choose(prompts, 5)] == ["a", "b", "a", "b", "a"]
