"""The command line and environment of SGLang 0.5.16 for one engine start.

Every flag here exists in 0.5.16's ServerArgs (tests/plan holds that); sources of the settings are
named beside them by SGLang issue number.
"""

from __future__ import annotations

from dataclasses import dataclass

from facts.machine import MachineFacts
from facts.nvidia import Toolkit
from facts.nvidia.values import version_tuple
from operations.attention import Backends, choose_backends, sm
from operations.parallelism import Parallelism
from operations.plan_model import Choice, Launch, ModelRef
from operations.plan_models import TargetFacts
from operations.wanted import Wanted

LOCK = "sglang-0.5.16-cu130"
PATCH_SET = "sglang-0.5.16"
PYTHON = "3.12"
MEM_FRACTION = 0.85
DRAFT_BACKEND = "triton"
MAX_RUNNING_REQUESTS = 48  # what 0.5.16 itself sets for speculative decoding
TOOLKIT_HOME = "/usr/local/cuda-13.0"  # where the stack phase installs nvcc if it is missing
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

# The oldest CUDA release whose nvcc serves an architecture: FlashInfer asks 12.9 for sm_12x, and
# no nvcc before 13.0 is used for sm_103 (issues flashinfer #3674, SGLang #14075).
OLDEST_NVCC = {"10.3": "13.0", "12.0": "12.9"}
OLDEST_NVCC_ELSE = "12.8"


@dataclass(frozen=True)
class Ground:
    """What all engine starts of a host share."""

    machine: MachineFacts
    wanted: Wanted
    prefix: str
    target: ModelRef
    target_facts: TargetFacts
    drafter: ModelRef | None
    block: int | None
    parallelism: Parallelism
    compute_cap: str | None

    @property
    def over_pcie(self) -> bool:
        """Several GPUs that are not, or not known to be, all joined by NVLink."""
        topology = self.machine.topology
        return self.parallelism.gpus > 1 and not (topology is not None and topology.all_nvlink)


def launch(
    ground: Ground,
    key: str,
    algorithm: str | None,
    budget: int | None = None,
    overlap: bool = True,
    narrower: tuple[int, ...] = (),
) -> Launch:
    """One engine start; `budget` B gives the verify width B + 1 of a DDTREE start.

    For each budget in `narrower` it captures graphs of that width too, so that a switch at run
    time costs what a start with that budget would cost.
    """
    wanted, facts = ground.wanted, ground.target_facts
    argv = [
        f"{ground.prefix}/current/venv/bin/python",
        "-m",
        "sglang.launch_server",
        "--model-path",
        ground.target.path,
        "--served-model-name",
        wanted.served_model_name or ground.target.name,
        *("--host", wanted.host, "--port", str(wanted.port)),
        *("--random-seed", "0"),
        "--enable-metrics",
        *facts.arguments,
        *ground.parallelism.arguments(),
        *backends(ground, algorithm).arguments(),
        *_speculation(ground, algorithm, budget, overlap),
    ]
    if (runner := moe_runner(ground)[0]) != "auto":
        argv += ["--moe-runner-backend", runner]
    if all_reduce(ground).value == "NCCL only":
        argv.append("--disable-custom-all-reduce")
    argv += ["--mem-fraction-static", str(wanted.mem_fraction_static or MEM_FRACTION)]
    if context := wanted.context_length or facts.context_length:
        argv += ["--context-length", str(context)]
    argv += ["--max-running-requests", str(_max_running_requests(ground))]
    argv += ["--cuda-graph-bs-decode", *(str(size) for size in graph_sizes(ground))]
    argv += ["--watchdog-timeout", "1800"]
    argv += wanted.engine_args
    widths = ",".join(str(smaller + 1) for smaller in narrower)
    environment = {"SGLANG_DDTREE_WIDTHS": widths} if widths else {}
    environment |= _environment(ground)
    return Launch(key, tuple(argv), dict(sorted(environment.items())), algorithm, budget)


def _speculation(
    ground: Ground, algorithm: str | None, budget: int | None, overlap: bool
) -> list[str]:
    if algorithm is None or ground.drafter is None:
        return []
    argv = ["--speculative-algorithm", algorithm]
    argv += ["--speculative-draft-model-path", ground.drafter.path]
    argv += ["--speculative-draft-attention-backend", DRAFT_BACKEND]
    width = budget + 1 if budget is not None else ground.block
    if width is not None:
        argv += ["--speculative-num-draft-tokens", str(width)]
    if not overlap:
        argv.append("--disable-overlap-schedule")
    return argv


def backends(ground: Ground, algorithm: str | None) -> Backends:
    return choose_backends(
        algorithm,
        ground.target_facts.attention,
        ground.compute_cap,
        ground.wanted.attention_backend,
        ground.wanted.page_size,
    )


def moe_runner(ground: Ground) -> tuple[str, str]:
    """The MoE runner and why; "auto" leaves it to SGLang and gives no flag."""
    facts = ground.target_facts
    if ground.wanted.moe_runner_backend:
        return ground.wanted.moe_runner_backend, "set in wanted"
    if facts.experts == 0:
        return "auto", "a dense model has no experts"
    if not facts.int4_experts:
        return "auto", "left to SGLang: the experts' format is not known to the planner"
    major = (ground.compute_cap or "").split(".")[0]
    if major == "10":
        return "flashinfer_trtllm", (
            f"INT4 experts on {sm(ground.compute_cap)}: SGLang's own choice; if its kernels are "
            "missing or wrong (SGLang #26324), set wanted.moe_runner_backend to marlin"
        )
    return "marlin", (
        f"INT4 experts on {sm(ground.compute_cap)}: flashinfer_trtllm has kernels for sm_10x only"
    )


def all_reduce(ground: Ground) -> Choice:
    if ground.parallelism.gpus == 1:
        return Choice("all-reduce", "none", "one GPU")
    if ground.over_pcie and ground.parallelism.gpus > 2:
        return Choice(
            "all-reduce",
            "NCCL only",
            "SGLang's custom all-reduce is for at most two GPUs without NVLink",
        )
    return Choice("all-reduce", "SGLang's choice", "its custom all-reduce works over these links")


def graph_sizes(ground: Ground) -> tuple[int, ...]:
    """Batch sizes with a CUDA graph: few where memory is tight, as each needs its own buffers."""
    sizes = (1, 2, 4, 8) if _tight(ground) else (1, 2, 4, 8, 16, 32)
    return tuple(size for size in sizes if size <= _max_running_requests(ground))


def graph_reason(ground: Ground) -> str:
    if _tight(ground):
        return (
            "less than 40 GB a GPU left beside the weights, and tree verification keeps buffers of "
            "batch x width x context; larger batches run without a graph"
        )
    return "enough memory beside the weights; larger batches run without a graph"


def _tight(ground: Ground) -> bool:
    size, memory = ground.target.size_bytes, gpu_memory_bytes(ground.machine)
    if size is None or memory is None:
        return True
    return memory - size / ground.parallelism.gpus < 40e9


def _max_running_requests(ground: Ground) -> int:
    return ground.wanted.max_running_requests or MAX_RUNNING_REQUESTS


def gpu_memory_bytes(machine: MachineFacts) -> int | None:
    """The memory of the smallest GPU; None if one of them does not tell."""
    sizes = [gpu.memory_total_mib for gpu in machine.gpus]
    known = [size for size in sizes if size is not None]
    return min(known) * 2**20 if known and len(known) == len(sizes) else None


def oldest_nvcc(compute_cap: str | None) -> str:
    """The oldest CUDA release whose nvcc and ptxas serve this architecture."""
    return OLDEST_NVCC.get(compute_cap or "", OLDEST_NVCC_ELSE)


def cuda_home(machine: MachineFacts, compute_cap: str | None) -> tuple[str, str]:
    """The CUDA toolkit for JIT compilers and Triton, and why this one.

    The same before and after the stack phase installs a missing one, so that a second run does not
    restart the service.
    """
    need = oldest_nvcc(compute_cap)
    usable = [
        toolkit
        for toolkit in machine.toolkits
        if toolkit.has_nvcc and _release(toolkit) >= (version_tuple(need) or ())
    ]
    if usable:
        # CUDA 13 first, as torch is built with it; then the host's own default.
        best = max(usable, key=lambda t: (_release(t) >= (13,), t.default, _release(t)))
        return best.path, (
            f"CUDA {best.release} is there, and {sm(compute_cap)} needs {need} or newer; the "
            "ptxas inside Triton's wheel and the nvcc on PATH may be older"
        )
    return TOOLKIT_HOME, f"no CUDA toolkit {need} or newer is there: the stack phase installs 13.0"


def _release(toolkit: Toolkit) -> tuple[int, ...]:
    return version_tuple(toolkit.release) or ()


def _environment(ground: Ground) -> dict[str, str]:
    """The engine's environment. Never a secret: the engine works offline."""
    home = cuda_home(ground.machine, ground.compute_cap)[0]
    cache = f"{ground.prefix}/cache/{LOCK}"
    found = {
        "CUDA_HOME": home,
        "PATH": f"{ground.prefix}/current/venv/bin:{home}/bin:{SYSTEM_PATH}",
        "TRITON_PTXAS_PATH": f"{home}/bin/ptxas",
        "TRITON_PTXAS_BLACKWELL_PATH": f"{home}/bin/ptxas",
        "TRITON_CACHE_DIR": f"{cache}/triton",
        "TORCHINDUCTOR_CACHE_DIR": f"{cache}/inductor",
        "FLASHINFER_WORKSPACE_BASE": f"{cache}/flashinfer",
        "SGLANG_DG_CACHE_DIR": f"{cache}/deep_gemm",
        "CUDA_CACHE_PATH": f"{cache}/cuda",
        "XDG_CACHE_HOME": f"{cache}/xdg",
        # What knows none of these (TVM-FFI's kernels, SGLang's table of peer access) writes to
        # ~/.cache, and the unit's ProtectHome makes the real one read-only.
        "HOME": f"{cache}/home",
        "HF_HOME": f"{cache}/huggingface",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
        "OMP_NUM_THREADS": "8",
        "PYTHONUNBUFFERED": "1",
    }
    architectures = {"9.0": "9.0a", "10.0": "10.0a", "10.3": "10.3a", "12.0": "12.0f"}
    if architecture := architectures.get(ground.compute_cap or ""):
        found["FLASHINFER_CUDA_ARCH_LIST"] = architecture
    if (ground.compute_cap or "").startswith("12."):
        found["SGLANG_ENABLE_JIT_DEEPGEMM"] = "0"  # DeepGEMM has no sm_120 kernels (#18870)
    found |= _nccl(ground)
    return found | ground.wanted.environment


def _nccl(ground: Ground) -> dict[str, str]:
    if ground.parallelism.gpus == 1:
        return {}
    # One host needs no InfiniBand, and NCCL 2.28.9 crashes while it probes bnxt_re devices.
    found = {"NCCL_IB_DISABLE": "1"}
    if ground.over_pcie:
        # rtx6kpro's tuning for 8 PCIe cards: all-reduce bus 22 -> 38-41 GB/s.
        found |= {
            "NCCL_P2P_LEVEL": "SYS",
            "NCCL_MIN_NCHANNELS": "8",
            "NCCL_ALLOC_P2P_NET_LL_BUFFERS": "1",
            "NCCL_PROTO": "LL,LL128,Simple",
        }
    return found
