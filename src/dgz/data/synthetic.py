"""Synthetic data in any shape, for benchmarks and scale tests.

Every class has a few hidden traits. Its vector shows them; its centre follows from them, but for a part that no vector
can tell; its samples spread round the centre. Values are non-negative, as pooled network features are.
"""

import numpy as np
import numpy.typing as npt

from dgz.data.dataset import Floats, GZSLData, Ints
from dgz.errors import DGZError

_BLOCK = 4096  # rows drawn at a time: no second array of the data's size is made
_N_TRAITS, _N_HIDDEN = 12, 64


def make_synthetic(
    n_classes: int = 50,
    n_unseen: int | None = None,
    *,
    n_attributes: int = 85,
    n_features: int = 2048,
    n_samples: int = 37_322,
    test_fraction: float = 0.2,
    difficulty: float = 0.5,
    random_state: int = 0,
) -> GZSLData:
    """Make a data set of a given shape; the defaults are AWA2's.

    Parameters
    ----------
    n_classes, n_unseen : int
        Classes in all, and how many of them are unseen (a fifth by default).
    n_attributes, n_features : int
        Width of the class vectors and of the features.
    n_samples : int
        Rows in all, spread evenly over the classes; at least two for each class.
    test_fraction : float
        Share of each seen class's rows that are test rows. Rows of unseen classes are all test rows.
    difficulty : float
        0: classes lie far apart and their vectors tell all; 1: samples of neighbouring classes overlap widely, and half
        of the centres' variance is in no vector. Scores fall steadily in between, in any shape.
    random_state : int
        The same number gives the same values.

    Examples
    --------
    >>> data = make_synthetic(10, n_attributes=5, n_features=16, n_samples=200)
    >>> data.x_train.shape, len(data.seen), len(data.unseen)
    ((128, 16), 8, 2)
    """
    n_unseen = max(n_classes // 5, 1) if n_unseen is None else n_unseen
    if not 1 <= n_unseen < n_classes:
        raise DGZError(f"n_unseen must be from 1 to n_classes - 1 = {n_classes - 1}, found {n_unseen}.")
    if n_samples < 2 * n_classes:
        raise DGZError(f"n_samples must be at least 2 per class ({2 * n_classes}), found {n_samples}.")
    if not 0 <= difficulty <= 1:
        raise DGZError(f"difficulty must be from 0 to 1, found {difficulty}.")
    if not 0 < test_fraction < 1:
        raise DGZError(f"test_fraction must lie between 0 and 1, found {test_fraction}.")
    rng = np.random.default_rng(random_state)
    traits = rng.standard_normal((n_classes, _N_TRAITS), dtype=np.float32)
    shown = traits @ rng.standard_normal((_N_TRAITS, n_attributes), dtype=np.float32)
    attributes = 1 / (1 + np.exp(-shown))
    centers = _centers(traits, n_features, difficulty, rng)
    unseen = np.sort(rng.choice(n_classes, n_unseen, replace=False))
    is_unseen = np.zeros(n_classes, dtype=bool)
    is_unseen[unseen] = True
    counts = np.full(n_classes, n_samples // n_classes)
    counts[: n_samples % n_classes] += 1
    n_test = np.clip(np.round(test_fraction * counts), 1, counts - 1).astype(int)
    rows = {
        "train": np.where(is_unseen, 0, counts - n_test),
        "test_seen": np.where(is_unseen, 0, n_test),
        "test_unseen": np.where(is_unseen, counts, 0),
    }
    # Two centres lie about √(2 d_x) apart: a spread that grows with √d_x makes any width equally hard.
    spread = (0.05 + 0.2 * difficulty) * np.sqrt(n_features)
    parts: dict[str, npt.NDArray[np.generic]] = {}
    for split, per_class in rows.items():
        y = np.repeat(np.arange(n_classes), per_class)
        parts |= {f"x_{split}": _samples(centers, y, spread, rng), f"y_{split}": y}
    return GZSLData(
        **parts,  # type: ignore[arg-type]
        attributes=attributes,
        unseen=unseen,
        seen=np.flatnonzero(~is_unseen),
        name=f"synthetic-{n_classes}x{n_attributes}x{n_features}",
        features=f"synthetic(difficulty={difficulty:g})",
        semantics="synthetic",
    )


def _centers(traits: Floats, n_features: int, difficulty: float, rng: np.random.Generator) -> Floats:
    """Centres (n_classes, n_features) of variance 1: what the traits tell through a network, and what they do not."""
    inner = np.tanh(traits @ rng.standard_normal((_N_TRAITS, _N_HIDDEN), dtype=np.float32) / np.float32(2))
    told = inner @ rng.standard_normal((_N_HIDDEN, n_features), dtype=np.float32)
    told /= max(float(told.std()), 1e-6)
    untold = rng.standard_normal(told.shape, dtype=np.float32)
    share = np.float32(difficulty / 2)
    return np.sqrt(1 - share) * told + np.sqrt(share) * untold  # type: ignore[no-any-return]


def _samples(centers: Floats, y: Ints, spread: float, rng: np.random.Generator) -> Floats:
    x = np.empty((len(y), centers.shape[1]), dtype=np.float32)
    for start in range(0, len(y), _BLOCK):
        block = x[start : start + _BLOCK]
        rng.standard_normal(out=block, dtype=np.float32)
        block *= np.float32(spread)
        block += centers[y[start : start + _BLOCK]]
        np.maximum(block, 0, out=block)
    return x
