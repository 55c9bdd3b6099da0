"""Class level, instance level and classifier composed into one scikit-learn classifier: DGZ's frame, and many rivals'.

In come features, labels and one vector per class; out come predictions over all classes, with or without training rows.
A fitted model takes on new classes from their vectors alone, where its classifier's weights come from class vectors.
"""

from abc import abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dgz.classifier import ClassifierTraining, CosineClassifier, Weights, prepared
from dgz.data import GZSLData, validation_folds
from dgz.data.dataset import Floats, Ints, as_floats, first_bad_row, listing
from dgz.errors import DGZError, one_line, require_at_least, require_number_or_auto
from dgz.estimator import Arrays, Labels, as_json
from dgz.generators import ClassGenerator, generator_of
from dgz.instances import Distribution, check_instances, synthesise
from dgz.losses import Gate, Loss
from dgz.metrics import best_penalty, decide, mean_penalty, seen_unseen_curve
from dgz.nets import FreeWeights
from dgz.task import Task
from dgz.trained import TrainedMethod
from dgz.training import Checkpoints, Row, multiplying, pick_device, random_stream

_N_FOLDS = 3  # of the training rows, for what is chosen on them


class ComposedMethod(TrainedMethod):
    """A generator, a distribution of rows round what it places, and a classifier; a method adds its settings.

    Attributes
    ----------
    weights_ : array of shape (n_classes, d_x)
        The classifier's weights, of unit norm; ``linear`` ones of any norm, with a column for the bias.
    generator_, classifier_ : fitted stages
    seen_penalty_ : float
        What is subtracted from the scores of seen classes: ``seen_penalty``, or what folds say.
    """

    _learned_last = "weights_"
    # What a method's constructor sets, or its class.
    generator: ClassGenerator | None
    distribution: Distribution
    n_per_class: int
    small_std: float
    large_std: float
    weights: Weights
    loss: Loss
    gate: Gate
    lambda_1: float
    lambda_2: float
    temperature: float
    d_hidden: int
    n_epochs: int
    learning_rate: float
    lr_step: int | None
    batch_size: int
    resample: bool
    lr_factor = 0.1
    beta_1 = 0.5
    weight_decay = 0.0
    seen_ratio = 1.0
    seen_penalty: float | Literal["auto"] = 0.0

    @staticmethod
    @abstractmethod
    def _default_generator() -> ClassGenerator:
        """The generator of the method, with its default settings."""

    @classmethod
    def _with_parts(cls) -> Self:
        return cls(generator=cls._default_generator())

    # --- Learning.
    def fit(
        self,
        X: Any,
        y: Any,
        attributes: Any = None,
        *,
        test: Any = None,
        evaluate_every: int = 0,
        checkpoint_folder: str | Path | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> Self:
        """Fit on rows ``X`` (n, d_x) with labels ``y`` (n,); classes of ``attributes`` absent from ``y`` are unseen.

        Parameters
        ----------
        X : array of shape (n, d_x)
        y : array of shape (n,)
        attributes : array of shape (n_classes, d_a), mapping, or DataFrame
            Vectors of the seen and of the unseen classes: an array is indexed by whole-number labels; a mapping's keys
            or a DataFrame's index are the labels.
        test : GZSLData, optional
            Its test rows are scored after every classifier epoch, without ``seen_penalty``, for ``history_`` alone:
            nothing is chosen by them.
        evaluate_every : int
            With ``test``, also train a classifier after every so many generator epochs and score that, and see how far
            the generated centres of unseen classes are from the real ones.
        checkpoint_folder : str or Path, optional
            Keep the state of training there, and go on from what is there. Remove it when the model is safe.
        checkpoint_seconds : float
            Least time between two states kept.
        """
        self.check()
        require_at_least(0, evaluate_every=evaluate_every)
        X, positions = self._take(X, y, attributes)
        self.seen_penalty_ = self._choose_penalty(X, positions, checkpoint_folder)
        task = self._prepare(X, positions, test)
        checkpoints = None
        if checkpoint_folder is not None:
            mark = self._fingerprint(X, positions, [task.x.device.type, test is not None, evaluate_every])
            checkpoints = Checkpoints(checkpoint_folder, mark, checkpoint_seconds)
        generator = self.generator_ = self._new_generator()
        classifying: ClassifierTraining | None = None

        def classify(checkpoints: Checkpoints | None = None, verbose: bool = False) -> CosineClassifier:
            nonlocal classifying
            embedded = task.embedded(generator, self.seed_)
            pseudo_x, pseudo_y = self._synthesise(embedded)
            if classifying is None or generator.embeds:
                x, y = torch.cat([embedded.x, pseudo_x]), torch.cat([embedded.y, pseudo_y])
                classifying = self._classifier_training([self._new_classifier()], embedded, x, y, seeds=[self.seed_])
            else:
                classifying.restart(len(task.x), pseudo_x)  # what was captured stays
            return classifying.run(checkpoints=checkpoints, verbose=verbose)[0]

        def evaluate(epoch: int) -> Row:
            if not evaluate_every or (epoch % evaluate_every and epoch != generator.n_epochs):
                return {}
            found: Row = {"cacd": task.embedded(generator, self.seed_).center_distance(generator, self.seed_)}
            return found if epoch == generator.n_epochs else {**found, "classifier": classify().history_}

        generator.fit(
            task.x,
            task.y,
            task.vectors,
            seed=self.seed_,
            precision=self.precision,
            after_epoch=evaluate if task.test else None,
            checkpoints=checkpoints,
            verbose=self.verbose,
        )
        self._finish(classify(checkpoints, self.verbose))
        self._rows = (X, self.classes_[positions])  # what a refinement trains on again; never saved
        return self

    def _choose_penalty(self, X: Floats, positions: Ints, checkpoint_folder: str | Path | None) -> float:
        """The penalty on seen classes: as given, or the mean of those with the best H on leak-free folds."""
        if self.seen_penalty != "auto":
            return float(self.seen_penalty)
        found = []
        for k, fold in enumerate(penalty_folds(X, positions, self.attributes_)):
            own = None if checkpoint_folder is None else Path(checkpoint_folder) / f"fold-{k}"
            model = clone(self).set_params(seen_penalty=0.0)
            model.fit(fold.x_train, fold.y_train, fold.attributes, checkpoint_folder=own)
            found.append(fold_penalty(model, fold))
        return mean_penalty(found)

    def _synthesise(self, task: Task) -> tuple[Tensor, Tensor]:
        """Pseudo rows of the unseen classes, and their classes."""
        unseen = torch.nonzero(~task.seen).squeeze(1)
        if not len(unseen):
            return task.x[:0], task.y[:0]
        rng = random_stream(self.seed_, "instances", task.x.device)
        residuals = task.x[:0] if self.distribution == "generated" else task.residuals
        pseudo_x, pseudo_y = self._spread(task.vectors[unseen], residuals, rng, self.n_per_class)
        return pseudo_x, unseen[pseudo_y]

    def _spread(
        self, vectors: Tensor, residuals: Tensor, rng: torch.Generator, n_per_class: int
    ) -> tuple[Tensor, Tensor]:
        """Rows of the classes with the given vectors, by the generator and the distribution in use."""
        with multiplying(self.precision, vectors.device):
            x, y = synthesise(
                self.generator_,
                vectors,
                residuals,
                rng,
                n_per_class=n_per_class,
                distribution=self.distribution,
                small_std=self.small_std,
                large_std=self.large_std,
            )
        return x.float(), y

    def _classifier_training(
        self, classifiers: list[CosineClassifier], task: Task, x: Tensor, y: Tensor, **options: Any
    ) -> ClassifierTraining:
        options |= {"precision": self.precision, "test_rows": task.test_rows(self.weights)}
        return ClassifierTraining(classifiers, x, y, task.vectors, task.seen, **options)

    def _finish(self, classifier: CosineClassifier) -> None:
        """Take over a trained classifier, and the history of all training."""
        self.classifier_ = classifier
        self.history_ = []
        for row in self.generator_.history_:
            inner = row.get("classifier", [])
            own = {name: value for name, value in row.items() if name != "classifier"}
            self.history_ += [{"stage": "generator", **own}, *self._classifier_rows(inner, row["epoch"])]
        self.history_ += self._classifier_rows(classifier.history_, self.generator_.n_epochs)
        self._set_weights()

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        generator = self._new_generator()
        generator.check()
        check_instances(generator, self.n_per_class, self.distribution, self.small_std, self.large_std)
        self._new_classifier().check()
        require_number_or_auto(seen_penalty=self.seen_penalty)
        super().check()

    def _new_generator(self) -> ClassGenerator:
        return self._default_generator() if self.generator is None else clone(self.generator)

    def _new_classifier(self) -> CosineClassifier:
        return CosineClassifier(**{name: getattr(self, name) for name in CosineClassifier().get_params()})

    @staticmethod
    def _classifier_rows(history: list[Row], generator_epoch: int) -> list[Row]:
        """Rows of ``history_`` from a classifier's own: which stage, and how long its generator had trained."""
        return [{"stage": "classifier", "generator_epoch": int(generator_epoch), **row} for row in history]

    def _set_weights(self) -> None:
        device = next(self.classifier_.net_.parameters()).device
        self.weights_ = self.classifier_.class_weights(self._vectors(device)).cpu().numpy()

    def _scores(self, X: Floats) -> npt.NDArray[np.floating[Any]]:
        rows = prepared(torch.tensor(self._embed(X)), self.classifier_.weights)
        scores: npt.NDArray[np.floating[Any]] = rows.numpy() @ self.weights_.T
        if self.seen_penalty_:
            scores[:, self.seen_] -= np.float32(self.seen_penalty_)
        return scores

    # --- Rows in the classifier's space.
    def embed(self, X: Any) -> Floats:
        """The rows ``X`` (n, d_x) as generator and classifier see them: scaled, and in the generator's own space."""
        check_is_fitted(self)
        X = as_floats(X, "X")
        if (bad := first_bad_row(X)) is not None:
            raise DGZError(f"X must be finite, found NaN or infinity in row {bad}.")
        return self._embed(X)

    def _embed(self, X: Floats) -> Floats:
        rows = self.scaler_.transform(X)
        if not self.generator_.embeds:
            return rows
        device = next(self.generator_.net_.parameters()).device
        return self.generator_.embed(self._on(device, rows)).cpu().numpy()

    def generate(self, names: Any, n_per_class: Any = 50, *, random_state: int = 0) -> tuple[Floats, Labels]:
        """Rows of classes from their vectors alone, as the classifier was given them for the unseen ones.

        Parameters
        ----------
        names : array of shape (k,), or one label
            Labels of ``classes_``.
        n_per_class : int, or array of shape (k,)
            How many of each.
        random_state : int

        Returns
        -------
        X, y : arrays
            Rows in the space of :meth:`embed`, and their labels.

        Examples
        --------
        >>> from dgz import DGZ, load_numbers
        >>> data = load_numbers(0)
        >>> model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1)
        >>> X, y = model.fit(data.x_train, data.y_train, data.attributes).generate(data.unseen[:3], [2, 0, 1])
        >>> X.shape, (y == data.unseen[[0, 0, 2]]).tolist()
        ((3, 128), [True, True, True])
        """
        check_is_fitted(self)
        labels, counts = np.atleast_1d(np.asarray(names)), np.asarray(n_per_class)
        if labels.ndim > 1 or not len(labels):
            raise DGZError("names must be one label or a list of them.")
        if counts.dtype.kind not in "iu" or counts.min() < 0 or not counts.any():
            raise DGZError(f"n_per_class must be whole numbers, and not all 0, found {n_per_class!r}.")
        if counts.shape not in ((), labels.shape):
            raise DGZError(f"n_per_class must be one number, or one for each of {len(labels)} classes.")
        counts = np.broadcast_to(counts, labels.shape)
        places = np.array([self._positions(label)[0] for label in labels])
        device = next(self.generator_.net_.parameters()).device
        if self.distribution == "generated":
            residuals = torch.empty(0)
        elif hasattr(self, "_rows"):
            X, y = self._rows
            kept = np.isin(y, self.classes_[self.seen_])  # classes may have been removed since
            task = self._task(X[kept], np.searchsorted(self.classes_, y[kept]), device)
            task = task.embedded(self.generator_, self.seed_)
            residuals = task.residuals
        else:
            raise DGZError("A loaded model holds no training rows, whose spread the generated ones would have.")
        seed = random_stream(random_state, "generate", device)
        x, of_class = self._spread(self._vectors(device)[places], residuals, seed, int(counts.max()))
        wanted = np.arange(counts.max())[None, :] < counts[:, None]  # of the largest number, as many as each wants
        rows = np.flatnonzero(wanted.ravel())
        return x.cpu().numpy()[rows], labels[of_class.cpu().numpy()[rows]]

    # --- Classes come and go.
    def add_classes(self, names: Any, attributes: Any, *, refine: bool = False, X: Any = None, y: Any = None) -> Self:
        """Take on new classes from their vectors alone.

        Plainly, the mapping net turns each vector into classifier weights, in milliseconds, and nothing else changes.

        Parameters
        ----------
        names : array of shape (n,), or one label
            New labels, of the same kind as ``classes_``.
        attributes : array of shape (n, d_a), or one vector
        refine : bool
            Also synthesise rows of all unseen classes and train the classifier anew, as if the classes had been there
            from the start.
        X, y : arrays, optional
            The training rows, which refining needs. Those given to ``fit`` are remembered, but not saved.

        Examples
        --------
        >>> from dgz import DGZ, load_numbers
        >>> data = load_numbers(0)
        >>> model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1)
        >>> model.fit(data.x_train, data.y_train, data.attributes).remove_classes(data.unseen[:1])
        DGZ(...)
        >>> model.add_classes(data.unseen[:1], data.attributes[data.unseen[:1]]).classes_.shape
        (100,)
        """
        check_is_fitted(self)
        if isinstance(self.classifier_.net_, FreeWeights):
            raise DGZError("A model with free weights cannot take on classes: nothing connects vectors to weights.")
        labels, vectors = self._new_labels(names), _as_rows(attributes)
        expected = (len(labels), self.attributes_.shape[1])
        if vectors.shape != expected:
            raise DGZError(f"attributes must have the shape {expected}, found {vectors.shape}.")
        if (bad := first_bad_row(vectors)) is not None:
            raise DGZError(f"attributes must be finite, found NaN or infinity in the vector of {labels[bad]!r}.")
        everything = np.concatenate([self.classes_, labels])
        order = np.argsort(everything, kind="stable")
        with self._all_or_nothing():
            self.classes_ = everything[order]
            self.attributes_ = np.concatenate([self.attributes_, vectors])[order]
            self.seen_ = np.concatenate([self.seen_, np.zeros(len(labels), dtype=bool)])[order]
            if refine:
                return self.refine(X, y)
            device = next(self.classifier_.net_.parameters()).device
            scaled = self._on(device, self.attribute_scaler_.transform(vectors))
            added = self.classifier_.class_weights(scaled).cpu().numpy()
            self.weights_ = np.concatenate([self.weights_, added])[order]
        return self

    def remove_classes(self, names: Any, *, refine: bool = False, X: Any = None, y: Any = None) -> Self:
        """Forget classes, seen or unseen; the others' weights stay, unless ``refine`` trains them anew.

        ``names`` are labels of ``classes_``; the rest is as in :meth:`add_classes`.
        """
        check_is_fitted(self)
        gone = self._positions(names)
        if len(gone) == len(self.classes_):
            raise DGZError("At least one class must remain.")
        with self._all_or_nothing():
            for name in ("classes_", "attributes_", "seen_", "weights_"):
                setattr(self, name, np.delete(getattr(self, name), gone, axis=0))
            if refine:
                return self.refine(X, y)
            if isinstance(self.classifier_.net_, FreeWeights):
                self.classifier_.net_.remove(gone)
        return self

    @contextmanager
    def _all_or_nothing(self) -> Iterator[None]:
        """Give every attribute its old value back if the block fails."""
        before = dict(vars(self))
        try:
            yield
        except BaseException:
            self.__dict__.clear()
            self.__dict__.update(before)
            raise

    def _new_labels(self, names: Any) -> Labels:
        labels = np.atleast_1d(np.asarray(names))
        if labels.ndim > 1:
            raise DGZError(f"New labels must be one list, found an array of shape {labels.shape}.")
        if labels.dtype == object:
            labels = labels.astype(str)
        if {labels.dtype.kind, self.classes_.dtype.kind} <= {"i", "u"}:
            labels = labels.astype(self.classes_.dtype)  # numpy would make fractions of signed and unsigned together
        elif labels.dtype.kind != self.classes_.dtype.kind:
            raise DGZError(f"New labels must be like the model's ({self.classes_.dtype}), found {labels.dtype}.")
        twice = labels[np.isin(labels, self.classes_)]
        if len(twice) or len(np.unique(labels)) < len(labels):
            raise DGZError(f"New labels must be new and different from each other, found {listing(list(labels))}.")
        return labels

    def refine(self, X: Any = None, y: Any = None) -> Self:
        """Synthesise rows of the unseen classes and train the classifier anew, with the present settings.

        The generator stays as it is. ``X`` and ``y`` are the training rows; those given to ``fit`` are remembered, but
        not saved.
        """
        check_is_fitted(self)
        if (X is None) != (y is None):
            raise DGZError("Refining needs both X and y, or neither.")
        if X is None and not hasattr(self, "_rows"):
            raise DGZError("A loaded model holds no training rows: pass them as X and y to refine it.")
        rows, labels = self._rows if X is None else (as_floats(X, "X"), np.asarray(y))
        if len(rows) != len(labels):
            raise DGZError(f"X and y must be of one length, found {len(rows)} and {len(labels)}.")
        if (bad := first_bad_row(rows)) is not None:
            raise DGZError(f"X must be finite, found NaN or infinity in row {bad}.")
        kept = np.isin(labels, self.classes_[self.seen_])
        if not np.isin(self.classes_[self.seen_], labels).all() or not kept.any():
            raise DGZError("Refining needs training rows of every seen class.")
        device = pick_device(self.device)
        for net in self.generator_.networks().values():
            net.to(device)
        task = self._task(rows[kept], np.searchsorted(self.classes_, labels[kept]), device)
        task = task.embedded(self.generator_, self.seed_)
        pseudo_x, pseudo_y = self._synthesise(task)
        x, y = torch.cat([task.x, pseudo_x]), torch.cat([task.y, pseudo_y])
        training = self._classifier_training([self._new_classifier()], task, x, y, seeds=[self.seed_])
        (self.classifier_,) = training.run(verbose=self.verbose)
        final = self.generator_.n_epochs
        self.history_ = [row for row in self.history_ if row.get("generator_epoch") != final]
        self.history_ += self._classifier_rows(self.classifier_.history_, final)
        if self.seen_penalty != "auto":  # what folds said stays
            self.seen_penalty_ = float(self.seen_penalty)
        self._set_weights()
        return self

    # --- Files.
    def _networks(self) -> Mapping[str, torch.nn.Module]:
        return {**self.generator_.networks(), "classifier": self.classifier_.net_}

    def _settings_in_use(self) -> dict[str, Any]:
        learned_with = as_json(self.classifier_.get_params())
        settings = super()._settings_in_use()
        if self.seen_penalty != "auto":
            learned_with["seen_penalty"] = self.seen_penalty_
        settings |= {name: value for name, value in learned_with.items() if name in settings}
        if self.generator is not None or as_json(self.generator_) != as_json(self._default_generator()):
            settings["generator"] = as_json(self.generator_)
        return settings

    def _learned(self) -> tuple[dict[str, Any], Arrays]:
        header, arrays = super()._learned()
        header |= {"noise": self.generator_.noise_, "seen_penalty": self.seen_penalty_}
        return header, {**arrays, "weights": self.weights_}

    @classmethod
    def _of_settings(cls, settings: Mapping[str, Any]) -> Self:
        inner = settings["generator"]
        return cls(**{**settings, "generator": inner and generator_of(inner)})

    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        self.generator_, self.weights_ = self._new_generator(), arrays["weights"]
        super()._relearn(header, arrays)
        self.generator_.noise_ = float(header["noise"])
        self.seen_penalty_ = float(header["seen_penalty"])

    def _build(self, n_classes: int, d_a: int, d_x: int) -> None:
        self.generator_.build(d_a, d_x, torch.Generator())
        width = self.generator_.embedded_width(d_x)
        if self.weights_.shape != (n_classes, width + 1 if self.weights == "linear" else width):
            raise DGZError("its classes, vectors and weights do not fit together")
        self.classifier_ = self._new_classifier()
        self.classifier_.build(n_classes, d_a, width, torch.Generator())


def penalty_folds(X: Floats, positions: Ints, attributes: Floats) -> list[GZSLData]:
    """Small GZSL problems made of training rows alone, on which a penalty on seen classes can be chosen."""
    data = GZSLData(x_train=X, y_train=positions, attributes=attributes, name="the training rows")
    if len(data.seen) == 1:
        raise DGZError("One seen class makes no folds to choose on: give seen_penalty a value.")
    return validation_folds(data, min(_N_FOLDS, len(data.seen)))


def fold_penalty(model: ComposedMethod, fold: GZSLData) -> tuple[float, float]:
    """The penalty with the best H on a fold's test rows, and that H."""
    on_seen, on_unseen = (
        decide(model.decision_function(x), fold.seen, fold.unseen) for x in (fold.x_test_seen, fold.x_test_unseen)
    )
    curve = seen_unseen_curve(on_seen, fold.y_test_seen, on_unseen, fold.y_test_unseen, fold.seen, fold.unseen)
    return best_penalty(curve)


def _as_rows(attributes: Any) -> Floats:
    """Class vectors (n, d_a) from an array of them, or from one."""
    try:
        vectors = np.atleast_2d(np.asarray(attributes))
    except ValueError as error:  # numpy's word for lists of unequal lengths
        raise DGZError(f"attributes must be vectors of equal length: {one_line(error)}.") from error
    return as_floats(vectors, "attributes")
