"""The face that every method here shares: scikit-learn's ``predict`` on top of one ``decision_function``.

In come features, labels and class vectors as a user has them (arrays, mappings, DataFrames; any labels); out come the
class list with its vectors, and predictions over all classes, over some of them, or with a penalty on the seen ones.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dgz.data.dataset import Floats, Ints, as_floats, first_bad_row, listing
from dgz.errors import DGZError, require_count

Labels = npt.NDArray[Any]
_BLOCK, _MOST_SCORES = 4096, 2**24  # rows and scores at a time in predicting: rows × classes is never whole in memory


def resolve_classes(y: Labels, attributes: Any) -> tuple[Labels, Floats]:
    """The sorted class labels and their vectors (n_classes, d_a), from any form of ``attributes``.

    Parameters
    ----------
    y : array of shape (n,)
        Training labels; each must have a vector.
    attributes : array of shape (n_classes, d_a), mapping, or DataFrame
        An array is indexed by whole-number labels; a mapping's keys or a DataFrame's index are the labels.

    Examples
    --------
    >>> resolve_classes(np.array(["cat"]), {"dog": [0.0, 1.0], "cat": [1.0, 0.0]})
    (array(['cat', 'dog'], dtype='<U3'), array([[1., 0.],
           [0., 1.]], dtype=float32))
    """
    if hasattr(attributes, "index") and hasattr(attributes, "to_numpy"):  # a DataFrame, without importing pandas
        labels, vectors = np.asarray(attributes.index), as_floats(attributes.to_numpy(), "attributes")
    elif isinstance(attributes, Mapping):
        lengths = {len(vector) for vector in attributes.values()}
        if len(lengths) != 1:
            raise DGZError(f"All class vectors must have the same length, found {listing(sorted(map(str, lengths)))}.")
        labels, vectors = np.asarray(list(attributes)), as_floats(list(attributes.values()), "attributes")
    else:
        vectors = as_floats(attributes, "attributes")
        labels = np.arange(len(vectors))
        if y.dtype.kind not in "iub":
            raise DGZError(
                f"attributes given as an array are indexed by whole-number labels, but y holds {y.dtype}: "
                "pass a mapping or a DataFrame keyed by your labels."
            )
    if labels.dtype == object:
        labels = labels.astype(str)
    classes, order = np.unique(labels, return_index=True)
    if len(classes) < len(labels):
        raise DGZError("attributes names a class more than once.")
    strangers = np.setdiff1d(y, classes)
    if len(strangers):
        raise DGZError(
            f"Every class needs a vector, found {len(strangers)} label(s) without: {listing(list(strangers))}."
        )
    if (bad := first_bad_row(vectors)) is not None:
        raise DGZError(f"attributes must be finite, found NaN or infinity in the vector of class {labels[bad]!r}.")
    return classes, vectors[order]


class GZSLClassifier(ClassifierMixin, BaseEstimator):  # type: ignore[misc]
    """A classifier over seen and unseen classes; a method adds ``fit`` and ``_scores``.

    Attributes
    ----------
    classes_ : array of shape (n_classes,)
        All labels, seen and unseen, sorted; columns of ``decision_function`` follow it.
    attributes_ : array of shape (n_classes, d_a)
        Their vectors as given.
    seen_ : array of bool, shape (n_classes,)
        Which classes had training rows.
    """

    _learned_last: str  # name of what ``fit`` sets at its end: without it, a model is not fitted
    temperature: float = 1.0  # what divides scores before the softmax of predict_proba

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments as JSON has them; those of a part that is an estimator itself, with its kind."""
        return {name: as_json(value) for name, value in self.get_params(deep=False).items()}

    def __sklearn_is_fitted__(self) -> bool:
        return hasattr(self, self._learned_last)

    def _take(self, X: Any, y: Any, attributes: Any) -> tuple[Floats, Ints]:
        """Check the arguments of ``fit``, learn the classes, and give features and rows of ``classes_``."""
        if attributes is None:
            raise DGZError("fit needs attributes: one vector per class, for the classes of y and for the unseen ones.")
        self.__dict__.pop(self._learned_last, None)  # from here on to its end, a failed fit leaves no model
        X, y = validate_data(self, X, y, dtype=[np.float32, np.float64, np.float16], ensure_all_finite=True)
        self.classes_, self.attributes_ = resolve_classes(np.asarray(y), attributes)
        positions = np.searchsorted(self.classes_, y)
        self.seen_ = np.isin(np.arange(len(self.classes_)), positions)
        X = as_floats(X, "X")
        if (bad := first_bad_row(X)) is not None:
            raise DGZError(f"X must be finite, found a value beyond float32 in row {bad}.")
        return X, positions

    @abstractmethod
    def _scores(self, X: Floats) -> npt.NDArray[np.floating[Any]]:
        """Scores (n, n_classes) of checked rows, higher is likelier."""

    def decision_function(self, X: Any) -> npt.NDArray[np.floating[Any]]:
        """Score the rows ``X`` (n, d_x) for every class of ``classes_``: (n, n_classes), higher is likelier."""
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float32, np.float64, np.float16])
        return self._scores(as_floats(X, "X"))

    def predict(self, X: Any, classes: Any = None, seen_penalty: float = 0.0) -> Labels:
        """Label the rows ``X`` (n, d_x).

        Parameters
        ----------
        X : array of shape (n, d_x)
        classes : array, optional
            Labels to choose from; all by default. The unseen ones give plain zero-shot classification.
        seen_penalty : float
            Subtracted from the scores of seen classes (calibrated stacking): a higher one favours unseen classes.
        """
        check_is_fitted(self)
        X = validate_data(self, X, reset=False, dtype=[np.float32, np.float64, np.float16])
        best = [scores.argmax(axis=1) for _, scores in self._blocks(X, classes, seen_penalty)]
        allowed = self.classes_ if classes is None else self.classes_[self._positions(classes)]
        return np.asarray(allowed[np.concatenate(best)])

    def _blocks(
        self, X: Any, classes: Any, seen_penalty: float
    ) -> Iterator[tuple[slice, npt.NDArray[np.floating[Any]]]]:
        """Blocks of rows, with their scores for ``classes`` less the penalty on the seen ones."""
        allowed = None if classes is None else self._positions(classes)
        seen = self.seen_ if allowed is None else self.seen_[allowed]
        size = max(min(_BLOCK, _MOST_SCORES // len(self.classes_)), 1)
        for start in range(0, len(X), size):
            block = slice(start, start + size)
            scores = self._scores(as_floats(X[block], "X"))
            scores = scores if allowed is None else scores[:, allowed]
            yield block, scores - np.where(seen, np.float32(seen_penalty), np.float32(0)) if seen_penalty else scores

    def predict_proba(self, X: Any) -> npt.NDArray[np.floating[Any]]:
        """Softmax of the scores over all classes: (n, n_classes)."""
        return softmax(self.decision_function(X) / self.temperature, axis=1)

    def predict_top(
        self, X: Any, top: int = 1, classes: Any = None, seen_penalty: float = 0.0
    ) -> tuple[Labels, npt.NDArray[np.floating[Any]]]:
        """The likeliest labels of the rows ``X`` (n, d_x) and their probabilities, both (n, top), best first.

        Parameters
        ----------
        X : array of shape (n, d_x)
        top : int
            How many labels; all of them where there are fewer.
        classes, seen_penalty
            As in :meth:`predict`; the probabilities of the ``classes`` sum to 1.
        """
        check_is_fitted(self)
        require_count(top=top)
        X = as_floats(X, "X")
        if X.shape[1] != self.n_features_in_:
            raise DGZError(f"X must have {self.n_features_in_} columns, as the training rows had, found {X.shape[1]}.")
        if (bad := first_bad_row(X)) is not None:
            raise DGZError(f"X must be finite, found NaN or infinity in row {bad}.")
        allowed = self.classes_ if classes is None else self.classes_[self._positions(classes)]
        labels = np.empty((len(X), min(top, len(allowed))), dtype=self.classes_.dtype)
        probabilities = np.empty(labels.shape, dtype=np.float32)
        for block, scores in self._blocks(X, classes, seen_penalty):
            best = np.argsort(-scores, axis=1, kind="stable")[:, :top]  # of equal scores the first, as in predict
            labels[block] = allowed[best]
            probabilities[block] = np.take_along_axis(softmax(scores / self.temperature, axis=1), best, axis=1)
        return labels, probabilities

    def _positions(self, classes: Any) -> Ints:
        classes = np.unique(np.asarray(classes))
        if not len(classes):
            raise DGZError("classes must name at least one class.")
        strangers = np.setdiff1d(classes, self.classes_)
        if len(strangers):
            raise DGZError(f"The model does not know {len(strangers)} of classes: {listing(list(strangers))}.")
        return np.asarray(np.searchsorted(self.classes_, classes))


def as_json(value: Any) -> Any:
    """A setting as JSON has it: a part that is an estimator becomes its kind and its own settings."""
    if hasattr(value, "get_params"):
        inner = {name: as_json(part) for name, part in value.get_params(deep=False).items()}
        return {"kind": type(value).__name__, **inner}
    return value.item() if isinstance(value, np.generic) else value
