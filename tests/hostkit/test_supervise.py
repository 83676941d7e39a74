"""`hostkit supervise` against real processes: a fake engine that serves, dies, hangs, forks."""

import json
import os
import re
import shutil
import signal
import socket
import urllib.request
from pathlib import Path

import pytest
from hostkit.launch import Launch
from hostkit_processes import eventually, free_port, is_alive

TREE = ("--speculative-algorithm", "DDTREE", "--speculative-num-draft-tokens", "17")


def get(url: str) -> dict:
    with urllib.request.urlopen(url, timeout=10) as answer:
        return json.loads(answer.read())


def post(url: str) -> None:
    body = {"text": "a", "sampling_params": {"max_new_tokens": 1}}
    urllib.request.urlopen(url, data=json.dumps(body).encode(), timeout=10).close()


def test_a_serving_engine_is_ready_and_sigterm_stops_it_with_exit_0(make_launch, supervise):
    launch = make_launch()
    it = supervise(launch)
    status = it.until("ready")
    assert (status["arm"], status["restarts"], status["cause"]) == ("ar", 0, None)
    assert status["flags"] == Launch.from_json(launch).flags
    assert status["pid"] == it.process.pid
    assert status["ready_s"] > 0
    assert get(f"http://127.0.0.1:{launch['port']}/server_info")["pid"] == status["engine_pid"]
    assert it.stop() == 0
    assert it.status()["state"] == "stopped"
    assert not is_alive(status["engine_pid"])


def test_a_status_that_can_t_be_written_does_not_end_the_service(make_launch, supervise):
    launch = make_launch()
    it = supervise(launch)
    first = it.until("ready")
    place = it.run_dir / "status.json"
    place.unlink()
    (place / "in the way").mkdir(parents=True)  # each write fails, as it does on a full disk
    os.kill(first["engine_pid"], signal.SIGKILL)
    url = f"http://127.0.0.1:{launch['port']}/server_info"
    second = eventually(lambda: (pid := get(url)["pid"]) != first["engine_pid"] and pid)
    assert it.process.poll() is None
    shutil.rmtree(place)
    assert it.until("ready")["engine_pid"] == second
    assert it.stop() == 0


def test_ready_comes_only_after_a_real_generation(make_launch, supervise):
    launch = make_launch()
    supervise(launch).until("ready")
    assert get(f"http://127.0.0.1:{launch['port']}/server_info")["requests"] == 1


def test_an_engine_that_is_up_is_waited_for_by_what_it_still_owes(make_launch, supervise):
    it = supervise(make_launch("--slow-first", "600"))
    message = eventually(lambda: "generation" in (m := it.status()["message"]) and m)
    assert re.fullmatch(r"waits for a first generation, \d+ s: fake engine up", message)


def test_the_launch_budget_is_set_on_a_ddtree_engine(make_launch, supervise):
    launch = make_launch(*TREE, arm="ddtree-8", budget=8)
    supervise(launch).until("ready")
    info = get(f"http://127.0.0.1:{launch['port']}/server_info")
    assert info["speculative_ddtree_budget"] == 8


@pytest.mark.parametrize(
    ("options", "changes", "words"),
    [
        ((*TREE, "--no-counters"), {}, "speculation is not live"),
        ((*TREE, "--no-budget"), {"budget": 8}, "refuses budget 8"),
        ((), {"algorithm": "DDTREE", "speculative": True}, "names the algorithm None"),
        (TREE, {"algorithm": None}, "the launch wants None"),
    ],
)
def test_an_engine_that_does_not_do_what_was_launched_is_not_ready(
    make_launch, supervise, options, changes, words
):
    it = supervise(make_launch(*options, **({"restart_limit": 0} | changes)))
    assert words in it.until("failed")["message"]
    assert it.process.wait(20) == 1


def test_a_helper_that_left_the_group_and_ignores_sigterm_is_stopped(
    make_launch, supervise, tmp_path
):
    note = tmp_path / "helper"
    it = supervise(make_launch("--helper", str(note)))
    it.until("ready")
    helper = int(eventually(note.read_text))
    assert it.stop() == 0
    assert not is_alive(helper)


def test_a_deaf_engine_is_killed_after_the_stop_timeout(make_launch, supervise):
    it = supervise(make_launch("--deaf", stop_timeout_s=0.5))
    pid = it.until("ready")["engine_pid"]
    assert it.stop(signal.SIGINT) == 0
    assert not is_alive(pid)


def test_kill_9_of_the_supervisor_leaves_neither_engine_nor_helper(
    make_launch, supervise, tmp_path
):
    note = tmp_path / "helper"
    it = supervise(make_launch("--helper", str(note)))
    engine = it.until("ready")["engine_pid"]
    helper = int(eventually(note.read_text))
    it.stop(signal.SIGKILL)
    eventually(lambda: not is_alive(engine) and not is_alive(helper))


def test_kill_9_of_the_guard_still_stops_engine_and_helper(make_launch, supervise, tmp_path):
    note = tmp_path / "helper"
    it = supervise(make_launch("--helper", str(note), restart_limit=0))
    engine = it.until("ready")["engine_pid"]
    helper = int(eventually(note.read_text))
    guard = int(Path(f"/proc/{engine}/stat").read_text().rpartition(")")[2].split()[1])
    os.kill(guard, signal.SIGKILL)
    it.until("failed")
    assert not is_alive(engine)
    assert not is_alive(helper)


def test_a_crashed_engine_is_started_again(make_launch, supervise, tmp_path):
    options = ("--die-at-request", "2", "--die-once", str(tmp_path / "once"))
    launch = make_launch(*options, restart_delay_s=0.1)
    it = supervise(launch)
    first = it.until("ready")
    with pytest.raises(OSError):
        post(f"http://127.0.0.1:{launch['port']}/generate")
    status = eventually(lambda: (s := it.status())["restarts"] == 1 and s["state"] == "ready" and s)
    assert status["engine_pid"] != first["engine_pid"]
    assert "told to die" in (it.run_dir / "engine.log.1").read_text()


def test_restarts_end_at_the_limit_with_exit_1(make_launch, supervise):
    it = supervise(make_launch("--die-after", "0.2", restart_limit=2, restart_delay_s=0.05))
    status = it.until("failed")
    assert (it.process.wait(20), status["restarts"]) == (1, 2)
    assert "gave up after 2 restarts" in status["message"]


def test_slow_failures_end_too_although_each_leaves_the_window(make_launch, supervise):
    it = supervise(
        make_launch("--die", "3", restart_limit=1, restart_window_s=0.001, restart_delay_s=0.05)
    )
    assert it.until("failed")["restarts"] == 1


def test_a_known_cause_is_named_and_not_retried(make_launch, supervise):
    line = (
        "Command '['/v/triton/backends/nvidia/bin/ptxas', '-lineinfo', '-v', "
        "'--gpu-name=sm_103a', '/tmp/x.ptx']' returned non-zero exit status 255."
    )
    it = supervise(make_launch("--say", line, "--die", "1", restart_limit=5))
    status = it.until("failed")
    assert status["cause"]["id"] == "E01"
    assert status["message"].startswith("E01: Triton's ptxas does not know sm_103a; set TRITON_")
    assert status["restarts"] == 0


def test_a_hang_at_the_first_all_reduce_is_named(make_launch, supervise):
    line = "[TP0] Init torch distributed begin. nccl all_reduce"
    it = supervise(make_launch("--say", line, "--hang", start_timeout_s=2, restart_limit=0))
    assert it.until("failed")["cause"]["id"] == "E22"


def test_an_engine_killed_from_outside_is_named(make_launch, supervise):
    it = supervise(make_launch("--die-by-kill", restart_limit=0))
    assert it.until("failed")["cause"]["id"] in ("killed", "host-memory")


def test_a_port_in_use_is_refused_with_the_name_of_its_holder(make_launch, supervise):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        it = supervise(make_launch(port=port))
        _, error = it.process.communicate(timeout=30)
    lines = [line for line in error.splitlines() if line]
    assert (it.process.returncode, len(lines)) == (1, 1)
    assert f"port {port}" in lines[0]
    assert f"process {os.getpid()}" in lines[0]


def test_a_second_supervisor_does_not_touch_the_status_of_the_first(make_launch, supervise):
    launch = make_launch()
    first = supervise(launch)
    before = first.until("ready")
    assert supervise(launch).process.wait(30) == 1
    assert first.status() == before


def test_an_engine_that_cannot_be_executed_gets_one_line(make_launch, supervise):
    it = supervise(make_launch(argv=["/nonexistent/engine"]))
    assert "/nonexistent/engine: No such file or directory" in it.until("failed")["message"]
    assert it.process.wait(20) == 1


@pytest.mark.parametrize("abstract", [False, True])
def test_systemd_hears_status_then_ready_then_stopping(make_launch, supervise, tmp_path, abstract):
    path = f"hostkit-{os.getpid()}" if abstract else str(tmp_path / "notify")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as systemd:
        systemd.bind("\0" + path if abstract else path)
        systemd.settimeout(20)
        it = supervise(
            make_launch("--slow-start", "1.5"),
            env={"NOTIFY_SOCKET": "@" + path if abstract else path, "WATCHDOG_USEC": "4000000"},
        )
        heard: list[str] = []
        while "READY=1" not in heard:
            heard += systemd.recv(4096).decode().splitlines()
        assert any(line.startswith("STATUS=starting, ") for line in heard)
        assert any(line.startswith("EXTEND_TIMEOUT_USEC=") for line in heard)
        while heard[-1] != "WATCHDOG=1":
            heard += systemd.recv(4096).decode().splitlines()
        pid = it.status()["engine_pid"]
        assert b"NOTIFY_SOCKET" not in Path(f"/proc/{pid}/environ").read_bytes()
        it.process.terminate()
        while "STOPPING=1" not in heard:
            heard += systemd.recv(4096).decode().splitlines()


def test_what_a_shell_says_to_engines_does_not_reach_this_one(make_launch, supervise):
    env = {"SGLANG_DDTREE_TOPK": "3", "NCCL_P2P_DISABLE": "1", "LANGUAGE": "de"}
    it = supervise(make_launch(), env=env)
    it.until("ready")
    seen = Path(f"/proc/{it.status()['engine_pid']}/environ").read_text()
    assert "LANGUAGE=de" in seen
    assert not [name for name in env if name != "LANGUAGE" and name in seen]


def test_the_supervisors_metrics_are_served_on_their_port(make_launch, supervise):
    port = free_port()
    it = supervise(make_launch(metrics_port=port))
    it.until("ready")
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    assert 'ddtree_supervisor_state{ddtree_supervisor_state="ready"} 1.0' in text
    assert "ddtree_supervisor_restarts_total 0.0" in text


def test_a_stop_while_loading_ends_the_engine(make_launch, supervise):
    it = supervise(make_launch("--slow-start", "600"))
    pid = eventually(lambda: it.status()["engine_pid"])
    assert it.stop() == 0
    assert not is_alive(pid)


def test_engine_log_is_cut_at_its_limit(make_launch, supervise):
    it = supervise(make_launch("--say", "y" * 5000, log_limit_bytes=1000))
    it.until("ready")
    eventually((it.run_dir / "engine.log.1").exists)
    assert "y" * 5000 in (it.run_dir / "engine.log.1").read_text()
