"""A venv goes from one group's host to another's over SSH, and is proven where it arrives."""

import json

import pytest
from lab_deploy import Deployment

pytestmark = pytest.mark.lab
PREFIX = "/opt/copied"


def settings(**more: str) -> str:
    return f"set={json.dumps({'prefix': PREFIX, **more})}"


@pytest.mark.parametrize("user", ["root", "ops"])
def test_the_engine_venv_is_copied_from_another_group_and_runs(deployed_lab: Deployment, user: str):
    only = ("--data", "only=stack", *deployed_lab.as_user(user))
    copied = settings(stack="copy", stack_from="b300-a")
    try:
        deployed_lab.apply("--limit", "b300-a", *only, "--data", settings())
        deployed_lab.apply("--limit", "ct200-a", *only, "--data", copied)
        seen = deployed_lab.tool(
            "ssh", "ct200-a", f"cat {PREFIX}/run/jobs/stack.log; {PREFIX}/venvs/*/bin/python -V"
        ).stdout
        assert "packages as locked" in seen
        assert "Python 3." in seen
        assert deployed_lab.planned("--limit", "ct200-a", *only, "--data", copied) == {}
    finally:
        for host in ("b300-a", "ct200-a"):
            deployed_lab.tool("ssh", host, f"rm -rf {PREFIX}")


def test_a_copy_from_a_host_that_has_no_such_venv_fails_that_host_with_a_line(
    deployed_lab: Deployment,
):
    only = ("--limit", "ct200-a", "--data", "only=stack")
    missing = settings(stack="copy", stack_from="b300-a", prefix="/opt/copied-not")
    try:
        done = deployed_lab.run("-y", *only, "--data", missing)
        assert done.returncode == 1
        assert "b300-a has no finished /opt/copied-not/venvs/" in done.stderr
    finally:
        deployed_lab.tool("ssh", "ct200-a", "rm -rf /opt/copied-not")
