"""IZF's generator: one invertible network, whose one way reads a row and whose other way makes one.

Forwards, features become a class vector and Gaussian noise; backwards, a class vector and noise become features. What
one way learns from real rows, the other knows exactly.
"""

import math
from collections.abc import Sequence
from typing import Self, cast

import torch
from torch import Tensor, nn

from dgz.errors import require_at_least, require_count
from dgz.generators.base import BatchTraining, ClassGenerator, NoiseUnit
from dgz.nets import MLP, initialise
from dgz.training import Precision, Trainee, adam, clipped, parameters_of, update

_CLAMP = 2.0  # no coupling stretches a coordinate by more than e² or less than e⁻²
_SLOPE = 0.01  # of the leaky ReLUs inside couplings


class ZeroShotFlow(ClassGenerator):
    r"""The generator of IZF (Shen et al., ECCV 2020): an invertible flow between features and [class vector | noise].

    The flow f takes a row x of class c to :math:`(\hat a, \hat z)`, and :math:`G = f^{-1}` generates. It minimises

    .. math:: 2\,\mathrm{E}[-\log p(x \mid c)] + \sum_c \lVert G(a_c, 0) - \bar x_c \rVert_2
        - 0.1\,\mathrm{MMD}(x, G(a_u, z)),

    where :math:`p(x \mid c) = N(\hat a; a_c, \sigma^2 I)\, N(\hat z; 0, I)\, |\det \partial f / \partial x|`, the sum
    is over seen classes with their means :math:`\bar x_c`, and MMD is the squared maximum mean discrepancy between real
    rows of seen classes and generated rows of *unseen* ones, which the last term drives apart. It uses the vectors of
    unseen classes (rows of ``attributes`` that no row of ``x`` belongs to), never rows of them: so, unlike other
    generators, a flow depends on which unseen classes there are. Where there are none, the term is none.

    Approximate: no final code of the authors was found. Structure, weights and optimizer are those of a prototype by
    one of them and of a re-implementation of the losses by others. The prototype's MMD compares with *test* rows of
    unseen classes, which nothing here does.

    Parameters
    ----------
    n_epochs : int
        Passes over the training rows.
    attribute_noise, noise_unit
        See :class:`CenterMapper`; noisy class vectors stand wherever the losses have one.
    depth : int
        Blocks of the flow, each a fixed random permutation of the coordinates and a coupling of their two halves.
    hidden : sequence of int, or int, optional
        Widths of the hidden layers of the networks inside couplings; by default one of 1024 for 2048 features, and in
        proportion for others, but at least 256. A number is that of layers of this width.
    attribute_std : float
        σ: how far the class part of a row's latent vector is from its class vector, which is put on a scale on which
        coordinates of the seen classes' vectors have a mean square of 1 round their mean. A small one makes that part
        say more exactly which class a row is of. Unpublished: the default did best on folds of the embedded data's
        training rows, of 0.1, 0.25, 0.5 and 1.
    flow_weight, center_weight, mmd_weight : float
        Weights of the three losses.
    input_noise : float
        Real rows get noise, uniform between 0 and this, so that features with many equal values have a density.
    most_gradient : float
        What the norm of all gradients together is cut to where it is larger.
    weight_decay : float
        Adam's.
    learning_rate, batch_size : float, int
        Adam's, and rows per step.

    Notes
    -----
    Class vectors of more than half the features' width are projected on the principal directions of the seen classes'
    vectors, as many as half the features' width at most (and no more than there are); what is left of the latent vector
    is noise.

    Examples
    --------
    >>> from dgz.training import random_stream
    >>> x, y, attributes = torch.eye(4).repeat(9, 1), torch.arange(4).repeat(9), torch.eye(4)[:, :2]
    >>> flow = ZeroShotFlow(n_epochs=2, hidden=(8,), depth=2).fit(x, y, attributes)
    >>> rows = flow.sample(attributes, random_stream(0, "example"))
    >>> rows.shape
    torch.Size([4, 4])
    >>> torch.allclose(flow.net_.inverse(flow.net_(rows)[0]), rows, atol=1e-4)
    True
    """

    prior = True
    l2 = fgm = 0.0
    relu_out = False
    net_: "Flow"  # type: ignore[assignment]

    def __init__(
        self,
        *,
        n_epochs: int = 100,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        depth: int = 5,
        hidden: Sequence[int] | int | None = None,
        attribute_std: float = 0.25,
        flow_weight: float = 2.0,
        center_weight: float = 1.0,
        mmd_weight: float = 0.1,
        input_noise: float = 0.008,
        most_gradient: float = 10.0,
        weight_decay: float = 1e-5,
        learning_rate: float = 5e-4,
        batch_size: int = 256,
    ) -> None:
        self.n_epochs = n_epochs
        self.attribute_noise = attribute_noise
        self.noise_unit = noise_unit
        self.depth = depth
        self.hidden = hidden
        self.attribute_std = attribute_std
        self.flow_weight = flow_weight
        self.center_weight = center_weight
        self.mmd_weight = mmd_weight
        self.input_noise = input_noise
        self.most_gradient = most_gradient
        self.weight_decay = weight_decay
        self.learning_rate = learning_rate
        self.batch_size = batch_size

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_count(depth=self.depth, batch_size=self.batch_size)
        require_at_least(1e-6, attribute_std=self.attribute_std, most_gradient=self.most_gradient)
        weights = ("flow_weight", "center_weight", "mmd_weight", "input_noise", "weight_decay")
        require_at_least(0, **{name: getattr(self, name) for name in weights})

    def widths(self, d_x: int) -> Sequence[int]:
        """Widths of the hidden layers inside couplings, for features of width ``d_x``."""
        if self.hidden is None or isinstance(self.hidden, int):
            return [max(d_x // 2, 256)] * (self.hidden or 1)
        return self.hidden

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained flow for class vectors of width ``d_a`` and features of width ``d_x``."""
        self.net_ = initialise(Flow(d_x, d_a, self.widths(d_x), self.depth), rng)
        self.net_.shuffle(rng)
        return self

    @torch.no_grad()
    def centers(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """The middle G(a, 0) (C, d_x) of each class with the vectors ``attributes`` (C, d_a)."""
        return self.net_.inverse(self.net_.place(attributes))

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """One generated row G(a, z) (n, d_x) for each of the class vectors ``attributes`` (n, d_a)."""
        rows = [self._latents(vectors, rng) for vectors in torch.split(attributes, _BLOCK)]
        return torch.cat([self.net_.inverse(latents) for latents in rows])

    def _latents(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """Latent vectors (n, d_x) of class vectors, with noise in all that does not belong to the class."""
        place = self.net_.place(attributes)
        return place + self.net_.free * torch.randn(place.shape, generator=rng, device=place.device)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _FlowTraining(self, x, y, attributes, seed, precision)


_BLOCK = 16384  # rows generated at a time


class Flow(nn.Module):
    """Permutations and couplings, and where class vectors lie in the latent space that they lead to.

    Parameters
    ----------
    d_x, d_a : int
        Widths of features and class vectors.
    hidden : sequence of int
        Widths of the hidden layers inside couplings.
    depth : int
        How many blocks.

    Attributes
    ----------
    shift, basis : (d_a,), (d_a, k)
        A class vector a lies at (a − shift) basis in the first k latent coordinates, and at zero in the others.
    free : (d_x,)
        1 for latent coordinates that are noise, 0 for those that belong to the class.
    """

    shift: Tensor
    basis: Tensor
    free: Tensor

    def __init__(self, d_x: int, d_a: int, hidden: Sequence[int], depth: int) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Coupling(d_x, hidden) for _ in range(depth))
        k = min(d_a, d_x // 2)
        self.register_buffer("shift", torch.zeros(d_a))
        self.register_buffer("basis", torch.zeros(d_a, k))
        self.register_buffer("free", torch.ones(d_x))

    def shuffle(self, rng: torch.Generator) -> None:
        """Draw the permutations."""
        for block in self.blocks:
            order = cast(Coupling, block).order
            order.copy_(torch.randperm(len(order), generator=rng))

    @torch.no_grad()
    def settle(self, vectors: Tensor) -> None:
        """Decide where class vectors lie, from those of the seen classes (C_s, d_a)."""
        d_a, k = self.basis.shape
        mean = vectors.double().mean(0)
        gaps = vectors.double() - mean
        if d_a == k:
            basis = torch.eye(d_a, dtype=gaps.dtype, device=gaps.device)
        else:
            # Too wide for half the latent space. On principal directions distances between seen classes change least.
            _, lengths, directions = torch.linalg.svd(gaps, full_matrices=False)
            basis = torch.zeros(d_a, k, dtype=gaps.dtype, device=gaps.device)
            n_used = min(k, int((lengths > 1e-6 * lengths[0].clamp(min=1e-12)).sum()))
            basis[:, :n_used] = directions[:n_used].T
        used = basis.square().sum(0) > 0
        scale = (gaps @ basis)[:, used].square().mean().sqrt()
        self.shift.copy_(mean)
        self.basis.copy_(basis / (scale if scale > 1e-12 else 1.0))
        self.free.fill_(1.0)[:k][used] = 0.0

    def place(self, attributes: Tensor) -> Tensor:
        """Class vectors (n, d_a) to latent vectors (n, d_x) without noise."""
        code = ((attributes - self.shift) @ self.basis).float()
        return nn.functional.pad(code, (0, len(self.free) - code.shape[1]))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, d_x) to latent vectors (n, d_x), with the log-determinants (n,) of the way there."""
        total = torch.zeros(len(x), device=x.device)
        for block in self.blocks:
            x, log_determinant = block(x)
            total = total + log_determinant
        return x, total

    def inverse(self, latents: Tensor) -> Tensor:
        """Latent vectors (n, d_x) to rows (n, d_x): what :meth:`forward` undoes."""
        for block in reversed(self.blocks):
            latents = cast(Coupling, block).inverse(latents)
        return latents


class Coupling(nn.Module):
    r"""A permutation, and then each half of the coordinates stretched and moved by what the other half says.

    .. math:: y_1 = x_1 e^{s_1(x_2)} + t_1(x_2), \quad y_2 = x_2 e^{s_2(y_1)} + t_2(y_1),

    where the s are held in (−2, 2) by an arc tangent.
    """

    order: Tensor

    def __init__(self, d_x: int, hidden: Sequence[int]) -> None:
        super().__init__()
        half = d_x // 2
        self.sizes = [half, d_x - half]
        self.by_second = MLP([d_x - half], [*hidden, 2 * half], slope=_SLOPE)
        self.by_first = MLP([half], [*hidden, 2 * (d_x - half)], slope=_SLOPE)
        self.register_buffer("order", torch.arange(d_x))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Rows (n, d_x) to rows (n, d_x) and log-determinants (n,)."""
        first, second = torch.split(x[:, self.order], self.sizes, dim=1)
        stretch, move = _stretch_and_move(self.by_second, second)
        first = first * stretch.exp() + move
        other_stretch, move = _stretch_and_move(self.by_first, first)
        second = second * other_stretch.exp() + move
        return torch.cat([first, second], dim=1), stretch.sum(1) + other_stretch.sum(1)

    def inverse(self, y: Tensor) -> Tensor:
        """Rows (n, d_x) back to where they came from."""
        first, second = torch.split(y, self.sizes, dim=1)
        stretch, move = _stretch_and_move(self.by_first, first)
        second = (second - move) * (-stretch).exp()
        stretch, move = _stretch_and_move(self.by_second, second)
        first = (first - move) * (-stretch).exp()
        return torch.cat([first, second], dim=1)[:, self.order.argsort()]


def _stretch_and_move(net: MLP, x: Tensor) -> tuple[Tensor, Tensor]:
    raw, move = net(x).float().chunk(2, dim=1)
    return _CLAMP * 2 / math.pi * (raw / _CLAMP).atan(), move


class _FlowTraining(BatchTraining):
    def __init__(
        self, generator: ZeroShotFlow, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        self.generator: ZeroShotFlow = generator
        self.flow = generator.net_
        classes, at, counts = torch.unique(y, return_inverse=True, return_counts=True)
        self.seen_vectors = attributes[classes]
        sums = torch.zeros(len(classes), x.shape[1], dtype=torch.double, device=x.device)
        self.means = (sums.index_add_(0, at, x.double()) / counts[:, None]).to(x.dtype)
        is_unseen = torch.ones(len(attributes), dtype=torch.bool, device=x.device)
        is_unseen[classes] = False
        self.unseen_vectors = attributes[is_unseen]
        self.flow.settle(self.seen_vectors)
        std = torch.where(self.flow.free > 0, 1.0, generator.attribute_std)
        self.std, self.log_std = std, std.log().sum()
        self.networks = {"generator": self.flow}
        self.optimizer = adam(
            self.flow.parameters(),
            generator.learning_rate,
            betas=(0.9, 0.999),
            weight_decay=generator.weight_decay,
        )
        self.optimizers = {"generator": self.optimizer}

    def step(self) -> dict[str, Tensor]:
        settings = self.generator
        x, y = self.draw()
        losses = {"flow loss": self._flow_loss(x, y)}
        middles, rows = self._generate(len(x) if settings.mmd_weight and len(self.unseen_vectors) else 0)
        gaps = (middles - self.means).square().sum(1)
        losses["center loss"] = (gaps + 1e-12).sqrt().sum()  # whose slope is finite where there is no gap
        value = settings.flow_weight * losses["flow loss"] + settings.center_weight * losses["center loss"]
        if len(rows):
            losses["discrepancy"] = squared_discrepancy(x, rows)
            value = value - settings.mmd_weight * losses["discrepancy"]
        gradients = torch.autograd.grad(value, parameters_of(self.optimizer))
        update(self.optimizer, clipped(gradients, settings.most_gradient))
        return {"loss": value, **losses}

    def _flow_loss(self, x: Tensor, y: Tensor) -> Tensor:
        """Mean negative log-likelihood of rows, given their class vectors."""
        noise = torch.rand(x.shape, generator=self.rng, device=x.device)
        latents, log_determinant = self.flow(x + self.generator.input_noise * noise)
        place = self.flow.place(self.generator._blur(self.attributes[y], self.rng))
        distance = ((latents - place) / self.std).square().sum(1)
        constant = self.log_std + x.shape[1] / 2 * math.log(2 * math.pi)
        loss: Tensor = (distance / 2 - log_determinant).mean() + constant
        return loss

    def _generate(self, n: int) -> tuple[Tensor, Tensor]:
        """The middles (C_s, d_x) of all seen classes, and n rows (n, d_x) of random unseen ones."""
        latents = [self.flow.place(self.generator._blur(self.seen_vectors, self.rng))]
        if n:
            chosen = torch.randint(len(self.unseen_vectors), (n,), generator=self.rng, device=self.x.device)
            vectors = self.generator._blur(self.unseen_vectors[chosen], self.rng)
            latents.append(self.generator._latents(vectors, self.rng))
        made = self.flow.inverse(torch.cat(latents))
        return made[: len(self.means)], made[len(self.means) :]


def squared_discrepancy(x: Tensor, y: Tensor) -> Tensor:
    r"""Unbiased squared MMD between rows x (n, d) and y (m, d), kernel :math:`2d / (2d + \lVert x - y \rVert^2)`.

    What :func:`dgz.metrics.mmd` is, but with a gradient.

    Examples
    --------
    >>> squared_discrepancy(torch.zeros(2, 1), torch.full((2, 1), 2.0))  # 1 + 1 - 2 · 1/3
    tensor(1.3333)
    """

    def kernel(x: Tensor, y: Tensor) -> Tensor:
        products = (x @ y.T).float()
        squared = x.square().sum(1)[:, None] + y.square().sum(1) - 2 * products
        return 2 * x.shape[1] / (2 * x.shape[1] + squared.clamp(min=0))

    def within(x: Tensor) -> Tensor:
        n = len(x)
        others = 1 - torch.eye(n, device=x.device)
        return (others * kernel(x, x)).sum() / max(n * (n - 1), 1)

    center = x.mean(0)  # distances do not move with the origin, and |x|² + |y|² − 2xy cancels least near it
    x, y = x - center, y - center
    return within(x) + within(y) - 2 * kernel(x, y).mean()
