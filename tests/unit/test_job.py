"""Detached jobs: their shell really runs, is joined and leaves its exit code."""

import os
import signal
import subprocess
import time

import pytest

from operations.job import JobState, poll_command, read_poll, start_command


def sh(command: str) -> str:
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, timeout=30)
    assert done.returncode == 0, done.stderr
    return done.stdout


def finished(run_dir, name: str) -> JobState:
    for _ in range(200):
        job = read_poll(sh(poll_command(str(run_dir), name)))
        if not job.running:
            return job
        time.sleep(0.05)
    raise AssertionError("the job did not end")


@pytest.mark.parametrize("code", [0, 3])
def test_the_exit_code_and_the_last_line_are_kept(tmp_path, code):
    sh(start_command(str(tmp_path), "work", f"echo first; echo 'it''s done'; exit {code}"))
    job = finished(tmp_path, "work")
    assert (job.exit_code, job.line) == (code, "its done")


def test_a_job_at_work_is_joined_not_started_twice(tmp_path):
    script = f"echo x >>{tmp_path}/starts; sleep 1"
    sh(start_command(str(tmp_path), "work", script))
    sh(start_command(str(tmp_path), "work", script))
    assert finished(tmp_path, "work").exit_code == 0
    assert (tmp_path / "starts").read_text() == "x\n"


def test_starting_returns_while_the_job_runs(tmp_path):
    sh(start_command(str(tmp_path), "work", "sleep 1"))
    assert read_poll(sh(poll_command(str(tmp_path), "work"))).running
    finished(tmp_path, "work")


def test_a_killed_job_is_lost(tmp_path):
    sh(start_command(str(tmp_path), "work", "sleep 30"))
    pid = int((tmp_path / "jobs/work.pid").read_text())
    os.killpg(pid, signal.SIGKILL)
    assert finished(tmp_path, "work").lost


def test_the_pid_of_another_process_is_not_taken_for_the_job(tmp_path):
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs/work.pid").write_text("1\n")
    assert not read_poll(sh(poll_command(str(tmp_path), "work"))).running
