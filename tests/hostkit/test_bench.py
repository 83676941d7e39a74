"""`hostkit bench` against fake engines: order, resumption, correctness, failures."""

import asyncio
import json
import os
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import httpx
import pytest
from hostkit import bench_served
from hostkit.bench_config import read_config
from hostkit.bench_correctness import verdict
from hostkit.bench_crosscheck import in_words
from hostkit.bench_gpu import parse
from hostkit.errors import HostkitError
from hostkit_processes import FILES, eventually, free_port, is_alive

CASES = Path(__file__).resolve().parents[1] / "cases"
ARMS = [
    {"name": "ar", "mode": "ar", "parallelism": "TP1", "budget": None, "launch": "ar"},
    {"name": "dflash", "mode": "dflash", "parallelism": "TP1", "budget": None, "launch": "dflash"},
    {"name": "ddtree-4", "mode": "ddtree", "parallelism": "TP1", "budget": 4, "launch": "tree"},
    {"name": "ddtree-8", "mode": "ddtree", "parallelism": "TP1", "budget": 8, "launch": "tree"},
]


class BenchRuns:
    """Runs `hostkit bench` as a process and reads what it leaves."""

    def __init__(self, folder, prepare):
        self.config, self.out, self.status = (folder / f"{name}.json" for name in "brs")
        self.prepare = prepare

    def start(self, document, *options):
        self.config.write_text(json.dumps(document))
        command = [sys.executable, "-m", "hostkit", "bench", "--config", str(self.config)]
        command += ["--out", str(self.out), "--status", str(self.status), *options]
        environment = {**os.environ, "PYTHONPATH": str(FILES)}
        return subprocess.Popen(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def run(self, document, *options):
        process = self.start(document, *options)
        output, error = process.communicate(timeout=120)
        return process.returncode, output, error

    def result(self):
        return json.loads(self.out.read_text())


@pytest.fixture
def bench(make_launch, tmp_path):
    """Writes a bench.json and runs the command on it; engine options by launch key."""

    def prepare(arms=ARMS, engine="reference", options=None, launches=None, **settings):
        port, options = free_port(), options or {}
        made = {
            "ar": make_launch(*options.get("ar", ()), port=port),
            "dflash": make_launch(
                "--speculative-algorithm", "DFLASH", *options.get("dflash", ()), port=port
            ),
            "tree": make_launch(
                "--speculative-algorithm", "DDTREE", *options.get("tree", ()), port=port
            ),
        } | (launches or {})
        used = {arm["launch"] for arm in arms}
        return {
            "fingerprint": "b" * 12,
            "group": "LOCAL",
            "host": "here",
            "launches": {key: launch for key, launch in made.items() if key in used},
            "arms": arms,
            "not_possible": [{"name": "pp8-dflash", "reason": "pp_size != 1"}],
            "settings": {
                "concurrency": [1],
                "prompt_sets": ["chat"],
                "prompts_per_cell": 2,
                "max_new_tokens": 6,
                "repeats": 2,
            }
            | settings,
            "plan": {"engine": engine},
            "machine": {"hostname": "here"},
            "versions": {"venv": "abc"},
        }

    return BenchRuns(tmp_path, prepare)


def asked(launch, path, body=None):
    """What the engine of a launch answers."""
    data = None if body is None else json.dumps(body).encode()
    with urllib.request.urlopen(f"http://127.0.0.1:{launch['port']}{path}", data, 30) as answer:
        return json.load(answer)


def order(result):
    return [(cell["arm"], cell["round"]) for cell in result["cells"] if not cell["warmup"]]


def test_arms_of_one_launch_are_interleaved_and_the_baseline_is_launched_last(bench):
    assert bench.run(bench.prepare())[0] == 0
    result = bench.result()
    assert order(result) == [
        ("dflash", 1),
        ("dflash", 2),
        ("ddtree-4", 1),
        ("ddtree-8", 1),
        ("ddtree-4", 2),
        ("ddtree-8", 2),
        ("ar", 1),
        ("ar", 2),
    ]
    assert result["complete"] is True
    assert result["versions"] == {"venv": "abc", "engine": "fake-1"}
    assert result["not_possible"] == [{"name": "pp8-dflash", "reason": "pp_size != 1"}]


def test_launches_are_interleaved_by_round_when_asked(bench):
    assert bench.run(bench.prepare(arms=ARMS[:2], interleave_launches=True))[0] == 0
    assert order(bench.result()) == [("dflash", 1), ("ar", 1), ("dflash", 2), ("ar", 2)]


def test_warm_up_runs_at_the_measured_concurrency_and_is_marked(bench):
    assert bench.run(bench.prepare(arms=ARMS[:1], concurrency=[1, 4], repeats=1))[0] == 0
    cells = bench.result()["cells"]
    warm = [(c["concurrency"], len(c["requests"])) for c in cells if c["warmup"]]
    measured = [(c["concurrency"], len(c["requests"])) for c in cells if not c["warmup"]]
    assert warm == [(1, 1), (4, 4)]
    assert measured == [(1, 2), (4, 8)]  # two waves, so that it is busy for a while


def test_equal_outputs_pass_the_gate(bench):
    assert bench.run(bench.prepare())[0] == 0
    rows = {row["arm"]: row for row in bench.result()["correctness"]}
    assert set(rows) == {"dflash", "ddtree-4", "ddtree-8"}
    assert all(row["identical"] == row["prompts"] == 2 and row["passed"] for row in rows.values())


@pytest.mark.parametrize(("gap", "near", "passed"), [("0.1", 2, True), ("3.0", 0, False)])
def test_a_divergence_is_judged_by_the_targets_logit_gap(bench, gap, near, passed):
    options = {"dflash": ("--diverge-at", "3"), "ar": ("--gap", gap)}
    settings = {"repeats": 1, "cross_check": False}
    document = bench.prepare(arms=ARMS[:2], engine="sglang", options=options, **settings)
    assert bench.run(document)[0] == 0
    row = bench.result()["correctness"][0]
    assert (row["near_tie"], row["different"], row["passed"]) == (near, 2 - near, passed)
    assert row["max_gap"] == pytest.approx(float(gap))


@pytest.mark.parametrize(
    ("options", "words"),
    [((), "no --model-path"), (("--model-path", "/none"), "No module named")],
)
def test_a_cross_check_that_fails_is_told_and_fails_nothing_else(bench, options, words):
    document = bench.prepare(arms=ARMS[:1], engine="sglang", options={"ar": options}, repeats=1)
    assert bench.run(document)[0] == 0
    assert words in bench.result()["cross_check"]["error"]


def test_a_cross_check_is_told_in_one_short_line():
    found = {"tokens_per_s": 270.04, "tokens_per_s_bench_serving": 281.9}
    apart = found | {"difference_percent": -4.21, "agrees": True}
    assert in_words(apart) == "270.0 tok/s here, 281.9 there (-4.2 %): they agree"
    assert in_words(apart | {"agrees": False}).endswith("they DISAGREE")
    assert in_words({"error": "exit code 1: no such file"}) == "exit code 1: no such file"


def test_any_divergence_fails_in_fp32(bench):
    options = {"dflash": ("--diverge-at", "3"), "ar": ("--gap", "0.0001")}
    assert bench.run(bench.prepare(arms=ARMS[:2], options=options))[0] == 0
    row = bench.result()["correctness"][0]
    assert (row["identical"], row["different"], row["passed"]) == (0, 2, False)


def test_an_unknown_gap_leaves_the_gate_undecided():
    row = verdict("dflash", 3, [None], 0.25)
    assert (row["identical"], row["max_gap"], row["passed"]) == (2, None, None)
    assert verdict("dflash", 0, [], 0.25)["passed"] is None
    assert verdict("dflash", 3, [None, 2.0], 0.25)["passed"] is False


def test_a_stored_result_is_not_measured_again_unless_forced(bench):
    document = bench.prepare(arms=ARMS[:1], repeats=1)
    assert bench.run(document)[0] == 0
    before = bench.out.stat().st_mtime_ns
    code, output, _ = bench.run(document)
    assert (code, bench.out.stat().st_mtime_ns) == (0, before)
    assert "already holds the result" in output
    assert bench.run(document, "--force")[0] == 0
    assert bench.out.stat().st_mtime_ns != before


def test_a_stopped_run_ends_its_engine_and_goes_on_later(bench):
    document = bench.prepare(arms=ARMS[:1], repeats=15, prompts_per_cell=8)
    process = bench.start(document)
    part = bench.out.with_name("r.json.part")
    cells = eventually(lambda: len(json.loads(part.read_text())["cells"]) > 2 and part)
    port = document["launches"]["ar"]["port"]
    command = f"--port\0{port}".encode()
    processes = [entry for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    pids = [int(entry.name) for entry in processes if command in command_of(entry)]
    process.send_signal(signal.SIGTERM)
    _, error = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "run the same command again" in error
    assert pids
    assert not any(is_alive(pid) for pid in pids)
    done = len(json.loads(cells.read_text())["cells"])
    code, output, _ = bench.run(document)
    assert code == 0
    assert f"goes on after {done} cells" in output
    assert len(order(bench.result())) == len(set(order(bench.result()))) == 15
    assert not part.exists()


def command_of(process):
    try:
        return (process / "cmdline").read_bytes()
    except OSError:
        return b""


def test_a_launch_that_fails_does_not_stop_the_others(bench):
    line = "RuntimeError: SM 12.x requires CUDA >= 12.9."
    options = {"dflash": ("--say", line, "--die", "1")}
    code, _, error = bench.run(bench.prepare(arms=ARMS[:2], options=options, repeats=1))
    part = json.loads(bench.out.with_name("r.json.part").read_text())
    assert code == 1
    assert "dflash: E07" in error
    assert not bench.out.exists()
    assert [cell["arm"] for cell in part["cells"] if not cell["warmup"]] == ["ar"]
    assert json.loads(bench.status.read_text())["state"] == "failed"


def test_a_tree_that_refuses_its_budget_is_a_failure_of_its_arms(bench):
    document = bench.prepare(arms=ARMS[2:], options={"tree": ("--no-budget",)}, repeats=1)
    code, _, error = bench.run(document)
    assert code == 1
    assert "ddtree-4: the engine refuses budget 4" in error


def test_an_engine_that_dies_while_measured_is_a_failure_with_its_last_line(bench):
    document = bench.prepare(arms=ARMS[:1], options={"ar": ("--die-at-request", "4")}, repeats=9)
    code, _, error = bench.run(document)
    assert code == 1
    assert "told to die" in error


def test_failed_requests_are_kept_in_the_result(bench):
    document = bench.prepare(arms=ARMS[:1], options={"ar": ("--fail-every", "3")}, repeats=1)
    assert bench.run(document)[0] == 0
    records = [record for cell in bench.result()["cells"] for record in cell["requests"]]
    assert sum(record["error"] is not None for record in records) == 1


def test_a_busy_port_is_refused_before_anything_starts(bench, make_launch, supervise):
    document = bench.prepare(arms=ARMS[:1])
    serving = supervise(make_launch(port=document["launches"]["ar"]["port"]))
    serving.until("ready")
    code, _, error = bench.run(document)
    assert code == 1
    assert "is in use by process" in error
    assert serving.status()["state"] == "ready"


def test_a_running_engine_is_used_when_named_and_left_running(bench, make_launch, supervise):
    launch = make_launch()
    serving = supervise(launch)
    serving.until("ready")
    url = f"http://127.0.0.1:{launch['port']}"
    document = bench.prepare(arms=ARMS[:1], launches={"ar": {"use_running": url}}, repeats=1)
    assert bench.run(document)[0] == 0
    assert serving.status()["state"] == "ready"


def test_the_service_is_measured_as_it_stands_and_the_rest_after_it(
    bench, make_launch, supervise, tmp_path
):
    document = bench.prepare()
    tree = document["launches"]["tree"]
    service = tmp_path / "service.json"
    service.write_text(json.dumps(tree | {"arm": "ddtree-8", "budget": 8}))
    serving = supervise(json.loads(service.read_text()))
    serving.until("ready")
    assert bench.run(document, "--served", str(service))[0] == 0
    part = json.loads(bench.out.with_suffix(".json.part").read_text())
    assert {cell["arm"] for cell in part["cells"]} == {"ddtree-4", "ddtree-8"}
    assert serving.status()["state"] == "ready"
    assert asked(tree, "/server_info")["speculative_ddtree_budget"] == 8
    serving.stop()
    code, output, _ = bench.run(document)
    assert code == 0 and "launch tree" not in output and "launch dflash" in output
    assert len(order(bench.result())) == 8


def test_a_service_that_others_use_meanwhile_does_not_count(
    bench, make_launch, supervise, tmp_path
):
    tree = bench.prepare()["launches"]["tree"]
    document = bench.prepare(launches={"tree": tree}, repeats=200)
    service = tmp_path / "service.json"
    service.write_text(json.dumps(tree | {"budget": 4}))
    supervise(tree | {"budget": 4}).until("ready")
    process = bench.start(document, "--served", str(service))
    part = bench.out.with_suffix(".json.part")
    eventually(part.exists)
    asked(tree, "/generate", {"text": "hello", "sampling_params": {"max_new_tokens": 1}})
    output, _ = process.communicate(timeout=120)
    assert process.returncode == 0 and "the service is in use" in output
    assert json.loads(part.read_text())["cells"] == []
    assert asked(tree, "/server_info")["speculative_ddtree_budget"] == 4


def test_a_real_engine_tells_that_it_is_idle_and_how_many_requests_it_has_finished():
    text = (CASES / "h200x1/metrics.txt").read_text()
    transport = httpx.MockTransport(lambda request: httpx.Response(200, text=text))

    async def told():
        async with httpx.AsyncClient(transport=transport, base_url="http://engine") as http:
            running = await bench_served._metric(http, bench_served.RUNNING)
            return running, await bench_served.finished(http)

    assert asyncio.run(told()) == (0.0, 2.0)


def test_a_service_of_other_flags_is_not_measured(bench, make_launch, supervise, tmp_path):
    document = bench.prepare()
    service = tmp_path / "service.json"
    service.write_text(json.dumps(document["launches"]["tree"] | {"env": {"OTHER": "1"}}))
    supervise(json.loads(service.read_text())).until("ready")
    assert bench.run(document, "--served", str(service))[0] == 0
    assert not bench.out.with_suffix(".json.part").exists()


def test_the_status_counts_requests_and_ends_complete(bench):
    assert bench.run(bench.prepare(arms=ARMS[:1], repeats=1))[0] == 0
    status = json.loads(bench.status.read_text())
    assert (status["state"], status["done"], status["total"]) == ("complete", 3, 3)
    assert any("tok/s" in line for line in status["log"])


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"settings": {"colour": 1}}, "unknown key 'colour'"),
        ({"settings": {"concurrency": [0]}}, "whole numbers of at least 1"),
        ({"settings": {"temperature": "0"}}, "key 'temperature' expected float, found '0'"),
        ({"settings": {"concurrency": ["1"]}}, "key 'concurrency' expected list"),
        ({"settings": {"prompt_sets": ["poems"]}}, "prompt set 'poems' is unknown"),
        ({"settings": {"chat_format": "x"}}, "chat_format 'x' is unknown"),
        ({"arms": []}, "no arm to measure"),
        ({"arms": [{"name": "ar", "mode": "ar", "launch": "x"}]}, "names no launch"),
        ({"arms": [{"name": "ar", "mode": "fast", "launch": "ar"}]}, "mode 'fast'"),
    ],
)
def test_a_configuration_that_cannot_be_used_is_named(bench, change, words):
    document = bench.prepare(arms=ARMS[:1]) | change
    bench.config.write_text(json.dumps(document))
    with pytest.raises(HostkitError, match=words):
        read_config(bench.config)


def test_unknown_gpu_values_are_none():
    assert parse("0, 1980, 2619, 120.5, 41, 80\n1, [N/A], 2619, [N/A], 40, 81\n") == [
        {
            "index": 0.0,
            "sm_clock_mhz": 1980.0,
            "memory_clock_mhz": 2619.0,
            "power_w": 120.5,
            "temperature_c": 41.0,
            "memory_used_mib": 80.0,
        },
        {
            "index": 1.0,
            "sm_clock_mhz": None,
            "memory_clock_mhz": 2619.0,
            "power_w": None,
            "temperature_c": 40.0,
            "memory_used_mib": 81.0,
        },
    ]
    assert parse("No devices were found\n") == []
