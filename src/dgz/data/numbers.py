"""The embedded data set: handwritten two-digit numbers, made from scikit-learn's digits.

Real pictures that need no download: each sample is two handwritten digits side by side, each class one of 00 to 99,
each class vector a table of strokes for its tens and its units digit. Training and test samples never share a picture
of a digit.
"""

from typing import Any

import numpy as np
from sklearn.datasets import load_digits

from dgz.data.dataset import GZSLData, Ints
from dgz.errors import DGZError

STROKES = (
    "top bar", "upper left side", "upper right side", "middle bar", "lower left side", "lower right side", "bottom bar",
    "loop above", "loop below", "one large loop", "open to the left above", "open to the right above",
    "open to the left below", "open to the right below", "straight diagonal",
)  # fmt: skip

# How a person writes each digit, in halves where the stroke comes and goes between writers: columns as in STROKES.
DIGIT_STROKES = np.array(
    [
        # top ul   ur   mid  ll   lr   bot  lo^  lo_  LOOP oL^  oR^  oL_  oR_  diag
        [1.0, 1.0, 1.0, 0.0, 1.0, 1.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # 0
        [0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.5],  # 1
        [1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.5],  # 2
        [1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, 0.0, 0.0],  # 3
        [0.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.5],  # 4
        [1.0, 1.0, 0.0, 1.0, 0.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 1.0, 0.0, 0.0],  # 5
        [0.5, 1.0, 0.0, 1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0],  # 6
        [1.0, 0.0, 1.0, 0.5, 0.0, 0.5, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 0.0, 1.0],  # 7
        [1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0],  # 8
        [1.0, 1.0, 1.0, 1.0, 0.0, 1.0, 0.5, 1.0, 0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 0.0],  # 9
    ]
)


def load_numbers(seed: int = 0, *, n_train: int = 50, n_test: int = 20) -> GZSLData:
    """Make the two-digit numbers: 100 classes 00–99, 80 of them seen and 20 never seen.

    Parameters
    ----------
    seed : int
        Chooses the unseen classes, the pools of digit pictures and the pairs drawn from them.
    n_train, n_test : int
        Training samples of each seen class; test samples of each class.

    Returns
    -------
    GZSLData
        128 pixel values (8 × 16, from 0 to 16) per sample, 30 strokes per class.

    Examples
    --------
    >>> data = load_numbers(0)
    >>> data.x_train.shape, data.attributes.shape, len(data.unseen)
    ((4000, 128), (100, 30), 20)
    """
    if n_train < 1 or n_test < 1:
        raise DGZError(f"n_train and n_test must be at least 1, found {n_train} and {n_test}.")
    rng = np.random.default_rng(seed)
    unseen = _balanced_classes(rng)
    seen = np.setdiff1d(np.arange(100), unseen)
    pictures, digits = load_digits(return_X_y=True)
    train_pool, test_pool = _two_pools(digits, rng)
    parts = {
        "train": _draw(seen, n_train, train_pool, rng),
        "test_seen": _draw(seen, n_test, test_pool, rng),
        "test_unseen": _draw(unseen, n_test, test_pool, rng),
    }
    arrays: dict[str, Any] = {}
    for split, (y, left, right) in parts.items():
        sides = [pictures[rows].reshape(-1, 8, 8) for rows in (left, right)]
        arrays[f"x_{split}"] = np.concatenate(sides, axis=2).reshape(-1, 128)
        arrays[f"y_{split}"] = y
    tens, units = np.divmod(np.arange(100), 10)
    return GZSLData(
        **arrays,
        attributes=np.concatenate([DIGIT_STROKES[tens], DIGIT_STROKES[units]], axis=1),
        class_names=tuple(f"{i:02d}" for i in range(100)),
        seen=seen,
        unseen=unseen,
        name="numbers",
        features="pixels",
        semantics="strokes",
    )


def _balanced_classes(rng: np.random.Generator) -> Ints:
    """20 of the 100 numbers, with each digit twice at the tens and twice at the units: none becomes unknown."""
    units = rng.permutation(10)
    return np.sort(np.concatenate([10 * np.arange(10) + np.roll(units, shift) for shift in (0, 1)]))


def _two_pools(digits: Ints, rng: np.random.Generator) -> tuple[list[Ints], list[Ints]]:
    """Pictures of each digit for training (two thirds) and, disjoint from them, for testing."""
    train, test = [], []
    for digit in range(10):
        rows = rng.permutation(np.flatnonzero(digits == digit))
        cut = 2 * len(rows) // 3
        train.append(rows[:cut])
        test.append(rows[cut:])
    return train, test


def _draw(classes: Ints, n: int, pool: list[Ints], rng: np.random.Generator) -> tuple[Ints, Ints, Ints]:
    """``n`` samples of each class: labels, and the pictures on the left and on the right."""
    y = np.repeat(classes, n)
    left, right = (np.array([rng.choice(pool[digit]) for digit in side]) for side in np.divmod(y, 10))
    return y, left, right
