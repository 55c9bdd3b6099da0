"""One point per class: the generator of the variant without generative model."""

from collections.abc import Sequence
from typing import cast

import torch
from torch import Tensor, nn

from dgz.errors import DGZError, require_count
from dgz.generators.base import ClassGenerator, NoiseUnit
from dgz.training import Precision, Trainee, adam, descend, parameters_of, random_stream, update


class CenterMapper(ClassGenerator):
    r"""One point per class: a network from a class's vector to its centre, the paper's "one-to-one mapping net".

    Minimises :math:`\frac{1}{n} \sum_i \lVert G(a_{y_i}) - x_i \rVert^2`, Eq. (A.1). Up to a constant this is
    :math:`\frac{1}{n} \sum_c n_c \lVert G(a_c) - \bar x_c \rVert^2`, so that class means and counts are all it sees of
    the data, and a step costs as many rows as there are seen classes.

    Parameters
    ----------
    n_epochs : int
        Number of steps is ``n_epochs`` × ``steps_per_epoch``.
    steps_per_epoch : int
        The default of 14 is what one pass over CUB's 7,057 training rows in batches of 512 has.
    attribute_noise : float
        Standard deviation of the Gaussian noise on class vectors in training (σ).
    noise_unit : {"absolute", "relative"}
        Whether σ is in the units of the class vectors, or a multiple of their spread (the standard deviation of all
        entries of the seen classes' vectors).
    l2 : float
        Weight of the sum of the weight matrices' Frobenius norms; the paper has 0.001 where it is used.
    fgm : float
        Length of the adversarial step on class vectors (fast gradient method); the paper has 0.08 where it is used.
    hidden : sequence of int, or int, optional
        Widths of the hidden layers; by default (4096, 2048) for 2048 features, as in the paper, and in proportion for
        others, but at least (512, 256). The number 1 takes the first of these layers alone.
    relu_out : bool
        Whether outputs below 0 become 0, as in the released code: right for features that are never negative.
    learning_rate : float
        Adam's.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> mapper = CenterMapper(hidden=(64, 32), relu_out=False, learning_rate=0.001).fit(x, y, attributes)
    >>> mapper.centers(attributes, random_stream(0, "example")).argmax(1)
    tensor([0, 1])
    """

    can_sample = False

    def __init__(
        self,
        *,
        n_epochs: int = 60,
        steps_per_epoch: int = 14,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        l2: float = 0.0,
        fgm: float = 0.0,
        hidden: Sequence[int] | int | None = None,
        relu_out: bool = True,
        learning_rate: float = 1e-4,
    ) -> None:
        self.n_epochs = n_epochs
        self.steps_per_epoch = steps_per_epoch
        self.attribute_noise = attribute_noise
        self.noise_unit = noise_unit
        self.l2 = l2
        self.fgm = fgm
        self.hidden = hidden
        self.relu_out = relu_out
        self.learning_rate = learning_rate

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_count(steps_per_epoch=self.steps_per_epoch)

    @torch.no_grad()
    def centers(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """The centre (C, d_x) of each class with the vectors ``attributes`` (C, d_a)."""
        return cast(Tensor, self.net_(attributes))

    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """Refuse: a centre is all there is."""
        raise DGZError("A CenterMapper gives class centres and no samples.")

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _CenterTraining(self, x, y, attributes, seed, precision)


class _CenterTraining(Trainee):
    def __init__(
        self, generator: CenterMapper, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        self.precision = precision
        self.generator, self.n_steps = generator, generator.steps_per_epoch
        self.networks = {"generator": generator.net_}
        self.optimizers = {"generator": adam(generator.net_.parameters(), generator.learning_rate)}
        self.rng = random_stream(seed, "generator", x.device)
        classes, at, counts = torch.unique(y, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(classes), x.shape[1], dtype=torch.double, device=x.device)
        # Matrix products like a multiple of eight classes; one without share in the loss changes nothing.
        pad = (0, 0, 0, -len(classes) % 8)
        self.means = nn.functional.pad((sums.index_add_(0, at, x.double()) / counts[:, None]).to(x.dtype), pad)
        self.share = nn.functional.pad((counts / counts.sum()).to(x.dtype), pad[2:])
        self.attributes = nn.functional.pad(attributes[classes], pad)
        self.gradients: dict[Tensor, Tensor] = {
            values: torch.empty_like(values) for values in generator.net_.parameters()
        }

    def step(self) -> dict[str, Tensor]:
        if not self.generator.l2 and not self.generator.fgm:
            return {"loss": self._step_in_closed_form()}

        def loss(attributes: Tensor) -> Tensor:
            # Paper: Eq. (A.1) prints the norm, the text says mean squared error. Only the squared norm makes the mean
            # the best centre.
            distances: Tensor = (self.generator.net_(attributes) - self.means).square().sum(1)
            return torch.dot(distances, self.share)

        value = self.generator._suppressed(loss, self.generator._blur(self.attributes, self.rng))
        descend(self.optimizers["generator"], value)
        return {"loss": value}

    def _step_in_closed_form(self) -> Tensor:
        found = []

        def slope(centers: Tensor) -> Tensor:
            gap = centers - self.means.T
            found.append(torch.dot(gap.square().sum(0), self.share))
            return 2 * gap * self.share

        vectors = self.generator._blur(self.attributes, self.rng)
        self.generator.net_.backpropagate(vectors.T.contiguous(), slope, self.gradients)
        optimizer = self.optimizers["generator"]
        update(optimizer, [self.gradients[values] for values in parameters_of(optimizer)])
        return found[0]
