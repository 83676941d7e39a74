"""Downloads on throwaway hosts with real systemd and SSH: what survives what."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from hub_emulator import HubEmulator

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "lab"))

import lab  # noqa: E402
from lab_tool import LabTool  # noqa: E402

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

TOKEN = "hf_SECRETsecretSECRETsecret"
MODELS = "/opt/ddtree/models"
INVENTORY = """
_ssh = {{"ssh_config_file": {ssh_config!r}, "ssh_strict_host_key_checking": "yes"}}


def _host(name, group, target, port):
    wanted = {{"group": group, "target": target, "engine": "reference", "gpus": 8, "port": port}}
    return name, {{"wanted": {{**wanted, "drafter": "builtin:smollm2-135m-dflash-b8-int8"}}}}


B300 = ([_host("b300-a", "B300", "mirror:{url}/{model}", 30600)], _ssh)
CT200 = ([_host("ct200-a", "CT200", "host:b300-a/{model}", 30610)], _ssh)
"""


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabTool]:
    """Two hosts of a lab of their own."""
    if reason := lab.why_not():
        pytest.skip(reason)
    lab.setup()
    tool = LabTool(Path("/var/tmp/ddtree-lab-models"), net=81, port=30600)
    tool("down")
    tool("up", "b300-a", "ct200-a")
    yield tool
    tool("down")


@contextlib.contextmanager
def gated(made: Path) -> Iterator[HubEmulator]:
    with HubEmulator(made) as emulator:
        emulator.gated, emulator.tokens = True, {TOKEN: True}
        yield emulator


@pytest.fixture
def hub(made: Path) -> Iterator[HubEmulator]:
    with gated(made) as emulator:
        yield emulator


class Deploy:
    """`pyinfra INVENTORY deploy.py --data only=models`, as a user runs it."""

    def __init__(self, hosts: LabTool, hub: HubEmulator, folder: Path) -> None:
        self.folder = folder
        self.inventory = folder / "inventory.py"
        self.inventory.write_text(
            INVENTORY.format(
                ssh_config=str(hosts.state / "ssh_config"),
                url=hub.url,
                model=f"{hub.repo}@{hub.commit}",
            )
        )

    def start(self, *words: str) -> "subprocess.Popen[str]":
        pyinfra = Path(sys.executable).with_name("pyinfra")
        command = [str(pyinfra), str(self.inventory), "deploy.py", "--data", "only=models", *words]
        with self.log.open("a") as log:
            return subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                env={**os.environ, "HF_TOKEN": TOKEN},
            )

    @property
    def log(self) -> Path:
        return self.folder / "pyinfra.log"

    def run(self, *words: str) -> tuple[int, str]:
        """Exit code and standard output."""
        process = self.start(*words)
        out, _ = process.communicate(timeout=600)
        return process.returncode, out


def forget(hosts: LabTool) -> None:
    """Hosts without a model, with what was installed on them before."""
    for name in ("b300-a", "ct200-a"):
        hosts.ssh(name, f"systemctl stop 'model-fetch@*'; rm -rf {MODELS}")


@pytest.fixture
def deploy(hosts: LabTool, hub: HubEmulator, tmp_path: Path) -> Deploy:
    forget(hosts)
    return Deploy(hosts, hub, tmp_path)


@dataclass
class Deployed:
    """A finished deploy onto both hosts, at the highest verbosity."""

    hub: HubEmulator
    deploy: Deploy
    code: int
    said: str


@pytest.fixture(scope="module")
def deployed(
    hosts: LabTool, made: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Deployed]:
    with gated(made) as emulator:
        first = Deploy(hosts, emulator, tmp_path_factory.mktemp("deployed"))
        code, out = first.run("-y", "-vvv", "--debug")
        yield Deployed(emulator, first, code, out + first.log.read_text())


def stamped(hosts: LabTool, name: str) -> bool:
    return "yes" in hosts.ssh(name, f"ls {MODELS}/*/*.stamp.json >/dev/null 2>&1 && echo yes || :")


def wait_for(happened: Callable[[], bool], seconds: float = 120) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline, f"it did not happen within {seconds:.0f} s"
        time.sleep(0.2)


def test_two_hosts_cost_one_download(hosts, deployed):
    assert deployed.code == 0, deployed.said[-3000:]
    assert stamped(hosts, "b300-a")
    assert stamped(hosts, "ct200-a")
    assert sum(deployed.hub.sent.values()) == deployed.hub.size


def test_the_token_shows_nowhere(hosts, deployed):
    assert TOKEN not in deployed.said
    for name in ("b300-a", "ct200-a"):
        assert hosts.ssh(name, f"journalctl --no-pager | grep -F {TOKEN} || :") == ""
        assert hosts.ssh(name, f"grep -rlF {TOKEN} /opt /etc /run /tmp /var /root || :") == ""


def test_a_second_run_plans_nothing_and_asks_the_hub_nothing(hosts, deployed):
    deployed.hub.requests.clear()
    code, out = deployed.deploy.run("--dry", "--json")
    assert code == 0
    plan = {op["name"]: op["hosts_with_change"] for op in json.loads(out)["plan"]}
    models = {name: changed for name, changed in plan.items() if name.startswith("models")}
    assert models
    assert not any(models.values())
    assert deployed.hub.requests == []


def test_a_killed_controller_leaves_the_download_alive_and_the_next_run_joins_it(
    hosts, hub, deploy
):
    hub.rate = 2e5
    first = deploy.start("-y", "--limit", "b300-a")
    wait_for(lambda: sum(hub.sent.values()) > 1 << 20)
    first.send_signal(signal.SIGKILL)
    first.communicate()
    hub.rate = 2e6
    before = sum(hub.sent.values())
    assert deploy.run("-y", "--limit", "b300-a")[0] == 0
    assert before < hub.size
    assert sum(hub.sent.values()) == hub.size


def test_a_reboot_in_mid_download_is_gone_on_with_by_the_unit_alone(hosts, hub, deploy):
    hub.rate = 4e5
    first = deploy.start("-y", "--limit", "b300-a")
    wait_for(lambda: sum(hub.sent.values()) > 4 << 20)
    with contextlib.suppress(BaseException):
        hosts("ssh", "b300-a", "systemctl reboot", check=False)
    first.communicate()
    assert first.returncode == 1  # this run lost its host
    hub.rate = 0
    wait_for(lambda: hosts("ssh", "b300-a", "true", check=False).returncode == 0)
    wait_for(lambda: stamped(hosts, "b300-a"))
    # what lay in the buffers of four connections is lost, no more
    assert sum(hub.sent.values()) <= hub.size + (16 << 20)
    assert deploy.run("-y", "--limit", "b300-a")[0] == 0
