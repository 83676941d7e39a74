"""The root file system that all lab hosts share: Debian bookworm, built once, kept in a cache.

Each host mounts it read-only under an overlay of its own, so a host's disk starts empty and costs
a few megabytes. Standard library only: the lab is used before any venv exists.
"""

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
from pathlib import Path

SUITE = "bookworm"
PACKAGES = (
    # a server's own
    "systemd", "systemd-sysv", "dbus", "libpam-systemd", "libnss-systemd", "openssh-server",
    "sudo", "iproute2", "procps", "kmod", "pciutils",
    # what the deploy may use without installing it
    "python3", "python3-venv", "ca-certificates", "curl", "patch",
)  # fmt: skip
MASKED_UNITS = (
    "apt-daily.timer", "apt-daily-upgrade.timer", "e2scrub_all.timer", "e2scrub_reap.service",
    "fstrim.timer", "dpkg-db-backup.timer", "getty.target",
)  # fmt: skip
BUNDLE = Path("etc/ssl/certs/ca-certificates.crt")
APT_SOURCES = Path("/etc/apt/sources.list.d/debian.sources")
LAYOUT = 1  # part of the cache's key: raise it when `_finish` changes


def cache_folder() -> Path:
    """Where roots are kept: DDTREE_LAB_CACHE, else ~/.cache/ddtree-lab."""
    home = os.environ.get("HOME") or "/root"
    return Path(os.environ.get("DDTREE_LAB_CACHE") or Path(home) / ".cache" / "ddtree-lab")


def root_folder() -> Path:
    """The root that belongs to this list of packages, built or not."""
    recipe = "\n".join((SUITE, str(LAYOUT), *PACKAGES, *MASKED_UNITS))
    return cache_folder() / f"root-{hashlib.sha256(recipe.encode()).hexdigest()[:12]}"


def build() -> Path:
    """Return the root, building it if the cache has none (one to two minutes).

    Two builds at once wait for each other; a build that dies leaves nothing that counts as built.

    Raises:
        subprocess.CalledProcessError: mmdebstrap failed; its own words are on stderr.
    """
    root = root_folder()
    root.parent.mkdir(parents=True, exist_ok=True)
    with (root.parent / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not root.exists():
            part = root.with_suffix(".part")
            shutil.rmtree(part, ignore_errors=True)
            _bootstrap(part)
            _finish(part)
            part.rename(root)
    return root


def _bootstrap(target: Path) -> None:
    command = ["mmdebstrap", "--quiet", "--variant=minbase", "--mode=root"]
    command += [f"--include={','.join(PACKAGES)}", "--dpkgopt=force-unsafe-io"]
    for option in ("Apt::Install-Recommends false", "Acquire::Retries 3"):
        name, value = option.split()
        command.append(f'--aptopt={name} "{value}"')
    for folder in ("doc", "man", "locale"):
        command.append(f"--dpkgopt=path-exclude=/usr/share/{folder}/*")
    command += [SUITE, str(target)]
    # the machine's own mirror, if it is one for this suite; mmdebstrap's default otherwise
    if APT_SOURCES.is_file() and SUITE in APT_SOURCES.read_text():
        command.append(str(APT_SOURCES))
    subprocess.run(command, stdin=subprocess.DEVNULL, check=True)


def _finish(root: Path) -> None:
    for name in ("ssh_host_rsa_key", "ssh_host_ecdsa_key", "ssh_host_ed25519_key"):
        for key in (root / "etc/ssh").glob(f"{name}*"):
            key.unlink()
    for name in ("etc/hostname", "etc/resolv.conf"):
        (root / name).unlink(missing_ok=True)
    for unit in MASKED_UNITS:
        (root / "etc/systemd/system" / unit).symlink_to("/dev/null")
    _trust_same_certificates(root)
    # uv carries its own list of authorities unless told otherwise; PAM gives this to every login
    with (root / "etc/environment").open("a") as environment:
        environment.write(f"SSL_CERT_FILE=/{BUNDLE}\n")
    # a second account, for deploys that are not root
    _chroot(root, "useradd", "--create-home", "--shell", "/bin/bash", "deploy")
    (root / "etc/sudoers.d/deploy").write_text("deploy ALL=(ALL) NOPASSWD:ALL\n")


def _trust_same_certificates(root: Path) -> None:
    """Add what this machine trusts beyond Debian's bundle: company networks often have one."""
    here = Path("/") / BUNDLE
    if not here.is_file():
        return
    known = set(_certificates((root / BUNDLE).read_text()))
    extra = [c for c in dict.fromkeys(_certificates(here.read_text())) if c not in known]
    for number, certificate in enumerate(extra):
        target = root / f"usr/local/share/ca-certificates/lab-{number}.crt"
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(certificate + "\n")
    if extra:
        _chroot(root, "update-ca-certificates")


def _certificates(bundle: str) -> list[str]:
    pattern = r"-----BEGIN CERTIFICATE-----\s.*?-----END CERTIFICATE-----"
    found = re.findall(pattern, bundle, re.DOTALL)
    return ["\n".join(line.strip() for line in c.splitlines()) for c in found]


def _chroot(root: Path, *command: str) -> None:
    subprocess.run(
        ["chroot", str(root), *command],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        check=True,
    )
