"""GCM-CF's generator: TF-VAEGAN's, which encodes a row and makes it again as if it were of another class.

So that a code holds what the class does not say, the encoder does not see class vectors, and a row made again under its
own class must be nearer to itself than under others. ``counterfactuals`` is what it is for; rows of the classifier live
in the decoder's space, as TF-VAEGAN's do.
"""

from collections.abc import Sequence
from functools import partial
from typing import Self

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from dgz.errors import DGZError, require_at_least, require_count
from dgz.generators.base import NoiseUnit, seen_places
from dgz.generators.feedback import FeedbackTraining, FeedbackVAEGAN
from dgz.generators.vaegan import Decode, Scaled, as_rows
from dgz.losses import cross_entropy
from dgz.nets import MLP, initialise
from dgz.training import Precision, Trainee


class CounterfactualVAEGAN(FeedbackVAEGAN):
    r"""The generative causal model of GCM-CF (Yue et al., CVPR 2021), which says what a row would be in another class.

    A :class:`FeedbackVAEGAN` whose encoder x → hidden → 2 d_z sees no class vectors, and is kept. Its training differs
    in four things: the weight of the KL divergence rises with the epochs, the target of the reconstruction has noise,
    the decoder's loss on real rows has no weight, and there is a contrastive loss. A row is made again from its code,
    once under its own class vector and once under those of K other seen classes, and the cross-entropy of

    .. math:: -\tau\, \frac{1}{d_x} \lVert x - \hat x_c \rVert_2^2

    over these K + 1 classes, with its own as the target, is minimised, too.

    Parameters
    ----------
    n_epochs : int
        An epoch has one generator step without feedback and one with it for each ``batch_size`` training rows.
    attribute_noise, noise_unit, d_prior, n_critic, gp_weight, gan_weight, encoded_noise
        See :class:`VAEGAN`.
    hidden, critic_hidden, learning_rate, batch_size
        See there, too.
    kl_weight : float
        β, once it has risen. The cross-entropy beside it is summed over features: the published weights are for 2048 of
        them, and fewer call for a smaller one, or codes say nothing about rows.
    kl_warm_up : int
        Epochs over which the weight rises from 0 to β, on a straight line; 0 has β from the start.
    d_decoder, freeze_decoder, feedback_strength, synthesis_strength, decoder_rate, feedback_rate
        See :class:`FeedbackVAEGAN`.
    decoder_weight : float
        Weight of how badly the decoder tells the class vectors of generated rows.
    encoder_sees_class : bool
        Whether the encoder sees class vectors after all.
    target_noise : float
        Standard deviation of the noise on what the reconstruction is compared with.
    contrast_weight : float
        Weight of the contrastive loss.
    n_contrasts : int
        Other classes under which a row is made again (K); all others where there are not so many.
    contrast_scale : float
        What multiplies the distances in the contrastive loss (τ).

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = CounterfactualVAEGAN(n_epochs=2, hidden=(16,), d_decoder=8).fit(x, y, attributes)
    >>> gan.counterfactuals(x[:3], attributes).shape
    torch.Size([3, 2, 2])
    """

    def __init__(
        self,
        *,
        n_epochs: int = 160,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        d_prior: int | None = None,
        n_critic: int = 5,
        gp_weight: float = 10.0,
        gan_weight: float = 10.0,
        kl_weight: float = 6.0,
        kl_warm_up: int = 40,
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
        encoder_sees_class: bool = False,
        target_noise: float = 0.2,
        contrast_weight: float = 1.0,
        n_contrasts: int = 30,
        contrast_scale: float = 500.0,
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
            d_decoder=d_decoder,
            decoder_weight=decoder_weight,
            freeze_decoder=freeze_decoder,
            feedback_strength=feedback_strength,
            synthesis_strength=synthesis_strength,
            decoder_rate=decoder_rate,
            feedback_rate=feedback_rate,
        )
        self.kl_warm_up = kl_warm_up
        self.encoder_sees_class = encoder_sees_class
        self.target_noise = target_noise
        self.contrast_weight = contrast_weight
        self.n_contrasts = n_contrasts
        self.contrast_scale = contrast_scale

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        for name in ("kl_warm_up", "target_noise", "contrast_weight", "contrast_scale"):
            require_at_least(0, **{name: getattr(self, name)})
        require_count(n_contrasts=self.n_contrasts)
        if not isinstance(self.encoder_sees_class, bool):
            raise DGZError(f"encoder_sees_class must be True or False, found {self.encoder_sees_class!r}.")

    def new_encoder(self, d_a: int, d_x: int) -> MLP:
        """An encoder without values: rows of width ``d_x``, perhaps with class vectors of width ``d_a``, to codes."""
        if self.encoder_sees_class:
            return super().new_encoder(d_a, d_x)
        d_z = self.d_prior or d_a
        return MLP([d_x], [*self.widths(d_x), 2 * d_z, 2 * d_z])

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained networks for class vectors of width ``d_a`` and features of width ``d_x``."""
        super().build(d_a, d_x, rng)
        self.encoder_ = initialise(self.new_encoder(d_a, d_x), rng)
        return self

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name."""
        return {**super().networks(), "encoder": self.encoder_}

    def encode(self, x: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances (…, d_z) of the codes of rows (…, d_x), under class vectors (…, d_a) if it sees such.

        Leading dimensions are those of a row and a class vector together; where it sees none, those of a row.
        """
        inputs = (x, attributes) if self.encoder_sees_class else (x,)
        mean, log_var = self.encoder_(*inputs).float().chunk(2, dim=-1)
        return mean, log_var

    @torch.no_grad()
    def counterfactuals(self, x: Tensor, attributes: Tensor, noise: Tensor | None = None) -> Tensor:
        """What rows x (n, d_x) would be, were they of the classes with the vectors ``attributes`` (C, d_a).

        Parameters
        ----------
        x, attributes : (n, d_x), (C, d_a)
        noise : (m, C, d_z), optional
            How far m codes of each row and class are from the mean of the row's encoding, in units of its standard
            deviation; without it, the mean is the code.

        Returns
        -------
        (n, C, d_x) or (n, m, C, d_x)
            Rows in the space of the features, not in that of ``embed``.
        """
        codes, log_var = self.encode(x[:, None], attributes)
        if noise is not None:
            codes = codes[:, None] + (log_var[:, None] / 2).exp() * noise
        return as_rows(self.decode(codes, attributes, self.synthesis_strength))

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return CounterfactualTraining(self, x, y, attributes, seed, precision)


class CounterfactualTraining(FeedbackTraining):
    """TF-VAEGAN's turns, with a weight of the KL divergence that rises, a noisy target, and the contrastive loss."""

    generator: CounterfactualVAEGAN

    def __init__(
        self, generator: CounterfactualVAEGAN, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        self.kl_weight = torch.zeros((), device=x.device)
        self.begin_epoch(1)
        self.classes = torch.unique(y)
        self.place = seen_places(y, len(attributes))
        self.n_contrasts = min(generator.n_contrasts, len(self.classes) - 1)

    def _start_encoder(self, seed: int) -> MLP:
        return self.generator.encoder_

    def begin_epoch(self, epoch: int) -> None:
        """Let the weight of the KL divergence rise."""
        vae = self.generator
        share = min((epoch - 1) / vae.kl_warm_up, 1.0) if vae.kl_warm_up else 1.0
        self.kl_weight.fill_(share * vae.kl_weight)

    def turn(self, decode: Decode, movers: Sequence[str]) -> dict[str, Tensor]:
        """Make a turn, in which rows are contrasted as they are made, with feedback or without it; gives the losses."""
        vae = self.generator
        # Authors' code: with feedback, what is contrasted has the strength of synthesis, not that of training.
        self.remake = decode if decode is vae.net_ else partial(vae.decode, strength=vae.synthesis_strength)
        losses = super().turn(decode, movers)
        return {**losses, "contrast loss": self.last_contrast} if vae.contrast_weight else losses

    def encode(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances (n, d_z) of the codes of rows x (n, d_x), which may depend on a (n, d_a), too."""
        return self.generator.encode(x, a)

    def _weight_of_real_rows(self) -> float:
        # Authors' code: TF-VAEGAN's weighs the decoder's loss on both kinds of rows, GCM-CF's on generated ones alone.
        return 1.0

    def rebuilt_badly(self, logits: Tensor, x: Tensor) -> Tensor:
        """The cross-entropy of rows x (n, d_x) with noise, which may lead out of [0, 1]: it is linear in them."""
        x = x.clamp(0, 1)
        if strength := self.generator.target_noise:
            x = x + strength * torch.randn(x.shape, generator=self.rng, device=x.device)
        return binary_cross_entropy_with_logits(logits.float(), x, reduction="sum") / len(x)

    def weigh_kl(self, kl: Tensor) -> Tensor:
        """What of the KL divergence is in the loss in this epoch."""
        return self.kl_weight * kl

    def further_losses(self, x: Tensor, y: Tensor) -> Sequence[Scaled]:
        """How badly rows made again are told from what they would be in other classes."""
        vae = self.generator
        if not vae.contrast_weight:
            return []
        contrasted = self._contrasted_badly(x, y)
        self.last_contrast = contrasted.detach()
        # No value that is made has a larger slope than this, where rows lie in [0, 1] as they should.
        steepest = 2 * vae.contrast_weight * vae.contrast_scale / x.numel()
        return [(vae.contrast_weight * contrasted, 1 / steepest if steepest else 1.0)]

    def _contrasted_badly(self, x: Tensor, y: Tensor) -> Tensor:
        vae, vectors = self.generator, self.attributes[self.draw_classes(y)]
        # K + 1 times as many rows as all else in a turn has: they are most of its products.
        with self._generating():
            mean, log_var = self.encode(x[:, None], vectors)
            codes = draw_codes(mean, log_var, vectors.shape[1], self.rng)
            made = as_rows(self.remake(codes, vae._blur(vectors, self.rng)))
        return contrast(made, x, vae.contrast_scale)

    def draw_classes(self, y: Tensor) -> Tensor:
        """For rows of the classes y (n,): their own class, and others that are seen, none of them twice: (n, K + 1)."""
        order = torch.rand(len(y), len(self.classes), generator=self.rng, device=y.device)
        order.scatter_(1, self.place[y][:, None], 2.0)  # above all others, so that a row's own class comes first
        chosen: Tensor = self.classes[order.topk(self.n_contrasts + 1).indices]
        return chosen


def draw_codes(mean: Tensor, log_var: Tensor, n_classes: int, rng: torch.Generator) -> Tensor:
    """A code (n, n_classes, d_z) for each row and class, of means and log variances (n, n_classes or 1, d_z)."""
    noise = torch.randn(len(mean), n_classes, mean.shape[-1], generator=rng, device=mean.device)
    return mean + (log_var / 2).exp() * noise


def contrast(made: Tensor, x: Tensor, scale: float) -> Tensor:
    r"""How badly rows x (n, d_x) are told by distance from what was made of them under K + 1 classes (n, K + 1, d_x).

    The mean cross-entropy of the logits :math:`-\tau \lVert x - \hat x_c \rVert_2^2 / d_x`; a row's own class is the
    first.

    Examples
    --------
    >>> made = torch.tensor([[[1.0, 1.0], [1.0, 0.0]]])
    >>> contrast(made, torch.ones(1, 2), scale=2.0).exp()  # 1 + exp(-2 / 2)
    tensor(1.3679)
    """
    logits: Tensor = -scale * (made - x[:, None]).square().mean(-1)
    return cross_entropy(logits, torch.zeros(len(x), dtype=torch.long, device=x.device))
