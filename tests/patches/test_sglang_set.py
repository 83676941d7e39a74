"""The set for SGLang 0.5.16 on the real release (15 MB from the package index), and its deploy.

Installed by uv as on a host, so its files are hard links into uv's cache.
"""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import made_set
import pytest
import yaml

from operations import patch_set
from tests.uv_program import uv_program

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
SERIES = "sglang-0.5.16"
FOLDER = patch_set.FOLDER / SERIES
tree = patch_set.applier("patchtree")
apply = patch_set.applier("apply")


def install(venv: Path) -> Path:
    """SGLang without its dependencies into a venv's place; skips where there is no index."""
    site = venv / "lib/python3.12/site-packages"
    words = [uv_program(), "pip", "install", "--quiet", "--no-deps", "--target", str(site)]
    words += ["--python-version", "3.12", "--python-platform", "x86_64-manylinux_2_39"]
    run = subprocess.run(
        [*words, "sglang==0.5.16"], capture_output=True, text=True, timeout=250, check=False
    )
    if run.returncode:
        pytest.skip(f"no package index here: {run.stderr.strip()[-200:]}")
    (venv / "bin").mkdir()
    (venv / "bin/python").symlink_to(sys.executable)
    return venv


@pytest.fixture(scope="module")
def release(tmp_path_factory):
    return install(tmp_path_factory.mktemp("sglang") / "release")


@pytest.fixture
def venv(release, tmp_path):
    """A venv of its own whose files are hard links to the release's, as uv makes it."""
    shutil.copytree(release, tmp_path / "venv", copy_function=_link, symlinks=True)
    return tmp_path / "venv"


def _link(source, target):
    Path(target).hardlink_to(source)


def touched(venv):
    """The upstream files that the set edits, and all that lies at the top of site-packages."""
    site = venv / "lib/python3.12/site-packages"
    chosen = tree.read_set(FOLDER)
    edits = [edit.path for patch in chosen.series.patches for edit in patch.edits]
    return {path: (site / path).read_bytes() for path in edits}, sorted(
        p.name for p in site.iterdir()
    )


def test_the_set_applies_to_the_release_and_comes_off_byte_for_byte(release, venv):
    chosen = tree.read_set(FOLDER)
    before = touched(venv)
    assert tree.inspect(chosen, venv).state == "pristine"
    apply.apply(chosen, venv)
    assert tree.inspect(chosen, venv).state == "applied"
    assert touched(venv) != before
    assert touched(release) == before  # the other venv on the same inodes
    apply.reverse(chosen, venv)
    assert touched(venv) == before


def test_what_the_set_adds_and_edits_is_valid_python(venv):
    chosen = tree.read_set(FOLDER)
    apply.apply(chosen, venv)
    site = venv / "lib/python3.12/site-packages"
    edits = [edit.path for patch in chosen.series.patches for edit in patch.edits]
    for path in [*edits, *(p for p in chosen.series.new if p.endswith(".py"))]:
        compile((site / path).read_text(), path, "exec")


def test_the_entry_point_names_the_function_that_registers(venv):
    apply.apply(tree.read_set(FOLDER), venv)
    site = venv / "lib/python3.12/site-packages"
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from importlib.metadata import entry_points;"
        "print([(e.name, e.value) for e in entry_points(group='sglang.srt.plugins')])"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, str(site)], capture_output=True, text=True, check=True
    )
    assert out.stdout.strip() == "[('ddtree', 'sglang_ddtree.plugin:register')]"


def test_series_json_and_yaml_say_the_same_and_fit_the_files():
    document = json.loads((FOLDER / "series.json").read_text())
    assert document == yaml.safe_load((FOLDER / "series.yaml").read_text())
    chosen = tree.read_set(FOLDER)  # checks every hash
    added = {
        p.relative_to(FOLDER / "new").as_posix() for p in patch_set.added_files(FOLDER / "new")
    }
    assert set(chosen.series.new) == added


def test_every_patch_says_what_it_does_and_when_to_drop_it():
    for patch in tree.read_set(FOLDER).series.patches:
        words = (patch.what, patch.upstream, patch.drop_when)
        assert all(len(text) > 10 and "to be written" not in text for text in words)


def test_export_of_an_edited_tree_remakes_the_set(release, venv, tmp_path):
    folder = tmp_path / "set"
    shutil.copytree(FOLDER, folder)
    apply.apply(tree.read_set(folder), venv)
    site = venv / "lib/python3.12/site-packages"
    other = site / "sglang/version.py"
    text = other.read_text()
    other.unlink()  # not through the hard link
    other.write_text(text + "# edited\n")
    (site / "sglang_ddtree/extra.py").write_text("more = 1\n")
    wheel = shutil.make_archive(str(tmp_path / "sglang-0.5.16-any"), "zip", release / SITE)
    wheel = Path(wheel).rename(tmp_path / "sglang-0.5.16-any.whl")
    patch_set.export(folder, venv, wheel)
    remade = tree.read_set(folder)
    assert [p.file for p in remade.series.patches][1:] == ["0002-version.patch"]
    assert "sglang_ddtree/extra.py" in remade.series.new
    apply.apply(remade, venv)
    apply.reverse(remade, venv)
    assert other.read_text() == text


SITE = "lib/python3.12/site-packages"


def deploy(tmp_path, venv, *flags):
    """Run the operation by pyinfra on this machine; returns the finished process."""
    code = (
        "from operations import patches\n"
        f"patches.apply(name='patches: set', venv={str(venv)!r}, series={SERIES!r},"
        f" sources={str(ROOT / 'files')!r})\n"
    )
    (tmp_path / "deploy.py").write_text(code)
    words = [BIN / "pyinfra", "@local", tmp_path / "deploy.py", *flags]
    return subprocess.run(words, cwd=ROOT, capture_output=True, text=True, check=False, timeout=120)


def test_a_dry_run_shows_the_real_diff_and_changes_nothing(tmp_path, venv):
    before = touched(venv)
    run = deploy(tmp_path, venv, "--dry", "--diff")
    text = run.stdout + run.stderr
    assert run.returncode == 0
    assert 'speculative_algorithm in ("STANDALONE", "DFLASH", "DSPARK", "DDTREE"):' in text
    assert "Will patch sglang_ddtree/worker.py" in text
    assert touched(venv) == before


def test_the_operation_applies_once_and_a_second_run_plans_nothing(tmp_path, venv):
    first = deploy(tmp_path, venv, "-y")
    assert first.returncode == 0, first.stderr
    assert tree.inspect(tree.read_set(FOLDER), venv).state == "applied"
    again = deploy(tmp_path, venv, "--dry", "--json")
    (planned,) = json.loads(again.stdout)["plan"]
    assert planned["hosts_with_change"] == []


def test_drift_shows_in_the_plan_and_stops_the_host_in_one_line(tmp_path, venv):
    apply.apply(tree.read_set(FOLDER), venv)
    drifted = venv / SITE / "sglang_ddtree/worker.py"
    drifted.write_text(drifted.read_text() + "# drift\n")
    planned = deploy(tmp_path, venv, "--dry", "--diff")
    assert "+# drift" in planned.stdout + planned.stderr
    run = deploy(tmp_path, venv, "-y")
    assert run.returncode == 1
    assert "patches: expected the release's files" in run.stderr
    assert drifted.read_text().endswith("# drift\n")


def test_a_host_without_a_venv_plans_the_whole_set(tmp_path):
    run = deploy(tmp_path, tmp_path / "none", "--dry", "--diff")
    assert run.returncode == 0
    assert "Will patch sglang/srt/speculative/spec_utils.py" in run.stdout + run.stderr


def test_nothing_of_the_set_names_paths_of_this_machine():
    for path, data in made_set.snapshot(FOLDER).items():
        assert str(ROOT).encode() not in data, path
