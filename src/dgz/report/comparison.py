"""Methods side by side: an item's finished runs in; their ordering, and accuracy against time, out."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from dgz.paper.spec import COMPARED, Spec
from dgz.report.elements import Element, Figures, Panel, Table
from dgz.report.figures import COLORS, canvas, embedded, inline
from dgz.report.page import MEANS_NOTE
from dgz.report.paper_runs import Part
from dgz.report.paper_tables import (
    NOTHING,
    heading,
    mean_text,
    oracle_table,
    picked_on_folds,
    seeds_text,
    training_seconds,
    validation_table,
    values_of,
)

_ORDER_NOTE = (
    "In the order of H. Seconds are those of training one model, on the device above; closed forms use its processor "
    "alone, and runs that are marked as beside other work do not count. Parameters are all numbers that are learned "
    "and used after training."
)
_PARETO_NOTE = (
    "Each dot is a method: mean H over seeds by the rule last, with bars of one sample standard deviation, over mean "
    "training seconds; one whose time is not known is left out. The line is the best H to be had for a time; where it "
    "rises, no other method beats both."
)
# Of labels, in points: width of a letter, height, half a dot, and distances from it, all but the first by a line.
_LETTER, _LINE, _DOT = 5.2, 11.0, 4.0
_GAPS = (7.0, 13.0, 20.0, 28.0, 37.0, 47.0)
_SIDES = ((1, 0), (-1, 0), (1, 1), (1, -1), (-1, 1), (-1, -1), (0, 1), (0, -1))  # of a dot, as they are tried
_ENDS = {1: "left", 0: "center", -1: "right"}  # of the label, that is towards the dot
Box = tuple[float, float, float, float]  # left, bottom, right, top


@dataclass(frozen=True, kw_only=True)
class Standing:
    """How a method has done so far.

    Attributes
    ----------
    method : str
    mean, std : dict
        Mean and sample standard deviation of each score over finished runs, as fractions; that of a single run is None.
    seconds : float, optional
        Mean training time.
    n_parameters : int, optional
    n_finished, n_planned : int
        Runs.
    validation : dict, optional
        Mean of each score at the epoch that leak-free folds choose; None without folds, or before their runs are done.
    """

    method: str
    mean: dict[str, float]
    std: dict[str, float | None]
    seconds: float | None
    n_parameters: int | None
    n_finished: int
    n_planned: int
    validation: dict[str, float] | None


def standings(spec: Spec, part: Part) -> list[Standing]:
    """All methods by their mean H, best first; of equal ones in the order of the spec, those not run yet last."""
    found = []
    for row in spec.rows:
        records = part.rows.get(row.name, [])
        scores = {key: values for key in spec.columns if (values := values_of(records, key))}
        seconds = [value for record in records if (value := training_seconds(record)) is not None]
        picked = picked_on_folds(part, row.name)
        sizes = [record.n_parameters for record in records if record.n_parameters is not None]
        found.append(
            Standing(
                method=row.name,
                mean={key: statistics.fmean(values) for key, values in scores.items()},
                std={key: statistics.stdev(values) if len(values) > 1 else None for key, values in scores.items()},
                seconds=statistics.fmean(seconds) if seconds else None,
                n_parameters=max(sizes, default=None),
                n_finished=len(records),
                n_planned=part.planned(row.name),
                validation={key: statistics.fmean(one[key] for one in picked) for key in _chosen_columns(spec)}
                if picked
                else None,
            )
        )
    return sorted(found, key=lambda one: -one.mean.get("h", -1.0))


def comparison_elements(spec: Spec, part: Part) -> list[Element]:
    """The ordering, accuracy against time, scores at epochs that folds chose, and our oracle beside the papers'."""
    elements: list[Element] = [comparison_table(spec, part)]
    if any(one.seconds for one in standings(spec, part)):
        elements.append(pareto_figure(spec, part))
    on_folds = chosen_table(spec, part)
    return [*elements, *([on_folds] if on_folds else []), oracle_table(spec, part, _chosen_columns(spec))]


def comparison_table(spec: Spec, part: Part) -> Table:
    """Methods in the order of their mean H by the rule last, with their time and size; then those not run yet."""
    rows = []
    for one in standings(spec, part):
        scores = (mean_text(key, values_of(part.rows.get(one.method, []), key)) for key in spec.columns)
        took = NOTHING if one.seconds is None else f"{one.seconds:.3g}"
        size = NOTHING if one.n_parameters is None else number_text(one.n_parameters)
        rows.append((one.method, *scores, took, size, seeds_text(one.n_finished, one.n_planned)))
    notes = (_ORDER_NOTE, MEANS_NOTE)
    return Table(title="Selection rule: last", headings=comparison_headings(spec.columns), rows=rows, notes=notes)


def chosen_table(spec: Spec, part: Part) -> Table | None:
    """Methods at the epoch that leak-free folds choose; None where there are no folds."""
    return validation_table(spec, part, _chosen_columns(spec))


def _chosen_columns(spec: Spec) -> list[str]:
    # No rule chooses AUSUC, which is of scores and not of decisions, and no epoch but the last has it.
    return [key for key in spec.columns if key != "ausuc"]


def comparison_headings(columns: Sequence[str] = COMPARED) -> tuple[str, ...]:
    """Headings of :func:`comparison_table`."""
    return ("Method", *map(heading, columns), "Seconds", "Parameters", "Seeds")


def number_text(number: int) -> str:
    """A large number for people.

    Examples
    --------
    >>> number_text(312), number_text(45_210), number_text(16_800_000)
    ('312', '45.2 k', '16.8 M')
    """
    for size, word in ((1_000_000, " M"), (1_000, " k")):
        if number >= size:
            return f"{number / size:.1f}{word}"
    return str(number)


def pareto_front(points: Sequence[tuple[float, float]]) -> list[int]:
    """Which points (cost, gain) no other one beats: with less cost as much gain, or more; cheapest first.

    Examples
    --------
    >>> pareto_front([(1.0, 0.5), (2.0, 0.4), (3.0, 0.7), (0.5, 0.1)])
    [3, 0, 2]
    """
    front: list[int] = []
    for k in sorted(range(len(points)), key=lambda k: (points[k][0], -points[k][1])):
        if not front or points[k][1] > points[front[-1]][1]:
            front.append(k)
    return front


def pareto_figure(spec: Spec, part: Part) -> Figures:
    """H over training seconds."""
    shown = [one for one in standings(spec, part) if one.seconds and "h" in one.mean]
    points = [(one.seconds or 0.0, 100 * one.mean["h"]) for one in shown]
    front = pareto_front(points)
    title = f"H against training time: {part.block.title}"
    with canvas(7.4, 4.6) as (figure, axes, buffer):
        # Room for names on the right, and for a single dot, of which no limits follow: so they are set beforehand.
        seconds, heights = zip(*points, strict=True)
        room = max((max(seconds) / min(seconds)) ** 0.16, 2.0)
        low, high = min(heights) - 4, max(heights) + 4
        axes.set(xscale="log", xlim=(min(seconds) / room, max(seconds) * room), ylim=(low, high))
        axes.set(xlabel="training seconds (logarithmic)", ylabel="H, %")
        steps = {"color": COLORS[8], "linewidth": 1.2, "zorder": 1, "where": "post"}
        axes.step(*zip(*(points[k] for k in front), strict=True), **steps)
        bars = [100 * (one.std["h"] or 0.0) for one in shown]
        for k, ((x, y), bar) in enumerate(zip(points, bars, strict=True)):
            color = COLORS[1] if k in front else COLORS[0]
            axes.errorbar(x, y, yerr=bar, fmt="o", color=color, markersize=5, elinewidth=1)
        figure.draw_without_rendering()  # after that it is known where on the paper dots are
        in_points = 72 / figure.dpi
        places = [tuple(in_points * axes.transData.transform(point)) for point in points]
        bars = [bar * in_points * axes.bbox.height / (high - low) for bar in bars]
        frame = tuple(in_points * edge for edge in axes.bbox.padded(-_DOT / in_points).extents)
        line = [(*places[k], places[after][0], places[k][1] + 1) for k, after in pairwise(front)]
        placed = place_labels(places, bars, [one.method for one in shown], frame, line)
        for one, point, (right, up, end, by_line) in zip(shown, points, placed, strict=True):
            leader = {"arrowstyle": "-", "color": COLORS[8], "linewidth": 0.6, "shrinkA": 0, "shrinkB": _DOT}
            axes.annotate(
                one.method,
                point,
                xytext=(right, up),
                textcoords="offset points",
                fontsize=8.5,
                va="center",
                ha=end,
                arrowprops=leader if by_line else None,
            )
    best = ", ".join(shown[k].method for k in front)
    panel = Panel(svg=embedded(inline(buffer, title)), title=title, caption=f"Not beaten in both: {best}.")
    return Figures(panels=[panel], notes=(_PARETO_NOTE,), style="wide")


class Placed(NamedTuple):
    """Where a label is, in points to the right of and above its dot.

    Attributes
    ----------
    right, up : float
        Of which ``end`` of the label, in the middle of its height.
    end : {"left", "center", "right"}
    by_line : bool
        Whether it is so far away that a line is to lead to it.
    """

    right: float
    up: float
    end: str
    by_line: bool


def place_labels(
    dots: Sequence[tuple[float, float]], bars: Sequence[float], labels: Sequence[str], frame: Box, lines: Sequence[Box]
) -> list[Placed]:
    """Find places for labels, so that none covers another or a dot, one after the other and each as near as can be.

    Parameters
    ----------
    dots : sequence of (x, y)
        In points, within the ``frame``.
    bars : sequence of float
        How far each dot's bar reaches up and down.
    labels : sequence of str
    frame : (left, bottom, right, top)
    lines : sequence of (left, bottom, right, top)
        What else labels had better not cover.

    Examples
    --------
    >>> place_labels([(50.0, 50.0)], [0.0], ["DGZ"], (0.0, 0.0, 100.0, 100.0), [])
    [Placed(right=7.0, up=0.0, end='left', by_line=False)]
    """
    taken = [*lines]
    taken += [
        (x - _DOT, y - max(bar, _DOT), x + _DOT, y + max(bar, _DOT)) for (x, y), bar in zip(dots, bars, strict=True)
    ]
    found = []
    for (x, y), label in zip(dots, labels, strict=True):
        width, least = _LETTER * len(label), math.inf
        for gap in _GAPS:
            for aside, above in _SIDES:
                right = aside * (0.7 * gap if above else gap)
                up = above * (gap if aside else gap + _LINE / 2)
                left = x + right - {1: 0.0, 0: width / 2, -1: width}[aside]
                box = (left, y + up - _LINE / 2, left + width, y + up + _LINE / 2)
                covered = sum(_overlap(box, other) for other in taken) + width * _LINE - _overlap(box, frame)
                if covered < least - 1e-6:
                    best, place, least = Placed(right, up, _ENDS[aside], gap > _GAPS[0]), box, covered
        found.append(best)
        taken.append(place)
    return found


def _overlap(one: Box, other: Box) -> float:
    """The area that two boxes have in common."""
    width = min(one[2], other[2]) - max(one[0], other[0])
    height = min(one[3], other[3]) - max(one[1], other[1])
    return max(width, 0.0) * max(height, 0.0)
