"""The document that machine.sh prints -> `MachineFacts`: pure, no pyinfra import."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Literal

from facts import linux
from facts.machine_facts import Limits, MachineError, MachineFacts, ModelDir
from facts.machine_gpus import Sections, add_cuda, add_gpus
from facts.nvidia.values import whole

_SECTION = re.compile(r"^@@ section (\w+) (\d+|-)\n(.*?)\n@@ end$", re.MULTILINE | re.DOTALL)


def parse_document(text: str) -> MachineFacts:
    """All facts of the document. Raises MachineError if it is no such document or is cut."""
    found = _SECTION.findall(text)
    sections: Sections = {name: body for name, _, body in found}
    exits = {name: None if status == "-" else int(status) for name, status, _ in found}
    identity = linux.parse_pairs(sections.get("identity", ""))
    listed = re.search(r"^@@ sections (.*)$", text, re.MULTILINE)
    missing = set(listed[1].split()) - set(sections) if listed else set()
    if "hostname" not in identity or missing or text.count("@@ section ") != len(found):
        raise MachineError("machine facts: the host's answer is cut or no answer of machine.sh")
    machine = _system(sections, identity)
    machine = _storage(machine, sections)
    if "nvidia_smi" in identity:
        machine = add_gpus(machine, sections, exits)
    return add_cuda(machine, sections, exits, identity)


def _system(sections: Sections, identity: dict[str, str]) -> MachineFacts:
    """What has nothing to do with GPUs or disks."""
    release = linux.parse_os_release(sections.get("os", ""))
    memory = linux.parse_meminfo(sections.get("memory", ""))
    systemd = re.match(r"systemd (\d+)", sections.get("systemd", ""))
    glibc = re.search(r"(?:glibc |GLIBC )\D*?(\d+\.\d+)", identity.get("glibc", ""))
    clock = sections.get("clock", "").strip()
    uv = re.match(r"uv (\d\S*)", identity.get("uv_version", ""))
    hub = sections.get("hub", "").strip()
    return MachineFacts(
        hostname=identity["hostname"],
        os_id=release.get("ID"),
        os_version=release.get("VERSION_ID"),
        kernel=identity.get("kernel"),
        arch=identity.get("arch"),
        glibc=glibc[1] if glibc else None,
        init="systemd" if "systemd_booted" in identity else "other",
        systemd_version=int(systemd[1]) if systemd else None,
        container="container" in identity,
        user=identity.get("user", "?"),
        uid=whole(identity.get("uid")) or 0,
        home=identity.get("home", "/"),
        sudo=_sudo(identity.get("sudo")),
        cpus=whole(identity.get("cpus")),
        cpu_model=identity.get("cpu_model"),
        numa_nodes=whole(identity.get("numa_nodes")) or None,
        numa_balancing=linux.flag(identity.get("numa_balancing")),
        memory_total_mib=_least(memory.get("MemTotal"), identity.get("memory_limit")),
        memory_available_mib=memory.get("MemAvailable"),
        pythons=linux.parse_pythons(sections.get("pythons", "")),
        uv=identity.get("uv"),
        uv_version=uv[1] if uv else None,
        conda=identity.get("conda"),
        pip=identity.get("pip"),
        venvs=linux.parse_venvs(sections.get("venvs", "")),
        hf_token="hf_token" in identity,
        hub_reachable={"yes": True, "no": False}.get(hub),
        has_apt="has_apt" in identity,
        has_patch="has_patch" in identity,
        ports=linux.parse_ports(sections.get("ports", ""), sections.get("socket_owners", "")),
        units=linux.parse_units(sections.get("units", ""), sections.get("unit_files", "")),
        limits=Limits(_limit(identity.get("memlock"), 1024), _limit(identity.get("nofile"))),
        ptrace_scope=whole(identity.get("ptrace_scope")),
        clock_synchronised={"yes": True, "no": False}.get(clock),
        clock_unix=whole(identity.get("clock_unix")),
    )


def _sudo(value: str | None) -> Literal["root", "passwordless", "none"]:
    return "root" if value == "root" else "passwordless" if value == "passwordless" else "none"


def _limit(value: str | None, unit: int = 1) -> int | None:
    """A line of /proc/self/limits in `unit`s, -1 for unlimited."""
    found = whole(value)
    return -1 if value == "unlimited" else None if found is None else found // unit


def _least(total_mib: int | None, limit_bytes: str | None) -> int | None:
    """The memory that this host may use: the machine's, or less where a container is limited."""
    limit = whole(limit_bytes)
    if total_mib is None or limit is None:
        return total_mib
    return min(total_mib, limit // 2**20)


def _storage(machine: MachineFacts, sections: Sections) -> MachineFacts:
    mounts = linux.parse_mounts(
        sections.get("mounts", ""), sections.get("disks", ""), sections.get("inodes", "")
    )
    text = sections.get("models", "")
    models = re.findall(r"^(folder|hub-cache) (/.*)$", text, re.MULTILINE)
    sizes = {path: int(kib) for kib, path in re.findall(r"^(\d+)\t(/.*)$", text, re.MULTILINE)}
    return replace(
        machine,
        mounts=mounts,
        places=linux.parse_places(sections.get("places", ""), mounts),
        shm_total_mib=next((m.size_mib for m in mounts if m.path == "/dev/shm"), None),
        model_dirs=tuple(
            ModelDir(path, kind, sizes[path] // 1024 if path in sizes else None)
            for kind, path in models
        ),
    )
