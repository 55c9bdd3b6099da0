"""CN (Skorokhodov and Elhoseiny, ICLR 2021): class normalisation, and nothing but a mapping of class vectors.

In DGZ's terms: the classifier alone, with weights mapped from class vectors by a network that standardises its hidden
values over the classes, trained on seen classes by plain cross-entropy.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from torch.nn.functional import normalize

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import require_at_least, require_count
from dgz.peers.scoring import ScoringMethod, width
from dgz.task import Task
from dgz.training import Checkpoints, Precision, Row, random_stream


class CN(ScoringMethod):
    """CN: cosines with weights that a class-normalised network makes of class vectors.

    Faithful to the released notebook: network, the start of its weights, logits of 25 times the cosine, schedule,
    features as they are, the last epoch's state. Three details differ: with the network that DGZ has too
    (``weights="class_normalised"``), the variance over classes has the divisor C instead of C − 1, and the last layer's
    bias starts at zero instead of at small random values; and the last batch of an epoch is filled up.

    Parameters
    ----------
    seen_factor : float
        What the cosines of seen classes are multiplied by in use, to trade accuracy on seen classes for that on unseen
        ones. The notebook has 0.95, and 1 on CUB: presets follow it. How 0.95 was found it does not say.
    temperature : float
        Divides the cosines in training.
    d_hidden : int, optional
        Width of the two hidden layers; by default 1024 for 2048 features, and in proportion, but at least 256.
    n_epochs, learning_rate, lr_step, lr_factor, weight_decay, batch_size
        See :class:`~dgz.classifier.CosineClassifier`.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`. The network itself gives class vectors the norm √d_a.

    Examples
    --------
    >>> from dgz import gzsl_scores, load_numbers
    >>> data = load_numbers(0)
    >>> model = CN(n_epochs=5).fit(data.x_train, data.y_train, data.attributes)
    >>> gzsl_scores(model, data).acc_zsl > 0.5  # of 20 classes without training rows
    True
    """

    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {"seen_factor": 0.95},
        "CUB": {"seen_factor": 1.0},
        "SUN": {"seen_factor": 0.95},
        "APY": {"seen_factor": 0.95},
    }

    def __init__(
        self,
        *,
        seen_factor: float = 1.0,
        temperature: float = 0.04,
        d_hidden: int | None = None,
        n_epochs: int = 50,
        learning_rate: float = 5e-4,
        lr_step: int | None = 25,
        lr_factor: float = 0.1,
        weight_decay: float = 1e-4,
        batch_size: int = 256,
        feature_scaling: FeatureScaling = "none",
        attribute_scaling: AttributeScaling = "none",
        device: str = "auto",
        precision: Precision = "tf32",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.seen_factor = seen_factor
        self.temperature = temperature
        self.d_hidden = d_hidden
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.lr_step = lr_step
        self.lr_factor = lr_factor
        self.weight_decay = weight_decay
        self.batch_size = batch_size
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        require_at_least(0, seen_factor=self.seen_factor)
        require_count(d_hidden=1 if self.d_hidden is None else self.d_hidden)
        self._new_classifier(1).check()
        super().check()

    def _new_classifier(self, d_x: int) -> CosineClassifier:
        return CosineClassifier(
            weights="class_normalised",
            loss="plain",
            temperature=self.temperature,
            d_hidden=width(self.d_hidden, 1024, d_x),
            n_epochs=self.n_epochs,
            learning_rate=self.learning_rate,
            lr_step=self.lr_step,
            lr_factor=self.lr_factor,
            weight_decay=self.weight_decay,
            batch_size=self.batch_size,
            beta_1=0.9,
        )

    def _build(self, n_classes: int, d_a: int, d_x: int) -> None:
        start = random_stream(self.seed_, "classifier's start")
        self.networks_ = {"classifier": self._new_classifier(d_x).build(n_classes, d_a, d_x, start).net_}

    def _learn(self, task: Task, checkpoints: Checkpoints | None) -> list[Row]:
        # The vectors of unseen classes stay out of training: they would move the statistics over the classes.
        seen = torch.nonzero(task.seen).squeeze(1)
        y = torch.searchsorted(seen, task.y)
        training = ClassifierTraining(
            [self._new_classifier(task.x.shape[1])],
            task.x,
            y,
            task.vectors[seen],
            torch.ones_like(task.seen[seen]),
            seeds=[self.seed_],
            precision=self.precision,
        )
        # In use meanwhile, with the statistics so far: it shares its values with the network in training.
        self.networks_ = {"classifier": training.members[0].eval()}
        (classifier,) = training.run(after_epoch=self._watch(task), checkpoints=checkpoints, verbose=self.verbose)
        self.networks_ = {"classifier": classifier.net_}
        return self._classifier_rows(classifier.history_)

    def _compare(self, x: Tensor, vectors: Tensor) -> Tensor:
        cosines = normalize(x) @ normalize(self.networks_["classifier"](vectors)).T
        factors = torch.ones(len(vectors), device=x.device)
        factors[torch.as_tensor(self.seen_, device=x.device)] = self.settings_["seen_factor"]
        return cosines * factors
