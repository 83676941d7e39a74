"""Checks of the host itself: system, disk, memory, Python, network, rights."""

from __future__ import annotations

from pathlib import PurePosixPath

from facts.nvidia.values import version_tuple
from operations.checks_base import (
    Answer,
    Checks,
    Context,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)
from operations.model_source import ModelSource
from operations.plan_model import ModelRef
from operations.stack_source import wheel_folders

CHECKS = Checks()
MIB = 2**20
# Measured sizes: SGLang 0.5.16 with torch 2.11.0+cu130 installs 7 GB; uv's cache, the JIT caches
# and a second venv during an update come on top.
STACK_MIB = {"sglang": 25_000, "reference": 1_500}
OLDEST_GLIBC = {"sglang": (2, 34), "reference": (2, 28)}  # of the wheels in the locks
CLOCK_TOLERANCE_S = 300


@CHECKS.add("os.platform", "the locked packages run on this system")
def platform(c: Context) -> Answer:
    m, oldest = c.machine, OLDEST_GLIBC[c.plan.engine]
    need = ".".join(str(part) for part in oldest)
    if m.arch is None:
        return unknown("the architecture is unknown")
    if c.sglang and m.arch != "x86_64":
        return failed(
            f"{m.arch}", "the stack lock is for x86_64; make a lock for this architecture"
        )
    glibc = version_tuple(m.glibc)
    if glibc is None:
        return failed(
            f"no glibc (needs {need} or newer)", "use a distribution with glibc, such as Ubuntu"
        )
    if glibc < oldest:
        return failed(f"glibc {m.glibc}, needs {need}", "use Ubuntu 22.04, Debian 12 or newer")
    return passed(f"{m.os_id or 'linux'} {m.os_version or ''}, {m.arch}, glibc {m.glibc}")


@CHECKS.add("os.python", "the Python that the engine needs can be had")
def python(c: Context) -> Answer:
    need = c.plan.python
    if c.wanted.stack == "system":
        return _system_python(c)
    for found in c.machine.pythons:
        if found.version.startswith(f"{need}."):
            return passed(f"{found.path} is {found.version}")
    seen = ", ".join(p.version for p in c.machine.pythons) or "none"
    if c.wanted.stack == "wheelhouse":
        return failed(
            f"Python {need} is not there (found {seen}), and the stack comes from a folder",
            f"install Python {need} on the host",
        )
    return passed(f"Python {need} is not there (found {seen}): uv brings it")


def _system_python(c: Context) -> Answer:
    path = c.wanted.stack_from
    if path is None:
        if not c.machine.pythons:
            return failed("no Python on PATH", "install it, or write its path into stack_from")
        return passed("the host's own, python3")
    place = c.machine.place(path)
    if place is None:
        return unknown(f"the host was not asked about {path}")
    if not place.program:
        found = "a file that can't be run" if place.exists else "no such file"
        return failed(
            f"expected a Python in {path}, found {found}",
            "install the engine's packages there, or correct wanted.stack_from",
        )
    return passed(f"the host's own, {path}")


@CHECKS.add("stack.wheels", "the folders of wheels are on the host")
def wheels(c: Context) -> Answer:
    folders = wheel_folders(c.wanted)
    for setting, folder in folders.items():
        place = c.machine.place(folder)
        if place is None:
            return unknown(f"the host was not asked about {folder}")
        if not place.exists:
            judge = warned if _installed(c) else failed  # the installed stack needs no wheels
            return judge(
                f"expected a folder of wheels in {folder}, found none",
                f"copy the wheels there, or correct wanted.{setting}",
            )
    return passed(", ".join(folders.values())) if folders else skipped("no folder is wanted")


@CHECKS.add("host.rights", "we may do what the plan needs")
def rights(c: Context) -> Answer:
    m = c.machine
    if any(place.path == c.plan.prefix and not place.writable for place in m.places):
        return failed(
            f"{m.user} may not write {c.plan.prefix}",
            "give the folder to this user, or set wanted.prefix to one that it may write",
        )
    if m.uid == 0:
        return passed("root")
    if c.plan.service_manager == "systemd":
        hint = (
            "set _sudo to True for the host in the inventory"
            if m.sudo == "passwordless"
            else "connect as root, give the user passwordless sudo, or set "
            "wanted.service_manager to supervisor"
        )
        return failed(f"{m.user} may not install system units (sudo: {m.sudo})", hint)
    return passed(f"{m.user}: everything lies under {c.plan.prefix}")


def _on_disk_mib(c: Context, model: ModelRef) -> int | None:
    """What lies in the model's folder already, complete or not; None if there is no such folder."""
    if model.path in c.own.model_mib:
        return c.own.model_mib[model.path]
    folder = PurePosixPath(model.path)
    found = [d.size_mib or 0 for d in c.machine.model_dirs if folder.is_relative_to(d.path)]
    return max(found, default=None)


def _missing_mib(c: Context, model: ModelRef | None) -> int:
    """What is still to be downloaded, MiB; 0 if it is there, not ours, or of unknown size."""
    if model is None or model.size_bytes is None:
        return 0
    if not model.path.startswith(f"{c.plan.prefix}/models/"):
        return 0
    return max(0, model.size_bytes // MIB - (_on_disk_mib(c, model) or 0))


@CHECKS.add("disk.space", "models and stack fit on the disk")
def disk_space(c: Context) -> Answer:
    """huggingface_hub looks at one file at a time and only warns (E40), so sum it up before."""
    models = f"{c.plan.prefix}/models"
    stack_mount, model_mount = c.machine.mount_of(c.plan.prefix), c.machine.mount_of(models)
    if stack_mount is None or model_mount is None:
        return unknown(f"no mount of {c.plan.prefix} is known", "run df on the host")
    need = {stack_mount.path: STACK_MIB[c.plan.engine] if not _installed(c) else 1_000}
    missing = _missing_mib(c, c.plan.target) + _missing_mib(c, c.plan.drafter)
    need[model_mount.path] = need.get(model_mount.path, 0) + round(missing * 1.05)
    free = {stack_mount.path: stack_mount.free_mib, model_mount.path: model_mount.free_mib}
    lines = [f"{path}: {_gb(free[path])} free, {_gb(need[path])} needed" for path in need]
    short = [path for path in need if free[path] < need[path]]
    if short:
        return failed(
            "; ".join(lines),
            f"free {_gb(sum(need[path] - free[path] for path in short))}, or set wanted.prefix to "
            "a larger disk",
        )
    return passed("; ".join(lines))


def _installed(c: Context) -> bool:
    return any(venv.path.startswith(f"{c.plan.prefix}/venvs/") for venv in c.machine.venvs)


def _gb(mib: int) -> str:
    return f"{mib * MIB / 1e9:.1f} GB"


@CHECKS.add("disk.inodes", "the disk has inodes left")
def inodes(c: Context) -> Answer:
    mount = c.machine.mount_of(c.plan.prefix)
    if mount is None or mount.inodes_free is None:
        return skipped("the file system does not count inodes, or is not known")
    if mount.inodes_free < 200_000:
        return failed(
            f"{mount.inodes_free} left on {mount.path}",
            "the stack has some 100,000 files: free some",
        )
    return passed(f"{mount.inodes_free} left on {mount.path}")


@CHECKS.add("memory.ram", "the host has enough memory")
def ram(c: Context) -> Answer:
    total = c.machine.memory_total_mib
    if total is None:
        return unknown("the size of the memory is unknown")
    if not c.sglang:
        need = 2048
        if total < need:
            return failed(f"{total} MiB, needs {need}", "use a larger machine")
        return passed(f"{total} MiB")
    need = 16_384 * max(1, c.plan.gpus) if (c.plan.target.size_bytes or 0) > 50e9 else 16_384
    if total < need:
        return failed(
            f"{total} MiB, needs {need}", "each GPU's process needs some 16 GiB while it loads"
        )
    weights = (c.plan.target.size_bytes or 0) // MIB
    if total < weights:
        return warned(
            f"{total} MiB, less than the {weights} MiB of weights",
            "every start reads them from the disk again; more memory keeps them cached",
        )
    return passed(f"{total} MiB")


@CHECKS.add("memory.shm", "/dev/shm is large enough for NCCL")
def shm(c: Context) -> Answer:
    if not c.several_gpus:
        return skipped("one GPU or none shares nothing over /dev/shm")
    size = c.machine.shm_total_mib
    need = 1024 * c.plan.gpus
    if size is None:
        return unknown("the size of /dev/shm is unknown")
    if size < need:
        return failed(
            f"{size} MiB, needs {need}",
            "mount -o remount,size=16G /dev/shm; a container: --ipc=host or --shm-size 16g",
        )
    return passed(f"{size} MiB")


@CHECKS.add("host.clock", "the clock is right")
def clock(c: Context) -> Answer:
    """A clock that is far off makes TLS and package signatures fail."""
    m = c.machine
    if c.now_unix is not None and m.clock_unix is not None:
        off = m.clock_unix - c.now_unix
        if abs(off) > CLOCK_TOLERANCE_S:
            return failed(
                f"{abs(off)} s {'ahead of' if off > 0 else 'behind'} this machine",
                "timedatectl set-ntp true, or set the clock",
            )
    if m.clock_synchronised is False:
        return warned("not synchronised", "timedatectl set-ntp true")
    if m.clock_synchronised is None and c.now_unix is None:
        return unknown("whether the clock is synchronised is unknown")
    return passed("synchronised" if m.clock_synchronised else "agrees with this machine")


def hub_models(c: Context) -> list[ModelRef]:
    """The models that come from a Hub and are not on the host."""
    models = [model for model in (c.plan.target, c.plan.drafter) if model is not None]
    return [
        model
        for model in models
        if ModelSource.parse(model.source).from_hub and _on_disk_mib(c, model) is None
    ]


@CHECKS.add("hub.reachable", "the model hub can be reached, or is declared offline")
def hub(c: Context) -> Answer:
    missing = hub_models(c)
    if not missing:
        return skipped("nothing is to be downloaded from a hub")
    names = ", ".join(model.name for model in missing)
    if c.wanted.hub == "offline":
        return failed(
            f"the hub is declared offline, and {names} is not on the host",
            "copy it to the host and use path:, or take it from host: or mirror:",
        )
    if c.machine.hub_reachable is None:
        return unknown("neither curl nor wget is there to try it", "the download will tell")
    if not c.machine.hub_reachable:
        return failed(
            f"the host can't reach the hub for {names}",
            "open the way to it, or use mirror:, host: or path: as the source",
        )
    return passed(f"reachable, for {names}")


@CHECKS.add("hub.token", "there is a token for repositories that are gated")
def hub_token(c: Context) -> Answer:
    missing = hub_models(c)
    if not missing or c.wanted.hub == "offline":
        return skipped("nothing is to be downloaded from a hub")
    gated = [model.name for model in missing if c.hub.gated.get(model.source)]
    if gated and not (c.hub.token or c.machine.hf_token):
        return failed(
            f"{', '.join(gated)} is gated, and there is no token",
            "accept its terms on the hub, then set HF_TOKEN in this shell",
        )
    if gated:
        return passed(f"{', '.join(gated)} is gated, and there is a token")
    not_asked = [model.name for model in missing if model.source not in c.hub.gated]
    if not_asked:
        return unknown(f"whether {', '.join(not_asked)} is gated is unknown")
    return passed(f"{', '.join(model.name for model in missing)}: not gated")


@CHECKS.add("model.pinned", "the model's revision is a commit")
def pinned(c: Context) -> Answer:
    open_ends = [
        model.name
        for model in (c.plan.target, c.plan.drafter)
        if model is not None and not ModelSource.parse(model.source).pinned
    ]
    if open_ends:
        return failed(
            f"no commit for {', '.join(open_ends)}",
            "write the 40-digit commit behind the @ in the inventory",
        )
    return passed(f"{c.plan.target.name} {c.plan.target.revision[:12]}".strip())
