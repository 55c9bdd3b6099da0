"""Class level, instance level and classifier composed into one scikit-learn classifier: DGZ, and many rivals.

In come features, labels and one vector per class; out come predictions over all classes, with or without training rows.
A fitted model takes on new classes from their vectors alone, where its classifier's weights come from class vectors.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.utils.validation import check_is_fitted

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.data.dataset import Floats, as_floats, first_bad_row, listing
from dgz.errors import DGZError, one_line, require_at_least
from dgz.estimator import Arrays, Labels, as_json
from dgz.frame import Frame
from dgz.generators import generator_of
from dgz.many import choose_on_folds
from dgz.nets import FreeWeights
from dgz.training import Checkpoints, Row, pick_device, random_stream


class ComposedMethod(Frame):
    """A method of three parts that learns, takes on classes, and is written to files; a method adds its settings."""

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
            Its test rows are scored after every classifier epoch for ``history_`` alone: nothing is chosen by them.
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
        choose_on_folds(
            [self], X, positions, self.attributes_, checkpoint_folder=checkpoint_folder, verbose=self.verbose
        )
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
            if classifying is None or generator.embeds:
                classifying = self._begin_classifier(embedded)
            else:
                pseudo = [self._synthesise(embedded, member)[0] for member in range(self.n_members)]
                classifying.restart(len(task.x), torch.cat(pseudo))  # what was captured stays
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
        (self.classifier_,) = self._begin_classifier(task).run(verbose=self.verbose)
        final = self.generator_.n_epochs
        self.history_ = [row for row in self.history_ if row.get("generator_epoch") != final]
        self.history_ += self._classifier_rows(self.classifier_.history_, final)
        if self.seen_penalty != "auto":  # what folds said stays
            self.seen_penalty_ = float(self.seen_penalty)
        self.lambda_1_ = self.classifier_.lambda_1
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
        if self.lambda_1 == "auto":
            del learned_with["lambda_1"]
        settings |= {name: value for name, value in learned_with.items() if name in settings}
        if self.generator is not None or as_json(self.generator_) != as_json(self._default_generator()):
            settings["generator"] = as_json(self.generator_)
        return settings

    def _learned(self) -> tuple[dict[str, Any], Arrays]:
        header, arrays = super()._learned()
        header |= {"noise": self.generator_.noise_, "lambda_1": self.lambda_1_, "seen_penalty": self.seen_penalty_}
        return header, {**arrays, "weights": self.weights_}

    @classmethod
    def _of_settings(cls, settings: Mapping[str, Any]) -> Self:
        inner = settings["generator"]
        return cls(**{**settings, "generator": inner and generator_of(inner)})

    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        self.generator_, self.weights_ = self._new_generator(), arrays["weights"]
        self.lambda_1_ = float(header["lambda_1"] if self.lambda_1 == "auto" else self.lambda_1)
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


def _as_rows(attributes: Any) -> Floats:
    """Class vectors (n, d_a) from an array of them, or from one."""
    try:
        vectors = np.atleast_2d(np.asarray(attributes))
    except ValueError as error:  # numpy's word for lists of unequal lengths
        raise DGZError(f"attributes must be vectors of equal length: {one_line(error)}.") from error
    return as_floats(vectors, "attributes")
