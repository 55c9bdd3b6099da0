"""Figures of the reproduction: an item's finished runs in, panels of SVG out."""

import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from dgz.paper.spec import Panel as PanelSpec
from dgz.paper.spec import Row, Spec
from dgz.records import Record
from dgz.report.elements import Figures, Panel
from dgz.report.figures import COLORS, SEEN, UNSEEN, canvas, embedded, inline, scatter
from dgz.report.paper_runs import Part
from dgz.report.paper_tables import heading, is_percent, values_of

Line = list[tuple[float, float, float]]  # place on the axis, mean and deviation
_STYLES = ("-", "--", ":", "-.")
_SWEEP = "Lines over a setting are means over seeds by the rule last; bands are ± one sample standard deviation."
_TRAINING = "Lines over epochs are means over seeds after each of them; bands are ± one sample standard deviation."
_PROJECTION = "Dots are real rows, crosses generated ones; places are of t-SNE, so that axes have no unit."


# --- Lines.
def line_figures(spec: Spec, part: Part) -> Figures:
    """The panels of a figure of lines; a sentence for each that has nothing to show yet."""
    panels, notes = [], []
    for panel in spec.panels:
        rows = [row for row in spec.rows if (row.sweep == panel.sweep if panel.sweep else row.name in panel.rows)]
        lines = dict(_sweep_lines(rows, part, panel) if panel.sweep else _training_lines(rows, part, panel))
        if lines:
            panels.append(Panel(svg=_draw_lines(lines, panel), title=panel.title))
            notes.append(_SWEEP if panel.sweep else _TRAINING)
        else:
            notes.append(f"{panel.title}: not run yet.")
    return Figures(panels=panels, notes=tuple(dict.fromkeys(notes)))


def _sweep_lines(rows: Sequence[Row], part: Part, panel: PanelSpec) -> Iterator[tuple[str, Line]]:
    """A line over what is swept, for every series and metric."""
    several = len(panel.metrics) > 1
    for series in dict.fromkeys(row.series for row in rows):
        for metric in panel.metrics:
            own = sorted((row.x, row.name) for row in rows if row.series == series and row.x is not None)
            groups = {x: values_of(part.rows.get(name, []), metric) for x, name in own}
            if line := _line(groups, metric):
                yield ", ".join(filter(None, (series, heading(metric) if several or not series else ""))), line


def _training_lines(rows: Sequence[Row], part: Part, panel: PanelSpec) -> Iterator[tuple[str, Line]]:
    """A line over the generator's epochs, for every row and metric."""
    for name in panel.rows:  # in the order of the panel, not of the spec
        for metric in panel.metrics:
            groups: dict[float, list[float]] = {}
            for record in part.rows.get(name, []):
                for epoch, value in training_curve(record, metric).items():
                    groups.setdefault(epoch, []).append(value)
            if line := _line(groups, metric):
                yield f"{name}, {heading(metric)}" if len(panel.metrics) > 1 else name, line


def training_curve(record: Record, metric: str) -> dict[float, float]:
    """A score after each tested epoch of the generator; of a classifier, its last epoch there."""
    classifier, generator = (record.curve.get(stage, {}) for stage in ("classifier", "generator"))
    if metric in classifier:
        epochs, values = classifier["generator_epoch"], classifier[metric]
    else:
        epochs, values = generator.get("epoch", []), generator.get(metric, [])
    # A later entry of the same epoch takes the place of an earlier one; null is where nothing was tested.
    known = (one for one in zip(epochs, values, strict=False) if None not in one)
    return {float(epoch): float(value) for epoch, value in known}


def _line(groups: Mapping[float, Sequence[float]], metric: str) -> Line:
    scale = 100.0 if is_percent(metric) else 1.0
    return [
        (x, scale * statistics.fmean(values), scale * statistics.stdev(values) if len(values) > 1 else 0.0)
        for x, values in sorted(groups.items())
        if values
    ]


def _draw_lines(lines: Mapping[str, Line], panel: PanelSpec) -> str:
    units = {", %" if is_percent(metric) else "" for metric in panel.metrics}
    name = heading(panel.metrics[0]) if len(panel.metrics) == 1 else "accuracy"
    with canvas(3.5, 2.8) as (_, axes, buffer):
        for k, (label, line) in enumerate(lines.items()):
            color, style = COLORS[k % len(COLORS)], _STYLES[k % len(_STYLES)]
            x, mean, std = zip(*line, strict=True)
            low, high = ([m + sign * s for m, s in zip(mean, std, strict=True)] for sign in (-1, 1))
            axes.fill_between(x, low, high, color=color, alpha=0.15, linewidth=0)
            marker = "o" if len(line) < 30 else ""  # of many epochs, dots would hide the line
            axes.plot(x, mean, style, marker=marker, color=color, linewidth=1.8, markersize=4, label=label)
        axes.set(xlabel=panel.xlabel, ylabel=f"{name}{units.pop()}")
        places = [x for line in lines.values() for x, _, _ in line]
        if panel.log:  # zero has no logarithm: near it, the axis is linear
            positive = [x for x in places if x > 0]
            axes.set_xscale("log") if len(positive) == len(places) else axes.set_xscale(
                "symlog", linthresh=min(positive)
            )
        if len(lines) > 1:
            axes.legend(frameon=False, fontsize=8.5, handlelength=1.6)
    return embedded(inline(buffer, panel.title))


# --- Points.
def projection_figures(spec: Spec, part: Part) -> Figures:
    """A map of real and generated rows for every row of the spec: that of its first run."""
    maps = dict(_observed(spec, part, "projection"))
    names = list(dict.fromkeys(name for seen in maps.values() for name in seen["classes"]))
    colors = {name: COLORS[k % len(COLORS)] for k, name in enumerate(names)}
    panels = []
    for row, seen in maps.items():
        n_real, n_generated = len(seen["real"]["x"]), len(seen["generated"]["x"])
        caption = f"{n_real} real and {n_generated} generated rows, perplexity {seen['perplexity']:g}."
        panels.append(Panel(svg=_draw_projection(row, seen, colors), title=row, caption=caption))
    notes = ((_PROJECTION,) if panels else ()) + _not_yet(spec, maps)
    return Figures(panels=panels, notes=notes, marks=tuple((color, name) for name, color in colors.items()))


def toy_figures(spec: Spec, part: Part) -> Figures:
    """The toy's points and what each generator makes of its class vectors, on the same axes."""
    toys = dict(_observed(spec, part, "toy"))
    if not toys:
        return Figures(panels=[], notes=_not_yet(spec, toys))
    truth = next(iter(toys.values()))["truth"]
    clouds = {"(a) truth": truth, **{name: seen["generated"] for name, seen in toys.items()}}
    reach = 1.05 * max(abs(value) for cloud in clouds.values() for axis in ("x", "y") for value in cloud[axis])
    panels = []
    for name, cloud in clouds.items():
        svg = _draw_cloud(name, cloud, SEEN if cloud is truth else UNSEEN, reach)
        panels.append(Panel(svg=svg, title=name, caption=f"{len(cloud['x'])} points."))
    return Figures(panels=panels, notes=_not_yet(spec, toys))


def _observed(spec: Spec, part: Part, what: str) -> Iterator[tuple[str, dict[str, Any]]]:
    """What was observed of the first run of each row that has it."""
    for row in spec.rows:
        found = [record.observed[what] for record in part.rows.get(row.name, []) if what in record.observed]
        if found:
            yield row.name, found[0]


def _not_yet(spec: Spec, shown: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(f"{row.name}: not run yet." for row in spec.rows if row.name not in shown)


def _draw_projection(title: str, seen: Mapping[str, Any], colors: Mapping[str, str]) -> str:
    groups = (("real", "dots", {"linewidth": 3.2, "alpha": 0.55}), ("generated", "crosses", {"linewidth": 0.9}))
    with canvas(3.5, 3.5) as (_, axes, buffer):
        for group, marks, style in groups:
            points = seen[group]
            for k, name in enumerate(seen["classes"]):
                own = [i for i, label in enumerate(points["class"]) if label == k]
                x, y = ([points[axis][i] for i in own] for axis in ("x", "y"))
                if own:
                    scatter(axes, x, y, marks, edgecolor=colors[name], **style)
        for axis in ("x", "y"):
            values = [value for group in ("real", "generated") for value in seen[group][axis]]
            margin = 0.04 * (max(values) - min(values)) or 1.0
            axes.set(**{f"{axis}lim": (min(values) - margin, max(values) + margin), f"{axis}ticks": []})
    return embedded(inline(buffer, f"Map of real and generated rows: {title}"))


def _draw_cloud(title: str, cloud: Mapping[str, Sequence[float]], color: str, reach: float) -> str:
    with canvas(3.2, 3.2) as (_, axes, buffer):
        scatter(axes, cloud["x"], cloud["y"], "dots", edgecolor=color, linewidth=2.6, alpha=0.5)
        axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    return embedded(inline(buffer, f"Points of the toy: {title}"))
