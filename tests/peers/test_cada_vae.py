"""CADA-VAE: its recipe, what its softmax learns from, and that it learns by what gives it its name."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone

from dgz.classifier import ClassifierTraining
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import AlignedVAEs, CenterMapper
from dgz.metrics import gzsl_scores
from dgz.peers import CADAVAE, METHODS, make_method


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(vae_epochs: int = 20, *, of_generator: dict[str, Any] | None = None, **overrides: Any) -> CADAVAE:
    few = {"d_latent": 32, "hidden": (128, 128), "hidden_vectors": (128, 128), "n_per_seen": 20}
    few |= {"learning_rate": 3e-3, "batch_size": 20}
    generator = AlignedVAEs(**{"n_epochs": vae_epochs, **few, **(of_generator or {})})
    small = {"n_per_class": 20, "n_epochs": 10, "learning_rate": 0.05, "batch_size": 100, "device": "cpu"}
    return CADAVAE(**{"generator": generator, **small, **overrides})


def fit(one: CADAVAE, data: GZSLData) -> CADAVAE:
    return one.fit(data.x_train, data.y_train, data.attributes)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> CADAVAE:
    return fit(model(), data)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = CADAVAE()
    assert (one.n_per_class, one.n_epochs, one.learning_rate, one.batch_size) == (400, 25, 1e-3, 32)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "auto", "generated")
    classifier = one._new_classifier()
    assert (classifier.weights, classifier.loss, classifier.beta_1, classifier.weight_decay) == (
        "linear",
        "plain",
        0.5,
        0,
    )
    assert (classifier.batch_size, classifier.lr_step, classifier.resample, classifier.temperature) == (
        32,
        None,
        False,
        1,
    )
    generator = one._new_generator()
    assert type(generator) is AlignedVAEs
    expected = {"n_epochs": 100, "d_latent": 64, "hidden": None, "hidden_vectors": None, "attribute_noise": 0.0}
    expected |= {"kl_weight": 0.25, "cross_weight": 2.37, "alignment_weight": 8.13, "sampling": "code"}
    expected |= {"learning_rate": 1.5e-4, "batch_size": 50, "n_per_seen": 200}
    assert {name: getattr(generator, name) for name in expected} == expected


@pytest.mark.parametrize(("name", "n_epochs"), [("AWA2", 29), ("CUB", 23), ("SUN", 21)])
def test_presets_are_those_of_the_authors(name: str, n_epochs: int) -> None:
    one = make_method("cada-vae", name, "att")
    assert isinstance(one, CADAVAE)
    changed = {key: value for key, value in one.get_params(deep=False).items() if value != CADAVAE().get_params()[key]}
    assert changed.pop("generator").get_params() == AlignedVAEs().get_params()
    assert changed == {"n_epochs": n_epochs, "attribute_scaling": "none"}
    one.check()
    assert CADAVAE.preset(name, generator__n_epochs=2, n_per_class=7).generator.n_epochs == 2
    assert METHODS["cada-vae"] is CADAVAE


def test_the_softmax_starts_from_xaviers_weights() -> None:
    classifier = clone(CADAVAE()._new_classifier()).build(200, 312, 64, torch.Generator().manual_seed(0))
    bound = 0.5 * math.sqrt(6 / (200 + 64))
    weight = classifier.net_.weight
    assert 0.99 * bound < weight.abs().max() <= bound
    assert weight.std().item() == pytest.approx(bound / math.sqrt(3), rel=0.02)
    assert (classifier.net_.bias == 0).all()
    again, other = (
        clone(classifier).build(200, 312, 64, torch.Generator().manual_seed(seed)).net_.weight for seed in (0, 1)
    )
    assert torch.equal(again, weight)
    assert not torch.equal(other, weight)


def test_a_setting_of_its_generator_is_checked_before_any_work(data: GZSLData) -> None:
    with pytest.raises(DGZError, match="sampling must be one of code, paper, found 'both'"):
        fit(model().set_params(generator__sampling="both"), data)


# --- What the softmax learns from.
def test_the_softmax_sees_so_many_latent_vectors_of_each_class(data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[tuple[torch.Tensor, torch.Tensor]] = []
    start = ClassifierTraining.__init__

    def watched(self: ClassifierTraining, classifiers: Any, x: torch.Tensor, y: torch.Tensor, *rest: Any, **more: Any):
        seen.append((x, y))
        start(self, classifiers, x, y, *rest, **more)

    monkeypatch.setattr(ClassifierTraining, "__init__", watched)
    one = fit(model(1, of_generator={"n_per_seen": 12}, n_per_class=24, n_epochs=1), data)
    ((x, y),) = seen
    counts = np.bincount(y.numpy(), minlength=100)
    assert (counts[data.seen] == 12).all()  # of ten rows, two of which serve twice
    assert (counts[data.unseen] == 24).all()
    assert x.shape == (80 * 12 + 20 * 24, 32)
    # Sampled, where test rows are taken by their means.
    means = one.embed(data.x_train)
    assert not (torch.cdist(x[:960], torch.tensor(means)).min(1).values < 1e-6).any()
    np.testing.assert_array_equal(one.embed(data.x_train), means)


def test_everything_happens_in_the_latent_space(fitted: CADAVAE, data: GZSLData) -> None:
    latent = fitted.embed(data.x_test_seen)
    assert latent.shape == (400, 32)
    assert fitted.weights_.shape == (100, 33)
    scores = latent @ fitted.weights_[:, :-1].T + fitted.weights_[:, -1]
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen), scores, rtol=1e-4, atol=1e-3)
    rows, y = fitted.generate(data.unseen, 30)
    assert rows.shape == (600, 32)
    means = fitted.embed(data.x_test_unseen)
    centers = np.array([means[data.y_test_unseen == c].mean(axis=0) for c in data.unseen])
    nearest = np.linalg.norm(rows[:, None] - centers, axis=2).argmin(axis=1)
    assert (data.unseen[nearest] == y).mean() > 0.8  # of 20 classes without training rows


# --- Learning.
def test_it_learns_by_crossing_and_aligning(fitted: CADAVAE, data: GZSLData) -> None:
    whole = gzsl_scores(fitted, data)
    assert whole.acc_seen > 0.6  # of 100 classes
    assert whole.acc_unseen > 0.6
    assert whole.acc_zsl > 0.8  # of 20
    apart = gzsl_scores(fit(model(of_generator={"cross_weight": 0.0, "alignment_weight": 0.0}), data), data)
    assert apart.acc_seen > 0.3  # for which rows are enough
    assert apart.acc_zsl < 0.2
    assert apart.h < 0.1


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(model(1, n_epochs=1, random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)


def test_its_softmax_goes_with_another_generator(data: GZSLData) -> None:
    mapper = CenterMapper(n_epochs=60, hidden=(64,), learning_rate=1e-3)
    one = fit(model(generator=mapper, distribution="statistical"), data)
    assert gzsl_scores(one, data).h > 0.5
