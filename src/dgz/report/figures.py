"""Figures as SVG text: a record in, a picture out that scales, prints and follows the page's colours.

Text stays text and lines take ``currentColor``, so that one picture fits a light and a dark page.
"""

import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import matplotlib as mpl
from matplotlib.figure import Figure

from dgz.records import Record

SEEN, UNSEEN = "#3c84c4", "#cf4e38"
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


@contextmanager
def _canvas(width: float, height: float) -> Iterator[tuple[Figure, Any, io.StringIO]]:
    """A figure in the house style; its SVG is in the buffer after the block."""
    buffer = io.StringIO()
    with mpl.rc_context(_STYLE):
        figure = Figure(figsize=(width, height), layout="constrained")
        yield figure, figure.add_subplot(), buffer
        figure.savefig(buffer, format="svg", transparent=True, metadata={"Date": None, "Creator": None})


def _inline(buffer: io.StringIO, description: str) -> str:
    svg = buffer.getvalue()
    svg = svg[svg.index("<svg") :].replace(_INK, "currentColor")
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    return svg.replace("<svg", f'<svg role="img" aria-label="{description}"', 1)


def curve_figure(record: Record) -> str:
    """The seen–unseen curve: S over U for every balance between the two groups, and the point reported."""
    curve, scores = record.scores["curve"], record.scores
    with _canvas(5.2, 4.0) as (_, axes, buffer):
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
    return _inline(buffer, f"Seen-unseen curve of {record.method}")


def per_class_figure(record: Record) -> str:
    """Accuracy of every class, best first, seen and unseen side by side."""
    unseen = {str(i) for i in record.unseen}
    accuracies = {c: a for c, a in record.scores["per_class"].items() if a is not None}
    groups = {
        "seen": sorted((a for c, a in accuracies.items() if c not in unseen), reverse=True),
        "unseen": sorted((a for c, a in accuracies.items() if c in unseen), reverse=True),
    }
    with _canvas(5.2, 4.0) as (_, axes, buffer):
        start = 0
        for (label, values), color in zip(groups.items(), (SEEN, UNSEEN), strict=True):
            places = range(start, start + len(values))
            axes.bar(places, [100 * value for value in values], width=1.0, color=color, label=f"{len(values)} {label}")
            start += len(values) + max(len(accuracies) // 40, 1)
        axes.set(ylabel="accuracy, %", xticks=[], ylim=(0, 100))
        axes.set_xlabel("classes, best first in each group")
        axes.legend(loc="upper center", bbox_to_anchor=(0.5, 1.15), ncols=2, frameon=False)
    return _inline(buffer, f"Accuracy per class of {record.method}")


def scale_figure(series: Mapping[str, Sequence[tuple[float, float]]], xlabel: str, ylabel: str) -> str:
    """Lines over logarithmic axes: how a quantity grows with the size of a problem.

    Examples
    --------
    >>> svg = scale_figure({"seconds": [(10, 0.1), (1000, 9.0)]}, "samples", "seconds of an epoch")
    >>> svg.startswith("<svg")
    True
    """
    colors = (SEEN, UNSEEN, "#5b8c3a", "#8a5fb0")
    with _canvas(5.2, 4.0) as (_, axes, buffer):
        for (label, points), color in zip(series.items(), colors, strict=False):
            x, y = zip(*sorted(points), strict=True)
            axes.plot(x, y, "o-", color=color, linewidth=2, label=label)
        axes.set(xscale="log", yscale="log", xlabel=xlabel, ylabel=ylabel)
        if len(series) > 1:
            axes.legend(frameon=False)
    return _inline(buffer, f"{ylabel} against {xlabel}")
