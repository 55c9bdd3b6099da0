"""What the closed-form methods share: settings chosen on leak-free folds, a penalty on seen classes, files.

A method says what it learns from rows under given settings (``_solver``), and how rows are then scored (``_scorer``);
both do what all settings have in common once, so that many settings can be tried at little cost.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from itertools import product
from typing import Any, ClassVar, NamedTuple, Self, get_args

import numpy as np
import numpy.typing as npt
from scipy.linalg import eigh, svd
from sklearn.preprocessing import normalize

from dgz.data import AttributeScaler, FeatureScaler, GZSLData, validation_folds
from dgz.data.dataset import Floats, Ints
from dgz.data.scaling import FeatureScaling, VectorScaling
from dgz.errors import DGZError, require_choice, require_count, require_number_or_auto
from dgz.estimator import Arrays, GZSLClassifier, restore_scaler, scaler_arrays, shaped
from dgz.metrics import (
    Decisions,
    best_penalty,
    class_means,
    decide,
    harmonic_mean,
    macro_accuracy,
    mean_penalty,
    seen_unseen_curve,
)

Doubles = npt.NDArray[np.float64]
Settings = dict[str, Any]
Solver = Callable[..., Arrays]  # from settings to what is learned under them
Scorer = Callable[..., npt.NDArray[np.floating[Any]]]  # from what is learned, and settings, to scores (n, n_classes)


class Classes(NamedTuple):
    """The classes of a problem: scaled ``vectors`` (n_classes, d_a), and which of them are ``seen`` and ``unseen``."""

    vectors: Floats
    seen: Ints
    unseen: Ints


class ClosedForm(GZSLClassifier):
    """A method that is solved for, not trained; its settings are numbers or words, or "auto": chosen on folds.

    Attributes
    ----------
    seen_penalty_ : float
        Subtracted from the scores of seen classes (calibrated stacking: Chao et al., 2016).
    """

    _learned_last = "seen_penalty_"
    # What "auto" stands for, by setting: words are the only ones allowed, numbers may be any positive ones.
    tried: ClassVar[Mapping[str, tuple[Any, ...]]]
    neutral_penalty: ClassVar[float] = 0.0  # on seen classes, where folds tell nothing
    feature_scalings: ClassVar[tuple[str, ...]] = get_args(FeatureScaling)  # what a method may be told
    # What a method's constructor sets.
    feature_scaling: str
    attribute_scaling: VectorScaling
    seen_penalty: float | str
    n_folds: int
    random_state: int

    # --- What a method is made of.
    @abstractmethod
    def _solver(self, rows: Floats, y: Ints, classes: Classes) -> Solver:
        """Give what turns settings into what is learned from scaled ``rows`` (n, d_x) of classes ``y`` (n,)."""

    def _scorer(self, rows: Floats, classes: Classes) -> Scorer:
        """Give what scores scaled ``rows`` (n, d_x): by default the cosine of the angle to each of the ``centers``."""
        unit = normalize(rows)
        return lambda learned, **_: unit @ learned["centers"].T

    def _shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of what is learned, by name."""
        return {"centers": (len(self.classes_), self.n_features_in_)}

    def _points(self) -> list[Settings]:
        """All settings to choose from."""
        return [dict(zip(self.tried, point, strict=True)) for point in product(*map(self._values, self.tried))]

    def _feature_scaler(self) -> FeatureScaler:
        """The scaler of rows, unfitted; features and class vectors are known when it is asked for."""
        return FeatureScaler(self.feature_scaling)  # type: ignore[arg-type]

    # --- Learning.
    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        require_choice(self.feature_scaling, self.feature_scalings, "feature_scaling")
        require_choice(self.attribute_scaling, VectorScaling, "attribute_scaling")
        for name in self.tried:
            self._values(name)
        require_number_or_auto(seen_penalty=self.seen_penalty)
        if not _number(self.temperature) > 0:
            raise DGZError(f"temperature must be a positive number, found {self.temperature!r}.")

    def fit(self, X: Any, y: Any, attributes: Any = None) -> Self:
        """Fit on rows ``X`` (n, d_x) with labels ``y`` (n,); classes of ``attributes`` absent from ``y`` are unseen."""
        self.check()
        X, y = self._take(X, y, attributes)
        chosen, seen_penalty = self._choose(X, y)
        self.scaler_ = self._feature_scaler().fit(X)
        self._classes = self._scaled_classes()
        learned = self._solver(self.scaler_.transform(X), y, self._classes)(**chosen)
        for name, value in (chosen | learned).items():
            setattr(self, f"{name}_", value)
        self.settings_ = self.settings()
        self.seen_penalty_ = seen_penalty
        return self

    def _choose(self, X: Floats, y: Ints) -> tuple[Settings, float]:
        """The settings and the penalty on seen classes: as given, or those with the best mean H over the folds."""
        points = self._points()
        if self.seen_penalty != "auto" and len(points) == 1:
            return points[0], float(self.seen_penalty)
        data = GZSLData(x_train=X, y_train=y, attributes=self.attributes_, name="the training rows")
        if len(data.seen) == 1:
            names = [name for name in (*self.tried, "seen_penalty") if getattr(self, name) == "auto"]
            raise DGZError(f"One seen class makes no folds to choose settings on: give {', '.join(names)} a value.")
        found: list[list[tuple[float, float]]] = [[] for _ in points]
        n_folds = min(self.n_folds, len(data.seen))
        for fold in validation_folds(data, n_folds, random_state=self.random_state):
            scaler = self._feature_scaler().fit(fold.x_train)
            vectors = AttributeScaler(self.attribute_scaling).fit_transform(fold.attributes)
            classes = Classes(vectors, fold.seen, fold.unseen)
            solve = self._solver(scaler.transform(fold.x_train), fold.y_train, classes)
            scorers = [self._scorer(scaler.transform(x), classes) for x in (fold.x_test_seen, fold.x_test_unseen)]
            for point, penalties in zip(points, found, strict=True):
                learned = solve(**point)
                on_seen, on_unseen = (decide(score(learned, **point), fold.seen, fold.unseen) for score in scorers)
                penalties.append(self._penalty_on(fold, on_seen, on_unseen))
        point, penalties = max(zip(points, found, strict=True), key=lambda pair: np.mean([h for _, h in pair[1]]))
        if self.seen_penalty != "auto":
            return point, float(self.seen_penalty)
        return point, mean_penalty(penalties, self.neutral_penalty)

    def _penalty_on(self, fold: GZSLData, on_seen: Decisions, on_unseen: Decisions) -> tuple[float, float]:
        """The penalty on seen classes of a fold, as given or the best one, and the H that it leads to."""
        y_seen, y_unseen = fold.y_test_seen, fold.y_test_unseen
        if self.seen_penalty == "auto":
            return best_penalty(seen_unseen_curve(on_seen, y_seen, on_unseen, y_unseen, fold.seen, fold.unseen))
        given = float(self.seen_penalty)
        u = macro_accuracy(y_unseen, on_unseen.predict(given), fold.unseen)
        return given, harmonic_mean(u, macro_accuracy(y_seen, on_seen.predict(given), fold.seen))

    def _values(self, name: str) -> tuple[Any, ...]:
        """The values of a setting to choose from: the one given, or all that "auto" stands for."""
        value = getattr(self, name)
        return self.tried[name] if value == "auto" else (self._checked(name, value),)

    def _checked(self, name: str, value: Any) -> Any:
        tried = self.tried[name]
        if isinstance(tried[0], str):
            require_choice(value, ("auto", *tried), name)
            return value
        if isinstance(tried[0], int):
            require_count(**{name: value})
            return int(value)
        if not 0 < _number(value) < math.inf:
            raise DGZError(f"{name} must be a positive number or 'auto', found {value!r}.")
        return float(value)

    def _scaled_classes(self) -> Classes:
        # The scaling of class vectors is learned from these very vectors, so that no file has to hold it.
        vectors = AttributeScaler(self.attribute_scaling).fit_transform(self.attributes_)
        return Classes(vectors, np.flatnonzero(self.seen_), np.flatnonzero(~self.seen_))

    # --- After learning.
    def _scores(self, X: Floats) -> npt.NDArray[np.floating[Any]]:
        learned: Arrays = {name: getattr(self, f"{name}_") for name in self._shapes()}
        chosen = {name: getattr(self, f"{name}_") for name in self.tried}
        scores = self._scorer(self.scaler_.transform(X), self._classes)(learned, **chosen)
        scores[:, self.seen_] -= self.seen_penalty_
        return scores

    def _settings_in_use(self) -> dict[str, Any]:
        return {**self.settings_, "temperature": self.temperature}  # the one that has no part in learning

    def _learned(self) -> tuple[dict[str, Any], Arrays]:
        chosen = {f"{name}_": getattr(self, f"{name}_") for name in (*self.tried, "seen_penalty")}
        learned = {name: getattr(self, f"{name}_") for name in self._shapes()}
        return chosen, {**learned, **scaler_arrays("scaler", self.scaler_)}

    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        for name in self.tried:
            setattr(self, f"{name}_", self._checked(name, header[f"{name}_"]))
        self.scaler_ = restore_scaler("scaler", self._feature_scaler(), self.n_features_in_, arrays)
        self._classes = self._scaled_classes()
        for name, shape in self._shapes().items():
            setattr(self, f"{name}_", shaped(arrays, name, *shape))
        self.settings_ = self.settings()
        self.seen_penalty_ = float(header["seen_penalty_"])


def spectrum(rows: npt.NDArray[np.floating[Any]]) -> tuple[Doubles, Doubles]:
    """Positive eigenvalues (r,) and eigenvectors (d, r) of ``rowsᵀ rows``, for rows (n, d); r ≤ min(n, d).

    With them, the inverse of ``rowsᵀ rows`` plus any ridge is a division, on all that the rows span.

    Examples
    --------
    >>> values, axes = spectrum(np.array([[3.0, 0.0, 0.0], [0.0, 2.0, 0.0]]))
    >>> np.sort(values), axes.shape
    (array([4., 9.]), (3, 2))
    """
    exact = rows.astype(np.float64)
    if len(rows) < rows.shape[1]:
        _, singular, transposed = svd(exact, full_matrices=False)
        values, axes = singular**2, transposed.T
    else:
        values, axes = eigh(exact.T @ exact)
    kept = values > max(rows.shape) * np.finfo(np.float64).eps * values.max(initial=0)  # the others are rounding
    return values[kept], axes[:, kept]


def class_sums(rows: Floats, y: Ints, classes: Ints) -> Doubles:
    """Sum of the rows (n, d) of each of the ``classes`` (k,), which all have some: (k, d).

    Examples
    --------
    >>> class_sums(np.array([[1.0], [2.0], [4.0]]), np.array([7, 3, 7]), np.array([3, 7]))
    array([[2.],
           [5.]])
    """
    counts = np.bincount(y)[classes]
    return class_means(rows, y, classes).numpy() * counts[:, None]


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return math.nan
