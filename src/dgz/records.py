"""Records: what one run did and what came out, as one small JSON file.

In comes what a run knows (method, settings, data, scores, times); out comes ``record.json``, which every table, figure
and page is made from. The rules that pick a row of a run's curve are here too. No torch here, and no model: a record
can be read anywhere.
"""

import platform
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from dgz.errors import DataError
from dgz.files import read_document, write_json

_VERSION = 1
_FILE = "record.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run.

    Attributes
    ----------
    method : str
        Name of the method's class.
    params : dict
        Its constructor's arguments, all of them, as used; those of a part, with its ``kind``, in a dict of their own.
    chosen : dict
        Settings that the method chose by itself on training rows.
    seed : int
        Random seed of the run.
    selection : str
        How the reported state was picked: ``last``, ``validation``, or ``oracle`` (on test rows, as released code
        does).
    data : dict
        The data set: names, counts, hashes, leaks.
    class_names : dict
        Names of the classes by id.
    unseen : list of int
        Ids of the unseen classes.
    scores : dict
        Test scores as fractions, with per-class accuracies and the seen–unseen curve. Empty where the data lacks test
        rows of seen or of unseen classes. ``cmmd`` and ``cacd`` where rows were generated.
    curve : dict
        What was found out in training, in columns of equal length: ``classifier`` has a row for each tested epoch
        (``generator_epoch``, ``epoch``, ``acc_unseen``, ``acc_seen``, ``h``, ``acc_zsl``), ``generator`` one for some
        of its epochs (``epoch``, losses, ``cacd`` where it was asked for).
    observed : dict
        What else was asked for, by name: see :mod:`dgz.observations`.
    quick : bool
        Whether training was cut short, to see that everything works: no result.
    oracle : dict, optional
        Scores of the epoch that is best on the test rows, see :func:`oracle`: to be labelled so wherever it is shown.
    seconds : dict
        Wall-clock time of each part; ``fit_together`` instead of ``fit`` where the time is that of a number of models
        trained at once, ``fitted_together``, ``fit_resumed`` where only the end of a training was timed, and
        ``fit_on_shared_device`` where other work slowed it down. The last two are no measure of a method's speed.
    device : str
        What it ran on.
    n_parameters : int, optional
        How many numbers the model has learned: those of all networks that are used after training.
    versions : dict
        Versions of Python and of the libraries that matter.
    """

    method: str
    params: dict[str, Any]
    seed: int
    selection: str
    data: dict[str, Any]
    class_names: dict[str, str]
    unseen: list[int]
    scores: dict[str, Any]
    seconds: dict[str, float]
    device: str
    oracle: dict[str, Any] | None = None
    chosen: dict[str, Any] = field(default_factory=dict)
    curve: dict[str, dict[str, list[Any]]] = field(default_factory=dict)
    observed: dict[str, Any] = field(default_factory=dict)
    quick: bool = False
    n_parameters: int | None = None
    versions: dict[str, str] = field(default_factory=lambda: library_versions())


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can move a score."""
    found = {"python": platform.python_version()}
    for name in ("dgz", "torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that is not installed
            module = sys.modules.get(name.replace("scikit-learn", "sklearn"))
            found[name] = str(getattr(module, "__version__", "unknown"))
    return found


# --- Selection rules: which row of a curve is reported. docs/protocol.md, "Selection rules".
def last(curve: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The final row with test scores of a curve, or None where none has them.

    Parameters
    ----------
    curve : sequence of mappings
        A row per epoch (``DGZ.history_``); those that were tested have ``acc_unseen``, ``acc_seen``,
        ``h`` and ``acc_zsl``, with ``epoch`` and ``generator_epoch``.

    Returns
    -------
    dict
        These six of the row, and ``n_candidates``: how many rows there were to pick from.

    Examples
    --------
    >>> scores = {"acc_unseen": 0.5, "acc_seen": 0.5, "acc_zsl": 0.7, "generator_epoch": 9}
    >>> curve = [{"epoch": 1, "h": 0.6, **scores}, {"epoch": 2, "h": 0.5, **scores}]
    >>> last(curve)["epoch"], last(curve)["n_candidates"]
    (2, 2)
    """
    tested = _tested(curve)
    return _picked(tested[-1], tested) if tested else None


def oracle(curve: Sequence[Mapping[str, Any]]) -> dict[str, Any] | None:
    """The row with the best test H, the first of equals: chosen on the test rows, so never a result by itself.

    Parameters and what is returned are as in :func:`last`.

    Examples
    --------
    >>> scores = {"acc_unseen": 0.5, "acc_seen": 0.5, "acc_zsl": 0.7, "generator_epoch": 9}
    >>> curve = [{"epoch": 1, "h": 0.6, **scores}, {"epoch": 2, "h": 0.5, **scores}]
    >>> oracle(curve)["epoch"], oracle(curve)["n_candidates"]
    (1, 2)
    """
    tested = _tested(curve)
    return _picked(max(tested, key=lambda row: row["h"]), tested) if tested else None


def validation(
    curve: Mapping[str, Mapping[str, Sequence[Any]]], fold_curves: Sequence[Mapping[str, Mapping[str, Sequence[Any]]]]
) -> dict[str, Any] | None:
    """The row that is best on leak-free folds of the training rows: the test rows have no say in it.

    Parameters
    ----------
    curve : dict
        That of a run, see :class:`Record`.
    fold_curves : sequence of dict
        Those of the same method on folds.

    Returns
    -------
    dict
        As in :func:`last`, of the epoch whose H is the highest in the mean over folds, the first of equals; None where
        no epoch is in all curves.

    Examples
    --------
    >>> columns = {"generator_epoch": [9, 9], "epoch": [1, 2], "acc_unseen": [0.5, 0.5], "acc_seen": [0.5, 0.5]}
    >>> tested = {"classifier": {**columns, "acc_zsl": [0.7, 0.7], "h": [0.6, 0.5]}}
    >>> on_fold = {"classifier": {**columns, "acc_zsl": [0.7, 0.7], "h": [0.4, 0.7]}}
    >>> validation(tested, [on_fold])["epoch"]
    2
    """
    rows, folds = rows_of_curve(curve), [rows_of_curve(one) for one in fold_curves]
    found: list[dict[tuple[int, int], float]] = [{_when(row): row["h"] for row in of_fold} for of_fold in folds]
    common = [row for row in rows if all(_when(row) in of_fold for of_fold in found)]
    if not common or not folds:
        return None
    return _picked(max(common, key=lambda row: sum(of_fold[_when(row)] for of_fold in found)), common)


def rows_of_curve(curve: Mapping[str, Mapping[str, Sequence[Any]]]) -> list[dict[str, Any]]:
    """The tested epochs of a record's curve, a row for each."""
    columns = curve.get("classifier", {})
    return [dict(zip(columns, values, strict=True)) for values in zip(*columns.values(), strict=True)]


def _when(row: Mapping[str, Any]) -> tuple[int, int]:
    return row["generator_epoch"], row["epoch"]


def _tested(curve: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [row for row in curve if "h" in row]


def _picked(row: Mapping[str, Any], tested: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    names = ("acc_unseen", "acc_seen", "h", "acc_zsl", "generator_epoch", "epoch")
    return {**{name: row[name] for name in names}, "n_candidates": len(tested)}


# --- Files.
# Old records lack them.
_ADDED_LATER: dict[str, Any] = {"oracle": None, "curve": {}, "observed": {}, "quick": False, "n_parameters": None}


def is_finished(folder: str | Path) -> bool:
    """Whether the run of a folder finished: its record is there."""
    return (Path(folder) / _FILE).is_file()


def write_record(record: Record, folder: str | Path) -> Path:
    """Write ``record.json`` into ``folder``, whole or not at all; its presence says that the run finished."""
    path = Path(folder) / _FILE
    write_record_file(record, path)
    return path


def write_record_file(record: Record, path: str | Path) -> None:
    """Write a record to a file of any name, whole or not at all."""
    write_json(path, {"format": "dgz-record", "version": _VERSION, **asdict(record)}, compact=True)


def read_record(folder: str | Path) -> Record:
    """Read the record of a run's folder."""
    return read_record_file(Path(folder) / _FILE)


def encoder_of(folder: str | Path) -> str | None:
    """The encoder that made the class vectors of a run's data of words; None where none did, or a run is unknown.

    Only those that come with the package count: the name of another one does not say where it is.
    """
    from dgz.words.encoders import OFFLINE_ENCODERS  # reading records is light, reading words is not

    made_by = read_record(folder).data["semantics"] if is_finished(folder) else None
    return made_by if made_by in OFFLINE_ENCODERS else None


def read_record_file(path: str | Path) -> Record:
    """Read a record from a file of any name."""
    content = read_document(path, "record", _VERSION)
    for name, value in _ADDED_LATER.items():
        content.setdefault(name, value)
    expected = {entry.name for entry in fields(Record)}
    if odd := expected.symmetric_difference(content):
        raise DataError(f"{path} is broken: {', '.join(sorted(odd))} should or should not be there.")
    return Record(**content)
