"""LisGAN (Li et al., CVPR 2019): f-CLSWGAN with generated rows that stay near the souls of their class.

In DGZ's terms: the generator (:class:`~dgz.generators.SoulWGANGP`) has two more losses, and the classifier is a linear
softmax. :class:`LisGAN` is inductive, as everything else here. What the released code reports has learned from test
rows, too: that is :class:`TransductiveLisGAN`, which no name of ``METHODS`` leads to.
"""

from collections.abc import Mapping
from typing import Any, ClassVar, Self

import numpy as np
import numpy.typing as npt
import torch
from scipy.special import entr, softmax

from dgz.classifier import CosineClassifier
from dgz.data.dataset import Floats, Ints, as_floats, first_bad_row
from dgz.errors import DGZError
from dgz.generators import ClassGenerator, SoulWGANGP
from dgz.peers.softmax import SoftmaxMethod, with_defaults
from dgz.training import pick_device

_CONFIDENT_SHARE = 0.6


@with_defaults(n_epochs=50)
class LisGAN(SoftmaxMethod):
    """LisGAN without its self-training on test rows: features generated near souls, and a softmax classifier.

    Faithful to the released code and the commands in its README: networks, losses (souls by k-means with 3 clusters,
    the mean of 20 fresh rows of every seen class in every step), schedules, scaling, the 100 epochs of the classifier
    that judges generated rows, the 50 epochs and the batches of two classes' rows of the final one. Differences: the
    seed of k-means comes from the model's, batches of the generator are drawn with replacement, the noise of the last
    critic step serves the generator's step too (they draw it anew), and T1 is of the classifier over all classes. The
    preset of AWA2 has what was published for AWA1. **Inductive**: the published numbers are of a second classifier that
    has learned from test rows, :class:`TransductiveLisGAN`, and of the best epoch on them; they are not this method's.

    On CUB with sentence vectors (ResNet-50, 3 seeds), H after the last epoch is 25.8, 15.9 points below
    :class:`~dgz.peers.NearestPrototype`; with attributes it is 6.2 above. As with f-CLSWGAN, the softmax goes over to
    the seen classes: T1 is 76.4, 25.6 above, and H 56.9 at the epoch that is best on the test rows; at the one
    that three leak-free folds of the training rows choose, it is 55.8 (one seed).

    Parameters
    ----------
    generator, distribution, n_per_class, small_std, large_std
        See :class:`~dgz.DGZ`; the generator is by default a :class:`~dgz.generators.SoulWGANGP`.
    n_epochs, learning_rate : int, float
        Of the softmax classifier.
    batch_size : int, optional
        Its rows per step; by default twice ``n_per_class``, as in the released code.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0, n_train=5)
    >>> model = LisGAN(generator=SoulWGANGP(n_epochs=1, n_fakes=2), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    # The GZSL commands of the README; those of AWA2 are AWA1's.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {
            "generator__n_epochs": 30,
            "generator__learning_rate": 1e-5,
            "generator__mean_soul_weight": 1e-3,
            "generator__row_soul_weight": 3e-5,
            "n_per_class": 1800,
        },
        "CUB": {
            "generator__n_epochs": 56,
            "generator__learning_rate": 1e-4,
            "generator__mean_soul_weight": 1e-2,
            "generator__row_soul_weight": 1e-3,
            "n_per_class": 300,
        },
        "SUN": {
            "generator__n_epochs": 40,
            "generator__learning_rate": 2e-4,
            "generator__mean_soul_weight": 0.3,
            "generator__row_soul_weight": 3e-5,
            "n_per_class": 400,
        },
        "APY": {
            "generator__n_epochs": 50,
            "generator__learning_rate": 1e-5,
            "generator__mean_soul_weight": 0.3,
            "generator__row_soul_weight": 3e-4,
            "n_per_class": 1800,
        },
    }

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return SoulWGANGP()

    def _new_classifier(self) -> CosineClassifier:
        classifier = super()._new_classifier()
        return classifier.set_params(batch_size=2 * self.n_per_class) if self.batch_size is None else classifier

    def _settings_in_use(self) -> dict[str, Any]:
        settings = super()._settings_in_use()
        if self.batch_size is None and settings["batch_size"] == 2 * self.n_per_class:
            settings["batch_size"] = None  # it goes on following the number of rows
        return settings


class TransductiveLisGAN(LisGAN):
    """LisGAN as its released code reports it: **transductive**, that is, having learned from the test rows themselves.

    After :class:`LisGAN`'s training, the 60 % of the test rows that the classifier is surest of join its training rows,
    with the labels that it gives them, and it is trained once more. No true label of a test row is used, but rows of
    unseen classes are: its scores must not be compared with those of inductive methods. It is in no list of methods and
    cannot be run by name, ``fit`` refuses to work without ``X_test``, and ``history_`` calls the second training
    "transductive classifier".

    Approximate where the released code is odd: it takes as sure the rows with the largest entropy of normalised
    *log*-probabilities, where we take those with the smallest entropy of probabilities; it starts from the epoch that
    is best on the test rows, where we take the last; and it keeps the first classifier's labels of the rows that
    joined, where the second one decides on all.

    Parameters are those of :class:`LisGAN`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0, n_train=5)
    >>> X_test = np.concatenate([data.x_test_seen, data.x_test_unseen])
    >>> model = TransductiveLisGAN(generator=SoulWGANGP(n_epochs=1, n_fakes=2), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes, X_test=X_test).history_[-1]["stage"]
    'transductive classifier'
    """

    def fit(self, X: Any, y: Any, attributes: Any = None, *, X_test: Any = None, **options: Any) -> Self:
        """Fit on rows ``X`` with labels ``y`` as :class:`LisGAN` does, and then on the rows ``X_test``, too.

        Parameters
        ----------
        X, y, attributes
            See :meth:`DGZ.fit`.
        X_test : array of shape (n_test, d_x)
            The rows that will be predicted, without labels.
        **options
            Others of :meth:`DGZ.fit`; they are about the first training.
        """
        if X_test is None:
            raise DGZError(
                "A TransductiveLisGAN learns from the rows that it is tested on: fit needs them as X_test. LisGAN is "
                "the method that does without."
            )
        rows = as_floats(X_test, "X_test")
        if (bad := first_bad_row(rows)) is not None:
            raise DGZError(f"X_test must be finite, found NaN or infinity in row {bad}.")
        if rows.shape[1] != (n_columns := np.shape(X)[-1]):
            raise DGZError(f"X_test must have {n_columns} columns, as X has, found {rows.shape[1]}.")
        self._has_test_rows = True
        try:
            super().fit(X, y, attributes, **options)
        finally:
            del self._has_test_rows
        self._learn_from(rows)
        return self

    def refine(self, X: Any = None, y: Any = None) -> Self:
        """Refuse: what a model has learned from test rows cannot be had from training rows."""
        raise DGZError("A TransductiveLisGAN cannot be refined, since it holds no test rows: fit it anew.")

    def _finish(self, classifier: CosineClassifier) -> None:
        if not hasattr(self, "_has_test_rows"):
            raise DGZError("A TransductiveLisGAN is fitted by its own fit alone, which is given the test rows.")
        super()._finish(classifier)

    def _learn_from(self, X_test: Floats) -> None:
        """Train the classifier once more, with the test rows that it is surest of among its own."""
        sure, labels = surest(self._scores(X_test))
        del self.weights_  # those of an inductive model, which this one must not pass for if the rest fails
        device = pick_device(self.device)
        X, y = self._rows
        task = self._task(X, np.searchsorted(self.classes_, y), device).embedded(self.generator_, self.seed_)
        pseudo_x, pseudo_y = self._synthesise(task)
        sure_x, sure_y = self._on(device, self._embed(X_test[sure])), torch.as_tensor(labels, device=device)
        training = self._classifier_training(
            [self._new_classifier()],
            task,
            torch.cat([task.x, pseudo_x, sure_x]),
            torch.cat([task.y, pseudo_y, sure_y]),
            seeds=[self.seed_],
        )
        # Authors' code: the second training goes on from the first; Adam's moments begin anew here.
        training.members[0].load_state_dict(self.classifier_.net_.state_dict())
        (self.classifier_,) = training.run(verbose=self.verbose)
        known = {"stage": "transductive classifier", "n_test_rows": len(sure)}
        self.history_ += [{**known, **row} for row in self.classifier_.history_]
        self._set_weights()


def surest(scores: npt.NDArray[np.floating[Any]]) -> tuple[Ints, Ints]:
    """Numbers of the 60 % of the rows whose softmax has the least entropy, and the columns it gives them.

    Examples
    --------
    >>> surest(np.array([[0.0, 0.1], [0.0, 9.0], [8.0, 0.0]]))
    (array([1]), array([1]))
    """
    # Authors' code: --ratio says how many, but is ignored in GZSL: it is always 0.6.
    entropy = entr(softmax(scores, axis=1)).sum(axis=1)
    sure = np.argsort(entropy, kind="stable")[: int(_CONFIDENT_SHARE * len(scores))]
    return sure, scores[sure].argmax(axis=1)
