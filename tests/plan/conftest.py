"""`pytest tests/plan --update-golden` writes the golden files anew; review the diff."""

from __future__ import annotations

from pathlib import Path

import pytest

GOLDEN = Path(__file__).parent / "golden"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="write tests/plan/golden anew")


@pytest.fixture
def golden(request: pytest.FixtureRequest):
    """Compares a text with a golden file, or writes it."""

    def compare(name: str, text: str) -> None:
        path = GOLDEN / name
        if request.config.getoption("--update-golden", default=False):
            path.write_text(text)
        assert path.exists(), f"no {path}; write it: pytest tests/plan --update-golden"
        assert text == path.read_text(), f"{path} differs; see tests/plan/conftest.py"

    return compare
