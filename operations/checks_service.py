"""Checks of the service: its port, its rivals, its limits, and whether the plan can run at all."""

from __future__ import annotations

from operations.checks_base import (
    Answer,
    Checks,
    Context,
    consequence,
    failed,
    passed,
    skipped,
    unknown,
    warned,
)

CHECKS = Checks()
RIVALS = ("sglang", "vllm", "ollama", "llama", "text-generation", "gpustack", "tritonserver")
NOFILE = 65_536


@CHECKS.add("plan.served", "the arm that serves can run here")
def plan_served(c: Context) -> Answer:
    arm = c.plan.serving_arm
    if c.sglang and c.follows:
        return consequence(c.follows)
    if c.sglang and c.counts_differ:
        return consequence("gpu.count")
    if not arm.possible:
        return failed(f"{arm.name}: {arm.reason}", "change the host or wanted.parallelism")
    return passed(f"{arm.name}, {arm.parallelism}")


@CHECKS.add("port.free", "the ports are free or ours")
def port_free(c: Context) -> Answer:
    wanted = {c.plan.port: "wanted.port"}
    if c.wanted.metrics_port:
        wanted[c.wanted.metrics_port] = "wanted.metrics_port"
    taken = [
        port
        for port in c.machine.ports
        if port.port in wanted and (port.pid is None or port.pid not in c.own.pids)
    ]
    if taken:
        port = taken[0]
        who = f"pid {port.pid} ({port.command})" if port.pid else "another user's process"
        return failed(
            f"port {port.port} is held by {who} on {port.address}",
            f"stop it, or choose another {wanted[port.port]}",
        )
    ours = any(port.port == c.plan.port for port in c.machine.ports)
    numbers = ", ".join(str(number) for number in wanted)
    return passed(f"{numbers}: {'held by our own service' if ours else 'free'}")


@CHECKS.add("unit.conflict", "no other model server is set to run")
def unit_conflict(c: Context) -> Answer:
    own = f"{c.wanted.service}.service"
    rivals = [unit for unit in c.machine.units if unit.name.startswith(RIVALS) and unit.name != own]
    running = [unit.name for unit in rivals if unit.active in ("active", "activating")]
    if running and c.sglang:
        return failed(
            f"{', '.join(running)} runs",
            f"systemctl disable --now {' '.join(running)}: it holds GPU memory",
        )
    enabled = [unit.name for unit in rivals if unit.enabled == "enabled"]
    if running or enabled:
        names = ", ".join(dict.fromkeys(running + enabled))
        return warned(f"{names} is there", f"systemctl disable --now {names}, if it is not wanted")
    return passed("none")


@CHECKS.add("unit.memlock", "the service may lock memory")
def memlock(c: Context) -> Answer:
    """systemd ignores limits.conf, so a shell's ulimit proves nothing about a unit (E46)."""
    if not c.several_gpus:
        return skipped("one GPU or none registers no memory")
    if c.plan.service_manager == "systemd":
        return passed("the unit sets LimitMEMLOCK=infinity")
    limit = c.machine.limits.memlock_kib
    if limit is None:
        return unknown("the limit of the session, which supervisor inherits, is unknown")
    if limit != -1:
        return warned(
            f"{limit} KiB, which supervisor inherits",
            "raise it: `* - memlock unlimited` in /etc/security/limits.conf; for a container "
            "--ulimit memlock=-1",
        )
    return passed("unlimited, which supervisor inherits")


@CHECKS.add("unit.nofile", "the service may open enough files")
def nofile(c: Context) -> Answer:
    if not c.sglang:
        return skipped("the reference engine opens few files")
    if c.plan.service_manager == "systemd":
        return passed("the unit sets LimitNOFILE=1048576")
    limit = c.machine.limits.nofile
    if limit is None:
        return unknown("the limit of the session, which supervisor inherits, is unknown")
    if 0 <= limit < NOFILE:
        return warned(
            f"{limit}, which supervisor inherits",
            f"raise it: `* - nofile {NOFILE}` in /etc/security/limits.conf; for a container "
            f"--ulimit nofile={NOFILE}",
        )
    return passed(f"{limit}, which supervisor inherits")
