"""Reader of the field's standard layout (Xian et al., xlsa17): ``NAME/res101.mat`` + ``NAME/att_splits.mat``.

In come MATLAB files with 1-based labels and index sets; out comes a GZSLData with 0-based class ids. The files' known
trap is met here: ``train_loc`` and ``val_loc`` may contain test rows; the overlap is reported and never used.
"""

from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from dgz.data.dataset import Floats, GZSLData, Ints, as_floats, as_ints, listing
from dgz.data.matlab import read_mat
from dgz.errors import DataError, DGZError

_INDEX_SETS = ("trainval_loc", "test_seen_loc", "test_unseen_loc")
_INNER_SETS = ("train_loc", "val_loc")


@dataclass(frozen=True)
class XlsaSplits:
    """Class vectors, class names and index sets of one ``*_splits.mat`` file, 0-based.

    Attributes
    ----------
    attributes : array of shape (n_classes, d_a)
    class_names : tuple of str, or None where the file has none
    index : mapping from ``trainval_loc``, … to row numbers
    """

    path: Path
    attributes: Floats
    class_names: tuple[str, ...] | None
    index: dict[str, Ints]

    @cached_property
    def leaks(self) -> dict[str, int]:
        """How many rows of ``train_loc`` and ``val_loc`` are test rows: 0 where the file is clean."""
        test = np.union1d(self.index["test_seen_loc"], self.index["test_unseen_loc"])
        return {name: len(np.intersect1d(self.index[name], test)) for name in _INNER_SETS if name in self.index}


def read_xlsa_splits(path: str | Path) -> XlsaSplits:
    """Read a ``att_splits.mat`` or ``sent_splits.mat`` file; features are not needed."""
    path = Path(path)
    found = read_mat(path, ["att", "allclasses_names", *_INDEX_SETS, *_INNER_SETS])
    missing = [name for name in ("att", *_INDEX_SETS) if name not in found]
    if missing:
        raise DataError(f"{path} lacks {listing(missing)}: it is not an xlsa17 split file.")
    index = {}
    for name in (*_INDEX_SETS, *_INNER_SETS):
        if name in found:
            rows = as_ints(found[name], f"{name} in {path}")
            if len(rows) and rows.min() < 1:
                raise DataError(f"{path}: {name} must count rows from 1, found {rows.min()}.")
            index[name] = as_ints(rows - 1, name)
    names = found.get("allclasses_names")
    class_names = tuple(str(name).strip() for name in np.ravel(names)) if names is not None else None
    return XlsaSplits(path, as_floats(found["att"].T, f"att in {path}"), class_names, index)


def load_xlsa(root: str | Path, name: str, features: str = "res101", semantics: str = "att") -> GZSLData:
    """Load a data set in the layout of xlsa17.

    Class vectors are taken as they are: ``att`` rows usually have unit norm, CUB's ``sent`` rows do not.

    Parameters
    ----------
    root : str or Path
        Folder that holds the data sets' folders.
    name : str
        The data set's folder, e.g. ``CUB``.
    features : str
        Stem of the features file, ``res101`` for ``res101.mat``.
    semantics : str
        Stem of the split file, ``att`` for ``att_splits.mat``, ``sent`` for ``sent_splits.mat``.

    Returns
    -------
    GZSLData
        ``leaks`` says how many rows of ``train_loc`` and ``val_loc`` are test rows in this file.
    """
    folder = Path(root) / name
    splits = read_xlsa_splits(find_file(folder, f"{semantics}_splits.mat", "*_splits.mat", "semantics"))
    path = find_file(folder, f"{features}.mat", "*.mat", "features")
    x, labels = _read_features(path)
    _require_in_range(splits, labels, path)
    order = np.concatenate([splits.index[key] for key in _INDEX_SETS])
    if len(np.unique(order)) == len(order):
        # Sorting the rows into the split's order inside the array the file was read into makes the three parts views:
        # the features are in memory once, not twice.
        _reorder_rows(x, order)
        bounds = np.cumsum([0, *(len(splits.index[key]) for key in _INDEX_SETS)])
        parts = [x[start:stop] for start, stop in pairwise(bounds)]
    else:  # overlapping sets: GZSLData refuses them with a sentence
        parts = [x[splits.index[key]] for key in _INDEX_SETS]
    seen = np.unique(labels[splits.index["trainval_loc"]])
    try:
        return GZSLData(
            x_train=parts[0],
            y_train=labels[splits.index["trainval_loc"]],
            x_test_seen=parts[1],
            y_test_seen=labels[splits.index["test_seen_loc"]],
            x_test_unseen=parts[2],
            y_test_unseen=labels[splits.index["test_unseen_loc"]],
            attributes=splits.attributes,
            class_names=splits.class_names,  # type: ignore[arg-type]
            seen=seen,
            train_index=splits.index["trainval_loc"],
            test_seen_index=splits.index["test_seen_loc"],
            test_unseen_index=splits.index["test_unseen_loc"],
            name=folder.resolve().name,
            features=features,
            semantics=semantics,
            leaks=splits.leaks,
        )
    except DataError as error:
        raise DataError([f"{folder}: {problem}" for problem in error.problems]) from error


def find_file(folder: Path, name: str, pattern: str, option: str) -> Path:
    """The file ``name`` of ``folder``, or an error that lists what could be meant instead."""
    path = folder / name
    if path.is_file():
        return path
    if not folder.is_dir():
        raise DGZError(f"{folder} is not a folder; expected one with {name} in it.")
    ending = pattern.lstrip("*")
    others = sorted(
        other.name.removesuffix(ending)
        for other in folder.glob(pattern)
        if pattern != "*.mat" or not other.name.endswith("_splits.mat")
    )
    hint = f"{option} found there: {listing(others)}" if others else f"no {option} found there"
    raise DataError(f"{path} is missing ({hint}).")


def _read_features(path: Path) -> tuple[npt.NDArray[np.float32], Ints]:
    found = read_mat(path, ["features", "labels"])
    if missing := [name for name in ("features", "labels") if name not in found]:
        raise DataError(f"{path} lacks {listing(missing)}: it is not an xlsa17 features file.")
    features = found.pop("features")
    labels = as_ints(found["labels"], f"labels in {path}")
    if features.dtype.kind not in "fiub":
        raise DataError(f"{path}: features must hold numbers, found {features.dtype}.")
    if features.ndim != 2 or features.shape[1] != len(labels):
        raise DataError(
            f"{path}: features must have the shape (n_features, n_rows) with a column for each of the {len(labels)} "
            f"labels, found {features.shape}."
        )
    # MATLAB's column order makes the transposed array C-ordered, so this copies only what is not float32.
    with np.errstate(over="ignore"):  # float64 values beyond float32 become inf, which GZSLData reports
        x = np.ascontiguousarray(features.T, dtype=np.float32)
    return x, as_ints(labels - 1, "labels")


def _require_in_range(splits: XlsaSplits, labels: Ints, path: Path) -> None:
    n_classes = len(splits.attributes)
    if len(labels) and (labels.min() < 0 or labels.max() >= n_classes):
        raise DataError(
            f"{path}: labels must run from 1 to {n_classes} (the classes of {splits.path.name}), "
            f"found {labels.min() + 1} to {labels.max() + 1}."
        )
    for name in _INDEX_SETS:
        rows = splits.index[name]
        if len(rows) and rows.max() >= len(labels):
            raise DataError(
                f"{splits.path}: {name} must count rows from 1 to {len(labels)} (the rows of {path.name}), "
                f"found {rows.max() + 1}."
            )


def _reorder_rows(x: npt.NDArray[np.float32], order: Ints) -> None:
    """Bring row ``order[i]`` to place ``i``, in place; rows that are not named go to the end.

    Follows the permutation's cycles, so that only one row is ever held twice.
    """
    rest = np.setdiff1d(np.arange(len(x)), order, assume_unique=True)
    source = np.concatenate([order, rest]).tolist()
    done = [False] * len(source)
    for start in range(len(source)):
        if done[start] or source[start] == start:
            continue
        held, place = x[start].copy(), start
        while source[place] != start:
            x[place] = x[source[place]]
            done[place] = True
            place = source[place]
        x[place] = held
        done[place] = True
