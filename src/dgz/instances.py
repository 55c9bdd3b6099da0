"""INSTANCE LEVEL: how the generated rows of an unseen class spread around its centre.

In comes a trained generator; out come pseudo rows of unseen classes, either the generator's own or Gaussian ones moved
to the generated centres. The paper's finding is that the second kind does as well.
"""

import math
from typing import Literal

import torch
from torch import Tensor

from dgz.errors import DGZError, require_at_least, require_choice, require_count
from dgz.generators import ClassGenerator

Distribution = Literal["generated", "small", "large", "statistical"]
_BLOCK = 4096  # rows mixed at a time: a weight for each pair of pseudo and training row is never whole in memory


def synthesise(
    generator: ClassGenerator,
    attributes: Tensor,
    residuals: Tensor,
    rng: torch.Generator,
    *,
    n_per_class: int,
    distribution: Distribution,
    small_std: float = 0.1,
    large_std: float = 10.0,
) -> tuple[Tensor, Tensor]:
    """Make ``n_per_class`` rows of every class in ``attributes``.

    Parameters
    ----------
    generator : ClassGenerator
        Trained; places the classes.
    attributes : (C, d_a)
        Vectors of the classes to make rows of.
    residuals : (n, d_x)
        Training rows less their class's mean, from :func:`within_class_residuals`.
    rng : torch.Generator
    n_per_class : int
    distribution : {"generated", "small", "large", "statistical"}
        ``generated``: the generator's own rows. The others are Gaussians around the generated centres: ``statistical``
        with the training rows' covariance within classes, ``small`` and ``large`` with independent features of equal
        variance.
    small_std, large_std : float
        Standard deviations of ``small`` and ``large`` in units of the training rows' own within classes (the root mean
        square over features).

    Returns
    -------
    pseudo_x, pseudo_y : (C · n_per_class, d_x), (C · n_per_class,)
        Rows, and which row of ``attributes`` each belongs to.
    """
    check_instances(generator, n_per_class, distribution, small_std, large_std)
    pseudo_y = torch.arange(len(attributes), device=attributes.device).repeat_interleave(n_per_class)
    if distribution == "generated":
        return generator.sample(attributes[pseudo_y], rng), pseudo_y
    centers = generator.centers(attributes, rng)[pseudo_y]
    if distribution == "statistical":
        # Rows of a Gaussian with the residuals' covariance are random mixtures of the residuals: no covariance matrix,
        # no factorisation, and nothing to regularise where there are fewer rows than features.
        parts = [
            torch.randn(len(block), len(residuals), generator=rng, device=centers.device) @ residuals
            for block in torch.split(centers, _BLOCK)
        ]
        return centers + torch.cat(parts) / math.sqrt(len(residuals)), pseudo_y
    # Paper: neither variance is printed. Table 1's CMMD of 0.25 for "large" is what a standard deviation of about 1.2
    # gives on min-max scaled features: of the order of ten times theirs within classes.
    std = (small_std if distribution == "small" else large_std) * residuals.square().mean().sqrt()
    noise = torch.randn(centers.shape, generator=rng, device=centers.device)
    return centers + std * noise, pseudo_y


def check_instances(
    generator: ClassGenerator, n_per_class: int, distribution: Distribution, small_std: float, large_std: float
) -> None:
    """Raise a sentence about the first argument that :func:`synthesise` cannot use."""
    require_choice(distribution, Distribution, "distribution")
    require_count(n_per_class=n_per_class)
    require_at_least(0, small_std=small_std, large_std=large_std)
    if distribution == "generated" and not generator.can_sample:
        raise DGZError(
            f"A {type(generator).__name__} gives class centres and no samples: choose the distribution 'statistical', "
            "'small' or 'large' instead of 'generated', or another generator."
        )


def within_class_residuals(x: Tensor, y: Tensor) -> Tensor:
    """Training rows x (n, d_x) less the mean of their class y (n,), scaled to an unbiased covariance.

    Paper: "the covariance as the statistics of the training set" may mean the total covariance, too; that one would add
    the spread between classes to each class. docs/protocol.md, row 21.

    Examples
    --------
    >>> within_class_residuals(torch.tensor([[1.0], [3.0], [7.0]]), torch.tensor([0, 0, 1]))
    tensor([[-1.7321],
            [ 1.7321],
            [ 0.0000]])
    """
    _, at, counts = torch.unique(y, return_inverse=True, return_counts=True)
    sums = torch.zeros(len(counts), x.shape[1], dtype=x.dtype, device=x.device).index_add_(0, at, x)
    residuals: Tensor = x - (sums / counts[:, None])[at]
    # n rows, of which one per class is spent on its mean; with single-row classes alone nothing is left.
    return residuals * math.sqrt(len(x) / max(len(x) - len(counts), 1))
