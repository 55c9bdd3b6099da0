"""IZF: its settings, that it learns through its flow, and that it looks at no test row."""

from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dgz.composed import ComposedMethod
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import ZeroShotFlow
from dgz.metrics import gzsl_scores
from dgz.peers import IZF, METHODS


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=8, n_test=5)


def model(flow_epochs: int = 30, **overrides: Any) -> IZF:
    generator = ZeroShotFlow(n_epochs=flow_epochs, hidden=(32,), depth=2, learning_rate=0.01, batch_size=128)
    small = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "batch_size": 64, "device": "cpu"}
    return IZF(**{"generator": generator, **small, **overrides})


def fit(one: ComposedMethod, data: GZSLData, **options: Any) -> ComposedMethod:
    return one.fit(data.x_train, data.y_train, data.attributes, **options)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> ComposedMethod:
    return fit(model(), data)


def test_defaults_are_a_flow_and_a_linear_softmax() -> None:
    one = IZF()
    assert type(one._new_generator()) is ZeroShotFlow
    assert one._new_generator().get_params() == ZeroShotFlow().get_params()
    assert (one.n_epochs, one.learning_rate, one.batch_size, one.n_per_class) == (30, 5e-3, 512, 400)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "auto", "generated")
    classifier = one._new_classifier()
    assert (classifier.weights, classifier.loss, classifier.batch_size) == ("linear", "plain", 512)
    assert IZF(n_per_class=7, batch_size=None)._new_classifier().batch_size == 7
    assert METHODS["izf"] is IZF


@pytest.mark.parametrize(
    ("name", "n_epochs", "n_per_class", "n_rows"),
    [("AWA2", 30, 2000, 23527), ("CUB", 100, 600, 7057), ("SUN", 70, 400, 10320), ("APY", 120, 2000, 5932)],
)
def test_presets_make_about_as_many_steps_each(name: str, n_epochs: int, n_per_class: int, n_rows: int) -> None:
    one = IZF.preset(name.lower())
    assert (one.generator.n_epochs, one.n_per_class) == (n_epochs, n_per_class)
    assert 2700 < n_epochs * -(-n_rows // 256) < 2950
    weights = [getattr(one.generator, f"{part}_weight") for part in ("flow", "center", "mmd")]
    assert weights == [2.0, 1.0, 0.1]
    one.check()


def test_it_is_said_to_be_approximate() -> None:
    for kind in (IZF, ZeroShotFlow):
        assert "pproximat" in (kind.__doc__ or "")


def test_a_setting_of_its_flow_is_checked_before_any_work(data: GZSLData) -> None:
    with pytest.raises(DGZError, match="depth must be a whole number from 1 up, found 0"):
        fit(model().set_params(generator__depth=0), data)


def test_it_learns(fitted: ComposedMethod, data: GZSLData) -> None:
    scores, untrained = (gzsl_scores(one, data) for one in (fitted, fit(model(1), data)))
    assert scores.acc_seen > 0.4  # of 100 classes
    assert scores.acc_zsl > 0.5  # of 20 without training rows
    assert scores.acc_unseen > 0.25
    assert untrained.acc_zsl < 0.25


def test_generated_rows_lie_near_the_real_ones_of_their_class(fitted: ComposedMethod, data: GZSLData) -> None:
    rows, y = fitted.generate(data.unseen, 10)
    x = fitted.embed(data.x_test_unseen)
    means = np.array([x[data.y_test_unseen == c].mean(axis=0) for c in data.unseen])
    nearest = data.unseen[((rows[:, None] - means) ** 2).sum(axis=2).argmin(axis=1)]
    assert (nearest == y).mean() > 0.4


def test_test_rows_have_no_part_in_it(data: GZSLData) -> None:
    blind = GZSLData(x_train=data.x_train, y_train=data.y_train, attributes=data.attributes)
    one, other = (fit(model(1, n_epochs=2), part) for part in (data, blind))
    np.testing.assert_array_equal(other.weights_, one.weights_)
    np.testing.assert_array_equal(fit(model(1, n_epochs=2), data, test=data).weights_, one.weights_)


def test_the_discrepancy_makes_a_difference(data: GZSLData) -> None:
    one, two = (fit(model(1, n_epochs=1).set_params(generator__mmd_weight=weight), data) for weight in (0.0, 0.1))
    assert not np.array_equal(one.generate(data.unseen, 5)[0], two.generate(data.unseen, 5)[0])


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(model(1, n_epochs=1, random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)
    np.testing.assert_array_equal(first.weights_, fit(clone(first), data).weights_)


def test_class_vectors_may_be_wider_than_the_features(data: GZSLData, tmp_path: Any) -> None:
    wide = np.random.default_rng(0).normal(size=(30, 200)).astype(np.float32)
    one = model(1, n_epochs=1, attribute_scaling="none").fit(data.x_train, data.y_train, data.attributes @ wide)
    assert one.generator_.net_.basis.shape == (200, 64)
    one.save(tmp_path / "model")
    twin = IZF.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.generate(data.unseen, 3)[0], one.generate(data.unseen, 3)[0])
