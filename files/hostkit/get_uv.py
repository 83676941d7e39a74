"""Fetches the pinned uv where a host has none: python3 get_uv.py FOLDER [INDEX_URL | WHEEL_FOLDER].

Runs with the host's own Python (3.8 or newer), before anything of ours is installed, so it needs
the standard library alone. The wheel is checked against the sha256 in uv.json.
"""

import hashlib
import json
import os
import platform
import re
import sys
import urllib.parse
import urllib.request
import zipfile
from pathlib import Path

INDEX = "https://pypi.org/simple"
TIMEOUT_S = 60


def main() -> int:
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if sys.argv[1:] in (["--help"], ["-h"]) else 1
    folder = Path(sys.argv[1])
    source = sys.argv[2] if len(sys.argv) > 2 and sys.argv[2] else INDEX
    pins = json.loads((Path(__file__).resolve().parent / "uv.json").read_text())
    wheel = pins["wheels"].get(platform.machine())
    if wheel is None:
        known = ", ".join(sorted(pins["wheels"]))
        return fail(f"expected a machine of {known}, found {platform.machine()}")
    try:
        data = read_wheel(source, wheel["file"])
    except (OSError, ValueError) as error:
        return fail(f"uv can't be fetched from {source} ({error}); is the index reachable?")
    found = hashlib.sha256(data).hexdigest()
    if found != wheel["sha256"]:
        return fail(f"{wheel['file']}: expected sha256 {wheel['sha256']}, found {found}")
    install(data, folder)
    print(f"uv {pins['version']} in {folder}")
    return 0


def read_wheel(source: str, name: str) -> bytes:
    """The bytes of a wheel from a package index, or from a folder of wheels."""
    if source.startswith("/"):
        return (Path(source) / name).read_bytes()
    page_url = source.rstrip("/") + "/uv/"
    with urllib.request.urlopen(page_url, timeout=TIMEOUT_S) as answer:
        page = answer.read().decode("utf-8", "replace")
    link = re.search(rf'href="([^"#]*{re.escape(name)})[#"]', page)
    if link is None:
        raise ValueError(f"no {name} there")
    with urllib.request.urlopen(
        urllib.parse.urljoin(page_url, link.group(1)), timeout=600
    ) as answer:
        return answer.read()


def install(data: bytes, folder: Path) -> None:
    """Writes the program beside its place, then renames: a kill leaves no half program."""
    folder.mkdir(parents=True, exist_ok=True)
    part = folder / (f"wheel.{os.getpid()}")
    part.write_bytes(data)
    with zipfile.ZipFile(part) as wheel:
        member = next(n for n in wheel.namelist() if n.endswith(".data/scripts/uv"))
        program = folder / "uv.part"
        program.write_bytes(wheel.read(member))
    part.unlink()
    program.chmod(0o755)
    program.rename(folder / "uv")


def fail(message: str) -> int:
    print("get_uv: " + message, file=sys.stderr)
    return 1


if __name__ == "__main__":
    sys.exit(main())
