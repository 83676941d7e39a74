"""Names the cause of a failed launch from the engine's last log lines. Pure: text in, cause out.

The records and their remedies come from public threads of SGLang, vLLM, FlashInfer, NCCL and
PyTorch; each names its thread. Ids E.. are failure records whose cause was established; ids in
words are plain cases (port in use, missing files) of any engine.
"""

import argparse
import json
import re
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from . import files
from .errors import HostkitError


@dataclass(frozen=True)
class Cause:
    """Why a launch failed. `evidence` is the log line; `retry`: starting again may help."""

    id: str
    title: str
    evidence: str
    remedy: str
    retry: bool = False

    def __str__(self) -> str:
        return f"{self.id}: {self.title}; {self.remedy}"


@dataclass(frozen=True)
class Record:
    """One known failure: `line` must match one line, every `also` any line of the tail."""

    id: str
    title: str
    remedy: str
    line: str
    also: tuple[str, ...] = ()
    retry: bool = False


# Lines that look like trouble and are none (E24: vllm-project/vllm#56128).
HARMLESS = re.compile(
    r"Custom allreduce is disabled because it's not supported on more than two PCIe-only GPUs"
)

# The first record that matches is the cause: the special before the general.
RECORDS = (
    Record(  # sgl-project/sglang#14075, #8879; triton-lang/triton#8539
        "E01",
        "Triton's ptxas does not know {arch}",
        "set TRITON_PTXAS_PATH to the ptxas of a CUDA 13 toolkit, e.g. "
        "TRITON_PTXAS_PATH=/usr/local/cuda/bin/ptxas, in wanted.environment",
        r"ptxas.*--gpu-name[= ',]+(?P<arch>sm_\w+).*returned non-zero exit status"
        r"|Value '(?P<arch2>sm_\w+)' is not defined for option 'gpu-name'",
    ),
    Record(  # flashinfer compilation_context.py; flashinfer-ai/flashinfer#3674
        "E07",
        "the nvcc that FlashInfer found is older than CUDA 12.9, which SM 12.x needs",
        "set CUDA_HOME to a toolkit of 12.9 or newer (13.x) and put its bin first in PATH",
        r"SM 12\.x requires CUDA >= 12\.9|FlashInfer requires GPUs with sm75 or higher",
    ),
    Record(  # vllm-project/vllm#49497; flashinfer-ai/flashinfer#1781, #1904
        "E06",
        "FlashInfer's sampler is compiled at start and finds no nvcc",
        "install the toolkit's nvcc (or the flashinfer-jit-cache of the same version), "
        "or use --sampling-backend pytorch",
        r"Could not find nvcc|nvcc.*(No such file or directory|not found)",
        (r"sampling|sampler|top_[kp]_",),
    ),
    Record(  # flashinfer-ai/flashinfer#1919, PR #1948
        "E04",
        "the engine's workers find no nvcc, whatever the login shell finds",
        "set CUDA_HOME and a PATH with its bin folder in wanted.environment",
        r"Could not find nvcc|nvcc.*(No such file or directory|not found)"
        r"|CUDA_HOME environment variable is not set",
    ),
    Record(  # sgl-project/sglang#7249, PR #5903
        "E09",
        "a kernel package has no code for this GPU's architecture",
        "install the cu130 build of sglang-kernel; cuobjdump --list-elf shows what a wheel holds",
        r"no kernel image is available for execution on the device",
    ),
    Record(  # NVIDIA fabric manager's log; ollama/ollama#12136
        "E16",
        "the fabric manager's version is not the driver's",
        "install nvidia-fabricmanager of exactly the driver's version, then reboot",
        r"[Ff]abric ?manager.*(don't|doesn't|does not|do not) match.*driver",
    ),
    Record(  # huggingface/huggingface_hub#4134, #4128; pytorch/pytorch#35710
        "E12",
        "the NVSwitch fabric is not up (CUDA error 802)",
        "start nvidia-fabricmanager of the driver's version and wait until each GPU's fabric "
        "state is Completed",
        r"Error 802|system not yet initialized|CUDA_ERROR_SYSTEM_NOT_READY",
        retry=True,
    ),
    Record(  # ollama/ollama#11593, NVIDIA-NeMo/RL#1517
        "E17",
        "CUDA fails to initialise with error 3 because of HMM in nvidia_uvm",
        "set 'options nvidia_uvm uvm_disable_hmm=1' in /etc/modprobe.d and reboot",
        r"cuda driver library init failure: 3"
        r"|CUDA failed to initialize.*error 3\b|cuInit.*(returned|failed).*\b3\b"
        r"|Error 3: initialization error|CUDA_ERROR_NOT_INITIALIZED",
    ),
    Record(  # NVIDIA/nccl-tests#206, open-mpi/orcm#128
        "E46",
        "locked memory is limited, so NCCL can't register memory with the network card",
        "set LimitMEMLOCK=infinity in the unit; services ignore limits.conf",
        r"ibv_reg_mr\w* failed.*Cannot allocate memory",
    ),
    Record(  # sgl-project/sglang PR #31645, #23627; ai-dynamo/dynamo#1889
        "E30",
        "a scheduler of an earlier run still holds a port of the engine",
        "end the processes left from the earlier run (the unit needs KillMode=control-group)",
        r"(rpc_port|nccl_port|dist_init\w*|scheduler_input\w*).*is used by a process already",
        retry=True,
    ),
    Record(  # sgl-project/sglang#23769
        "E27",
        "the GPU's memory ran out while CUDA graphs were captured",
        "lower --mem-fraction-static first, then the graph batch sizes",
        r"out of memory|OutOfMemoryError",
        (r"[Cc]apture.*(cuda )?graph|[Cc]uda graph|CudaGraphRunner|cuda_graph",),
    ),
    Record(  # PyTorch's and CUDA's own wording
        "gpu-memory",
        "the GPU's memory ran out",
        "lower --mem-fraction-static or --context-length, or spread the model over more GPUs; "
        "nvidia-smi shows whether a stranger holds memory",
        r"CUDA out of memory|torch\.OutOfMemoryError|CUDA error: out of memory"
        r"|Not enough (GPU )?memory|RuntimeError: .*mem-fraction-static",
    ),
    Record(  # systemd's own wording; RIDE-Lab/SAGE PR #1346
        "E31",
        "the service manager's start limit ended the launch while the model was loading",
        "raise the plan's start limit (TimeoutStartSec) to the bytes to load over the read rate",
        r"start operation timed out\. Terminating",
    ),
    Record(
        "ddtree-not-registered",
        "this engine does not know the algorithm DDTREE",
        "apply the patch set to the engine's environment (phase 'patches'); released SGLang has "
        "no DDTREE",
        r"(argument --speculative-algorithm: invalid choice|[Uu]nknown speculative algorithm"
        r"|Speculative algorithm).*DDTREE|DDTREE.*not (registered|supported|recognized|found)",
    ),
    Record(
        "argument",
        "the engine refuses an argument of the command line",
        "compare argv with the help of this engine version",
        r"error: (unrecognized arguments?|argument |the following arguments are required|"
        r"ambiguous option).*",
    ),
    Record(
        "port-in-use",
        "a port that the engine needs is in use by somebody else",
        "stop the other process or choose another port",
        r"[Aa]ddress already in use|\[Errno 98\]|error while attempting to bind on address"
        r"|port \d+ .*(in use|not available)",
        retry=True,
    ),
    Record(
        "missing-tool",
        "a tool that compiles kernels at run time is not on the service's PATH",
        "install it on the host (apt-get install ninja-build gcc g++), or name its folder in "
        "wanted.environment PATH",
        r"No such file or directory: '([^']*/)?(ninja|nvcc|ptxas|gcc|g\+\+|cc|c\+\+|clang|cicc)'",
    ),
    Record(
        "model-files",
        "files of the model are missing or unreadable",
        "fetch and verify the model again (phase 'models')",
        r"(FileNotFoundError|No such file or directory).*(safetensors|gguf|config\.json|tokenizer|"
        r"model)|Cannot find any model weights|does not appear to have a file named"
        r"|HFValidationError|Can't load (tokenizer|the configuration|config) for"
        r"|SafetensorError|(model|drafter|checkpoint).*(not found|does not exist|is missing)",
    ),
    Record(
        "driver-mismatch",
        "the loaded NVIDIA kernel module and its libraries differ in version",
        "reboot, or reload the module, after a driver update",
        r"Driver/library version mismatch|CUDA driver version is insufficient",
    ),
    Record(
        "no-gpu",
        "the engine finds no GPU",
        "check nvidia-smi, CUDA_VISIBLE_DEVICES and the unit's device rules",
        r"No CUDA GPUs are available|no CUDA-capable device|Found no NVIDIA driver",
    ),
    Record(
        "missing-module",
        "the engine's environment lacks a Python module",
        "install the stack again (phase 'stack')",
        r"ModuleNotFoundError: No module named",
    ),
)

# NVIDIA/nccl#1999, local-inference-lab/rtx6kpro#15
ALL_REDUCE_HANG = Record(
    "E22",
    "the first all-reduce never ended: GPU peer-to-peer over PCIe does not work here",
    "check IOMMU and ACS; until then NCCL_P2P_DISABLE=1 in wanted.environment; the GPUs may need "
    "a reset",
    r"all_?reduce|NCCL|nccl|ncclComm|Init torch distributed|custom all reduce",
)
STUCK_AFTER = r"Load weight end|Capture cuda graph|KV Cache is allocated|READY|startup complete"


def diagnose(
    lines: Sequence[str],
    exit_code: int | None = None,
    hung: bool = False,
    oom_killed: bool = False,
) -> Cause | None:
    """The cause of a launch that failed, None when nothing known is seen.

    `exit_code`: the engine's, -N for signal N. `hung`: it was given up without output or progress.
    `oom_killed`: the kernel killed a process for memory meanwhile.
    """
    told = [line for line in lines if not HARMLESS.search(line)]
    for record in RECORDS:
        cause = _match(record, told)
        if cause:
            return cause
    if oom_killed and exit_code not in (None, 0):
        return Cause(
            "host-memory",
            "the kernel killed a process for memory (out of RAM)",
            f"exit code {exit_code}, oom_kill counter of /proc/vmstat went up",
            "free RAM, or raise MemoryMax of the unit; loading needs RAM for the weights read",
        )
    if hung:
        return _hang(told)
    if exit_code in (-9, 137):
        return Cause(
            "killed",
            "something killed the engine with SIGKILL",
            f"exit code {exit_code}",
            "look for the out-of-memory killer in 'journalctl -k' or for a limit of the container",
            retry=True,
        )
    return None


def _match(record: Record, lines: Sequence[str]) -> Cause | None:
    """The record's cause with the last matching line as evidence."""
    for number in range(len(lines) - 1, -1, -1):
        found = re.search(record.line, lines[number])
        if found and all(any(re.search(also, line) for line in lines) for also in record.also):
            groups = found.groupdict()
            arch = groups.get("arch") or groups.get("arch2") or "this GPU"
            title = record.title.format(arch=arch)
            return Cause(record.id, title, lines[number][:300], record.remedy, record.retry)
    return None


def _hang(lines: Sequence[str]) -> Cause:
    """A hang with NCCL in the last lines is E22; any other is a hang at its last line."""
    last = lines[-8:]
    if not any(re.search(STUCK_AFTER, line) for line in last):
        cause = _match(ALL_REDUCE_HANG, last)
        if cause:
            return cause
    return Cause(
        "hang",
        "the engine stopped making progress",
        lines[-1][:300] if lines else "no output at all",
        "read engine.log; 'py-spy dump --pid' on a scheduler shows where it waits",
    )


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("log", type=Path, help="engine.log, or - for standard input")
    parser.add_argument("--exit-code", type=int, help="the engine's exit code, -9 for SIGKILL")
    parser.add_argument("--hung", action="store_true", help="it was ended for lack of progress")
    parser.add_argument("--json", action="store_true", help="print the cause as JSON")


def run(args: argparse.Namespace) -> int:
    """Prints the cause; exit 0 when one is named, 1 when nothing known is seen."""
    if str(args.log) == "-":
        lines = [line.rstrip() for line in sys.stdin if line.strip()]
    elif not args.log.is_file():
        raise HostkitError(f"{args.log}: no such log; expected the path of an engine.log")
    else:
        lines = files.tail(args.log, 2000, 4 * 2**20)
    cause = diagnose(lines, args.exit_code, args.hung)
    if args.json:
        print(json.dumps(asdict(cause) if cause else None))
    elif cause:
        print(f"{cause}\n  seen: {cause.evidence}")
    else:
        print("no known cause in these lines")
    return 0 if cause else 1
