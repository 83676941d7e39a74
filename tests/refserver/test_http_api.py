"""The API of a real server in a process of its own, on a tiny made pair."""

import itertools
import json
import re
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from refserver.engine import Engine, Loaded
from refserver.output import Request
from server_process import wait_until


@pytest.fixture
def http(tree_server):
    with tree_server.http() as client:
        yield client


def generate(http, **params):
    body = {"text": "hello", "sampling_params": {"temperature": 0, "ignore_eos": True} | params}
    return http.post("/generate", json=body)


def events(http, path, body):
    """The data of all events of a stream, parsed; checks that it ends with [DONE]."""
    answer = http.post(path, json=body | {"stream": True})
    assert answer.headers["content-type"].startswith("text/event-stream")
    lines = [line.removeprefix("data: ") for line in answer.text.split("\n") if line]
    assert lines.pop() == "[DONE]"
    return [json.loads(line) for line in lines]


def metric(http, name):
    text = http.get("/metrics").text
    return float(re.search(rf"^sglang:{name}{{[^}}]*}} (\S+)$", text, re.MULTILINE)[1])


def test_health_answers_200_when_ready(http):
    assert http.get("/health").status_code == 200


def test_the_served_model_is_listed_with_its_context(http):
    (card,) = http.get("/v1/models").json()["data"]
    assert (card["id"], card["max_model_len"]) == ("tiny", 256)


def test_generate_gives_what_the_engine_gives(http, tiny_loaded):
    answer = generate(http, max_new_tokens=30).json()
    prompt = tuple(tiny_loaded.tokenizer.encode("hello"))
    plain = Engine(Loaded(tiny_loaded.target, tiny_loaded.tokenizer))
    expected = plain.generate(Request(prompt, 30, ignore_eos=True))
    assert (answer["output_ids"], answer["text"]) == (list(expected.output_ids), expected.text)


def test_meta_info_carries_the_speculation_counters(http):
    meta = generate(http, max_new_tokens=30).json()["meta_info"]
    histogram, steps = meta["spec_correct_drafts_histogram"], meta["spec_verify_ct"]
    assert (meta["prompt_tokens"], meta["completion_tokens"]) == (5, 30)
    assert meta["finish_reason"] == {"type": "length", "length": 30}
    assert sum(histogram) == steps
    assert 1 + sum((k + 1) * n for k, n in enumerate(histogram)) == 30
    assert meta["spec_num_correct_drafts"] == 29 - steps
    assert meta["spec_num_proposed_drafts"] == 8 * steps
    assert meta["spec_accept_length"] == pytest.approx(30 / steps)
    assert meta["spec_accept_rate"] == pytest.approx((29 - steps) / (8 * steps))
    assert meta["e2e_latency"] > 0


def test_input_ids_stand_for_the_text(http, tiny_loaded):
    ids = tiny_loaded.tokenizer.encode("hello")
    params = {"max_new_tokens": 9, "temperature": 0, "ignore_eos": True}
    by_ids = http.post("/generate", json={"input_ids": ids, "sampling_params": params}).json()
    assert by_ids["output_ids"] == generate(http, max_new_tokens=9).json()["output_ids"]


def test_a_generate_stream_is_cumulative_and_ends_with_the_whole(http):
    params = {"max_new_tokens": 12, "temperature": 0, "ignore_eos": True}
    parts = events(http, "/generate", {"text": "hello", "sampling_params": params})
    whole = generate(http, max_new_tokens=12).json()
    assert parts[-1]["output_ids"] == whole["output_ids"]
    assert parts[-1]["text"] == whole["text"]
    for before, after in itertools.pairwise(parts):
        assert after["output_ids"][: len(before["output_ids"])] == before["output_ids"]
        assert before["meta_info"]["finish_reason"] is None


def test_log_probabilities_come_in_sglang_s_form(http):
    wish = {"return_logprob": True, "logprob_start_len": 0, "top_logprobs_num": 2}
    params = {"temperature": 0, "max_new_tokens": 3, "ignore_eos": True}
    body = {"text": "hello", "sampling_params": params} | wish
    answer = http.post("/generate", json=body).json()
    meta = answer["meta_info"]
    assert meta["input_token_logprobs"][0][0] is None
    assert len(meta["input_token_logprobs"]) == meta["prompt_tokens"]
    assert [entry[1] for entry in meta["output_token_logprobs"]] == answer["output_ids"]
    for chosen, ranked in zip(
        meta["output_token_logprobs"], meta["output_top_logprobs"], strict=True
    ):
        assert ranked[0] == pytest.approx(chosen)
        assert ranked[1][0] <= ranked[0][0] < 0


CHAT = {
    "model": "tiny",
    "messages": [{"role": "user", "content": "hi"}],
    "temperature": 0,
    "max_tokens": 10,
    "ignore_eos": True,
}


def test_a_chat_answer_has_message_finish_reason_and_usage(http):
    body = http.post("/v1/chat/completions", json=CHAT).json()
    (choice,) = body["choices"]
    assert (body["object"], body["model"]) == ("chat.completion", "tiny")
    assert choice["message"]["role"] == "assistant"
    assert choice["finish_reason"] == "length"
    usage = body["usage"]
    assert usage["completion_tokens"] == 10
    assert usage["total_tokens"] == usage["prompt_tokens"] + 10


def test_a_chat_stream_adds_up_to_the_whole_answer(http):
    parts = events(http, "/v1/chat/completions", CHAT)
    whole = http.post("/v1/chat/completions", json=CHAT).json()
    deltas = [part["choices"][0]["delta"] for part in parts]
    assert deltas[0] == {"role": "assistant", "content": ""}
    text = "".join(delta["content"] for delta in deltas)
    assert text == whole["choices"][0]["message"]["content"]
    reasons = [part["choices"][0]["finish_reason"] for part in parts]
    assert reasons == [None] * (len(parts) - 1) + ["length"]


def test_include_usage_adds_a_last_chunk_without_choices(http):
    parts = events(http, "/v1/chat/completions", CHAT | {"stream_options": {"include_usage": True}})
    assert parts[-1]["choices"] == []
    assert parts[-1]["usage"]["completion_tokens"] == 10


def test_a_completion_takes_text_and_token_ids(http, tiny_loaded):
    body = {"temperature": 0, "max_tokens": 8, "ignore_eos": True}
    by_text = http.post("/v1/completions", json=body | {"prompt": "hello"}).json()
    ids = tiny_loaded.tokenizer.encode("hello")
    by_ids = http.post("/v1/completions", json=body | {"prompt": ids}).json()
    assert by_text["object"] == "text_completion"
    assert by_text["choices"] == by_ids["choices"]


def test_a_completion_stream_adds_up_to_the_whole_text(http):
    body = {"prompt": "hello", "temperature": 0, "max_tokens": 8, "ignore_eos": True}
    parts = events(http, "/v1/completions", body)
    whole = http.post("/v1/completions", json=body).json()["choices"][0]["text"]
    assert "".join(part["choices"][0]["text"] for part in parts) == whole


def test_a_stop_string_ends_a_chat_with_reason_stop(http):
    whole = http.post("/v1/chat/completions", json=CHAT).json()["choices"][0]["message"]["content"]
    stop = whole[3:5]
    (choice,) = http.post("/v1/chat/completions", json=CHAT | {"stop": stop}).json()["choices"]
    assert choice["message"]["content"] == whole[: whole.index(stop)]
    assert (choice["finish_reason"], choice["matched_stop"]) == ("stop", stop)


def test_a_seed_makes_sampling_repeatable(http):
    body = {"prompt": "hello", "temperature": 1.0, "max_tokens": 12, "seed": 4}
    first, second = (http.post("/v1/completions", json=body).json() for _ in range(2))
    assert first["choices"] == second["choices"]


def test_requests_at_once_each_get_their_own_answer(http):
    prompts = [f"prompt {i}" for i in range(8)]

    def ask(prompt):
        params = {"max_new_tokens": 16, "temperature": 0, "ignore_eos": True}
        body = {"text": prompt, "sampling_params": params}
        return http.post("/generate", json=body).json()["output_ids"]

    alone = [ask(prompt) for prompt in prompts]
    with ThreadPoolExecutor(8) as pool:
        assert list(pool.map(ask, prompts)) == alone


@pytest.mark.parametrize(
    ("path", "body", "message"),
    [
        ("/generate", {"text": "x", "input_ids": [1]}, "exactly one of text and input_ids"),
        ("/generate", {}, "exactly one of text and input_ids"),
        ("/generate", {"input_ids": [1, "a"]}, "expected input_ids to be token ids"),
        ("/generate", {"input_ids": [9999]}, "expected token ids in 0..259"),
        ("/generate", {"text": ""}, "expected a prompt of at least one token"),
        (
            "/generate",
            {"text": "hello", "sampling_params": {"max_new_tokens": 300}},
            "expected at most 256 tokens of context, found 305 (5 of the prompt + 300 to generate)",
        ),
        (
            "/generate",
            {"text": "x", "sampling_params": {"temperature": "hot"}},
            "expected temperature to be a number in 0..100, found 'hot'",
        ),
        (
            "/generate",
            {"text": "x", "sampling_params": {"max_new_tokens": 0}},
            "expected max_new_tokens to be an integer of at least 1, found 0",
        ),
        ("/v1/chat/completions", {"messages": []}, "expected a list of at least one message"),
        ("/v1/chat/completions", {"messages": ["hi"]}, "an object with a role"),
        ("/v1/chat/completions", CHAT | {"model": 3}, "expected model to be of type str"),
        ("/v1/chat/completions", CHAT | {"n": 2}, "does not support n"),
        ("/v1/chat/completions", CHAT | {"top_p": 0}, "expected top_p to be a number above 0"),
        ("/v1/completions", {"prompt": ["a", "b"]}, "one prompt a request"),
        ("/v1/completions", {"prompt": "a", "stop": [3]}, "expected stop to be a string"),
        ("/v1/completions", {"prompt": "a", "logprobs": 3}, "does not support logprobs"),
    ],
)
def test_bad_bodies_get_one_clear_line_and_400(http, path, body, message):
    answer = http.post(path, json=body)
    error = answer.json()["error"]
    assert (answer.status_code, error["code"]) == (400, 400)
    assert message in error["message"]
    assert "\n" not in error["message"]


def test_a_body_that_is_no_json_gets_400(http):
    answer = http.post("/generate", content=b"{")
    assert (answer.status_code, answer.json()["error"]["message"]) == (400, "expected a JSON body")


def test_an_unknown_route_gets_404_as_json(http):
    assert http.get("/nothing").json()["error"]["code"] == 404


def test_the_budget_switches_at_run_time(http):
    def proposed_a_step(budget):
        body = {"server_args": {"speculative_ddtree_budget": budget}}
        assert http.post("/set_internal_state", json=body).json()["updated"] is True
        meta = generate(http, max_new_tokens=12).json()["meta_info"]
        return meta["spec_num_proposed_drafts"] / meta["spec_verify_ct"]

    assert [proposed_a_step(budget) for budget in (3, 0, 8)] == [3, 4, 8]


@pytest.mark.parametrize("value", [9, -1, "4", None, True])
def test_a_budget_that_does_not_fit_is_refused(http, value):
    body = {"server_args": {"speculative_ddtree_budget": value}}
    answer = http.post("/set_internal_state", json=body)
    assert answer.status_code == 400
    assert "speculative_ddtree_budget" in answer.json()["error"]["message"]


def test_server_info_shows_arguments_version_and_accept_length(http):
    generate(http, max_new_tokens=30)
    info = http.get("/server_info").json()
    assert info["speculative_algorithm"] == "DDTREE"
    assert info["speculative_num_draft_tokens"] == 9
    assert info["served_model_name"] == "tiny"
    assert info["version"]
    (state,) = info["internal_states"]
    assert 1 <= state["avg_spec_accept_length"] <= 5


def test_metrics_count_tokens_and_requests(http):
    names = ("prompt_tokens_total", "generation_tokens_total", "num_requests_total")
    before = [metric(http, name) for name in names]
    generate(http, max_new_tokens=7)
    wait_until(lambda: metric(http, "num_requests_total") > before[2], "the request's metrics")
    after = [metric(http, name) for name in names]
    assert [b - a for a, b in zip(before, after, strict=True)] == [5, 7, 1]


def test_metrics_carry_the_names_that_dashboards_use(http):
    text = http.get("/metrics").text
    for name in (
        *("num_running_reqs", "num_queue_reqs", "gen_throughput"),
        *("spec_accept_length", "spec_accept_rate"),
        *("time_to_first_token_seconds_bucket", "inter_token_latency_seconds_bucket"),
        "e2e_request_latency_seconds_bucket",
    ):
        assert f"sglang:{name}{{" in text


def test_flush_cache_answers_200(http):
    assert http.post("/flush_cache").status_code == 200


@pytest.mark.parametrize("stream", [True, False])
def test_a_client_that_goes_frees_the_engine(http, tree_server, stream):
    """Requests of about a second each: all but a few would still wait if they were not dropped."""
    params = {"max_new_tokens": 250, "ignore_eos": True}
    body = {"text": "hello", "sampling_params": params, "stream": stream}
    generated = metric(http, "generation_tokens_total")

    def leave():
        with tree_server.http() as client:
            client.timeout = 0.05
            try:
                with client.stream("POST", "/generate", json=body) as answer:
                    next(answer.iter_lines())
            except Exception as error:
                assert "timed out" in str(error)

    threads = [threading.Thread(target=leave) for _ in range(20)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    idle = lambda: metric(http, "num_running_reqs") + metric(http, "num_queue_reqs") == 0  # noqa: E731
    wait_until(idle, "the dropped requests to end")
    assert metric(http, "generation_tokens_total") - generated < 20 * 250
