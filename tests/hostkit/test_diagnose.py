"""Causes named from log lines; the lines are real tool output from public threads."""

import io
import json

import pytest
from hostkit.__main__ import main
from hostkit.diagnose import ALL_REDUCE_HANG, RECORDS, diagnose
from hostkit.engine import STEERING

LINES = {
    "E01": "Command '['/opt/v/triton/backends/nvidia/bin/ptxas', '-lineinfo', '-v', "
    "'--gpu-name=sm_103a', '/tmp/tmpx.ptx', '-o', '/tmp/tmpx.ptx.o']' returned non-zero exit "
    "status 255.",
    "E04": "RuntimeError: Could not find nvcc and default cuda_home does not exist",
    "E07": "RuntimeError: SM 12.x requires CUDA >= 12.9.",
    "E09": "RuntimeError: RMSNorm failed with error code no kernel image is available for "
    "execution on the device",
    "E12": "RuntimeError: Unexpected error from cudaGetDeviceCount(). Did you run some cuda "
    "functions before calling NumCudaDevices() that might have already set an error? "
    "Error 802: system not yet initialized",
    "E16": "fabric manager NVIDIA GPU driver interface version 535.104.05 don't match with driver "
    "version 535.129.03. Please update with matching NVIDIA driver package.",
    "E17": 'level=WARN msg="cuda driver library init failure: 3"',
    "E30": "rpc_port 41233 is used by a process already. process.name()='python3'",
    "E31": "sglang.service: start operation timed out. Terminating.",
    "E46": "misc/ibvwrap.cc:262 NCCL WARN Call to ibv_reg_mr_iova2 failed with error Cannot "
    "allocate memory",
    "gpu-memory": "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.50 GiB.",
    "port-in-use": "[Errno 98] error while attempting to bind on address ('127.0.0.1', 30000): "
    "address already in use",
    "model-files": "FileNotFoundError: [Errno 2] No such file or directory: "
    "'/m/model-00003-of-00064.safetensors'",
    "ddtree-not-registered": "launch_server.py: error: argument --speculative-algorithm: invalid "
    "choice: 'DDTREE' (choose from 'EAGLE', 'EAGLE3', 'DFLASH', 'NGRAM')",
    "argument": "launch_server.py: error: unrecognized arguments: --cuda-graph-max-bs 8",
    "driver-mismatch": "Failed to initialize NVML: Driver/library version mismatch",
    "no-gpu": "RuntimeError: No CUDA GPUs are available",
    "missing-tool": "FileNotFoundError: [Errno 2] No such file or directory: 'ninja'",
    "missing-module": "ModuleNotFoundError: No module named 'sglang'",
}
HARMLESS = (
    "Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs. "
    "To silence this warning, specify disable_custom_all_reduce=True explicitly."
)


@pytest.mark.parametrize(("name", "line"), LINES.items())
def test_the_line_names_its_cause_among_others(name, line):
    lines = ["Loading weights", HARMLESS, line, "Killing child processes"]
    cause = diagnose(lines, exit_code=1)
    assert (cause.id, cause.evidence) == (name, line[:300])


def test_a_missing_nvcc_under_the_sampler_is_its_own_cause():
    lines = ['File "/v/flashinfer/sampling.py", line 61, in get_sampling_module', LINES["E04"]]
    assert diagnose(lines).id == "E06"


def test_no_memory_during_graph_capture_is_its_own_cause():
    lines = ["Capture cuda graph begin. This can take up to several minutes", LINES["gpu-memory"]]
    assert diagnose(lines).id == "E27"


def test_the_custom_all_reduce_notice_is_no_failure():
    assert diagnose([HARMLESS], exit_code=0) is None
    assert diagnose([HARMLESS, "The server is fired up and ready to roll!"], exit_code=1) is None


def test_the_custom_all_reduce_notice_does_not_make_a_hang_an_all_reduce_hang():
    assert diagnose([HARMLESS, "tokenizer ready"], hung=True).id == "hang"


@pytest.mark.parametrize("line", ["Init torch distributed begin.", "NCCL INFO Connected all rings"])
def test_a_hang_in_nccl_is_the_all_reduce_hang(line):
    assert diagnose(["Loading", line], hung=True).id == "E22"


def test_a_hang_after_loading_is_not_blamed_on_nccl():
    lines = ["sglang is using nccl==2.28.9", "Load weight end. elapsed=310 s", "waiting"]
    assert diagnose(lines, hung=True).id == "hang"


def test_sigkill_with_a_kernel_memory_kill_is_the_hosts_memory():
    assert diagnose(["Loading"], -9, oom_killed=True).id == "host-memory"
    assert diagnose(["Loading"], -9).id == "killed"


def test_unknown_text_names_nothing():
    assert diagnose(["KeyError: 'x'"], exit_code=1) is None
    assert diagnose([]) is None


def test_a_remedy_says_where_a_variable_goes_that_reaches_the_engine_from_nowhere_else():
    remedies = [record.remedy for record in (*RECORDS, ALL_REDUCE_HANG)]
    steering = [text for text in remedies if any(name in text for name in STEERING)]
    assert len(steering) >= 2
    assert [text for text in steering if "wanted.environment" not in text] == []


def test_the_command_prints_cause_and_remedy(tmp_path, capsys):
    log = tmp_path / "engine.log"
    log.write_text(f"noise\rnoise 2\n{LINES['E07']}\n")
    assert main(["diagnose", str(log)]) == 0
    assert capsys.readouterr().out.startswith("E07: the nvcc that FlashInfer found is older")
    assert main(["diagnose", str(log), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["id"] == "E07"


def test_the_command_reads_standard_input(monkeypatch, capsys):
    monkeypatch.setattr("sys.stdin", io.StringIO("all is well\n"))
    assert main(["diagnose", "-"]) == 1
    assert "no known cause" in capsys.readouterr().out


def test_a_missing_log_gets_one_line(capsys):
    assert main(["diagnose", "/nonexistent.log"]) == 1
    assert capsys.readouterr().err.startswith("hostkit diagnose: /nonexistent.log: no such log")
