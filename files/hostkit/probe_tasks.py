"""What a probe's child process runs: one measurement with torch, progress as JSON lines.

`python -m hostkit.probe_tasks NAME DEVICE`. Each line is {"phase": text} while it works (the
parent kills it when no line comes for too long) and at last {"result": ...}. Rates are decimal
GB/s and TFLOP/s. `cpu` runs the same code at tiny sizes, as a test of the code, not of a machine.
"""

import importlib
import json
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

MIB = 2**20
SIZES = {
    "cuda": {
        "matmul": 8192,
        "repeat": 200,
        "copy": 1024 * MIB,
        "pinned": 256 * MIB,
        "large": 256 * MIB,
    },
    "cpu": {"matmul": 192, "repeat": 3, "copy": 8 * MIB, "pinned": 4 * MIB, "large": 4 * MIB},
}
SMALL = 32 * 1024  # one decode step's all-reduce of a 7168-wide bf16 model is 14 KiB a node
CPU_RANKS = 2
IMPORTING = "importing torch"  # in this phase the parent is more patient


def phase(text: str) -> None:
    print(json.dumps({"phase": text}), flush=True)


def _torch() -> Any:
    phase(IMPORTING)
    return importlib.import_module("torch")  # not at the top: the parent must hear of it first


class Devices:
    """The devices of one kind, with the few calls that differ between cuda and cpu."""

    def __init__(self, kind: str):
        self.torch = _torch()
        self.kind = kind
        self.size = SIZES[kind]
        phase("counting devices")
        count = self.torch.cuda.device_count() if kind == "cuda" else 1
        self.all = [f"cuda:{i}" for i in range(count)] if kind == "cuda" else ["cpu"]

    def wait(self, device: str) -> None:
        if self.kind == "cuda":
            self.torch.cuda.synchronize(device)

    def seconds(self, device: str, work: Callable[[], Any], repeat: int) -> float:
        """Mean seconds of one call, after one call that doesn't count."""
        work()
        self.wait(device)
        started = time.perf_counter()
        for _ in range(repeat):
            work()
        self.wait(device)
        return (time.perf_counter() - started) / repeat


def environment(kind: str) -> dict[str, Any]:
    """Versions, and the devices' names and compute capabilities."""
    devices = Devices(kind)
    torch = devices.torch
    found: dict[str, Any] = {"torch": torch.__version__, "cuda": torch.version.cuda, "gpus": []}
    if kind == "cuda":
        found["arch_list"] = torch.cuda.get_arch_list()
        found["nccl"] = ".".join(map(str, torch.cuda.nccl.version()))
        for index in range(len(devices.all)):
            major, minor = torch.cuda.get_device_capability(index)
            name = torch.cuda.get_device_name(index)
            found["gpus"].append({"name": name, "compute_capability": f"{major}.{minor}"})
    return found


def matmul(kind: str) -> list[dict[str, Any]]:
    """bf16 matrix products: rate, and whether the same product comes out the same each time."""
    devices = Devices(kind)
    torch, n = devices.torch, devices.size["matmul"]
    found = []
    for index, device in enumerate(devices.all):
        phase(f"matrix products on {device}")
        generator = torch.Generator().manual_seed(index)
        a, b = (
            torch.randn(n, n, generator=generator, dtype=torch.float32)
            .to(torch.bfloat16)
            .to(device)
            for _ in range(2)
        )
        first = a @ b
        each = devices.seconds(device, partial(torch.matmul, a, b), devices.size["repeat"])
        same = all(bool(torch.equal(first, a @ b)) for _ in range(3))
        finite = bool(torch.isfinite(first).all())
        found.append(
            {"gpu": index, "tflops": 2 * n**3 / each / 1e12, "repeatable": same and finite}
        )
    return found


def memory(kind: str) -> list[dict[str, Any]]:
    """Copies inside each device's memory; the rate counts bytes read and bytes written."""
    devices = Devices(kind)
    found = []
    for index, device in enumerate(devices.all):
        phase(f"memory of {device}")
        source = devices.torch.ones(devices.size["copy"], dtype=devices.torch.uint8, device=device)
        target = devices.torch.empty_like(source)
        each = devices.seconds(device, partial(target.copy_, source), 10)
        found.append({"gpu": index, "gb_s": 2 * source.numel() / each / 1e9})
    return found


def host_copy(kind: str) -> list[dict[str, Any]]:
    """Copies between pinned host memory and each device, both ways."""
    devices = Devices(kind)
    torch, count = devices.torch, devices.size["pinned"]
    found = []
    for index, device in enumerate(devices.all):
        phase(f"host copies of {device}")
        host = torch.ones(count, dtype=torch.uint8, pin_memory=kind == "cuda")
        far = torch.empty(count, dtype=torch.uint8, device=device)
        to_device = devices.seconds(device, partial(far.copy_, host, non_blocking=True), 5)
        to_host = devices.seconds(device, partial(host.copy_, far, non_blocking=True), 5)
        found.append(
            {
                "gpu": index,
                "to_device_gb_s": count / to_device / 1e9,
                "to_host_gb_s": count / to_host / 1e9,
            }
        )
    return found


def peer(kind: str) -> list[dict[str, Any]]:
    """Copies between all ordered pairs of devices, contents checked. [] with fewer than two."""
    devices = Devices(kind)
    torch, count = devices.torch, devices.size["pinned"]
    found = []
    for source in range(len(devices.all)):
        for target in range(len(devices.all)):
            if source == target:
                continue
            phase(f"copy from GPU {source} to GPU {target}")
            access = bool(torch.cuda.can_device_access_peer(source, target))
            near = torch.full((count,), source + 1, dtype=torch.uint8, device=devices.all[source])
            far = torch.zeros(count, dtype=torch.uint8, device=devices.all[target])
            copy = partial(far.copy_, near, non_blocking=True)
            devices.wait(devices.all[source])
            copy()
            devices.wait(devices.all[source])
            devices.wait(devices.all[target])
            right = bool((far == source + 1).all())
            each = devices.seconds(devices.all[target], copy, 5)
            found.append(
                {
                    "from": source,
                    "to": target,
                    "access": access,
                    "gb_s": count / each / 1e9,
                    "right": right,
                }
            )
    return found


def _rank(rank: int, ranks: int, kind: str, meeting: str, out: str) -> None:
    """One rank: a small and a large all-reduce, each sum checked on every element."""
    torch: Any = importlib.import_module("torch")
    dist: Any = importlib.import_module("torch.distributed")
    say: Callable[[str], None] = phase if rank == 0 else lambda text: None
    device = f"cuda:{rank}" if kind == "cuda" else "cpu"
    if kind == "cuda":
        torch.cuda.set_device(rank)
    dist.init_process_group(
        "nccl" if kind == "cuda" else "gloo", init_method=meeting, rank=rank, world_size=ranks
    )
    say(f"{ranks} ranks have met")  # NCCL itself starts at the first all-reduce
    expected = ranks * (ranks + 1) / 2
    found: dict[str, Any] = {"ranks": ranks, "sums_right": True}

    def reduce(size: int, repeat: int) -> float:
        tensor = torch.full((size // 2,), rank + 1.0, dtype=torch.bfloat16, device=device)
        dist.all_reduce(tensor)
        if not bool((tensor == expected).all()):
            found["sums_right"] = False
        tensor.fill_(0)
        if kind == "cuda":
            torch.cuda.synchronize()
        started = time.perf_counter()
        for _ in range(repeat):
            dist.all_reduce(tensor)
        if kind == "cuda":
            torch.cuda.synchronize()
        return (time.perf_counter() - started) / repeat

    say("all-reduce of 32 KiB")
    found["small_us"] = reduce(SMALL, 200 if kind == "cuda" else 5) * 1e6
    large = SIZES[kind]["large"]
    say(f"all-reduce of {large // MIB} MiB")
    each = reduce(large, 20 if kind == "cuda" else 2)
    found["large_bus_gb_s"] = large * 2 * (ranks - 1) / ranks / each / 1e9
    wrong = torch.tensor([0 if found["sums_right"] else 1], device=device)
    dist.all_reduce(wrong)
    found["sums_right"] = int(wrong.item()) == 0
    if rank == 0:
        Path(out).write_text(json.dumps(found))
    dist.destroy_process_group()


def all_reduce(kind: str) -> dict[str, Any]:
    """All devices as ranks (NCCL; gloo on the CPU). {} with fewer than two devices.

    `small_us` is the latency of 32 KiB in microseconds, `large_bus_gb_s` the bus bandwidth as
    nccl-tests define it: bytes * 2 (n - 1) / n / time.
    """
    devices = Devices(kind)
    ranks = len(devices.all) if kind == "cuda" else CPU_RANKS
    if ranks < 2:
        return {}
    spawn: Any = importlib.import_module("torch.multiprocessing").spawn
    with tempfile.TemporaryDirectory() as folder:
        meeting, out = f"file://{folder}/meeting", f"{folder}/out.json"
        phase(IMPORTING)
        spawn(_rank, (ranks, kind, meeting, out), nprocs=ranks)
        return dict(json.loads(Path(out).read_text()))


TASKS: dict[str, Callable[[str], Any]] = {
    "environment": environment,
    "matmul": matmul,
    "memory": memory,
    "host_copy": host_copy,
    "peer": peer,
    "all_reduce": all_reduce,
}

if __name__ == "__main__":
    print(json.dumps({"result": TASKS[sys.argv[1]](sys.argv[2])}), flush=True)
