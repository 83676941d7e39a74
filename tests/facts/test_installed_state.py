"""facts/stack.py: which folders are complete, asked by a real sh on real folders."""

import subprocess
import sys
from pathlib import Path

from facts.service import Service
from facts.stack import Installed


def complete(folder: Path) -> bool:
    command = Installed().command(str(folder.parent), [str(folder)])
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    return str(folder) in Installed().process(done.stdout.splitlines()).complete


def test_a_folder_without_its_stamp_is_not_complete(tmp_path):
    (tmp_path / "a").mkdir()
    assert not complete(tmp_path / "a")
    (tmp_path / "a/.complete").write_text("sum\n")
    assert complete(tmp_path / "a")


def test_a_venv_whose_interpreter_is_gone_is_not_complete(tmp_path):
    venv = tmp_path / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".complete").write_text("sum\n")
    (venv / "bin/python").symlink_to(sys.executable)
    assert complete(venv)
    (venv / "bin/python").unlink()
    (venv / "bin/python").symlink_to("/nowhere/python3")
    assert not complete(venv)


def test_a_link_that_leads_nowhere_is_left_out(tmp_path):
    (tmp_path / "good").symlink_to(tmp_path)
    (tmp_path / "bad").symlink_to(tmp_path / "gone")
    links = [str(tmp_path / "good"), str(tmp_path / "bad")]
    command = Service().command(str(tmp_path), "ddtree", files=[], links=links)
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert Service().process(done.stdout.splitlines()).links == {links[0]: str(tmp_path)}
