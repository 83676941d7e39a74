"""Every flag that a plan renders exists in SGLang 0.5.16: its own parser reads the command lines.

Needs a Python with SGLang: this one, or the one that SGLANG_PYTHON names.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys

import pytest

from operations.plan import choose
from tests.unit.plan_cases import CASES, machine_of, wanted_for, with_wish

PARSE = """
import argparse, json, sys
from sglang.srt.server_args import ServerArgs
parser = argparse.ArgumentParser(allow_abbrev=False)
ServerArgs.add_cli_args(parser)
names = ("speculative_algorithm", "speculative_num_draft_tokens")
found = []
for words in json.load(sys.stdin):
    known, unknown = parser.parse_known_args(words)
    found.append({"unknown": unknown, **{name: getattr(known, name) for name in names}})
print(json.dumps(found))
"""
NOT_A_FLAG = ["--model-path", "x", "--no-such-flag", "8"]


def parsed(command_lines: list[list[str]]) -> list[dict[str, object]]:
    python = os.environ.get("SGLANG_PYTHON", sys.executable)
    done = subprocess.run(
        [python, "-c", PARSE], input=json.dumps(command_lines), capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found: list[dict[str, object]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.sglang
@pytest.mark.timeout(900)
def test_sglangs_parser_knows_every_flag_of_every_plan():
    launches = [
        launch
        for name in CASES
        if name != "cpu"
        for parallelism in ("auto", "EP4" if name in ("b300", "ct200") else "PP1")
        for launch in choose(
            machine_of(name), with_wish(wanted_for(name), parallelism=parallelism)
        ).launches
    ]
    *results, control = parsed([*(list(launch.argv[3:]) for launch in launches), NOT_A_FLAG])
    assert control["unknown"] == ["--no-such-flag", "8"]
    assert len(results) > 20
    for launch, result in zip(launches, results, strict=True):
        assert result["unknown"] == []
        assert result["speculative_algorithm"] == launch.algorithm
        if launch.budget is not None:
            assert result["speculative_num_draft_tokens"] == launch.budget + 1


CACHES = """
import json, os
from pathlib import Path
from flashinfer.jit.env import FLASHINFER_WORKSPACE_DIR
from huggingface_hub.constants import HF_HOME
from sglang.srt.environ import envs
from torch._inductor.runtime.cache_dir_utils import cache_dir
from torch.utils.cpp_extension import get_default_build_root
from triton import knobs
print(json.dumps([os.path.expanduser("~"), envs.SGLANG_CACHE_DIR.get(),
    envs.SGLANG_DG_CACHE_DIR.get(), str(FLASHINFER_WORKSPACE_DIR), knobs.cache.dir, HF_HOME,
    cache_dir(), get_default_build_root()]))
"""


@pytest.mark.sglang
@pytest.mark.timeout(300)
def test_what_the_engine_compiles_and_finds_out_lands_under_the_prefix(tmp_path):
    """The unit lets it write nowhere else: SGLang dies at TP 2 if it can't store peer access."""
    plan = choose(machine_of("b300"), wanted_for("b300"))
    moved = {k: v.replace(plan.prefix, str(tmp_path)) for k, v in plan.launches[0].env.items()}
    assert str(tmp_path) in moved["HOME"]
    python = os.environ.get("SGLANG_PYTHON", sys.executable)
    done = subprocess.run([python, "-c", CACHES], capture_output=True, text=True, env=moved)
    assert done.returncode == 0, done.stderr[-2000:]
    folders: list[str] = json.loads(done.stdout.splitlines()[-1])
    assert [f for f in folders if not f.startswith(str(tmp_path))] == []
