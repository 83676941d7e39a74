"""A deployed host holds the release that its facts and its inventory call for."""

import json
import re

import pytest
from deployed import Deployed

from operations.artifacts import lock_text
from operations.plan import ServingPlan

pytestmark = pytest.mark.host

INSTALLED = (
    "import importlib.metadata as m, json;"
    "print(json.dumps([[d.metadata['Name'], d.version] for d in m.distributions()]))"
)
PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)", re.MULTILINE)
SECRETS = re.compile(r"hf_[A-Za-z0-9]{8,}|(?:TOKEN|SECRET|PASSWORD|API_KEY)\w*=\S", re.IGNORECASE)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_the_release_of_the_plan_is_current(deployed: Deployed) -> None:
    target = deployed.remote.file(deployed.current).linked_to
    assert target.rpartition("/")[2] == deployed.release.fingerprint


@pytest.mark.parametrize("name", ["launch.json", "service.env"])
def test_a_file_of_the_release_is_as_rendered(deployed: Deployed, name: str) -> None:
    assert deployed.text(f"{deployed.current}/{name}") == deployed.release.files[name]


def test_the_stored_plan_is_the_plan_of_today(deployed: Deployed) -> None:
    stored = json.loads(deployed.text(f"{deployed.current}/plan.json"))
    assert ServingPlan.from_json(stored) == ServingPlan.from_json(deployed.plan.to_json())


def test_the_service_file_is_as_rendered(deployed: Deployed) -> None:
    assert deployed.text(deployed.release.service_file) == deployed.release.service_text


@pytest.mark.parametrize("link", ["venv", "tools", "sources"])
def test_a_link_of_the_release_leads_to_a_complete_folder(deployed: Deployed, link: str) -> None:
    folder = deployed.remote.file(f"{deployed.current}/{link}").linked_to
    assert deployed.remote.file(f"{folder}/.complete").exists


@pytest.mark.parametrize("venv", ["venv", "tools"])
def test_a_venv_holds_the_versions_of_its_lock(deployed: Deployed, venv: str) -> None:
    if venv == "venv" and deployed.wanted.stack == "system":
        pytest.skip("stack: system uses the packages of a Python that the host's owner looks after")
    python = f"{deployed.current}/{venv}/bin/python"
    found = json.loads(deployed.remote.check_output("%s -I -c %s", python, INSTALLED))
    lock = lock_text("tools" if venv == "tools" else deployed.plan.lock).decode()
    pins: dict[str, set[str]] = {}
    for name, version in PIN.findall(lock):
        pins.setdefault(normal(name), set()).add(version)
    assert found
    wrong = {n: v for n, v in found if v not in pins.get(normal(n), set())}
    assert wrong == {}


def test_no_secret_is_in_what_the_service_reads(deployed: Deployed) -> None:
    paths = [deployed.release.service_file]
    paths += [f"{deployed.current}/{name}" for name in deployed.release.files]
    assert [path for path in paths if SECRETS.search(deployed.text(path))] == []
