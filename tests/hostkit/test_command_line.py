"""`python -m hostkit`: commands are found, imported one at a time, and errors are one line."""

import os
import re
import subprocess
import sys

import pytest
from hostkit import __main__ as cli
from hostkit_processes import FILES


@pytest.mark.parametrize("command", cli.COMMANDS)
def test_every_command_has_help_and_says_what_each_option_is(command, capsys):
    with pytest.raises(SystemExit) as end:
        cli.main([command, "--help"])
    assert end.value.code == 0
    head, _, options = capsys.readouterr().out.partition("\noptions:")
    assert f"hostkit {command}" in head
    for option in re.split(r"\n  (?=-)", options)[1:]:
        assert re.search(r"\S\s{2,}\S", option), option


def test_an_unknown_command_is_refused_with_the_list(capsys):
    with pytest.raises(SystemExit) as end:
        cli.main(["fly"])
    assert end.value.code == 2
    assert "supervise" in capsys.readouterr().err


def test_a_missing_library_takes_only_its_own_command_down():
    """A Python without httpx, as the engine's may be: diagnose works, load says what is missing."""
    script = (
        "import sys; sys.modules['httpx'] = None\n"
        "from hostkit.__main__ import main\n"
        "sys.exit(main(sys.argv[1:]))\n"
    )

    def run(*words):
        command = [sys.executable, "-c", script, *words]
        return subprocess.run(
            command,
            env={"PYTHONPATH": str(FILES)},
            input="Error 802: system not yet initialized\n",
            capture_output=True,
            text=True,
        )

    assert run("diagnose", "-").stdout.startswith("E12: ")
    failed = run("load")
    assert failed.returncode == 1
    assert "needs the module httpx" in failed.stderr
    assert failed.stderr.count("\n") == 1


def test_output_that_nobody_reads_ends_it_without_a_word():
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, "-m", "hostkit", "diagnose", "-"],
            env={"PYTHONPATH": str(FILES)},
            input="Error 802: system not yet initialized\n",
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (141, "")


def test_a_broken_pipe_that_is_not_the_output_is_an_error():
    def program():
        raise BrokenPipeError

    with pytest.raises(BrokenPipeError):
        cli.quietly(program)
