"""What a person wants to know of a data set before using it: facts, warnings and problems, in plain sentences.

In comes the name or folder of a data set of any kind this package reads; out comes the GZSLData, or a report on it that
the command line prints as a table or as JSON.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from dgz.data.bundle import is_bundle, load_bundle
from dgz.data.dataset import SPLITS, GZSLData, listing
from dgz.data.numbers import load_numbers
from dgz.data.scaling import USUAL_NORMS, has_usual_norms
from dgz.data.xlsa import find_file, load_xlsa, read_xlsa_splits
from dgz.errors import DataError, DGZError


def load_data(source: str | Path, features: str = "res101", semantics: str = "att") -> GZSLData:
    """Load a data set from wherever it is.

    Parameters
    ----------
    source : str or Path
        ``numbers`` (the embedded set), the folder of a bundle, or a folder in the layout of xlsa17.
    features, semantics : str
        Which features and class vectors of an xlsa17 folder.

    Examples
    --------
    >>> load_data("numbers").name
    'numbers'
    """
    folder = Path(source)
    if str(source) == "numbers":
        return load_numbers(0)
    if not folder.is_dir():
        raise DGZError(f"{source} is neither a folder nor the name of an embedded data set (numbers).")
    if is_bundle(folder):
        return load_bundle(folder)
    if any(folder.glob("*.mat")):
        return load_xlsa(folder, ".", features, semantics)
    inner = [
        f"{source}/{other.name}" for other in sorted(folder.iterdir()) if other.is_dir() and any(other.glob("*.mat"))
    ]
    hint = f"; data sets inside it: {listing(inner)}" if inner else ""
    raise DGZError(f"{source} holds no data set: expected a bundle.json or .mat files{hint}.")


def load_same(source: str | Path, features: str, semantics: str, record: Mapping[str, Any]) -> GZSLData:
    """Load a data set that another process has read, and that must be the same here.

    Parameters
    ----------
    source, features, semantics
        See :func:`load_data`.
    record : mapping
        What :meth:`~dgz.GZSLData.record` said there.

    Raises
    ------
    DGZError
        When it is not here, or has another content.

    Examples
    --------
    >>> load_same("numbers", "", "", load_data("numbers").record()).name
    'numbers'
    """
    data = load_data(source, features, semantics)
    if data.record() != record:
        raise DGZError(f"{source} holds another data set there than on the machine that gave the work.")
    return data


def require_same(wanted: Iterable[tuple[str | Path, str, str, Mapping[str, Any]]]) -> None:
    """Raise unless all of some data sets are here, see :func:`load_same`."""
    for one in wanted:
        load_same(*one)


@dataclass
class DataReport:
    """Facts about a data set, and sentences: warnings, with which it can still be used, and problems."""

    source: str
    facts: dict[str, Any] = field(default_factory=dict)
    warnings: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


def describe(data: GZSLData) -> dict[str, Any]:
    """Facts of a data set: counts, shapes, norms, balance, hashes. Safe for JSON."""
    norms = np.linalg.norm(data.attributes, axis=1)
    per_class = np.bincount(data.y_train, minlength=data.n_classes)[data.seen]
    record = data.record()
    return {
        "name": data.name,
        "classes": {"seen": len(data.seen), "unseen": len(data.unseen)},
        "rows": record["n_rows"],
        "features": {"name": data.features, "width": data.x_train.shape[1], **_spread(data.x_train)},
        "class vectors": {"name": data.semantics, "width": data.attributes.shape[1], **_spread(data.attributes)},
        "class vector norms": {"min": float(norms.min()), "max": float(norms.max())},
        "training rows per class": {"min": int(per_class.min()), "max": int(per_class.max())},
        "hashes": record["hashes"],
        "leaks": record["leaks"],
    }


def _spread(x: Any) -> dict[str, float]:
    return {"min": float(x.min()), "max": float(x.max()), "std": float(x.std(dtype=np.float64))}


def inspect(source: str | Path, features: str = "res101", semantics: str = "att") -> DataReport:
    """Load a data set and describe it; broken content ends up in ``problems``."""
    return _load(source, features, semantics)[0]


def _load(source: str | Path, features: str, semantics: str) -> tuple[DataReport, GZSLData | None]:
    try:
        data = load_data(source, features, semantics)
    except DataError as error:
        return DataReport(str(source), problems=list(error.problems)), None
    return DataReport(str(source), describe(data)), data


def check(source: str | Path, features: str = "res101", semantics: str = "att") -> DataReport:
    """Load a data set and look for all that is known to go wrong.

    Broken content ends up in ``problems``; a source that is no data set at all raises.
    """
    report, data = _load(source, features, semantics)
    if data is None:
        _salvage_splits(report, Path(source), semantics)
        return report
    report.warnings += _leak_warnings(data.leaks)
    report.warnings += _value_warnings(data)
    report.warnings += _count_warnings(data)
    return report


def _salvage_splits(report: DataReport, folder: Path, semantics: str) -> None:
    """Say what a split file tells by itself, where the features are missing or broken."""
    if is_bundle(folder):
        return
    try:
        splits = read_xlsa_splits(find_file(folder, f"{semantics}_splits.mat", "*_splits.mat", "semantics"))
    except DGZError:
        return  # already among the problems
    names = {"train": "trainval_loc", "test_seen": "test_seen_loc", "test_unseen": "test_unseen_loc"}
    report.facts = {
        "name": folder.resolve().name,
        "classes": {"in all": len(splits.attributes)},
        "rows": {split: len(splits.index[key]) for split, key in names.items()},
        "class vectors": {"name": semantics, "width": splits.attributes.shape[1]},
        "leaks": {key: count for key, count in splits.leaks.items() if count},
    }
    report.warnings += _leak_warnings(splits.leaks)


def _leak_warnings(leaks: Any) -> list[str]:
    return [
        f"{count:,} rows of {name} are test rows: a model chosen with {name} as it stands has seen test data. "
        "dgz uses trainval_loc only."
        for name, count in leaks.items()
        if count
    ]


def _value_warnings(data: GZSLData) -> list[str]:
    warnings = []
    norms = np.linalg.norm(data.attributes, axis=1)
    low, high = USUAL_NORMS
    if norms.min() < low or norms.max() > high:
        what_to_do = "a scaling of them may help (attribute_scaling = unit, standard or sqrt_d)."
        if not has_usual_norms(data.attributes):
            what_to_do = "networks are trained on vectors scaled to norm 1 (attribute_scaling = auto)."
        warnings.append(
            f"Norms of class vectors run from {norms.min():.3g} to {norms.max():.3g}, outside the usual {low:g} to "
            f"{high:g}: {what_to_do}"
        )
    vectors, number, counts = np.unique(data.attributes, axis=0, return_inverse=True, return_counts=True)
    if len(vectors) < data.n_classes:
        twins = [data.class_names[i] for i in np.flatnonzero(counts[number.ravel()] > 1)]
        warnings.append(f"Classes with the same vector as another cannot be told apart: {listing(twins)}.")
    constant = int((data.attributes.min(axis=0) == data.attributes.max(axis=0)).sum())
    if constant:
        warnings.append(f"{constant} column(s) of the class vectors are the same for all classes.")
    constant = int((data.x_train.min(axis=0) == data.x_train.max(axis=0)).sum())
    if constant:
        warnings.append(f"{constant} feature column(s) are constant on the training rows.")
    for split in SPLITS[1:]:
        copies = int(np.isin(data.row_digests[split], data.row_digests["train"]).sum())
        if copies:
            warnings.append(f"{copies:,} row(s) of x_{split} are exact copies of training rows.")
    return warnings


def _count_warnings(data: GZSLData) -> list[str]:
    warnings = []
    per_class = np.bincount(data.y_train, minlength=data.n_classes)[data.seen]
    if per_class.max() > 20 * per_class.min():
        warnings.append(
            f"Training rows are unbalanced: {data.class_names[data.seen[per_class.argmin()]]!r} has {per_class.min()}, "
            f"{data.class_names[data.seen[per_class.argmax()]]!r} has {per_class.max():,}."
        )
    if not len(data.unseen):
        warnings.append("There is no unseen class: this is ordinary classification.")
    for group, split in (("seen", "test_seen"), ("unseen", "test_unseen")):
        untested = np.setdiff1d(getattr(data, group), getattr(data, f"y_{split}"))
        if len(untested):
            names = listing([data.class_names[i] for i in untested])
            warnings.append(f"{len(untested)} {group} class(es) have no test rows: {names}.")
    return warnings
