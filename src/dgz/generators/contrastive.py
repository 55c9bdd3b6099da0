"""CE-GZSL's generator: a Wasserstein GAN and an embedding in which classes are told apart, trained side by side.

Rows of the classifier live in the embedding's space: ``embed`` takes
real ones there, and ``sample`` gives generated ones in it.
"""

from collections.abc import Sequence
from itertools import chain
from typing import Self, cast

import torch
from torch import Tensor, nn

from dgz.errors import require_at_least, require_count
from dgz.generators.base import NoiseUnit, seen_places
from dgz.generators.wgan import WGANGP, WGANTraining
from dgz.nets import Comparator, Embedding, initialise, pair_scores
from dgz.training import Precision, Trainee, adam, descend, has_kernels, random_stream, set_rate

_DECAY = 0.99


class ContrastiveWGANGP(WGANGP):
    r"""The generator and the embedding of CE-GZSL (Han et al., CVPR 2021).

    An embedding :math:`h = E(x)` learns from real rows by two losses: rows of a class attract each other on a sphere
    (the supervised contrastive loss of a projection of h), and a comparator F(h, a) finds a row's own class vector
    among those of the seen classes. The generator is moved by the critic, and by both losses of its rows' embeddings.

    Parameters
    ----------
    n_epochs, attribute_noise, noise_unit, l2, fgm, prior, d_prior, n_critic, gp_weight, hidden, relu_out
        See :class:`~dgz.generators.WGANGP`.
    critic_hidden, learning_rate, batch_size, class_weight
        See there, too.
    d_embedding : int, optional
        Width of h; by default that of the features, but at least 256.
    d_projection : int
        Width of the sphere's space.
    d_comparator : int, optional
        Width of the comparator's hidden layer; that of h by default.
    instance_weight, comparator_weight : float
        Weights of the two losses in the generator's.
    instance_temperature, comparator_temperature : float
        What divides similarities and scores in them.
    decay_every : int, optional
        Epochs after which all learning rates are multiplied by 0.99, again and again; None keeps them.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = ContrastiveWGANGP(n_epochs=2, hidden=(16,), d_embedding=8).fit(x, y, attributes)
    >>> gan.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 8])
    """

    embeds = True

    def __init__(
        self,
        *,
        n_epochs: int = 300,
        attribute_noise: float = 0.0,
        noise_unit: NoiseUnit = "absolute",
        l2: float = 0.0,
        fgm: float = 0.0,
        prior: bool = True,
        d_prior: int | None = None,
        n_critic: int = 5,
        gp_weight: float = 10.0,
        hidden: Sequence[int] | int | None = 1,
        relu_out: bool = True,
        critic_hidden: int | None = None,
        learning_rate: float = 1e-4,
        batch_size: int = 2048,
        class_weight: float = 0.0,
        d_embedding: int | None = None,
        d_projection: int = 512,
        d_comparator: int | None = None,
        instance_weight: float = 0.001,
        comparator_weight: float = 0.001,
        instance_temperature: float = 0.1,
        comparator_temperature: float = 0.1,
        decay_every: int | None = 100,
    ) -> None:
        super().__init__(
            n_epochs=n_epochs,
            attribute_noise=attribute_noise,
            noise_unit=noise_unit,
            l2=l2,
            fgm=fgm,
            prior=prior,
            d_prior=d_prior,
            n_critic=n_critic,
            gp_weight=gp_weight,
            hidden=hidden,
            relu_out=relu_out,
            critic_hidden=critic_hidden,
            learning_rate=learning_rate,
            batch_size=batch_size,
            class_weight=class_weight,
        )
        self.d_embedding = d_embedding
        self.d_projection = d_projection
        self.d_comparator = d_comparator
        self.instance_weight = instance_weight
        self.comparator_weight = comparator_weight
        self.instance_temperature = instance_temperature
        self.comparator_temperature = comparator_temperature
        self.decay_every = decay_every

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_at_least(0, instance_weight=self.instance_weight, comparator_weight=self.comparator_weight)
        for name in ("instance_temperature", "comparator_temperature"):
            require_at_least(1e-12, **{name: getattr(self, name)})
        require_count(d_projection=self.d_projection)
        for name in ("d_embedding", "d_comparator", "decay_every"):
            require_count(**{name: 1 if getattr(self, name) is None else getattr(self, name)})

    def build(self, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained networks for class vectors of width ``d_a`` and features of width ``d_x``."""
        super().build(d_a, d_x, rng)
        self.embedding_ = initialise(Embedding(d_x, self.embedded_width(d_x), self.d_projection), rng)
        return self

    def networks(self) -> dict[str, nn.Module]:
        """Everything learned that is used after training, by name."""
        return {**super().networks(), "embedding": self.embedding_}

    def embedded_width(self, d_x: int) -> int:
        """Width of h for features of width ``d_x``."""
        return self.d_embedding or max(d_x, 256)

    def embed_block(self, x: Tensor) -> Tensor:
        """The embeddings h (n, d_h) of feature rows x (n, d_x)."""
        return cast(Tensor, self.embedding_(x))

    def sample(self, attributes: Tensor, rng: torch.Generator) -> Tensor:
        """The embedding (n, d_h) of one generated row for each of the class vectors ``attributes`` (n, d_a)."""
        return self.embed(super().sample(attributes, rng))

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _ContrastiveTraining(self, x, y, attributes, seed, precision)


class _ContrastiveTraining(WGANTraining):
    generator: ContrastiveWGANGP

    def __init__(
        self, generator: ContrastiveWGANGP, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        d_h = generator.embedded_width(x.shape[1])
        comparator = Comparator(d_h, attributes.shape[1], generator.d_comparator or d_h)
        self.comparator = initialise(comparator, random_stream(seed, "comparator's start")).to(x.device)
        self.embedding = generator.embedding_.to(x.device)
        self.scores = pair_scores
        if has_kernels(x.device):
            from dgz.kernels import pair_scores as fused

            self.scores = fused
        classes = torch.unique(y)
        self.seen_vectors = attributes[classes]
        self.place = seen_places(y, len(attributes))
        self.networks = {**self.networks, "embedding": self.embedding, "comparator": self.comparator}
        both = chain(self.embedding.parameters(), self.comparator.parameters())
        # The released code has one Adam for these and the critic. Their losses have no parameter in common and Adam
        # moves each parameter by itself, so that two do the same.
        self.optimizers = {**self.optimizers, "embedding": adam(both, generator.learning_rate)}

    def begin_epoch(self, epoch: int) -> None:
        every = self.generator.decay_every
        rate = self.generator.learning_rate * (_DECAY ** ((epoch - 1) // every) if every else 1.0)
        for optimizer in self.optimizers.values():
            set_rate(optimizer, rate)

    def _step_critic(self, x: Tensor, fake: Tensor, y: Tensor, alpha: Tensor) -> Tensor:
        h = self.embedding(x)
        told_apart = self._instances(self.embedding.project(h), y) + self._comparisons(h, y)
        descend(self.optimizers["embedding"], told_apart)
        return super()._step_critic(x, fake, y, alpha)

    def guidance(self, generated: Tensor, x: Tensor, y: Tensor) -> Tensor | float:
        """The two losses of generated rows: among each other and the real ones, and against the class vectors."""
        gan = self.generator
        h = self.embedding(generated)
        with torch.no_grad():
            real = self.embedding.project(self.embedding(x))
        instances = self._instances(torch.cat([self.embedding.project(h), real]), torch.cat([y, y]))
        guided = gan.instance_weight * instances + gan.comparator_weight * self._comparisons(h, y)
        return super().guidance(generated, x, y) + guided

    def _instances(self, points: Tensor, y: Tensor) -> Tensor:
        return supervised_contrast(points, y, self.generator.instance_temperature)

    def _comparisons(self, h: Tensor, y: Tensor) -> Tensor:
        parts = [part.float() for part in self.comparator.parts(h, self.seen_vectors)]
        return nn.functional.cross_entropy(self.scores(*parts) / self.generator.comparator_temperature, self.place[y])


def supervised_contrast(points: Tensor, y: Tensor, temperature: float) -> Tensor:
    r"""Supervised contrastive loss (Khosla et al., 2020) of points on a sphere (n, d) with classes y (n,).

    Mean over all points with another one of their class of

    .. math:: -\frac{1}{|P(i)|} \sum_{p \in P(i)}
        \log \frac{e^{z_i \cdot z_p / \tau}}{\sum_{a \ne i} e^{z_i \cdot z_a / \tau}},

    where P(i) are the others of point i's class.

    Examples
    --------
    >>> points = torch.eye(2)[[0, 0, 1]]
    >>> supervised_contrast(points, torch.tensor([5, 5, 6]), temperature=1.0)  # log(1 + 1/e), twice
    tensor(0.3133)
    """
    similarity = points @ points.T / temperature
    itself = torch.eye(len(points), dtype=torch.bool, device=points.device)
    log_share = similarity - similarity.masked_fill(itself, -torch.inf).logsumexp(1, keepdim=True)
    others = (y[:, None] == y) & ~itself
    n_others = others.sum(1)
    loss = -log_share.masked_fill(~others, 0.0).sum(1) / n_others.clamp(min=1)
    has_others = n_others > 0
    return loss.sum() / has_others.sum().clamp(min=1)  # a point without others of its class adds nothing
