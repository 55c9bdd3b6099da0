"""TF-VAEGAN's generator: a VAE-GAN that hears from a semantic decoder what its rows look like, and makes them again.

Rows of the classifier live in the decoder's space: ``embed`` takes real ones there, and ``sample`` gives generated ones
in it.
"""

from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, normalize

from dgz.errors import DGZError, require_at_least, require_count
from dgz.generators.base import NoiseUnit
from dgz.generators.vaegan import VAEGAN, VAEGANTraining, as_rows
from dgz.nets import MLP, SLOPE, initialise
from dgz.training import Precision, Trainee, adam, descend


class FeedbackVAEGAN(VAEGAN):
    r"""The generator, the semantic decoder and the feedback of TF-VAEGAN (Narayan et al., ECCV 2020).

    A decoder x → h → â, of unit length, learns to tell a row's class vector from the row, and the generator to make
    rows of which it can. A feedback module turns h of a generated row into advice for the generator, which makes the
    row once more: its hidden values become :math:`g + s\, F(h)`. A classifier sees :math:`[x, \hat a, h]`.

    Parameters
    ----------
    n_epochs : int
        An epoch has one generator step without feedback and one with it for each ``batch_size`` training rows.
    attribute_noise, noise_unit, d_prior, n_critic, gp_weight, gan_weight, kl_weight, encoded_noise
        See :class:`VAEGAN`.
    hidden, critic_hidden, learning_rate, batch_size
        See there, too; the first of ``hidden`` is also the width of the feedback module.
    d_decoder : int, optional
        Width of the decoder's hidden layer; by default that of the generator's first.
    decoder_weight : float
        Weight of the decoder's loss, on real rows and on generated ones.
    freeze_decoder : bool
        Whether the decoder learns from real rows alone; the generator is moved by its loss either way.
    feedback_strength, synthesis_strength : float
        s in training and in synthesis.
    decoder_rate, feedback_rate : float
        Learning rates of the two modules.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = FeedbackVAEGAN(n_epochs=2, hidden=(16,), d_decoder=8).fit(x, y, attributes)
    >>> gan.sample(attributes, torch.Generator()).shape
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
        n_critic: int = 5,
        gp_weight: float = 10.0,
        gan_weight: float = 10.0,
        kl_weight: float = 1.0,
        encoded_noise: bool = True,
        hidden: Sequence[int] | int | None = 1,
        critic_hidden: int | None = None,
        learning_rate: float = 1e-4,
        batch_size: int = 64,
        d_decoder: int | None = None,
        decoder_weight: float = 0.01,
        freeze_decoder: bool = False,
        feedback_strength: float = 1.0,
        synthesis_strength: float = 1.0,
        decoder_rate: float = 1e-4,
        feedback_rate: float = 1e-4,
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
        self.d_decoder = d_decoder
        self.decoder_weight = decoder_weight
        self.freeze_decoder = freeze_decoder
        self.feedback_strength = feedback_strength
        self.synthesis_strength = synthesis_strength
        self.decoder_rate = decoder_rate
        self.feedback_rate = feedback_rate

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_count(d_decoder=1 if self.d_decoder is None else self.d_decoder)
        for name in ("decoder_weight", "feedback_strength", "synthesis_strength"):
            require_at_least(0, **{name: getattr(self, name)})
        require_at_least(1e-12, decoder_rate=self.decoder_rate, feedback_rate=self.feedback_rate)
        if not isinstance(self.freeze_decoder, bool):
            raise DGZError(f"freeze_decoder must be True or False, found {self.freeze_decoder!r}.")

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained networks for class vectors of width ``d_a`` and features of width ``d_x``."""
        super().build(d_a, d_x, rng)
        d_hidden = self.widths(d_x)[0]
        d_decoder = self.d_decoder or d_hidden
        self.decoder_ = initialise(MLP([d_x], [d_decoder, d_a]), rng)
        self.feedback_ = initialise(MLP([d_decoder], [d_hidden, d_hidden]), rng)
        self._d_added = d_a + d_decoder
        return self

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name."""
        return {**super().networks(), "decoder": self.decoder_, "feedback": self.feedback_}

    def embedded_width(self, d_x: int) -> int:
        """How wide a row is with what the decoder adds to it, once the networks are built."""
        return d_x + self._d_added

    def describe(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """What the decoder makes of rows x (n, d_x): vectors of unit length (n, d_a), and hidden values."""
        hidden = self.decoder_.begin(x)
        return normalize(self.decoder_.finish(hidden).float()), hidden

    def embed_block(self, x: Tensor) -> Tensor:
        """Rows x (n, d_x) with what the decoder makes of them: (n, d_x + d_a + d_decoder)."""
        return torch.cat([x, *self.describe(x)], dim=1)

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """One generated row for each of the class vectors ``attributes`` (n, d_a), in the space of ``embed``."""
        logits = self.decode(self._draw_prior(attributes, rng), attributes, self.synthesis_strength)
        return self.embed(as_rows(logits))

    def decode(self, z: Tensor, attributes: Tensor, strength: float) -> Tensor:
        """Logits (n, d_x) of rows that are made, described, and made again with the advice that follows from that."""
        hidden = self.net_.begin(z, attributes)
        with torch.no_grad():  # Authors' code: what the decoder saw is a fixed input of the feedback module.
            seen = self.decoder_.begin(as_rows(self.net_.finish(hidden)))
        return self.net_.finish(hidden + strength * leaky_relu(self.feedback_(seen), SLOPE))

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return FeedbackTraining(self, x, y, attributes, seed, precision)


class FeedbackTraining(VAEGANTraining):
    """A turn without feedback and one with it, the decoder learning along with the critic."""

    generator: FeedbackVAEGAN

    def __init__(
        self, generator: FeedbackVAEGAN, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        modules = {"decoder": generator.decoder_.to(x.device), "feedback": generator.feedback_.to(x.device)}
        rates = {"decoder": generator.decoder_rate, "feedback": generator.feedback_rate}
        self.networks = {**self.networks, **modules}
        moving = {name: adam(net.parameters(), rates[name]) for name, net in modules.items()}
        self.optimizers = {**self.optimizers, **moving}
        # The decoder's vectors have unit length, so those that it is to find must, whatever the scaling.
        self.targets = normalize(attributes)

    def step(self) -> dict[str, Tensor]:
        """Make a turn without feedback, and one with it; gives the means of their losses."""
        vae = self.generator
        learns = bool(vae.decoder_weight) and not vae.freeze_decoder
        movers = ["encoder", "generator", *(["decoder"] if learns else [])]
        plain = self.turn(vae.net_, movers)
        fed_back = self.turn(partial(vae.decode, strength=vae.feedback_strength), [*movers, "feedback"])
        return {name: (loss + fed_back[name]) / 2 for name, loss in plain.items()}

    def guidance(self, generated: Tensor, x: Tensor, y: Tensor) -> Tensor | float:
        """How badly the decoder tells the class vectors of generated rows."""
        told_badly = self.generator.decoder_weight * self._told_badly(generated, y)
        return super().guidance(generated, x, y) + told_badly

    def _step_critic(self, x: Tensor, fake: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
        descend(self.optimizers["decoder"], self._weight_of_real_rows() * self._told_badly(x, y))
        return super()._step_critic(x, fake, y, alpha)

    def _weight_of_real_rows(self) -> float:
        """Weight of the decoder's loss on real rows, which only matters beside that on generated ones."""
        return self.generator.decoder_weight

    def _told_badly(self, x: Tensor, y: Tensor) -> Tensor:
        return weighted_l1(self.generator.describe(x)[0], self.targets[y])


def weighted_l1(found: Tensor, wanted: Tensor) -> Tensor:
    r"""An L1 distance in which large differences count more; the mean over rows (n, d_a).

    .. math:: \sum_k w_k \lvert d_k \rvert, \quad w_k = d_k^2 / \lVert d \rVert_2, \quad d = \hat a - a.

    Examples
    --------
    >>> weighted_l1(torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2))  # (27 + 64) / 5
    tensor(18.2000)
    """
    # Authors' code: the weights are made of the differences and nothing else, and have gradients, too.
    apart = found - wanted
    length: Tensor = torch.linalg.vector_norm(apart, dim=1, keepdim=True)
    return (apart.abs().pow(3) / length.clamp(min=1e-12)).sum(1).mean()
