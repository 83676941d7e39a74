"""What a run costs when nothing is to do: remote commands a host, and seconds, over SSH.

    python tests/bench/settled_run.py [--hosts 1 2 8] [--rounds 5] [--keep]

Boots lab hosts, deploys to them, and repeats `pyinfra ... deploy.py -y`. Commands are counted on
the hosts, in sshd's own log. Runs with TCP_NODELAY (as shipped) and without it take turns, so that
a drift of the machine falls on both. Target: at most 12 commands a host.
"""

from __future__ import annotations

import argparse
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LAB = ROOT / "tests/lab/lab.py"
NAMES = [f"{kind}-{letter}" for letter in "abcd" for kind in ("b300", "ct200")]
TARGET = 12
FIRST_PORT = 31000
INVENTORY = """\
import runpy
_lab = runpy.run_path({lab!r})
def _hosts(group, names):
    wanted = _lab[group][0][0][1]["wanted"]
    return [(n, {{"wanted": {{**wanted, "port": p}}}}) for n, p in names], _lab["_ssh"]
B300 = _hosts("B300", {b300!r})
CT200 = _hosts("CT200", {ct200!r})
"""
# pyinfra's own program, with the project's tuning of the connection left out
UNTUNED = """\
import sys, pyinfra_cli
sys.path.insert(0, "."); sys.argv[0] = "pyinfra"
from operations import connection
connection.tune = lambda host: None
from pyinfra_cli.main import main
main()
"""


@dataclass(frozen=True)
class Cost:
    """One settled run: wall-clock seconds, and commands that each host was sent."""

    seconds: float
    commands: dict[str, int]


class Bench:
    """A lab of this benchmark's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        lab = {"STATE": "/var/tmp/ddtree-lab-bench", "NET": "80", "PORT": str(FIRST_PORT)}
        self.environment = {**os.environ, **{f"DDTREE_LAB_{k}": v for k, v in lab.items()}}

    def lab(self, *arguments: str) -> str:
        return self._output([sys.executable, str(LAB), *arguments])

    def inventory(self, names: list[str]) -> str:
        """An inventory file of these hosts; a one-host run keeps the group of the other empty."""
        ports = {n: FIRST_PORT + 10 * i for i, n in enumerate(NAMES)}
        groups = {
            kind: [(n, ports[n]) for n in names if n.startswith(kind)] for kind in ("b300", "ct200")
        }
        path = self.folder / f"lab{len(names)}.py"
        path.write_text(INVENTORY.format(lab=str(ROOT / "inventories/lab.py"), **groups))
        return str(path)

    def deploy(self, inventory: str, tuned: bool = True) -> float:
        """Seconds of one `-y` run, from the program's start to its end."""
        pyinfra = [str(Path(sys.executable).with_name("pyinfra"))]
        program = pyinfra if tuned else [sys.executable, "-c", UNTUNED]
        began = time.monotonic()
        self._output([*program, inventory, "deploy.py", "-y"])
        return time.monotonic() - began

    def settled(self, names: list[str], inventory: str, tuned: bool) -> Cost:
        before = {name: self.commands(name) for name in names}
        seconds = self.deploy(inventory, tuned)
        return Cost(seconds, {n: self.commands(n) - before[n] - 1 for n in names})

    def commands(self, name: str) -> int:
        """Commands and file transfers that the host's sshd has started, this question included."""
        log = self.lab("ssh", name, "journalctl -q -t sshd -o cat | grep -c 'Starting session:'")
        return int(log)

    def _output(self, command: list[str]) -> str:
        done = subprocess.run(
            command,
            cwd=ROOT,
            env=self.environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )
        if done.returncode != 0:
            sys.exit(f"{' '.join(command[:4])}: exit {done.returncode}\n{done.stdout}{done.stderr}")
        return done.stdout


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--hosts", type=int, nargs="+", default=[1, 2, 8], metavar="N")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--keep", action="store_true", help="leave the lab running afterwards")
    options = parser.parse_args()
    counts = sorted(set(options.hosts))
    if not 1 <= counts[0] <= counts[-1] <= len(NAMES) or options.rounds < 1:
        parser.error(f"expected 1 to {len(NAMES)} hosts and at least 1 round")
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(Path(folder))
        try:
            measure(bench, counts, options.rounds)
        finally:
            if not options.keep:
                bench.lab("down")


def measure(bench: Bench, counts: list[int], rounds: int) -> None:
    print(machine())
    names = NAMES[: counts[-1]]
    bench.lab("up", *names)
    took = bench.deploy(bench.inventory(names))
    print(f"first deploy to {len(names)} hosts: {took:.0f} s\n")
    print(f"{'hosts':>5}  {'TCP_NODELAY':11}  {'commands a host':>15}  {'seconds':>7}  min - max")
    for count in counts:
        chosen = NAMES[:count]
        inventory = bench.inventory(chosen)
        costs: dict[bool, list[Cost]] = {True: [], False: []}
        for _ in range(rounds):
            for tuned in (True, False):
                costs[tuned].append(bench.settled(chosen, inventory, tuned))
        for tuned, runs in costs.items():
            print(row(count, tuned, runs), flush=True)
    print(f"\nload average afterwards: {os.getloadavg()[0]:.1f}")


def row(count: int, tuned: bool, runs: list[Cost]) -> str:
    seconds = [run.seconds for run in runs]
    most = max(n for run in runs for n in run.commands.values())
    mark = "" if most <= TARGET else f"  (more than {TARGET})"
    spread = f"{min(seconds):.2f} - {max(seconds):.2f}"
    state = "on" if tuned else "off"
    return f"{count:5}  {state:11}  {most:15}  {statistics.median(seconds):7.2f}  {spread}{mark}"


def machine() -> str:
    model = re.search(r"^model name\s*: (.*)$", Path("/proc/cpuinfo").read_text(), re.MULTILINE)
    cpu = model[1] if model else platform.processor() or "unknown CPU"
    load = os.getloadavg()[0]
    return f"{cpu}, {os.cpu_count()} CPUs, Linux {platform.release()}, load average {load:.1f}"


if __name__ == "__main__":
    main()
