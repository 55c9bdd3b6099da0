"""Scaling of features and of class vectors, as named choices.

In come raw values, out come scaled ones. What is fitted is fitted on training rows (features) or on the classes known
at training time (class vectors) and repeated on whatever comes later, so an estimator keeps its scalers with its
weights.
"""

import warnings
from typing import Literal, Self

import numpy as np
import numpy.typing as npt
from sklearn.base import BaseEstimator, TransformerMixin
from sklearn.utils.validation import check_is_fitted

from dgz.data.dataset import Floats, as_floats
from dgz.errors import DGZError, DGZWarning, require_choice

FeatureScaling = Literal["none", "minmax", "minmax_l2"]
VectorScaling = Literal["none", "unit", "standard", "sqrt_d"]
AttributeScaling = Literal["auto", VectorScaling]

# Norms at which a network's first layer and noise of the published size (σ = 0.08) still behave as published.
USUAL_NORMS = (0.5, 50.0)


def _of_norm(norm: float, x: Floats) -> Floats:
    norms = np.sqrt(np.einsum("ij,ij->i", x, x, dtype=np.float64))  # squares of large float32 values overflow
    norms[norms < 1e-30] = 1  # a row of zeros stays one
    scaled: Floats = x * (1 / norms[:, None]).astype(np.float32)
    scaled *= np.float32(norm)
    return scaled


class FeatureScaler(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale features by a rule fitted on training rows only.

    Parameters
    ----------
    method : {"minmax_l2", "minmax", "none"}
        ``minmax`` maps each column's training range to [0, 1]: (x − min) / (max − min); a constant column becomes 0 on
        the training rows. Test rows may leave [0, 1].
        ``minmax_l2`` then gives each row the Euclidean norm ``norm``.
    norm : float
        Row norm under ``minmax_l2``.

    Attributes
    ----------
    min_, scale_ : array of shape (d_x,)
        Each column's minimum and 1 / range on the training rows; absent for ``none``.

    Examples
    --------
    >>> scaler = FeatureScaler("minmax").fit([[0.0, 7.0], [4.0, 7.0]])
    >>> scaler.transform([[2.0, 7.0], [8.0, 7.0]])
    array([[0.5, 0. ],
           [2. , 0. ]], dtype=float32)
    """

    # Authors' code: min-max, then rows of norm 5, before the GAN (util.py); the paper does not mention it. It matters
    # to the generator's scale only: the classifier normalises rows again.
    def __init__(self, method: FeatureScaling = "minmax_l2", norm: float = 5.0) -> None:
        self.method = method
        self.norm = norm

    def fit(self, X: npt.ArrayLike, y: object = None) -> Self:
        """Learn the ranges of the training rows ``X`` (n, d_x)."""
        require_choice(self.method, FeatureScaling, "feature_scaling")
        X = as_floats(X, "X")
        self.n_features_in_ = X.shape[1]
        if self.method != "none":
            self.min_ = X.min(axis=0)
            spread = X.max(axis=0) - self.min_
            # A constant column carries nothing; dividing by its range of zero, or nearly so, would turn noise in test
            # rows into infinity.
            self.scale_ = 1 / np.where(spread > 1e-30, spread, np.float32(1))
        return self

    def transform(self, X: npt.ArrayLike) -> Floats:
        """Scale the rows ``X`` (n, d_x) into a new float32 array (for ``none``: ``X`` itself)."""
        check_is_fitted(self, "n_features_in_")
        x = as_floats(X, "X")
        if x.shape[1] != self.n_features_in_:
            raise DGZError(f"X has {x.shape[1]} features, but {self.n_features_in_} were fitted.")
        if self.method == "none":
            return x
        x = x - self.min_
        x *= self.scale_
        return _of_norm(self.norm, x) if self.method == "minmax_l2" else x


def has_usual_norms(attributes: Floats) -> bool:
    """Whether networks can be trained on class vectors (n_classes, d_a) as they are: the median norm decides.

    A scale is off for all classes or for none; a single class may well have few attributes, or none.
    """
    return bool(USUAL_NORMS[0] <= np.median(np.linalg.norm(attributes, axis=1)) <= USUAL_NORMS[1])


def choose_scaling(scaling: AttributeScaling, attributes: Floats) -> VectorScaling:
    """What ``attribute_scaling`` stands for on these class vectors (n_classes, d_a): itself, unless it is ``auto``.

    Then vectors stay as they are, except where norms lie outside ``USUAL_NORMS``, as those of counts or percentages
    do: on them a network of the published size learns nothing. They are scaled to unit norm, like the attributes that
    the field distributes, and a warning says so.

    Examples
    --------
    >>> choose_scaling("auto", np.eye(3))
    'none'
    """
    if scaling != "auto":
        return scaling
    if has_usual_norms(attributes):
        return "none"
    warnings.warn(
        "Class vectors have unusual norms and are scaled to norm 1: attribute_scaling='unit' says that this is meant, "
        "'none' keeps them as they are.",
        DGZWarning,
        stacklevel=2,
    )
    return "unit"


class AttributeScaler(TransformerMixin, BaseEstimator):  # type: ignore[misc]
    """Scale class vectors by a rule that a class added later can follow too.

    Parameters
    ----------
    method : {"none", "unit", "standard", "sqrt_d"}
        ``none`` keeps the values: published settings such as σ = 0.08 refer to the vectors as distributed.
        ``unit`` gives each row norm 1; ``sqrt_d`` norm √d_a (class normalisation's choice); ``standard`` subtracts each
        column's mean over the fitted classes and divides by its standard deviation, constant columns becoming 0.

    Attributes
    ----------
    mean_, scale_ : array of shape (d_a,)
        Fitted by ``standard`` only.

    Examples
    --------
    >>> AttributeScaler("sqrt_d").fit_transform([[3.0, 4.0, 0.0, 0.0]])
    array([[1.2, 1.6, 0. , 0. ]], dtype=float32)
    """

    def __init__(self, method: VectorScaling = "none") -> None:
        self.method = method

    def fit(self, attributes: npt.ArrayLike, y: object = None) -> Self:
        """Learn what the method needs from the class vectors ``attributes`` (n_classes, d_a)."""
        require_choice(self.method, VectorScaling, "attribute_scaling")
        attributes = as_floats(attributes, "attributes")
        self.n_features_in_ = attributes.shape[1]
        if self.method == "standard":
            self.mean_ = attributes.mean(axis=0)
            spread = attributes.std(axis=0)
            # Rounding gives a constant column a spread of about one float32 step instead of 0.
            constant = spread <= 1e-6 * np.abs(attributes).max(axis=0)
            self.scale_ = np.where(constant, 0, 1 / np.where(constant, 1, spread)).astype(np.float32)
        return self

    def transform(self, attributes: npt.ArrayLike) -> Floats:
        """Scale class vectors (n, d_a) into a float32 array."""
        check_is_fitted(self, "n_features_in_")
        attributes = as_floats(attributes, "attributes")
        if attributes.shape[1] != self.n_features_in_:
            raise DGZError(f"A class vector has {attributes.shape[1]} entries, but {self.n_features_in_} were fitted.")
        if self.method == "standard":
            return (attributes - self.mean_) * self.scale_  # type: ignore[no-any-return]
        if self.method == "none":
            return attributes
        length = 1.0 if self.method == "unit" else np.sqrt(self.n_features_in_)
        return _of_norm(length, attributes)
