"""hostkit fetch against a Hub that fails in every way that downloads are known to fail."""

import filecmp
import json
import os
import re
import shutil
import signal
import subprocess
from pathlib import Path

import pytest
from hub_emulator import Fault

SHARD = "model-00002-of-00004.safetensors"
CHUNK = 1 << 20  # what a fetcher may have received and not yet written, a connection


def same(hub, fetch) -> bool:
    """Every file of the repository lies in the folder with the same bytes, and nothing else."""
    there = {p.relative_to(fetch.directory).as_posix() for p in fetch.directory.rglob("*")}
    files = {name for name in there if (fetch.directory / name).is_file()}
    return files == set(hub.files) and all(
        filecmp.cmp(f.disk, fetch.directory / f.path, shallow=False) for f in hub.files.values()
    )


def test_a_repository_arrives_whole_and_is_stamped(hub, bare):
    assert bare.run() == 0
    assert same(hub, bare)
    assert bare.stamped
    assert bare.status["state"] == "done"


def test_no_byte_is_fetched_twice_without_a_fault(hub, bare):
    assert bare.run() == 0
    assert sum(hub.sent.values()) == hub.size


def test_a_stamped_model_costs_no_request(hub, fetch):
    assert fetch.run() == 0
    hub.requests.clear()
    assert fetch.run() == 0
    assert hub.requests == []


def test_the_storage_host_never_gets_the_hubs_token(hub, fetch):
    hub.tokens = {"hf_good": True}
    Path(fetch.job["token_file"]).write_text("hf_good")
    assert fetch.run() == 0
    assert hub.leaked_to_storage == []


def test_cut_connections_are_resumed_at_the_byte(hub, fetch):
    hub.faults = [Fault("cut", "safetensors", times=1, after=at) for at in (1, 77_777, 300_001)]
    assert fetch.run() == 0
    assert same(hub, fetch)
    assert sum(hub.sent.values()) <= hub.size + 3 * CHUNK


def test_a_silent_connection_is_replaced(hub, fetch):
    hub.faults = [Fault("stall", SHARD, after=200_000)]
    assert fetch.run(read_timeout_s=1.0) == 0
    assert same(hub, fetch)


def test_a_stall_of_all_connections_kills_the_worker_and_goes_on(hub, fetch):
    hub.faults = [Fault("stall", "safetensors", times=4, after=100_000)]
    assert fetch.run(stall_s=2.0) == 0
    assert same(hub, fetch)
    assert "no byte for 2 s; going on with HTTP, parallel" in fetch.log.read_text()


def test_the_last_rung_is_one_connection(hub, fetch):
    hub.faults = [Fault("stall", "safetensors", times=8, after=100_000)]
    assert fetch.run(stall_s=2.0) == 0
    assert "going on with HTTP, one connection" in fetch.log.read_text()


def test_a_corrupt_shard_is_found_and_only_it_is_fetched_again(hub, fetch):
    hub.faults = [Fault("corrupt", SHARD)]
    assert fetch.run() == 0
    assert same(hub, fetch)
    twice = {path for path, sent in hub.sent.items() if sent > hub.files[path].size}
    assert twice == {SHARD}


def test_a_corrupt_small_file_is_found_by_its_git_blob(hub, fetch):
    hub.faults = [Fault("corrupt", "tokenizer_config.json")]
    assert fetch.run() == 0
    assert same(hub, fetch)


def test_a_source_that_is_broken_for_good_is_refused_and_leaves_no_stamp(hub, fetch):
    hub.faults = [Fault("corrupt", SHARD, times=1000)]
    assert fetch.run() == 1
    assert not fetch.stamped
    assert "3 times in a row" in fetch.status["message"]


@pytest.mark.parametrize("code", [429, 500, 503])
def test_the_server_is_given_time_and_the_download_goes_on(hub, fetch, code):
    hub.faults = [Fault("status", "/resolve/", times=3, code=code, headers={"Retry-After": "1"})]
    assert fetch.run() == 0
    assert same(hub, fetch)


def test_a_server_that_ignores_ranges_still_gives_the_right_bytes(hub, fetch):
    hub.faults = [Fault("no_range", SHARD, times=1000)]
    assert fetch.run() == 0
    assert same(hub, fetch)


def test_a_signed_url_that_runs_out_is_asked_for_again(hub, fetch, until):
    hub.rate = 4e6
    process = fetch.start()
    until(lambda: sum(hub.sent.values()) > 4 << 20)
    hub.expire_signed_urls()
    hub.rate = 0
    assert process.wait(timeout=60) == 0
    assert same(hub, fetch)


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_an_ended_fetcher_is_gone_on_with_at_the_byte(hub, fetch, until, number):
    hub.rate = 2e6
    process = fetch.start()
    until(lambda: sum(hub.sent.values()) > 8 << 20)
    assert fetch.kill(process, number) == (-9 if number == signal.SIGKILL else 143)
    assert not fetch.stamped
    hub.rate = 0
    assert fetch.run() == 0
    assert same(hub, fetch)
    # what was in the sockets' buffers of four connections is lost, no more
    assert sum(hub.sent.values()) <= hub.size + 4 * 4 * CHUNK


def test_sigterm_says_stopped_and_leaves_no_worker(hub, fetch, until):
    hub.rate = 2e6
    process = fetch.start()
    until(lambda: sum(hub.sent.values()) > 1 << 20)
    fetch.kill(process, signal.SIGTERM)
    assert fetch.status["state"] == "stopped"
    assert workers(fetch) == []


def test_a_worker_does_not_outlive_a_killed_fetcher(hub, fetch, until):
    hub.rate = 2e6
    process = fetch.start()
    until(lambda: workers(fetch) != [])
    fetch.kill(process)
    until(lambda: workers(fetch) == [])


def test_two_fetches_of_one_model_do_not_collide(hub, fetch, until):
    hub.rate = 2e5
    first = fetch.start()
    until(lambda: sum(hub.sent.values()) > 1 << 20)
    second = fetch.run()
    hub.rate = 0
    assert second == 1
    assert f"another fetch of this model is at work (pid {first.pid})" in fetch.log.read_text()
    assert first.wait(timeout=60) == 0


def test_a_gated_repository_without_a_token_says_what_to_do(hub, bare):
    hub.gated, hub.tokens = True, {"hf_good": True}
    assert bare.run("--check") == 1
    assert "gated repository and no token (401)" in bare.log.read_text()


def test_a_token_without_the_permission_names_the_permission(hub, bare):
    hub.gated, hub.tokens = True, {"hf_narrow": False}
    Path(bare.job["token_file"]).write_text("hf_narrow")
    assert bare.run("--check") == 1
    assert "Read access to contents of all public gated repos" in bare.log.read_text()


def test_a_refused_token_is_told_apart_from_a_missing_permission(hub, bare):
    hub.tokens = {"hf_good": True}
    Path(bare.job["token_file"]).write_text("hf_old")
    assert bare.run("--check") == 1
    assert "mistyped, expired or revoked" in bare.log.read_text()


def test_a_missing_revision_is_one_line(hub, bare):
    assert bare.run("--check", revision="0" * 40) == 1
    assert re.fullmatch(r"hostkit fetch: .*no such revision \(404\).*\n", bare.log.read_text())


def test_a_refused_check_writes_nothing(hub, bare):
    before = sorted(bare.folder.rglob("*"))
    assert bare.run("--check", margin_bytes=1 << 60) == 1
    assert sorted(set(bare.folder.rglob("*")) - set(before)) == [bare.path, bare.log]


def test_a_check_sums_all_jobs_of_a_mount(fetch, tmp_path):
    """Each alone would fit, both together do not."""
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    large = {"path": "f", "size": free * 6 // 10, "sha256": None, "blob": None, "xet": None}
    fetch.listing.write_text(json.dumps([large]))
    other, place = tmp_path / "other.json", tmp_path / "other" / "x"
    other.write_text(json.dumps({**fetch.job, "directory": str(place)}))
    shutil.copytree(fetch.directory, place)
    assert fetch.run("--check") == 0
    assert fetch.run("--check", "--job", str(other)) == 1
    assert "2 files" in fetch.log.read_text()


def test_too_little_space_is_refused_before_a_byte_is_fetched(hub, fetch):
    assert fetch.run("--check", margin_bytes=1 << 60) == 1
    assert re.search(r"has [\d.]+ GB free: free [\d.]+ GB there", fetch.log.read_text())
    assert sum(hub.sent.values()) == 0


def test_the_token_shows_nowhere_while_it_is_used(hub, bare, until):
    token = "hf_SECRETsecretSECRETsecret"
    hub.tokens = {token: True}
    hub.rate = 4e6
    Path(bare.job["token_file"]).write_text(token)
    process = bare.start()
    until(lambda: workers(bare) != [] and sum(hub.sent.values()) > 1 << 20)
    seen = [
        Path(f"/proc/{pid}/{name}").read_bytes()
        for pid in (process.pid, *workers(bare))
        for name in ("cmdline", "environ")
    ]
    hub.rate = 0
    assert process.wait(timeout=60) == 0
    assert Path(bare.job["token_file"]).read_text() == ""
    seen += [p.read_bytes() for p in bare.folder.rglob("*") if p.is_file()]
    assert [text for text in seen if token.encode() in text] == []


def workers(fetch) -> list[int]:
    """Pids of the worker processes of this test's fetcher, told by their environment."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            command = (entry / "cmdline").read_bytes()
            environment = (entry / "environ").read_bytes()
        except OSError:
            continue
        mine = str(fetch.folder).encode() in environment
        if b"hostkit.model_worker" in command and mine:
            found.append(int(entry.name))
    return found


def test_a_changed_file_is_found_by_a_full_verification_and_fetched_alone(hub, fetch):
    assert fetch.run() == 0
    hub.sent.clear()
    with (fetch.directory / SHARD).open("r+b") as file:
        file.seek(1234)
        file.write(b"x")
    assert fetch.run(full=True) == 0
    assert same(hub, fetch)
    assert set(hub.sent) == {SHARD}


def test_a_file_cut_short_after_its_verification_is_fetched_again_alone(hub, fetch):
    assert fetch.run() == 0
    hub.sent.clear()
    with (fetch.directory / SHARD).open("r+b") as file:
        file.truncate(1234)
    assert fetch.run() == 0
    assert same(hub, fetch)
    assert set(hub.sent) == {SHARD}


def test_a_full_verification_of_a_whole_model_asks_the_hub_for_nothing(hub, fetch):
    assert fetch.run() == 0
    hub.requests.clear()
    assert fetch.run(full=True) == 0
    assert hub.requests == []


def test_files_that_lie_there_already_are_hashed_and_kept(hub, fetch):
    (fetch.directory / SHARD).write_bytes(hub.files[SHARD].disk.read_bytes())
    assert fetch.run() == 0
    assert hub.sent[SHARD] == 0


def test_the_manifest_lists_every_file_with_sha256_and_size(hub, fetch):
    assert fetch.run() == 0
    manifest = json.loads(fetch.directory.with_name(f"{hub.commit}.manifest.json").read_text())
    assert {n: e["size"] for n, e in manifest["files"].items()} == {
        f.path: f.size for f in hub.files.values()
    }
    assert manifest["files"][SHARD]["sha256"] == hub.files[SHARD].sha256


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small tmpfs needs root")
def test_a_full_disk_stops_cleanly_and_the_download_goes_on_when_there_is_room(
    hub, fetch, tmp_path
):

    mount = tmp_path / "small"
    mount.mkdir()
    done = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=20m", "tmpfs", mount], check=False)
    if done.returncode != 0:
        pytest.skip("no permission to mount a tmpfs here")
    try:
        fetch.job["directory"] = str(mount / hub.commit)
        fetch.job["stamp"] = str(mount / "stamp.json")
        assert fetch.run(margin_bytes=-(64 << 20)) == 1  # the check before the start is led astray
        assert re.search(r"disk full: [\d.]+ GB still to come", fetch.status["message"])
        assert not fetch.stamped
        subprocess.run(["mount", "-o", "remount,size=64m", mount], check=True)
        assert fetch.run() == 0
        assert same(hub, fetch)
        assert sum(hub.sent.values()) <= hub.size + 4 * 4 * CHUNK
    finally:
        subprocess.run(["umount", "-l", mount], check=True)
