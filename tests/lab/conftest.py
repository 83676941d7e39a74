"""Fixtures of the lab tests. They use labs of their own, apart from the one of `make lab`."""

from collections.abc import Iterator
from pathlib import Path

import lab
import pytest
from lab_tool import LabTool


@pytest.fixture(scope="session")
def lab_possible() -> None:
    """Skips where no lab can run, with the reason."""
    reason = lab.why_not()
    if reason:
        pytest.skip(reason)
    lab.setup()


@pytest.fixture
def spare_lab(lab_possible: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[LabTool]:
    """A lab to maltreat; nothing of it is left after the test."""
    tool = LabTool(Path("/var/tmp/ddtree-lab-spare"), net=79, port=30500)
    tool("down")
    yield tool
    tool("down")
