"""A group's tuned settings lie over its inventory, and are data only."""

import pytest

from operations import tuned
from operations.wanted import WantedError


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(tuned, "INVENTORIES", tmp_path)
    return tmp_path


def test_the_tuned_arm_wins_over_the_inventory(folder):
    (folder / "b300_tuned.py").write_text('TUNED = {"arm": "ddtree-32"}\n')
    wanted = {"group": "B300", "arm": "ddtree-16", "port": 1}
    assert tuned.with_tuned(wanted) == {"group": "B300", "arm": "ddtree-32", "port": 1}


def test_without_the_file_the_inventory_stands(folder):
    assert tuned.with_tuned({"group": "B300", "arm": "ar"}) == {"group": "B300", "arm": "ar"}


@pytest.mark.parametrize("text", ["", "TUNED = [", "TUNED = open('/etc/passwd')", "TUNED = 3"])
def test_a_file_with_anything_else_is_refused_with_its_name(folder, text):
    (folder / "b300_tuned.py").write_text(text)
    with pytest.raises(WantedError, match=r"b300_tuned\.py: expected TUNED = "):
        tuned.with_tuned({"group": "B300"})


@pytest.mark.parametrize("data", [None, [], {"target": "x"}, {"group": 3}])
def test_odd_data_passes_through_to_the_check_of_wanted(folder, data):
    assert tuned.with_tuned(data) == data
