"""The instance level: every distribution's mean and covariance against what is promised."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from dgz.errors import DGZError
from dgz.generators import WGANGP, CenterMapper
from dgz.instances import synthesise, within_class_residuals
from dgz.training import random_stream

SMALL = settings(max_examples=60, deadline=None)
GAUSSIANS = ["statistical", "small", "large"]
N = 20_000
ATTRIBUTES = torch.tensor([[1.0, 2.0, 3.0], [-4.0, 0.0, 1.0]])


class Places:
    """A generator that puts a class where its vector says, and whose samples are its vectors, marked."""

    can_sample = True

    def centers(self, attributes, rng):
        return 10 * attributes

    def sample(self, attributes, rng):
        return -attributes - torch.rand(attributes.shape, generator=rng)


def rows(seed=0, counts=(7, 1, 12, 5), d=3):
    """Rows of classes of different sizes, one with a single row, with correlated features; and far from the origin."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.repeat_interleave(torch.tensor([4, 0, 7, 2]), torch.tensor(counts))
    mixing = torch.tensor([[1.0, 0.5, 0.0], [0.0, 0.3, -0.2], [0.0, 0.0, 2.0]])[:d, :d]
    centers = 20 * torch.randn(8, d, generator=rng)
    order = torch.randperm(len(y), generator=rng)
    return (centers[y] + torch.randn(len(y), d, generator=rng) @ mixing)[order], y[order]


def make(distribution, n_per_class=N, residuals=None, seed=0, attributes=None, generator=None, **options):
    residuals = within_class_residuals(*rows()) if residuals is None else residuals
    attributes = ATTRIBUTES if attributes is None else attributes
    stream = random_stream(seed, "instances")
    return synthesise(
        generator or Places(),
        attributes,
        residuals,
        stream,
        n_per_class=n_per_class,
        distribution=distribution,
        **options,
    )


def assert_gaussian(pseudo_x, mean, covariance):
    """Mean and covariance within five standard errors, and tails as a Gaussian has them."""
    n, x = len(pseudo_x), pseudo_x.double().numpy()
    variances = np.diag(covariance)
    np.testing.assert_array_less(np.abs(x.mean(0) - mean), 5 * np.sqrt(variances / n) + 1e-5)
    error = np.sqrt((np.outer(variances, variances) + np.square(covariance)) / n)
    np.testing.assert_array_less(np.abs(np.cov(x.T) - covariance), 5 * error + 1e-9)
    beyond = (np.abs(x - mean) > 2 * np.sqrt(variances)).mean(0)
    np.testing.assert_allclose(beyond, 0.0455, atol=5 * np.sqrt(0.0455 * 0.9545 / n))


# --- Residuals.
@st.composite
def labelled(draw):
    d, n = draw(st.integers(1, 3)), draw(st.integers(1, 12))
    values = draw(st.lists(st.integers(-40, 40), min_size=n * d, max_size=n * d))
    y = draw(st.lists(st.integers(0, 4), min_size=n, max_size=n))
    return torch.tensor(values, dtype=torch.double).reshape(n, d) / 4, torch.tensor(y)


@SMALL
@given(labelled())
def test_residuals_have_the_unbiased_covariance_within_classes(pair):
    x, y = pair
    residuals = within_class_residuals(x, y)
    assert residuals.shape == x.shape
    for c in y.unique():
        np.testing.assert_allclose(residuals[y == c].sum(0), np.zeros(x.shape[1]), atol=1e-10)
    if len(y) > len(y.unique()):
        twin = reference.within_class_covariance(x.tolist(), y.tolist())
        np.testing.assert_allclose(residuals.T @ residuals / len(x), twin, atol=1e-10)
    else:  # single-row classes alone say nothing about the spread
        assert (residuals == 0).all()


def test_residuals_leave_the_rows_alone_and_do_not_know_the_classes_numbers():
    x, y = rows()
    before = x.clone()
    residuals = within_class_residuals(x, y)
    assert torch.equal(x, before)
    assert torch.equal(within_class_residuals(x, 100 - 3 * y), residuals)
    assert (residuals[y == 0] == 0).all()  # its single row is its mean


def test_residuals_of_one_class_are_the_ordinary_covariance():
    x = torch.randn(9, 3, generator=torch.Generator().manual_seed(0), dtype=torch.double) + 5
    residuals = within_class_residuals(x, torch.full((9,), 3))
    np.testing.assert_allclose(residuals.T @ residuals / 9, np.cov(x.numpy().T), atol=1e-12)


# --- Distributions.
@pytest.mark.parametrize("counts", [(7, 1, 12, 5), (3, 1, 2, 2)])  # the fewer, the more n, n − 1 and n − C differ
def test_statistical_rows_have_the_covariance_within_classes(counts):
    x, y = rows(counts=counts)
    covariance = np.array(reference.within_class_covariance(x.tolist(), y.tolist()))
    assert abs(covariance[0, 1]) > 0.1  # not a diagonal one
    pseudo_x, pseudo_y = make("statistical", residuals=within_class_residuals(x, y))
    for c, vector in enumerate(ATTRIBUTES):
        assert_gaussian(pseudo_x[pseudo_y == c], 10 * vector.numpy(), covariance)


@pytest.mark.parametrize(
    ("distribution", "options", "factor"),
    [("small", {}, 0.1), ("large", {}, 10.0), ("small", {"small_std": 0.5}, 0.5), ("large", {"large_std": 3.0}, 3.0)],
)
def test_small_and_large_rows_are_isotropic_in_units_of_the_spread_within_classes(distribution, options, factor):
    x, y = rows()
    variance = np.trace(reference.within_class_covariance(x.tolist(), y.tolist())) / 3
    pseudo_x, pseudo_y = make(distribution, **options)
    for c, vector in enumerate(ATTRIBUTES):
        assert_gaussian(pseudo_x[pseudo_y == c], 10 * vector.numpy(), factor**2 * variance * np.eye(3))


def test_each_standard_deviation_belongs_to_its_distribution():
    plain = make("small", n_per_class=5)[0]
    assert torch.equal(make("small", n_per_class=5, large_std=77.0)[0], plain)
    assert not torch.equal(make("small", n_per_class=5, small_std=77.0)[0], plain)
    plain = make("large", n_per_class=5)[0]
    assert torch.equal(make("large", n_per_class=5, small_std=77.0)[0], plain)
    assert not torch.equal(make("large", n_per_class=5, large_std=77.0)[0], plain)


@pytest.mark.parametrize("distribution", GAUSSIANS)
def test_rows_are_independent_of_each_other(distribution):
    pseudo_x, pseudo_y = make(distribution)
    first, second = ((pseudo_x[pseudo_y == c] - 10 * ATTRIBUTES[c])[:, 0].numpy() for c in (0, 1))
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / N**0.5  # between classes
    assert abs(np.corrcoef(first[:-1], first[1:])[0, 1]) < 5 / N**0.5  # between neighbours
    assert len(pseudo_x.unique(dim=0)) == 2 * N


def test_a_spread_of_zero_gives_the_centers():
    pseudo_x, pseudo_y = make("small", n_per_class=3, small_std=0.0)
    assert torch.equal(pseudo_x, 10 * ATTRIBUTES[pseudo_y])


@pytest.mark.parametrize("distribution", GAUSSIANS)
def test_single_row_classes_alone_give_the_centers(distribution):
    residuals = within_class_residuals(10 * torch.eye(3), torch.arange(3))
    pseudo_x, pseudo_y = make(distribution, n_per_class=4, residuals=residuals)
    assert torch.equal(pseudo_x, 10 * ATTRIBUTES[pseudo_y])


@pytest.mark.parametrize("distribution", GAUSSIANS)
def test_one_seen_class_is_enough(distribution):
    x = 3 * torch.randn(40, 3, generator=torch.Generator().manual_seed(0))
    pseudo_x, pseudo_y = make(distribution, residuals=within_class_residuals(x, torch.zeros(40, dtype=torch.long)))
    covariance = np.cov(x.double().numpy().T)
    if distribution != "statistical":
        covariance = {"small": 0.01, "large": 100.0}[distribution] * np.trace(covariance) / 3 * np.eye(3)
    assert_gaussian(pseudo_x[pseudo_y == 1], 10 * ATTRIBUTES[1].numpy(), covariance)


def test_fewer_rows_than_features_spread_only_as_the_rows_do():
    x = torch.randn(4, 6, generator=torch.Generator().manual_seed(0))
    residuals = within_class_residuals(x, torch.tensor([0, 0, 0, 0]))  # three directions
    attributes = torch.zeros(1, 6)
    pseudo_x, _ = make("statistical", residuals=residuals, attributes=attributes, n_per_class=50)
    assert torch.linalg.matrix_rank(pseudo_x, rtol=1e-4) == 3
    _, _, directions = torch.linalg.svd(residuals)
    assert (pseudo_x @ directions[3:].T).abs().max() < 1e-4


def test_generated_rows_are_the_generators_own():
    pseudo_x, pseudo_y = make("generated", n_per_class=3)
    expected = Places().sample(ATTRIBUTES[[0, 0, 0, 1, 1, 1]], random_stream(0, "instances"))
    assert torch.equal(pseudo_x, expected)
    assert pseudo_y.tolist() == [0, 0, 0, 1, 1, 1]


def test_a_real_generators_rows_and_centers_are_used():
    x, y = rows()
    attributes = torch.randn(8, 2, generator=torch.Generator().manual_seed(0))
    gan = WGANGP(n_epochs=1, hidden=(8,), critic_hidden=8).fit(x, y, attributes)
    unseen = attributes[[1, 3, 5, 6]]
    pseudo_x, pseudo_y = make("generated", generator=gan, attributes=unseen, n_per_class=5)
    assert torch.equal(pseudo_x, gan.sample(unseen[pseudo_y], random_stream(0, "instances")))
    mapper = CenterMapper(n_epochs=1, hidden=(8,)).fit(x, y, attributes)
    pseudo_x, pseudo_y = make("small", generator=mapper, attributes=unseen, n_per_class=5, small_std=0.0)
    assert torch.equal(pseudo_x, mapper.centers(unseen, random_stream(0, "any"))[pseudo_y])
    with pytest.raises(
        DGZError, match="A CenterMapper gives class centres and no samples: choose the distribution 'statistical'"
    ):
        make("generated", generator=mapper, attributes=unseen, n_per_class=5)


@pytest.mark.parametrize("distribution", ["generated", *GAUSSIANS])
def test_rows_come_class_by_class_and_repeat_with_the_stream(distribution):
    attributes = torch.arange(15.0).reshape(5, 3)
    pseudo_x, pseudo_y = make(distribution, attributes=attributes, n_per_class=2)
    assert pseudo_y.tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert pseudo_x.shape == (10, 3)
    assert pseudo_x.dtype == torch.float32
    before = torch.get_rng_state()
    assert torch.equal(make(distribution, attributes=attributes, n_per_class=2)[0], pseudo_x)
    assert torch.equal(torch.get_rng_state(), before)
    assert not torch.equal(make(distribution, attributes=attributes, n_per_class=2, seed=1)[0], pseudo_x)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"distribution": "uniform"},
            "distribution must be one of generated, small, large, statistical, found 'uniform'",
        ),
        ({"distribution": None}, "distribution must be one of"),
        ({"n_per_class": 0}, "n_per_class must be "),
        ({"n_per_class": 2.5}, "n_per_class must be "),
        ({"n_per_class": "many"}, "n_per_class must be "),
        ({"small_std": -0.1}, "small_std must be "),
        ({"small_std": float("nan")}, "small_std must be "),
        ({"large_std": -1.0}, "large_std must be "),
        ({"large_std": float("inf")}, "large_std must be "),
    ],
)
def test_a_bad_setting_is_refused_in_a_sentence(options, message):
    with pytest.raises(DGZError, match=f"^{message}"):
        make(**{"distribution": "small", "n_per_class": 2} | options)
