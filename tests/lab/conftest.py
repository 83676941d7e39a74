"""Fixtures of the lab tests. They use labs of their own, apart from the one of `make lab`."""

import os
from collections.abc import Iterator

import lab
import pytest
from lab_deploy import Deployment
from lab_tool import LabTool


@pytest.fixture(scope="session")
def lab_possible() -> None:
    """Skips where no lab can run, with the reason."""
    reason = lab.why_not()
    if reason:
        pytest.skip(reason)
    lab.setup()


@pytest.fixture
def spare_lab(lab_possible: None) -> Iterator[LabTool]:
    """A lab to maltreat; nothing of it is left after the test."""
    tool = LabTool.of_checkout("spare", 0)
    tool("down")
    yield tool
    tool("down")


@pytest.fixture(scope="session")
def deployed_lab(lab_possible: None) -> Iterator[Deployment]:
    """b300-a and ct200-a, deployed once for all tests. Tests leave them settled and ready.

    With DDTREE_LAB_REUSE=1 the hosts are kept for the next run: for work on the tests themselves.
    """
    tool = LabTool.of_checkout("test", 1)
    reuse = os.environ.get("DDTREE_LAB_REUSE") == "1"
    if not reuse:
        tool("down")
    try:
        tool("up", "b300-a", "ct200-a")
        deployment = Deployment(tool)
        first = deployment.run("-y")
        if first.returncode != 0:
            pytest.fail(f"the first deploy failed:\n{first.stdout}\n{first.stderr}")
        yield deployment
    finally:
        if not reuse:
            tool("down")
