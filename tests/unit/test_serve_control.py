"""The shell that starts and stops the service, on real processes; and the state of a service."""

import base64
import subprocess
import sys
from pathlib import Path

import pytest

from facts.service import Service
from operations.layout import Layout
from operations.serve import control


def layout_in(prefix: Path) -> Layout:
    return Layout(str(prefix), "s" * 12, "t" * 12, "v" * 12, "0123456789ab")


@pytest.fixture
def supervise_of():
    """Starts a process with the command line of a prefix's supervise."""
    started = []

    def start(prefix: Path, code: str = "import time; time.sleep(600)") -> subprocess.Popen:
        words = [sys.executable, "-c", code, "--launch", f"{prefix}/current/launch.json"]
        started.append(subprocess.Popen(words))
        return started[-1]

    yield start
    for process in started:
        process.kill()
        process.wait()


def sh(script: str) -> None:
    subprocess.run(["sh", "-c", script], check=True)


def test_a_stop_ends_a_service_whose_supervisord_was_killed(tmp_path, supervise_of):
    orphan = supervise_of(tmp_path)
    (tmp_path / "run").mkdir()
    (tmp_path / "run/supervisord.pid").write_text("999999999")
    sh(control(layout_in(tmp_path), False, "ddtree", "stop"))
    assert orphan.wait(timeout=30) == -15


def test_a_stop_leaves_the_services_of_other_prefixes(tmp_path, supervise_of):
    other = supervise_of(tmp_path / "other")
    sh(control(layout_in(tmp_path), False, "ddtree", "stop"))
    assert other.poll() is None


def state_of(prefix: Path):
    command = Service().command(prefix=str(prefix), service="ddtree", files=[])
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    return Service().process(done.stdout.splitlines())


@pytest.mark.parametrize("text", ["", "[1", "[1]", "null", '{"state": "ready", "pid": 1}'])
def test_a_status_file_that_is_broken_or_of_another_process_means_down(tmp_path, text):
    (tmp_path / "run").mkdir()
    (tmp_path / "run/status.json").write_text(text)
    state = state_of(tmp_path)
    assert (state.running, state.ready) == (None, False)


@pytest.mark.skipif(Path("/run/systemd/system").is_dir(), reason="systemd says what is enabled")
def test_a_supervisord_of_another_service_under_a_stale_number_is_not_ours(tmp_path, supervise_of):
    other = supervise_of(tmp_path, "import time; time.sleep(600)  # supervisord")
    (tmp_path / "run").mkdir()
    (tmp_path / "run/supervisord.pid").write_text(str(other.pid))
    assert state_of(tmp_path).enabled is False


def test_drop_ins_of_this_unit_are_told_from_those_of_all_services():
    own = "/etc/systemd/system/ddtree.service.d/override.conf"
    paths = f"/usr/lib/systemd/system/service.d/10-timeout-abort.conf {own}"
    assert Service().process([f"dropins {paths}"]).drop_ins == (own,)


def test_texts_of_files_survive_the_way_through_the_shell():
    line = "file /a " + base64.b64encode(b"x\n\xc3\xa4").decode()
    assert Service().process([line]).files == {"/a": "x\nä"}
