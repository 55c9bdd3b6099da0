"""Leak-free validation folds: small GZSL problems made from a data set's training rows alone.

In comes a GZSLData, out come GZSLData: in each fold some seen classes play unseen, and some rows of the others play the
test rows of seen classes. The real test rows and the real unseen classes never enter. A fold holds raw values, so an
estimator that scales refits its scaler on the fold's own training rows.
"""

from typing import Any

import numpy as np

from dgz.data.dataset import GZSLData, Ints
from dgz.errors import DGZError


def validation_folds(
    data: GZSLData, n_folds: int = 3, *, test_fraction: float = 0.2, random_state: int = 0
) -> list[GZSLData]:
    """Split the seen classes into ``n_folds`` groups; in fold k, group k plays unseen.

    A fold is a data set of its own: its classes are numbered anew, ``class_names`` says which they are, and its index
    sets refer to the same source rows as the index sets of ``data``.

    Parameters
    ----------
    data : GZSLData
        Only its training rows and seen classes are used.
    n_folds : int
        Number of folds, at least 2 and at most the number of seen classes.
    test_fraction : float
        Share of each remaining class's rows that plays test-seen: at least one row, except that a class's only row
        stays in training.
    random_state : int
        The same number gives the same folds.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> fold = validation_folds(load_numbers(0), n_folds=4)[0]
    >>> len(fold.seen), len(fold.unseen)
    (60, 20)
    """
    if not 2 <= n_folds <= len(data.seen):
        raise DGZError(f"n_folds must be from 2 to the number of seen classes ({len(data.seen)}), found {n_folds}.")
    rng = np.random.default_rng(random_state)
    groups = np.array_split(rng.permutation(data.seen), n_folds)
    # Drawn once for all folds: a row that is held out in one fold is held out in every fold it could train in.
    held_out = hold_out_rows(data.y_train, test_fraction, rng)
    return [_fold(data, np.sort(group), held_out, f"fold {k + 1} of {n_folds}") for k, group in enumerate(groups)]


def hold_out_rows(y: Ints, test_fraction: float, rng: np.random.Generator) -> Ints:
    """Draw about ``test_fraction`` of each class's rows: at least one, except that a class's only row is left alone."""
    if not 0 < test_fraction < 1:
        raise DGZError(f"test_fraction must lie between 0 and 1, found {test_fraction}.")
    chosen = [np.empty(0, dtype=np.int64)]
    for c in np.unique(y):
        rows = rng.permutation(np.flatnonzero(y == c))
        chosen.append(rows[: min(max(round(test_fraction * len(rows)), 1), len(rows) - 1)])
    return np.concatenate(chosen)


def _fold(data: GZSLData, unseen: Ints, held_out: Ints, label: str) -> GZSLData:
    plays_unseen = np.isin(data.y_train, unseen)
    is_test = np.zeros(len(data.y_train), dtype=bool)
    is_test[held_out] = True
    rows = {
        "train": np.flatnonzero(~plays_unseen & ~is_test),
        "test_seen": np.flatnonzero(~plays_unseen & is_test),
        "test_unseen": np.flatnonzero(plays_unseen),
    }
    if not len(rows["test_seen"]):
        raise DGZError(f"{label} is empty: no remaining class of {data.name!r} has a second row to play test-seen.")
    number = np.full(data.n_classes, -1)
    number[data.seen] = np.arange(len(data.seen))
    parts: dict[str, Any] = {f"x_{split}": data.x_train[index] for split, index in rows.items()}
    parts |= {f"y_{split}": number[data.y_train[index]] for split, index in rows.items()}
    parts |= {f"{split}_index": data.train_index[index] for split, index in rows.items()}
    return GZSLData(
        **parts,
        attributes=data.attributes[data.seen],
        class_names=tuple(data.class_names[i] for i in data.seen),
        unseen=number[unseen],
        name=f"{data.name} ({label})",
        features=data.features,
        semantics=data.semantics,
    )
