"""A Wasserstein GAN with gradient penalty, the generator of DGZ and of many methods before it."""

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from dgz.errors import require_at_least, require_count
from dgz.generators.base import BatchTraining, ClassGenerator, NoiseUnit, seen_places
from dgz.nets import SLOPE, BlockLinear, Critic, initialise
from dgz.training import (
    OPERANDS,
    Precision,
    Trainee,
    adam,
    descend,
    has_kernels,
    in_range,
    random_stream,
    train,
    update,
)

if TYPE_CHECKING:
    from dgz.kernels import CriticStep

_JUDGE_EPOCHS, _JUDGE_RATE, _JUDGE_BATCH = 50, 1e-3, 100  # f-CLSWGAN's classifier of real rows


class WGANGP(ClassGenerator):
    """A Wasserstein GAN with gradient penalty that generates rows of a class from its vector and noise, Eq. (4), (5).

    The generator [z, a] → hidden → d_x sees noisy class vectors, the critic [x, a] → hidden → 1 and synthesis see clean
    ones.

    Parameters
    ----------
    n_epochs : int
        An epoch has one generator step for each ``batch_size`` training rows.
    attribute_noise, noise_unit, l2, fgm, hidden, relu_out, learning_rate
        See :class:`CenterMapper`.
    prior : bool
        Whether the generator takes a random vector z ~ N(0, I) beside the class vector. Without it, the attribute noise
        is what tells rows of one class apart (Fig. A.3), in synthesis too.
    d_prior : int, optional
        Width of z; that of the class vectors by default.
    n_critic : int
        Critic steps before each generator step.
    gp_weight : float
        Weight of the gradient penalty (λ0).
    critic_hidden : int, optional
        Width of the critic's hidden layer; by default that of the generator's first, as in the paper.
    batch_size : int
        Rows per step.
    class_weight : float
        Weight, in the generator's loss, of how well a softmax classifier recognises generated rows; that classifier is
        trained on the real rows beforehand and then left as it is (f-CLSWGAN, Xian et al., 2018). 0 does without.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = WGANGP(n_epochs=2, hidden=(16, 8), critic_hidden=16).fit(x, y, attributes)
    >>> gan.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 2])
    """

    judge_epochs = _JUDGE_EPOCHS  # of the classifier that ``class_weight`` is about

    def __init__(
        self,
        *,
        n_epochs: int = 300,
        attribute_noise: float = 0.08,
        noise_unit: NoiseUnit = "absolute",
        l2: float = 0.0,
        fgm: float = 0.0,
        prior: bool = True,
        d_prior: int | None = None,
        n_critic: int = 5,
        gp_weight: float = 10.0,
        hidden: Sequence[int] | int | None = None,
        relu_out: bool = True,
        critic_hidden: int | None = None,
        learning_rate: float = 1e-4,
        batch_size: int = 512,
        class_weight: float = 0.0,
    ) -> None:
        self.n_epochs = n_epochs
        self.attribute_noise = attribute_noise
        self.noise_unit = noise_unit
        self.l2 = l2
        self.fgm = fgm
        self.prior = prior
        self.d_prior = d_prior
        self.n_critic = n_critic
        self.gp_weight = gp_weight
        self.hidden = hidden
        self.relu_out = relu_out
        self.critic_hidden = critic_hidden
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.class_weight = class_weight

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_at_least(0, gp_weight=self.gp_weight, class_weight=self.class_weight)
        require_count(n_critic=self.n_critic, batch_size=self.batch_size)
        require_count(critic_hidden=1 if self.critic_hidden is None else self.critic_hidden)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return WGANTraining(self, x, y, attributes, seed, precision)


class WGANTraining(BatchTraining):
    """The critic's steps and the generator's, in turn."""

    def __init__(
        self, generator: WGANGP, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        self.generator: WGANGP = generator
        d_hidden = generator.critic_hidden or generator.widths(x.shape[1])[0]
        critic = Critic(x.shape[1], attributes.shape[1], d_hidden)
        self.critic = initialise(critic, random_stream(seed, "critic's start")).to(x.device)
        self.networks = {"generator": generator.net_, "critic": self.critic}
        self.optimizers = {name: adam(net.parameters(), generator.learning_rate) for name, net in self.networks.items()}
        self.fused = self._fused_critic() if has_kernels(x.device) and in_range(self.precision, x, attributes) else None
        self.judge = _Judge(x, y, seed, precision, generator.judge_epochs) if generator.class_weight else None

    def _fused_critic(self) -> "CriticStep":
        from dgz.kernels import CriticStep

        optimizer, first = self.optimizers["critic"], self.critic.first
        # Class vectors get a one for the bias, and both get zeros up to a width that matrix products like.
        d_hidden, d_a = first.blocks[1].shape
        together = torch.zeros(d_hidden, d_a + 8 - d_a % 8, device=self.x.device)
        together[:, :d_a], together[:, d_a] = first.blocks[1].detach(), first.bias.detach()
        first.blocks[1].data, first.bias.data = together[:, :d_a], together[:, d_a]
        self.extended = nn.functional.pad(self.attributes, (0, together.shape[1] - d_a))
        self.extended[:, d_a] = 1.0
        state, count = optimizer.state, torch.zeros((), device=self.x.device)
        for values in self.critic.parameters():
            state[values]["step"] = count
        parts = (first.blocks[0], first.blocks[1], first.bias, self.critic.last.blocks[0])
        moving = [(values.detach(), state[values]["exp_avg"], state[values]["exp_avg_sq"]) for values in parts]
        return CriticStep(
            *moving,
            vectors=together,
            count=count,
            rate=optimizer.param_groups[0]["lr"],
            gp_weight=self._penalty_weight(),
            slope=SLOPE,
            dtype=OPERANDS[self.precision],
        )

    def _penalty_weight(self) -> Tensor:
        """The weight of the gradient penalty, on the device."""
        return torch.tensor(self.generator.gp_weight, device=self.x.device)

    def step(self) -> dict[str, Tensor]:
        """Let the critic make its steps, and then the generator one."""
        gan, n_critic = self.generator, self.generator.n_critic
        # The generator stands still while the critic makes its steps, so that all their rows are made at once.
        x, y = self.draw(n_critic)
        a = self.attributes[y]
        noise = [gan._draw_prior(a, self.rng)] if gan.prior else []
        noisy_a = gan._blur(a, self.rng)
        alpha = torch.rand(len(x), 1, generator=self.rng, device=x.device)
        with torch.no_grad(), self._generating():
            fake = gan.net_(*noise, noisy_a)
        if self.fused is not None:
            self.fused.begin()
        for batch in zip(*(part.chunk(n_critic) for part in (x, fake, y, alpha)), strict=True):
            critic_loss = self._step_critic(*batch)
        # Authors' code: the last critic step's batch, noise and noisy class vectors serve the generator's step too.
        x, y, a, noisy_a, *noise = (part.chunk(n_critic)[-1] for part in (x, y, a, noisy_a, *noise))

        def loss(vectors: Tensor) -> Tensor:
            generated = gan.net_(*noise, vectors)
            scores: Tensor = self.critic(generated, a)
            return -scores.float().mean() + self.guidance(generated, x, y)

        generator_loss = gan._suppressed(loss, noisy_a)
        descend(self.optimizers["generator"], generator_loss)
        return {"critic loss": critic_loss, "generator loss": generator_loss}

    def guidance(self, generated: Tensor, x: Tensor, y: Tensor) -> Tensor | float:
        """What else the generator minimises: a function of its rows (n, d_x), real ones, and the classes of both."""
        if self.judge is None:
            return 0.0
        return self.generator.class_weight * self.judge.loss(generated, y)

    def _generating(self) -> AbstractContextManager[Any]:
        """Make rows in the type that the fused critic multiplies, where there is one.

        Slopes that go back through the block must be of a size that this type can hold.
        """
        if self.fused is None or self.precision == "float32":
            return nullcontext()
        return torch.autocast("cuda", OPERANDS[self.precision], cache_enabled=False)

    def _step_critic(self, x: Tensor, fake: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
        if self.fused is not None:
            return self.fused(x, fake, self.extended[y], alpha)
        loss, slopes = critic_slopes(self.critic, x, fake, self.attributes[y], alpha, self.generator.gp_weight)
        update(self.optimizers["critic"], [slopes.get(values) for values in self.critic.parameters()])
        return loss


class _Judge(Trainee):
    """A softmax classifier of the seen classes, trained as f-CLSWGAN's scripts train theirs, and then left as it is."""

    def __init__(self, x: Tensor, y: Tensor, seed: int, precision: Precision, n_epochs: int = _JUDGE_EPOCHS) -> None:
        self.x, self.y, self.precision = x, y, precision
        self.rng = random_stream(seed, "judge", x.device)
        classes = torch.unique(y)
        self.place = seen_places(y, int(classes[-1]) + 1)
        net = BlockLinear([x.shape[1]], len(classes))
        self.net = initialise(net, random_stream(seed, "judge's start")).to(x.device)
        self.networks = {"judge": self.net}
        self.optimizers = {"judge": adam(self.net.parameters(), _JUDGE_RATE)}
        self.n_steps = math.ceil(len(x) / _JUDGE_BATCH)
        train("judge", self, n_epochs)
        self.net.requires_grad_(False)

    def loss(self, x: Tensor, y: Tensor) -> Tensor:
        """How badly rows x (n, d_x) of the classes y (n,) are recognised."""
        return nn.functional.cross_entropy(self.net(x).float(), self.place[y])

    def step(self) -> dict[str, Tensor]:
        rows = torch.randint(len(self.x), (min(_JUDGE_BATCH, len(self.x)),), generator=self.rng, device=self.x.device)
        loss = self.loss(self.x[rows], self.y[rows])
        descend(self.optimizers["judge"], loss)
        return {"loss": loss}


@torch.no_grad()
def critic_slopes(
    critic: Critic, x: Tensor, fake: Tensor, a: Tensor, alpha: Tensor, gp_weight: float | Tensor
) -> tuple[Tensor, dict[Tensor, Tensor]]:
    r"""What the critic minimises, Eq. (4) turned round, and its derivatives in the critic's parameters.

    .. math:: \mathrm{E}[D(\tilde x)] - \mathrm{E}[D(x)]
        + \lambda_0 \mathrm{E}[(\lVert \nabla_{\hat x} D \rVert_2 - 1)^2], \quad
        \hat x = \alpha x + (1 - \alpha) \tilde x.

    With one hidden layer, :math:`D = w^\top \varphi(h) + c`, :math:`h = W_x x + W_a a + b`, all has a closed form.
    :math:`h` is affine in x, so that of :math:`\hat x` lies between the two others. :math:`\varphi'` is constant almost
    everywhere, so that the slope :math:`W_x^\top (w \odot \varphi'(\hat h))` depends on the parameters through
    :math:`W_x` and :math:`w` alone. And since :math:`\varphi` is homogeneous, the derivative in :math:`w` is the sum of
    the first layer's parameters times theirs, over :math:`w`. The last bias c cancels out and has no derivative.

    Parameters
    ----------
    critic : Critic
    x, fake : (n, d_x)
        Real rows, and generated rows of the same classes.
    a, alpha : (n, d_a), (n, 1)
        Their clean class vectors; α.
    gp_weight : float, or one number on the device
        λ0.

    Returns
    -------
    loss : one number
    slopes : mapping of parameter to tensor

    Examples
    --------
    >>> critic = initialise(Critic(2, 1, 4), random_stream(0, "example"))
    >>> x, a = torch.ones(3, 2), torch.ones(3, 1)
    >>> critic_slopes(critic, x, x, a, torch.rand(3, 1), gp_weight=0.0)[0]  # equal rows cannot be told apart
    tensor(0.)
    """
    (of_x, of_a), bias, last = critic.first.blocks, critic.first.bias, critic.last.blocks[0]
    base = nn.functional.linear(a, of_a, bias)
    real, generated = (part + base for part in (torch.cat([x, fake]) @ of_x.T).chunk(2))

    def bend(hidden: Tensor) -> Tensor:
        return torch.full_like(hidden, SLOPE).masked_fill_(hidden > 0, 1.0)

    at_real, at_generated, between = bend(real), bend(generated), bend(alpha * real + (1 - alpha) * generated)
    slope = between * last @ of_x
    norm = torch.linalg.vector_norm(slope, dim=1, keepdim=True)
    # Paper: Eq. (4) has gradient, norm and square in another order; this is WGAN-GP's penalty, and the released code's.
    loss = ((at_generated * generated - at_real * real) @ last.T + gp_weight * (norm - 1).square()).mean()
    pull = 2 * gp_weight * (norm - 1) / norm.clamp(min=1e-30) * slope
    # Each of these times the hidden unit's weight w is a derivative.
    by_x = torch.cat([-at_real, at_generated, between]).T @ torch.cat([x, fake, pull]) / len(x)
    apart = at_generated - at_real
    by_a, by_bias = apart.T @ a / len(x), apart.mean(0)
    by_last = (of_x * by_x).sum(1) + (of_a * by_a).sum(1) + bias * by_bias
    unit = last.T
    return loss, {of_x: unit * by_x, of_a: unit * by_a, bias: unit[:, 0] * by_bias, last: by_last[None]}
