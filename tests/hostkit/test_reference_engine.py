"""hostkit against a real engine: the CPU reference engine with the built-in target and drafter."""

import json
import sys
from pathlib import Path

import pytest
from hostkit.__main__ import main
from hostkit_processes import FILES, free_port

from tests.builtin_model import builtin_model_dir

DRAFTER = FILES / "drafters" / "smollm2-135m-dflash-b8-int8"


@pytest.fixture
def configuration(tmp_path: Path) -> dict:
    """A bench.json of three arms on the built-in model, one prompt of six tokens each."""
    port = free_port()

    def launch(algorithm: str | None, width: int | None) -> dict:
        argv = [sys.executable, "-m", "refserver", "--port", str(port)]
        argv += ["--model-path", str(builtin_model_dir())]
        if algorithm:
            argv += ["--speculative-algorithm", algorithm]
            argv += ["--speculative-draft-model-path", str(DRAFTER)]
        if width:
            argv += ["--speculative-num-draft-tokens", str(width)]
        return {
            "fingerprint": "r",
            "arm": algorithm or "ar",
            "argv": argv,
            "env": {"PYTHONPATH": str(FILES)},
            "port": port,
            "run_dir": str(tmp_path / "run"),
            "speculative": algorithm is not None,
            "algorithm": algorithm,
        }

    return {
        "fingerprint": "r",
        "group": "LOCAL",
        "host": "here",
        "launches": {
            "ar": launch(None, None),
            "chain": launch("DFLASH", None),
            "tree": launch("DDTREE", 17),
        },
        "arms": [
            {"name": "ar", "mode": "ar", "launch": "ar"},
            {"name": "dflash", "mode": "dflash", "launch": "chain"},
            {"name": "ddtree-16", "mode": "ddtree", "budget": 16, "launch": "tree"},
        ],
        "settings": {
            "prompts_per_cell": 1,
            "max_new_tokens": 6,
            "warmup_requests": 0,
            "chat_format": "chatml",
        },
        "plan": {"engine": "reference"},
    }


@pytest.mark.timeout(900)
def test_chain_and_tree_write_what_the_target_writes_in_fewer_steps(configuration, tmp_path):
    config, out = tmp_path / "bench.json", tmp_path / "result.json"
    config.write_text(json.dumps(configuration))
    assert main(["bench", "--config", str(config), "--out", str(out)]) == 0
    result = json.loads(out.read_text())
    records = {cell["arm"]: cell["requests"][0] for cell in result["cells"]}
    assert {row["arm"]: row["passed"] for row in result["correctness"]} == {
        "dflash": True,
        "ddtree-16": True,
    }
    assert records["ar"]["completion_tokens"] == 6
    assert records["ar"]["verify_steps"] is None
    assert 0 < records["ddtree-16"]["verify_steps"] <= records["dflash"]["verify_steps"] < 6
    assert sum(records["ddtree-16"]["accept_histogram"]) == records["ddtree-16"]["verify_steps"]
