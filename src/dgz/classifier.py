"""CLASSIFIER: how the weights of all classes are made and trained from real seen and generated unseen rows.

In come rows on a device, their classes, the class vectors and which classes are seen; out comes a net that turns class
vectors into classifier weights. A row's score for a class is the cosine between the two.
"""

import math
from collections.abc import Callable
from typing import Literal, Self

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn
from torch.nn.functional import normalize

from dgz.errors import require_at_least, require_choice, require_count
from dgz.losses import Gate, Loss, cross_entropy, incremental_cross_entropy, revised_cross_entropy
from dgz.nets import MLP, ClassNormalisedMapper, FreeWeights, initialise
from dgz.training import Checkpoints, Row, Trainee, adam, random_stream, train, update

Weights = Literal["mapped", "free", "class_normalised"]
_FEWEST_STEPS = 10  # in an epoch: a data set of a few hundred rows is otherwise left untrained by any usual schedule


class CosineClassifier(BaseEstimator):  # type: ignore[misc]
    """Cosine classifier over seen and unseen classes, Eq. (9), (10).

    Parameters
    ----------
    weights : {"mapped", "free", "class_normalised"}
        Where a class's weights come from: a mapping net of its vector, nowhere (a free row), or a mapping net with
        class normalisation.
    loss : {"revised", "plain", "incremental"}
        Eq. (8), plain cross-entropy, or Eq. (6).
    gate : {"argmax_all", "above_true", "always"}
        See :func:`~dgz.losses.revised_cross_entropy`.
    lambda_1, lambda_2 : float
        Weights of the unseen classes in the loss: λ1 of Eq. (6) and (8), λ2 of Eq. (6).
    temperature : float
        Divides the cosines (τ).
    d_hidden : int
        Width of the mapping net's hidden layer.
    n_epochs : int
        Passes over real and generated rows.
    learning_rate : float
        Adam's.
    lr_step : int or None
        Epochs after which the learning rate is divided by ten, again and again; None keeps it.
    batch_size : int
        Rows per step.
    resample : bool
        Draw batches with all classes equally likely, instead of going through the rows.

    Attributes
    ----------
    net_ : Module
        Class vectors to weights.
    history_ : list of dict
        Loss of each epoch.
    """

    def __init__(
        self,
        *,
        weights: Weights = "mapped",
        loss: Loss = "revised",
        gate: Gate = "argmax_all",
        lambda_1: float = 1.0,
        lambda_2: float = 1.0,
        temperature: float = 0.04,
        d_hidden: int = 1024,
        n_epochs: int = 60,
        learning_rate: float = 1e-4,
        lr_step: int | None = 25,
        batch_size: int = 512,
        resample: bool = False,
    ) -> None:
        self.weights = weights
        self.loss = loss
        self.gate = gate
        self.lambda_1 = lambda_1
        self.lambda_2 = lambda_2
        self.temperature = temperature
        self.d_hidden = d_hidden
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.lr_step = lr_step
        self.batch_size = batch_size
        self.resample = resample

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        attributes: Tensor,
        seen: Tensor,
        *,
        seed: int = 0,
        after_epoch: Callable[[int], Row] | None = None,
        checkpoints: Checkpoints | None = None,
        verbose: bool = False,
    ) -> Self:
        """Learn from rows x (n, d_x) of classes y (n,), which are rows of ``attributes`` (C, d_a).

        ``seen`` (C,) says which classes are seen. The rest as in :meth:`~dgz.generators.ClassGenerator.fit`.
        """
        self.check()
        n_classes, d_a = attributes.shape
        self.build(n_classes, d_a, x.shape[1], random_stream(seed, "classifier's start")).net_.to(x.device).train()
        trainee = _ClassifierTraining(self, x, y, attributes, seen, seed)
        self.history_ = train(
            "classifier", trainee, self.n_epochs, after_epoch=after_epoch, checkpoints=checkpoints, verbose=verbose
        )
        self.net_.eval()
        return self

    def build(self, n_classes: int, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained net for ``n_classes`` class vectors of width ``d_a`` and features of width ``d_x``."""
        net: nn.Module
        if self.weights == "mapped":
            net = MLP([d_a], [self.d_hidden, d_x])
        elif self.weights == "free":
            net = FreeWeights(n_classes, d_x)
        else:
            net = ClassNormalisedMapper(d_a, self.d_hidden, d_x)
        self.net_ = initialise(net, rng)
        return self

    @torch.no_grad()
    def class_weights(self, attributes: Tensor) -> Tensor:
        """Unit-norm weights (C, d_x) of the classes with the vectors ``attributes`` (C, d_a)."""
        was_training = self.net_.training
        weights = normalize(self.net_.eval()(attributes))
        self.net_.train(was_training)
        return weights

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        for name, kinds in (("weights", Weights), ("loss", Loss), ("gate", Gate)):
            require_choice(getattr(self, name), kinds, name)
        require_at_least(0, lambda_1=self.lambda_1, lambda_2=self.lambda_2)
        require_at_least(1e-12, temperature=self.temperature, learning_rate=self.learning_rate)
        require_count(n_epochs=self.n_epochs, batch_size=self.batch_size, d_hidden=self.d_hidden)
        require_count(lr_step=1 if self.lr_step is None else self.lr_step)


class _ClassifierTraining(Trainee):
    def __init__(
        self, classifier: CosineClassifier, x: Tensor, y: Tensor, attributes: Tensor, seen: Tensor, seed: int
    ) -> None:
        self.classifier, self.attributes, self.seen = classifier, attributes, seen
        self.x, self.y = normalize(x), y
        self.networks = {"classifier": classifier.net_}
        self.optimizers = {"classifier": adam(classifier.net_, classifier.learning_rate)}
        self.rng = random_stream(seed, "classifier", x.device)
        self.batch_size = min(classifier.batch_size, len(x))
        self.n_steps = max(math.ceil(len(x) / self.batch_size), _FEWEST_STEPS)
        if classifier.resample:
            self.by_class = torch.argsort(y, stable=True)
            self.n_rows = torch.bincount(y, minlength=len(attributes))
            self.start = self.n_rows.cumsum(0) - self.n_rows
            self.classes = torch.nonzero(self.n_rows).squeeze(1)

    def begin_epoch(self, epoch: int) -> None:
        every = self.classifier.lr_step
        rate = self.classifier.learning_rate * (0.1 ** ((epoch - 1) // every) if every else 1.0)
        for group in self.optimizers["classifier"].param_groups:
            group["lr"] = rate
        self.batches = iter(self._draw_classes() if self.classifier.resample else self._shuffle())

    def _shuffle(self) -> Tensor:
        """Row numbers (n_steps, batch_size): all rows in random order, and again from the start to fill the last."""
        order = torch.randperm(len(self.x), generator=self.rng, device=self.x.device)
        n = self.n_steps * self.batch_size
        return order.repeat(math.ceil(n / len(order)))[:n].view(self.n_steps, self.batch_size)

    def _draw_classes(self) -> Tensor:
        """Row numbers (n_steps, batch_size): a random class, then a random row of it."""
        size = (self.n_steps, self.batch_size)
        at = torch.randint(len(self.classes), size, generator=self.rng, device=self.x.device)
        classes = self.classes[at]
        share = torch.rand(size, generator=self.rng, device=self.x.device, dtype=torch.double)
        return self.by_class[self.start[classes] + (share * self.n_rows[classes]).long()]

    def step(self) -> dict[str, Tensor]:
        rows = next(self.batches)
        kind = self.classifier
        weights = normalize(kind.net_(self.attributes))
        logits = (self.x[rows] @ weights.T).float() / kind.temperature
        y = self.y[rows]
        if kind.loss == "revised":
            loss = revised_cross_entropy(logits, y, self.seen, kind.lambda_1, kind.gate)
        elif kind.loss == "incremental":
            loss = incremental_cross_entropy(logits, y, self.seen, kind.lambda_1, kind.lambda_2)
        else:
            loss = cross_entropy(logits, y)
        update(self.optimizers["classifier"], loss)
        return {"loss": loss}
