"""CADA-VAE's generator: two variational autoencoders, of rows and of class vectors, that share one latent space.

Rows of the classifier live in that space: ``embed`` takes real ones there by the rows' encoder, and ``sample`` gives
latent vectors of a class by the class vectors' encoder.
"""

from collections.abc import Sequence
from typing import Literal, Self, cast

import torch
from torch import Tensor, nn

from dgz.errors import DGZError, require_at_least, require_choice, require_count
from dgz.generators.base import BLOCK, BatchTraining, ClassGenerator, NoiseUnit
from dgz.losses import kl_divergence
from dgz.nets import MLP, BlockLinear, initialise
from dgz.training import Precision, Trainee, adam, descend, random_stream

Sampling = Literal["code", "paper"]
Gaussian = tuple[Tensor, Tensor]  # means and logarithms of variances, (n, d) each
_GAIN = 0.5  # of the Xavier start
# Between which shares of all epochs the weight of a loss rises from 0 to its full value: of 100 epochs, those numbers.
_WARM_UPS = {"kl": (0.0, 0.93), "cross": (0.21, 0.75), "alignment": (0.06, 0.22)}


class AlignedVAEs(ClassGenerator):
    r"""The cross- and distribution-aligned variational autoencoders of CADA-VAE (Schönfeld et al., CVPR 2019).

    One autoencoder is of feature rows x, one of class vectors a. Besides rebuilding its own input, the latent vector of
    either must rebuild the other's (cross reconstruction), and the two Gaussians that a row and its class vector become
    must be near each other (distribution alignment). Minimises, with all distances between inputs in the L1 norm,

    .. math:: \lVert x - \hat x_x \rVert + \lVert a - \hat a_a \rVert + \beta\, \mathrm{KL}
        + \gamma\, (\lVert x - \hat x_a \rVert + \lVert a - \hat a_x \rVert) + \delta\, W_2.

    A class is then placed by the encoder of its vector, in the space that the encoder of rows takes real ones to.

    Parameters
    ----------
    n_epochs : int
        Passes over the training rows. The weights of all losses but the first two rise from 0 in the course of them.
    attribute_noise, noise_unit, learning_rate
        See :class:`CenterMapper`. The encoder of class vectors sees noisy ones; what is rebuilt are clean ones.
    d_latent : int
        Width of the latent space.
    hidden : sequence of two int, optional
        Widths of the hidden layers of the rows' encoder and decoder; by default (1560, 1660) for 2048 features, as
        published, and in proportion for others, but at least 256 each.
    hidden_vectors : sequence of two int, optional
        The same of the class vectors' encoder and decoder: (1450, 665), in proportion to the features, too.
    kl_weight, cross_weight, alignment_weight : float
        β, γ and δ at the end of their rise.
    sampling : {"code", "paper"}
        How a latent vector is drawn from its Gaussian: ``code`` as the released code does, from which the published
        results are, or ``paper`` as the text has it, μ + σ ⊙ ε.
    n_per_seen : int
        Latent vectors of each seen class, drawn from its training rows, that a classifier learns from.
    batch_size : int
        Rows per step.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> vaes = AlignedVAEs(n_epochs=2, d_latent=3, hidden=(16, 16), hidden_vectors=(8, 8)).fit(x, y, attributes)
    >>> vaes.sample(attributes, random_stream(0, "example")).shape, vaes.embed(x).shape
    (torch.Size([2, 3]), torch.Size([18, 3]))
    """

    net_: "_GaussianEncoder"  # type: ignore[assignment]
    hidden: Sequence[int] | None
    embeds = True
    l2 = fgm = 0.0
    relu_out = False

    def __init__(
        self,
        *,
        n_epochs: int = 100,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        d_latent: int = 64,
        hidden: Sequence[int] | None = None,
        hidden_vectors: Sequence[int] | None = None,
        kl_weight: float = 0.25,
        cross_weight: float = 2.37,
        alignment_weight: float = 8.13,
        sampling: Sampling = "code",
        n_per_seen: int = 200,
        learning_rate: float = 1.5e-4,
        batch_size: int = 50,
    ) -> None:
        self.n_epochs = n_epochs
        self.attribute_noise = attribute_noise
        self.noise_unit = noise_unit
        self.d_latent = d_latent
        self.hidden = hidden
        self.hidden_vectors = hidden_vectors
        self.kl_weight = kl_weight
        self.cross_weight = cross_weight
        self.alignment_weight = alignment_weight
        self.sampling = sampling
        self.n_per_seen = n_per_seen
        self.learning_rate = learning_rate
        self.batch_size = batch_size

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        for name in ("hidden", "hidden_vectors"):
            widths = getattr(self, name)
            if widths is None:
                continue
            if isinstance(widths, str) or not isinstance(widths, Sequence) or len(widths) != 2:
                raise DGZError(f"{name} must be two widths, of an encoder and of a decoder, found {widths!r}.")
            for width in widths:
                require_count(**{name: width})
        super().check()
        require_choice(self.sampling, Sampling, "sampling")
        require_at_least(0, kl_weight=self.kl_weight, cross_weight=self.cross_weight)
        require_at_least(0, alignment_weight=self.alignment_weight)
        require_count(d_latent=self.d_latent, n_per_seen=self.n_per_seen, batch_size=self.batch_size)

    def widths(self, d_x: int) -> Sequence[int]:
        """Widths of the hidden layers of the rows' encoder and decoder, for features of width ``d_x``."""
        return self.hidden or _in_proportion((1560, 1660), d_x)

    def vector_widths(self, d_x: int) -> Sequence[int]:
        """Widths of the hidden layers of the class vectors' encoder and decoder, for features of width ``d_x``."""
        return self.hidden_vectors or _in_proportion((1450, 665), d_x)

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained encoders for class vectors of width ``d_a`` and features of width ``d_x``."""
        net = _GaussianEncoder(d_a, self.vector_widths(d_x)[0], self.d_latent)
        self.net_ = initialise(net, rng, "xavier", _GAIN)
        embedding = _GaussianEncoder(d_x, self.widths(d_x)[0], self.d_latent)
        self.embedding_ = initialise(embedding, rng, "xavier", _GAIN)
        return self

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name: the two encoders."""
        return {"generator": self.net_, "embedding": self.embedding_}

    def embedded_width(self, d_x: int) -> int:
        """Width of the latent space."""
        return self.d_latent

    def embed_block(self, x: Tensor) -> Tensor:
        """The latent means μ (n, d_latent) of feature rows x (n, d_x)."""
        return cast(Tensor, self.embedding_(x)[0])

    @torch.no_grad()
    def centers(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """The latent means μ (C, d_latent) of the class vectors ``attributes`` (C, d_a)."""
        return cast(Tensor, self.net_(attributes)[0])

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """One latent vector (n, d_latent) for each of the class vectors ``attributes`` (n, d_a)."""
        return self._draw(self.net_(attributes), rng)

    @torch.no_grad()
    def training_rows(self, x: Tensor, y: Tensor, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Latent vectors drawn from the rows of each class, ``n_per_seen`` of them, and their classes.

        Every row of a class serves before any serves twice.
        """
        # Authors' code: a class's rows in the order of the file, the first of them where there are enough. In random
        # order, nothing depends on the file.
        chosen = []
        for label in torch.unique(y):
            rows = torch.nonzero(y == label).squeeze(1)
            rows = rows[torch.rand(len(rows), generator=rng, device=x.device).argsort()]
            chosen.append(rows[torch.arange(self.n_per_seen, device=x.device) % len(rows)])
        picked = torch.cat(chosen)
        latent = [self._draw(self.embedding_(x[rows]), rng) for rows in torch.split(picked, BLOCK)]
        return torch.cat(latent), y[picked]

    def n_training_rows(self, n_rows: int, n_classes: int) -> int:
        """How many rows ``training_rows`` makes of real ones of ``n_classes`` classes, however many these are."""
        return self.n_per_seen * n_classes

    def _draw(self, gaussian: Gaussian, rng: torch.Generator) -> Tensor:
        """A latent vector (n, d_latent) from each Gaussian."""
        mean, log_var = gaussian
        if self.sampling == "paper":
            noise = torch.randn(mean.shape, generator=rng, device=mean.device)
            return mean + (log_var / 2).exp() * noise
        # Authors' code: the variance stands where the standard deviation should, and all latent dimensions of a row
        # share one random number.
        return mean + log_var.exp() * torch.randn(len(mean), 1, generator=rng, device=mean.device)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _AlignedTraining(self, x, y, attributes, seed, precision)


def _in_proportion(published: tuple[int, int], d_x: int) -> tuple[int, ...]:
    """Widths published for 2048 features, for features of width ``d_x``."""
    return tuple(max(round(width * d_x / 2048), 256) for width in published)


class _GaussianEncoder(nn.Module):
    """Inputs to the Gaussians of their latent vectors, by one hidden layer."""

    def __init__(self, d_in: int, d_hidden: int, d_latent: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_in], d_hidden)
        self.mean, self.log_var = BlockLinear([d_hidden], d_latent), BlockLinear([d_hidden], d_latent)

    def forward(self, values: Tensor) -> Gaussian:
        """Inputs (n, d_in) to means and logarithms of variances, (n, d_latent) each."""
        hidden = self.first(values).relu()
        return self.mean(hidden).float(), self.log_var(hidden).float()


class _AlignedTraining(BatchTraining):
    def __init__(
        self, generator: AlignedVAEs, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        self.generator: AlignedVAEs = generator
        d_x, start = x.shape[1], random_stream(seed, "decoders' start")

        def decoder(d_hidden: int, d_out: int) -> MLP:
            net = MLP([generator.d_latent], [d_hidden, d_out], slope=0.0)
            return initialise(net, start, "xavier", _GAIN).to(x.device)

        self.decoder = decoder(generator.widths(d_x)[1], d_x)
        self.vector_decoder = decoder(generator.vector_widths(d_x)[1], attributes.shape[1])
        own = {name: net.to(x.device) for name, net in generator.networks().items()}
        self.networks = {**own, "decoder": self.decoder, "vector decoder": self.vector_decoder}
        everything = [values for net in self.networks.values() for values in net.parameters()]
        self.all = adam(everything, generator.learning_rate, betas=(0.9, 0.999), amsgrad=True)
        self.optimizers = {"all": self.all}
        self.weights = {name: torch.zeros((), device=x.device) for name in _WARM_UPS}

    def begin_epoch(self, epoch: int) -> None:
        for name, (start, end) in _WARM_UPS.items():
            share = ((epoch - 1) / self.generator.n_epochs - start) / (end - start)
            self.weights[name].fill_(min(max(share, 0.0), 1.0) * getattr(self.generator, f"{name}_weight"))

    def step(self) -> dict[str, Tensor]:
        vaes, weights = self.generator, self.weights
        x, y = self.draw()
        a = self.attributes[y]
        of_x, of_a = vaes.embedding_(x), vaes.net_(vaes._blur(a, self.rng))
        latent = torch.cat([vaes._draw(of_x, self.rng), vaes._draw(of_a, self.rng)])
        x_from_x, x_from_a = self.decoder(latent).chunk(2)
        a_from_x, a_from_a = self.vector_decoder(latent).chunk(2)
        own = (x_from_x - x).abs().sum() + (a_from_a - a).abs().sum()
        cross = (x_from_a - x).abs().sum() + (a_from_x - a).abs().sum()
        kl = (kl_divergence(*of_x) + kl_divergence(*of_a)).sum()
        apart = wasserstein_distance(of_x, of_a).sum()
        loss = own + weights["kl"] * kl + weights["cross"] * cross + weights["alignment"] * apart
        # Authors' code: sums over the batch, not means; to Adam it makes no difference.
        descend(self.all, loss)
        found = {"loss": loss, "cross loss": cross, "alignment loss": apart, "kl loss": kl}
        return {name: value / len(x) for name, value in found.items()}


def wasserstein_distance(one: Gaussian, other: Gaussian) -> Tensor:
    r"""2-Wasserstein distance (n,) between Gaussians with independent dimensions, pair by pair.

    .. math:: \sqrt{\lVert \mu - \mu' \rVert^2 + \lVert \sigma - \sigma' \rVert^2}

    Each is given by its means and the logarithms of its variances, (n, d) each.

    Examples
    --------
    >>> origin = torch.zeros(1, 2), torch.zeros(1, 2)
    >>> wasserstein_distance(origin, (torch.tensor([[3.0, 4.0]]), torch.zeros(1, 2)))
    tensor([5.])
    """
    means = (one[0] - other[0]).square().sum(1)
    deviations = ((one[1] / 2).exp() - (other[1] / 2).exp()).square().sum(1)
    # A square root has no slope at 0, where a row and its class vector are that are both nothing but zeros.
    return (means + deviations).clamp(min=1e-12).sqrt()
