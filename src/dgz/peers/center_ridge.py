"""CenterRidge: class centres predicted by kernel ridge regression, the simplest honest baseline.

A closed form that anyone would try first: map class vectors to class means, classify by the nearest centre in angle,
and correct the preference for seen classes by a penalty. All its settings are chosen on leak-free folds of the training
rows.
"""

from collections.abc import Mapping
from itertools import product
from typing import Any, Self

import numpy as np
import numpy.typing as npt
from scipy.spatial.distance import pdist
from sklearn.kernel_ridge import KernelRidge
from sklearn.preprocessing import normalize

from dgz.data import AttributeScaler, FeatureScaler, GZSLData, validation_folds
from dgz.data.dataset import Floats, Ints
from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import DGZError
from dgz.estimator import Arrays, GZSLClassifier, restore_scaler, scaler_arrays, shaped
from dgz.metrics import best_penalty, class_means, decide, seen_unseen_curve

_ALPHAS = (0.001, 0.01, 0.1, 1.0)
_BANDWIDTHS = (0.5, 1.0, 2.0, 4.0)


class CenterRidge(GZSLClassifier):
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
        Leak-free folds on which "auto" settings are chosen, by mean H.
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

    _learned_last = "centers_"

    def __init__(
        self,
        *,
        feature_scaling: FeatureScaling = "minmax_l2",
        attribute_scaling: AttributeScaling = "none",
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

    def fit(self, X: Any, y: Any, attributes: Any = None) -> Self:
        """Fit on rows ``X`` (n, d_x) with labels ``y`` (n,); classes of ``attributes`` absent from ``y`` are unseen."""
        X, y = self._take(X, y, attributes)
        self.alpha_, self.bandwidth_, self.seen_penalty_ = self._choose(X, y)
        self.scaler_ = FeatureScaler(self.feature_scaling).fit(X)
        seen = np.flatnonzero(self.seen_)
        means = class_means(self.scaler_.transform(X), y, seen).numpy()
        vectors = AttributeScaler(self.attribute_scaling).fit_transform(self.attributes_)
        self.centers_ = predict_centers(vectors[seen], means, vectors, self.alpha_, self.bandwidth_)
        return self

    def _scores(self, X: Floats) -> npt.NDArray[np.floating[Any]]:
        scores = normalize(self.scaler_.transform(X)) @ self.centers_.T
        scores[:, self.seen_] -= self.seen_penalty_
        return scores  # type: ignore[no-any-return]

    def _learned(self) -> tuple[dict[str, Any], Arrays]:
        chosen = {name: getattr(self, name) for name in ("alpha_", "bandwidth_", "seen_penalty_")}
        return chosen, {"centers": self.centers_, **scaler_arrays("scaler", self.scaler_)}

    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        for name in ("alpha_", "bandwidth_", "seen_penalty_"):
            setattr(self, name, float(header[name]))
        self.scaler_ = restore_scaler("scaler", FeatureScaler(self.feature_scaling), self.n_features_in_, arrays)
        self.centers_ = shaped(arrays, "centers", len(self.classes_), self.n_features_in_)

    def _choose(self, X: Floats, y: Ints) -> tuple[float, float, float]:
        """The settings alpha, bandwidth and seen_penalty: as given, or those with the best mean H over the folds."""
        alphas = _ALPHAS if self.alpha == "auto" else (_positive(self.alpha, "alpha"),)
        bandwidths = _BANDWIDTHS if self.bandwidth == "auto" else (_positive(self.bandwidth, "bandwidth"),)
        if self.seen_penalty != "auto" and len(alphas) == len(bandwidths) == 1:
            return alphas[0], bandwidths[0], float(self.seen_penalty)
        data = GZSLData(x_train=X, y_train=y, attributes=self.attributes_, name="the training rows")
        found: dict[tuple[float, float], list[tuple[float, float]]] = {
            setting: [] for setting in product(alphas, bandwidths)
        }
        for fold in validation_folds(data, self.n_folds, random_state=self.random_state):
            scaler = FeatureScaler(self.feature_scaling).fit(fold.x_train)
            means = class_means(scaler.transform(fold.x_train), fold.y_train, fold.seen).numpy()
            vectors = AttributeScaler(self.attribute_scaling).fit_transform(fold.attributes)
            tests = [normalize(scaler.transform(x)) for x in (fold.x_test_seen, fold.x_test_unseen)]
            for setting, penalties in found.items():
                centers = predict_centers(vectors[fold.seen], means, vectors, *setting)
                on_seen, on_unseen = (decide(test @ centers.T, fold.seen, fold.unseen) for test in tests)
                curve = seen_unseen_curve(
                    on_seen, fold.y_test_seen, on_unseen, fold.y_test_unseen, fold.seen, fold.unseen
                )
                penalties.append(best_penalty(curve))
        (alpha, bandwidth), penalties = max(found.items(), key=lambda item: np.mean([h for _, h in item[1]]))
        penalty = np.mean([penalty for penalty, _ in penalties]) if self.seen_penalty == "auto" else self.seen_penalty
        return alpha, bandwidth, float(penalty)


def predict_centers(known: Floats, means: Floats, vectors: Floats, alpha: float, bandwidth: float) -> Floats:
    """Unit-norm centres (n, d_x) of classes with ``vectors`` (n, d_a), from ``known`` vectors and their ``means``."""
    distance = float(np.median(pdist(known))) if len(known) > 1 else 0.0
    gamma = 0.5 / (bandwidth * (distance or 1.0)) ** 2
    # The ridge pulls predictions towards zero; with the grand mean taken out, it pulls them towards an average class.
    grand_mean = means.mean(axis=0)
    ridge = KernelRidge(alpha=alpha, kernel="rbf", gamma=gamma).fit(known, means - grand_mean)
    return normalize(ridge.predict(vectors) + grand_mean).astype(np.float32)  # type: ignore[no-any-return]


def _positive(value: float | str, option: str) -> float:
    try:
        number = float(value)
    except ValueError:
        number = -1.0
    if not number > 0:
        raise DGZError(f"{option} must be a positive number or 'auto', found {value!r}.")
    return number
