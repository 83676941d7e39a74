#!/usr/bin/env python3
"""How fast models arrive: hostkit fetch against `hf download` and `curl`; hashing; the overlap.

    python tests/bench/fetch.py [--shards 4] [--shard-mb 256] [--rounds 3] [--json FILE]

All of it on this machine: the Hub emulator of tests/models runs as a process of its own and serves
made-up shards over loopback HTTP. The ways are interleaved within each round, so that other work
on the machine hits all of them alike; the table shows the median and the best of the rounds.
"""

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT), str(ROOT / "tests" / "models")]

from hub_emulator import make_model  # noqa: E402

from tests.uv_program import uv_program  # noqa: E402

SLOW = 6e6  # bytes a second of each connection while the overlap is measured
BIN = Path(sys.executable).parent


class Bench:
    """One repository, one scratch folder, and the ways to bring the one into the other."""

    def __init__(self, folder: Path, shards: int, shard_mb: int) -> None:
        self.folder = folder
        self.made = make_model(folder / "made", shards, shard_mb << 20)
        self.size = sum(p.stat().st_size for p in self.made.rglob("*") if p.is_file())
        self.first = next(self.made.glob("*.safetensors"))
        self.environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith("HF_")},
            "PYTHONPATH": str(ROOT / "files"),
            "HF_HOME": str(folder / "hf"),
            "HF_HUB_DISABLE_PROGRESS_BARS": "1",
        }

    @contextmanager
    def hub(self, rate: float = 0.0) -> Iterator[dict[str, str]]:
        """The emulator in a process of its own; gives its URL, repository and commit."""
        script = ROOT / "tests" / "models" / "hub_emulator.py"
        command = [sys.executable, str(script), "--folder", str(self.made), "--rate", str(rate)]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield json.loads(process.stdout.readline())
            finally:
                process.kill()

    def hostkit(self, hub: dict[str, str], target: Path) -> None:
        """All files, verified: what a deploy runs."""
        job = {
            "key": "bench",
            "source": "bench",
            "kind": "hub",
            "repo": hub["repo"],
            "revision": hub["commit"],
            "endpoint": hub["url"],
            "directory": str(target / "model"),
            "stamp": str(target / "stamp.json"),
            "status": str(target / "status.json"),
            "margin_bytes": 1 << 20,
        }
        (target / "job.json").write_text(json.dumps(job))
        self.call([sys.executable, "-m", "hostkit", "fetch", "--job", str(target / "job.json")])

    def hf(self, hub: dict[str, str], target: Path) -> None:
        """All files, not verified: huggingface_hub's own command."""
        command = [str(BIN / "hf"), "download", hub["repo"], "--revision", hub["commit"]]
        self.call([*command, "--local-dir", str(target / "model")], HF_ENDPOINT=hub["url"])

    def curl(self, hub: dict[str, str], target: Path) -> None:
        """One shard over one connection."""
        url = f"{hub['url']}/{hub['repo']}/resolve/{hub['commit']}/{self.first.name}"
        self.call(["curl", "--silent", "--fail", "--location", "-o", str(target / "f"), url])

    def call(self, command: list[str], **environment: str) -> None:
        subprocess.run(
            command,
            check=True,
            stdout=subprocess.DEVNULL,
            env={**self.environment, **environment},
        )

    def timed(self, work: Callable[[Path], None]) -> float:
        """Seconds of `work` in an empty folder, with nothing of earlier work left to write."""
        target = self.folder / "target"
        shutil.rmtree(target, ignore_errors=True)
        target.mkdir()
        os.sync()
        began = time.monotonic()
        work(target)
        return time.monotonic() - began


def rates(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """MB/s of each way, a value a round."""
    sizes = {"hostkit fetch": bench.size, "hf download": bench.size}
    sizes["curl, one file"] = bench.first.stat().st_size
    found: dict[str, list[float]] = {name: [] for name in sizes}
    with bench.hub() as hub:
        ways = {"hostkit fetch": bench.hostkit, "hf download": bench.hf}
        ways["curl, one file"] = bench.curl
        for number in range(rounds):
            for name in rotated(list(ways), number):
                seconds = bench.timed(lambda target, way=ways[name]: way(hub, target))
                found[name].append(sizes[name] / seconds / 1e6)
                print(f"  round {number + 1}: {name} {found[name][-1]:.0f} MB/s", file=sys.stderr)
    return found


def hashing(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """MB/s of hashing files that lie in the page cache."""
    from hostkit.verify import FileInfo, sha256_of, threads, write_manifest

    files = [p for p in bench.made.rglob("*") if p.is_file()]
    manifest = {
        p.relative_to(bench.made).as_posix(): FileInfo(sha256_of(p), p.stat().st_size)
        for p in files
    }
    path = bench.folder / "manifest.json"
    write_manifest(path, manifest)
    verify = [sys.executable, "-m", "hostkit", "verify", "--directory", str(bench.made)]
    ways = {
        "hostkit verify": [*verify, "--manifest", str(path)],
        "sha256sum, parallel": [
            "sh",
            "-c",
            f"find {bench.made} -type f -print0 | xargs -0 -n 1 -P {threads()} sha256sum",
        ],
    }
    found: dict[str, list[float]] = {name: [] for name in ways}
    for number in range(rounds):
        for name in rotated(list(ways), number):
            seconds = bench.timed(lambda _, command=ways[name]: bench.call(command))
            found[name].append(bench.size / seconds / 1e6)
            print(f"  round {number + 1}: {name} {found[name][-1]:.0f} MB/s", file=sys.stderr)
    return found


def overlap(bench: Bench, rounds: int) -> dict[str, list[float]]:
    """Seconds of a slow download and of the reference stack's install, apart and beside."""
    found: dict[str, list[float]] = {"one after the other": [], "side by side": []}
    with bench.hub(SLOW) as hub:
        for number in range(rounds):
            for name in rotated(list(found), number):
                work = beside if name == "side by side" else apart
                found[name].append(bench.timed(lambda t, w=work: w(bench, hub, t)))
                print(f"  round {number + 1}: {name} {found[name][-1]:.1f} s", file=sys.stderr)
    return found


def apart(bench: Bench, hub: dict[str, str], target: Path) -> None:
    bench.hostkit(hub, target)
    install(bench, target)


def beside(bench: Bench, hub: dict[str, str], target: Path) -> None:
    import threading

    download = threading.Thread(target=bench.hostkit, args=(hub, target))
    download.start()
    install(bench, target)
    download.join()


def install(bench: Bench, target: Path) -> None:
    """The reference engine's venv from its lock, with an empty uv cache."""
    uv = uv_program()
    cache = {"UV_CACHE_DIR": str(target / "cache")}
    lock = ROOT / "files" / "refserver" / "requirements.lock"
    bench.call([uv, "venv", "--quiet", "--python", sys.executable, str(target / "venv")], **cache)
    command = [uv, "pip", "install", "--quiet", "--python", str(target / "venv" / "bin" / "python")]
    bench.call([*command, "-r", str(lock)], **cache)


def rotated(names: list[str], by: int) -> list[str]:
    """Another way goes first in each round."""
    by %= len(names)
    return names[by:] + names[:by]


def machine() -> str:
    """The machine in one line."""
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next(
        (line.split(":")[1].strip() for line in info if line.startswith("model name")), "?"
    )
    load = os.getloadavg()[0]
    cores = len(os.sched_getaffinity(0))
    return (
        f"{cores} cores of {model}, Python {platform.python_version()}, load {load:.1f} at the end"
    )


def table(title: str, unit: str, found: dict[str, list[float]], best: Callable[..., float]) -> str:
    lines = [f"{title} ({unit})", f"  {'way':<22} {'median':>8} {'best':>8}"]
    for name, values in found.items():
        lines.append(f"  {name:<22} {statistics.median(values):>8.1f} {best(values):>8.1f}")
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--shards", type=int, default=4)
    parser.add_argument("--shard-mb", type=int, default=256)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--only", choices=("fetch", "hash", "overlap"), help="one table")
    parser.add_argument("--json", type=Path, help="also write all values there")
    args = parser.parse_args()
    sys.path.insert(0, str(ROOT / "files"))
    with tempfile.TemporaryDirectory(prefix="ddtree-fetch-") as folder:
        bench = Bench(Path(folder), args.shards, args.shard_mb)
        parts = {"fetch": rates, "hash": hashing, "overlap": overlap}
        chosen = [args.only] if args.only else list(parts)
        found: dict[str, Any] = {name: parts[name](bench, args.rounds) for name in chosen}
    found |= {"bytes": bench.size, "machine": machine()}
    print(f"{bench.size / 1e9:.2f} GB in {args.shards} shards, {args.rounds} rounds")
    print(found["machine"])
    titles = {
        "fetch": ("fetch rate", "MB/s", max),
        "hash": ("hashing", "MB/s", max),
        "overlap": ("download and stack install", "s", min),
    }
    for name in chosen:
        title, unit, best = titles[name]
        print(table(title, unit, found[name], best))
    if args.json:
        args.json.write_text(json.dumps(found, indent=1) + "\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
