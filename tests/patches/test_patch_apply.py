"""The applier of patch sets on a small release: every state, every point of being killed."""

import json
import os

import made_set
import pytest
from made_set import A, make_set, make_venv, snapshot

from operations import patch_set

apply = patch_set.applier("apply")
patchset = patch_set.applier("patchset")
patchtree = patch_set.applier("patchtree")


@pytest.fixture
def venv(tmp_path):
    return make_venv(tmp_path)


@pytest.fixture
def site(venv):
    return venv / "lib/python3.12/site-packages"


@pytest.fixture
def chosen(tmp_path):
    return patchtree.read_set(make_set(tmp_path / "set"))


def state(chosen, venv):
    return patchtree.inspect(chosen, venv).state


def test_apply_gives_the_patched_and_the_added_files(chosen, venv, site):
    assert state(chosen, venv) == "pristine"
    changed = apply.apply(chosen, venv)
    assert set(changed) == {*made_set.PATCHED, *made_set.NEW}
    for path, text in {**made_set.PATCHED, **made_set.NEW}.items():
        assert (site / path).read_text() == text
    assert state(chosen, venv) == "applied"


def test_a_second_apply_changes_nothing(chosen, venv):
    apply.apply(chosen, venv)
    before = snapshot(venv)
    assert apply.apply(chosen, venv) == ()
    assert snapshot(venv) == before


def test_reverse_gives_the_release_byte_for_byte(chosen, venv):
    before = snapshot(venv)
    apply.apply(chosen, venv)
    (venv / "lib/python3.12/site-packages/engine_tree/__pycache__").mkdir()
    apply.reverse(chosen, venv)
    assert snapshot(venv) == before
    assert not (venv / "lib/python3.12/site-packages/engine_tree").exists()


def test_hard_linked_copies_of_a_file_stay_as_they_were(chosen, venv, site, tmp_path):
    cached = tmp_path / "cache.py"
    os.link(site / A, cached)
    apply.apply(chosen, venv)
    assert cached.read_text() == made_set.RELEASE[A]


class Killed(BaseException):
    """Stands for a kill: nothing of the applier runs after it."""


def killed_at(monkeypatch, count, work):
    """Run `work` and kill it at its `count`-th rename or removal; True if it got that far."""
    left = [count]

    def dying(original):
        def call(self, *args, **kwargs):
            left[0] -= 1
            if left[0] < 0:
                raise Killed
            return original(self, *args, **kwargs)

        return call

    path_type = type(apply.Path())
    with monkeypatch.context() as patch:
        patch.setattr(path_type, "replace", dying(path_type.replace))
        patch.setattr(path_type, "unlink", dying(path_type.unlink))
        try:
            work()
        except Killed:
            return True
    return False


@pytest.mark.parametrize("then", ["apply", "reverse"])
@pytest.mark.parametrize("first", ["apply", "reverse"])
def test_whatever_a_kill_leaves_the_next_run_completes_or_takes_back(
    first, then, tmp_path, monkeypatch
):
    chosen = patchtree.read_set(make_set(tmp_path / "set"))
    kills = 0
    for count in range(20):
        venv = make_venv(tmp_path / str(count))
        pristine = snapshot(venv)
        if first == "reverse":
            apply.apply(chosen, venv)
        work = getattr(apply, first)
        if not killed_at(monkeypatch, count, lambda w=work, v=venv: w(chosen, v)):
            break
        kills += 1
        getattr(apply, then)(chosen, venv)
        if then == "apply":
            assert state(chosen, venv) == "applied"
            apply.reverse(chosen, venv)
        assert snapshot(venv) == pristine
    assert kills >= 4


def test_a_foreign_upstream_file_stops_the_whole_set_and_shows_its_lines(chosen, venv, site):
    (site / A).write_text(made_set.RELEASE[A].replace("return 2", "return 3"))
    before = snapshot(venv)
    with pytest.raises(patchset.PatchSetError) as error:
        apply.apply(chosen, venv)
    assert "nothing was changed: engine/a.py" in str(error.value)
    assert "-    return 2\n+    return 3\n" in str(error.value)
    assert snapshot(venv) == before


def test_a_foreign_file_where_the_set_adds_one_is_refused_with_its_diff(chosen, venv, site):
    (site / "engine_tree").mkdir()
    (site / "engine_tree/__init__.py").write_text("made = 'by another'\n")
    with pytest.raises(patchset.PatchSetError, match="by another"):
        apply.apply(chosen, venv)


def test_an_edit_after_apply_is_foreign_and_is_never_reversed_away(chosen, venv, site):
    apply.apply(chosen, venv)
    (site / A).write_text("mine\n")
    with pytest.raises(patchset.PatchSetError, match=r"engine/a\.py"):
        apply.reverse(chosen, venv)
    assert (site / A).read_text() == "mine\n"


def test_a_missing_upstream_file_is_foreign(chosen, venv, site):
    (site / A).unlink()
    tree = patchtree.inspect(chosen, venv)
    assert tree.state == "foreign"


def test_another_version_is_refused_with_the_one_that_fits(chosen, tmp_path):
    venv = make_venv(tmp_path / "other", "1.1")
    with pytest.raises(patchset.PatchSetError, match=r"fits engine == 1\.0; in .* it is 1\.1"):
        apply.apply(chosen, venv)


def test_a_venv_without_the_distribution_is_refused(chosen, tmp_path):
    (tmp_path / "bare/lib/python3.12/site-packages").mkdir(parents=True)
    with pytest.raises(patchset.PatchSetError, match="is not installed"):
        apply.apply(chosen, tmp_path / "bare")


def test_a_newer_set_replaces_an_older_one_and_drops_what_it_no_longer_has(
    chosen, venv, site, tmp_path
):
    before = snapshot(venv)
    apply.apply(chosen, venv)
    patched = {A: made_set.RELEASE[A].replace("return 1", "return 11")}
    newer = patchtree.read_set(
        make_set(tmp_path / "newer", {**made_set.PATCHED, **patched}, {"engine_tree/new.py": "k\n"})
    )
    assert state(newer, venv) == "outdated"
    apply.apply(newer, venv)
    assert (site / A).read_text() == patched[A]
    assert sorted(p.name for p in (site / "engine_tree").iterdir()) == ["new.py"]
    assert state(newer, venv) == "applied"
    apply.reverse(newer, venv)
    assert snapshot(venv) == before


def test_a_set_whose_own_file_was_changed_is_refused(chosen, tmp_path):
    (tmp_path / "set/new/engine_tree/deep/mod.py").write_text("n = 2\n")
    with pytest.raises(patchset.PatchSetError, match=r"mod\.py is not the file in"):
        patchtree.read_set(tmp_path / "set")


def test_system_packages_stay_and_only_files_of_our_own_are_added(tmp_path, monkeypatch):
    venv = tmp_path / "venv"
    site = venv / "lib/python3.12/site-packages"
    site.mkdir(parents=True)
    (venv / "pyvenv.cfg").write_text("include-system-site-packages = true\n")
    monkeypatch.setattr(patchtree, "_system_version", lambda *_: "1.0")
    needed = patchtree.read_set(make_set(tmp_path / "needed"))
    with pytest.raises(patchset.PatchSetError, match="would change system packages"):
        apply.apply(needed, venv)
    optional = patchtree.read_set(make_set(tmp_path / "optional", required=False))
    assert set(apply.apply(optional, venv)) == set(made_set.NEW)
    tree = patchtree.inspect(optional, venv)
    assert (tree.state, tree.left_out) == ("applied", ("0001-made.patch",))


def test_the_diff_of_a_pristine_tree_is_what_apply_does(chosen, venv):
    text = patchtree.diff(patchtree.inspect(chosen, venv))
    parsed = patchset.parse_patch(text)
    for path, now in made_set.PATCHED.items():
        assert patchset.apply_hunks(made_set.RELEASE[path], parsed[path]) == now
    assert "+made = 'by the set'" in text


def test_the_command_prints_one_json_document(tmp_path, venv, capsys):
    folder = make_set(tmp_path / "set")
    assert apply.main(["--json", "apply", str(folder), str(venv)]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["state"] == "applied" and len(document["changed"]) == 4


def test_the_command_fails_with_one_reason(tmp_path, capsys):
    folder = make_set(tmp_path / "set")
    assert apply.main(["apply", str(folder), str(tmp_path / "none")]) == 1
    assert capsys.readouterr().err == f"patches: {tmp_path / 'none'} is not there yet\n"
