"""`hostkit probe`: judgement, comparison, hangs; the measurements on a CPU where torch is there."""

import importlib.util
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hostkit import probe, probe_judge
from hostkit.__main__ import main
from hostkit_processes import FILES, is_alive

CASES = Path(__file__).resolve().parents[1] / "cases"

GOOD = {
    "matmul": [{"gpu": i, "tflops": 700.0, "repeatable": True} for i in range(4)],
    "memory": [{"gpu": i, "gb_s": 4000.0} for i in range(4)],
    "host_copy": [{"gpu": 0, "to_device_gb_s": 50.0, "to_host_gb_s": 50.0}],
    "peer": [
        {"from": a, "to": b, "access": True, "gb_s": 300.0, "right": True}
        for a in range(4)
        for b in range(4)
        if a != b
    ],
    "all_reduce": {"ranks": 4, "small_us": 40.0, "large_bus_gb_s": 300.0, "sums_right": True},
}


def changed(probe_name, row, **values):
    copy = json.loads(json.dumps(GOOD))
    (copy[probe_name] if row is None else copy[probe_name][row]).update(values)
    return copy


def ids(findings):
    return [finding.id for finding in findings]


def test_even_rates_and_right_values_give_no_finding():
    assert probe_judge.judge(GOOD) == []
    assert probe_judge.judge({}) == []


@pytest.mark.parametrize(
    ("results", "finding"),
    [
        (changed("matmul", 2, repeatable=False), "probe-corrupt"),
        (changed("matmul", 2, tflops=600.0), "probe-slow-gpu"),
        (changed("memory", 1, gb_s=3000.0), "probe-slow-gpu"),
        (changed("peer", 5, gb_s=200.0), "probe-slow-pair"),
        (changed("peer", 5, right=False), "probe-peer-corrupt"),
        (changed("all_reduce", None, sums_right=False), "probe-sum"),
    ],
)
def test_what_is_wrong_is_named(results, finding):
    assert ids(probe_judge.judge(results)) == [finding]


def test_pairs_without_access_are_not_measured_against_those_with():
    results = json.loads(json.dumps(GOOD))
    for row in results["peer"]:
        if row["from"] // 2 != row["to"] // 2:
            row.update(access=False, gb_s=40.0)
    assert probe_judge.judge(results) == []


def test_a_run_equals_its_own_baseline_and_a_slower_one_does_not():
    assert probe_judge.compare(GOOD, GOOD) == []
    slower = changed("all_reduce", None, small_us=80.0)
    assert ids(probe_judge.compare(slower, GOOD)) == ["probe-slower"]
    assert probe_judge.compare(GOOD, slower) == []


@pytest.mark.parametrize("case", ["h200x1", "h200x2"])
def test_real_h200_hosts_have_no_finding_and_a_halved_link_has(case):
    document = json.loads((CASES / case / "probe.json").read_text())
    results = document["results"]
    assert probe_judge.judge(results) == [] == document["findings"]
    assert probe_judge.compare(results, results) == []
    slow = json.loads(json.dumps(results))
    for row in [*slow["peer"], *slow["memory"]][:1]:
        row["gb_s"] /= 2
    assert {f.id for f in probe_judge.compare(slow, results)} == {"probe-slower"}


def test_a_probe_that_is_gone_is_named():
    without = {name: rows for name, rows in GOOD.items() if name != "all_reduce"}
    assert set(ids(probe_judge.compare(without, GOOD))) == {"probe-missing"}


def fake_task(monkeypatch, tmp_path, text):
    """Puts a stand-in for the child's module where the child looks for it."""
    package = tmp_path / "packages" / "hostkit"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "probe_tasks.py").write_text(text)
    monkeypatch.setattr(probe, "PACKAGES", str(tmp_path / "packages"))


HANG = """
import json, os, subprocess, sys, time
print(json.dumps({"phase": "all-reduce of 32 KiB"}), flush=True)
if os.environ.get("NCCL_P2P_DISABLE") == "1" and sys.argv[2] == "cuda":
    print(json.dumps({"result": {"ranks": 2}}))
else:
    rank = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    open(sys.argv[0] + ".rank", "w").write(str(rank.pid))
    time.sleep(600)
"""


def test_a_hang_that_ends_without_p2p_is_named_p2p_deadlock(monkeypatch, tmp_path):
    fake_task(monkeypatch, tmp_path, HANG)
    document = probe.probe_all(["all_reduce"], "cuda", 1.0)
    assert [finding["id"] for finding in document["findings"]] == ["probe-p2p-deadlock"]
    assert "at 'all-reduce of 32 KiB'" in document["findings"][0]["evidence"]
    rank = tmp_path / "packages" / "hostkit" / "probe_tasks.py.rank"
    assert not is_alive(int(rank.read_text()))


def test_a_hang_with_and_without_p2p_stays_a_hang(monkeypatch, tmp_path):
    fake_task(monkeypatch, tmp_path, HANG)
    document = probe.probe_all(["all_reduce"], "cpu", 1.0)
    assert [finding["id"] for finding in document["findings"]] == ["probe-hang"]


def test_a_hung_peer_copy_is_named_and_the_other_probes_run(monkeypatch, tmp_path):
    fake_task(
        monkeypatch,
        tmp_path,
        "import json, sys, time\n"
        'print(json.dumps({"phase": "copy from GPU 0 to GPU 1"}), flush=True)\n'
        'time.sleep(600 if sys.argv[1] == "peer" else 0)\n'
        'print(json.dumps({"result": []}))\n',
    )
    document = probe.probe_all(["peer", "memory"], "cuda", 1.0)
    assert [finding["id"] for finding in document["findings"]] == ["probe-p2p-deadlock"]
    assert document["results"] == {"memory": []}


def test_a_probe_that_fails_is_named_with_its_last_lines(monkeypatch, tmp_path):
    fake_task(monkeypatch, tmp_path, "raise RuntimeError('CUDA error: unknown')\n")
    document = probe.probe_all(["matmul"], "cuda", 5.0)
    assert document["findings"][0]["id"] == "probe-failed"
    assert "CUDA error: unknown" in document["findings"][0]["evidence"]


def test_a_stored_document_is_judged_against_a_baseline_without_measuring(tmp_path, capsys):
    now, before = tmp_path / "now.json", tmp_path / "before.json"
    now.write_text(json.dumps({"results": changed("matmul", 0, tflops=650.0), "findings": []}))
    before.write_text(json.dumps({"results": changed("matmul", 0, tflops=800.0)}))
    assert main(["probe", "--result", str(now), "--baseline", str(before)]) == 1
    assert "probe-slower: matmul of GPU 0" in capsys.readouterr().out


def test_a_first_run_becomes_the_baseline(tmp_path, capsys):
    now, before = tmp_path / "now.json", tmp_path / "before.json"
    now.write_text(json.dumps({"results": GOOD, "findings": []}))
    assert main(["probe", "--result", str(now), "--baseline", str(before)]) == 0
    assert json.loads(before.read_text())["results"] == GOOD
    assert "no findings" in capsys.readouterr().out


def test_an_unknown_probe_gets_one_line(capsys):
    assert main(["probe", "--only", "colour"]) == 1
    assert "unknown probe 'colour'" in capsys.readouterr().err


def python_with_torch():
    """An interpreter that has torch: this one, or the one named by HOSTKIT_TORCH_PYTHON."""
    if importlib.util.find_spec("torch"):
        return sys.executable
    named = os.environ.get("HOSTKIT_TORCH_PYTHON", "")
    return named if Path(named).is_file() else None


@pytest.mark.sglang
@pytest.mark.skipif(python_with_torch() is None, reason="needs torch, or HOSTKIT_TORCH_PYTHON")
def test_all_probes_run_on_a_cpu(tmp_path):
    out = tmp_path / "probe.json"
    command = [python_with_torch(), "-m", "hostkit", "probe", "--device", "cpu", "--json", str(out)]
    done = subprocess.run(command, env={**os.environ, "PYTHONPATH": str(FILES)}, timeout=280)
    document = json.loads(out.read_text())
    assert done.returncode == 0, document["findings"]
    assert document["results"]["all_reduce"]["sums_right"] is True
    assert document["results"]["all_reduce"]["ranks"] == 2
    assert document["results"]["matmul"][0]["repeatable"] is True
    assert document["results"]["peer"] == []
