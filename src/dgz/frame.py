"""The frame that three parts are put into, class level, instance level and classifier: DGZ's, and many rivals'.

Right of what all trained methods have in common; left of ``many``, which trains several such methods at once, and of
``composed``, which makes whole estimators of them. It knows what the parts are, how rows pass from one to the next, and
how the outcome scores rows.
"""

from abc import abstractmethod
from typing import Any, Literal, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from dgz.classifier import ClassifierTraining, CosineClassifier, Weights, member_name, prepared
from dgz.data.dataset import Floats, as_floats, first_bad_row
from dgz.errors import DGZError, require_number_or_auto
from dgz.generators import ClassGenerator
from dgz.instances import Distribution, check_instances, synthesise
from dgz.losses import Gate, Loss
from dgz.task import Task
from dgz.trained import TrainedMethod
from dgz.training import Row, multiplying, random_stream


class Frame(TrainedMethod):
    """A generator, a distribution of rows round what it places, and a classifier; a method adds its settings.

    Attributes
    ----------
    weights_ : array of shape (n_classes, d_x)
        The classifier's weights, of unit norm (of several members, their mean); ``linear`` ones of any norm, with a
        column for the bias.
    generator_, classifier_ : fitted stages
    lambda_1_, seen_penalty_ : float
        The weight of unseen classes in the loss, and what is subtracted from the scores of seen ones: as given, or what
        folds of the training rows say.
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
    lambda_1: float | Literal["auto"]
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
    n_members = 1
    seen_penalty: float | Literal["auto"] = 0.0

    @staticmethod
    @abstractmethod
    def _default_generator() -> ClassGenerator:
        """The generator of the method, with its default settings."""

    @classmethod
    def _with_parts(cls) -> Self:
        return cls(generator=cls._default_generator())

    def _synthesise(self, task: Task, member: int = 0) -> tuple[Tensor, Tensor]:
        """Pseudo rows of the unseen classes, which a member of the classifier learns from, and their classes."""
        unseen = torch.nonzero(~task.seen).squeeze(1)
        if not len(unseen):
            return task.x[:0], task.y[:0]
        rng = random_stream(self.seed_, f"instances{member_name(member)}", task.x.device)
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

    def _begin_classifier(self, task: Task) -> ClassifierTraining:
        """Training of the classifier on the task's rows and on pseudo rows, of which each member has its own."""
        drawn = [self._synthesise(task, member) for member in range(self.n_members)]
        x = torch.cat([task.x, *(pseudo_x for pseudo_x, _ in drawn)])
        y = torch.cat([task.y, *(pseudo_y for _, pseudo_y in drawn)])
        n_real, n_pseudo = len(task.x), len(drawn[0][0])
        places = torch.arange(n_real + n_pseudo, device=x.device).repeat(self.n_members, 1)
        places[:, n_real:] += n_pseudo * torch.arange(self.n_members, device=x.device)[:, None]
        return self._classifier_training([self._new_classifier()], task, x, y, rows=[places], seeds=[self.seed_])

    def _classifier_training(
        self, classifiers: list[CosineClassifier], task: Task, x: Tensor, y: Tensor, **options: Any
    ) -> ClassifierTraining:
        options = {"seen_penalties": [self.seen_penalty_], **options}
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
        if self.lambda_1 == "auto" and self.loss in ("plain", "adjusted"):
            raise DGZError(f"lambda_1='auto' has nothing to choose: the loss {self.loss!r} has no λ1.")
        generator = self._new_generator()
        generator.check()
        check_instances(generator, self.n_per_class, self.distribution, self.small_std, self.large_std)
        self._new_classifier().check()
        require_number_or_auto(seen_penalty=self.seen_penalty)
        super().check()

    def _new_generator(self) -> ClassGenerator:
        return self._default_generator() if self.generator is None else clone(self.generator)

    def _new_classifier(self) -> CosineClassifier:
        settings = {name: getattr(self, name) for name in CosineClassifier().get_params()}
        return CosineClassifier(**{**settings, "lambda_1": self._lambda_1_in_use()})

    def _lambda_1_in_use(self) -> float:
        """λ1 as given, or as found; before anything was found, a value in the place of one."""
        return getattr(self, "lambda_1_", 1.0) if self.lambda_1 == "auto" else self.lambda_1

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
        embedded: Floats = self.generator_.embed(self._on(device, rows)).cpu().numpy()
        return embedded
