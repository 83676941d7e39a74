"""What Linux says of itself, read into plain values: pure parsers, no pyinfra import."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from typing import Literal

from facts.machine_facts import Mount, Place, Port, Python, Unit, Venv

# File systems that hold no data of ours: kernel interfaces, package images, per-container layers.
_PSEUDO = {
    "autofs",
    "binfmt_misc",
    "bpf",
    "cgroup",
    "cgroup2",
    "configfs",
    "debugfs",
    "devpts",
    "devtmpfs",
    "efivarfs",
    "fuse.lxcfs",
    "fusectl",
    "hugetlbfs",
    "mqueue",
    "nsfs",
    "proc",
    "pstore",
    "ramfs",
    "rpc_pipefs",
    "securityfs",
    "squashfs",
    "sysfs",
    "tracefs",
}
_SYSTEM = re.compile(
    r"/(?:proc|sys|run|snap|etc|usr|boot|dev(?!/shm$)|var/lib/(?:docker|kubelet|containers|containerd))(?:/|$)"
)


def parse_pairs(text: str) -> dict[str, str]:
    """`key=value` lines; an empty value counts as absent."""
    found = (line.partition("=") for line in text.splitlines())
    return {key: value.strip() for key, equals, value in found if equals and value.strip()}


def flag(value: str | None) -> bool | None:
    """A kernel parameter: 0 or N, 1 or Y; None for anything else."""
    return {"0": False, "N": False, "n": False, "1": True, "Y": True, "y": True}.get(value or "")


def parse_os_release(text: str) -> dict[str, str]:
    """/etc/os-release: values without their quotes; other lines are passed over."""
    found = {}
    for key, value in parse_pairs(text).items():
        try:
            found[key] = " ".join(shlex.split(value))
        except ValueError:
            continue
    return found


def parse_meminfo(text: str) -> dict[str, int]:
    """/proc/meminfo in MiB, rounded down."""
    lines = re.findall(r"^(\w+):\s+(\d+) kB$", text, re.MULTILINE | re.ASCII)
    return {key: int(kib) // 1024 for key, kib in lines}


def parse_df(text: str) -> dict[str, tuple[int, int]]:
    """`df -kP` or `df -iP`: size and free (in the unit of the call) by mount path.

    The first column may hold blanks, so columns are counted from the numbers. Where a file system
    prints "-" (it does not count inodes) it is left out.
    """
    rows = re.findall(r"^.*?\s+(\d+)\s+\d+\s+(-?\d+)\s+(?:\d+%|-)\s+(/.*)$", text, re.MULTILINE)
    return {path: (int(size), int(free)) for size, free, path in rows}


def parse_mounts(mounts: str, disks: str, inodes: str) -> tuple[Mount, ...]:
    """Mounts that can hold data, by path: /proc/self/mounts joined with `df -kP` and `df -iP`.

    Where two are mounted on one path, the upper one holds.
    """
    sizes, counts = parse_df(disks), parse_df(inodes)
    found: dict[str, Mount] = {}
    for line in mounts.splitlines():
        fields = [_unescape(field) for field in line.split(" ")]
        if len(fields) < 3:
            continue
        source, path, fstype = fields[:3]
        found.pop(path, None)
        if fstype in _PSEUDO or path not in sizes or sizes[path][0] == 0:
            continue
        if _SYSTEM.match(path):
            continue
        size, free = sizes[path]
        inode_size, inode_free = counts.get(path, (0, 0))
        found[path] = Mount(
            path=path,
            source=source,
            fstype=fstype,
            size_mib=size // 1024,
            free_mib=free // 1024,
            inodes_free=inode_free if inode_size else None,
        )
    return tuple(found[path] for path in sorted(found))


def _unescape(field: str) -> str:
    r"""A field of /proc/self/mounts: `\040` is a blank."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match[1], 8)), field)


def parse_places(text: str, mounts: tuple[Mount, ...]) -> tuple[Place, ...]:
    """Lines of `path, resolved, exists, writable, program`, each given the mount it lies on."""
    found = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) != 5 or not fields[1].startswith("/"):
            continue
        path, resolved, *answers = fields
        on = [m.path for m in mounts if _lies_on(resolved, m.path)]
        mount = max(on, key=len, default="/")
        found[path] = Place(path, resolved, mount, *(answer == "yes" for answer in answers))
    return tuple(found.values())


def _lies_on(path: str, mount: str) -> bool:
    return mount == "/" or path == mount or path.startswith(mount + "/")


def parse_pythons(text: str) -> tuple[Python, ...]:
    """Lines of `PATH Python 3.12.3`; what is no CPython version line is passed over."""
    rows = re.findall(r"^(/\S+) Python (\d+\.\d+\.\d+\S*)$", text, re.MULTILINE | re.ASCII)
    return tuple(Python(path, version) for path, version in rows)


def parse_venvs(text: str) -> tuple[Venv, ...]:
    """`grep -H version pyvenv.cfg` lines: `version =` by venv, `version_info =` by uv."""
    rows = re.findall(
        r"^(/.+)/pyvenv\.cfg:version(?:_info)? *= *(\S+)$", text, re.MULTILINE | re.ASCII
    )
    return tuple(Venv(path, version) for path, version in sorted(set(rows)))


def parse_ports(text: str, owners: str = "") -> tuple[Port, ...]:
    """`ss -Hltnp`, or /proc/net/tcp and tcp6 with lines of `socket:[INODE] PID COMMAND`."""
    found = set(_ss_ports(text)) or set(_proc_ports(text, owners))
    return tuple(sorted(found, key=lambda port: (port.port, port.address, port.pid or 0)))


def _ss_ports(text: str) -> Iterator[Port]:
    for line in text.splitlines():
        match = re.match(r"LISTEN\s+\d+\s+\d+\s+(\S+):(\d+)\s", line, re.ASCII)
        if match is None:
            continue
        address = match[1].strip("[]").split("%")[0]
        user = re.search(r'users:\(\("(.*?)",pid=(\d+)', line, re.ASCII)
        yield Port(
            port=int(match[2]),
            address="0.0.0.0" if address == "*" else address,
            pid=int(user[2]) if user else None,
            command=user[1] if user else None,
        )


_LISTEN = "0A"


def _proc_ports(text: str, owners: str) -> Iterator[Port]:
    owner = {
        inode: (int(pid), command)
        for inode, pid, command in re.findall(
            r"^socket:\[(\d+)\] (\d+) (.*)$", owners, re.MULTILINE | re.ASCII
        )
    }
    for line in text.splitlines():
        fields = line.split()
        if len(fields) < 10 or fields[3] != _LISTEN:
            continue
        raw, _, port = fields[1].partition(":")
        if not re.fullmatch(r"[0-9A-F]{8}|[0-9A-F]{32}", raw) or not re.fullmatch(
            "[0-9A-F]{4}", port
        ):
            continue
        pid, command = owner.get(fields[9], (None, None))
        yield Port(int(port, 16), _address(raw), pid, command)


def _address(raw: str) -> str:
    """An address of /proc/net/tcp: 32-bit words in the machine's (little-endian) byte order."""
    words = [bytes.fromhex(raw[i : i + 8])[::-1] for i in range(0, len(raw), 8)]
    if len(words) == 1:
        return ".".join(str(byte) for byte in words[0])
    joined = b"".join(words)
    if not any(joined):
        return "::"
    if joined == bytes(15) + b"\x01":
        return "::1"
    return ":".join(joined[i : i + 2].hex() for i in range(0, 16, 2))


def parse_units(listed: str, files: str) -> tuple[Unit, ...]:
    """`systemctl list-units --plain --no-legend` joined with `list-unit-files --no-legend`."""
    enabled = {}
    for line in files.splitlines():
        fields = line.split()
        if len(fields) >= 2 and "." in fields[0]:
            enabled[fields[0]] = fields[1]
    active = {}
    for line in listed.splitlines():
        fields = line.split()
        if len(fields) >= 4 and "." in fields[0] and fields[1] != "not-found":
            active[fields[0]] = fields[2]
    names = sorted(active | {name: "" for name in enabled if "@." not in name})
    return tuple(Unit(name, active.get(name, "inactive"), enabled.get(name)) for name in names)


def parse_iommu(types: str | None) -> Literal["off", "on", "passthrough"] | None:
    """`groups` and the types of IOMMU groups: no type is "off", identity alone "passthrough"."""
    kinds = set((types or "").split())
    if "groups" not in kinds:
        return None
    kinds.remove("groups")
    if not kinds:
        return "off"
    return "passthrough" if kinds == {"identity"} else "on"
