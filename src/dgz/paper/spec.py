"""Specs: one TOML file per table or figure of the paper, as plain data.

A spec names its rows (a method with settings), the data sets they run on, the numbers that were published for them, and
the claims that the paper makes with them, each with the test that decides it. Everything here was written before the
runs. No torch here: the report reads specs too.
"""

import tomllib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from importlib import resources
from typing import Any, Literal

from dgz.errors import DGZError, require_choice

Kind = Literal["table", "lines", "projection", "toy", "gradients", "comparison"]
# Of dgz.peers, by the names of the command line; and the toy, which is none of them.
METHODS = (
    "dgz",
    "dgz-without-generator",
    "zla",
    "ce-gzsl",
    "sdgzsl",
    "free",
    "tf-vaegan",
    "gcm-cf",
    "izf",
    "f-vaegan-d2",
    "lisgan",
    "cada-vae",
    "f-clswgan",
    "agzsl",
    "cn",
    "tcn",
    "center-ridge",
    "eszsl",
    "sae",
    "nearest-prototype",
    "seen-softmax",
    "toy",
)


@dataclass(frozen=True, kw_only=True)
class Row:
    """A method with settings, run once for every seed and data set.

    Attributes
    ----------
    name : str
        What the row is called, in the spec and in tables.
    method : str
        One of ``METHODS``; it starts from the settings published for the data set.
    set : dict
        Settings that differ from those, by the names of the command line: ``{"generator.attribute_noise": 0}``.
    subset : dict
        What the generator is trained on, if not on all rows: ``share_of_classes``, ``n_rows`` in all or
        ``n_rows_per_class``; and ``n_steps``, for how long.
    observe : tuple of str
        What else is recorded of the trained model: ``projection``, ``gradients``.
    evaluate_every : int
        Test a classifier and the centres after every so many generator epochs.
    seeds : int
        How many, if not as many as the spec's other rows have.
    alone : bool
        Whether each run is trained by itself, so that its time is its own. True in a comparison.
    published : dict
        Numbers of the paper by data set (``CUB``, or ``CUB/att`` for its attributes), under the first of the spec's
        columns.
    sweep, series, x
        Of a row made by a sweep: the sweep's name, the line it belongs to, and its place on the axis.
    """

    name: str
    method: str
    set: dict[str, Any] = field(default_factory=dict)
    subset: dict[str, Any] = field(default_factory=dict)
    observe: tuple[str, ...] = ()
    evaluate_every: int = 0
    seeds: int | None = None
    alone: bool = False
    published: dict[str, list[float]] = field(default_factory=dict)
    sweep: str = ""
    series: str = ""
    x: float | None = None


@dataclass(frozen=True, kw_only=True)
class Quoted:
    """A row of the paper that is not run here: numbers of other methods, shown beside ours and marked as quoted."""

    name: str
    source: str
    published: dict[str, list[float]]
    group: str = ""


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One pair of axes of a figure.

    Attributes
    ----------
    title, xlabel : str
    metrics : tuple of str
        What is drawn: keys of a record's scores, or of its curve.
    sweep : str
        Draw the rows of this sweep, a line for each of its series.
    rows : tuple of str
        Instead: draw the curve of each of these rows over the epochs of the generator.
    log : bool
        Whether the horizontal axis is logarithmic.
    """

    title: str
    xlabel: str
    metrics: tuple[str, ...]
    sweep: str = ""
    rows: tuple[str, ...] = ()
    log: bool = False


@dataclass(frozen=True, kw_only=True)
class Claim:
    """Something that the paper says, and the test that decides whether it holds.

    Every test is a contrast: a weighted sum of a score over rows, taken seed by seed. It holds where the 95 % interval
    of its mean lies above ``above``, or inside ± ``within``.

    Attributes
    ----------
    text, place : str
        The claim in our words, and where the paper makes it.
    tests : tuple of dict
        Each has ``contrast``, a table of row and weight (``{"full" = 1, "w/o ATA" = -1}``), ``metric`` (``h`` by
        default), and ``above`` or ``within``. All must hold. A row of another data set than the block's is written
        ``"AWA2: full"``.
    data : tuple of str
        The data sets that the claim is about; all of the spec by default.
    """

    text: str
    place: str
    tests: tuple[dict[str, Any], ...]
    data: tuple[str, ...] = ()


@dataclass(frozen=True, kw_only=True)
class Spec:
    """One table or figure of the paper.

    Attributes
    ----------
    name : str
        What ``dgz reproduce`` calls it: the file's name.
    title, place, note : str
        What it shows, where it is in the paper, and what the paper leaves open and how it is done here.
    kind : str
    data : tuple of str
        ``SET/SEMANTICS`` each, such as ``CUB/sent``; ``CUB*/sent`` has features of a fine-tuned backbone. None where
        nothing is read.
    columns : tuple of str
        Keys of a record's scores, in the order of the published numbers.
    seeds : int
    folds : int
        Leak-free folds on which the epoch of the rule ``validation`` is chosen; 0: that rule is not shown.
    rows, quoted, panels, claims
    """

    name: str
    title: str
    place: str
    kind: Kind
    note: str = ""
    data: tuple[str, ...] = ()
    columns: tuple[str, ...] = ("acc_unseen", "acc_seen", "h")
    seeds: int = 5
    folds: int = 0
    rows: tuple[Row, ...] = ()
    quoted: tuple[Quoted, ...] = ()
    panels: tuple[Panel, ...] = ()
    claims: tuple[Claim, ...] = ()

    def row(self, name: str) -> Row:
        """The row of a name."""
        return next(row for row in self.rows if row.name == name)


def item_names() -> list[str]:
    """Names of all items: tables and figures in the order of the paper, and then comparisons of ours.

    Examples
    --------
    >>> "table2" in item_names()
    True
    """
    found = {path.name.removesuffix(".toml") for path in _folder().iterdir() if path.name.endswith(".toml")}
    return [name for name in _ORDER if name in found]


_ORDER = (
    "table1",
    "figure2",
    "proposition1",
    "table2",
    "table3",
    "figure4",
    "table4",
    "figureA1",
    "tableA1",
    "figureA2",
    "tableA2",
    "tableA3",
    "figureA3",
    "peers",
)


def paper_items() -> list[str]:
    """Names of the items that are in the paper.

    Examples
    --------
    >>> "table2" in paper_items(), "peers" in paper_items()
    (True, False)
    """
    return [name for name in item_names() if load_spec(name).kind != "comparison"]


def comparison_spec(methods: Sequence[str], data: str, seeds: int, folds: int = 0) -> Spec:
    """A spec of our own: methods side by side on one data set, ``SET/SEMANTICS``."""
    rows = tuple(Row(name=method, method=method, alone=True) for method in methods)
    spec = Spec(
        name=COMPARISON,
        title="Methods side by side",
        place="On the same rows, with the same seeds and by the same rules",
        kind="comparison",
        data=(data,),
        columns=COMPARED,
        seeds=seeds,
        folds=folds,
        rows=rows,
    )
    _check(spec)
    return spec


COMPARISON = "comparison"
COMPARED = ("acc_unseen", "acc_seen", "h", "acc_zsl", "ausuc")


def load_spec(name: str) -> Spec:
    """Read the spec of an item.

    Examples
    --------
    >>> load_spec("table3").row("(ii) w/o CR").published["AWA2"]
    [39.8, 89.4, 55.1]
    """
    require_choice(name, tuple(item_names()), "item")
    return parse_spec(name, (_folder() / f"{name}.toml").read_text(encoding="utf-8"))


def parse_spec(name: str, text: str) -> Spec:
    """A spec from the text of its file; what cannot be meant so is refused with a sentence."""
    content = tomllib.loads(text)
    rows = [_make(Row, entry, name) for entry in content.pop("row", [])]
    for entry in content.pop("sweep", []):
        rows += _expand(entry, name)
    if content.get("kind") == "comparison":
        rows = [replace(row, alone=True) for row in rows]
    quoted = [_make(Quoted, entry, name) for entry in content.pop("quoted", [])]
    panels = [_make(Panel, entry, name) for entry in content.pop("panel", [])]
    claims = [_make(Claim, entry, name) for entry in content.pop("claim", [])]
    parts = {"name": name, "rows": rows, "quoted": quoted, "panels": panels, "claims": claims}
    if odd := set(content) & set(parts):  # [[claims]] for [[claim]] would be lost without a word
        raise DGZError(f"The spec {name} has {', '.join(sorted(odd))} in a spec, unknown there.")
    spec: Spec = _make(Spec, {**content, **parts}, name)
    _check(spec)
    return spec


def _folder() -> Any:
    return resources.files("dgz.paper")


def _make(kind: type[Any], entry: Mapping[str, Any], where: str) -> Any:
    """An instance of a dataclass from a TOML table, whose lists become tuples where the dataclass has such."""
    known = {one.name: one for one in fields(kind)}
    if odd := set(entry) - set(known):
        raise DGZError(f"The spec {where} has {', '.join(sorted(odd))} in a {kind.__name__.lower()}, unknown there.")
    needed = {one.name for one in known.values() if one.default is one.default_factory}  # both MISSING
    if lacking := needed - set(entry):
        raise DGZError(f"The spec {where} lacks {', '.join(sorted(lacking))} in a {kind.__name__.lower()}.")
    values = {
        key: tuple(value) if isinstance(value, list) and str(known[key].type).startswith("tuple") else value
        for key, value in entry.items()
    }
    return kind(**values)


def _expand(entry: Mapping[str, Any], where: str) -> Iterator[Row]:
    """A sweep's rows: one for every value of what it varies, ``set.KEY`` or ``subset.KEY``."""
    entry = dict(entry)
    try:
        sweep, vary, values = entry.pop("name"), entry.pop("vary"), entry.pop("values")
    except KeyError as error:
        raise DGZError(f"The spec {where} lacks {error.args[0]} in a sweep.") from error
    series = entry.get("series", "")
    table, _, key = vary.partition(".")
    published = entry.pop("published", {})
    for k, value in enumerate(values):
        label = f"{series}, " if series else ""
        yield _make(
            Row,
            {
                **entry,
                "name": f"{label}{sweep} = {value:g}",
                "sweep": sweep,
                "x": float(value),
                table: {**entry.get(table, {}), key: value},
                "published": {name: numbers[k] for name, numbers in published.items()},
            },
            where,
        )


def _check(spec: Spec) -> None:
    """Raise where parts of a spec do not fit together."""
    require_choice(spec.kind, Kind, f"kind of {spec.name}")
    names = [row.name for row in spec.rows]
    if twice := {name for name in names if names.count(name) > 1}:
        raise DGZError(f"The spec {spec.name} has several rows called {sorted(twice)[0]!r}.")
    for row in spec.rows:
        require_choice(row.method, METHODS, f"method of {row.name!r} in {spec.name}")
    published: list[Row | Quoted] = [*spec.rows, *spec.quoted]
    for entry in published:
        for data, numbers in entry.published.items():
            if not 0 < len(numbers) <= len(spec.columns):
                raise DGZError(f"{spec.name}, {entry.name}, {data}: found {len(numbers)} numbers for its columns.")
    for panel in spec.panels:
        if panel.sweep and panel.sweep not in {row.sweep for row in spec.rows}:
            raise DGZError(f"The spec {spec.name} draws the sweep {panel.sweep!r}, which it does not have.")
    mentioned = [name for panel in spec.panels for name in panel.rows]
    for claim in spec.claims:
        for test in claim.tests:
            if odd := set(test) - {"contrast", "metric", "above", "within"}:
                raise DGZError(f"The spec {spec.name} has {', '.join(sorted(odd))} in a test, unknown there.")
            if not test.get("contrast"):
                raise DGZError(f"A test of {spec.name} needs a 'contrast': {claim.text}")
            if ("above" in test) == ("within" in test):
                raise DGZError(f"A test of {spec.name} needs one of 'above' and 'within': {claim.text}")
            mentioned += [name.partition(": ")[2] or name for name in test["contrast"]]
    if strangers := set(mentioned) - set(names):
        raise DGZError(f"The spec {spec.name} has no row {sorted(strangers)[0]!r}, which it speaks of.")
