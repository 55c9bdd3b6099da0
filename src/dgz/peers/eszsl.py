"""ESZSL (Romera-Paredes & Torr, ICML 2015): a bilinear map between features and class vectors, in one line of algebra.

The closed form of a squared loss with two ridges. All its settings are chosen on leak-free folds of the training rows.
"""

from collections.abc import Mapping
from functools import lru_cache
from typing import Any, ClassVar, Literal

import numpy as np

from dgz.data.dataset import Floats, Ints
from dgz.data.scaling import FeatureScaling, VectorScaling
from dgz.estimator import Arrays
from dgz.peers.closed_form import Classes, ClosedForm, Doubles, Scorer, Solver, class_sums, spectrum


class ESZSL(ClosedForm):
    r"""ESZSL: scores :math:`x^\top V a`, where V fits 1 for a row's own class and 0 for all others.

    .. math:: V = (X X^\top + \gamma I)^{-1}\, X Y S^\top\, (S S^\top + \lambda I)^{-1}

    with rows X (d_x, n), their labels Y (n, n_seen) and the seen classes' vectors S (d_a, n_seen).

    Faithful to the paper: the loss, the penalties that give this closed form (:math:`\beta = \gamma\lambda`), and the
    grid :math:`10^{-3}, \dots, 10^3` of both ridges. Approximate: the kernel is linear; rows are scaled to one norm;
    settings are chosen by H, on folds with unseen and seen classes, where the paper takes the accuracy among unseen
    ones; and seen classes have a penalty, since the paper only ever chooses among unseen classes.

    Parameters
    ----------
    feature_scaling : {"minmax_l2", "minmax", "none"}
        See :class:`~dgz.data.FeatureScaler`.
    attribute_scaling : {"none", "unit", "standard", "sqrt_d"}
        See :class:`~dgz.data.AttributeScaler`.
    labels : {"auto", "zero_one", "signs"}
        What Y holds for the classes that are not a row's own: 0, as in the authors' code, or −1, as in the paper.
    feature_ridge : float or "auto"
        Strength of the ridge on the side of features (γ).
    class_ridge : float or "auto"
        Strength of the ridge on the side of class vectors (λ).
    seen_penalty : float or "auto"
        Subtracted from the scores of seen classes.
    n_folds : int
        Leak-free folds on which "auto" settings are chosen, by mean H; no more than there are seen classes.
    temperature : float
        Divides the scores before the softmax of ``predict_proba``.
    random_state : int
        Draws the folds.

    Attributes
    ----------
    feature_ridge_, class_ridge_, seen_penalty_ : float
        The settings in use.
    labels_ : str
        Likewise.
    weights_ : array of shape (n_classes, d_x)
        V times each class's vector: what a scaled row is multiplied by.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> from dgz.metrics import gzsl_scores
    >>> data = load_numbers(0)
    >>> model = ESZSL().fit(data.x_train, data.y_train, data.attributes)
    >>> gzsl_scores(model, data).h > 0.85
    True
    """

    # Authors' code: Y is 0 for other classes, where the paper has −1, which asks a map without a bias for a constant.
    tried: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "labels": ("zero_one", "signs"),
        "feature_ridge": tuple(10.0**b for b in range(-3, 4)),
        "class_ridge": tuple(10.0**b for b in range(-3, 4)),
    }

    def __init__(
        self,
        *,
        feature_scaling: FeatureScaling = "minmax_l2",
        attribute_scaling: VectorScaling = "none",
        labels: Literal["auto", "zero_one", "signs"] = "zero_one",
        feature_ridge: float | str = "auto",
        class_ridge: float | str = "auto",
        seen_penalty: float | str = "auto",
        n_folds: int = 3,
        temperature: float = 0.02,
        random_state: int = 0,
    ) -> None:
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.labels = labels
        self.feature_ridge = feature_ridge
        self.class_ridge = class_ridge
        self.seen_penalty = seen_penalty
        self.n_folds = n_folds
        self.temperature = temperature
        self.random_state = random_state

    def _solver(self, rows: Floats, y: Ints, classes: Classes) -> Solver:
        known = classes.vectors[classes.seen].astype(np.float64)
        sums = class_sums(rows, y, classes.seen)
        row_values, row_axes = spectrum(rows)
        class_values, class_axes = spectrum(known)
        # Both inverses are diagonal in these axes, and XYSᵀ has no part outside of them.
        along = {"zero_one": sums @ row_axes}
        along["signs"] = 2 * along["zero_one"] - along["zero_one"].sum(axis=0)  # a class's rows less all others
        core = {labels: (known @ class_axes).T @ part for labels, part in along.items()}
        vectors = classes.vectors @ class_axes

        @lru_cache(maxsize=1)  # settings come with the same ridge on features again and again
        def map_axes(labels: str, feature_ridge: float) -> Doubles:
            return (core[labels] / (row_values + feature_ridge)) @ row_axes.T

        def solve(labels: str, feature_ridge: float, class_ridge: float) -> Arrays:
            weights = (vectors / (class_values + class_ridge)) @ map_axes(labels, feature_ridge)
            return {"weights": weights.astype(np.float32)}

        return solve

    def _scorer(self, rows: Floats, classes: Classes) -> Scorer:
        return lambda learned, **_: rows @ learned["weights"].T

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        return {"weights": (len(self.classes_), self.n_features_in_)}
