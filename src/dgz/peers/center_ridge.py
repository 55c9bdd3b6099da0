"""CenterRidge: class centres predicted by kernel ridge regression, the simplest honest baseline.

A closed form that anyone would try first: map class vectors to class means, classify by the nearest centre in angle,
and correct the preference for seen classes by a penalty. All its settings are chosen on leak-free folds of the training
rows.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
from scipy.spatial.distance import pdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import normalize

from dgz.data.dataset import Floats, Ints
from dgz.data.scaling import FeatureScaling, VectorScaling
from dgz.estimator import Arrays
from dgz.metrics import class_means
from dgz.peers.closed_form import Classes, ClosedForm, Solver


class CenterRidge(ClosedForm):
    """Baseline: kernel ridge regression from class vectors to class centres, with calibrated stacking.

    A row's score for a class is the cosine of the angle to the class's predicted centre, less ``seen_penalty_`` for a
    seen class (Chao et al., 2016).

    Parameters
    ----------
    feature_scaling : {"minmax_l2", "minmax", "none"}
        See :class:`~dgz.data.FeatureScaler`.
    attribute_scaling : {"none", "unit", "standard", "sqrt_d"}
        See :class:`~dgz.data.AttributeScaler`.
    alpha : float or "auto"
        Strength of the ridge.
    bandwidth : float or "auto"
        Width of the Gaussian kernel in units of the median distance between seen classes' vectors.
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
    alpha_, bandwidth_, seen_penalty_ : float
        The settings in use.
    centers_ : array of shape (n_classes, d_x)
        Unit-norm centres in scaled feature space.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> from dgz.metrics import gzsl_scores
    >>> data = load_numbers(0)
    >>> model = CenterRidge().fit(data.x_train, data.y_train, data.attributes)
    >>> gzsl_scores(model, data).h > 0.8
    True
    """

    tried: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "alpha": (0.001, 0.01, 0.1, 1.0),
        "bandwidth": (0.5, 1.0, 2.0, 4.0),
    }

    def __init__(
        self,
        *,
        feature_scaling: FeatureScaling = "minmax_l2",
        attribute_scaling: VectorScaling = "none",
        alpha: float | str = "auto",
        bandwidth: float | str = "auto",
        seen_penalty: float | str = "auto",
        n_folds: int = 3,
        temperature: float = 0.04,
        random_state: int = 0,
    ) -> None:
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.alpha = alpha
        self.bandwidth = bandwidth
        self.seen_penalty = seen_penalty
        self.n_folds = n_folds
        self.temperature = temperature
        self.random_state = random_state

    def _solver(self, rows: Floats, y: Ints, classes: Classes) -> Solver:
        means = class_means(rows, y, classes.seen).numpy()
        known = classes.vectors[classes.seen]

        def solve(alpha: float, bandwidth: float) -> Arrays:
            return {"centers": predict_centers(known, means, classes.vectors, alpha, bandwidth)}

        return solve


def predict_centers(known: Floats, means: Floats, vectors: Floats, alpha: float, bandwidth: float) -> Floats:
    """Unit-norm centres (n, d_x) of classes with ``vectors`` (n, d_a), from ``known`` vectors and their ``means``."""
    distance = float(np.median(pdist(known))) if len(known) > 1 else 0.0
    gamma = 0.5 / (bandwidth * (distance or 1.0)) ** 2
    # The ridge pulls predictions towards zero; with the grand mean taken out, it pulls them towards an average class.
    grand_mean = means.mean(axis=0)
    ridge = KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma).fit(known, means - grand_mean)
    return normalize(ridge.predict(vectors) + grand_mean).astype(np.float32)  # type: ignore[no-any-return]
