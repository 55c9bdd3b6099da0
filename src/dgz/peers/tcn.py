"""TCN (Jiang et al., ICCV 2019): a network that says of a row and a class whether they belong together.

Rows are contrasted with the classes they are of, and with the unseen classes that these resemble: a soft target for
each pair of a seen and an unseen class, from their vectors alone.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits, leaky_relu

from dgz.data.dataset import Floats
from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import require_at_least, require_count
from dgz.nets import MLP, initialise
from dgz.peers.scoring import ScoringMethod, SeenTraining, width
from dgz.task import Task
from dgz.training import Checkpoints, Precision, Row, descend, random_stream, train

_SLOPE = 0.01  # below 0, of the prototypes' leaky ReLUs
_LEAST_COEFFICIENT = 1e-3


class TCN(ScoringMethod):
    r"""TCN: a relation network over the elementwise product of a row and a class's prototype.

    A class vector becomes a prototype p in feature space; a pair's score is :math:`r(x \odot p)`. The loss is binary
    cross-entropy of :math:`\sigma(r)`: against 0 and 1 for the seen classes, and, with a small weight, against how much
    of the row's class is made of each unseen class (:func:`similarity`). Scores are the values before the sigmoid,
    which has the same order.

    Faithful to the released code: networks, losses, optimizer, batches, number of steps, features as they are. Three
    things differ: layers start from uniform values where theirs are normal ones of the same variance, batches are drawn
    with replacement, and the state after the last step is used, where theirs is the best on the test rows of those
    after every 1,000 steps. That matters: in their own log of aPY, H is highest after 6,000 of 50,000 steps and falls
    to half of that by the end.

    Parameters
    ----------
    unseen_weight : float
        Of the unseen classes in the loss; 0 leaves a plain relation network.
    ridge : float
        Strength of the ridge in :func:`similarity`.
    d_hidden, d_relation : int, optional
        Width of the hidden layers of prototypes and relations; by default 1024 for 2048 features, and in proportion,
        but at least 256.
    n_epochs, steps_per_epoch : int
        After every ``steps_per_epoch`` steps there is a row in the history, and test scores where asked for.
    learning_rate, batch_size
        Adam's, with the betas 0.5 and 0.9; rows per step.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = TCN(n_epochs=2, steps_per_epoch=10).fit(data.x_train, data.y_train, data.attributes)
    >>> model.predict(data.x_test_seen[:5]).shape
    (5,)
    """

    # The released code has the same settings for all data sets.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {"AWA2": {}, "CUB": {}, "SUN": {}, "APY": {}}

    def __init__(
        self,
        *,
        unseen_weight: float = 0.01,
        ridge: float = 1.0,
        d_hidden: int | None = None,
        d_relation: int | None = None,
        n_epochs: int = 50,
        steps_per_epoch: int = 1000,
        learning_rate: float = 1e-5,
        batch_size: int = 32,
        feature_scaling: FeatureScaling = "none",
        attribute_scaling: AttributeScaling = "auto",
        device: str = "auto",
        precision: Precision = "tf32",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.unseen_weight = unseen_weight
        self.ridge = ridge
        self.d_hidden = d_hidden
        self.d_relation = d_relation
        self.n_epochs = n_epochs
        self.steps_per_epoch = steps_per_epoch
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        require_at_least(0, unseen_weight=self.unseen_weight)
        require_at_least(1e-12, ridge=self.ridge, learning_rate=self.learning_rate)
        for name in ("d_hidden", "d_relation"):
            require_count(**{name: 1 if getattr(self, name) is None else getattr(self, name)})
        require_count(n_epochs=self.n_epochs, steps_per_epoch=self.steps_per_epoch, batch_size=self.batch_size)
        super().check()

    def _build(self, n_classes: int, d_a: int, d_x: int) -> None:
        prototypes = MLP([d_a], [width(self.d_hidden, 1024, d_x), d_x], slope=_SLOPE)
        relation = MLP([d_x], [width(self.d_relation, 1024, d_x), 1], slope=0.0)
        start = random_stream(self.seed_, "classifier's start")
        self.networks_ = {
            "prototypes": initialise(prototypes, start, "xavier"),
            "relation": initialise(relation, start, "xavier"),
        }

    def _learn(self, task: Task, checkpoints: Checkpoints | None) -> list[Row]:
        history = train(
            "classifier",
            _RelationTraining(self, task),
            self.n_epochs,
            after_epoch=self._watch(task),
            checkpoints=checkpoints,
            verbose=self.verbose,
        )
        return self._classifier_rows(history)

    def _compare(self, x: Tensor, vectors: Tensor) -> Tensor:
        return relations(self.networks_["prototypes"], self.networks_["relation"], x, vectors)

    def _values_per_pair(self, d_x: int) -> int:
        return d_x + width(self.settings_["d_relation"], 1024, d_x)


def relations(prototypes: nn.Module, relation: nn.Module, x: Tensor, vectors: Tensor) -> Tensor:
    """Scores (n, C) of rows x (n, d_x) with class vectors (C, d_a): positive where the two belong together."""
    # The relation's first layer is linear in x and in p alike, but its products are of pairs: (x ∘ p) W has no cheaper
    # form. Making x ∘ p costs n · C · d_x values; W ∘ p, the other way to write it, C · d_x · d_relation, which is more
    # for any batch narrower than the layer.
    pairs = x[:, None] * leaky_relu(prototypes(vectors), _SLOPE)
    scores: Tensor = relation(pairs).squeeze(-1)
    return scores.float()


def similarity(seen: Floats, unseen: Floats, ridge: float = 1.0) -> Floats:
    r"""How much of each seen class is made of each unseen one: (C_s, C_u), rows of sum 1.

    Ridge regression, with an intercept, writes a seen class's vector as a combination of those of the unseen classes;
    coefficients below 0.001 become 0, and what is left is made to sum to 1. A class that resembles none has a row of
    zeros.

    Takes vectors of the seen (C_s, d_a) and of the unseen classes (C_u, d_a).

    Examples
    --------
    >>> similarity(np.eye(3)[:1] + 1, np.eye(3)[:2])  # like the first, as far as its entries differ; not like the other
    array([[1., 0.]], dtype=float32)
    """
    # An intercept makes regression one of vectors less the means of their entries.
    known, wanted = (vectors - vectors.mean(axis=1, keepdims=True) for vectors in (unseen.astype(np.float64), seen))
    coefficients = np.linalg.solve(known @ known.T + ridge * np.eye(len(known)), known @ wanted.T).T
    found = np.where(coefficients < _LEAST_COEFFICIENT, 0.0, coefficients)
    total = found.sum(axis=1, keepdims=True)
    # Authors' code: 0/0 for a class that resembles no unseen one.
    return (found / np.where(total == 0, 1.0, total)).astype(np.float32)


class _RelationTraining(SeenTraining):
    """Seen classes come first among the columns, then the unseen ones."""

    def __init__(self, method: TCN, task: Task) -> None:
        options: dict[str, Any] = {"n_steps": method.steps_per_epoch, "batch_size": method.batch_size}
        options |= {"seed": method.seed_, "precision": method.precision, "learning_rate": method.learning_rate}
        super().__init__(task, "classifier", method.networks_, betas=(0.5, 0.9), **options)
        self.unseen_weight, self.n_seen = method.unseen_weight, len(self.classes)
        unseen = task.vectors[~task.seen]
        self.targets = torch.eye(self.n_seen, device=task.x.device)
        if len(unseen):
            alike = similarity(self.vectors.cpu().numpy(), unseen.cpu().numpy(), method.ridge)
            self.targets = torch.cat([self.targets, torch.as_tensor(alike, device=task.x.device)], dim=1)
            self.vectors = torch.cat([self.vectors, unseen])

    def step(self) -> dict[str, Tensor]:
        x, y = self.draw()
        scores = relations(self.networks["prototypes"], self.networks["relation"], x, self.vectors)
        entropy = binary_cross_entropy_with_logits(scores, self.targets[y], reduction="none")
        losses = {"seen loss": entropy[:, : self.n_seen].mean()}
        total = losses["seen loss"]
        if self.n_seen < len(self.vectors):
            losses["unseen loss"] = entropy[:, self.n_seen :].mean()
            total = total + self.unseen_weight * losses["unseen loss"]
        descend(self.optimizer, total)
        return losses
