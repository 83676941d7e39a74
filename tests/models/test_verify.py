"""hostkit verify: the manifest, and what it finds."""

import hashlib
import json
import subprocess
import sys
from pathlib import Path

import pytest
from hostkit.errors import HostkitError
from hostkit.model_hub import HubFile
from hostkit.verify import (
    DamagedError,
    FileInfo,
    check_file,
    damaged,
    read_manifest,
    write_manifest,
)
from hub_emulator import make_model


@pytest.fixture
def model(tmp_path: Path) -> tuple[Path, dict[str, FileInfo]]:
    folder = make_model(tmp_path / "model", shards=2, shard_bytes=1 << 20)
    files = {p.relative_to(folder).as_posix(): p for p in folder.rglob("*") if p.is_file()}
    manifest = {
        name: FileInfo(hashlib.sha256(p.read_bytes()).hexdigest(), p.stat().st_size)
        for name, p in files.items()
    }
    return folder, manifest


def test_a_whole_model_has_no_damage(model):
    folder, manifest = model
    assert damaged(folder, manifest) == []


def test_one_changed_byte_of_the_same_size_is_found(model):
    folder, manifest = model
    with (folder / "model-00001-of-00002.safetensors").open("r+b") as file:
        file.seek(500_000)
        byte = file.read(1)
        file.seek(500_000)
        file.write(bytes([byte[0] ^ 1]))
    assert damaged(folder, manifest) == ["model-00001-of-00002.safetensors"]


def test_missing_and_cut_files_are_found(model):
    folder, manifest = model
    (folder / "config.json").unlink()
    (folder / "README.md").write_text("")
    assert damaged(folder, manifest) == ["README.md", "config.json"]


def test_every_byte_is_counted_as_hashed(model):
    folder, manifest = model
    seen: list[int] = []
    damaged(folder, manifest, hashed=seen.append)
    assert sum(seen) == sum(info.size for info in manifest.values())


def test_a_manifest_is_read_back_as_it_was_written(model, tmp_path):
    _, manifest = model
    write_manifest(tmp_path / "m.json", manifest)
    assert read_manifest(tmp_path / "m.json") == manifest


def test_what_is_no_manifest_is_refused_with_one_line(tmp_path):
    (tmp_path / "m.json").write_text("[]")
    with pytest.raises(HostkitError, match="expected a manifest of files"):
        read_manifest(tmp_path / "m.json")


def test_a_small_file_is_checked_by_its_git_blob(tmp_path):
    (tmp_path / "a").write_bytes(b"hello\n")
    # git hash-object of "hello\n"
    blob = "ce013625030ba8dba906f756967f9e9ca394464a"
    info = check_file(tmp_path / "a", HubFile("a", 6, None, blob))
    assert info.sha256 == hashlib.sha256(b"hello\n").hexdigest()
    with pytest.raises(DamagedError, match="git blob"):
        check_file(tmp_path / "a", HubFile("a", 6, None, "0" * 40))


def test_the_command_exits_1_and_names_the_damaged_file(model, tmp_path):
    folder, manifest = model
    write_manifest(folder.with_name("model.manifest.json"), manifest)
    (folder / "config.json").write_text("{}")
    files = Path(__file__).resolve().parents[2] / "files"
    done = subprocess.run(
        [sys.executable, "-m", "hostkit", "verify", "--directory", str(folder)],
        env={"PYTHONPATH": str(files)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert done.stderr == f"1 of {len(manifest)} files damaged: config.json\n"


@pytest.mark.sglang
def test_sglangs_own_verifier_accepts_the_manifest_and_finds_damage(model, tmp_path):
    verifier = pytest.importorskip("sglang.srt.utils.model_file_verifier")
    folder, manifest = model
    path = tmp_path / "m.json"
    write_manifest(path, manifest)
    verifier.verify(model_path=str(folder), checksums_source=str(path))
    (folder / "config.json").write_text("{}")
    with pytest.raises(verifier.IntegrityError, match=r"config\.json"):
        verifier.verify(model_path=str(folder), checksums_source=str(path))


def test_the_manifest_has_the_keys_that_sglang_reads(model, tmp_path):
    """sglang 0.5.16, model_file_verifier.Manifest.from_dict: files -> sha256, size."""
    _, manifest = model
    write_manifest(tmp_path / "m.json", manifest)
    data = json.loads((tmp_path / "m.json").read_text())
    assert set(data) == {"files"}
    assert all(set(entry) == {"sha256", "size"} for entry in data["files"].values())
