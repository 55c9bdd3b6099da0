"""CLASS LEVEL: where the features of a class lie, given its vector.

In come training rows, their classes and the class vectors; out comes a trained generator, which places any class, seen
or not: ``centers`` gives the middle of each class, ``sample`` rows around it. The instance level decides which of the
two is used.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import TYPE_CHECKING, Any, Literal, Self, cast

import torch
from sklearn.base import BaseEstimator
from torch import Tensor, nn

from dgz.errors import DGZError, require_at_least, require_choice, require_count
from dgz.nets import MLP, SLOPE, BlockLinear, Critic, initialise
from dgz.training import (
    OPERANDS,
    Checkpoints,
    Precision,
    Row,
    Trainee,
    adam,
    descend,
    has_kernels,
    in_range,
    parameters_of,
    random_stream,
    train,
    update,
)

if TYPE_CHECKING:
    from dgz.kernels import CriticStep

NoiseUnit = Literal["absolute", "relative"]
_JUDGE_EPOCHS, _JUDGE_RATE, _JUDGE_BATCH = 50, 1e-3, 100  # f-CLSWGAN's classifier of real rows
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
        self.net_ = initialise(MLP(inputs, [*self.widths(d_x), d_x], relu_out=self.relu_out), rng)
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

    def embed(self, x: Tensor) -> Tensor:
        """Feature rows (n, d_x) in the space of generated ones, which is their own unless ``embeds`` says otherwise."""
        return x

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
        return _WGANTraining(self, x, y, attributes, seed, precision)


class _BatchTraining(Trainee):
    """Training on random batches of rows with their clean class vectors."""

    def __init__(
        self, generator: "WGANGP | CVAE", x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
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


class _WGANTraining(_BatchTraining):
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
        self.judge = _Judge(x, y, seed, precision) if generator.class_weight else None

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
            gp_weight=self.generator.gp_weight,
            slope=SLOPE,
            dtype=OPERANDS[self.precision],
        )

    def step(self) -> dict[str, Tensor]:
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
        """Rows for the fused critic are made in the type that it multiplies; there is no gradient to underflow."""
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

    def __init__(self, x: Tensor, y: Tensor, seed: int, precision: Precision) -> None:
        self.x, self.y, self.precision = x, y, precision
        self.rng = random_stream(seed, "judge", x.device)
        classes = torch.unique(y)
        self.place = torch.zeros(int(classes[-1]) + 1, dtype=torch.long, device=x.device)  # of each class among them
        self.place[classes] = torch.arange(len(classes), device=x.device)
        net = BlockLinear([x.shape[1]], len(classes))
        self.net = initialise(net, random_stream(seed, "judge's start")).to(x.device)
        self.networks = {"judge": self.net}
        self.optimizers = {"judge": adam(self.net.parameters(), _JUDGE_RATE)}
        self.n_steps = math.ceil(len(x) / _JUDGE_BATCH)
        train("judge", self, _JUDGE_EPOCHS)
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
    critic: Critic, x: Tensor, fake: Tensor, a: Tensor, alpha: Tensor, gp_weight: float
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
    gp_weight : float
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
        hidden: Sequence[int] | int | None = None,
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

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _VAETraining(self, x, y, attributes, seed, precision)


class _VAETraining(_BatchTraining):
    def __init__(
        self, generator: CVAE, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        self.generator: CVAE = generator
        d_a = attributes.shape[1]
        encoder = MLP([x.shape[1], d_a], [*generator.widths(x.shape[1]), 2 * (generator.d_prior or d_a)])
        self.encoder = initialise(encoder, random_stream(seed, "encoder's start")).to(x.device)
        self.networks = {"generator": generator.net_, "encoder": self.encoder}
        self.both = adam(nn.ModuleDict(self.networks).parameters(), generator.learning_rate)
        self.optimizers = {"both": self.both}

    def step(self) -> dict[str, Tensor]:
        vae = self.generator
        x, y = self.draw()
        a = self.attributes[y]
        mean, log_var = self.encoder(x, a).chunk(2, dim=1)
        z = mean + (log_var / 2).exp() * vae._draw_prior(a, self.rng)
        kl = (mean.square() + log_var.exp() - log_var - 1).sum(1).mean() / 2

        def loss(vectors: Tensor) -> Tensor:
            distances: Tensor = (vae.net_(z, vectors) - x).square().sum(1)
            return distances.mean()

        value = vae._suppressed(loss, vae._blur(a, self.rng)) + vae.kl_weight * kl
        descend(self.both, value)
        return {"loss": value, "kl loss": kl}


GENERATORS: dict[str, type[ClassGenerator]] = {kind.__name__: kind for kind in (WGANGP, CVAE, CenterMapper)}
