"""The supervisor under a real supervisord; under systemd it is proven on the lab's hosts."""

import json
import os
import subprocess
import sys
from pathlib import Path

from hostkit_processes import FILES, eventually, is_alive

SUPERVISORD = Path(sys.executable).with_name("supervisord")
CONFIGURATION = """
[supervisord]
nodaemon=true
logfile={folder}/supervisord.log
pidfile={folder}/supervisord.pid
childlogdir={folder}
[program:engine]
command={python} -m hostkit supervise --launch {folder}/launch.json
environment=PYTHONPATH="{files}"
autorestart=unexpected
exitcodes=0
startsecs=1
stopwaitsecs=20
"""


def test_supervisord_starts_it_again_after_kill_9_and_its_stop_leaves_nothing(
    make_launch, tmp_path
):
    note = tmp_path / "helper"
    launch = make_launch("--helper", str(note))
    (tmp_path / "launch.json").write_text(json.dumps(launch))
    configuration = tmp_path / "supervisord.conf"
    text = CONFIGURATION.format(folder=tmp_path, python=sys.executable, files=FILES)
    configuration.write_text(text)
    status_file = tmp_path / "run" / "status.json"

    def ready(other_than=0):
        status = json.loads(status_file.read_text())
        return status["state"] == "ready" and status["pid"] != other_than and status

    manager = subprocess.Popen([str(SUPERVISORD), "-c", str(configuration)])
    try:
        first = eventually(ready, 60)
        os.kill(first["pid"], 9)
        second = eventually(lambda: ready(first["pid"]), 60)
        assert not is_alive(first["engine_pid"])
        helper = int(note.read_text())
        assert is_alive(helper)
    finally:
        manager.terminate()
        manager.wait(60)
    assert json.loads(status_file.read_text())["state"] == "stopped"
    assert not any(is_alive(pid) for pid in (second["pid"], second["engine_pid"], helper))
