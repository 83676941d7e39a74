"""Command lines that would be an empty run with exit code 0 are refused."""

import pytest

from operations.invocation import InvocationError, check

VALUED = {"--limit", "--data"}


@pytest.fixture
def project(tmp_path):
    (tmp_path / "inventories").mkdir()
    (tmp_path / "inventories/b300.py").write_text("B300 = (['b300-1', 'b300-2'], {'x': 1})\n")
    return tmp_path


@pytest.mark.parametrize(
    "line",
    [
        "inventories/b300.py deploy.py -y",
        "-y --data only=serve inventories/b300.py deploy.py",
        "--limit b300-1 inventories/b300.py deploy.py",
        "inventories/b300.py deploy.py --limit=B300",
        "@local deploy.py",
        "host1,host2 deploy.py",
        "--support",
    ],
)
def test_a_good_command_line_passes(project, line):
    check(line.split(), project, VALUED)


def test_an_inventory_that_is_not_there_is_refused_with_those_that_are(project):
    with pytest.raises(InvocationError, match=r"no file 'inventories/b30\.py'.*inventories/b300"):
        check(["inventories/b30.py", "deploy.py", "-y"], project, VALUED)


def test_a_limit_that_matches_no_host_is_refused_with_the_hosts(project):
    with pytest.raises(InvocationError, match=r"--limit ct200-1.*b300-1, b300-2"):
        check(["--limit", "ct200-1", "inventories/b300.py", "deploy.py"], project, VALUED)


def test_an_old_python_is_refused(project):
    with pytest.raises(InvocationError, match=r"expected Python 3\.11 or newer, found 3\.10"):
        check(["@local", "deploy.py"], project, VALUED, (3, 10, 4))


@pytest.mark.parametrize("flags", ["", "-v", "--data set=y"])
def test_a_question_that_nobody_can_answer_is_refused(project, flags):
    line = f"inventories/b300.py deploy.py {flags}".split()
    with pytest.raises(InvocationError, match="add -y to do it, or --dry to look"):
        check(line, project, VALUED, answers=False)


@pytest.mark.parametrize("flags", ["-y", "-vy", "--dry --diff", "--data only=preflight"])
def test_without_a_terminal_an_agreed_or_a_dry_run_passes(project, flags):
    check(f"inventories/b300.py deploy.py {flags}".split(), project, VALUED, answers=False)


def test_without_a_terminal_other_commands_of_pyinfra_pass(project):
    check(["inventories/b300.py", "fact", "server.Kernel"], project, VALUED, answers=False)
