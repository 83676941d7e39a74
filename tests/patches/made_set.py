"""A small release and patch sets for it, made by hand, so that every state can be set up."""

import json
from pathlib import Path

from operations import patch_set

A, B = "engine/a.py", "engine/sub/b.py"
RELEASE = {
    A: "import os\n\n\ndef first():\n    return 1\n\n\ndef second():\n    return 2\n",
    B: "x = 1\ny = 2\nz = 3",  # no newline at its end
    "engine/c.py": "untouched = True\n",
    "engine-1.0.dist-info/METADATA": "Name: engine\nVersion: 1.0\n",
}
PATCHED = {A: RELEASE[A].replace("return 2", "return 22"), B: RELEASE[B].replace("z = 3", "z = 33")}
NEW = {"engine_tree/__init__.py": "made = 'by the set'\n", "engine_tree/deep/mod.py": "n = 1\n"}


def make_venv(root: Path, version: str = "1.0") -> Path:
    """A venv's files with the release in it."""
    venv = root / "venv"
    for path, text in RELEASE.items():
        target = venv / "lib/python3.12/site-packages" / path.replace("-1.0.", f"-{version}.")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)
    return venv


def make_set(root: Path, patched=PATCHED, new=NEW, *, required=True) -> Path:
    """A set's folder: one patch over the files of `patched`, and `new` added."""
    tools = patch_set.applier("patchset")
    root.mkdir(parents=True, exist_ok=True)
    text = "Why this patch is there.\n\n"
    text += "".join(tools.unified(p, RELEASE[p], now) for p, now in patched.items())
    (root / "0001-made.patch").write_text(text)
    for path, content in new.items():
        (root / "new" / path).parent.mkdir(parents=True, exist_ok=True)
        (root / "new" / path).write_text(content)
    sha = tools.sha256
    document = {
        "name": "made",
        "distribution": "engine",
        "version": "1.0",
        "patches": [
            {
                "file": "0001-made.patch",
                "sha256": sha(text.encode()),
                "what": "makes it so",
                "upstream": "not sent",
                "drop_when": "never",
                "required": required,
                "edits": [
                    {"path": p, "before": sha(RELEASE[p].encode()), "after": sha(now.encode())}
                    for p, now in patched.items()
                ],
            }
        ],
        "new": {path: sha(content.encode()) for path, content in new.items()},
    }
    (root / "series.json").write_text(json.dumps(document))
    return root


def snapshot(folder: Path) -> dict[str, bytes]:
    """Every file below a folder with its content."""
    files = (p for p in sorted(folder.rglob("*")) if p.is_file())
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in files}
