"""Figures as SVG text: a record in, a picture out that scales, prints and follows the page's colours.

Text stays text and lines take ``currentColor``, so that one picture fits a light and a dark page. What the figures of
every page share is here: the canvas, the colours, and the way from matplotlib's SVG to a small one.
"""

import hashlib
import html
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure
from matplotlib.patches import PathPatch
from matplotlib.path import Path

from dgz.records import Record

COLORS = (
    "#3c84c4", "#cf4e38", "#5b8c3a", "#8a5fb0", "#c98a1b", "#2f9a93", "#b8548f", "#8b6f52", "#7d8794", "#a3a12c",
)  # fmt: skip
SEEN, UNSEEN = COLORS[:2]
_INK = "#123456"  # stands for the page's text colour until the SVG is written
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "dgz",  # the same record gives the same bytes
    "font.family": "sans-serif",
    "font.sans-serif": ["system-ui", "DejaVu Sans"],
    "font.size": 10,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.edgecolor": _INK,
    "axes.labelcolor": _INK,
    "text.color": _INK,
    "xtick.color": _INK,
    "ytick.color": _INK,
}


# --- What all figures share.
@contextmanager
def canvas(width: float, height: float) -> Iterator[tuple[Figure, Any, io.StringIO]]:
    """A figure in the house style; its SVG is in the buffer after the block."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot(), buffer
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def inline(buffer: io.StringIO, description: str) -> str:
    """The SVG of a canvas, ready to stand in a page or in a file: described, rounded, and without what is not drawn."""
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"<!--.*?-->\n?", "", svg, flags=re.DOTALL)
    svg = re.sub(r'<g id="(dots|crosses)">\s*<path d="([^"]*)"', _marked, svg)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # names of groups, which nothing refers to
    svg = re.sub(r"<[^>]*>", lambda tag: re.sub(r"(\.\d\d)\d+", r"\1", tag[0]), svg)  # of places, not of the text
    svg = re.sub(r"\s*\n\s*", "\n", svg)
    return _with_own_names(svg.replace("<svg", f'<svg role="img" aria-label="{html.escape(description)}"', 1))


def embedded(svg: str) -> str:
    """The same SVG for use within HTML, where namespaces go without saying: nothing on the page looks like a link."""
    svg = re.sub(r'\s+xmlns(?::xlink)?="[^"]*"', "", svg)
    return svg.replace("xlink:href=", "href=")


def _with_own_names(svg: str) -> str:
    """Give what is referred to a name of this picture: on a page with many, each must find its own."""
    mark = hashlib.sha256(svg.encode()).hexdigest()[:6]
    names = set(re.findall(r'\bid="([^"]+)"', svg))
    return re.sub(r'(id="|#)([A-Za-z]\w+)(?=[")])', lambda m: m[0] + f"-{mark}" if m[2] in names else m[0], svg)


def scatter(axes: Any, x: Sequence[float], y: Sequence[float], marks: str, **style: Any) -> None:
    """Draw points as ``dots`` or ``crosses``, all of them as one path: thousands take no more room than a photograph.

    To matplotlib they are lines without length; what they look like is written by :func:`inline`.
    """
    path = Path([place for place in zip(x, y, strict=True) for _ in range(2)], [Path.MOVETO, Path.LINETO] * len(x))
    path.should_simplify = False  # a line without length is just what it would leave out
    axes.add_patch(PathPatch(path, fill=False, capstyle="round", gid=marks, **style))


def _marked(found: re.Match[str]) -> str:
    """Lines without length as dots, which round ends make of them, or as crosses, four points wide."""
    places = re.findall(r"M (\S+) (\S+)", found[2])
    if found[1] == "dots":
        path = "".join(f"M{float(x):.1f} {float(y):.1f}h0" for x, y in places)
    else:
        path = "".join(f"M{float(x) - 2:.1f} {float(y) - 2:.1f}l4 4m0-4l-4 4" for x, y in places)
    return f'<g><path d="{path}"'


# --- Figures of a run.
def curve_figure(record: Record) -> str:
    """The seen–unseen curve: S over U for every balance between the two groups, and the point reported."""
    curve, scores = record.scores["curve"], record.scores
    with canvas(5.2, 4.0) as (_, axes, buffer):
        u, s = ([100 * value for value in curve[key]] for key in ("acc_unseen", "acc_seen"))
        axes.fill_between(u, s, color=SEEN, alpha=0.12, linewidth=0)
        axes.plot(u, s, color=SEEN, linewidth=2)
        axes.plot(100 * scores["acc_unseen"], 100 * scores["acc_seen"], "o", color=UNSEEN, markersize=8)
        axes.annotate(
            f"H {100 * scores['h']:.1f}",
            (100 * scores["acc_unseen"], 100 * scores["acc_seen"]),
            xytext=(-8, -8),
            textcoords="offset points",
            ha="right",
            va="top",
        )
        axes.set(xlabel="U: accuracy on unseen classes, %", ylabel="S: accuracy on seen classes, %")
        axes.set(xlim=(0, 101), ylim=(0, 101))
    return inline(buffer, f"Seen-unseen curve of {record.method}")


def per_class_figure(record: Record) -> str:
    """Accuracy of every class, best first, seen and unseen side by side."""
    unseen = {str(i) for i in record.unseen}
    accuracies = {c: a for c, a in record.scores["per_class"].items() if a is not None}
    groups = {
        "seen": sorted((a for c, a in accuracies.items() if c not in unseen), reverse=True),
        "unseen": sorted((a for c, a in accuracies.items() if c in unseen), reverse=True),
    }
    with canvas(5.2, 4.0) as (_, axes, buffer):
        start = 0
        for (label, values), color in zip(groups.items(), (SEEN, UNSEEN), strict=True):
            edges = [start + k for k in range(len(values) + 1)]
            percent = [100 * value for value in values]  # one outline for all: a path per class would be 100 times more
            axes.stairs(percent, edges, fill=True, color=color, label=f"{len(values)} {label}")
            start += len(values) + max(len(accuracies) // 40, 1)
        axes.set(ylabel="accuracy, %", xticks=[], ylim=(0, 100))
        axes.set_xlabel("classes, best first in each group")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.15), ncols=2, frameon=False)
    return inline(buffer, f"Accuracy per class of {record.method}")


def scale_figure(series: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str) -> str:
    """Lines over logarithmic axes: how a quantity grows with the size of a problem.

    Examples
    --------
    >>> svg = scale_figure({"seconds": [(10, 0.1), (1000, 9.0)]}, "samples", "seconds of an epoch")
    >>> svg.startswith("<svg")
    True
    """
    with canvas(5.2, 4.0) as (_, axes, buffer):
        for (label, points), color in zip(series.items(), COLORS, strict=False):
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, "o-", color=color, linewidth=2, label=label)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
        if len(series) > 1:
            axes.legend(frameon=False)
    return inline(buffer, f"{ylabel} against {xlabel}")
