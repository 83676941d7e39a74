"""Verifies deployed hosts, and changes nothing on them.

pytest tests/hosts --hosts-from inventories/NAME.py [--hosts-limit HOST]

`--hosts-set` takes what the deploy was given as `--data set=...`.
"""

from __future__ import annotations

import dataclasses
import fnmatch
import json
from pathlib import Path

import pytest
from deployed import Deployed, read_inventory


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("deployed hosts")
    group.addoption(
        "--hosts-from", metavar="INVENTORY", help="inventory file whose hosts to verify"
    )
    group.addoption("--hosts-limit", metavar="PATTERN", help="only hosts whose name matches")
    group.addoption("--hosts-set", metavar="JSON", help="laid over `wanted`, as `--data set=...`")


def _hosts(config: pytest.Config) -> list[Deployed]:
    path = config.getoption("--hosts-from", default=None)
    if path is None:
        return []
    if not Path(path).is_file():
        raise pytest.UsageError(f"--hosts-from: expected an inventory file, found {path}")
    pattern = config.getoption("--hosts-limit") or "*"
    found = [h for h in read_inventory(Path(path)) if fnmatch.fnmatch(h.name, pattern)]
    if not found:
        raise pytest.UsageError(f"--hosts-limit: expected a host of {path}, found {pattern!r}")
    changes = config.getoption("--hosts-set")
    if changes:
        data = {"set": json.loads(changes)}
        found = [dataclasses.replace(h, data={**h.data, **data}) for h in found]
    return found


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "deployed" not in metafunc.fixturenames:
        return
    hosts = _hosts(metafunc.config)
    reason = "no host to verify: give --hosts-from inventories/NAME.py"
    absent = pytest.param(None, marks=pytest.mark.skip(reason=reason), id="none")
    metafunc.parametrize(
        "deployed", hosts or [absent], ids=[h.name for h in hosts] or None, scope="session"
    )
