"""get_uv and pins: what runs on a host before anything of ours is installed."""

import hashlib
import json
import platform
import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
from hostkit import pins

HOSTKIT = Path(pins.__file__).parent


@pytest.fixture
def kit(tmp_path):
    """A copy of get_uv.py with the pin of a small wheel made here, and that wheel's folder."""
    shutil.copy(HOSTKIT / "get_uv.py", tmp_path)
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    with zipfile.ZipFile(wheels / "uv-1.whl", "w") as wheel:
        wheel.writestr("uv-1.data/scripts/uv", "#!/bin/sh\necho made uv\n")
    digest = hashlib.sha256((wheels / "uv-1.whl").read_bytes()).hexdigest()
    pin = {"version": "1", "wheels": {platform.machine(): {"file": "uv-1.whl", "sha256": digest}}}
    (tmp_path / "uv.json").write_text(json.dumps(pin))
    return tmp_path


def get_uv(kit, source) -> subprocess.CompletedProcess:
    command = [sys.executable, kit / "get_uv.py", kit / "out", str(source)]
    return subprocess.run(command, capture_output=True, text=True, timeout=60)


def test_the_program_is_taken_from_a_folder_of_wheels(kit):
    assert get_uv(kit, kit / "wheels").returncode == 0
    shown = subprocess.run([kit / "out/uv"], capture_output=True, text=True)
    assert shown.stdout == "made uv\n"


def test_a_wheel_of_another_hash_is_refused_and_nothing_is_installed(kit):
    with (kit / "wheels/uv-1.whl").open("ab") as wheel:
        wheel.write(b"x")
    done = get_uv(kit, kit / "wheels")
    assert done.returncode == 1
    assert "expected sha256" in done.stderr
    assert not (kit / "out").exists()


def test_an_index_that_does_not_answer_is_one_line(kit):
    done = get_uv(kit, "http://127.0.0.1:9/simple")
    assert done.returncode == 1
    assert len(done.stderr.splitlines()) == 1
    assert "is the index reachable?" in done.stderr


def test_pins_are_read_with_extras_and_markers():
    text = 'a==1.0 \\\n    --hash=sha256:00\nb[x]==2 ; sys_platform == "win32" \\\n# c==3\n'
    assert pins.pins(text) == [("a", "1.0", ""), ("b", "2", 'sys_platform == "win32"')]


def test_an_absent_and_a_wrong_package_are_faults():
    faults = pins.wrong_pins("pytest==0.0.1\nno-such-package==1\n")
    assert faults[0].startswith("pytest: expected 0.0.1, found ")
    assert faults[1].startswith("no-such-package: expected 1, found none")


def test_a_package_for_another_platform_may_be_absent():
    assert pins.wrong_pins('no-such-package==1 ; sys_platform == "win32"\n') == []


def test_any_of_several_pins_with_markers_is_right():
    found = pins.version("pytest")
    text = f'pytest==0.0.1 ; python_version < "3"\npytest=={found} ; python_version >= "3"\n'
    assert pins.wrong_pins(text) == []


def test_an_overlay_sees_the_packages_and_has_copies_of_its_own(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    overlay = [sys.executable, HOSTKIT / "overlay.py", venv]
    subprocess.run([*overlay, "iniconfig"], check=True, capture_output=True)
    show = "import iniconfig, pytest; print(iniconfig.__file__); print(pytest.__file__)"
    done = subprocess.run([venv / "bin/python", "-c", show], capture_output=True, text=True)
    copied, seen = done.stdout.split()
    assert copied.startswith(str(venv))
    assert seen == pytest.__file__
    assert (venv / "bin/pytest").exists()


def test_an_overlay_of_a_package_that_is_not_there_is_refused(tmp_path):
    venv = tmp_path / "venv"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True)
    overlay = [sys.executable, HOSTKIT / "overlay.py", venv, "no-such-package"]
    done = subprocess.run(overlay, capture_output=True, text=True)
    assert done.returncode == 1
    assert "expected no-such-package" in done.stderr
