"""model_parts: an unfinished file and how far it has come."""

import pytest
from hostkit import model_parts
from hostkit.model_parts import PartFile

DATA = bytes(range(256)) * 10


def part(tmp_path) -> PartFile:
    return PartFile(tmp_path / "f.part", len(DATA), 1000)


def put(file: PartFile, index: int, count: int) -> None:
    start, _ = file.rest(index)
    file.write(index, memoryview(DATA[start : start + count]))


def test_after_a_kill_every_written_byte_counts(tmp_path):
    put(part(tmp_path), 1, 300)
    again = part(tmp_path)
    assert again.done == 300
    assert again.rest(1) == (1300, 2000)


def test_after_a_reboot_only_synced_bytes_count(tmp_path, monkeypatch):
    file = part(tmp_path)
    put(file, 0, 500)
    file.sync()
    put(file, 0, 250)
    put(file, 2, 100)
    monkeypatch.setattr(model_parts, "boot_id", lambda: b"another boot".ljust(36))
    again = part(tmp_path)
    assert again.rest(0)[0] == 500
    assert again.done == 500


def test_another_size_or_a_broken_map_begins_afresh(tmp_path):
    put(part(tmp_path), 0, 500)
    assert PartFile(tmp_path / "f.part", len(DATA) + 1, 1000).done == 0
    put(part(tmp_path), 0, 500)
    (tmp_path / "f.part.map").write_bytes(b"x")
    assert part(tmp_path).done == 0


def test_a_map_without_its_file_begins_afresh(tmp_path):
    put(part(tmp_path), 0, 500)
    (tmp_path / "f.part").unlink()
    assert part(tmp_path).done == 0


def test_a_segment_takes_no_more_than_it_holds(tmp_path):
    file = part(tmp_path)
    with pytest.raises(ValueError, match="more bytes than segment 2 holds"):
        file.write(2, memoryview(DATA[:561]))
    assert file.done == 0


def test_a_finished_file_has_its_bytes_and_leaves_no_map(tmp_path):
    file = part(tmp_path)
    for index in reversed(range(file.count)):
        put(file, index, 1000)
    assert file.whole
    file.finish(tmp_path / "sub" / "f")
    assert (tmp_path / "sub" / "f").read_bytes() == DATA
    assert list(tmp_path.glob("f.part*")) == []


def test_a_sync_after_the_end_touches_nothing(tmp_path):
    file = part(tmp_path)
    for index in range(file.count):
        put(file, index, 1000)
    file.finish(tmp_path / "f")
    file.sync()
    assert (tmp_path / "f").read_bytes() == DATA


def test_a_cleared_file_lacks_everything(tmp_path):
    file = part(tmp_path)
    put(file, 0, 1000)
    file.clear()
    assert file.done == 0
    assert part(tmp_path).done == 0
