"""f-VAEGAN-D2's generator: a variational autoencoder whose decoder is the generator of a Wasserstein GAN, too.

TF-VAEGAN and its followers are this one with something added: their training exchanges how rows are encoded
(``encode``), how codes become rows (what ``turn`` is given), what rows are to become again (``rebuilt_badly``) or what
else the generator minimises (``guidance``, ``further_losses``).
"""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.optim import Adam

from dgz.errors import DGZError, require_at_least
from dgz.generators.base import NoiseUnit
from dgz.generators.wgan import WGANGP, WGANTraining, critic_slopes
from dgz.losses import kl_divergence
from dgz.nets import MLP, SLOPE, Critic, initialise
from dgz.training import Precision, Trainee, adam, parameters_of, random_stream, update

Decode = Callable[[Tensor, Tensor], Tensor]  # codes (n, d_z) and class vectors (n, d_a) to logits of rows (n, d_x)
Scaled = tuple[Tensor, float]  # a loss, and what its slopes are multiplied by on their way, that float16 can hold them


class VAEGAN(WGANGP):
    r"""The generator of f-VAEGAN-D2 (Xian et al., CVPR 2019) without its unlabelled rows.

    Encoder [x, a] → hidden → 2 d_z → (μ, log σ²), generator [z, a] → hidden → d_x with a sigmoid, critic [x, a] →
    hidden → 1. Encoder and generator minimise

    .. math:: \mathrm{BCE}(x, \hat x) + \beta\, \mathrm{KL}(N(\mu, \sigma^2) \Vert N(0, I))
        - \gamma\, \mathrm{E}[D(\tilde x, a)],

    the cross-entropy summed over features. The critic's gradient penalty has a weight that adapts itself, see
    :class:`AdaptivePenalty`. The generator sees noisy class vectors, all else and synthesis clean ones.

    Rows must lie in [0, 1], as min-max scaling puts them, since generated ones do; what lies outside counts as 0 or 1
    in the cross-entropy.

    Parameters
    ----------
    n_epochs : int
        An epoch has one generator step for each ``batch_size`` training rows.
    attribute_noise, noise_unit, hidden, learning_rate
        See :class:`CenterMapper`; the encoder has hidden layers of the same widths.
    d_prior : int, optional
        Width of the code z; that of the class vectors by default.
    n_critic, critic_hidden, batch_size
        See :class:`WGANGP`.
    gp_weight : float
        What the weight of the gradient penalty is at first.
    gan_weight : float
        Weight of the critic's opinion (γ). The cross-entropy beside it is summed over features: the published weights
        are for 2048 of them, and fewer call for a smaller one.
    kl_weight : float
        β.
    encoded_noise : bool
        Whether the critic is shown rows made of encoded real ones, which is what is reconstructed then, too; otherwise
        rows made of noise from N(0, I).

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = VAEGAN(n_epochs=2, hidden=(16,), critic_hidden=16).fit(x, y, attributes)
    >>> gan.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 2])
    """

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
    ) -> None:
        super().__init__(
            n_epochs=n_epochs,
            attribute_noise=attribute_noise,
            noise_unit=noise_unit,
            d_prior=d_prior,
            n_critic=n_critic,
            gp_weight=gp_weight,
            hidden=hidden,
            relu_out=False,  # the network ends in logits
            critic_hidden=critic_hidden,
            learning_rate=learning_rate,
            batch_size=batch_size,
        )
        self.gan_weight = gan_weight
        self.kl_weight = kl_weight
        self.encoded_noise = encoded_noise

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_at_least(0, gan_weight=self.gan_weight, kl_weight=self.kl_weight)
        if not isinstance(self.encoded_noise, bool):
            raise DGZError(f"encoded_noise must be True or False, found {self.encoded_noise!r}.")

    def new_encoder(self, d_a: int, d_x: int) -> MLP:
        """An encoder without values: class vectors of width ``d_a`` and rows of width ``d_x`` to (μ, log σ²)."""
        d_z = self.d_prior or d_a
        return MLP([d_x, d_a], [*self.widths(d_x), 2 * d_z, 2 * d_z])

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """One generated row (n, d_x) for each of the class vectors ``attributes`` (n, d_a)."""
        return as_rows(self.net_(self._draw_prior(attributes, rng), attributes))

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return VAEGANTraining(self, x, y, attributes, seed, precision)


class VAEGANTraining(WGANTraining):
    """The critic's steps, and then one of encoder and generator together."""

    generator: VAEGAN
    last_penalty: Tensor  # the gradient penalty of the critic's last step, without its weight

    def __init__(
        self, generator: VAEGAN, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        self.penalty = AdaptivePenalty(generator.gp_weight).to(x.device)
        self.last_penalty = torch.zeros((), device=x.device)
        super().__init__(generator, x, y, attributes, seed, precision)
        self.encoder = self._start_encoder(seed).to(x.device)
        self.networks = {**self.networks, "encoder": self.encoder, "penalty": self.penalty}
        # Authors' code: TF-VAEGAN's leaves the encoder's betas as PyTorch has them, and sets β1 = 0.5 for all else.
        moving = adam(self.encoder.parameters(), generator.learning_rate, betas=(0.9, 0.999))
        self.optimizers = {**self.optimizers, "encoder": moving}

    def _start_encoder(self, seed: int) -> MLP:
        """The encoder before training; one that is used after it, too, is the generator's own."""
        encoder = self.generator.new_encoder(self.attributes.shape[1], self.x.shape[1])
        return initialise(encoder, random_stream(seed, "encoder's start"))

    def _penalty_weight(self) -> Tensor:
        return self.penalty.weight

    def step(self) -> dict[str, Tensor]:
        """Let the critic make its steps, and then encoder and generator one together."""
        return self.turn(self.generator.net_, ["encoder", "generator"])

    def turn(self, decode: Decode, movers: Sequence[str]) -> dict[str, Tensor]:
        """Let the critic make its steps, and then other networks one together; gives the losses.

        Parameters
        ----------
        decode : callable
            How a code and a class vector become the logits of a row.
        movers : sequence of str
            Optimizers of all that is then moved, all of which must have a part in the loss.
        """
        vae, n_critic = self.generator, self.generator.n_critic
        # Nothing that rows are made by moves while the critic makes its steps, so that all their rows are made at once.
        x, y = self.draw(n_critic)
        a = self.attributes[y]
        noisy_a = vae._blur(a, self.rng)
        alpha = torch.rand(len(x), 1, generator=self.rng, device=x.device)
        with torch.no_grad(), self._generating():
            code = self.draw_code(*self.encode(x, a)) if vae.encoded_noise else vae._draw_prior(a, self.rng)
            fake = as_rows(decode(code, noisy_a))
        if self.fused is not None:
            self.fused.begin()
        penalties = []
        for batch in zip(*(part.chunk(n_critic) for part in (x, fake, y, alpha)), strict=True):
            critic_loss = self._step_critic(*batch)
            penalties.append(self.last_penalty)
        self.penalty.adapt(torch.stack(penalties).mean())
        # The last critic step's batch serves here, too, with a code of its own.
        x, y, a, noisy_a = (part.chunk(n_critic)[-1] for part in (x, y, a, noisy_a))
        mean, log_var = self.encode(x, a)
        logits = decode(self.draw_code(mean, log_var), noisy_a)
        reconstruction, kl = self.rebuilt_badly(logits, x), kl_divergence(mean, log_var).mean()
        generated = as_rows(logits if vae.encoded_noise else decode(vae._draw_prior(a, self.rng), noisy_a))
        opinion = self.critic(generated, a).float().mean()
        loss = reconstruction + self.weigh_kl(kl) - vae.gan_weight * opinion + self.guidance(generated, x, y)
        further = self.further_losses(x, y)
        descend_together([self.optimizers[name] for name in movers], loss, *further)
        loss = loss + sum(value.detach() for value, _ in further)
        losses = {"critic loss": critic_loss, "generator loss": loss, "reconstruction loss": reconstruction}
        return {**losses, "kl loss": kl, "gp weight": self.penalty.weight.clone()}

    def encode(self, x: Tensor, a: Tensor) -> tuple[Tensor, Tensor]:
        """Means and log variances (n, d_z) of the codes of rows x (n, d_x) with clean class vectors a (n, d_a)."""
        mean, log_var = self.encoder(x, a).float().chunk(2, dim=1)
        return mean, log_var

    def draw_code(self, mean: Tensor, log_var: Tensor) -> Tensor:
        """A code (n, d_z) for each mean and log variance."""
        noise = torch.randn(mean.shape, generator=self.rng, device=mean.device)
        return mean + (log_var / 2).exp() * noise

    def rebuilt_badly(self, logits: Tensor, x: Tensor) -> Tensor:
        """How far rows with given logits (n, d_x) are from the rows x (n, d_x) whose codes they were made of."""
        return reconstruction_loss(logits, x)

    def further_losses(self, x: Tensor, y: Tensor) -> Sequence[Scaled]:
        """What else is minimised of rows x (n, d_x) and their classes, without a part in it for generated ones."""
        return []

    def weigh_kl(self, kl: Tensor) -> Tensor:
        """What of the KL divergence is in the loss."""
        return self.generator.kl_weight * kl

    def _step_critic(self, x: Tensor, fake: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
        # Authors' code: TF-VAEGAN's has γ in the critic's loss, too. Adam's steps do not depend on a loss's scale.
        if self.fused is not None:
            loss = self.fused(x, fake, self.extended[y], alpha)
            self.last_penalty = self.fused.penalty
            return loss
        self.last_penalty = mean_penalty(self.critic, x, fake, self.attributes[y], alpha)
        loss, slopes = critic_slopes(self.critic, x, fake, self.attributes[y], alpha, self.penalty.weight)
        update(self.optimizers["critic"], [slopes.get(values) for values in self.critic.parameters()])
        return loss


class AdaptivePenalty(nn.Module):
    r"""The weight λ of a gradient penalty, which follows the penalty's size.

    Let :math:`p = \mathrm{E}[(\lVert \nabla D \rVert_2 - 1)^2]`, without a weight, be the mean over the critic's steps
    before a generator step. Then λ is multiplied by 1.1 if p > 1.05, and divided by 1.1 if p < 1.001. Gradients with
    norms from 0 to 2 have p ≤ 1, so that λ falls until the critic is steeper than that.

    Parameters
    ----------
    weight : float
        λ at first.

    Examples
    --------
    >>> penalty = AdaptivePenalty(10.0)
    >>> penalty.adapt(torch.tensor(1.2))
    >>> penalty.weight
    tensor(11.)
    """

    weight: Tensor

    def __init__(self, weight: float) -> None:
        super().__init__()
        self.register_buffer("weight", torch.tensor(float(weight)))  # on the device: a captured step must change it

    # Authors' code: TF-VAEGAN's sums γ λ p over the critic's steps and divides by γ λ and their number, before each
    # generator step (not once an epoch).
    @torch.no_grad()
    def adapt(self, penalty: Tensor) -> None:
        """Follow the mean penalty of the critic's latest steps, one number."""
        self.weight.mul_(1 + 0.1 * (penalty > 1.05)).div_(1 + 0.1 * (penalty < 1.001))
        # From nothing and from infinity there would be no way back.
        self.weight.clamp_(1e-30, 1e30)


@torch.no_grad()
def mean_penalty(critic: Critic, x: Tensor, fake: Tensor, a: Tensor, alpha: Tensor) -> Tensor:
    r"""The gradient penalty :math:`\mathrm{E}[(\lVert \nabla_{\hat x} D \rVert_2 - 1)^2]` without a weight.

    Arguments are those of :func:`~dgz.generators.critic_slopes`, which also has the closed form of the gradient.

    Examples
    --------
    >>> critic = initialise(Critic(2, 1, 4), random_stream(0, "example"))
    >>> x, a = torch.ones(3, 2), torch.ones(3, 1)
    >>> mean_penalty(critic, x, x, a, torch.rand(3, 1)) < 1  # its gradients are still short
    tensor(True)
    """
    of_x, last = critic.first.blocks[0], critic.last.blocks[0]
    hidden = critic.first(alpha * x + (1 - alpha) * fake, a)
    slope = torch.where(hidden > 0, last, SLOPE * last) @ of_x
    norm: Tensor = torch.linalg.vector_norm(slope.float(), dim=1)
    return (norm - 1).square().mean()


def reconstruction_loss(logits: Tensor, x: Tensor) -> Tensor:
    """Binary cross-entropy of rows x (n, d_x) in [0, 1], summed over features; the mean over rows.

    Examples
    --------
    >>> reconstruction_loss(torch.zeros(1, 2), torch.tensor([[1.0, 0.5]]))  # 2 log 2
    tensor(1.3863)
    """
    return binary_cross_entropy_with_logits(logits.float(), x.clamp(0, 1), reduction="sum") / len(x)


def as_rows(logits: Tensor) -> Tensor:
    """The rows (n, d_x) with given logits, in [0, 1]."""
    return logits.float().sigmoid()


def descend_together(optimizers: Sequence[Adam], loss: Tensor, *further: Scaled) -> None:
    """One step of each optimizer down the sum of losses; only their own parameters get gradients.

    All of these have a part in ``loss``, perhaps not in each of the ``further`` losses.
    """
    parameters = [parameters_of(optimizer) for optimizer in optimizers]
    leaves = [values for part in parameters for values in part]
    gradients = torch.autograd.grad(loss, leaves)
    for value, scale in further:
        slopes = torch.autograd.grad(scale * value, leaves, allow_unused=True)
        pairs = zip(gradients, slopes, strict=True)
        gradients = tuple(one if more is None else one.add(more, alpha=1 / scale) for one, more in pairs)
    left = iter(gradients)
    for optimizer, part in zip(optimizers, parameters, strict=True):
        update(optimizer, [next(left) for _ in part])
