"""The face that every method here shares: scikit-learn's ``predict`` on top of one ``decision_function``.

In come features, labels and class vectors as a user has them (arrays, mappings, DataFrames; any labels); out come the
class list with its vectors, and predictions over all classes, over some of them, or with a penalty on the seen ones.
A fitted model is a folder of JSON and safetensors.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import load_file
from scipy.special import softmax
from sklearn.base import BaseEstimator, ClassifierMixin
from sklearn.utils.validation import check_is_fitted, validate_data

from dgz.data import AttributeScaler, FeatureScaler
from dgz.data.dataset import Floats, Ints, as_floats, first_bad_row, listing
from dgz.errors import DataError, DGZError, one_line, require_choice, require_count
from dgz.files import read_document, write_folder, write_json, write_tensors

Labels = npt.NDArray[Any]
Arrays = dict[str, npt.NDArray[Any]]
_VERSION = 1
_HEADER, _TENSORS = "model.json", "model.safetensors"
_SCALERS = ("scaler/", "attribute_scaler/")
_LEARNED_BY_SCALERS = ("min_", "mean_", "scale_")
Scaler = TypeVar("Scaler", FeatureScaler, AttributeScaler)
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
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {}  # settings published for a data set, by its name

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """The method with the settings published for a data set.

        Parameters
        ----------
        name : str
            A key of ``presets``, such as ``CUB``; ``CUB/att`` where class vectors of another kind have their own.
        **overrides
            Other parameters, and those of a part as ``generator__n_epochs=…``.
        """
        known = {key.upper(): chosen for key, chosen in cls.presets.items()}
        require_choice(name.upper(), tuple(known), "preset")
        model = cls._with_parts()
        if getattr(model, "attribute_scaling", None) == "auto":
            model.set_params(attribute_scaling="none")  # what was published refers to the vectors as distributed
        model.set_params(**known[name.upper()])
        return model.set_params(**overrides)  # type: ignore[no-any-return]

    @classmethod
    def _with_parts(cls) -> Self:
        """The method with its default settings, and with its parts in place, whose settings can then be changed."""
        return cls()

    def settings(self) -> dict[str, Any]:
        """The constructor's arguments as JSON has them; those of a part that is an estimator itself, with its kind."""
        return {name: as_json(value) for name, value in self.get_params(deep=False).items()}

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""

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

    # --- Files.
    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write the fitted model to a folder, whole or not at all: ``model.json`` and ``model.safetensors``.

        Examples
        --------
        >>> import tempfile
        >>> from dgz import DGZ, load_numbers
        >>> data = load_numbers(0)
        >>> model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1)
        >>> folder = Path(tempfile.mkdtemp()) / "model"
        >>> model.fit(data.x_train, data.y_train, data.attributes).save(folder)
        >>> twin = DGZ.load(folder)
        >>> bool((twin.predict(data.x_test_seen) == model.predict(data.x_test_seen)).all())
        True
        """
        check_is_fitted(self)
        header, arrays = self._learned()
        header = {
            "format": "dgz-model",
            "version": _VERSION,
            "method": type(self).__name__,
            "params": self._settings_in_use(),
            "feature_names": getattr(self, "feature_names_in_", np.empty(0)).tolist(),
            "classes": self.classes_.tolist(),
            "seen": self.seen_.tolist(),
            "n_features": self.n_features_in_,
            **header,
        }
        arrays = {"attributes": self.attributes_, **arrays}
        with write_folder(folder, overwrite=overwrite) as place:
            write_tensors(
                place / _TENSORS, {name: np.ascontiguousarray(values) for name, values in arrays.items()}, str(folder)
            )
            write_json(place / _HEADER, header)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Read a model's folder; one that is truncated, foreign or from a newer version is refused with a sentence."""
        folder = Path(folder)
        if (method := saved_method(folder)) != cls.__name__:
            raise DGZError(f"{folder} holds a {method}, which is read by {method}.load and not by {cls.__name__}.load.")
        header = read_document(folder / _HEADER, "model", _VERSION)
        try:
            arrays = load_file(folder / _TENSORS)
        except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
            raise DataError(f"{folder / _TENSORS} cannot be read: {error}.") from error
        try:
            return cls._of_file(header, arrays)
        except (KeyError, TypeError, ValueError, RuntimeError, AttributeError, OverflowError) as error:
            raise DataError(f"{folder} is broken: {one_line(error)}.") from error

    @classmethod
    def _of_file(cls, header: dict[str, Any], arrays: Arrays) -> Self:
        model = cls._of_settings(header["params"])
        if header["feature_names"]:
            model.feature_names_in_ = np.array(header["feature_names"], dtype=object)
        model.classes_ = np.array(header["classes"])
        if model.classes_.dtype == object or not np.array_equal(model.classes_, np.unique(model.classes_)):
            raise DGZError("its classes are not a sorted list of different labels")
        model.seen_ = np.array(header["seen"], dtype=bool)
        model.attributes_ = arrays["attributes"]
        if model.attributes_.ndim != 2 or not len(model.classes_) == len(model.seen_) == len(model.attributes_):
            raise DGZError("its classes, vectors and weights do not fit together")
        model.n_features_in_ = int(header["n_features"])
        model._relearn(header, arrays)
        return model

    @classmethod
    def _of_settings(cls, settings: Mapping[str, Any]) -> Self:
        """The unfitted method with settings as JSON has them."""
        return cls(**settings)

    def _settings_in_use(self) -> dict[str, Any]:
        """The settings behind what was learned, which ``set_params`` may have moved away from since."""
        return self.settings()

    @abstractmethod
    def _learned(self) -> tuple[dict[str, Any], Arrays]:
        """What ``fit`` learned beside the classes, for a file: numbers and words as JSON has them, and arrays."""

    @abstractmethod
    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        """Take over what :meth:`_learned` gave, from a file that may be broken: any ValueError or KeyError says so."""

    def count_parameters(self) -> int:
        """How many numbers were learned."""
        arrays = self._learned()[1]
        return sum(values.size for name, values in arrays.items() if not name.startswith(_SCALERS))

    def _positions(self, classes: Any) -> Ints:
        classes = np.unique(np.asarray(classes))
        if not len(classes):
            raise DGZError("classes must name at least one class.")
        strangers = np.setdiff1d(classes, self.classes_)
        if len(strangers):
            raise DGZError(f"The model does not know {len(strangers)} of classes: {listing(list(strangers))}.")
        return np.asarray(np.searchsorted(self.classes_, classes))


def saved_method(folder: str | Path) -> str:
    """Name of the class whose model is in a folder."""
    if not (Path(folder) / _HEADER).is_file():
        raise DGZError(f"{folder} is not a model: it has no {_HEADER}.")
    return str(read_document(Path(folder) / _HEADER, "model", _VERSION).get("method", "DGZ"))


def scaler_arrays(part: str, scaler: FeatureScaler | AttributeScaler) -> Arrays:
    """What a scaler learned, by names for a file: ``part`` is ``scaler`` or ``attribute_scaler``."""
    return {f"{part}/{name}": getattr(scaler, name) for name in _LEARNED_BY_SCALERS if hasattr(scaler, name)}


def restore_scaler(part: str, scaler: Scaler, width: int, arrays: Arrays) -> Scaler:
    """Give a scaler of rows of some ``width`` what :func:`scaler_arrays` put into a file."""
    scaler.fit(np.zeros((1, width)))
    for name in _LEARNED_BY_SCALERS:
        if hasattr(scaler, name):
            setattr(scaler, name, shaped(arrays, f"{part}/{name}", width))
    return scaler


def shaped(arrays: Arrays, name: str, *shape: int) -> npt.NDArray[Any]:
    """An array of a file, which must have a given shape."""
    if arrays[name].shape != shape:
        raise DGZError(f"{name} has the shape {arrays[name].shape}")
    return arrays[name]


def as_json(value: Any) -> Any:
    """A setting as JSON has it: a part that is an estimator becomes its kind and its own settings."""
    if isinstance(value, Mapping):
        return {name: as_json(part) for name, part in value.items()}
    if hasattr(value, "get_params"):
        inner = {name: as_json(part) for name, part in value.get_params(deep=False).items()}
        return {"kind": type(value).__name__, **inner}
    return value.item() if isinstance(value, np.generic) else value
