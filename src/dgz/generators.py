"""CLASS LEVEL: where the features of a class lie, given its vector.

In come training rows, their classes and the class vectors; out comes a trained generator, which places any class, seen
or not: ``centers`` gives the middle of each class, ``sample`` rows around it. The instance level decides which of the
two is used.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Literal, Self, cast

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from dgz.errors import DGZError, require_at_least, require_choice, require_count
from dgz.nets import MLP, Critic, initialise
from dgz.training import Checkpoints, Row, Trainee, adam, random_stream, train, update

NoiseUnit = Literal["absolute", "relative"]
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
    hidden: Sequence[int] | None
    relu_out: bool
    learning_rate: float

    can_sample: bool = True  # whether it gives rows of a class, or its centre alone
    prior: bool = False  # whether the network takes a random vector beside the class vector
    d_prior: int | None = None  # its width; that of the class vectors by default

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        attributes: Tensor,
        *,
        seed: int = 0,
        after_epoch: Callable[[int], Row] | None = None,
        checkpoints: Checkpoints | None = None,
        verbose: bool = False,
    ) -> Self:
        """Learn from rows x (n, d_x) of classes y (n,), which are rows of ``attributes`` (C, d_a).

        Everything runs on the device of ``x``. ``seed``, ``after_epoch``, ``checkpoints`` and ``verbose`` are those of
        :func:`~dgz.training.train`; a generator can already be used inside ``after_epoch``.
        """
        self.check()
        seen = attributes[torch.unique(y)]
        spread = float(seen.std(correction=0)) if self.noise_unit == "relative" else 1.0
        self.noise_ = self.attribute_noise * spread
        self.build(attributes.shape[1], x.shape[1], random_stream(seed, "generator's start")).net_.to(x.device)
        trainee = self._trainee(x, y, attributes, seed)
        self.history_ = train(
            "generator", trainee, self.n_epochs, after_epoch=after_epoch, checkpoints=checkpoints, verbose=verbose
        )
        return self

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained network for class vectors of width ``d_a`` and features of width ``d_x``."""
        inputs = [self.d_prior or d_a, d_a] if self.prior else [d_a]
        self.net_ = initialise(MLP(inputs, [*self.widths(d_x), d_x], relu_out=self.relu_out), rng)
        return self

    def widths(self, d_x: int) -> Sequence[int]:
        """Widths of the hidden layers for features of width ``d_x``."""
        return (max(2 * d_x, 512), max(d_x, 256)) if self.hidden is None else self.hidden

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
    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> Trainee:
        """What the training loop trains: ``net_``, and whatever else it needs for that."""

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        require_choice(self.noise_unit, NoiseUnit, "noise_unit")
        require_at_least(0, attribute_noise=self.attribute_noise, l2=self.l2, fgm=self.fgm)
        require_at_least(1e-12, learning_rate=self.learning_rate)
        require_count(n_epochs=self.n_epochs, d_prior=1 if self.d_prior is None else self.d_prior)
        hidden = (1,) if self.hidden is None else self.hidden
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
    hidden : sequence of int, optional
        Widths of the hidden layers; by default (4096, 2048) for 2048 features, as in the paper, and in proportion for
        others, but at least (512, 256).
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
        hidden: Sequence[int] | None = None,
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

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> Trainee:
        return _CenterTraining(self, x, y, attributes, seed)


class _CenterTraining(Trainee):
    def __init__(self, generator: CenterMapper, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> None:
        self.generator, self.n_steps = generator, generator.steps_per_epoch
        self.networks = {"generator": generator.net_}
        self.optimizers = {"generator": adam(generator.net_, generator.learning_rate)}
        self.rng = random_stream(seed, "generator", x.device)
        classes, at, counts = torch.unique(y, return_inverse=True, return_counts=True)
        sums = torch.zeros(len(classes), x.shape[1], dtype=torch.double, device=x.device)
        self.means = (sums.index_add_(0, at, x.double()) / counts[:, None]).to(x.dtype)
        self.share = (counts / counts.sum()).to(x.dtype)
        self.attributes = attributes[classes]

    def step(self) -> dict[str, Tensor]:
        def loss(attributes: Tensor) -> Tensor:
            # Paper: Eq. (A.1) prints the norm, the text says mean squared error. Only the squared norm makes the mean
            # the best centre.
            distances: Tensor = (self.generator.net_(attributes) - self.means).square().sum(1)
            return torch.dot(distances, self.share)

        value = self.generator._suppressed(loss, self.generator._blur(self.attributes, self.rng))
        update(self.optimizers["generator"], value)
        return {"loss": value}


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

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = WGANGP(n_epochs=2, hidden=(16, 8), critic_hidden=16).fit(x, y, attributes)
    >>> gan.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 2])
    """

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
        hidden: Sequence[int] | None = None,
        relu_out: bool = True,
        critic_hidden: int | None = None,
        learning_rate: float = 1e-4,
        batch_size: int = 512,
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

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_at_least(0, gp_weight=self.gp_weight)
        require_count(n_critic=self.n_critic, batch_size=self.batch_size)
        require_count(critic_hidden=1 if self.critic_hidden is None else self.critic_hidden)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> Trainee:
        return _WGANTraining(self, x, y, attributes, seed)


class _BatchTraining(Trainee):
    """Training on random batches of rows with their clean class vectors."""

    def __init__(self, generator: "WGANGP | CVAE", x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> None:
        self.generator, self.x, self.y, self.attributes = generator, x, y, attributes
        self.rng = random_stream(seed, "generator", x.device)
        self.n_steps = math.ceil(len(x) / generator.batch_size)

    def draw(self) -> tuple[Tensor, Tensor]:
        # Rows are drawn with replacement: one kernel on a GPU, and no worse than the released code's fresh permutation
        # for each batch, which repeats rows between batches all the same.
        size = (min(self.generator.batch_size, len(self.x)),)
        rows = torch.randint(len(self.x), size, generator=self.rng, device=self.x.device)
        return self.x[rows], self.attributes[self.y[rows]]


class _WGANTraining(_BatchTraining):
    def __init__(self, generator: WGANGP, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> None:
        super().__init__(generator, x, y, attributes, seed)
        self.generator: WGANGP = generator
        d_hidden = generator.critic_hidden or generator.widths(x.shape[1])[0]
        critic = Critic(x.shape[1], attributes.shape[1], d_hidden)
        self.critic = initialise(critic, random_stream(seed, "critic's start")).to(x.device)
        self.networks = {"generator": generator.net_, "critic": self.critic}
        self.optimizers = {name: adam(net, generator.learning_rate) for name, net in self.networks.items()}

    def step(self) -> dict[str, Tensor]:
        gan = self.generator
        for _ in range(gan.n_critic):
            x, a = self.draw()
            noise = [gan._draw_prior(a, self.rng)] if gan.prior else []
            noisy_a = gan._blur(a, self.rng)
            with torch.no_grad():
                fake = gan.net_(*noise, noisy_a)
            alpha = torch.rand(len(x), 1, generator=self.rng, device=x.device)
            critic_loss = wasserstein_loss(self.critic, x, fake, a, alpha, gan.gp_weight)
            update(self.optimizers["critic"], critic_loss)

        def loss(vectors: Tensor) -> Tensor:
            scores: Tensor = self.critic(gan.net_(*noise, vectors), a)
            return -scores.mean()

        # Authors' code: the last critic step's batch, noise and noisy class vectors serve the generator's step too.
        generator_loss = gan._suppressed(loss, noisy_a)
        update(self.optimizers["generator"], generator_loss)
        return {"critic loss": critic_loss, "generator loss": generator_loss}


def wasserstein_loss(critic: Critic, x: Tensor, fake: Tensor, a: Tensor, alpha: Tensor, gp_weight: float) -> Tensor:
    r"""What the critic minimises: Eq. (4) turned round.

    .. math:: \mathrm{E}[D(\tilde x)] - \mathrm{E}[D(x)]
        + \lambda_0 \mathrm{E}[(\lVert \nabla_{\hat x} D \rVert_2 - 1)^2], \quad
        \hat x = \alpha x + (1 - \alpha) \tilde x.

    Takes real rows x (n, d_x), generated rows of the same classes, their vectors a (n, d_a) and α (n, 1).

    Examples
    --------
    >>> critic = initialise(Critic(2, 1, 4), random_stream(0, "example"))
    >>> x, a = torch.ones(3, 2), torch.ones(3, 1)
    >>> wasserstein_loss(critic, x, x, a, torch.rand(3, 1), gp_weight=0.0)  # equal rows cannot be told apart
    tensor(0., grad_fn=<AddBackward0>)
    """
    of_real, of_fake = critic.hidden(x, a), critic.hidden(fake, a)
    # The pre-activation is affine in x, so that of x̂ lies between the two just as x̂ does.
    slope = critic.slope((alpha * of_real + (1 - alpha) * of_fake).detach())
    # Paper: Eq. (4) has gradient, norm and square in another order; this is WGAN-GP's penalty, and the released code's.
    penalty: Tensor = (torch.linalg.vector_norm(slope, dim=1) - 1).square().mean()
    return critic.score(of_fake).mean() - critic.score(of_real).mean() + gp_weight * penalty


class CVAE(ClassGenerator):
    r"""A conditional variational autoencoder whose decoder is the generator (Table A.2).

    Encoder [x, a] → hidden → (μ, log σ²), decoder [z, a] → hidden → d_x; minimises
    :math:`\lVert x - \hat x \rVert^2 + \beta\, \mathrm{KL}(N(\mu, \sigma^2) \Vert N(0, I))`. The decoder sees noisy
    class vectors, the encoder and synthesis clean ones.

    Parameters
    ----------
    n_epochs : int
        Passes over the training rows.
    attribute_noise, noise_unit, l2, fgm, hidden, relu_out, learning_rate
        See :class:`CenterMapper`.
    d_prior : int, optional
        Width of z; that of the class vectors by default.
    kl_weight : float
        β.
    batch_size : int
        Rows per step.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> vae = CVAE(n_epochs=2, hidden=(16, 8)).fit(x, y, attributes)
    >>> vae.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 2])
    """

    prior = True

    def __init__(
        self,
        *,
        n_epochs: int = 300,
        attribute_noise: float = 0.08,
        noise_unit: NoiseUnit = "absolute",
        l2: float = 0.0,
        fgm: float = 0.0,
        d_prior: int | None = None,
        kl_weight: float = 1.0,
        hidden: Sequence[int] | None = None,
        relu_out: bool = True,
        learning_rate: float = 1e-4,
        batch_size: int = 512,
    ) -> None:
        self.n_epochs = n_epochs
        self.attribute_noise = attribute_noise
        self.noise_unit = noise_unit
        self.l2 = l2
        self.fgm = fgm
        self.d_prior = d_prior
        self.kl_weight = kl_weight
        self.hidden = hidden
        self.relu_out = relu_out
        self.learning_rate = learning_rate
        self.batch_size = batch_size

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_at_least(0, kl_weight=self.kl_weight)
        require_count(batch_size=self.batch_size)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> Trainee:
        return _VAETraining(self, x, y, attributes, seed)


class _VAETraining(_BatchTraining):
    def __init__(self, generator: CVAE, x: Tensor, y: Tensor, attributes: Tensor, seed: int) -> None:
        super().__init__(generator, x, y, attributes, seed)
        self.generator: CVAE = generator
        d_a = attributes.shape[1]
        encoder = MLP([x.shape[1], d_a], [*generator.widths(x.shape[1]), 2 * (generator.d_prior or d_a)])
        self.encoder = initialise(encoder, random_stream(seed, "encoder's start")).to(x.device)
        self.networks = {"generator": generator.net_, "encoder": self.encoder}
        self.both = adam(nn.ModuleDict(self.networks), generator.learning_rate)
        self.optimizers = {"both": self.both}

    def step(self) -> dict[str, Tensor]:
        vae = self.generator
        x, a = self.draw()
        mean, log_var = self.encoder(x, a).chunk(2, dim=1)
        z = mean + (log_var / 2).exp() * vae._draw_prior(a, self.rng)
        kl = (mean.square() + log_var.exp() - log_var - 1).sum(1).mean() / 2

        def loss(vectors: Tensor) -> Tensor:
            distances: Tensor = (vae.net_(z, vectors) - x).square().sum(1)
            return distances.mean()

        value = vae._suppressed(loss, vae._blur(a, self.rng)) + vae.kl_weight * kl
        update(self.both, value)
        return {"loss": value, "kl loss": kl}


GENERATORS: dict[str, type[ClassGenerator]] = {kind.__name__: kind for kind in (WGANGP, CVAE, CenterMapper)}
