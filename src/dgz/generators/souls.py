"""LisGAN's generator: f-CLSWGAN's, held near the souls of each class.

Souls are the centres of a few clusters of a class's real rows: what is invariant in the class, from several views.
"""

from collections.abc import Sequence

import numpy as np
import torch
from sklearn.cluster import KMeans
from torch import Tensor

from dgz.errors import require_at_least, require_count
from dgz.generators.base import NoiseUnit, seen_places
from dgz.generators.wgan import WGANGP, WGANTraining
from dgz.training import Precision, Trainee, random_stream


class SoulWGANGP(WGANGP):
    r"""The generator of LisGAN (Li et al., CVPR 2019): a Wasserstein GAN whose rows stay near souls of their class.

    The souls :math:`s_{c1}, \dots, s_{cK}` of a seen class c are the centres that k-means finds in its training rows,
    once before training. To f-CLSWGAN's loss of the generator come

    .. math:: p_1\, \frac{1}{C_s} \sum_c \min_k \lVert \bar x_c - s_{ck} \rVert^2
        + p_2\, \frac{1}{n} \sum_i \min_k \lVert \tilde x_i - s_{y_i k} \rVert^2,

    where :math:`\bar x_c` is the mean of a number of rows generated for class c alone, fresh in every step and for
    every seen class, and :math:`\tilde x_i` are the rows that the critic judges.

    Parameters
    ----------
    n_epochs, attribute_noise, noise_unit, l2, fgm, prior, d_prior, n_critic, gp_weight, hidden, relu_out
        See :class:`~dgz.generators.WGANGP`.
    critic_hidden, learning_rate, batch_size, class_weight
        See there, too; the classifier that ``class_weight`` is about is trained for 100 epochs, as LisGAN's is.
    n_souls : int
        Clusters of each class (K). A class with fewer different rows has these as its souls.
    n_fakes : int
        Generated rows behind each class's mean.
    mean_soul_weight, row_soul_weight : float
        :math:`p_1` and :math:`p_2`.

    Examples
    --------
    >>> x, y, attributes = torch.eye(2).repeat(9, 1), torch.arange(2).repeat(9), torch.eye(2)
    >>> gan = SoulWGANGP(n_epochs=2, hidden=(16,), critic_hidden=16).fit(x, y, attributes)
    >>> gan.sample(attributes, random_stream(0, "example")).shape
    torch.Size([2, 2])
    """

    judge_epochs = 100

    def __init__(
        self,
        *,
        n_epochs: int = 60,
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
        batch_size: int = 64,
        class_weight: float = 0.01,
        n_souls: int = 3,
        n_fakes: int = 20,
        mean_soul_weight: float = 0.01,
        row_soul_weight: float = 0.001,
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
        self.n_souls = n_souls
        self.n_fakes = n_fakes
        self.mean_soul_weight = mean_soul_weight
        self.row_soul_weight = row_soul_weight

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        super().check()
        require_count(n_souls=self.n_souls, n_fakes=self.n_fakes)
        require_at_least(0, mean_soul_weight=self.mean_soul_weight, row_soul_weight=self.row_soul_weight)

    def _trainee(self, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision) -> Trainee:
        return _SoulTraining(self, x, y, attributes, seed, precision)


class _SoulTraining(WGANTraining):
    generator: SoulWGANGP

    def __init__(
        self, generator: SoulWGANGP, x: Tensor, y: Tensor, attributes: Tensor, seed: int, precision: Precision
    ) -> None:
        super().__init__(generator, x, y, attributes, seed, precision)
        classes = torch.unique(y)
        self.souls = find_souls(x, y, generator.n_souls, seed)
        self.place = seen_places(y, len(attributes))
        self.vectors_of_fakes = attributes[classes].repeat_interleave(generator.n_fakes, dim=0)

    def guidance(self, generated: Tensor, x: Tensor, y: Tensor) -> Tensor | float:
        """What f-CLSWGAN's generator minimises beside the critic's part, and how far its rows are from souls."""
        gan = self.generator
        loss = super().guidance(generated, x, y)
        if gan.row_soul_weight:
            loss = loss + gan.row_soul_weight * to_nearest_soul(generated, self.souls[self.place[y]]).mean()
        if gan.mean_soul_weight:
            loss = loss + gan.mean_soul_weight * to_nearest_soul(self._generated_means(), self.souls).mean()
        return loss

    def _generated_means(self) -> Tensor:
        """The mean (C_s, d_x) of fresh rows of each seen class."""
        gan, vectors = self.generator, self.vectors_of_fakes
        noise = [gan._draw_prior(vectors, self.rng)] if gan.prior else []
        rows: Tensor = gan.net_(*noise, gan._blur(vectors, self.rng))
        return rows.float().view(len(self.souls), gan.n_fakes, -1).mean(1)


def to_nearest_soul(x: Tensor, souls: Tensor) -> Tensor:
    """Squared distances (n,) from rows x (n, d) to the nearest of each row's own souls (n, K, d).

    Examples
    --------
    >>> to_nearest_soul(torch.tensor([[0.0, 0.0]]), torch.tensor([[[3.0, 4.0], [1.0, 1.0]]]))
    tensor([2.])
    """
    return (x.float()[:, None] - souls).square().sum(2).amin(1)


def find_souls(x: Tensor, y: Tensor, n_souls: int, seed: int) -> Tensor:
    """The souls (C_s, K, d) of each class, by k-means in its rows: x (n, d), y (n,); classes as ``torch.unique`` has.

    A class with no more than K different rows has these as its souls, again from the first where they are fewer, so
    that all classes have K.

    Examples
    --------
    >>> find_souls(torch.tensor([[0.0], [2.0], [9.0], [5.0]]), torch.tensor([0, 0, 0, 4]), 2, seed=0).squeeze(2)
    tensor([[1., 9.],
            [5., 5.]])
    """
    # Authors' code: the random state is 3 whatever the seed of the run.
    state = random_stream(seed, "souls").initial_seed() % 2**32
    rows, of_class = x.float().cpu().numpy(), y.cpu().numpy()
    found = []
    for label in np.unique(of_class):
        own = rows[of_class == label]
        souls = np.unique(own, axis=0)
        if len(souls) > n_souls:
            souls = KMeans(n_souls, n_init=10, random_state=state).fit(own).cluster_centers_
            souls = souls[np.lexsort(souls.T[::-1])]  # their order means nothing, so that it may as well be a fixed one
        found.append(souls[np.arange(n_souls) % len(souls)])
    return torch.tensor(np.stack(found), device=x.device, dtype=x.dtype)
