#!/usr/bin/env python3
"""Throwaway hosts on this machine, to deploy to over SSH: real systemd, real sshd, fake GPUs.

  lab.py setup               install what the lab needs from Debian, build the root file system
  lab.py up [NAME...]        boot hosts (default: b300-a ct200-a), wait until they are ready
  lab.py status              one line a host: name, address, state
  lab.py ssh NAME [CMD...]   a shell on a host, or one command, as root
  lab.py fault NAME FAULT    make the fake GPUs of a host misbehave (none: well again)
  lab.py down [NAME...]      end the hosts and remove all that `up` made

Names are KIND-LETTER: b300-a, b300-b, ct200-a, bare-a (no GPU tools). Needs root on Debian.
  DDTREE_LAB_STATE  where running hosts live (default /var/tmp/ddtree-lab)
  DDTREE_LAB_CACHE  where the root file system is kept (default ~/.cache/ddtree-lab)
  DDTREE_LAB_NET    the 77 in 127.77.x.y: with an own state folder, a second lab beside the first
"""

import argparse
import contextlib
import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lab_root
from lab_cgroup import Cgroup, hierarchy
from lab_gpus import fault_command, faults
from lab_host import LOCKS, LabError, LabHost, keygen, launch

DEFAULT_HOSTS = ("b300-a", "ct200-a")
TOOLS = {  # program: Debian package
    "mmdebstrap": "mmdebstrap",
    "systemd-nspawn": "systemd-container",
    "ssh": "openssh-client",
    "ssh-keygen": "openssh-client",
    "unshare": "util-linux",
    "ss": "iproute2",
}


def why_not() -> str | None:
    """The reason why this machine can't run a lab, in one line; None when it can."""
    if os.geteuid() != 0:
        return "the lab needs root: it mounts file systems and boots containers"
    if not Path("/etc/debian_version").exists():
        return "the lab needs Debian 12 or newer on this machine: it builds its hosts with apt"
    if hierarchy() is None:
        return "the lab needs cgroup version 2: mount -t cgroup2 cgroup2 /sys/fs/cgroup/unified"
    probe = subprocess.run(["unshare", "--mount", "true"], capture_output=True, check=False)
    if probe.returncode != 0:
        return "the lab needs CAP_SYS_ADMIN: run it on the machine itself or in a privileged one"
    return None


def setup() -> None:
    """Install the Debian packages that are missing, and build the root file system."""
    reason = why_not()
    if reason:
        raise LabError(reason)
    missing = sorted({package for tool, package in TOOLS.items() if not shutil.which(tool)})
    if missing:
        say(f"installing {' '.join(missing)}")
        quiet = {"stdin": subprocess.DEVNULL, "stdout": subprocess.DEVNULL, "check": True}
        apt = ["apt-get", "-q", "-o", "DPkg::Lock::Timeout=120"]
        environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
        subprocess.run([*apt, "update"], env=environment, **quiet)
        install = [*apt, "install", "-y", "--no-install-recommends", *missing]
        subprocess.run(install, env=environment, **quiet)
    if not lab_root.root_folder().exists():
        say(f"building the hosts' root file system in {lab_root.cache_folder()}, 1-2 minutes")
    lab_root.build()


class Lab:
    """All hosts of one state folder."""

    def __init__(self) -> None:
        # resolved: the path is written into ssh_config, and its hash names the cgroup
        self.state = Path(os.environ.get("DDTREE_LAB_STATE") or "/var/tmp/ddtree-lab").resolve()
        self.net = int(os.environ.get("DDTREE_LAB_NET") or 77)
        tag = hashlib.sha256(str(self.state).encode()).hexdigest()[:8]
        self.cgroup = Cgroup((hierarchy() or Path("/sys/fs/cgroup")) / f"ddtree-lab-{tag}")

    def host(self, name: str) -> LabHost:
        return LabHost(name, self.state, self.net)

    def names(self) -> list[str]:
        """Hosts that were booted and not taken down, alive or not."""
        folder = self.state / "hosts"
        return sorted(p.name for p in folder.iterdir()) if folder.is_dir() else []

    def alive(self, name: str) -> bool:
        return self.cgroup.child(name).alive()

    def up(self, names: list[str]) -> None:
        """Boot those of `names` that don't run; hosts that run already are left as they are."""
        hosts = [self.host(n) for n in dict.fromkeys(names)]
        setup()
        root = lab_root.build()
        with self._lock():
            (self.state / "hosts").mkdir(exist_ok=True)
            if not (self.state / "id_ed25519").exists():
                keygen(self.state / "id_ed25519", "ddtree-lab")
            new = [h for h in hosts if not self.alive(h.name)]
            try:
                self._boot(new, root)
            except BaseException:
                for host in new:
                    self._remove(host.name)
                self._write_ssh_files()
                raise
        for host in hosts:
            say(f"{host.name} {host.address} is ready")
        say(f"ssh -F {self.state}/ssh_config {hosts[0].name}")

    def _boot(self, hosts: list[LabHost], root: Path) -> None:
        for host in hosts:
            self.cgroup.child(host.name).kill()
            host.prepare(root)
        self._write_ssh_files()
        for host in hosts:
            launcher = [sys.executable, "-sE", str(Path(__file__).resolve()), "_launch", host.name]
            host.start(launcher, self.cgroup.child(host.name))
        for host in hosts:
            host.wait_ready(self.cgroup.child(host.name))

    def down(self, names: list[str]) -> None:
        """End hosts (none named: all) and remove every trace; no harm when nothing runs.

        Their disks are thrown away, so nothing is shut down: the kernel ends what is in the cgroup.
        """
        if names:
            with self._lock():
                for name in names:
                    self._remove(self.host(name).name)
                self._write_ssh_files()
        if not self.names() or not names:
            self.cgroup.kill()
            shutil.rmtree(self.state, ignore_errors=True)
            with contextlib.suppress(OSError):  # made by a launcher on a machine without systemd
                LOCKS.rmdir()

    def launch(self, name: str) -> int:
        return launch(self.host(name), lab_root.root_folder())

    def fault(self, name: str, fault: str) -> None:
        """Make the fake GPUs of a running host show a fault, or none."""
        host = self.host(name)
        known = [*faults(host.kind), "none"]
        if fault not in known:
            raise LabError(f"expected a fault of {name}: {', '.join(known)}; found {fault!r}")
        if host.ssh(fault_command(fault)).returncode != 0:
            raise LabError(f"expected {name} to run, found no answer; boot it: lab.py up {name}")

    def status(self) -> Iterator[str]:
        for name in self.names():
            host = self.host(name)
            state = "down"
            if self.alive(name):
                state = host.ssh("systemctl is-system-running").stdout.strip() or "no answer"
            yield f"{name:10} {host.address:14} {state}"

    def _remove(self, name: str) -> None:
        self.cgroup.child(name).kill()
        shutil.rmtree(self.host(name).folder, ignore_errors=True)

    def _write_ssh_files(self) -> None:
        hosts = [self.host(n) for n in self.names()]
        for file, text in (
            ("ssh_config", "".join(h.ssh_config() for h in hosts)),
            ("known_hosts", "".join(h.known_hosts() for h in hosts)),
        ):
            part = self.state / f"{file}.part"
            part.write_text(text)
            part.rename(self.state / file)

    @contextlib.contextmanager
    def _lock(self) -> Iterator[None]:
        self.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        with (self.state / "lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            yield


def say(message: str) -> None:
    print(f"lab: {message}", file=sys.stderr, flush=True)


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    commands.add_parser("setup")
    commands.add_parser("up").add_argument("names", nargs="*", default=list(DEFAULT_HOSTS))
    commands.add_parser("down").add_argument("names", nargs="*")
    commands.add_parser("status")
    commands.add_parser("_launch").add_argument("name")
    ssh = commands.add_parser("ssh")
    ssh.add_argument("name")
    ssh.add_argument("rest", nargs=argparse.REMAINDER)
    fault = commands.add_parser("fault")
    fault.add_argument("name")
    fault.add_argument("fault")
    options = parser.parse_args(arguments)
    os.environ["PATH"] = os.environ.get("PATH", "/usr/bin:/bin") + ":/usr/sbin:/sbin"
    try:
        return run(options)
    except LabError as error:
        say(str(error))
    except (subprocess.CalledProcessError, OSError) as error:
        say(f"{error}")
    return 1


def run(options: argparse.Namespace) -> int:
    lab = Lab()
    match options.command:
        case "setup":
            setup()
        case "up":
            lab.up(options.names)
        case "down":
            lab.down(options.names)
        case "status":
            print("\n".join(lab.status()) or "no hosts")
        case "_launch":
            return lab.launch(options.name)
        case "ssh":
            config = str(lab.state / "ssh_config")
            os.execvp("ssh", ["ssh", "-F", config, options.name, *options.rest])
        case "fault":
            lab.fault(options.name, options.fault)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
