"""Proves that a venv holds what its lock says: VENV/bin/python pins.py LOCK [--cuda 13.0].

Runs inside the venv with the standard library alone; exit code 0 of an installer is no proof (a
resolver that backs down to an old release exits 0 too). `--cuda` also imports torch and compares
the CUDA release that it was built for, and that all FlashInfer packages have one version.
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, distributions, version
from pathlib import Path

PIN = re.compile(r"^([A-Za-z0-9][\w.-]*)(?:\[[^\]]*\])?==([^\s;\\]+)(?:\s*;\s*([^\\]+))?")

REMEDY = "remove the venv and deploy again"


def main() -> int:
    lock = Path(sys.argv[1])
    faults = wrong_pins(lock.read_text())
    if "--cuda" in sys.argv:
        faults += wrong_cuda(sys.argv[sys.argv.index("--cuda") + 1])
    for fault in faults:
        print(f"pins: {fault}", file=sys.stderr)
    if not faults:
        print(f"pins: {len(pins(lock.read_text()))} packages as locked")
    return 1 if faults else 0


def pins(text: str) -> list[tuple[str, str, str]]:
    """(name, version, environment marker or "") of each pinned requirement."""
    found = (PIN.match(line) for line in text.splitlines())
    return [(m[1], m[2], (m[3] or "").strip()) for m in found if m]


def wrong_pins(text: str) -> list[str]:
    """One line for each package that is absent or of another version than pinned.

    A lock for several Pythons pins a name more than once, each time with a marker: any of these
    versions is right, and a name that has only pins with markers may be for another platform.
    """
    allowed: dict[str, set[str]] = {}
    needed = set()
    for name, wanted, marker in pins(text):
        allowed.setdefault(name, set()).add(wanted.split("+")[0])
        if not marker:
            needed.add(name)
    faults = []
    for name, versions in allowed.items():
        try:
            found = version(name).split("+")[0]
        except PackageNotFoundError:
            found = "none"
        if found not in versions and (found != "none" or name in needed):
            wanted = " or ".join(sorted(versions))
            faults.append(f"{name}: expected {wanted}, found {found}; {REMEDY}")
    return faults


def wrong_cuda(wanted: str) -> list[str]:
    import torch

    faults = []
    if torch.version.cuda != wanted:
        faults.append(f"torch: expected a build for CUDA {wanted}, found {torch.version.cuda}")
    flashinfer = {
        d.metadata["Name"]: d.version.split("+")[0]
        for d in distributions()
        if d.metadata["Name"].lower().startswith("flashinfer")
    }
    if len(set(flashinfer.values())) > 1:
        faults.append(f"FlashInfer: expected one version of all its packages, found {flashinfer}")
    return faults


if __name__ == "__main__":
    sys.exit(main())
