"""FREE's generator: a VAE-GAN with a module that refines features, for real and generated rows alike.

Rows of the classifier live in that module's space: ``embed`` takes real ones there, and ``sample`` gives generated ones
in it.
"""

import math
from collections.abc import Sequence
from typing import Literal, Self

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from dgz.errors import DGZError, require_at_least, require_choice, require_count
from dgz.generators.base import BLOCK, NoiseUnit, seen_places
from dgz.generators.feedback import weighted_l1
from dgz.generators.vaegan import VAEGAN, VAEGANTraining, descend_together
from dgz.nets import MLP, initialise
from dgz.training import Precision, Trainee, adam, random_stream

Other = Literal["random", "nearest"]


class RefiningVAEGAN(VAEGAN):
    r"""The generator and the feature refinement of FREE (Chen et al., ICCV 2021).

    A module x → h → (μ, σ), with σ from a sigmoid, describes a row by :math:`\hat a = \mathrm{sigmoid}(\mu + \sigma
    \varepsilon)`. It learns from real rows to find the class vector, and to put μ nearer to its class's centre than to
    those of other classes (:func:`adaptive_margin`); the generator learns to make rows whose class vector it finds, and
    the module, unless it is frozen meanwhile, to find it in them. A classifier sees :math:`[x, h, \hat a]`.

    Parameters
    ----------
    n_epochs : int
        An epoch has two generator steps for each ``batch_size`` training rows.
    attribute_noise, noise_unit, d_prior, n_critic, gp_weight, gan_weight, kl_weight, encoded_noise
        See :class:`VAEGAN`.
    hidden, critic_hidden, learning_rate, batch_size
        See there, too.
    d_refined : int, optional
        Width of h; by default that of the generator's first hidden layer.
    refining_weight : float
        Weight of the distance between class vectors found and wanted, on real rows and on generated ones.
    margin, balance : float
        Of :func:`adaptive_margin`: the margin and ρ.
    other : {"random", "nearest"}
        Which other class's centre a row is kept from.
    refining_rate : float
        Learning rate of the module. That of the centres is ``learning_rate``.
    freeze_refiner : bool
        Whether the module stands still while the generator learns from it.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = RefiningVAEGAN(n_epochs=2, hidden=(16,), d_refined=8).fit(x, y, attributes)
    >>> gan.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 12])
    """

    embeds = True

    def __init__(
        self,
        *,
        n_epochs: int = 120,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        d_prior: int | None = None,
        n_critic: int = 1,
        gp_weight: float = 10.0,
        gan_weight: float = 10.0,
        kl_weight: float = 1.0,
        encoded_noise: bool = True,
        hidden: Sequence[int] | int | None = 1,
        critic_hidden: int | None = None,
        learning_rate: float = 1e-4,
        batch_size: int = 64,
        d_refined: int | None = None,
        refining_weight: float = 0.001,
        margin: float = 200.0,
        balance: float = 0.8,
        other: Other = "random",
        refining_rate: float = 1e-4,
        freeze_refiner: bool = False,
    ) -> None:
        super().__init__(
            n_epochs=n_epochs,
            attribute_noise=attribute_noise,
            noise_unit=noise_unit,
            d_prior=d_prior,
            n_critic=n_critic,
            gp_weight=gp_weight,
            gan_weight=gan_weight,
            kl_weight=kl_weight,
            encoded_noise=encoded_noise,
            hidden=hidden,
            critic_hidden=critic_hidden,
            learning_rate=learning_rate,
            batch_size=batch_size,
        )
        self.d_refined = d_refined
        self.refining_weight = refining_weight
        self.margin = margin
        self.balance = balance
        self.other = other
        self.refining_rate = refining_rate
        self.freeze_refiner = freeze_refiner

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_choice(self.other, Other, "other")
        require_count(d_refined=1 if self.d_refined is None else self.d_refined)
        require_at_least(0, refining_weight=self.refining_weight, margin=self.margin, balance=self.balance)
        require_at_least(1e-12, refining_rate=self.refining_rate)
        if not isinstance(self.freeze_refiner, bool):
            raise DGZError(f"freeze_refiner must be True or False, found {self.freeze_refiner!r}.")

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained networks for class vectors of width ``d_a`` and features of width ``d_x``."""
        super().build(d_a, d_x, rng)
        d_refined = self.d_refined or self.widths(d_x)[0]
        self.refiner_ = initialise(MLP([d_x], [d_refined, 2 * d_a]), rng)
        self._d_added = d_refined + d_a
        return self

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name."""
        return {**super().networks(), "refiner": self.refiner_}

    def embedded_width(self, d_x: int) -> int:
        """How wide a row is with what the module adds to it, once the networks are built."""
        return d_x + self._d_added

    def refine(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What the module makes of rows x (n, d_x): h, and μ and σ (n, d_a)."""
        hidden = self.refiner_.begin(x)
        mean, spread = self.refiner_.finish(hidden).float().chunk(2, dim=1)
        return hidden, mean, spread.sigmoid()

    def embed_block(self, x: Tensor) -> Tensor:
        """Rows x (n, d_x) with what the module makes of them, without noise: (n, d_x + d_refined + d_a)."""
        # Authors' code: test rows get noise, too, so that predictions of the same row differ from time to time.
        return self._joined(x, None)

    def training_rows(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Real rows as a classifier learns from them, in the space of ``embed`` and with noise."""
        return self._embed_with_noise(x, rng), y

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """One generated row for each of the class vectors ``attributes`` (n, d_a), in the space of ``embed``."""
        return self._embed_with_noise(super().sample(attributes, rng), rng)

    @torch.no_grad()
    def _embed_with_noise(self, x: Tensor, rng: torch.Generator) -> Tensor:
        return torch.cat([self._joined(rows, rng) for rows in torch.split(x, BLOCK)])

    def _joined(self, x: Tensor, rng: torch.Generator | None) -> Tensor:
        hidden, mean, spread = self.refine(x)
        if rng is not None:
            mean = mean + spread * torch.randn(mean.shape, generator=rng, device=mean.device)
        return torch.cat([x, hidden, mean.sigmoid()], dim=1)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return RefiningTraining(self, x, y, attributes, seed, precision)


class Centers(nn.Module):
    """A learned centre (n_classes, d) for each class."""

    def __init__(self, n_classes: int, d: int) -> None:
        super().__init__()
        self.values = nn.Parameter(torch.empty(n_classes, d))


class RefiningTraining(VAEGANTraining):
    """Turns of the VAE-GAN, the refining module learning along with the critic."""

    generator: RefiningVAEGAN

    def __init__(
        self, generator: RefiningVAEGAN, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        # Authors' code: an epoch goes over the batches twice, as TF-VAEGAN's does, though nothing is fed back here.
        self.n_steps *= 2
        self.refiner = generator.refiner_.to(x.device)
        classes = torch.unique(y)
        self.place = seen_places(y, len(attributes))
        centers = Centers(len(classes), attributes.shape[1])
        with torch.no_grad():
            centers.values.normal_(generator=random_stream(seed, "centers' start"))
        self.centers = centers.to(x.device)
        self.networks = {**self.networks, "refiner": self.refiner, "centers": self.centers}
        rates = {"refiner": generator.refining_rate, "centers": generator.learning_rate}
        moving = {name: adam(self.networks[name].parameters(), rate) for name, rate in rates.items()}
        self.optimizers = {**self.optimizers, **moving}
        # Class vectors of unit length, as in the released code, whatever the scaling.
        self.targets = normalize(attributes)

    def step(self) -> dict[str, Tensor]:
        """Let critic and module make their steps, and then encoder and generator one, perhaps with the module."""
        learns = bool(self.generator.refining_weight) and not self.generator.freeze_refiner
        return self.turn(self.generator.net_, ["encoder", "generator", *(["refiner"] if learns else [])])

    def guidance(self, generated: Tensor, x: Tensor, y: Tensor) -> Tensor | float:
        """How far the class vectors that the module finds in generated rows are from those wanted."""
        return super().guidance(generated, x, y) + self._found_badly(*self.generator.refine(generated)[1:], y)

    def _step_critic(self, x: Tensor, fake: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
        _, mean, spread = self.generator.refine(x)
        of, centers = self.place[y], self.centers.values
        others = self._others(mean, of)
        apart = adaptive_margin(mean, centers[of], centers[others], self.generator.margin, self.generator.balance)
        # Authors' code: never clears the centres' gradients, which add up over the whole training.
        movers = [self.optimizers["refiner"], self.optimizers["centers"]]
        descend_together(movers, apart / 2 + self._found_badly(mean, spread, y))
        return super()._step_critic(x, fake, y, alpha)

    def _others(self, mean: Tensor, of: Tensor) -> Tensor:
        """For each row, another class than its own: the one with the nearest centre, or any."""
        n_classes = len(self.centers.values)
        if n_classes == 1:
            return of
        if self.generator.other == "random":
            # Authors' code: the draw may give the row's own class.
            steps = torch.rand(len(of), generator=self.rng, device=of.device) * (n_classes - 1)
            return (of + 1 + steps.long().clamp(max=n_classes - 2)) % n_classes
        far = torch.cdist(mean.detach(), self.centers.values.detach())
        return far.scatter(1, of[:, None], math.inf).argmin(1)

    def _found_badly(self, mean: Tensor, spread: Tensor, y: Tensor) -> Tensor:
        noise = torch.randn(mean.shape, generator=self.rng, device=mean.device)
        found = (mean + spread * noise).sigmoid()
        return self.generator.refining_weight * weighted_l1(found, self.targets[y])


def adaptive_margin(points: Tensor, own: Tensor, other: Tensor, margin: float, balance: float) -> Tensor:
    r"""FREE's self-adaptive margin centre loss of points (n, d), with their own and other classes' centres (n, d).

    Mean over points of :math:`\max(0, m + \rho \lVert z - c_y \rVert^2 - (1 - \rho) \lVert z - c_{y'} \rVert^2)`.

    Examples
    --------
    >>> adaptive_margin(torch.zeros(1, 2), torch.ones(1, 2), 2 * torch.ones(1, 2), margin=1.0, balance=0.5)
    tensor(0.)
    >>> adaptive_margin(torch.zeros(1, 2), torch.ones(1, 2), 2 * torch.ones(1, 2), margin=4.0, balance=0.5)
    tensor(1.)
    """
    near, far = ((points - centers).square().sum(1) for centers in (own, other))
    return (margin + balance * near - (1 - balance) * far).relu().mean()
