"""f-CLSWGAN: its recipe, how it keeps the estimator's contract, and that it learns by what makes it f-CLSWGAN."""

import copy
from typing import Any

import numpy as np
import pandas as pd
import pytest
from scipy.special import softmax
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dgz import DGZ
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import WGANGP, CenterMapper
from dgz.metrics import gzsl_scores
from dgz.nets import LinearWeights
from dgz.peers import CEGZSL, FCLSWGAN

BOTH = pytest.mark.parametrize("kind", [FCLSWGAN, CEGZSL])


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(gan_epochs: int = 10, *, class_weight: float = 1.0, **overrides: Any) -> FCLSWGAN:
    few = {"attribute_noise": 0.0, "hidden": (64,), "critic_hidden": 64, "learning_rate": 2e-3, "batch_size": 64}
    generator = WGANGP(n_epochs=gan_epochs, class_weight=class_weight, **few)
    small = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "batch_size": 64, "device": "cpu"}
    return FCLSWGAN(**{"generator": generator, **small, **overrides})


def quick(**overrides: Any) -> FCLSWGAN:
    """Of no use but to be compared."""
    return model(1).set_params(**{"n_epochs": 1, "n_per_class": 5, **overrides})


def fit(one: DGZ, data: GZSLData) -> DGZ:
    return one.fit(data.x_train, data.y_train, data.attributes)


# --- The recipe.
def test_defaults_are_those_of_the_released_scripts() -> None:
    one = FCLSWGAN()
    assert (one.n_epochs, one.learning_rate, one.batch_size) == (25, 1e-3, None)
    assert (one.feature_scaling, one.attribute_scaling, one.distribution) == ("minmax", "auto", "generated")
    generator = one._new_generator()
    assert type(generator) is WGANGP
    expected = {"hidden": 1, "batch_size": 64, "class_weight": 0.01, "n_critic": 5, "gp_weight": 10.0}
    expected |= {"learning_rate": 1e-4, "relu_out": True, "prior": True, "d_prior": None, "attribute_noise": 0.0}
    assert {name: getattr(generator, name) for name in expected} == expected
    # Layers of 4096 for 2048 features, in the generator and in the critic.
    assert tuple(generator.widths(2048)) == (4096,)
    assert generator.critic_hidden is None


@pytest.mark.parametrize(
    ("name", "n_epochs", "rate", "n_per_class"),
    [("AWA2", 30, 1e-5, 1800), ("CUB", 56, 1e-4, 300), ("SUN", 40, 2e-4, 400)],
)
def test_presets_are_those_of_the_released_scripts(name: str, n_epochs: int, rate: float, n_per_class: int) -> None:
    for spelled in (name, name.lower()):
        one = FCLSWGAN.preset(spelled)
        assert type(one) is FCLSWGAN
        assert (one.generator.n_epochs, one.generator.learning_rate) == (n_epochs, rate)
        assert (one.n_per_class, one.n_epochs, one.learning_rate) == (n_per_class, 25, 1e-3)
        assert (one.generator.class_weight, one.generator.hidden, one.generator.batch_size) == (0.01, 1, 64)
        one.check()


def test_a_preset_can_be_overridden_down_to_its_generator() -> None:
    one = FCLSWGAN.preset("CUB", n_per_class=7, random_state=3, generator__n_epochs=2, generator__class_weight=0.1)
    assert (one.n_per_class, one.random_state) == (7, 3)
    assert (one.generator.n_epochs, one.generator.class_weight) == (2, 0.1)
    assert one.generator.learning_rate == 1e-4
    assert FCLSWGAN.preset("CUB").generator.n_epochs == 56  # of which each has its own
    with pytest.raises(ValueError, match="lambda_1"):
        FCLSWGAN.preset("CUB", lambda_1=2.0)


@BOTH
def test_an_unknown_preset_is_named(kind: type[DGZ]) -> None:
    with pytest.raises(DGZError, match=r"preset must be one of AWA2, CUB, SUN, found 'APY'\."):
        kind.preset("apy")


@BOTH
def test_the_classifier_is_a_linear_softmax_at_a_steady_rate(kind: type[DGZ]) -> None:
    classifier = kind(n_per_class=7, n_epochs=4, learning_rate=0.02)._new_classifier()
    expected = {"weights": "linear", "loss": "plain", "temperature": 1.0, "lr_step": None, "resample": False}
    expected |= {"n_epochs": 4, "learning_rate": 0.02, "batch_size": 7}
    assert {name: getattr(classifier, name) for name in expected} == expected


@BOTH
def test_a_batch_is_as_large_as_a_class_unless_said_otherwise(kind: type[DGZ]) -> None:
    assert kind()._new_classifier().batch_size == 300
    assert kind(n_per_class=12)._new_classifier().batch_size == 12
    assert kind(n_per_class=12, batch_size=5)._new_classifier().batch_size == 5
    assert kind(n_per_class=12).batch_size is None  # what was given stays as it is


# --- The contract.
@BOTH
def test_scikit_learns_contract(kind: type[DGZ]) -> None:
    changed = {"n_per_class": 7, "n_epochs": 2, "learning_rate": 0.1, "batch_size": 9, "distribution": "small"}
    changed |= {"small_std": 0.2, "large_std": 3.0, "feature_scaling": "none", "attribute_scaling": "unit"}
    changed |= {"device": "cpu", "precision": "float32", "random_state": 4, "verbose": True}
    one = kind(generator=CenterMapper(n_epochs=2), **changed)
    found = one.get_params(deep=False)
    assert found.pop("generator").get_params() == CenterMapper(n_epochs=2).get_params()
    assert found == changed
    assert all(value != changed[name] for name, value in kind().get_params(deep=False).items() if name != "generator")
    twin = clone(one)
    assert type(twin) is kind
    assert {**twin.get_params(), "generator": 0} == {**one.get_params(), "generator": 0}
    assert twin.generator is not one.generator
    one.set_params(generator__n_epochs=5)
    assert (one.generator.n_epochs, twin.generator.n_epochs) == (5, 2)


@BOTH
def test_what_belongs_to_dgzs_classifier_is_no_parameter(kind: type[DGZ]) -> None:
    fixed = {"weights", "loss", "gate", "lambda_1", "lambda_2", "temperature", "d_hidden", "lr_step", "resample"}
    fixed |= {"seen_penalty", "n_members"}
    assert set(DGZ().get_params()) - set(kind().get_params()) == fixed
    assert set(kind().get_params()) <= set(DGZ().get_params())
    for name in fixed:
        with pytest.raises(ValueError, match=f"Invalid parameter '{name}'"):
            kind().set_params(**{name: 1})


@BOTH
@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"n_per_class": 0}, "n_per_class must be a whole number from 1 up, found 0"),
        ({"n_per_class": 2.5}, "n_per_class must be a whole number from 1 up, found 2.5"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 up, found 0"),
        ({"batch_size": 2.5}, "batch_size must be a whole number from 1 up, found 2.5"),
        ({"n_epochs": 0}, "n_epochs must be a whole number from 1 up, found 0"),
        ({"learning_rate": -1.0}, "learning_rate must be a number from 1e-12 up, found -1.0"),
        ({"distribution": "even"}, "distribution must be one of generated, small, large, statistical"),
        ({"generator": WGANGP(class_weight=-1.0)}, "class_weight must be a number from 0 up, found -1.0"),
        ({"generator": CenterMapper()}, "A CenterMapper gives class centres and no samples"),
        ({"feature_scaling": "l1"}, "feature_scaling must be one of"),
    ],
    ids=str,
)
def test_a_wrong_setting_is_refused_before_any_work(kind: type[DGZ], setting: dict[str, Any], words: str) -> None:
    with pytest.raises(DGZError) as caught:
        kind(**setting).fit(np.eye(4), [0, 0, 1, 1], np.eye(3))
    assert words in str(caught.value)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> DGZ:
    return fit(model(), data)


def test_scores_are_logits_of_the_scaled_rows_and_their_softmax_the_probabilities(fitted: DGZ, data: GZSLData) -> None:
    x, low, high = data.x_test_seen, data.x_train.min(axis=0), data.x_train.max(axis=0)
    scaled = (x - low) / np.where(high > low, high - low, 1)
    net = fitted.classifier_.net_
    assert isinstance(net, LinearWeights)
    logits = scaled @ net.weight.detach().numpy().T + net.bias.detach().numpy()
    np.testing.assert_allclose(fitted.decision_function(x), logits, atol=1e-3)
    np.testing.assert_allclose(fitted.predict_proba(x), softmax(logits, axis=1), atol=1e-4)
    np.testing.assert_array_equal(fitted.predict(x), logits.argmax(axis=1))
    np.testing.assert_allclose(fitted.embed(x), scaled, atol=1e-5)
    assert fitted.weights_.shape == (100, 129)


def test_the_zero_shot_score_is_of_the_same_classifier(fitted: DGZ, data: GZSLData) -> None:
    among = fitted.predict(data.x_test_unseen, classes=data.unseen)
    scores = fitted.decision_function(data.x_test_unseen)[:, data.unseen]
    np.testing.assert_array_equal(among, data.unseen[scores.argmax(axis=1)])


def test_labels_may_be_names_and_vectors_a_table(data: GZSLData) -> None:
    names = np.array([f"class {i:02}" for i in range(100)])  # in the order of their numbers
    table = pd.DataFrame(data.attributes, index=names).sample(frac=1, random_state=0)
    by_name = quick().fit(data.x_train, names[data.y_train], table)
    by_number = fit(quick(), data)
    assert by_name.classes_.tolist() == names.tolist()
    np.testing.assert_array_equal(by_name.weights_, by_number.weights_)
    np.testing.assert_array_equal(by_name.predict(data.x_test_seen), names[by_number.predict(data.x_test_seen)])


def test_the_same_seed_gives_the_same_model_and_another_another(data: GZSLData) -> None:
    first, again, other = (fit(quick(random_state=seed), data) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first.weights_, again.weights_)
    assert first.history_ == again.history_
    assert not np.array_equal(first.weights_, other.weights_)
    np.testing.assert_array_equal(first.weights_, fit(clone(first), data).weights_)


def test_before_fitting_nothing_is_known(data: GZSLData) -> None:
    with pytest.raises(NotFittedError):
        model().predict(data.x_test_seen)
    with pytest.raises(DGZError, match="fit needs attributes"):
        model().fit(data.x_train, data.y_train)


# --- Learning.
def test_it_learns_by_its_judge(fitted: DGZ, data: GZSLData) -> None:
    with_judge, without = (gzsl_scores(one, data) for one in (fitted, fit(model(class_weight=0.0), data)))
    assert with_judge.acc_seen > 0.5  # of 100 classes
    assert without.acc_seen > 0.5
    assert with_judge.acc_zsl > 0.5  # of 20, after so little training that the critic alone tells nothing yet
    assert without.acc_zsl < 0.25
    assert with_judge.h > without.h + 0.1
    losses = [row["loss"] for row in fitted.history_ if row["stage"] == "classifier"]
    assert losses[-1] < 0.5 * losses[0]


def test_a_faint_judge_makes_a_difference_and_none_is_dgzs_gan_under_a_softmax(data: GZSLData) -> None:
    none, faint = (fit(quick(generator__class_weight=weight), data) for weight in (0.0, 0.01))
    assert not np.array_equal(none.generate(data.unseen)[0], faint.generate(data.unseen)[0])
    assert not np.array_equal(none.weights_, faint.weights_)
    plain = DGZ(**none.get_params(deep=False), weights="linear", loss="plain", temperature=1.0, lr_step=None)
    np.testing.assert_array_equal(fit(plain, data).weights_, none.weights_)


@pytest.mark.parametrize("distribution", ["statistical", "small"])
def test_its_rows_may_be_gaussian_round_its_centers(fitted: DGZ, data: GZSLData, distribution: str) -> None:
    other = copy.deepcopy(fitted).set_params(distribution=distribution)  # with the same generator
    scores = gzsl_scores(other.refine(), data)
    assert scores.acc_seen > 0.5
    assert scores.acc_zsl > 0.5
