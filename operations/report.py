"""Benchmark results -> one static HTML page that needs no network.

    python -m operations.report A.json [B.json ...] [--out report.html] [--llmd out.yaml]

Several results (groups) come on one page, side by side.
"""

from __future__ import annotations

import argparse
import signal
import sys
from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined, select_autoescape

from operations.report_llmd import write_llmd
from operations.report_table import print_table
from operations.report_view import page
from operations.results import BenchResult, ResultError, read_result

TEMPLATES = Path(__file__).parent.parent / "templates"


def render_report(results: Sequence[BenchResult]) -> str:
    """The page as HTML text; the same results give the same bytes."""
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=select_autoescape(["html.j2"]),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template("report.html.j2").render(page=page(results))


def write_report(results: Sequence[BenchResult], path: Path) -> None:
    """Write the page of ``results`` to ``path``; folders are made, the file appears whole."""
    path.parent.mkdir(parents=True, exist_ok=True)
    part = path.with_name(path.name + ".part")
    part.write_text(render_report(results), encoding="utf-8")
    part.replace(path)


def main(argv: Sequence[str] | None = None) -> int:
    """Command line; 0, or 1 with one line on stderr."""
    parser = argparse.ArgumentParser(
        prog="python -m operations.report",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("results", nargs="+", type=Path, metavar="RESULT.json")
    parser.add_argument(
        "--out",
        type=Path,
        default=Path("report.html"),
        metavar="FILE.html",
        help="the page (default %(default)s)",
    )
    parser.add_argument("--llmd", type=Path, metavar="FILE.yaml", help="llm-d benchmark report")
    given = parser.parse_args(argv)
    try:
        results = [read_result(path) for path in given.results]
    except ResultError as error:
        print(error, file=sys.stderr)
        return 1
    write_report(results, given.out)
    for result in results:
        print_table(result)
    print(f"report: {given.out}")
    if given.llmd:
        files = write_llmd(results, given.llmd)
        print("llm-d benchmark report:", *files, sep="\n  ")
    return 0


if __name__ == "__main__":
    signal.signal(signal.SIGPIPE, signal.SIG_DFL)  # `... | head` ends it without a word
    sys.exit(main())
