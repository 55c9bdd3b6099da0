"""TF-VAEGAN: its recipe, its space, and that it learns by its decoder. Its generator is tested with the generators."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone

from dgz import DGZ
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import VAEGAN, FeedbackVAEGAN
from dgz.metrics import gzsl_scores
from dgz.peers import FVAEGAN, METHODS, TFVAEGAN, make_method


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


FEW = {"hidden": (64,), "n_critic": 1, "learning_rate": 0.01, "batch_size": 64, "gan_weight": 0.3}
SMALL = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "batch_size": 64, "device": "cpu"}


def model(epochs: int = 15, of_generator: dict[str, Any] | None = None, **overrides: Any) -> TFVAEGAN:
    options = FEW | {"decoder_rate": 3e-3, "d_decoder": 48} | (of_generator or {})
    return TFVAEGAN(**{"generator": FeedbackVAEGAN(n_epochs=epochs, **options), **SMALL, **overrides})


def fit(one: DGZ, data: GZSLData, **options: Any) -> DGZ:
    return one.fit(data.x_train, data.y_train, data.attributes, **options)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> DGZ:
    return fit(model(), data)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = TFVAEGAN()
    assert METHODS["tf-vaegan"] is TFVAEGAN
    assert (one.n_epochs, one.learning_rate, one.batch_size) == (25, 1e-3, None)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "unit", "generated")
    assert type(one._new_generator()) is FeedbackVAEGAN
    assert one._new_generator().get_params() == FeedbackVAEGAN().get_params()


PUBLISHED = {
    "AWA2": {
        "gan_weight": 10.0, "learning_rate": 1e-5, "feedback_rate": 1e-4, "decoder_rate": 1e-4, "decoder_weight": 0.1,
        "freeze_decoder": True, "feedback_strength": 0.01, "synthesis_strength": 0.01, "n_epochs": 120,
    },
    "CUB": {
        "gan_weight": 10.0, "learning_rate": 1e-4, "feedback_rate": 1e-5, "decoder_rate": 1e-4, "decoder_weight": 0.01,
        "freeze_decoder": False, "feedback_strength": 1.0, "synthesis_strength": 1.0, "n_epochs": 300,
    },
    "SUN": {
        "gan_weight": 1.0, "learning_rate": 1e-3, "feedback_rate": 1e-4, "decoder_rate": 1e-4, "decoder_weight": 0.01,
        "freeze_decoder": False, "feedback_strength": 0.1, "synthesis_strength": 0.01, "n_epochs": 400,
    },
}  # fmt: skip


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_those_of_the_released_scripts(name: str) -> None:
    one = make_method("tf-vaegan", name, "att")
    assert type(one) is TFVAEGAN
    generator = one.generator
    assert {key: getattr(generator, key) for key in PUBLISHED[name]} == PUBLISHED[name]
    assert (generator.batch_size, generator.n_critic, generator.gp_weight) == (64, 5, 10.0)
    assert generator.encoded_noise
    assert one.n_per_class == {"AWA2": 1800, "CUB": 300, "SUN": 400}[name]
    assert (one.n_epochs, one.learning_rate) == (25, 5e-4 if name == "SUN" else 1e-3)
    assert one.attribute_scaling == "unit"
    one.check()


def test_a_setting_of_its_generator_is_checked_before_any_work(data: GZSLData) -> None:
    with pytest.raises(DGZError, match="decoder_weight must be a number from 0 up, found -1"):
        fit(model().set_params(generator__decoder_weight=-1), data)


# --- Its space.
def test_everything_happens_in_the_decoders_space(fitted: DGZ, data: GZSLData) -> None:
    d_a = data.attributes.shape[1]
    rows = fitted.embed(data.x_test_seen)
    assert rows.shape == (400, 128 + d_a + 48)
    assert fitted.weights_.shape == (100, 128 + d_a + 48 + 1)
    np.testing.assert_allclose(rows[:, :128], fitted.scaler_.transform(data.x_test_seen))
    np.testing.assert_allclose(np.linalg.norm(rows[:, 128 : 128 + d_a], axis=1), 1, rtol=1e-5)
    scores = rows @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen), scores, rtol=1e-4, atol=1e-3)
    made, y = fitted.generate(data.unseen, 30)
    assert made.shape == (600, 128 + d_a + 48)
    predicted = (made @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]).argmax(axis=1)
    assert (predicted == y).mean() > 0.9  # which the classifier has learned from


def test_a_file_holds_all_of_its_networks(fitted: DGZ, data: GZSLData, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    twin = TFVAEGAN.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.embed(data.x_test_seen), fitted.embed(data.x_test_seen))
    np.testing.assert_array_equal(twin.generate(data.unseen, 3)[0], fitted.generate(data.unseen, 3)[0])


def test_the_decoder_tells_attributes_of_classes_that_it_never_saw(fitted: DGZ, data: GZSLData) -> None:
    vectors = data.attributes / np.linalg.norm(data.attributes, axis=1, keepdims=True)
    told = fitted.embed(data.x_test_unseen)[:, 128 : 128 + vectors.shape[1]]
    best = (told @ vectors[data.unseen].T).argmax(axis=1)
    assert (data.unseen[best] == data.y_test_unseen).mean() > 0.5  # of 20


# --- Learning.
def test_it_learns_by_what_the_decoder_says(fitted: DGZ, data: GZSLData) -> None:
    found = gzsl_scores(fitted, data)
    assert found.acc_seen > 0.5  # of 100 classes
    assert found.acc_unseen > 0.6
    assert found.acc_zsl > 0.8  # of 20 without training rows
    # As much training without decoder and feedback.
    plain = gzsl_scores(fit(FVAEGAN(generator=VAEGAN(n_epochs=30, **FEW), **SMALL), data), data)
    assert found.h > plain.h


@pytest.mark.parametrize("setting", ["feedback_strength", "synthesis_strength", "decoder_weight"])
def test_each_part_makes_a_difference(data: GZSLData, setting: str) -> None:
    off, on = (fit(model(1, {setting: value}, n_epochs=1), data) for value in (0.0, 1.0))
    assert not np.array_equal(on.generate(data.unseen, 5)[0], off.generate(data.unseen, 5)[0])
    assert not np.array_equal(on.weights_, off.weights_)


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(model(1, n_epochs=1, random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)
    np.testing.assert_array_equal(first.weights_, fit(clone(first), data).weights_)


def test_classifiers_on_the_way_see_the_decoder_as_it_is_then(data: GZSLData) -> None:
    one = fit(model(2, n_epochs=1), data, test=data, evaluate_every=1)
    stages = [row["stage"] for row in one.history_]
    assert stages == ["generator", "classifier", "generator", "classifier"]
    assert all(row["cacd"] > 0 for row in one.history_ if row["stage"] == "generator")
