"""Figures as inline SVG whose colours are CSS variables.

matplotlib draws with the placeholder colours of :data:`INKS`; :func:`svg` turns them into
``var(--name)``, so that one figure serves the light and the dark page. Text stays text in the
page's own font.
"""

from __future__ import annotations

import io
import re
from collections.abc import Mapping, Sequence
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

TREES = ("tree1", "tree2", "tree3", "tree4", "tree5")
NAMES = ("ink", "soft", "rule", "panel", "ar", "chain", "chain2", *TREES)
INKS: Mapping[str, str] = {name: f"#01{i:02x}f1" for i, name in enumerate(NAMES)}

SIZE = (4.9, 3.3)
"""Inches of 72 points: about 350 CSS pixels, so that text keeps its size on a phone."""

STYLE: Any = {
    "svg.fonttype": "none",
    "svg.hashsalt": "ddtree",
    "font.size": 10.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": INKS["soft"],
    "axes.labelcolor": INKS["soft"],
    "axes.labelsize": 10.5,
    "axes.grid": True,
    "axes.axisbelow": True,
    "grid.color": INKS["rule"],
    "grid.linewidth": 0.8,
    "text.color": INKS["ink"],
    "xtick.color": INKS["soft"],
    "ytick.color": INKS["soft"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "lines.linewidth": 2.2,
    "lines.markersize": 6,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
}

styled = mpl.rc_context(STYLE)
"""Decorates a function that draws a figure in the page's style."""


def new_axes(size: tuple[float, float] = SIZE) -> tuple[Figure, Axes]:
    """An empty figure of ``size`` inches; the caller is decorated with :data:`styled`."""
    figure = Figure(figsize=size, layout="constrained")
    return figure, figure.subplots()


def arm_axis(axes: Axes, names: Sequence[str]) -> None:
    """A vertical axis with a row for each arm, the first on top."""
    axes.set_yticks(range(len(names)), names)
    axes.tick_params(axis="y", labelcolor=INKS["ink"])
    axes.grid(axis="y", visible=False)
    axes.set_ylim(len(names) - 0.4, -0.6)


def legend(axes: Axes, columns: int = 4) -> None:
    """The legend in a line above the axes, where it hides no point."""
    axes.figure.legend(
        *axes.get_legend_handles_labels(),
        loc="outside upper left",
        ncols=columns,
        frameon=False,
        handlelength=1.1,
        columnspacing=1.1,
        handletextpad=0.5,
        fontsize=10,
    )


def svg(figure: Figure, name: str, title: str) -> str:
    """The figure as an ``<svg>`` element, its ids prefixed by ``name`` (unique in the page)."""
    out = io.StringIO()
    figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
    text = out.getvalue()
    text = text[text.index("<svg") :]
    text = re.sub(r"<defs>\s*<style.*?</style>\s*</defs>", "", text, flags=re.DOTALL)
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r' (width|height)="[\d.]+pt"', "", text, count=2)
    text = re.sub(r'\bid="', f'id="{name}-', text)
    text = re.sub(r'(href="|url\()#', rf"\1#{name}-", text)
    text = re.sub(r"font: ([\d.]+px) [^;\"]*", r"font: \1 var(--sans)", text)
    for ink, colour in INKS.items():
        text = text.replace(colour, f"var(--{ink})")
    label = f'<svg class="figure" role="img" aria-label="{title}" '
    return label + text[len("<svg ") :].strip()
