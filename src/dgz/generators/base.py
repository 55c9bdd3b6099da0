"""What all generators have in common: a network from class vectors to features, and how it is fitted and used."""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any, Literal, Self, cast

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from dgz.errors import DGZError, require_at_least, require_choice, require_count
from dgz.nets import MLP, initialise
from dgz.training import Checkpoints, Precision, Row, Trainee, random_stream, train

NoiseUnit = Literal["absolute", "relative"]
BLOCK = 65536  # rows embedded at a time
_ROWS_PER_CENTER = 500  # generated rows whose mean is a class's centre: its error is 1/22 of the rows' own spread


class ClassGenerator(BaseEstimator, ABC):  # type: ignore[misc]
    """A network from class vectors, and perhaps noise, to features; a method adds how it is trained.

    Attributes
    ----------
    net_ : MLP
        The trained network.
    noise_ : float
        Standard deviation of the attribute noise, in the units of the class vectors.
    history_ : list of dict
        Losses of each epoch.
    """

    n_epochs: int
    attribute_noise: float
    noise_unit: NoiseUnit
    l2: float
    fgm: float
    hidden: Sequence[int] | int | None
    relu_out: bool
    learning_rate: float

    can_sample: bool = True  # whether it gives rows of a class, or its centre alone
    embeds: bool = False  # whether it gives them in a space of its own, which ``embed`` takes rows to
    prior: bool = False  # whether the network takes a random vector beside the class vector
    d_prior: int | None = None  # its width; that of the class vectors by default

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        attributes: Tensor,
        *,
        seed: int = 0,
        precision: Precision = "float32",
        after_epoch: Callable[[int], Row] | None = None,
        checkpoints: Checkpoints | None = None,
        verbose: bool = False,
    ) -> Self:
        """Learn from rows x (n, d_x) of classes y (n,), which are rows of ``attributes`` (C, d_a).

        Everything runs on the device of ``x``; ``precision`` says how matrices are multiplied in training.
        ``after_epoch``, ``checkpoints`` and ``verbose`` are those of :func:`~dgz.training.train`; a generator can
        already be used inside ``after_epoch``.
        """
        self.check()
        seen = attributes[torch.unique(y)]
        spread = float(seen.std(correction=0)) if self.noise_unit == "relative" else 1.0
        self.noise_ = self.attribute_noise * spread
        self.build(attributes.shape[1], x.shape[1], random_stream(seed, "generator's start")).net_.to(x.device)
        trainee = self._trainee(x, y, attributes, seed, precision)
        self.history_ = train(
            "generator", trainee, self.n_epochs, after_epoch=after_epoch, checkpoints=checkpoints, verbose=verbose
        )
        return self

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained network for class vectors of width ``d_a`` and features of width ``d_x``."""
        inputs = [self.d_prior or d_a, d_a] if self.prior else [d_a]
        self.net_ = initialise(MLP(inputs, [*self.widths(d_x), d_x], out="relu" if self.relu_out else "linear"), rng)
        return self

    def widths(self, d_x: int) -> Sequence[int]:
        """Widths of the hidden layers for features of width ``d_x``."""
        usual = (max(2 * d_x, 512), max(d_x, 256))
        if self.hidden is None or isinstance(self.hidden, int):
            return usual[: self.hidden]
        return self.hidden

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name."""
        return {"generator": self.net_}

    @torch.no_grad()
    def embed(self, x: Tensor) -> Tensor:
        """Feature rows (n, d_x) in the space of generated ones, which is their own unless ``embeds`` says otherwise."""
        return torch.cat([self.embed_block(rows) for rows in torch.split(x, BLOCK)]) if self.embeds else x

    def embed_block(self, x: Tensor) -> Tensor:
        """The same of rows that are few enough to be taken at once."""
        return x

    def training_rows(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """What a classifier learns from of real rows x (n, d_x) and their classes y (n,), in the space of ``embed``."""
        return self.embed(x), y

    def n_training_rows(self, n_rows: int, n_classes: int) -> int:
        """How many rows ``training_rows`` makes of ``n_rows`` real ones of ``n_classes`` classes."""
        return n_rows

    def embedded_width(self, d_x: int) -> int:
        """How many features rows have there."""
        return d_x

    def centers(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """The middle (C, d_x) of each class with the vectors ``attributes`` (C, d_a)."""
        return torch.cat([self.sample(vector.expand(_ROWS_PER_CENTER, -1), rng).mean(0, True) for vector in attributes])

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """One generated row (n, d_x) for each of the class vectors ``attributes`` (n, d_a)."""
        if self.prior:
            return cast(Tensor, self.net_(self._draw_prior(attributes, rng), attributes))
        # Without a prior, the attribute noise is all that tells two rows of a class apart (Fig. A.3).
        return cast(Tensor, self.net_(self._blur(attributes, rng)))

    @abstractmethod
    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        """What the training loop trains: ``net_``, and whatever else it needs for that."""

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        require_choice(self.noise_unit, NoiseUnit, "noise_unit")
        require_at_least(0, attribute_noise=self.attribute_noise, l2=self.l2, fgm=self.fgm)
        require_at_least(1e-12, learning_rate=self.learning_rate)
        require_count(n_epochs=self.n_epochs, d_prior=1 if self.d_prior is None else self.d_prior)
        if isinstance(self.hidden, int) and (self.hidden not in (1, 2) or isinstance(self.hidden, bool)):
            raise DGZError(
                f"hidden must be a list of widths, or 1 or 2 for layers of the usual ones, found {self.hidden}."
            )
        hidden = (1,) if self.hidden is None or isinstance(self.hidden, int) else self.hidden
        if isinstance(hidden, str) or not isinstance(hidden, Sequence) or not hidden:
            raise DGZError(f"hidden must be a list of widths, found {hidden!r}.")
        for width in hidden:
            require_count(hidden=width)

    def _draw_prior(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        width = self.d_prior or attributes.shape[1]
        return torch.randn(len(attributes), width, generator=rng, device=attributes.device)

    def _blur(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """Attribute augmentation, Eq. (5): a + z1 with z1 ~ N(0, σ²)."""
        # Paper: z1 ∈ N(0, σI) makes σ a variance, the text calls it the standard deviation; the released code agrees
        # with the text. Authors' code: z1 has the width of z0, which works because the two widths are set equal.
        if not self.noise_:
            return attributes
        noise = torch.randn(attributes.shape, generator=rng, device=attributes.device)
        return attributes + self.noise_ * noise

    def _suppressed(self, loss: Callable[[Tensor], Tensor], attributes: Tensor) -> Tensor:
        """The generator's loss as a function of its class vectors, with FGM and the L2 term where asked for."""
        if self.fgm:
            # Paper: "along the gradient" leaves sign and length open. Ascent, as adversarial training has it, and a
            # step of the same length for every row. docs/protocol.md, row 24.
            start = attributes.detach().requires_grad_()
            (slope,) = torch.autograd.grad(loss(start), start)
            attributes = attributes + self.fgm * nn.functional.normalize(slope, dim=1)
        value = loss(attributes)
        if self.l2:
            # Paper: "the F norm of all the weight matrices", so not its square.
            value = value + self.l2 * sum(w.norm() for w in self.net_.parameters() if w.ndim == 2)
        return value


def seen_places(y: Tensor, n_classes: int) -> Tensor:
    """Of each of ``n_classes`` classes, its number among those that the rows with classes y (n,) have; 0 for others.

    Examples
    --------
    >>> seen_places(torch.tensor([4, 1, 4]), n_classes=6)
    tensor([0, 0, 0, 0, 1, 0])
    """
    classes = torch.unique(y)
    places = torch.zeros(n_classes, dtype=torch.long, device=y.device)
    places[classes] = torch.arange(len(classes), device=y.device)
    return places


class BatchTraining(Trainee):
    """Training on random batches of rows with their clean class vectors."""

    def __init__(
        self, generator: Any, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        self.generator, self.x, self.y, self.attributes, self.precision = generator, x, y, attributes, precision
        self.rng = random_stream(seed, "generator", x.device)
        self.n_steps = math.ceil(len(x) / generator.batch_size)

    def draw(self, n_batches: int = 1) -> tuple[Tensor, Tensor]:
        """Random rows (n_batches · n, d_x) and their classes."""
        # Rows are drawn with replacement: one kernel on a GPU, and no worse than the released code's fresh permutation
        # for each batch, which repeats rows between batches all the same.
        size = (n_batches * min(self.generator.batch_size, len(self.x)),)
        rows = torch.randint(len(self.x), size, generator=self.rng, device=self.x.device)
        return self.x[rows], self.y[rows]
