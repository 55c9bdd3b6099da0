"""AGZSL (Chou, Lin and Liu, ICLR 2021): class vectors that adapt to each picture, and virtual classes.

Two experts of one kind map a class vector, reweighted by what is in the row, to classifier weights. One learns the seen
classes, the other mixtures of them, which no row is of; the first says whether a row is of a seen class, and which, the
second which unseen class it is of otherwise.
"""

import math
from typing import Any, cast

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dgz.data.scaling import AttributeScaling, FeatureScaling
from dgz.errors import DGZError, require_at_least, require_count
from dgz.losses import cross_entropy
from dgz.nets import MLP, BlockLinear, Start, initialise
from dgz.peers.scoring import ScoringMethod, SeenTraining, width
from dgz.task import Task
from dgz.training import Checkpoints, Precision, Row, clipped, parameters_of, random_stream, train, update

_FEWEST_CLASSES = 4  # seen ones, of which two pairs are mixed and told apart


class AGZSL(ScoringMethod):
    r"""AGZSL: two experts with image-adaptive class vectors, for seen classes and for virtual ones.

    An expert (:class:`Expert`) scores a row for a class by a cosine. The seen expert learns the seen classes. The
    unseen expert learns in episodes of virtual classes: a share λ of one seen class and 1 − λ of another, rows and
    class vectors alike. In use, the seen expert scores all classes; where an unseen class wins, the unseen expert says
    which (:func:`combine`). So T1 is the unseen expert's.

    Approximate: the released code is of fine-tuned CUB features alone, so what the authors chose for other data is not
    known. Faithful to that code: networks, their starts, how virtual classes are made, losses, schedules, the clipping
    of gradients. What differs: rows of a batch or an episode are drawn with replacement, an episode is smaller where
    there are not twice as many seen classes as it has virtual ones, the unseen expert has in use what it has in
    training (theirs has a ReLU more), and the states after the last epochs are used, where theirs are the best on the
    test rows. The title's generative part is the virtual classes: there is no network that generates.

    Parameters
    ----------
    n_epochs, batch_size : int
        Of the seen expert: passes over the rows, and rows per step.
    n_episode_epochs, n_episodes : int
        Of the unseen expert: epochs, and episodes of each.
    n_ways, n_shots : int
        Virtual classes of an episode, and rows of each.
    mixing : float
        λ is drawn from Beta(``mixing``, 1) for each virtual class: a high one keeps it close to a seen class.
    d_hidden : int, optional
        Width of the hidden layer; by default 1600 for 2048 features, and in proportion, but at least 256.
    first_scale : float
        What the learned scale of the cosines starts from.
    attention_temperature : float
        Divides what the attention's softmax is of, in training and in the unseen expert (τ).
    seen_attention_temperature : float
        The same in the seen expert in use.
    learning_rate, seen_weight_decay, unseen_weight_decay : float
        Adam's, of both experts and of each.
    lr_step, lr_factor : int or None, float
        The seen expert's learning rate is multiplied by ``lr_factor`` after ``lr_step`` epochs, again and again; None
        keeps it. That of the unseen expert stays.
    clip : float
        The most that the norm of all gradients together may be; longer ones are made as short.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`. Experts give rows unit length.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = AGZSL(n_epochs=1, n_episode_epochs=1, n_episodes=10, batch_size=1024)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen[:5]).shape
    (5,)
    """

    def __init__(
        self,
        *,
        n_epochs: int = 100,
        batch_size: int = 64,
        n_episode_epochs: int = 200,
        n_episodes: int = 1000,
        n_ways: int = 20,
        n_shots: int = 4,
        mixing: float = 5.0,
        d_hidden: int | None = None,
        first_scale: float = 10.0,
        attention_temperature: float = 10.0,
        seen_attention_temperature: float = 5.0,
        learning_rate: float = 5e-4,
        seen_weight_decay: float = 9e-7,
        unseen_weight_decay: float = 5e-7,
        lr_step: int | None = 2,
        lr_factor: float = 0.87,
        clip: float = 1.0,
        feature_scaling: FeatureScaling = "none",
        attribute_scaling: AttributeScaling = "auto",
        device: str = "auto",
        precision: Precision = "tf32",
        random_state: int = 0,
        verbose: bool = False,
    ) -> None:
        self.n_epochs = n_epochs
        self.batch_size = batch_size
        self.n_episode_epochs = n_episode_epochs
        self.n_episodes = n_episodes
        self.n_ways = n_ways
        self.n_shots = n_shots
        self.mixing = mixing
        self.d_hidden = d_hidden
        self.first_scale = first_scale
        self.attention_temperature = attention_temperature
        self.seen_attention_temperature = seen_attention_temperature
        self.learning_rate = learning_rate
        self.seen_weight_decay = seen_weight_decay
        self.unseen_weight_decay = unseen_weight_decay
        self.lr_step = lr_step
        self.lr_factor = lr_factor
        self.clip = clip
        self.feature_scaling = feature_scaling
        self.attribute_scaling = attribute_scaling
        self.device = device
        self.precision = precision
        self.random_state = random_state
        self.verbose = verbose

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used; ``fit`` does so before any work."""
        require_count(n_epochs=self.n_epochs, batch_size=self.batch_size, n_episode_epochs=self.n_episode_epochs)
        require_count(n_episodes=self.n_episodes, n_shots=self.n_shots)
        require_count(d_hidden=1 if self.d_hidden is None else self.d_hidden)
        require_count(lr_step=1 if self.lr_step is None else self.lr_step)
        require_count(n_ways=self.n_ways)
        if self.n_ways < 2:
            raise DGZError(f"n_ways must be at least 2, so that there is something to tell apart, found {self.n_ways}.")
        for name in (
            "mixing",
            "first_scale",
            "attention_temperature",
            "seen_attention_temperature",
            "learning_rate",
            "clip",
        ):
            require_at_least(1e-12, **{name: getattr(self, name)})
        require_at_least(0, seen_weight_decay=self.seen_weight_decay, unseen_weight_decay=self.unseen_weight_decay)
        require_at_least(0, lr_factor=self.lr_factor)
        super().check()

    def _build(self, n_classes: int, d_a: int, d_x: int) -> None:
        # Authors' code: the seen expert has a ReLU in its attention, and PyTorch's start; the unseen expert has neither
        # in training. Its test script puts a ReLU there too: here it stays as it was trained.
        starts: dict[str, Start] = {"seen": "pytorch", "unseen": "normal"}
        self.networks_ = {}
        for name, start in starts.items():
            rng = random_stream(self.seed_, f"{name} expert's start")
            d_hidden = width(self.d_hidden, 1600, d_x)
            expert = Expert(d_a, d_x, d_hidden, scale=self.first_scale, relu_attention=name == "seen")
            for part in (expert.attention, expert.mapper):
                initialise(part, rng, start)
            self.networks_[name] = expert

    def _learn(self, task: Task, checkpoints: Checkpoints | None) -> list[Row]:
        n_seen = int(task.seen.sum())
        if n_seen < _FEWEST_CLASSES:
            raise DGZError(f"AGZSL mixes seen classes and needs at least {_FEWEST_CLASSES} of them, found {n_seen}.")
        options: dict[str, Any] = {"checkpoints": checkpoints, "verbose": self.verbose}
        episodes = train("unseen expert", _EpisodeTraining(self, task), self.n_episode_epochs, **options)
        history = [{"stage": "unseen expert", **row} for row in episodes]
        options["after_epoch"] = self._watch(task)
        return history + self._classifier_rows(
            train("classifier", _SeenExpertTraining(self, task), self.n_epochs, **options)
        )

    def _compare(self, x: Tensor, vectors: Tensor) -> Tensor:
        x = normalize(x)
        # Authors' code: τ is 10 while the seen expert learns, and 5 in the test script.
        of_seen: Tensor = self.networks_["seen"](x, vectors, self.settings_["seen_attention_temperature"])
        unseen = torch.as_tensor(np.flatnonzero(~self.seen_), device=x.device)
        if not len(unseen):
            return of_seen.double()
        of_unseen = self.networks_["unseen"](x, vectors[unseen], self.settings_["attention_temperature"])
        return combine(of_seen, of_unseen, unseen)

    def _values_per_pair(self, d_x: int) -> int:
        return d_x + width(self.settings_["d_hidden"], 1600, d_x)


def combine(of_seen: Tensor, of_unseen: Tensor, unseen: Tensor) -> Tensor:
    """One score matrix (n, C) by which the seen expert chooses the group and its class, and the unseen expert its own.

    The best score of the seen expert for unseen classes goes to the unseen expert's best class; its others stay as far
    below as it has them. So the largest of all scores is that of the rule, and among unseen classes the order is the
    unseen expert's. In double precision: no two scores become one by the shift.

    Takes the seen expert's scores of all classes (n, C), the unseen expert's of the unseen ones (n, C_u), and their
    columns (C_u,).

    Examples
    --------
    >>> of_seen, of_unseen = torch.tensor([[1.0, 2.0, 0.0]]), torch.tensor([[5.0, 7.0]])
    >>> combine(of_seen, of_unseen, torch.tensor([1, 2]))
    tensor([[1., 0., 2.]], dtype=torch.float64)
    """
    best = of_seen[:, unseen].amax(1, keepdim=True).double()
    wide = of_unseen.double()
    return of_seen.double().index_copy(1, unseen, best + (wide - wide.amax(1, keepdim=True)))


class Expert(nn.Module):
    r"""Cosines of rows with weights mapped from class vectors that the rows have reweighted.

    An entry of a class vector is multiplied by 1 + :math:`\mathrm{softmax}(W x / \tau)`, for each row anew, and a
    network with one hidden layer makes weights of the result; the cosine has a learned scale.

    Parameters
    ----------
    d_a, d_x, d_hidden : int
        Widths of class vectors, rows and the hidden layer.
    scale : float
        Where the cosine's scale starts.
    relu_attention : bool
        Whether values below 0 are cut off before the softmax.
    """

    def __init__(self, d_a: int, d_x: int, d_hidden: int, *, scale: float = 10.0, relu_attention: bool = False) -> None:
        super().__init__()
        self.attention = BlockLinear([d_x], d_a)
        self.mapper = MLP([d_a], [d_hidden, d_x], out="relu", slope=0.0)
        # Their cosine has a learned offset too; the same for all classes, it decides nothing.
        self.scale = nn.Parameter(torch.tensor(scale))
        self.relu_attention = relu_attention

    def forward(self, x: Tensor, vectors: Tensor, temperature: float) -> Tensor:
        """Scores (n, C) of rows x (n, d_x) of unit length for class vectors (C, d_a)."""
        shares = self.attention(x).float()
        shares = (shares.relu() if self.relu_attention else shares).div(temperature).softmax(1)
        weights = self.mapper((1 + shares)[:, None] * vectors)
        lengths = torch.linalg.vector_norm(weights, dim=-1, dtype=torch.float).clamp(min=1e-12)
        products = torch.bmm(weights, x[:, :, None]).squeeze(-1)
        return cast(Tensor, self.scale * products.float() / lengths)


class _ExpertTraining(SeenTraining):
    """What the trainings of both experts share: cross-entropy over some classes, and gradients of bounded length."""

    def __init__(self, method: AGZSL, task: Task, name: str, stage: str, **options: Any) -> None:
        expert = cast(Expert, method.networks_[name])
        options |= {"seed": method.seed_, "precision": method.precision, "learning_rate": method.learning_rate}
        super().__init__(task, stage, {stage: expert}, **options)
        self.expert, self.temperature, self.clip = expert, method.attention_temperature, method.clip

    def descend(self, x: Tensor, y: Tensor, vectors: Tensor) -> dict[str, Tensor]:
        """One step on rows x (n, d_x) of the classes y (n,), which are rows of ``vectors`` (C, d_a)."""
        loss = cross_entropy(self.expert(normalize(x), vectors, self.temperature), y)
        gradients = torch.autograd.grad(loss, parameters_of(self.optimizer))
        update(self.optimizer, clipped(gradients, self.clip))
        return {"loss": loss}


class _SeenExpertTraining(_ExpertTraining):
    def __init__(self, method: AGZSL, task: Task) -> None:
        super().__init__(
            method,
            task,
            "seen",
            "classifier",
            n_steps=math.ceil(len(task.x) / method.batch_size),
            batch_size=method.batch_size,
            weight_decay=method.seen_weight_decay,
            lr_step=method.lr_step,
            lr_factor=method.lr_factor,
        )

    def step(self) -> dict[str, Tensor]:
        x, y = self.draw()
        return self.descend(x, y, self.vectors)


class _EpisodeTraining(_ExpertTraining):
    """Training on virtual classes: each is a mixture of two seen ones, of which an episode has no other mixture."""

    def __init__(self, method: AGZSL, task: Task) -> None:
        # Authors' code: its StepLR halves the learning rate after 500 epochs, of 200, so that it stays.
        super().__init__(
            method,
            task,
            "unseen",
            "unseen expert",
            n_steps=method.n_episodes,
            batch_size=method.n_ways * method.n_shots,
            weight_decay=method.unseen_weight_decay,
        )
        self.n_ways, self.n_shots = min(method.n_ways, len(self.classes) // 2), method.n_shots
        self.mixing = method.mixing
        self.order = torch.argsort(self.y, stable=True)
        self.n_rows = torch.bincount(self.y, minlength=len(self.classes))
        self.first = self.n_rows.cumsum(0) - self.n_rows
        self.labels = torch.arange(self.n_ways, device=self.x.device).repeat_interleave(self.n_shots)

    def step(self) -> dict[str, Tensor]:
        x, vectors = self.episode()
        return self.descend(x, self.labels, vectors)

    def episode(self) -> tuple[Tensor, Tensor]:
        """Rows (n_ways · n_shots, d_x) of virtual classes, class by class, and the classes' vectors (n_ways, d_a)."""
        pairs = self._rand(len(self.classes)).argsort()[: 2 * self.n_ways].view(2, self.n_ways)
        share = self._rand(self.n_ways, 1) ** (1 / self.mixing)  # Beta(b, 1) has the distribution function λ^b
        major, minor = self.vectors[pairs]
        n_rows = self.n_rows[pairs][..., None]
        at = (self._rand(2, self.n_ways, self.n_shots) * n_rows).long().minimum(n_rows - 1)  # rounded, 0.99… may be 1
        x_major, x_minor = self.x[self.order[self.first[pairs][..., None] + at]]
        return torch.lerp(x_minor, x_major, share[..., None]).flatten(0, 1), torch.lerp(minor, major, share)

    def _rand(self, *size: int) -> Tensor:
        return torch.rand(size, generator=self.rng, device=self.x.device)
