"""One lab host: a systemd-nspawn machine with real systemd and sshd on an overlay of its own.

The hosts share this machine's network. Host `b300-a` has the address 127.NET.1.1, `b300-b`
127.NET.1.2, `ct200-a` 127.NET.2.1 and so on: loopback needs no bridge, no NAT and no firewall
rule, so nothing of the machine's own network is touched. Services of different hosts share one
space of ports, hence `wanted.port` differs from host to host in inventories/lab.py.
"""

import os
import re
import shutil
import subprocess
import time
import uuid
from dataclasses import dataclass
from pathlib import Path

from lab_cgroup import Cgroup, hierarchy, own
from lab_gpus import install_fake_gpus

KINDS = ("bare", "b300", "ct200")  # bare: no GPU tools; the others get a fake nvidia-smi
SSH_PORT = 22022  # not 22: the machine's own sshd may hold that on every address
REBOOTED = 133  # systemd-nspawn's exit code when the host asked for a reboot (with --keep-unit)
LOCKS = Path("/run/systemd")
CGROUPS = Path("/sys/fs/cgroup")

SSHD = """\
ListenAddress {address}:{port}
HostKey /etc/ssh/ssh_host_ed25519_key
PasswordAuthentication no
PermitRootLogin prohibit-password
UseDNS no
# tells each command's start, so that tests/bench can count them on the host's side
LogLevel VERBOSE
"""

SSH_CONFIG = """\
Host {name}
    HostName {address}
    Port {port}
    User root
    IdentityFile {state}/id_ed25519
    IdentitiesOnly yes
    UserKnownHostsFile {state}/known_hosts
    StrictHostKeyChecking yes
    LogLevel ERROR
    # the default, sntrup761, costs a lab machine 0.15 s of CPU a connection
    KexAlgorithms curve25519-sha256
    # for clients that ask for ControlMaster without naming a path, as testinfra does
    ControlPath {state}/cm-%C
"""


class LabError(Exception):
    """One line for the user: what was expected, what was found, what to do."""


@dataclass(frozen=True)
class LabHost:
    """A host of the lab whose state folder is `state`; `net` is the second byte of addresses."""

    name: str
    state: Path
    net: int

    def __post_init__(self) -> None:
        if not re.fullmatch(rf"({'|'.join(KINDS)})-[a-z]", self.name):
            raise LabError(
                f"expected a host name like b300-a, ct200-b or bare-a, found {self.name!r}"
            )

    @property
    def kind(self) -> str:
        return self.name.split("-")[0]

    @property
    def address(self) -> str:
        return f"127.{self.net}.{KINDS.index(self.kind)}.{ord(self.name[-1]) - ord('a') + 1}"

    @property
    def folder(self) -> Path:
        return self.state / "hosts" / self.name

    def ssh_config(self) -> str:
        return SSH_CONFIG.format(
            name=self.name, address=self.address, port=SSH_PORT, state=self.state
        )

    def known_hosts(self) -> str:
        key = (self.folder / "seed/etc/ssh/ssh_host_ed25519_key.pub").read_text().split()
        return f"[{self.address}]:{SSH_PORT} {key[0]} {key[1]}\n"

    def prepare(self, root: Path) -> None:
        """Write what makes this host itself: names, keys, sshd, the fake GPU tools."""
        shutil.rmtree(self.folder, ignore_errors=True)
        seed = self.folder / "seed"
        for folder in ("etc/ssh/sshd_config.d", "root/.ssh", "home/deploy/.ssh"):
            (seed / folder).mkdir(parents=True)
        (seed / "root").chmod(0o700)
        (seed / "etc/hostname").write_text(self.name + "\n")
        (seed / "etc/hosts").write_text(self._etc_hosts())
        # an empty one would mean "first boot" to systemd, and presets would be applied
        (seed / "etc/machine-id").write_text(uuid.uuid4().hex + "\n")
        sshd = SSHD.format(address=self.address, port=SSH_PORT)
        (seed / "etc/ssh/sshd_config.d/lab.conf").write_text(sshd)
        keygen(seed / "etc/ssh/ssh_host_ed25519_key", f"root@{self.name}")
        owner = (root / "home/deploy").stat()
        for home in ("root", "home/deploy"):
            (seed / home / ".ssh").chmod(0o700)
            shutil.copy(self.state / "id_ed25519.pub", seed / home / ".ssh/authorized_keys")
        for path in (seed / "home/deploy", *(seed / "home/deploy").rglob("*")):
            os.chown(path, owner.st_uid, owner.st_gid)
        if self.kind != "bare":
            install_fake_gpus(seed, self.kind)

    def _etc_hosts(self) -> str:
        lines = ["127.0.0.1 localhost"]
        for kind in KINDS:
            for letter in "abcdefgh":
                other = LabHost(f"{kind}-{letter}", self.state, self.net)
                lines.append(f"{other.address} {other.name}")
        return "\n".join(lines) + "\n"

    def start(self, launcher: list[str], cgroup: Cgroup) -> None:
        """Start the launcher, detached, in a mount namespace and a cgroup of its own."""
        command = ["unshare", "--mount", "--propagation", "private", *launcher]
        with (self.folder / "log").open("w") as log:
            subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                preexec_fn=cgroup.join,
            )

    def wait_ready(self, cgroup: Cgroup, timeout_s: float = 120.0) -> None:
        """Wait until sshd answers and systemd has finished booting.

        Raises:
            LabError: the host ended, or took longer than `timeout_s`.
        """
        deadline = time.monotonic() + timeout_s
        while time.monotonic() < deadline:
            state = self.ssh("systemctl is-system-running --wait").stdout.strip()
            if state in ("running", "degraded"):
                return
            if not cgroup.alive():
                log = (self.folder / "log").read_text(errors="replace").splitlines()[-15:]
                raise LabError("\n  ".join([f"{self.name} ended while it booted:", *log]))
            time.sleep(0.1)
        raise LabError(f"{self.name} was not ready after {timeout_s:g} s: {self.folder}/log")

    def ssh(self, command: str) -> subprocess.CompletedProcess[str]:
        """Run one command as root; the exit code is ssh's own (255: no connection)."""
        options = ["-o", "BatchMode=yes", "-o", "ConnectTimeout=3"]
        return subprocess.run(
            ["ssh", "-F", str(self.state / "ssh_config"), *options, self.name, command],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )


def launch(host: LabHost, root: Path) -> int:
    """Boot the host and boot it again each time it reboots; runs in a private mount namespace.

    Every mount made here ends with the host. Returns systemd-nspawn's exit code.
    """
    if hierarchy() != CGROUPS:  # a pure version 2 view for the host where this machine has both
        _mount("-t", "cgroup2", "cgroup2", str(CGROUPS))
    nspawn_cgroup = own(CGROUPS).child("nspawn")
    # systemd-nspawn keeps locks and propagation folders there, and refuses to tidy up on a disk
    LOCKS.mkdir(exist_ok=True)
    _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(LOCKS))
    disk = host.folder / "disk"
    disk.mkdir()
    if _filesystem(disk) == "overlayfs":  # a container's: can't be the upper layer of another
        _mount("-t", "tmpfs", "-o", "mode=755", "tmpfs", str(disk))
    subprocess.run(["cp", "-a", str(host.folder / "seed"), str(disk / "upper")], check=True)
    (disk / "work").mkdir()
    (disk / "root").mkdir()
    layers = f"lowerdir={root},upperdir={disk}/upper,workdir={disk}/work,volatile"
    _mount("-t", "overlay", "-o", layers, "overlay", str(disk / "root"))
    command = [
        "systemd-nspawn", "--quiet", "--boot", "--register=no", "--keep-unit", "--settings=no",
        f"--machine={host.name}", f"--hostname={host.name}", f"--directory={disk}/root",
        "--link-journal=no", "--timezone=off", "--resolv-conf=copy-host", "--suppress-sync=yes",
        "--console=pipe", "--",
    ]  # fmt: skip
    while True:
        nspawn = subprocess.run(
            command, stdin=subprocess.DEVNULL, preexec_fn=nspawn_cgroup.join, check=False
        )
        if nspawn.returncode != REBOOTED:
            return nspawn.returncode


def keygen(path: Path, comment: str) -> None:
    command = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", comment, "-f", str(path)]
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


def _mount(*arguments: str) -> None:
    subprocess.run(["mount", *arguments], check=True)


def _filesystem(path: Path) -> str:
    command = ["stat", "--file-system", "--format=%T", str(path)]
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout.strip()
