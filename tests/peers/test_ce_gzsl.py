"""CE-GZSL: its recipe, and that it learns in its embedding. What it shares with f-CLSWGAN is tested there."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dgz import DGZ
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import ContrastiveWGANGP
from dgz.metrics import gzsl_scores
from dgz.peers import CEGZSL


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(gan_epochs: int = 10, *, weight: float = 0.1, **overrides: Any) -> CEGZSL:
    few = {"hidden": (64,), "critic_hidden": 64, "learning_rate": 2e-3, "batch_size": 128}
    few |= {"d_embedding": 64, "d_projection": 16, "d_comparator": 32}
    generator = ContrastiveWGANGP(n_epochs=gan_epochs, instance_weight=weight, comparator_weight=weight, **few)
    small = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "batch_size": 64, "device": "cpu"}
    return CEGZSL(**{"generator": generator, **small, **overrides})


def fit(one: DGZ, data: GZSLData) -> DGZ:
    return one.fit(data.x_train, data.y_train, data.attributes)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> DGZ:
    return fit(model(), data)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = CEGZSL()
    assert (one.n_epochs, one.learning_rate, one.batch_size) == (25, 1e-3, None)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "auto", "generated")
    generator = one._new_generator()
    assert type(generator) is ContrastiveWGANGP
    expected = {"instance_temperature": 0.1, "comparator_temperature": 0.1, "d_projection": 512, "class_weight": 0.0}
    expected |= {"instance_weight": 0.001, "comparator_weight": 0.001, "batch_size": 2048, "hidden": 1}
    expected |= {"learning_rate": 1e-4, "decay_every": 100, "n_critic": 5, "gp_weight": 10.0, "attribute_noise": 0.0}
    assert {name: getattr(generator, name) for name in expected} == expected
    assert generator.embedded_width(2048) == 2048
    assert tuple(generator.widths(2048)) == (4096,)


PUBLISHED = {
    "AWA2": {"n_epochs": 130, "batch_size": 4096, "instance_weight": 0.001, "decay_every": 10, "learning_rate": 1e-4},
    "CUB": {"n_epochs": 450, "batch_size": 2048, "instance_weight": 0.001, "decay_every": 100, "learning_rate": 1e-4},
    "SUN": {"n_epochs": 1000, "batch_size": 1024, "instance_weight": 0.01, "decay_every": 100, "learning_rate": 5e-5},
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_those_of_the_authors(name: str) -> None:
    for spelled in (name, name.lower()):
        one = CEGZSL.preset(spelled)
        assert type(one) is CEGZSL
        generator = one.generator
        assert {key: getattr(generator, key) for key in PUBLISHED[name]} == PUBLISHED[name]
        assert generator.comparator_weight == generator.instance_weight
        assert (generator.instance_temperature, generator.comparator_temperature) == (0.1, 0.1)
        # The comparator's hidden layer, for 2048 features.
        assert (generator.d_comparator or generator.embedded_width(2048)) == (1024 if name == "SUN" else 2048)
        assert one.n_per_class == (2400 if name == "AWA2" else 100)
        assert (one.n_epochs, one.learning_rate) == (25, 1e-3)
        one.check()


def test_a_preset_can_be_overridden_down_to_its_generator() -> None:
    one = CEGZSL.preset("SUN", n_per_class=7, generator__n_epochs=2, generator__comparator_weight=0.5)
    assert (one.n_per_class, one.generator.n_epochs) == (7, 2)
    assert (one.generator.comparator_weight, one.generator.instance_weight) == (0.5, 0.01)
    assert CEGZSL.preset("SUN").generator.n_epochs == 1000
    with pytest.raises(ValueError, match="Invalid parameter 'lambda_1'"):
        CEGZSL.preset("SUN", lambda_1=1.0)


def test_a_setting_of_its_generator_is_checked_before_any_work(data: GZSLData) -> None:
    with pytest.raises(DGZError, match="instance_temperature must be a number from 1e-12 up, found 0"):
        fit(model().set_params(generator__instance_temperature=0), data)


# --- Its space.
def test_everything_happens_in_the_embedding(fitted: DGZ, data: GZSLData) -> None:
    h = fitted.embed(data.x_test_seen)
    assert h.shape == (400, 64)
    assert fitted.weights_.shape == (100, 65)
    scores = h @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen), scores, rtol=1e-4, atol=1e-3)
    rows, y = fitted.generate(data.unseen, 30)
    assert rows.shape == (600, 64)
    predicted = (rows @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]).argmax(axis=1)
    assert (predicted == y).mean() > 0.9  # which the classifier has learned from


def test_generated_rows_lie_near_the_real_ones_of_their_class(fitted: DGZ, data: GZSLData) -> None:
    rows, y = fitted.generate(data.unseen, 10)
    h = fitted.embed(data.x_test_unseen)
    means = np.array([h[data.y_test_unseen == c].mean(axis=0) for c in data.unseen])
    cosines = rows @ means.T / np.linalg.norm(rows, axis=1, keepdims=True) / np.linalg.norm(means, axis=1)
    assert (data.unseen[cosines.argmax(axis=1)] == y).mean() > 0.5  # of 20 classes without training rows


def test_rows_of_a_class_gather_in_the_embedding(fitted: DGZ, data: GZSLData) -> None:
    def spread(x: np.ndarray) -> float:
        """Of rows within classes, against that of the classes."""
        means = np.array([x[data.y_test_seen == c].mean(axis=0) for c in data.seen])
        within = np.linalg.norm(x - means[np.searchsorted(data.seen, data.y_test_seen)], axis=1).mean()
        return float(within / np.linalg.norm(means - means.mean(axis=0), axis=1).mean())

    assert spread(fitted.embed(data.x_test_seen)) < 0.9 * spread(fitted.scaler_.transform(data.x_test_seen))


# --- Learning.
def test_it_learns_by_its_contrasts(fitted: DGZ, data: GZSLData) -> None:
    guided, unguided = (gzsl_scores(one, data) for one in (fitted, fit(model(weight=0.0), data)))
    assert guided.acc_seen > 0.5  # of 100 classes
    assert guided.acc_unseen > 0.4
    assert guided.acc_zsl > 0.7  # of 20, after so little training that the critic alone tells nothing yet
    assert unguided.acc_seen > 0.5
    assert unguided.acc_zsl < 0.25
    assert guided.h > unguided.h + 0.3


@pytest.mark.parametrize("weight", ["instance_weight", "comparator_weight"])
def test_each_loss_guides_the_generator(data: GZSLData, weight: str) -> None:
    start = model(2, weight=0.0, n_epochs=1)
    off, on = (fit(clone(start).set_params(**{f"generator__{weight}": value}), data) for value in (0.0, 0.001))
    assert not np.array_equal(on.generate(data.unseen, 5)[0], off.generate(data.unseen, 5)[0])
    assert not np.array_equal(on.weights_, off.weights_)
    # The embedding has its losses of real rows either way.
    np.testing.assert_array_equal(on.embed(data.x_test_seen), off.embed(data.x_test_seen))


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(model(1, n_epochs=1, random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    np.testing.assert_array_equal(first.embed(data.x_test_seen), again.embed(data.x_test_seen))
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)
    np.testing.assert_array_equal(first.weights_, fit(clone(first), data).weights_)
