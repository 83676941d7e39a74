"""Programs that print end without a word when nobody reads on: `... | head`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
B300 = "tests/cases/machines/b300.json"
RESULT = "docs/example/LOCAL-133655be6117/records/result.json"


@pytest.mark.parametrize(
    "words",
    [
        "-m facts.nvidia smi tests/cases/open/A01.txt",
        "-m facts.machine --script",
        f"-m operations.plan show inventories/b300.py --facts {B300}",
        "-m operations.patches status /none",
        f"-m operations.recommend {RESULT}",
        "-m operations.report --help",
        "-m operations.kit --help",
        "files/patches/apply.py status files/patches/sglang-0.5.16 /none",
    ],
)
def test_a_reader_that_is_gone_ends_it_without_a_word(words):
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "wb") as nobody:
        done = subprocess.run(
            [sys.executable, *words.split()],
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=nobody,
            stderr=subprocess.PIPE,
            text=True,
        )
    assert (done.returncode, done.stderr) == (-signal.SIGPIPE, "")
