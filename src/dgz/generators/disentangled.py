"""SDGZSL's generator: a conditional variational autoencoder, and an autoencoder that parts what classes are told by.

Rows of the classifier live in the space of that part, s: ``embed`` takes real rows there, and ``sample`` gives
generated ones in it.
"""

import math
from itertools import chain
from typing import Any, Self, cast

import torch
from torch import Tensor, nn
from torch.nn.functional import batch_norm, leaky_relu, linear, softplus

from dgz.errors import DGZError, require_at_least, require_count
from dgz.generators.base import BatchTraining, ClassGenerator, NoiseUnit
from dgz.nets import MLP, SLOPE, BlockLinear, drop, initialise, pair_scores
from dgz.training import Precision, Trainee, adam, descend, has_kernels, random_stream

_EPSILON, _MOMENTUM = 0.8, 0.1  # of the decoder's batch normalisation
_VARIANCE_DROPOUT = 0.2
_BLOCK = 16384  # rows decoded at a time


class DisentanglingVAE(ClassGenerator):
    r"""The generator and the embedding of SDGZSL (Chen et al., ICCV 2021).

    A conditional variational autoencoder rebuilds rows from a latent vector and the class vector. An autoencoder parts
    real and rebuilt rows into s, which is to be consistent with the class vector, and the rest n: a relation network
    must tell from s which class vector of the batch is the row's own, and s and n are kept independent by a penalty on
    their total correlation, which a discriminator between pairs (s, n) of a row and pairs of different rows estimates.
    Minimises

    .. math:: \lVert x - \hat x \rVert^2 + \beta_t\, \mathrm{KL} + \lambda\, (R(x) + R(\hat x))
        + \mathrm{MSE}(A(x), x) + \mathrm{MSE}(A(\hat x), x) + \gamma_t\, (T(x) + T(\hat x))

    in the networks but the discriminator, with R the relation loss, A the autoencoder and T the penalty.

    Parameters
    ----------
    n_epochs : int
        Passes over the training rows.
    attribute_noise, noise_unit, learning_rate
        See :class:`CenterMapper`. The decoder sees noisy class vectors, the encoder and the relation network clean
        ones.
    d_prior : int
        Width of the latent vector.
    d_code : int
        Width of the layer that its mean and variance are made of.
    d_hidden : int, optional
        Width of all hidden layers: by default that of the features, but at least 256; 2048 as published.
    d_semantic : int, optional
        Width of s: by default that of the features, but at most 1024.
    d_rest : int, optional
        Width of n; that of s by default.
    relation_weight : float
        λ.
    kl_warm_up : float
        How much β_t rises from epoch to epoch, from 0 up to 1.
    correlation_weight, correlation_warm_up : float
        γ_t is ``correlation_weight`` times what rises by ``correlation_warm_up`` from epoch to epoch, from 0 up to 1.
    discriminator_weight : float
        Of the discriminator's loss, to which Adam is all but indifferent.
    n_penalised : int
        Steps with the penalty after each step without it, in which the discriminator learns.
    encoder_dropout, decoder_dropout, autoencoder_dropout : float
        Shares of hidden values that become zero in training.
    weight_decay : float
        Adam's.
    batch_size : int
        Rows per step.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> vae = DisentanglingVAE(n_epochs=2, d_hidden=16, d_semantic=3).fit(x, y, attributes)
    >>> vae.sample(attributes, random_stream(0, "example")).shape, vae.embed(x).shape
    (torch.Size([2, 3]), torch.Size([18, 3]))
    """

    net_: "_Decoder"  # type: ignore[assignment]
    embeds = True
    prior = True
    hidden = None
    l2 = fgm = 0.0
    relu_out = False

    def __init__(
        self,
        *,
        n_epochs: int = 400,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        d_prior: int = 20,
        d_code: int = 128,
        d_hidden: int | None = None,
        d_semantic: int | None = None,
        d_rest: int | None = None,
        relation_weight: float = 3.0,
        kl_warm_up: float = 0.01,
        correlation_weight: float = 0.3,
        correlation_warm_up: float = 0.001,
        discriminator_weight: float = 0.3,
        n_penalised: int = 2,
        encoder_dropout: float = 0.4,
        decoder_dropout: float = 0.5,
        autoencoder_dropout: float = 0.2,
        learning_rate: float = 1e-4,
        weight_decay: float = 1e-6,
        batch_size: int = 64,
    ) -> None:
        self.n_epochs = n_epochs
        self.attribute_noise = attribute_noise
        self.noise_unit = noise_unit
        self.d_prior: int = d_prior
        self.d_code = d_code
        self.d_hidden = d_hidden
        self.d_semantic = d_semantic
        self.d_rest = d_rest
        self.relation_weight = relation_weight
        self.kl_warm_up = kl_warm_up
        self.correlation_weight = correlation_weight
        self.correlation_warm_up = correlation_warm_up
        self.discriminator_weight = discriminator_weight
        self.n_penalised = n_penalised
        self.encoder_dropout = encoder_dropout
        self.decoder_dropout = decoder_dropout
        self.autoencoder_dropout = autoencoder_dropout
        self.learning_rate = learning_rate
        self.weight_decay = weight_decay
        self.batch_size = batch_size

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        for name in ("relation_weight", "correlation_weight", "discriminator_weight", "weight_decay"):
            require_at_least(0, **{name: getattr(self, name)})
        require_at_least(0, kl_warm_up=self.kl_warm_up, correlation_warm_up=self.correlation_warm_up)
        for name in ("encoder_dropout", "decoder_dropout", "autoencoder_dropout"):
            share = getattr(self, name)
            require_at_least(0, **{name: share})
            if share >= 1:
                raise DGZError(f"{name} must be a number below 1, found {share!r}.")
        require_count(d_prior=self.d_prior, d_code=self.d_code, n_penalised=self.n_penalised)
        require_count(batch_size=self.batch_size)
        for name in ("d_hidden", "d_semantic", "d_rest"):
            require_count(**{name: 1 if getattr(self, name) is None else getattr(self, name)})

    def hidden_width(self, d_x: int) -> int:
        """Width of all hidden layers for features of width ``d_x``."""
        return self.d_hidden or max(d_x, 256)

    def embedded_width(self, d_x: int) -> int:
        """Width of s for features of width ``d_x``."""
        return self.d_semantic or min(d_x, 1024)

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained networks for class vectors of width ``d_a`` and features of width ``d_x``."""
        self.net_ = initialise(_Decoder(self.d_prior, d_a, self.hidden_width(d_x), d_x), rng, "pytorch")
        self.embedding_ = initialise(BlockLinear([d_x], self.embedded_width(d_x)), rng, "pytorch")
        return self

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name: the decoder, and what takes rows to s."""
        return {"generator": self.net_, "embedding": self.embedding_}

    def embed_block(self, x: Tensor) -> Tensor:
        """The part s (n, d_semantic) of feature rows x (n, d_x)."""
        return leaky_relu(self.embedding_(x), SLOPE)

    @torch.no_grad()
    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """The part s (n, d_semantic) of one generated row for each of the class vectors ``attributes`` (n, d_a)."""
        latent = self._draw_prior(attributes, rng)
        blocks = zip(torch.split(latent, _BLOCK), torch.split(attributes, _BLOCK), strict=True)
        return torch.cat([self.embed(self.net_(z, a)) for z, a in blocks])

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _DisentanglingTraining(self, x, y, attributes, seed, precision)


class BatchNormalisation(nn.Module):
    """Standardise each column by the rows of the batch in training, and by their running statistics in use."""

    mean: Tensor
    var: Tensor

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.ones(width)), nn.Parameter(torch.zeros(width))
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, values: Tensor, *, training: bool) -> Tensor:
        """Values (n, width), standardised; one row by itself has no spread, and is taken as in use."""
        by_batch = training and len(values) > 1
        # Authors' code: the 0.8 that is given to batch normalisation, as a momentum to judge by its size, is its ε.
        return batch_norm(
            values.float(), self.mean, self.var, self.weight, self.bias, by_batch, _MOMENTUM, eps=_EPSILON
        )


class _Decoder(nn.Module):
    """Latent vectors and class vectors to feature rows."""

    def __init__(self, d_prior: int, d_a: int, d_hidden: int, d_x: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_prior, d_a], d_hidden)
        self.second, self.third = BlockLinear([d_hidden], d_hidden), BlockLinear([d_hidden], d_hidden)
        self.last = BlockLinear([d_hidden], d_x)
        self.after_second, self.after_third = BatchNormalisation(d_hidden), BatchNormalisation(d_hidden)

    def forward(self, z: Tensor, a: Tensor, dropout: float = 0.0, rng: torch.Generator | None = None) -> Tensor:
        """Rows (n, d_x); with ``rng`` as in training, without it as in use: nothing dropped, nothing remembered."""

        def thinned(values: Tensor) -> Tensor:
            return values if rng is None else drop(values, dropout, rng)

        hidden = leaky_relu(thinned(self.first(z, a)), SLOPE)
        # Authors' code: no ReLU after the second layer.
        hidden = thinned(self.after_second(self.second(hidden), training=rng is not None))
        hidden = leaky_relu(thinned(self.after_third(self.third(hidden), training=rng is not None)), SLOPE)
        return leaky_relu(self.last(hidden), SLOPE)


class _Encoder(nn.Module):
    """Feature rows and class vectors to the Gaussians of their latent vectors."""

    def __init__(self, d_x: int, d_a: int, d_hidden: int, d_code: int, d_prior: int) -> None:
        super().__init__()
        self.first, self.second = BlockLinear([d_x, d_a], d_hidden), BlockLinear([d_hidden], d_hidden)
        self.code = BlockLinear([d_hidden], d_code)
        self.mean, self.var = BlockLinear([d_code], d_prior), BlockLinear([d_code], d_prior)

    def forward(self, x: Tensor, a: Tensor, dropout: float, rng: torch.Generator) -> tuple[Tensor, Tensor]:
        """Means and variances, (n, d_prior) each, in training."""
        hidden = leaky_relu(self.first(x, a), SLOPE)
        code = self.code(leaky_relu(drop(self.second(hidden), dropout, rng), SLOPE))
        return self.mean(code).float(), softplus(drop(self.var(code), _VARIANCE_DROPOUT, rng).float())


class _DisentanglingTraining(BatchTraining):
    """A step without the penalty, in which the discriminator learns, and then those with it."""

    def __init__(
        self, generator: DisentanglingVAE, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        self.generator: DisentanglingVAE = generator
        (d_x, d_a), d_hidden = (x.shape[1], attributes.shape[1]), generator.hidden_width(x.shape[1])
        d_s = generator.embedded_width(d_x)
        d_n = generator.d_rest or d_s
        self.encoder = _Encoder(d_x, d_a, d_hidden, generator.d_code, generator.d_prior)
        self.rest = BlockLinear([d_x], d_n)
        self.autoencoder = MLP([d_s, d_n], [d_hidden, d_x])  # its second half: the first one is s and n
        self.relation = MLP([d_s, d_a], [d_hidden, 1], out="sigmoid", slope=0.0)
        self.discriminator = MLP([d_s, d_n], [2], out="sigmoid")
        own = {
            "encoder": self.encoder,
            "rest": self.rest,
            "autoencoder": self.autoencoder,
            "relation": self.relation,
            "discriminator": self.discriminator,
        }
        start = random_stream(seed, "disentangling's start")
        self.networks = {
            **{name: net.to(x.device) for name, net in generator.networks().items()},
            **{name: initialise(net, start, "pytorch").to(x.device) for name, net in own.items()},
        }
        options: dict[str, Any] = {"betas": (0.9, 0.999), "weight_decay": generator.weight_decay}
        # The released code has an Adam for each network, which moves each parameter by itself: one does the same.
        others = [net.parameters() for name, net in self.networks.items() if name != "discriminator"]
        self.optimizers = {
            "all": adam(chain(*others), generator.learning_rate, **options),
            "discriminator": adam(self.discriminator.parameters(), generator.learning_rate, **options),
        }
        self.n_steps = math.ceil(len(x) / generator.batch_size / (1 + generator.n_penalised))
        self.kl_weight, self.correlation_weight = (torch.zeros((), device=x.device) for _ in range(2))
        self.classes = torch.unique(y)
        self.scores = pair_scores
        if has_kernels(x.device):
            from dgz.kernels import pair_scores as fused

            self.scores = fused

    def begin_epoch(self, epoch: int) -> None:
        vae = self.generator
        self.kl_weight.fill_(min(vae.kl_warm_up * (epoch - 1), 1.0))
        self.correlation_weight.fill_(vae.correlation_weight * min(vae.correlation_warm_up * (epoch - 1), 1.0))

    def step(self) -> dict[str, Tensor]:
        n_batches = 1 + self.generator.n_penalised
        found: dict[str, Tensor] = {}
        for k, (x, y) in enumerate(zip(*(part.chunk(n_batches) for part in self.draw(n_batches)), strict=True)):
            found |= self._step(x, y, is_penalised=k > 0)
        return found

    def _step(self, x: Tensor, y: Tensor, *, is_penalised: bool) -> dict[str, Tensor]:
        """One step on rows x (n, d_x) of classes y (n,)."""
        vae, rng, a = self.generator, self.rng, self.attributes[y]
        mean, var = self.encoder(x, a, vae.encoder_dropout, rng)
        z = mean + var.sqrt() * vae._draw_prior(a, rng)
        kl = (mean.square() + var - var.log() - 1).sum(1).mean() / 2
        rebuilt = vae.net_(z, vae._blur(a, rng), vae.decoder_dropout, rng)
        loss = (rebuilt - x).square().sum(1).mean() + self.kl_weight * kl
        # Rebuilt rows and real ones go the same way from here on, and count as much: a sum of two means each.
        rows = torch.cat([rebuilt, x])
        s, n = (self._thinned(leaky_relu(half(rows), SLOPE)) for half in (vae.embedding_, self.rest))
        hidden = self._thinned(self.autoencoder.begin(s, n))
        again = self._thinned(leaky_relu(self.autoencoder.finish(hidden), SLOPE))
        loss = loss + 2 * (again - x.repeat(2, 1)).square().mean()
        # Either way the pairs that count are those of rows with the classes in the batch; fewer columns are faster.
        columns = self.classes if len(self.classes) < len(y) else y
        relation = 2 * relation_loss(self._relations(s, self.attributes[columns]), y.repeat(2), columns)
        loss = loss + vae.relation_weight * relation
        found = {"kl loss": kl, "relation loss": relation}
        if is_penalised:
            loss = loss + self.correlation_weight * 2 * self._gap(s, n).mean()
        else:
            found["discriminator loss"] = self._step_discriminator(s.detach(), n.detach())
        descend(self.optimizers["all"], loss)
        return {"loss": loss, **found}

    def _thinned(self, values: Tensor) -> Tensor:
        return drop(values, self.generator.autoencoder_dropout, self.rng)

    def _relations(self, s: Tensor, attributes: Tensor) -> Tensor:
        """How far each part s (n, d_s) goes with each of the class vectors (m, d_a): (n, m), from 0 to 1."""
        # The first layer is affine: a pair's hidden values are a part of the row plus a part of the class vector.
        of_s, of_a = self.relation.first.blocks
        rows, classes = linear(s, of_s, self.relation.first.bias).float(), linear(attributes, of_a).float()
        after = cast(BlockLinear, self.relation.rest[0])
        last = after.blocks[0][0]
        # The scores are of leaky ReLUs, φ(h) = SLOPE · h + (1 - SLOPE) · relu(h), of which relu is what is left without
        # the linear part.
        straight = (rows @ last)[:, None] + classes @ last
        scores = (self.scores(rows, classes, last) - SLOPE * straight) / (1 - SLOPE)
        return cast(Tensor, (scores + after.bias).sigmoid())

    def _gap(self, s: Tensor, n: Tensor) -> Tensor:
        """How much more the discriminator takes pairs (s, n) for those of one row than for mixed ones: (rows,)."""
        scores = self.discriminator(s, n).float()
        return cast(Tensor, scores[:, 0] - scores[:, 1])

    def _step_discriminator(self, s: Tensor, n: Tensor) -> Tensor:
        """Let the discriminator learn to tell pairs (s, n) of a row from those of two, both rebuilt or both real."""
        mixed_s, mixed_n = (torch.cat([self._shuffled(half) for half in part.chunk(2)]) for part in (s, n))
        # Cross-entropy of two scores is a function of the gap between them. Authors' code: what it takes for scores has
        # been through a sigmoid already.
        loss = 2 * (softplus(-self._gap(s, n)) + softplus(self._gap(mixed_s, mixed_n))).mean()
        descend(self.optimizers["discriminator"], self.generator.discriminator_weight * loss)
        return loss

    def _shuffled(self, values: Tensor) -> Tensor:
        return values[torch.rand(len(values), generator=self.rng, device=values.device).argsort()]


def relation_loss(relations: Tensor, y: Tensor, columns: Tensor) -> Tensor:
    """Mean squared distance of relations from 1 for a row's own class and 0 for others, over the classes in the batch.

    Parameters
    ----------
    relations : (n, m)
        Of each row with each column's class.
    y : (n,)
        Classes of the rows.
    columns : (m,)
        Classes of the columns: all of the rows' and any others, any number of times. A class that no row has does not
        count, one with several columns counts once, so that shapes can be the same for every batch.

    Examples
    --------
    >>> relations = torch.tensor([[1.0, 0.5, 9.0], [0.0, 0.5, 9.0]])
    >>> relation_loss(relations, y=torch.tensor([3, 5]), columns=torch.tensor([3, 5, 7]))
    tensor(0.1250)
    """
    own = y[:, None] == columns
    weights = own.any(0).float() / (columns[:, None] == columns).sum(0)
    return ((relations - own.float()).square() * weights).sum() / (len(y) * weights.sum())
