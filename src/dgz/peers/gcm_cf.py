"""GCM-CF (Yue et al., CVPR 2021): a row is of an unseen class if it goes better with what it would be in one.

A generator (:class:`~dgz.generators.CounterfactualVAEGAN`) makes each row again under every unseen class. A classifier
for this row alone, of real rows of the seen classes and of these, says whether it is of a seen class; two softmaxes say
of which.
"""

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar, Self, cast

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import clone
from torch import Tensor, nn

from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import DGZError, require_at_least, require_count
from dgz.generators import ClassGenerator, CounterfactualVAEGAN, generator_of
from dgz.generators.base import seen_places
from dgz.losses import cross_entropy
from dgz.nets import BlockLinear, initialise
from dgz.peers.scoring import ScoringMethod, SeenTraining
from dgz.peers.tf_vaegan import TFVAEGAN
from dgz.task import Task
from dgz.training import Checkpoints, Precision, Row, descend, multiplying, random_stream, train

_SEEN_BETA_1 = 0.5
_BLOCK = 4096  # rows that are in double precision at a time


class GCMCF(ScoringMethod):
    r"""GCM-CF: what a row would be in each unseen class tells whether it is of one, and two softmaxes tell the class.

    In use, a row's code is inferred, and the row made again of it under each unseen class: counterfactual rows, like it
    in all that the class does not say. A linear classifier of all classes, whose unseen ones have nothing but these, is
    made for this row alone. Where an unseen class wins, a softmax over the unseen classes says which; it has learned
    from rows made of random codes. Otherwise a softmax over the seen classes says which; it has learned from the real
    rows. All of them see TF-VAEGAN's rows :math:`[x, \hat a, h]`. T1 is the unseen softmax's.

    Faithful to the released code: the generator and its losses, scaling, the two softmaxes and their schedules, and
    the rule. Approximate:

    - The classifier of a single row is a softmax there, trained for a few epochs on all real rows and hundreds of
      counterfactual ones for each unseen class: on CUB 368 steps with 1.3 million weights, for each of 4,731 test rows.
      Here it is the closed form that has such logits, linear discriminant analysis
      (:class:`CounterfactualDiscriminant`). Classes have a covariance in common, that of the real rows within their
      classes, and an unseen class's centre is one counterfactual row, made of the mean of the row's code, which counts
      ``n_per_class`` times. On the embedded numbers, 200 test rows of each of two seeds, it called 95 and 94 in 100
      seen or unseen as softmaxes trained for each row did (at ten times the released learning rate, which leaves those
      of so few features untrained); least squares to one-hot classes, the other closed form, 92 at most.
    - The released code takes the unseen softmax's rows from a second generator, a plain TF-VAEGAN. Here one generator
      serves both.
    - Its CUB script for the two softmaxes is missing; settings of the unseen one are those of its baseline.
    - It reads which rows are unseen from files, made with the epoch that is best on the test rows. Here nothing is
      chosen by them, and the last epoch is used.
    - What :class:`~dgz.peers.TFVAEGAN` has that is approximate, the generator has, too. Rows of all batches are drawn
      with replacement.

    Scores of seen classes are logits of their softmax, less the largest; those of unseen classes likewise, plus the gap
    between the best unseen and the best seen class of the row's own classifier. So the largest is the rule's answer.

    Parameters
    ----------
    generator : CounterfactualVAEGAN, optional
        With its default settings where none is given.
    n_per_class : int
        For how many rows a counterfactual one counts.
    ridge : float
        What is added to the covariance's diagonal, in units of its mean: the higher, the less the directions in which
        real rows spread differ from others.
    n_epochs, learning_rate : int, float
        Of the softmax over the seen classes.
    batch_size : int, optional
        Its rows per step; by default ``n_per_class``, as in the released code.
    n_unseen_per_class : int
        Rows made of each unseen class, for the softmax over these.
    n_unseen_epochs, unseen_learning_rate, unseen_beta_1, unseen_batch_size : int, float, float, int
        Of that softmax: epochs, Adam's learning rate and first decay, and rows per step.
    feature_scaling : {"minmax", "minmax_l2", "none"}
        Generated rows lie in [0, 1], so that only ``minmax`` suits it.
    attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`; class vectors have unit length by default, as in the released code.

    Attributes
    ----------
    generator_ : CounterfactualVAEGAN
        Trained.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0, n_train=5)
    >>> model = GCMCF(generator=CounterfactualVAEGAN(n_epochs=1, n_critic=1, n_contrasts=2), n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen[:5]).shape
    (5,)
    """

    # The released scripts: cf.py and eval_two_stage_cf.py; CUB's unseen softmax is of eval_two_stage_baseline.py. They
    # are of attributes alone.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {
            **TFVAEGAN.presets["AWA2"],
            "generator__n_epochs": 160,
            "generator__kl_warm_up": 40,
            "n_unseen_per_class": 100,
            "n_unseen_epochs": 2,
            "unseen_learning_rate": 2e-3,
            "unseen_beta_1": 0.9,
            "unseen_batch_size": 300,
        },
        "CUB": {
            **TFVAEGAN.presets["CUB"],
            "generator__kl_warm_up": 80,
            "n_unseen_per_class": 200,
            "n_unseen_epochs": 9,
            "unseen_learning_rate": 5e-4,
            "unseen_beta_1": 0.5,
            "unseen_batch_size": 500,
        },
        "SUN": {
            **TFVAEGAN.presets["SUN"],
            "generator__n_epochs": 200,
            "generator__kl_weight": 4.0,
            "generator__kl_warm_up": 80,
            "n_epochs": 20,
            "batch_size": 1400,
            "n_unseen_per_class": 400,
            "n_unseen_epochs": 2,
            "unseen_learning_rate": 1e-3,
            "unseen_beta_1": 0.9,
            "unseen_batch_size": 1400,
        },
        "APY": {
            "generator__n_epochs": 150,
            "generator__learning_rate": 1e-5,
            "generator__decoder_weight": 0.1,
            "generator__feedback_rate": 1e-5,
            "generator__feedback_strength": 0.01,
            "generator__synthesis_strength": 0.01,
            "generator__kl_warm_up": 0,
            "generator__encoder_sees_class": True,
            "generator__target_noise": 0.0,
            "generator__contrast_weight": 0.0,
            "n_per_class": 1800,
            "n_unseen_per_class": 300,
            "n_unseen_epochs": 3,
            "unseen_learning_rate": 2e-3,
            "unseen_beta_1": 0.9,
            "unseen_batch_size": 1000,
        },
    }

    def __init__(
        self,
        *,
        generator: ClassGenerator | None = None,
        n_per_class: int = 300,
        ridge: float = 1.0,
        n_epochs: int = 15,
        learning_rate: float = 1e-3,
        batch_size: int | None = None,
        n_unseen_per_class: int = 200,
        n_unseen_epochs: int = 9,
        unseen_learning_rate: float = 5e-4,
        unseen_beta_1: float = 0.5,
        unseen_batch_size: int = 500,
        feature_scaling: FeatureScaling = "minmax",
        attribute_scaling: AttributeScaling = "unit",
        device: str = "auto",
        precision: Precision = "tf32",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.generator = generator
        self.n_per_class = n_per_class
        self.ridge = ridge
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.n_unseen_per_class = n_unseen_per_class
        self.n_unseen_epochs = n_unseen_epochs
        self.unseen_learning_rate = unseen_learning_rate
        self.unseen_beta_1 = unseen_beta_1
        self.unseen_batch_size = unseen_batch_size
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    @classmethod
    def _with_parts(cls) -> Self:
        return cls(generator=CounterfactualVAEGAN())

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        if not isinstance(self.generator, CounterfactualVAEGAN | None):
            raise DGZError(
                f"generator must be a CounterfactualVAEGAN, which makes a row again under another class, found a "
                f"{type(self.generator).__name__}."
            )
        self._new_generator().check()
        require_count(n_per_class=self.n_per_class, n_epochs=self.n_epochs)
        require_count(batch_size=1 if self.batch_size is None else self.batch_size)
        require_count(n_unseen_per_class=self.n_unseen_per_class, n_unseen_epochs=self.n_unseen_epochs)
        require_count(unseen_batch_size=self.unseen_batch_size)
        require_at_least(1e-6, ridge=self.ridge)  # with less, rounding would decide where few rows spread
        require_at_least(1e-12, learning_rate=self.learning_rate, unseen_learning_rate=self.unseen_learning_rate)
        require_at_least(0, unseen_beta_1=self.unseen_beta_1)
        if self.unseen_beta_1 >= 1:
            raise DGZError(f"unseen_beta_1 must be a number below 1, found {self.unseen_beta_1!r}.")
        super().check()

    def _new_generator(self) -> CounterfactualVAEGAN:
        return CounterfactualVAEGAN() if self.generator is None else clone(self.generator)

    def _build(self, n_classes: int, d_a: int, d_x: int) -> None:
        self.generator_ = self._new_generator().build(d_a, d_x, torch.Generator())
        d_row, n_seen = self.generator_.embedded_width(d_x), int(self.seen_.sum())
        self.networks_ = self.generator_.networks()
        for name, n_outputs in (("seen", n_seen), ("unseen", n_classes - n_seen)):
            if n_outputs:
                start = random_stream(self.seed_, f"{name} classifier's start")
                self.networks_[name] = initialise(BlockLinear([d_row], n_outputs), start)
        if n_seen < n_classes:
            self.networks_["discriminant"] = CounterfactualDiscriminant(n_seen, d_row)

    def _learn(self, task: Task, checkpoints: Checkpoints | None) -> list[Row]:
        options: dict[str, Any] = {"checkpoints": checkpoints, "verbose": self.verbose}
        generator, unseen = self.generator_, torch.nonzero(~task.seen).squeeze(1)
        generator.fit(task.x, task.y, task.vectors, seed=self.seed_, precision=self.precision, **options)
        self.networks_ |= generator.networks()
        history = [{"stage": "generator", **row} for row in generator.history_]
        real = replace(task, x=generator.embed(task.x))
        compare = None
        if len(unseen):
            self._discriminant.fit(real.x, seen_places(task.y, len(task.seen))[task.y], self.ridge)
            y = unseen.repeat_interleave(self.n_unseen_per_class)
            with multiplying(self.precision, task.x.device):
                x = generator.sample(task.vectors[y], random_stream(self.seed_, "instances", task.x.device)).float()
            made = replace(task, x=x, y=y, seen=~task.seen)
            training = _SoftmaxTraining(
                self,
                made,
                "unseen",
                "unseen classifier",
                batch_size=self.unseen_batch_size,
                learning_rate=self.unseen_learning_rate,
                beta_1=self.unseen_beta_1,
            )
            trained = train("unseen classifier", training, self.n_unseen_epochs, **options)
            history += [{"stage": "unseen classifier", **row} for row in trained]
            novel: dict[int, Tensor] = {}

            def compare(x: Tensor) -> Tensor:
                # What unseen classes have to do with a test row is known by now, and takes long to find.
                if id(x) not in novel:
                    novel[id(x)] = self._compare_all(x, task.vectors, self._novelty)
                with torch.no_grad():
                    return self._together(x, novel[id(x)])

        training = _SoftmaxTraining(
            self,
            real,
            "seen",
            "classifier",
            batch_size=self.n_per_class if self.batch_size is None else self.batch_size,
            learning_rate=self.learning_rate,
            beta_1=_SEEN_BETA_1,
        )
        options["after_epoch"] = self._watch(task, compare)
        trained = train("classifier", training, self.n_epochs, **options)
        return history + self._classifier_rows(trained, generator.n_epochs)

    @property
    def _discriminant(self) -> "CounterfactualDiscriminant":
        return cast(CounterfactualDiscriminant, self.networks_["discriminant"])

    def _compare(self, x: Tensor, vectors: Tensor) -> Tensor:
        return self._together(x, self._novelty(x, vectors) if not self.seen_.all() else None)

    def _novelty(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Scores (n, C_u) of the unseen among the classes with the ``vectors`` (C, d_a); the best seen one's are 0."""
        generator = self.generator_
        made = generator.counterfactuals(x, vectors[self._places(~self.seen_, x.device)])
        rows = generator.embed_block(x)
        counterfactual = generator.embed_block(made.flatten(0, 1)).view(*made.shape[:2], -1)
        of_seen, of_unseen = self._discriminant(rows, counterfactual, self.settings_["n_per_class"])
        gap: Tensor = of_unseen.amax(1, keepdim=True) - of_seen.amax(1, keepdim=True)
        return below_best(self.networks_["unseen"](rows)) + gap

    def _together(self, x: Tensor, novelty: Tensor | None) -> Tensor:
        """Scores (n, C) of all classes for rows x (n, d_x), of which those of unseen ones (n, C_u) are known."""
        of_seen = below_best(self.networks_["seen"](self.generator_.embed_block(x)))
        if novelty is None:
            return of_seen
        scores = of_seen.new_empty(x.shape[0], len(self.seen_))
        for is_of, values in ((self.seen_, of_seen), (~self.seen_, novelty)):
            scores = scores.index_copy(1, self._places(is_of, x.device), values)
        return scores

    @staticmethod
    def _places(is_of: npt.NDArray[np.bool_], device: torch.device) -> Tensor:
        return torch.as_tensor(np.flatnonzero(is_of), device=device)

    def _values_per_pair(self, d_x: int) -> int:
        d_hidden, d_row = self.generator_.widths(d_x)[0], self.generator_.embedded_width(d_x)
        # Of the two times that a row is made, and of its way to the discriminant; for unseen classes alone.
        return math.ceil((5 * d_hidden + 2 * d_x + 4 * d_row) * np.mean(~self.seen_)) or 1

    # --- Files.
    @classmethod
    def _of_settings(cls, settings: Mapping[str, Any]) -> Self:
        inner = settings["generator"]
        return cls(**{**settings, "generator": inner and generator_of(inner)})


class CounterfactualDiscriminant(nn.Module):
    r"""Linear discriminant analysis for one row at a time, whose unseen classes have that row's counterfactuals alone.

    With the centres :math:`\mu_c` and the covariance Σ of the real rows within their classes, to whose diagonal a ridge
    is added, and the counterfactual rows :math:`\tilde x_u` of a row x, scores are the logarithms of the classes'
    posterior probabilities up to a constant,

    .. math:: \log n_c - \tfrac{1}{2} \lVert R (x - \mu_c) \rVert_2^2, \quad
        \log n_u - \tfrac{1}{2} \lVert R (x - \tilde x_u) \rVert_2^2, \quad R^\top R = \Sigma^{-1},

    with the numbers of rows n. But for the constant they are linear in x. What seen classes need is found once.

    Parameters
    ----------
    n_seen, d : int
        How many classes are seen, and how wide rows are.
    """

    middle: Tensor
    root: Tensor
    centers: Tensor
    log_counts: Tensor

    def __init__(self, n_seen: int, d: int) -> None:
        super().__init__()
        self.register_buffer("middle", torch.zeros(d))  # near which numbers are smaller, and lose fewer digits
        self.register_buffer("root", torch.zeros(d, d))  # R
        self.register_buffer("centers", torch.zeros(n_seen, d))  # times R, from the middle
        self.register_buffer("log_counts", torch.zeros(n_seen))

    @torch.no_grad()
    def fit(self, x: Tensor, y: Tensor, ridge: float) -> Self:
        """Learn from rows x (n, d) of the classes y (n,), from 0 on; ``ridge`` is in units of the mean variance."""
        middle, counts = x.mean(0), torch.bincount(y, minlength=len(self.centers))
        sums = torch.zeros_like(self.centers, dtype=torch.double)
        for rows, classes in zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True):
            sums.index_add_(0, classes, (rows - middle).double())
        centers = sums / counts[:, None]
        covariance = torch.zeros_like(self.root, dtype=torch.double)
        for rows, classes in zip(torch.split(x, _BLOCK), torch.split(y, _BLOCK), strict=True):
            apart = (rows - middle).double() - centers[classes]
            covariance += apart.T @ apart / len(x)
        # Rows that do not spread at all are told apart by any distance.
        covariance.diagonal().add_(ridge * covariance.diagonal().mean().clamp(min=1e-12))
        one = torch.eye(len(covariance), dtype=torch.double, device=x.device)
        root = torch.linalg.solve_triangular(torch.linalg.cholesky(covariance), one, upper=False)
        learned = {"middle": middle, "root": root, "centers": centers @ root.T, "log_counts": counts.log()}
        for name, values in learned.items():
            getattr(self, name).copy_(values)
        return self

    def forward(self, x: Tensor, made: Tensor, n_made: int) -> tuple[Tensor, Tensor]:
        """Scores of rows x (n, d), of seen classes (n, C_s) and of unseen ones (n, C_u), in double precision.

        ``made`` (n, C_u, d) are the rows' counterfactuals, each of which counts ``n_made`` times.
        """
        at, centers = ((x - self.middle) @ self.root.T).double(), self.centers.double()
        far = at.square().sum(1, keepdim=True) - 2 * at @ centers.T + centers.square().sum(1)
        # Differences first: a row and what is made of it are close.
        far_made = ((x[:, None] - made) @ self.root.T).double().square().sum(-1)
        return self.log_counts.double() - far / 2, math.log(n_made) - far_made / 2


class _SoftmaxTraining(SeenTraining):
    """Training of a linear softmax by cross-entropy, over the classes that a task's rows are of."""

    def __init__(
        self,
        method: GCMCF,
        task: Task,
        name: str,
        stage: str,
        *,
        batch_size: int,
        learning_rate: float,
        beta_1: float,
    ) -> None:
        net = method.networks_[name]
        super().__init__(
            task,
            stage,
            {stage: net},
            n_steps=math.ceil(len(task.x) / batch_size),
            batch_size=batch_size,
            seed=method.seed_,
            precision=method.precision,
            learning_rate=learning_rate,
            betas=(beta_1, 0.999),
        )
        self.net = net

    def step(self) -> dict[str, Tensor]:
        x, y = self.draw()
        loss = cross_entropy(self.net(x), y)
        descend(self.optimizer, loss)
        return {"loss": loss}


def below_best(logits: Tensor) -> Tensor:
    """Logits (n, C) less each row's largest, in double precision: the order stays, whatever is added to all.

    Examples
    --------
    >>> below_best(torch.tensor([[1.0, 3.0]]))
    tensor([[-2.,  0.]], dtype=torch.float64)
    """
    wide = logits.double()
    return wide - wide.amax(1, keepdim=True)
