"""Runs on one host and prefix take turns: the real shell, reached through processes of the test."""

import subprocess
import sys
from pathlib import Path

import pytest

from operations.lock import OtherRun

# stands for a session of sshd: runs the command it is sent, and lives until its input ends
SESSION = """
import subprocess, sys
for line in sys.stdin:
    done = subprocess.run(eval(line), capture_output=True, text=True)
    print(repr(done.stdout.splitlines()), flush=True)
"""


class Session:
    def __init__(self, *around: str) -> None:
        self.around = around
        self.process = subprocess.Popen(
            [sys.executable, "-c", SESSION],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def ask(self, run_dir: Path, me: str):
        words = [*self.around, "sh", "-c", OtherRun().command(str(run_dir), me)]
        self.process.stdin.write(f"{words!r}\n")
        self.process.stdin.flush()
        return OtherRun().process(eval(self.process.stdout.readline()))


@pytest.fixture
def session():
    opened = []

    def open_session(*around: str) -> Session:
        opened.append(Session(*around))
        return opened[-1]

    yield open_session
    for one in opened:
        one.process.kill()
        one.process.communicate()


def test_a_second_run_learns_who_is_at_work_and_through_which_process(session, tmp_path):
    first, second = session(), session()
    assert first.ask(tmp_path / "run", "ann@there since 10:00") is None
    assert second.ask(tmp_path / "run", "bob@here") == (first.process.pid, "ann@there since 10:00")
    assert first.ask(tmp_path / "run", "ann@there") is None


def test_a_shell_around_the_command_is_not_the_session(session, tmp_path):
    first, second = session("bash", "-c", '"$@"; exit', "-"), session()
    assert first.ask(tmp_path, "ann") is None
    assert second.ask(tmp_path, "bob") == (first.process.pid, "ann")


def test_a_run_that_was_killed_holds_nothing_even_if_nobody_reaps_it(session, tmp_path):
    first, second = session(), session()
    assert first.ask(tmp_path, "ann") is None
    first.process.kill()
    first.process.stdout.read()  # dead now, and a zombie until the test ends
    assert second.ask(tmp_path, "bob") is None
    assert session().ask(tmp_path, "eve") == (second.process.pid, "bob")


def test_other_prefixes_are_not_locked(session, tmp_path):
    first, second = session(), session()
    assert first.ask(tmp_path / "a", "ann") is None
    assert second.ask(tmp_path / "b", "bob") is None


@pytest.mark.parametrize("text", ["", "\n", "garbage", "1 999999999999 x", "/ ; x"])
def test_a_lock_that_names_no_living_process_is_free(session, tmp_path, text):
    (tmp_path / "deploy.lock").write_text(text)
    assert session().ask(tmp_path, "ann") is None


def test_a_lock_that_can_t_be_written_is_left_to_the_operations(session, tmp_path):
    (tmp_path / "deploy.lock").mkdir()
    command = OtherRun().command(str(tmp_path), "ann")
    assert subprocess.run(["sh", "-c", command], capture_output=True).returncode == 0
    assert session().ask(tmp_path, "ann") is None


def test_a_folder_that_can_t_be_made_is_left_to_the_operations(session, tmp_path):
    (tmp_path / "file").touch()
    assert session().ask(tmp_path / "file/run", "ann") is None
