"""facts/models.py: its shell, run by a real sh on real files, and what is read from it."""

import json
import os
import subprocess
from pathlib import Path

from facts.models import Models, ModelsState, Revisions, parse


def ask(models_dir: Path, *wanted: tuple[str, Path, Path | None, Path | None]) -> ModelsState:
    asked = [tuple(None if part is None else str(part) for part in model) for model in wanted]
    command = Models().command(str(models_dir), asked)  # type: ignore[arg-type]
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    return Models().process(done.stdout.splitlines())


def test_a_bare_host_has_nothing_and_says_how_much_room_there_is(tmp_path):
    state = ask(tmp_path / "none", ("m", tmp_path / "none/m/1", tmp_path / "s", tmp_path / "t"))
    model = state.of("m")
    assert not model.present
    assert not model.settled
    assert not model.running
    assert model.job is None
    assert state.folders == ()
    free = os.statvfs(tmp_path)
    assert state.free_bytes is not None
    assert abs(state.free_bytes - free.f_bavail * free.f_frsize) < 10**10


def test_a_stamp_counts_only_with_its_folder(tmp_path):
    folder, stamp = tmp_path / "a--b" / "1", tmp_path / "a--b" / "1.stamp.json"
    folder.mkdir(parents=True)
    stamp.write_text(json.dumps({"revision": "1"}, indent=1))
    assert ask(tmp_path, ("m", folder, stamp, None)).of("m").settled
    folder.rmdir()
    assert not ask(tmp_path, ("m", folder, stamp, None)).of("m").settled


def test_a_cut_stamp_is_no_stamp(tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "s").write_text('{"revision": ')
    assert ask(tmp_path, ("m", tmp_path / "m", tmp_path / "s", None)).of("m").stamped is None


def test_a_process_that_is_no_fetcher_does_not_count_as_one(tmp_path):
    status = tmp_path / "status.json"
    status.write_text(json.dumps({"pid": os.getpid(), "state": "fetching"}, indent=1))
    model = ask(tmp_path, ("m", tmp_path / "m", None, status)).of("m")
    assert not model.running
    assert model.job is not None
    assert model.job.state == "fetching"


def test_a_running_fetcher_is_seen(tmp_path):
    status = tmp_path / "status.json"
    with subprocess.Popen(["sh", "-c", "sleep 60; :", "hostkit fetch"]) as process:
        status.write_text(json.dumps({"pid": process.pid, "bytes_done": 5, "bytes_total": 9}))
        model = ask(tmp_path, ("m", tmp_path / "m", None, status)).of("m")
        process.kill()
    assert model.running
    assert model.job is not None
    assert (model.job.bytes_done, model.job.bytes_total) == (5, 9)


def test_names_with_quotes_and_spaces_do_no_harm(tmp_path):
    odd = tmp_path / "it's $(a) name" / "1"
    odd.mkdir(parents=True)
    state = ask(tmp_path, ("m", odd, None, None))
    assert state.of("m").present
    assert state.folders == ("it's $(a) name/1",)


def test_hidden_folders_are_no_revisions(tmp_path):
    (tmp_path / ".jobs" / "hf").mkdir(parents=True)
    (tmp_path / "a--b" / "1").mkdir(parents=True)
    assert ask(tmp_path).folders == ("a--b/1",)


def test_revisions_have_their_size_on_disk(tmp_path):
    folder = tmp_path / "a--b" / "1"
    folder.mkdir(parents=True)
    (folder / "f").write_bytes(b"x" * 100_000)
    (tmp_path / "a--b" / "1.stamp.json").write_text("{}")
    command = Revisions().command(str(tmp_path))
    done = subprocess.run(["sh", "-c", command], capture_output=True, text=True, check=True)
    (revision,) = Revisions().process(done.stdout.splitlines())
    assert revision.folder == "a--b/1"
    assert revision.stamped
    assert 100_000 <= revision.size_bytes < 200_000


def test_unreadable_output_is_absence_and_never_an_error():
    assert parse(["", "noise", "stamp\t{", "free\t?", "model\tm", "status\t[]"]).of("m").job is None


def test_a_stamped_model_that_lost_bytes_is_not_settled(tmp_path):
    folder, stamp = tmp_path / "m" / "1", tmp_path / "m" / "1.stamp.json"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep/a").write_bytes(b"12345")
    (folder / "b").write_bytes(b"123")
    stamp.write_text(json.dumps({"revision": "1", "files": 2, "bytes": 8}))
    assert ask(tmp_path, ("m", folder, stamp, None)).of("m").settled
    (folder / "deep/a").write_bytes(b"1234")
    assert not ask(tmp_path, ("m", folder, stamp, None)).of("m").settled


def test_files_that_came_to_a_model_later_do_no_harm(tmp_path):
    folder, stamp = tmp_path / "m" / "1", tmp_path / "m" / "1.stamp.json"
    folder.mkdir(parents=True)
    (folder / "a").write_bytes(b"12345678")
    (folder / "cache").write_bytes(b"1")
    stamp.write_text(json.dumps({"revision": "1", "files": 1, "bytes": 8}))
    assert ask(tmp_path, ("m", folder, stamp, None)).of("m").settled
