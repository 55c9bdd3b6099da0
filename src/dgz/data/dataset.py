"""GZSLData: one data set for generalized zero-shot learning, frozen, validated and hashed.

Every reader in this package ends here and everything to the right starts here: features and labels split into training
rows, test rows of seen classes and test rows of unseen classes, and one vector per class. Values are as they were read:
scaling belongs to the estimators, which must repeat it on new rows.
"""

import hashlib
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from types import MappingProxyType
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from dgz.errors import DataError

Floats = npt.NDArray[np.float32]
Ints = npt.NDArray[np.int64]
T = TypeVar("T", bound=np.generic)

# Rows checked or hashed at a time: a block stays in cache and no full-size temporary array is made.
_BLOCK = 1024
SPLITS = ("train", "test_seen", "test_unseen")


@dataclass(frozen=True, eq=False, kw_only=True)
class GZSLData:
    """A data set whose classes are either seen (they have training rows) or unseen (they have none).

    Labels are class ids: row numbers of ``attributes``. Arrays are held as read-only float32 and int64.

    Parameters
    ----------
    x_train, x_test_seen, x_test_unseen : array of shape (n, d_x)
        Features. The test sets may be left out.
    y_train, y_test_seen, y_test_unseen : array of shape (n,)
        Class ids of the rows.
    attributes : array of shape (n_classes, d_a)
        One vector per class: attributes, or an embedding of a text.
    class_names : sequence of str, optional
        Made up (``class_0``, …) where absent.
    seen, unseen : array, optional
        Class ids. By default the classes of ``y_train`` are seen and all others unseen.
    train_index, test_seen_index, test_unseen_index : array, optional
        Row of the source that each row came from; consecutive by default.
    name, features, semantics : str
        What the data set, its features (``res101``) and its class vectors (``att``) are called.
    leaks : mapping of str to int
        Index sets of the source that overlap the test rows, with the size of the overlap. The overlap is never used.

    Raises
    ------
    DataError
        With one sentence for each thing that is wrong.

    Examples
    --------
    >>> data = GZSLData(
    ...     x_train=[[0.0, 1.0], [1.0, 0.0]], y_train=[0, 1],
    ...     x_test_unseen=[[1.0, 1.0]], y_test_unseen=[2],
    ...     attributes=[[0.0], [1.0], [0.5]], class_names=["left", "right", "middle"],
    ... )
    >>> data.seen, data.unseen
    (array([0, 1]), array([2]))
    >>> sorted(data.hashes)
    ['attributes', 'features', 'split']
    """

    x_train: Floats
    y_train: Ints
    attributes: Floats
    x_test_seen: Floats = None  # type: ignore[assignment]  # None stands for "no rows" and is replaced on construction
    y_test_seen: Ints = None  # type: ignore[assignment]
    x_test_unseen: Floats = None  # type: ignore[assignment]
    y_test_unseen: Ints = None  # type: ignore[assignment]
    class_names: tuple[str, ...] = None  # type: ignore[assignment]
    seen: Ints = None  # type: ignore[assignment]
    unseen: Ints = None  # type: ignore[assignment]
    train_index: Ints = None  # type: ignore[assignment]
    test_seen_index: Ints = None  # type: ignore[assignment]
    test_unseen_index: Ints = None  # type: ignore[assignment]
    name: str = "unnamed"
    features: str = "features"
    semantics: str = "att"
    leaks: Mapping[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the class is frozen for everyone else
        put(self, "x_train", as_floats(self.x_train, "x_train"))
        put(self, "y_train", as_ints(self.y_train, "y_train"))
        put(self, "attributes", as_floats(self.attributes, "attributes"))
        n_features, n_classes = self.x_train.shape[1], len(self.attributes)
        for split in SPLITS[1:]:
            x, y = getattr(self, f"x_{split}"), getattr(self, f"y_{split}")
            put(self, f"x_{split}", as_floats(np.empty((0, n_features)) if x is None else x, f"x_{split}"))
            put(self, f"y_{split}", as_ints(np.empty(0) if y is None else y, f"y_{split}"))
        if self.seen is None:
            inside = (self.y_train >= 0) & (self.y_train < n_classes)  # labels out of range are reported below
            put(self, "seen", np.unique(self.y_train[inside]))
        put(self, "seen", as_ints(self.seen, "seen"))
        if self.unseen is None:
            put(self, "unseen", np.setdiff1d(np.arange(n_classes), self.seen))
        put(self, "unseen", as_ints(self.unseen, "unseen"))
        start = 0
        for split in SPLITS:
            stop = start + len(getattr(self, f"y_{split}"))
            index = getattr(self, f"{split}_index")
            put(self, f"{split}_index", as_ints(np.arange(start, stop) if index is None else index, f"{split}_index"))
            start = stop
        names = made_up_names(n_classes) if self.class_names is None else tuple(map(str, self.class_names))
        put(self, "class_names", names)
        put(self, "leaks", MappingProxyType({key: int(value) for key, value in self.leaks.items() if value}))
        problems = list(_problems(self))
        if problems:
            raise DataError(problems)

    def __repr__(self) -> str:
        counts = " / ".join(str(len(getattr(self, f"y_{split}"))) for split in SPLITS)
        return (
            f"GZSLData({self.name!r}: {len(self.seen)} seen + {len(self.unseen)} unseen classes, {counts} rows "
            f"(train / test seen / test unseen) of {self.x_train.shape[1]} {self.features!r} features, "
            f"{self.attributes.shape[1]}-d {self.semantics!r} class vectors)"
        )

    @property
    def n_classes(self) -> int:
        """Number of classes, seen and unseen."""
        return len(self.attributes)

    @cached_property
    def row_digests(self) -> Mapping[str, npt.NDArray[np.void]]:
        """A 32-byte digest of every row's float32 values, per split: the features' hash and the search for copies."""
        return {
            split: np.frombuffer(
                b"".join(hashlib.sha256(row).digest() for row in getattr(self, f"x_{split}")), dtype=np.dtype("V32")
            )
            for split in SPLITS
        }

    @cached_property
    def hashes(self) -> dict[str, str]:
        """SHA-256 of the float32 features (in source order), of the class vectors, and of the split with its labels.

        They depend on values only: the same features give the same hash from any file format and in any split.
        """
        index = np.concatenate([getattr(self, f"{split}_index") for split in SPLITS])
        digests = np.concatenate([self.row_digests[split] for split in SPLITS])[np.argsort(index, kind="stable")]
        shape = np.array([len(index), self.x_train.shape[1]])
        split_parts = [self.seen, self.unseen]
        for split in SPLITS:
            order = np.argsort(getattr(self, f"{split}_index"), kind="stable")
            split_parts += [getattr(self, f"{split}_index")[order], getattr(self, f"y_{split}")[order]]
        return {
            "features": _sha256(shape, digests),
            "attributes": _sha256(np.array(self.attributes.shape), self.attributes),
            "split": _sha256(*[part for parts in split_parts for part in (np.array(len(parts)), parts)]),
        }

    def record(self) -> dict[str, Any]:
        """What a result must say about its data: names, counts, hashes, leaks. Safe for JSON."""
        return {
            "name": self.name,
            "features": self.features,
            "semantics": self.semantics,
            "n_rows": {split: len(getattr(self, f"y_{split}")) for split in SPLITS},
            "n_features": self.x_train.shape[1],
            "n_attributes": self.attributes.shape[1],
            "n_seen": len(self.seen),
            "n_unseen": len(self.unseen),
            "hashes": dict(self.hashes),
            "leaks": dict(self.leaks),
        }


def as_floats(values: Any, what: str) -> Floats:
    """A read-only, C-ordered float32 matrix of ``values``, without a copy where it is one already."""
    array = np.asarray(values)
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} must hold numbers, found {array.dtype}.")
    if array.ndim != 2:
        raise DataError(f"{what} must have 2 dimensions (rows × columns), found shape {array.shape}.")
    with np.errstate(over="ignore"):  # float64 values beyond float32 become inf, which validation reports
        array = np.ascontiguousarray(array, dtype=np.float32)
    return _frozen(array)


def as_ints(values: Any, what: str) -> Ints:
    """A read-only int64 vector of ``values``: any integer width, or floats that are whole numbers."""
    array = np.asarray(values)
    if array.ndim == 2 and 1 in array.shape:  # MATLAB and CSV columns
        array = array.ravel()
    if array.ndim != 1:
        raise DataError(f"{what} must be one row or column of numbers, found shape {array.shape}.")
    if array.dtype.kind not in "fiub":
        raise DataError(f"{what} must hold whole numbers, found {array.dtype}.")
    if array.dtype.kind == "f":
        bad = np.flatnonzero(~(np.abs(array) < 2**53) | (array != np.floor(array)))
        if len(bad):
            raise DataError(f"{what} must hold whole numbers, found {array[bad[0]]} in row {bad[0]}.")
    elif array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise DataError(f"{what} holds {array.max()}, which is too large.")
    return _frozen(np.ascontiguousarray(array, dtype=np.int64))


def made_up_names(n_classes: int) -> tuple[str, ...]:
    """Names for classes that have none.

    Examples
    --------
    >>> made_up_names(11)[:2]
    ('class_00', 'class_01')
    """
    width = len(str(max(n_classes - 1, 0)))
    return tuple(f"class_{i:0{width}d}" for i in range(n_classes))


def says_fine_tuned(features: str) -> bool:
    """Whether the name of features says that their backbone was trained on the data set: compare with such only.

    Examples
    --------
    >>> says_fine_tuned("res101_finetuned"), says_fine_tuned("res101")
    (True, False)
    """
    return re.search("finetun|fine_tun|fine-tun|_ft", features) is not None


def _frozen(array: npt.NDArray[T]) -> npt.NDArray[T]:
    view = array.view()  # the caller's own array stays writable
    view.flags.writeable = False
    return view


def _sha256(*parts: npt.NDArray[Any]) -> str:
    digest = hashlib.sha256()
    for part in parts:
        digest.update(np.ascontiguousarray(part).data)
    return digest.hexdigest()


def _problems(data: GZSLData) -> Iterator[str]:
    """Every sentence about what is wrong with a data set's parts."""
    n_features, n_classes = data.x_train.shape[1], data.n_classes
    if not len(data.x_train):
        yield "x_train has no rows."
    if n_features == 0:
        yield "x_train has no columns."
    if n_classes == 0 or data.attributes.shape[1] == 0:
        yield f"attributes must have a row per class and at least one column, found shape {data.attributes.shape}."
    if len(data.class_names) != n_classes:
        yield f"There are {len(data.class_names)} class_names but {n_classes} rows of attributes."
    repeated = sorted(name for name, count in Counter(data.class_names).items() if count > 1)
    if repeated:
        yield f"class_names must differ, found more than once: {listing(repeated)}."
    if any(not name.strip() for name in data.class_names):
        yield f"class_names must not be empty, found one at {[n.strip() for n in data.class_names].index('')}."
    bad = first_bad_row(data.attributes)
    if bad is not None:
        yield f"attributes must be finite, found NaN or infinity in row {bad} (class {_name(data, bad)})."
    yield from _class_problems(data)
    for split in SPLITS:
        x, y, index = (getattr(data, key) for key in (f"x_{split}", f"y_{split}", f"{split}_index"))
        if x.shape[1] != n_features:
            yield f"x_{split} has {x.shape[1]} columns but x_train has {n_features}."
        if len(x) != len(y):
            yield f"x_{split} has {len(x)} rows but y_{split} has {len(y)} labels."
        if len(index) != len(y):
            yield f"{split}_index has {len(index)} entries but y_{split} has {len(y)} labels."
        bad = first_bad_row(x)
        if bad is not None:
            yield f"x_{split} must be finite float32, found NaN or infinity in row {bad}."
        if len(y) and (y.min() < 0 or y.max() >= n_classes):
            off = " (are the labels counted from 1?)" if y.min() >= 1 and y.max() == n_classes else ""
            yield f"y_{split} must hold class ids from 0 to {n_classes - 1}, found {y.min()} to {y.max()}{off}."
            continue
        group, ids = ("unseen", data.unseen) if split == "test_unseen" else ("seen", data.seen)
        strangers = np.setdiff1d(y, ids)
        if len(strangers):
            names = listing([_name(data, int(i)) for i in strangers])
            yield f"y_{split} must hold {group} classes only, found {len(strangers)} other(s): {names}."
    yield from _index_problems(data)


def _class_problems(data: GZSLData) -> Iterator[str]:
    for group in ("seen", "unseen"):
        ids = getattr(data, group)
        if len(ids) and (ids.min() < 0 or ids.max() >= data.n_classes):
            yield f"{group} must hold class ids from 0 to {data.n_classes - 1}, found {ids.min()} to {ids.max()}."
        if (np.diff(ids) <= 0).any():
            yield f"{group} must be sorted and free of repeats."
    both = np.intersect1d(data.seen, data.unseen)
    if len(both):
        yield f"A class is either seen or unseen, found as both: {listing([_name(data, int(i)) for i in both])}."
    neither = np.setdiff1d(np.arange(data.n_classes), np.union1d(data.seen, data.unseen))
    if len(neither):
        names = listing([_name(data, int(i)) for i in neither])
        yield f"Every class with a vector must be seen or unseen, found {len(neither)} that are neither: {names}."
    idle = np.setdiff1d(data.seen, data.y_train)
    if len(idle):
        names = listing([_name(data, int(i)) for i in idle])
        yield f"Every seen class needs training rows, found {len(idle)} without: {names} (are the labels shifted?)."


def _index_problems(data: GZSLData) -> Iterator[str]:
    index = np.concatenate([getattr(data, f"{split}_index") for split in SPLITS])
    if len(index) and index.min() < 0:
        yield f"Index sets must not be negative, found {index.min()}."
    if len(np.unique(index)) == len(index):
        return
    for split in SPLITS:
        own = getattr(data, f"{split}_index")
        if len(np.unique(own)) < len(own):
            yield f"{split}_index holds a source row more than once."
    for first, second in (SPLITS[:2], SPLITS[::2], SPLITS[1:]):
        n_both = len(np.intersect1d(getattr(data, f"{first}_index"), getattr(data, f"{second}_index")))
        if n_both:
            yield f"{first}_index and {second}_index must be disjoint, found {n_both} row(s) in both."


def first_bad_row(x: Floats) -> int | None:
    """Number of the first row with a NaN or an infinity; None where all are finite."""
    for start in range(0, len(x), _BLOCK):
        fine = np.isfinite(x[start : start + _BLOCK]).all(axis=1)
        if not fine.all():
            return start + int(np.argmin(fine))
    return None


def _name(data: GZSLData, i: int) -> str:
    return repr(data.class_names[i]) if 0 <= i < len(data.class_names) else str(i)


def listing(names: list[str], most: int = 5) -> str:
    """The first few of many names, and how many more there are.

    Examples
    --------
    >>> listing(["a", "b", "c"], most=2)
    'a, b and 1 more'
    """
    shown = ", ".join(str(name) for name in names[:most])
    return shown if len(names) <= most else f"{shown} and {len(names) - most} more"
