"""Makes a venv see another Python's packages, with own copies of some: PY overlay.py VENV NAME...

Run by the Python whose packages are to be seen, with the standard library alone. The named
distributions are copied, so that a patch set changes the copy and never the owner's files.
"""

import shutil
import sys
import sysconfig
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path


def main() -> int:
    venv, names = Path(sys.argv[1]), sys.argv[2:]
    version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    site = venv / "lib" / version / "site-packages"
    if not site.is_dir():
        print(f"overlay: expected a venv of {version} in {venv}", file=sys.stderr)
        return 1
    (site / "system.pth").write_text("".join(f"{path}\n" for path in package_folders()))
    link_tools(venv / "bin")
    for name in names:
        try:
            count = copy(name, site)
        except PackageNotFoundError:
            print(f"overlay: expected {name} in {sys.executable}, found none", file=sys.stderr)
            return 1
        print(f"overlay: {name}, {count} files")
    return 0


def package_folders() -> list[str]:
    """Folders of sys.path that hold packages: all but this script's and the standard library's."""
    own = {str(Path(__file__).resolve().parent), ""}
    own |= {sysconfig.get_path("stdlib"), sysconfig.get_path("platstdlib")}
    found = [path for path in sys.path if path not in own and Path(path).is_dir()]
    return [path for path in found if not path.endswith("lib-dynload")]


def link_tools(folder: Path) -> None:
    """Links the tools beside the other Python (ninja, cmake) that compilation looks for."""
    for tool in sorted(Path(sys.executable).parent.iterdir()):
        own = tool.name.startswith(("python", "pip", "activate", "Activate"))
        if not own and tool.is_file() and not (folder / tool.name).exists():
            (folder / tool.name).symlink_to(tool)


def copy(name: str, site: Path) -> int:
    """Copies the files of a distribution that lie in its site-packages; returns their number."""
    count = 0
    for file in distribution(name).files or []:
        source = Path(str(file.locate()))
        if ".." in file.parts or not source.is_file() or "__pycache__" in file.parts:
            continue
        target = site / str(file)
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(source, target)
        count += 1
    return count


if __name__ == "__main__":
    sys.exit(main())
