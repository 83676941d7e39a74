"""The probes on a host: the service comes back, and hosts of a group are compared."""

import subprocess
from types import SimpleNamespace

import pytest

from operations.layout import Layout
from operations.probe import script, slower

FAST = {"all_reduce": {"large_bus_gb_s": 300.0, "small_us": 40.0}}
SLOW = {"all_reduce": {"large_bus_gb_s": 100.0, "small_us": 40.0}}


def test_a_slower_all_reduce_than_the_neighbours_is_told():
    (line,) = slower(SLOW, FAST)
    assert "all-reduce of 256 MiB (bus GB/s): 100.0, baseline 300.0" in line


def test_hosts_alike_have_nothing_to_tell():
    assert slower(FAST, FAST) == []


@pytest.mark.parametrize("code", [0, 1])
@pytest.mark.parametrize("state", ["ready", "stopped"])
def test_a_service_that_ran_is_stopped_and_started_whatever_is_found(tmp_path, code, state):
    """Runs the script with a made engine Python and a made supervisorctl."""
    layout = Layout(str(tmp_path), "s", "t", "v", "r")
    python = tmp_path / "venvs/v/bin/python"
    control = tmp_path / "current/tools/bin/python"
    for path, text in ((python, f"exit {code}"), (control, f'echo "$@" >>{tmp_path}/calls')):
        path.parent.mkdir(parents=True)
        path.write_text(f"#!/bin/sh\n{text}\n")
        path.chmod(0o755)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/status.json").write_text(f'{{"state": "{state}"}}')
    (tmp_path / "calls").touch()
    run = SimpleNamespace(layout=layout, systemd=False, wanted=SimpleNamespace(service="ddtree"))
    done = subprocess.run(["sh", "-c", script(run, str(tmp_path / "probes"))], timeout=30)
    assert done.returncode == code
    started = "supervisord" in (tmp_path / "calls").read_text()
    assert started == (state == "ready")
