"""NearestPrototype: the nearest of one vector per class, by angle, as CLIP's users classify without training.

The simplest thing to do with frozen features. Its settings are chosen on leak-free folds of the training rows.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Literal

import numpy as np
from scipy.special import softmax
from sklearn.preprocessing import normalize

from dgz.data import FeatureScaler
from dgz.data.dataset import Floats, Ints
from dgz.data.scaling import VectorScaling
from dgz.errors import DGZError
from dgz.estimator import Arrays
from dgz.metrics import class_means
from dgz.peers.closed_form import Classes, ClosedForm, Settings, Solver


class NearestPrototype(ClosedForm):
    """Baseline: a row belongs to the class whose prototype is nearest in angle; no weights are learned.

    In a space of ``prototypes``, a seen class's is the mean of its rows' directions, and an unseen class's is a mean of
    those, weighted by the softmax of the cosines between class vectors (as ConSE weighs, Norouzi et al., 2014, but with
    class vectors in place of a classifier). In a ``shared`` space, such as that of CLIP's pictures and texts, every
    class's prototype is its vector itself: the zero-shot rule of CLIP, and training rows only set the penalty on seen
    classes.

    Parameters
    ----------
    feature_scaling : {"auto", "minmax_l2", "minmax", "none"}
        See :class:`~dgz.data.FeatureScaler`. A shared space needs ``none``, which is what "auto" is where such a space
        is possible; elsewhere it is ``minmax_l2``.
    attribute_scaling : {"none", "unit", "standard", "sqrt_d"}
        See :class:`~dgz.data.AttributeScaler`.
    space : {"auto", "shared", "prototypes"}
        What prototypes are. A shared space is possible where features and class vectors have one width; "auto" then
        takes what is better on the folds.
    sharpness : float or "auto"
        Multiplies the cosines between class vectors before the softmax.
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
    sharpness_, seen_penalty_ : float
        The settings in use.
    space_, feature_scaling_ : str
        Likewise.
    centers_ : array of shape (n_classes, d_x)
        The prototypes, of unit norm.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> from dgz.metrics import gzsl_scores
    >>> data = load_numbers(0)
    >>> model = NearestPrototype().fit(data.x_train, data.y_train, data.attributes)
    >>> gzsl_scores(model, data).h > 0.5
    True
    """

    feature_scalings: ClassVar[tuple[str, ...]] = ("auto", *ClosedForm.feature_scalings)
    tried: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "space": ("shared", "prototypes"),
        "sharpness": (1.0, 3.0, 10.0, 30.0, 100.0, 300.0),
    }

    def __init__(
        self,
        *,
        feature_scaling: Literal["auto", "none", "minmax", "minmax_l2"] = "auto",
        attribute_scaling: VectorScaling = "none",
        space: Literal["auto", "shared", "prototypes"] = "auto",
        sharpness: float | str = "auto",
        seen_penalty: float | str = "auto",
        n_folds: int = 3,
        temperature: float = 0.02,
        random_state: int = 0,
    ) -> None:
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.space = space
        self.sharpness = sharpness
        self.seen_penalty = seen_penalty
        self.n_folds = n_folds
        self.temperature = temperature
        self.random_state = random_state

    @property
    def feature_scaling_(self) -> str:
        """The scaling of features in use."""
        return self.scaler_.method

    def _may_be_shared(self) -> bool:
        return self.n_features_in_ == self.attributes_.shape[1] and self.feature_scaling in ("auto", "none")

    def _feature_scaler(self) -> FeatureScaler:
        if self.feature_scaling != "auto":
            return super()._feature_scaler()
        return FeatureScaler("none" if self._may_be_shared() and self.space != "prototypes" else "minmax_l2")

    def _points(self) -> list[Settings]:
        points = super()._points()
        prototypes = [point for point in points if point["space"] == "prototypes"]
        shared = [point for point in points if point["space"] == "shared"][:1]  # which no sharpness changes
        if self._may_be_shared():
            return shared + prototypes
        if not prototypes:
            raise DGZError(
                "A shared space needs features and class vectors of one width, and features as they are, found widths "
                f"{self.n_features_in_} and {self.attributes_.shape[1]}, and the scaling {self.feature_scaling!r}."
            )
        return prototypes

    def _solver(self, rows: Floats, y: Ints, classes: Classes) -> Solver:
        means = class_means(normalize(rows), y, classes.seen).numpy()
        unit = normalize(classes.vectors.astype(np.float64))
        cosines = unit[classes.unseen] @ unit[classes.seen].T

        def solve(space: str, sharpness: float) -> Arrays:
            if space == "shared":
                return {"centers": normalize(classes.vectors)}
            prototypes = np.empty((len(unit), rows.shape[1]))
            prototypes[classes.seen] = means
            prototypes[classes.unseen] = softmax(sharpness * cosines, axis=1) @ means
            return {"centers": normalize(prototypes).astype(np.float32)}

        return solve
