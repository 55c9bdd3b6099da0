"""SDGZSL: its recipe, the space it decides in, and that it learns by the relations of its kept part."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import DisentanglingVAE
from dgz.metrics import gzsl_scores
from dgz.peers import METHODS, SDGZSL, make_method


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(vae_epochs: int = 6, *, of_generator: dict[str, Any] | None = None, **overrides: Any) -> SDGZSL:
    few = {"d_hidden": 96, "d_semantic": 32, "d_rest": 16, "d_code": 16, "learning_rate": 4e-3, "batch_size": 12}
    few |= {"relation_weight": 10.0, "encoder_dropout": 0.2, "decoder_dropout": 0.2}
    generator = DisentanglingVAE(**{"n_epochs": vae_epochs, **few, **(of_generator or {})})
    small = {"n_per_class": 20, "n_epochs": 10, "learning_rate": 0.02, "batch_size": 100, "device": "cpu"}
    return SDGZSL(**{"generator": generator, **small, **overrides})


def fit(one: SDGZSL, data: GZSLData) -> SDGZSL:
    return one.fit(data.x_train, data.y_train, data.attributes)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> SDGZSL:
    return fit(model(), data)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = SDGZSL()
    assert (one.n_per_class, one.n_epochs, one.batch_size) == (1200, 50, None)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "auto", "generated")
    classifier = one._new_classifier()
    assert (classifier.weights, classifier.loss, classifier.beta_1, classifier.weight_decay) == (
        "linear",
        "plain",
        0.5,
        0,
    )
    assert (classifier.batch_size, classifier.lr_step, classifier.resample) == (1200, None, False)
    generator = one._new_generator()
    assert type(generator) is DisentanglingVAE
    expected = {"d_prior": 20, "d_code": 128, "batch_size": 64, "weight_decay": 1e-6, "n_penalised": 2}
    expected |= {"encoder_dropout": 0.4, "decoder_dropout": 0.5, "autoencoder_dropout": 0.2, "attribute_noise": 0.0}
    expected |= {"n_epochs": 400, "learning_rate": 1e-4, "d_semantic": None, "d_rest": None, "d_hidden": None}
    assert {name: getattr(generator, name) for name in expected} == expected


# The table of the recipe: ga, beta, dis, rows per class, widths, rates, epochs, warm-ups, dropout, turns, decay.
PUBLISHED = {
    ("AWA2", "att"): (0.5, 1.0, 0.3, 5000, 1024, 3e-5, 3e-3, 220, 0.01, 0.001, 0.4, 0.5, 0.2, 2, 1e-6),
    ("APY", "att"): (0.1, 1.0, 1.0, 1200, 128, 1e-4, 5e-3, 400, 0.02, 0.001, 0.4, 0.5, 0.2, 2, 1e-6),
    ("CUB", "sent"): (3.0, 0.3, 0.3, 1200, 312, 1e-4, 5e-3, 400, 0.02, 0.001, 0.4, 0.5, 0.2, 2, 1e-6),
    ("CUB", "att"): (5.0, 0.003, 0.3, 1000, 2048, 1e-4, 2e-3, 600, 0.001, 1e-4, 0.1, 0.1, 0.0, 3, 1e-8),
    ("SUN", "att"): (30.0, 0.3, 0.5, 400, 2048, 3e-4, 1e-3, 400, 0.001, 3e-4, 0.4, 0.2, 0.4, 3, 1e-6),
}


@pytest.mark.parametrize("name", PUBLISHED, ids="/".join)
def test_presets_are_those_of_the_released_scripts(name: tuple[str, str]) -> None:
    one = make_method("sdgzsl", *name)
    assert isinstance(one, SDGZSL)
    assert METHODS["sdgzsl"] is SDGZSL
    one.check()
    generator = one.generator
    found = (generator.relation_weight, generator.correlation_weight, generator.discriminator_weight, one.n_per_class)
    found += (generator.d_semantic, generator.learning_rate, one.learning_rate, generator.n_epochs)
    found += (generator.kl_warm_up, generator.correlation_warm_up)
    found += (generator.encoder_dropout, generator.decoder_dropout, generator.autoencoder_dropout)
    assert (*found, generator.n_penalised, generator.weight_decay) == PUBLISHED[name]
    assert (generator.d_rest, generator.d_prior, generator.batch_size) == (None, 20, 64)
    assert one.n_epochs == (20 if name[0] == "APY" else 50)
    assert one._new_classifier().batch_size == one.n_per_class
    # The code that reads CUB with sentences computes the scaling, and then leaves rows as they are.
    assert one.feature_scaling == ("none" if name == ("CUB", "sent") else "minmax")


def test_the_softmax_starts_from_xaviers_weights() -> None:
    classifier = clone(SDGZSL()._new_classifier()).build(50, 85, 1024, torch.Generator().manual_seed(0))
    assert classifier.net_.weight.std().item() == pytest.approx(math.sqrt(2 / (50 + 1024)), rel=0.02)
    assert (classifier.net_.bias == 0).all()


def test_a_setting_of_its_generator_is_checked_before_any_work(data: GZSLData) -> None:
    with pytest.raises(DGZError, match="decoder_dropout must be a number below 1, found 1"):
        fit(model().set_params(generator__decoder_dropout=1), data)


# --- Its space.
def test_everything_happens_in_the_kept_part(fitted: SDGZSL, data: GZSLData) -> None:
    s = fitted.embed(data.x_test_seen)
    assert s.shape == (400, 32)
    assert fitted.weights_.shape == (100, 33)
    scores = s @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen), scores, rtol=1e-4, atol=1e-3)
    # Rows one at a time are what they are together: nothing is normalised by its company in use.
    np.testing.assert_allclose(fitted.embed(data.x_test_seen[:1]), s[:1], rtol=1e-4, atol=1e-5)
    rows, y = fitted.generate(data.unseen, 30)
    assert rows.shape == (600, 32)
    again, _ = fitted.generate(data.unseen, 30)
    np.testing.assert_array_equal(again, rows)
    predicted = (rows @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]).argmax(axis=1)
    assert (predicted == y).mean() > 0.8  # which the classifier has learned from


# --- Learning.
def test_it_learns_by_its_relations(fitted: SDGZSL, data: GZSLData) -> None:
    whole = gzsl_scores(fitted, data)
    assert whole.acc_seen > 0.45  # of 100 classes
    assert whole.acc_unseen > 0.5
    assert whole.acc_zsl > 0.7  # of 20
    losses = [row["relation loss"] for row in fitted.history_ if row["stage"] == "generator"]
    assert losses[-1] < 0.5 * losses[0]
    without = gzsl_scores(fit(model(of_generator={"relation_weight": 0.0}), data), data)
    assert whole.h > without.h + 0.05


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(model(1, n_epochs=1, random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)
