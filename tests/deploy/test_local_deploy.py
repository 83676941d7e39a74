"""The main job on this machine, end to end: nothing, a deploy, a settled host, a change, back."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from operations.lock import OtherRun

ROOT = Path(__file__).resolve().parents[2]
pytestmark = pytest.mark.timeout(700)
PHASES = {"tools", "models", "stack", "patches", "units", "serve", "bench"}


@pytest.fixture(scope="module")
def deployed(deploy):
    """The first real run; its process is what the tests below read."""
    done = deploy.run("-y")
    assert done.returncode == 0, done.stderr[-3000:] + done.stdout[-1000:]
    return done


def stored(run) -> dict:
    """The result that the run's last lines name."""
    place = next(line.split()[1] for line in run.stdout.splitlines() if line.startswith("JSON"))
    return json.loads((ROOT / place).read_text())


def test_a_dry_run_on_a_bare_host_shows_every_file_and_touches_nothing(deploy):
    done = deploy.run("--dry", "--diff")
    assert done.returncode == 0, done.stderr
    for name in ("plan.json", "launch.json", "service.env", "ddtree.conf", "hostkit/supervise.py"):
        assert f"/{name}" in done.stderr
    assert '+  "arm": "ddtree-16",' in done.stderr
    assert not deploy.prefix.exists()


def test_a_pre_flight_alone_asks_nobody_and_changes_nothing(deploy):
    done = deploy.run("--data", "only=preflight")
    assert done.returncode == 0, done.stderr
    assert "preflight:" in done.stderr and "Traceback" not in done.stderr
    assert not deploy.prefix.exists()


def test_the_run_ends_with_a_table_and_the_places_of_its_files(deployed):
    for word in ("ar", "dflash", "ddtree-8", "ddtree-16", "JSON", "report"):
        assert word in deployed.stdout
    place = next(
        line.split()[1] for line in deployed.stdout.splitlines() if line.startswith("JSON")
    )
    result = json.loads((ROOT / place).read_text())
    assert result["complete"] is True
    assert {arm["name"] for arm in result["arms"]} == {"ar", "dflash", "ddtree-8", "ddtree-16"}


def test_the_trees_emit_the_same_tokens_as_autoregressive_decoding(deployed):
    place = next(
        line.split()[1] for line in deployed.stdout.splitlines() if line.startswith("JSON")
    )
    verdicts = json.loads((ROOT / place).read_text())["correctness"]
    assert verdicts
    assert all(v["passed"] and v["different"] == 0 for v in verdicts)


def test_the_service_answers_after_the_benchmark(deploy, deployed):
    body = {"text": "Hello", "sampling_params": {"max_new_tokens": 4, "temperature": 0}}
    request = urllib.request.Request(
        f"http://127.0.0.1:{deploy.port}/generate",
        json.dumps(body).encode(),
        {"content-type": "application/json"},
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        assert json.load(answer)["meta_info"]["completion_tokens"] == 4


def test_the_token_of_who_deploys_does_not_reach_the_service_or_a_file(deploy, deployed):
    status, daemon = deploy.status(), int((deploy.prefix / "run/supervisord.pid").read_text())
    for pid in (daemon, status["pid"], status["engine_pid"]):
        assert b"hf_Canary" not in Path(f"/proc/{pid}/environ").read_bytes()
    found = subprocess.run(["grep", "-rl", "hf_Canary", deploy.prefix], capture_output=True)
    assert found.stdout == b""


def test_the_python_path_of_who_deploys_does_not_reach_the_service(deploy, deployed):
    status, daemon = deploy.status(), int((deploy.prefix / "run/supervisord.pid").read_text())
    for pid in (daemon, status["pid"], status["engine_pid"]):
        assert str(deploy.others).encode() not in Path(f"/proc/{pid}/environ").read_bytes()


def test_a_settled_host_plans_to_zero(deploy, deployed):
    plan = deploy.plan()
    assert {name.split(":")[0] for name in plan} >= PHASES
    assert all(hosts == [] for hosts in plan.values())


def test_a_second_run_changes_nothing_and_does_not_measure_again(deploy, deployed):
    result = deploy.prefix / "results"
    before = {p: p.stat().st_mtime_ns for p in result.iterdir()}
    done = deploy.run("-y", "--json")
    assert done.returncode == 0, done.stderr
    totals = json.loads(done.stdout)["results"]["totals"]
    assert (totals["success"], totals["error"]) == (0, 0)
    assert totals["no_change"] >= len(PHASES)
    assert {p: p.stat().st_mtime_ns for p in result.iterdir()} == before


def test_the_diff_of_one_changed_setting_shows_that_setting_alone(deploy, deployed):
    done = deploy.run("--dry", "--diff", "--data", "only=units", arm="ddtree-8")
    lines = [line.split("]", 1)[-1].strip() for line in done.stderr.splitlines()]
    added = {line for line in lines if line.startswith('+  "arm"')}
    assert added == {'+  "arm": "ddtree-8",'}
    assert '-  "arm": "ddtree-16",' in lines


def test_a_roll_back_serves_the_release_before(deploy, deployed):
    first = (deploy.prefix / "current").readlink()
    parts = ("--data", 'only=["units","serve"]')
    assert deploy.run("-y", *parts, arm="dflash").returncode == 0
    assert (deploy.prefix / "current").readlink() != first
    assert deploy.run("-y", "--data", "rollback=previous").returncode == 0
    assert (deploy.prefix / "current").readlink() == first
    status = deploy.status()
    assert (status["state"], status["arm"]) == ("ready", "ddtree-16")


def test_a_service_that_was_started_with_edited_variables_is_restarted(deploy, deployed):
    place = deploy.prefix / "current/service.env"
    rendered = place.read_text()
    place.write_text(f"{rendered}REFSERVER_EDITED=1\n")
    first = deploy.status()["pid"]
    os.kill(first, signal.SIGKILL)  # supervisord starts it again, from the edited file
    while not ((now := deploy.status())["pid"] != first and now["state"] == "ready"):
        time.sleep(0.5)
    assert deploy.run("-y", "--data", 'only=["units","serve"]').returncode == 0
    engine = Path(f"/proc/{deploy.status()['engine_pid']}/environ").read_bytes()
    assert b"REFSERVER_EDITED" not in engine
    assert place.read_text() == rendered


@pytest.mark.parametrize("phase", ["serve", "bench"])
def test_a_part_that_would_work_on_the_old_release_is_refused(deploy, deployed, phase):
    before = deploy.status()["pid"]
    done = deploy.run("-y", "--data", f"only={phase}", arm="dflash")
    assert done.returncode == 1
    assert "; add the phase 'units'" in done.stderr
    assert deploy.status()["pid"] == before


def test_a_release_whose_stack_is_not_there_does_not_become_the_one_that_serves(deploy, deployed):
    current, before = (deploy.prefix / "current").readlink(), deploy.status()["pid"]
    venv = (deploy.prefix / "current/venv").resolve()
    (venv / ".complete").rename(venv / ".moved")
    try:
        done = deploy.run("-y", "--data", 'only=["units","serve"]', arm="ddtree-8")
    finally:
        (venv / ".moved").rename(venv / ".complete")
    assert done.returncode == 1
    assert f"expected the engine's venv in {venv}, found none; run the phase 'stack'" in done.stderr
    assert ((deploy.prefix / "current").readlink(), deploy.status()["pid"]) == (current, before)


@pytest.mark.parametrize("mode", ["-y", "--dry"])
def test_a_roll_back_to_a_release_that_is_not_there_is_refused_with_a_line(deploy, deployed, mode):
    done = deploy.run(mode, "--data", "rollback=0123456789ab")
    assert done.returncode == 1
    assert "roll-back: no release 0123456789ab; see the folders in" in done.stderr
    assert "Traceback" not in done.stderr
    assert deploy.status()["state"] == "ready"


def test_an_engine_that_was_started_with_edited_flags_is_restarted(deploy, deployed):
    launch = deploy.prefix / "current/launch.json"
    rendered = launch.read_text()
    edited = json.loads(rendered)
    edited["argv"].append("--speculative-ddtree-spine-first")
    launch.write_text(json.dumps(edited))
    first = deploy.status()["pid"]
    os.kill(first, signal.SIGKILL)  # supervisord starts it again, from the edited file
    while not ((now := deploy.status())["pid"] != first and now["state"] == "ready"):
        time.sleep(0.5)
    done = deploy.run("--dry", "--diff")
    assert "--speculative-ddtree-spine-first" in done.stderr
    assert "running with other flags than launch.json and service.env" in done.stderr
    assert deploy.run("-y").returncode == 0
    engine = Path(f"/proc/{deploy.status()['engine_pid']}/cmdline").read_text()
    assert "--speculative-ddtree-spine-first" not in engine
    assert launch.read_text() == rendered
    assert all(hosts == [] for hosts in deploy.plan().values())


def test_a_run_beside_another_one_is_refused_with_who_is_at_work(deploy, deployed):
    take = ["sh", "-c", OtherRun().command(str(deploy.prefix / "run"), "ann@there since 10:00")]
    session = f"import subprocess; subprocess.run({take!r}); print(flush=True); input()"
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen([sys.executable, "-c", session], **pipes) as other:
        other.stdout.readline()
        second = deploy.run("-y", "--data", "only=serve")
        dry = deploy.run("--dry")
        other.communicate("\n")
    assert second.returncode == 1
    assert "found one by ann@there since 10:00; run again when it has ended" in second.stderr
    assert "Starting operation" not in second.stderr
    assert dry.returncode == 0
    assert deploy.run("-y", "--data", "only=serve").returncode == 0


def test_another_folder_works_too(deploy, deployed, tmp_path):
    done = deploy.run("--dry", "--json", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert all(op["hosts_with_change"] == [] for op in json.loads(done.stdout)["plan"])


def test_a_port_of_somebody_else_stops_the_run_before_anything_changes(deploy, tmp_path):
    with socket.socket() as stranger:
        stranger.bind(("127.0.0.1", 0))
        stranger.listen()
        port = stranger.getsockname()[1]
        done = deploy.run("-y", port=port, prefix=str(tmp_path / "other"))
    assert done.returncode == 1
    assert f"{port}" in done.stderr
    assert "port" in done.stderr
    assert not (tmp_path / "other").exists()


@pytest.mark.parametrize(
    ("words", "wanted", "message"),
    [
        (["--data", "only=srve"], {}, "did you mean 'serve'?"),
        (["--data", "bench=fast"], {}, "--data bench: expected auto or quick or full or force"),
        (["--data", "verify=yes"], {}, "--data verify: expected full, found"),
        ([], {"prot": 1}, "unknown key; did you mean 'port'?"),
        ([], {"budgets": "16"}, "wanted.budgets: expected"),
        ([], {"target": "ftp:x"}, "unknown kind"),
        ([], {"target": "path:/no/such/model"}, "/no/such/model"),
        ([], {"budgets": [8, 256]}, "wanted.budgets.1: expected less than or equal to 255"),
        ([], {"context_length": 32}, "wanted.context_length: expected at least"),
        ([], {"stack": "wheelhouse", "stack_from": "/no/wheels"}, "fail stack.wheels: expected"),
        ([], {"stack": "system", "stack_from": "/no/python"}, "fail os.python: expected"),
        ([], {"stack": "copy", "stack_from": "b"}, "expected another host of this inventory"),
    ],
)
def test_bad_input_is_one_line_and_exit_code_1(deploy, bare_port, tmp_path, words, wanted, message):
    done = deploy.run(
        "-y", *words, **{"prefix": str(tmp_path / "new"), "port": bare_port, **wanted}
    )
    assert done.returncode == 1
    assert message in done.stderr
    assert "Traceback" not in done.stderr


def test_a_mistyped_inventory_is_one_line_and_exit_code_1(deploy):
    done = deploy.run("-y", inventory="inventories/lokal.py")
    assert done.returncode == 1
    assert "found no file 'inventories/lokal.py'" in done.stderr
