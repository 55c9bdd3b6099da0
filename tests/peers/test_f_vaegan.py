"""f-VAEGAN-D2: its recipe, and that it learns. Its generator is tested with the generators."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dgz import DGZ
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import VAEGAN
from dgz.metrics import gzsl_scores
from dgz.peers import FVAEGAN, METHODS, make_method


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(epochs: int = 30, *, gan_weight: float = 0.3, **overrides: Any) -> FVAEGAN:
    few = {"hidden": (64,), "n_critic": 1, "learning_rate": 0.01, "batch_size": 64}
    generator = VAEGAN(n_epochs=epochs, gan_weight=gan_weight, **few)
    small = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "batch_size": 64, "device": "cpu"}
    return FVAEGAN(**{"generator": generator, **small, **overrides})


def fit(one: DGZ, data: GZSLData) -> DGZ:
    return one.fit(data.x_train, data.y_train, data.attributes)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> DGZ:
    return fit(model(), data)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = FVAEGAN()
    assert METHODS["f-vaegan-d2"] is FVAEGAN
    assert (one.n_epochs, one.learning_rate, one.batch_size) == (25, 1e-3, None)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "unit", "generated")
    assert type(one._new_generator()) is VAEGAN
    assert one._new_generator().get_params() == VAEGAN().get_params()
    classifier = one._new_classifier()
    assert (classifier.weights, classifier.loss, classifier.batch_size, classifier.beta_1) == (
        "linear",
        "plain",
        300,
        0.5,
    )


@pytest.mark.parametrize(
    ("name", "n_epochs", "rate", "gan_weight", "n_per_class", "classifier_rate"),
    [("AWA2", 120, 1e-5, 10.0, 1800, 1e-3), ("CUB", 300, 1e-4, 10.0, 300, 1e-3), ("SUN", 400, 1e-3, 1.0, 400, 5e-4)],
)
def test_presets_are_those_of_the_released_scripts(
    name: str, n_epochs: int, rate: float, gan_weight: float, n_per_class: int, classifier_rate: float
) -> None:
    one = make_method("f-vaegan-d2", name, "att")
    assert type(one) is FVAEGAN
    generator = one.generator
    assert (generator.n_epochs, generator.learning_rate, generator.gan_weight) == (n_epochs, rate, gan_weight)
    assert (generator.batch_size, generator.n_critic, generator.gp_weight) == (64, 5, 10.0)
    assert generator.encoded_noise
    assert tuple(generator.widths(2048)) == (4096,)
    assert (one.n_per_class, one.n_epochs, one.learning_rate) == (n_per_class, 25, classifier_rate)
    assert one.attribute_scaling == "unit"
    one.check()


def test_a_preset_can_be_overridden_down_to_its_generator() -> None:
    one = FVAEGAN.preset("sun", n_per_class=7, generator__n_epochs=2, attribute_scaling="none")
    assert (one.n_per_class, one.generator.n_epochs, one.attribute_scaling) == (7, 2, "none")
    assert one.generator.learning_rate == 1e-3
    assert FVAEGAN.preset("SUN").generator.n_epochs == 400


def test_a_setting_of_its_generator_is_checked_before_any_work(data: GZSLData) -> None:
    with pytest.raises(DGZError, match="gan_weight must be a number from 0 up, found -1"):
        fit(model().set_params(generator__gan_weight=-1), data)


# --- Learning.
def test_it_learns(fitted: DGZ, data: GZSLData) -> None:
    found = gzsl_scores(fitted, data)
    assert found.acc_seen > 0.5  # of 100 classes
    assert found.acc_unseen > 0.6
    assert found.acc_zsl > 0.8  # of 20 without training rows
    losses = [row["reconstruction loss"] for row in fitted.history_ if row["stage"] == "generator"]
    assert losses[-1] < 0.8 * losses[0]


def test_generated_rows_lie_in_the_range_of_the_features_and_near_their_class(fitted: DGZ, data: GZSLData) -> None:
    rows, y = fitted.generate(data.unseen, 10)
    assert rows.shape == (200, 128)
    assert rows.min() > 0
    assert rows.max() < 1
    x = fitted.embed(data.x_test_unseen)
    means = np.array([x[data.y_test_unseen == c].mean(axis=0) for c in data.unseen])
    nearest = np.linalg.norm(rows[:, None] - means, axis=2).argmin(axis=1)
    assert (data.unseen[nearest] == y).mean() > 0.6


def test_the_scale_of_class_vectors_does_not_matter(data: GZSLData) -> None:
    one = fit(model(1, n_epochs=1), data)
    other = model(1, n_epochs=1).fit(data.x_train, data.y_train, 3 * data.attributes)
    np.testing.assert_allclose(one.weights_, other.weights_, atol=1e-3)


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(model(1, n_epochs=1, random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)
    np.testing.assert_array_equal(first.weights_, fit(clone(first), data).weights_)
