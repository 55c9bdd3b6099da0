"""LisGAN: its recipe, that it learns by its souls, and that test rows are learned from under another name alone."""

import inspect
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dgz import fit_many
from dgz.composed import ComposedMethod
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.experiments import run
from dgz.generators import SoulWGANGP
from dgz.metrics import gzsl_scores
from dgz.peers import METHODS, LisGAN, TransductiveLisGAN, lis_gan
from dgz.peers.lis_gan import surest


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=8, n_test=5)


@pytest.fixture(scope="module")
def x_test(data: GZSLData) -> np.ndarray:
    return np.concatenate([data.x_test_seen, data.x_test_unseen])


def model(kind: type[LisGAN] = LisGAN, gan_epochs: int = 10, *, souls: float = 0.1, **overrides: Any) -> LisGAN:
    few = {"hidden": (64,), "critic_hidden": 64, "learning_rate": 2e-3, "batch_size": 64, "n_fakes": 5, "n_critic": 1}
    few |= {"mean_soul_weight": souls, "row_soul_weight": souls, "class_weight": 0.0}
    small = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "device": "cpu"}
    return kind(**{"generator": SoulWGANGP(n_epochs=gan_epochs, **few), **small, **overrides})


def fit(one: ComposedMethod, data: GZSLData, **options: Any) -> ComposedMethod:
    return one.fit(data.x_train, data.y_train, data.attributes, **options)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> ComposedMethod:
    return fit(model(), data)


@pytest.fixture(scope="module")
def transductive(data: GZSLData, x_test: np.ndarray) -> ComposedMethod:
    return fit(model(TransductiveLisGAN), data, X_test=x_test)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = LisGAN()
    assert (one.n_epochs, one.learning_rate, one.batch_size) == (50, 1e-3, None)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "auto", "generated")
    generator = one._new_generator()
    assert type(generator) is SoulWGANGP
    expected = {"hidden": 1, "batch_size": 64, "class_weight": 0.01, "n_critic": 5, "gp_weight": 10.0, "n_souls": 3}
    expected |= {"n_fakes": 20, "relu_out": True, "prior": True, "d_prior": None, "attribute_noise": 0.0}
    assert {name: getattr(generator, name) for name in expected} == expected


PUBLISHED = {  # GAN epochs, learning rate, p1, p2, rows per class
    "AWA2": (30, 1e-5, 1e-3, 3e-5, 1800),
    "CUB": (56, 1e-4, 1e-2, 1e-3, 300),
    "SUN": (40, 2e-4, 3e-1, 3e-5, 400),
    "APY": (50, 1e-5, 3e-1, 3e-4, 1800),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_those_of_the_readme(name: str) -> None:
    for kind in (LisGAN, TransductiveLisGAN):
        one = kind.preset(name)
        assert type(one) is kind
        gan = one.generator
        found = (gan.n_epochs, gan.learning_rate, gan.mean_soul_weight, gan.row_soul_weight, one.n_per_class)
        assert found == PUBLISHED[name]
        assert (gan.class_weight, gan.batch_size, one.n_epochs, one.learning_rate) == (0.01, 64, 50, 1e-3)
        one.check()


def test_a_batch_has_the_rows_of_two_classes_unless_said_otherwise(fitted: ComposedMethod, tmp_path: Path) -> None:
    assert LisGAN()._new_classifier().batch_size == 600
    assert LisGAN(n_per_class=12)._new_classifier().batch_size == 24
    assert LisGAN(n_per_class=12, batch_size=5)._new_classifier().batch_size == 5
    fitted.save(tmp_path / "model")
    assert LisGAN.load(tmp_path / "model").batch_size is None  # it goes on following the rows


def test_scikit_learns_contract() -> None:
    changed = {"n_per_class": 7, "n_epochs": 2, "learning_rate": 0.1, "batch_size": 9, "distribution": "small"}
    changed |= {"small_std": 0.2, "large_std": 3.0, "feature_scaling": "none", "attribute_scaling": "unit"}
    changed |= {"device": "cpu", "precision": "float32", "random_state": 4, "verbose": True}
    for kind in (LisGAN, TransductiveLisGAN):
        one = clone(kind(**changed))
        assert {name: value for name, value in one.get_params().items() if name != "generator"} == changed


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"n_per_class": 0}, "n_per_class must be a whole number from 1 up, found 0"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 up, found 0"),
        ({"generator": SoulWGANGP(n_souls=0)}, "n_souls must be a whole number from 1 up, found 0"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_before_any_work(setting: dict[str, Any], words: str) -> None:
    with pytest.raises(DGZError, match=words):
        LisGAN(**setting).fit(np.eye(4), [0, 0, 1, 1], np.eye(3))


# --- Learning.
def test_it_learns_by_its_souls(fitted: ComposedMethod, data: GZSLData) -> None:
    held, free = (gzsl_scores(one, data) for one in (fitted, fit(model(souls=0.0), data)))
    assert held.acc_seen > 0.5  # of 100 classes
    assert held.acc_zsl > 0.6  # of 20, after so little training that the critic alone tells nothing yet
    assert free.acc_zsl < 0.25
    assert held.h > free.h + 0.1


# --- Inductive.
def test_lisgan_has_no_way_to_learn_from_test_rows(data: GZSLData, x_test: np.ndarray) -> None:
    assert "X_test" not in inspect.signature(LisGAN.fit).parameters
    with pytest.raises(TypeError, match="X_test"):
        fit(model(), data, X_test=x_test)
    blind = GZSLData(x_train=data.x_train, y_train=data.y_train, attributes=data.attributes)
    one, watched, other = (model(gan_epochs=1, n_epochs=1) for _ in range(3))
    fit(one, data), fit(watched, data, test=data), fit(other, blind)  # scored in every epoch, and nothing more
    np.testing.assert_array_equal(watched.weights_, one.weights_)
    np.testing.assert_array_equal(other.weights_, one.weights_)
    assert {row["stage"] for row in watched.history_} == {"generator", "classifier"}
    assert METHODS["lisgan"] is LisGAN


# --- Transductive, under its own name and never by accident.
def test_no_name_leads_to_the_transductive_variant() -> None:
    assert TransductiveLisGAN not in METHODS.values()
    assert "ransductive" in TransductiveLisGAN.__name__
    assert "transductive" in (TransductiveLisGAN.__doc__ or "")


def test_it_refuses_to_be_fitted_without_test_rows(data: GZSLData, x_test: np.ndarray, tmp_path: Path) -> None:
    one = model(TransductiveLisGAN, 1, n_epochs=1)
    with pytest.raises(DGZError, match="fit needs them as X_test"):
        fit(one, data)
    with pytest.raises(DGZError, match="fit needs them as X_test"):
        run(one, data, tmp_path / "run")
    with pytest.raises(DGZError, match="by its own fit alone"):
        fit_many([one], data.x_train, data.y_train, data.attributes)
    for wrong, words in ((x_test[:, :3], "128 columns"), (x_test * np.nan, "NaN or infinity in row 0")):
        with pytest.raises(DGZError, match=f"X_test must .*{words}"):
            fit(one, data, X_test=wrong)
    with pytest.raises(NotFittedError):
        one.predict(x_test)


def test_its_history_says_what_it_is(transductive: ComposedMethod, x_test: np.ndarray, tmp_path: Path) -> None:
    stages = [row["stage"] for row in transductive.history_]
    assert stages == ["generator"] * 10 + ["classifier"] * 8 + ["transductive classifier"] * 8
    assert transductive.history_[-1]["n_test_rows"] == int(0.6 * len(x_test))
    transductive.save(tmp_path / "model")
    twin = TransductiveLisGAN.load(tmp_path / "model")
    assert twin.history_ == transductive.history_
    np.testing.assert_array_equal(twin.predict(x_test), transductive.predict(x_test))
    with pytest.raises(DGZError, match="holds a TransductiveLisGAN"):
        LisGAN.load(tmp_path / "model")
    with pytest.raises(DGZError, match="cannot be refined"):
        transductive.refine()


def test_it_goes_on_from_lisgan_with_the_rows_it_is_surest_of(
    transductive: ComposedMethod, fitted: ComposedMethod, data: GZSLData, x_test: np.ndarray, monkeypatch: Any
) -> None:
    caught: list[Any] = []
    training = TransductiveLisGAN._classifier_training

    def watch(self: Any, classifiers: Any, task: Any, x: Any, y: Any, **options: Any) -> Any:
        caught.append((x, y, training(self, classifiers, task, x, y, **options)))
        return caught[-1][2]

    monkeypatch.setattr(TransductiveLisGAN, "_classifier_training", watch)
    again = fit(model(TransductiveLisGAN), data, X_test=x_test)
    np.testing.assert_array_equal(again.weights_, transductive.weights_)
    (x, y, _), (more_x, more_y, second) = caught
    n = len(x)
    assert (more_x[:n] == x).all()
    assert (more_y[:n] == y).all()
    sure, labels = surest(fitted.decision_function(x_test))
    np.testing.assert_allclose(more_x[n:], fitted.embed(x_test)[sure], atol=1e-6)
    np.testing.assert_array_equal(more_y[n:], labels)
    assert second.n_steps > caught[0][2].n_steps
    losses = [row["loss"] for row in again.history_ if row["stage"] == "transductive classifier"]
    before = [row["loss"] for row in again.history_ if row["stage"] == "classifier"]
    assert losses[0] < 0.5 * before[0]  # it does not start anew
    assert not np.array_equal(again.weights_, fitted.weights_)


def test_what_it_learns_depends_on_the_test_rows(data: GZSLData, x_test: np.ndarray) -> None:
    some, others = (fit(model(TransductiveLisGAN, 1, n_epochs=1), data, X_test=x_test[k::2]) for k in (0, 1))
    np.testing.assert_array_equal(some.generate(data.unseen)[0], others.generate(data.unseen)[0])
    assert not np.array_equal(some.weights_, others.weights_)


def test_a_second_training_that_fails_leaves_no_model(data: GZSLData, x_test: np.ndarray, monkeypatch: Any) -> None:
    def broken(*args: Any) -> None:
        raise DGZError("no.")

    monkeypatch.setattr(
        TransductiveLisGAN, "_synthesise", lambda self, *more: broken() if caught else original(self, *more)
    )
    caught: list[bool] = []
    original = LisGAN._synthesise
    monkeypatch.setattr(lis_gan, "surest", lambda scores: caught.append(True) or surest(scores))
    one = model(TransductiveLisGAN, 1, n_epochs=1)
    with pytest.raises(DGZError, match=r"^no\.$"):
        fit(one, data, X_test=x_test)
    with pytest.raises(NotFittedError):
        one.predict(x_test)


def test_the_surest_rows_have_the_least_entropy() -> None:
    scores = np.random.default_rng(0).normal(size=(11, 4)) * 3
    entropies = []
    for row in scores:
        p = [math.exp(s) / sum(map(math.exp, row)) for s in row]
        entropies.append(-sum(q * math.log(q) for q in p))
    expected = sorted(range(11), key=lambda i: entropies[i])[:6]  # 60 % of 11
    sure, labels = surest(scores)
    assert sure.tolist() == expected
    assert labels.tolist() == [int(np.argmax(scores[i])) for i in expected]
