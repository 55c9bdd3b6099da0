"""A conditional variational autoencoder, whose decoder generates."""

from collections.abc import Sequence

from torch import Tensor, nn

from dgz.errors import require_at_least, require_count
from dgz.generators.base import BatchTraining, ClassGenerator, NoiseUnit
from dgz.losses import kl_divergence
from dgz.nets import MLP, initialise
from dgz.training import Precision, Trainee, adam, descend, random_stream


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
    >>> import torch
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


class _VAETraining(BatchTraining):
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
        kl = kl_divergence(mean, log_var).mean()

        def loss(vectors: Tensor) -> Tensor:
            distances: Tensor = (vae.net_(z, vectors) - x).square().sum(1)
            return distances.mean()

        value = vae._suppressed(loss, vae._blur(a, self.rng)) + vae.kl_weight * kl
        descend(self.both, value)
        return {"loss": value, "kl loss": kl}
