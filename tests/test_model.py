"""The estimator DGZ as a whole; its stages have tests of their own."""

import copy
import functools
import inspect
import itertools
import json
import math
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.datasets import make_blobs
from sklearn.exceptions import NotFittedError
from sklearn.utils.estimator_checks import check_estimator

import reference
from conftest import damage, tiny_parts
from dgz import DGZ, classifier
from dgz.classifier import CosineClassifier
from dgz.data import GZSLData, load_numbers, validation_folds
from dgz.errors import DataError, DGZError, DGZWarning
from dgz.frame import Frame
from dgz.generators import (
    CVAE,
    WGANGP,
    CenterMapper,
    ClassGenerator,
    ContrastiveWGANGP,
    center,
    cvae,
    wgan,
)
from dgz.instances import synthesise
from dgz.many import _Search, fit_many
from dgz.metrics import GZSLScores, SeenUnseenCurve, best_penalty, cacd, gzsl_scores, mean_penalty
from dgz.peers import CEGZSL, FCLSWGAN
from dgz.progress import Progress
from dgz.training import random_stream

PARTS: dict[str, Any] = tiny_parts()
X, Y, VECTORS = PARTS["x_train"], PARTS["y_train"], PARTS["attributes"]
SEEN, UNSEEN = np.arange(4), np.arange(4, 6)
TEST_ROWS = np.concatenate([PARTS["x_test_seen"], PARTS["x_test_unseen"]])
NAMES = np.array(PARTS["class_names"])

GENERATORS: dict[str, Callable[..., ClassGenerator]] = {
    "WGANGP": lambda **more: WGANGP(**{"n_epochs": 3, "hidden": (16, 8), "critic_hidden": 16, "batch_size": 8, **more}),
    "CVAE": lambda **more: CVAE(**{"n_epochs": 3, "hidden": (16, 8), "batch_size": 8, **more}),
    "CenterMapper": lambda **more: CenterMapper(**{"n_epochs": 3, "hidden": (16, 8), **more}),
}
DISTRIBUTIONS = ("generated", "small", "large", "statistical")
WEIGHTS = ("mapped", "free", "class_normalised")


def quick(generator: str = "CenterMapper", *, of_generator: dict[str, Any] | None = None, **overrides: Any) -> DGZ:
    small = {"distribution": "statistical", "n_per_class": 5, "d_hidden": 8, "n_epochs": 3, "learning_rate": 0.01}
    made = GENERATORS[generator](**(of_generator or {}))
    return DGZ(**{"generator": made, **small, "device": "cpu", **overrides})


def fit_quick(generator: str = "CenterMapper", **overrides: Any) -> DGZ:
    return quick(generator, **overrides).fit(X, Y, VECTORS)


@pytest.fixture(scope="module")
def fitted_once() -> DGZ:
    return fit_quick()


@pytest.fixture
def fitted(fitted_once: DGZ) -> DGZ:
    """A fitted model to be changed at will."""
    return copy.deepcopy(fitted_once)


@contextmanager
def refused(*words: str) -> Iterator[None]:
    """The block raises an error for people: one sentence on one line, with these words in it."""
    with pytest.raises(DGZError) as caught:
        yield
    text = str(caught.value)
    assert "\n" not in text
    assert re.search(r"(?<!\.)(\.|; did you mean '[^']+'\?)$", text)
    for word in words:
        assert word in text


def attempt(action: Callable[[], DGZ]) -> tuple[DGZ | None, str]:
    """The model, or the sentence that says why there is none."""
    try:
        return action(), ""
    except DGZError as error:
        return None, str(error)


def params(model: DGZ) -> dict[str, Any]:
    """All settings, in a form that == can compare: a generator is its kind, and sequences are tuples."""
    values = {**model.get_params(), "generator": type(model.generator).__name__}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}


def net_values(net: torch.nn.Module) -> dict[str, np.ndarray]:
    return {name: values.numpy().copy() for name, values in net.state_dict().items()}


def learned(model: DGZ) -> dict[str, np.ndarray]:
    """Everything learned, as copies."""
    parts = {name: getattr(model, name).copy() for name in ("classes_", "seen_", "attributes_", "weights_")}
    for stage in ("generator_", "classifier_"):
        parts |= {f"{stage}/{name}": values for name, values in net_values(getattr(model, stage).net_).items()}
    return parts


def assert_same(one: dict[str, np.ndarray], two: dict[str, np.ndarray]) -> None:
    assert one.keys() == two.keys()
    for name, values in one.items():
        np.testing.assert_array_equal(values, two[name], err_msg=name, strict=True)


def differs(one: DGZ, two: DGZ) -> bool:
    return not np.array_equal(one.weights_, two.weights_)


# --- The contract, for every composition of the three levels.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
@pytest.mark.parametrize("generator", GENERATORS)
def test_every_composition_keeps_the_contract(generator: str, distribution: str, weights: str, tmp_path: Path) -> None:
    model = quick(generator, distribution=distribution, weights=weights)
    if (generator, distribution) == ("CenterMapper", "generated"):
        with refused("A CenterMapper gives class centres and no samples"):
            model.fit(X, Y, VECTORS)
        return
    assert model.fit(X, Y, VECTORS) is model
    np.testing.assert_array_equal(model.classes_, np.arange(6))
    np.testing.assert_array_equal(model.seen_, np.arange(6) < 4)
    assert model.weights_.shape == (6, 5)
    norms = np.linalg.norm(model.weights_, axis=1)
    # Class normalisation ends in a ReLU, which may leave a class of so small a net with nothing.
    np.testing.assert_allclose(norms[norms > 0] if weights == "class_normalised" else norms, 1, rtol=1e-5)

    scores = model.decision_function(TEST_ROWS)
    assert scores.shape == (len(TEST_ROWS), 6)
    scaled = model.scaler_.transform(TEST_ROWS)
    cosines = scaled / np.linalg.norm(scaled, axis=1, keepdims=True) @ model.weights_.T
    np.testing.assert_allclose(scores, cosines, atol=1e-6)  # and so finite
    np.testing.assert_array_equal(model.predict(TEST_ROWS), model.classes_[scores.argmax(axis=1)])
    only_unseen = model.predict(TEST_ROWS, classes=UNSEEN)
    np.testing.assert_array_equal(only_unseen, UNSEEN[scores[:, UNSEEN].argmax(axis=1)])
    np.testing.assert_array_equal(model.predict(TEST_ROWS, seen_penalty=9.0), only_unseen)
    only_seen = model.predict(TEST_ROWS, seen_penalty=-9.0)
    assert set(only_seen) <= set(SEEN)  # best but for rounding, which so high a penalty adds
    np.testing.assert_allclose(scores[np.arange(len(scores)), only_seen], scores[:, SEEN].max(axis=1), atol=1e-5)
    probabilities = model.predict_proba(TEST_ROWS)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    expected = np.exp((scores - scores.max(axis=1, keepdims=True)) / model.temperature)
    np.testing.assert_allclose(probabilities, expected / expected.sum(axis=1, keepdims=True), rtol=1e-4)

    model.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(TEST_ROWS), scores, strict=True)
    assert params(twin) == params(model)
    assert_same(learned(twin), learned(model))

    again = clone(model).fit(X, Y, VECTORS)
    assert_same(learned(again), learned(model))
    assert again.history_ == model.history_
    assert differs(model, clone(model).set_params(random_state=1).fit(X, Y, VECTORS))


def test_each_loss_and_each_gate_trains_its_own_weights() -> None:
    choices = [("revised", "argmax_all"), ("revised", "above_true"), ("revised", "always"), ("plain", "argmax_all")]
    choices.append(("incremental", "argmax_all"))
    models = [fit_quick(loss=loss, gate=gate, lambda_1=3.0, lambda_2=2.0) for loss, gate in choices]
    for one, two in itertools.combinations(models, 2):
        assert differs(one, two), (one, two)


@pytest.mark.parametrize(
    ("loss", "setting", "matters"),
    [
        ("revised", "lambda_1", True),
        ("revised", "lambda_2", False),
        ("incremental", "lambda_1", True),
        ("incremental", "lambda_2", True),
        ("plain", "lambda_1", False),
        ("plain", "lambda_2", False),
    ],
)
def test_a_loss_weight_matters_where_its_equation_has_it(loss: str, setting: str, matters: bool) -> None:
    assert differs(*(fit_quick(loss=loss, gate="always", **{setting: value}) for value in (0.5, 2.0))) is matters


@pytest.mark.parametrize("loss", ["revised", "incremental"])
def test_unseen_classes_may_have_no_weight_in_the_loss_of_seen_rows(loss: str) -> None:
    assert np.isfinite(fit_quick(loss=loss, gate="always", lambda_1=0.0).weights_).all()


@pytest.mark.parametrize(
    ("distribution", "change"),
    [
        ("statistical", {"resample": True}),
        ("statistical", {"lr_step": 1}),
        ("statistical", {"batch_size": 7}),
        ("statistical", {"temperature": 0.1}),
        ("statistical", {"n_per_class": 6}),
        ("small", {"small_std": 0.5}),
        ("large", {"large_std": 5.0}),
    ],
)
def test_each_setting_reaches_its_stage(distribution: str, change: dict[str, Any]) -> None:
    changed = fit_quick(distribution=distribution, **change)
    assert differs(changed, fit_quick(distribution=distribution))
    assert not differs(changed, clone(changed).fit(X, Y, VECTORS))


def test_the_stages_are_what_they_were_told_to_be() -> None:
    model = fit_quick("CVAE", weights="class_normalised", of_generator={"kl_weight": 0.5})
    assert isinstance(model.generator_, CVAE)
    assert model.generator_ is not model.generator  # which stays as the user gave it
    assert not hasattr(model.generator, "net_")
    assert model.generator_.kl_weight == 0.5
    assert model.classifier_.weights == "class_normalised"
    assert isinstance(DGZ().generator, type(None))
    assert model.device_ == "cpu"


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("generator", GENERATORS)
def test_every_composition_trains_with_bf16_on_the_cpu(generator: str, weights: str) -> None:
    model = fit_quick(generator, weights=weights, precision="bf16")
    exact = fit_quick(generator, weights=weights)
    assert model.weights_.dtype == exact.weights_.dtype == np.float32
    assert np.isfinite(model.weights_).all()
    assert all(values.dtype == np.float32 for name, values in learned(model).items() if "/" in name)
    ours, theirs = (net_values(one.generator_.net_) for one in (model, exact))
    assert any(not np.array_equal(values, theirs[name]) for name, values in ours.items())
    assert_same(learned(clone(model).fit(X, Y, VECTORS)), learned(model))
    before = learned(model)
    assert_same(learned(model.refine()), before)
    assert not np.array_equal(model.set_params(precision="float32").refine().weights_, before["weights_"])


def test_tf32_is_float32_on_the_cpu_and_the_default() -> None:
    assert DGZ().precision == "tf32"
    assert_same(learned(fit_quick(precision="float32")), learned(fit_quick()))


def test_a_precision_is_kept_with_the_model(tmp_path: Path) -> None:
    fit_quick("WGANGP", precision="bf16").save(tmp_path / "model")
    assert DGZ.load(tmp_path / "model").precision == "bf16"


@pytest.mark.parametrize("precision", ["float64", "half", "", None, 32])
def test_an_unknown_precision_is_refused(precision: Any) -> None:
    with refused("precision must be", "float32", "tf32", "bf16"):
        fit_quick(precision=precision)


def test_verbose_only_adds_words(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tiny: GZSLData
) -> None:
    monkeypatch.setattr("dgz.training.Progress", functools.partial(Progress, log_every=0.0))
    silent = fit_quick()
    assert capsys.readouterr() == ("", "")
    loud = quick(verbose=True).fit(X, Y, VECTORS, test=tiny, evaluate_every=1)
    said = capsys.readouterr()
    assert said.out == ""
    lines = said.err.splitlines()
    assert [line.split()[:4] for line in lines] == [
        [f"{stage}:", str(epoch), "of", "3"] for stage in ("generator", "classifier") for epoch in range(4)
    ]
    assert all(("loss" in line) == (" 0 of 3" not in line) for line in lines)
    assert "test H" in lines[-1]
    assert not differs(silent, loud)


# --- scikit-learn's own checks.
class OneHot(DGZ):
    """DGZ as scikit-learn's checks know a classifier: ``fit(X, y)``, with a unit vector for each class of ``y``."""

    def fit(self, X: Any, y: Any = None) -> "OneHot":  # type: ignore[override]
        classes = np.zeros(1) if y is None else np.unique(np.asarray(y))
        return super().fit(X, y, dict(zip(classes.tolist(), np.eye(len(classes)), strict=True)))


def one_hot(**overrides: Any) -> OneHot:
    generator = CenterMapper(n_epochs=1, steps_per_epoch=1, hidden=(8, 4))
    fast = {"n_epochs": 5, "d_hidden": 32, "learning_rate": 0.01, "lr_step": None, "feature_scaling": "none"}
    return OneHot(**{"generator": generator, "distribution": "statistical", **fast, "device": "cpu", **overrides})


_TWO_COLUMNS = (
    "decision_function has a column per class for two classes too, where scikit-learn wants one number: classes can be "
    "added to a model of two, and seen_penalty needs the columns apart"
)
EXPECTED_FAILURES = {
    "check_classifiers_classes": _TWO_COLUMNS,
    "check_classifiers_train": _TWO_COLUMNS,
    "check_decision_proba_consistency": _TWO_COLUMNS,
    "check_classifiers_regression_target": "a class is what has a vector: fractions are labels like any others",
}


def test_scikit_learns_checks_pass() -> None:
    results = check_estimator(one_hot(), expected_failed_checks=EXPECTED_FAILURES, on_skip=None, on_fail=None)
    assert len(results) > 40
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert failed == {}
    # One that passes now has no place among the expected failures any more.
    passed = {result["check_name"] for result in results if result["status"] == "passed"}
    assert passed.isdisjoint(EXPECTED_FAILURES)
    assert {result["check_name"] for result in results if result["status"] == "xfail"} == set(EXPECTED_FAILURES)


@pytest.mark.parametrize("n_classes", [2, 3])
def test_what_the_expected_failures_leave_out(n_classes: int) -> None:
    rows, y = make_blobs(n_samples=60 * n_classes, centers=4 * np.eye(3)[:n_classes], random_state=0)
    model = one_hot().fit(rows, y)
    scores = model.decision_function(rows)
    assert scores.shape == (len(rows), n_classes)
    np.testing.assert_array_equal(model.predict(rows), scores.argmax(axis=1))
    np.testing.assert_array_equal(model.predict_proba(rows).argmax(axis=1), scores.argmax(axis=1))
    assert model.score(rows, y) > 0.9


# --- Ready-made settings.
PUBLISHED = {  # docs/protocol.md, row 1
    "AWA2": {"paper": 0.005, "released": 0.005, "n_per_class": 100},
    "CUB": {"paper": 4.0, "released": 2.0, "n_per_class": 50},
    "SUN": {"paper": 0.8, "released": 0.8, "n_per_class": 50},
    "APY": {"paper": 0.04, "released": 0.04, "n_per_class": 50},
}


@pytest.mark.parametrize("without_generator", [False, True])
@pytest.mark.parametrize("source", ["paper", "released"])
@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_hold_the_published_settings(name: str, source: Any, without_generator: bool) -> None:
    model = DGZ.preset(name, source=source, without_generator=without_generator)
    base = DGZ.without_generator() if without_generator else DGZ(generator=WGANGP())
    expected = {
        **params(base),
        "lambda_1": PUBLISHED[name][source],
        "n_per_class": PUBLISHED[name]["n_per_class"],
        "gate": {"paper": "above_true", "released": "argmax_all"}[source],  # row 3
        "attribute_scaling": "none",
    }
    if source == "released" and not without_generator:
        expected["generator__n_epochs"] = 2000
    assert params(model) == expected
    # Row 4, and what else the released code has.
    assert (model.n_epochs, model.learning_rate, model.lr_step) == (60, 1e-4, 25)
    assert (model.batch_size, model.temperature, model.d_hidden) == (512, 0.04, 1024)
    assert (model.feature_scaling, model.attribute_scaling, model.loss) == ("minmax_l2", "none", "revised")
    if not without_generator:
        assert model.generator.attribute_noise == 0.08
    assert params(DGZ.preset(name.lower(), source=source, without_generator=without_generator)) == expected


def test_released_is_the_presets_default_source() -> None:
    assert params(DGZ.preset("CUB")) == params(DGZ.preset("CUB", source="released"))


def test_a_preset_can_be_overridden_down_to_its_generator() -> None:
    model = DGZ.preset("CUB", lambda_1=7.0, generator__n_epochs=3, gate="always")
    assert (model.lambda_1, model.generator.n_epochs, model.gate) == (7.0, 3, "always")
    assert DGZ.preset("CUB").lambda_1 == 2.0  # the table itself stays
    swapped = DGZ.preset("CUB", generator=CVAE(), generator__kl_weight=0.5)
    assert isinstance(swapped.generator, CVAE)
    assert swapped.generator.kl_weight == 0.5


def test_without_generator_has_the_same_parameters_with_other_values() -> None:
    model, plain = DGZ.without_generator(), DGZ()
    different = {name for name, value in model.get_params(deep=False).items() if value != getattr(plain, name)}
    assert different == {"generator", "distribution"}
    assert isinstance(model.generator, CenterMapper)
    assert model.distribution == "statistical"
    changed = DGZ.without_generator(lambda_1=0.5, distribution="small", generator__n_epochs=3)
    assert (changed.lambda_1, changed.distribution, changed.generator.n_epochs) == (0.5, "small", 3)


def test_the_short_schedule_trains_less_and_moves_faster() -> None:
    for short, released in (
        (DGZ.without_generator(schedule="short"), DGZ.without_generator()),
        (
            DGZ.preset("CUB", without_generator=True, schedule="short"),
            DGZ.preset("CUB", without_generator=True, schedule="released"),
        ),
    ):
        assert short.n_epochs < released.n_epochs
        assert short.generator.n_epochs < released.generator.n_epochs
        assert short.learning_rate > released.learning_rate
        assert short.generator.learning_rate > released.generator.learning_rate
        assert short.lr_step < short.n_epochs
        changed = {key for key, value in short.get_params().items() if value != released.get_params()[key]}
        rates = {"learning_rate", "generator__learning_rate"}
        assert changed == {"n_epochs", "lr_step", "generator", "generator__n_epochs", *rates}
    assert DGZ.without_generator(schedule="short", n_epochs=7).n_epochs == 7
    with refused("schedule must be one of released, short", "'long'"):
        DGZ.without_generator(schedule="long")  # type: ignore[arg-type]
    with refused("without generator alone"):
        DGZ.preset("CUB", schedule="short")


def test_unknown_presets_and_sources_are_named() -> None:
    with refused("preset must be one of AWA2, CUB, SUN, APY", "'MNIST'"):
        DGZ.preset("mnist")
    with refused("source must be one of paper, released", "'rumour'"):
        DGZ.preset("CUB", source="rumour")  # type: ignore[arg-type]


@pytest.mark.parametrize("make", [DGZ.without_generator, lambda **more: DGZ.preset("SUN", **more)])
def test_an_unknown_override_is_named(make: Callable[..., DGZ]) -> None:
    with pytest.raises(ValueError, match="lambda_3"):
        make(lambda_3=1.0)
    with pytest.raises(ValueError, match="n_epoch"):
        make(generator__n_epoch=1)


def defaults(function: Any) -> dict[str, Any]:
    parameters = inspect.signature(function).parameters.values()
    return {each.name: each.default for each in parameters if each.default is not each.empty}


def test_defaults_are_those_of_the_stages() -> None:
    of_model, of_classifier, of_instances = defaults(DGZ), defaults(CosineClassifier), defaults(synthesise)
    of_model |= {name: getattr(DGZ, name) for name in ("lr_factor", "beta_1", "weight_decay", "seen_ratio")}
    assert of_classifier.items() <= of_model.items()
    assert set(of_instances) == {"small_std", "large_std"}
    assert of_instances.items() <= of_model.items()
    assert of_classifier == CosineClassifier().get_params()


def test_no_generator_means_the_default_one(tmp_path: Path) -> None:
    model = DGZ(n_epochs=1, n_per_class=1, d_hidden=4, device="cpu")
    few = {"n_epochs": 1, "hidden": (4, 4), "critic_hidden": 4}
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("dgz.model.WGANGP", lambda: WGANGP(**few))
        model.fit(X, Y, VECTORS).save(tmp_path / "model")
        twin = DGZ.load(tmp_path / "model")
    assert model.generator is None
    assert_same(learned(twin), learned(model))
    assert params(twin) == params(model)
    assert params(DGZ(generator=model.generator_)) == params(DGZ(generator=WGANGP(**few)))


# --- Classes come and go.
@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=12, n_test=2)


@pytest.fixture(params=["names", "ids"])
def labels(request: pytest.FixtureRequest, numbers: GZSLData) -> np.ndarray:
    """What the 100 classes are called."""
    return np.array(numbers.class_names) if request.param == "names" else np.arange(100)


def counter(generator: str = "CenterMapper", **overrides: Any) -> DGZ:
    few = {"n_epochs": 1, "batch_size": 512} if generator == "WGANGP" else {"n_epochs": 1, "steps_per_epoch": 3}
    return quick(generator, of_generator=few, **{"d_hidden": 16, "n_epochs": 2, "n_per_class": 4, **overrides})


def learn(model: DGZ, numbers: GZSLData, labels: np.ndarray, left_out: Any = ()) -> DGZ:
    """Fit, on all the classes that are not left out."""
    kept = np.setdiff1d(np.arange(100), left_out)
    y, kept_labels = labels[numbers.y_train], labels[kept].tolist()
    rows = np.isin(numbers.y_train, kept)
    return model.fit(numbers.x_train[rows], y[rows], dict(zip(kept_labels, numbers.attributes[kept], strict=True)))


def late(numbers: GZSLData) -> np.ndarray:
    """Three unseen classes that come later, in no order."""
    return numbers.unseen[[7, 0, 19]]


@pytest.mark.parametrize("weights", ["mapped", "class_normalised"])
def test_added_classes_get_the_weights_of_their_vectors_and_nothing_else_changes(
    numbers: GZSLData, labels: np.ndarray, weights: str
) -> None:
    new = late(numbers)
    model = learn(counter(weights=weights), numbers, labels, left_out=new)
    before = learned(model)
    scores = model.decision_function(numbers.x_test_unseen)
    with torch.no_grad():
        mapped = model.classifier_.net_.eval()(torch.tensor(numbers.attributes[new])).numpy()
    start = time.perf_counter()
    assert model.add_classes(labels[new], numbers.attributes[new]) is model
    assert time.perf_counter() - start < 0.5

    np.testing.assert_array_equal(model.classes_, labels)
    np.testing.assert_array_equal(model.seen_, np.isin(np.arange(100), numbers.seen))
    np.testing.assert_array_equal(model.attributes_, numbers.attributes)
    others = np.setdiff1d(np.arange(100), new)
    np.testing.assert_array_equal(model.weights_[others], before["weights_"])
    norms = np.linalg.norm(mapped, axis=1, keepdims=True)
    np.testing.assert_allclose(model.weights_[new], mapped / np.maximum(norms, 1e-12), atol=1e-6)
    after = learned(model)
    assert_same(*({name: v for name, v in part.items() if "/" in name} for part in (before, after)))

    wide = model.decision_function(numbers.x_test_unseen)
    assert wide.shape[1] == 100
    np.testing.assert_allclose(wide[:, others], scores, atol=1e-6)
    confined = model.predict(numbers.x_test_unseen, classes=labels[new])
    assert set(confined) <= set(labels[new])


@pytest.mark.parametrize("weights", ["mapped", "class_normalised"])
def test_a_class_that_goes_and_comes_back_has_the_weights_it_had(
    numbers: GZSLData, labels: np.ndarray, weights: str
) -> None:
    model = learn(counter(weights=weights), numbers, labels)
    before, gone = learned(model), late(numbers)
    assert model.remove_classes(labels[gone]) is model
    others = np.setdiff1d(np.arange(100), gone)
    np.testing.assert_array_equal(model.classes_, labels[others])
    np.testing.assert_array_equal(model.seen_, before["seen_"][others])
    np.testing.assert_array_equal(model.attributes_, before["attributes_"][others])
    np.testing.assert_array_equal(model.weights_, before["weights_"][others])
    model.add_classes(labels[gone], numbers.attributes[gone])
    after = learned(model)
    np.testing.assert_allclose(after.pop("weights_"), before.pop("weights_"), atol=1e-6)
    assert_same(after, before)


def test_classes_may_be_added_one_by_one(numbers: GZSLData, labels: np.ndarray) -> None:
    new = late(numbers)
    together, singly = (learn(counter(), numbers, labels, left_out=new) for _ in range(2))
    together.add_classes(labels[new], numbers.attributes[new])
    for one in new[::-1]:
        singly.add_classes(labels[one], numbers.attributes[one])
    np.testing.assert_allclose(singly.weights_, together.weights_, atol=1e-6)
    np.testing.assert_array_equal(singly.classes_, together.classes_)


def test_a_label_longer_than_all_before_stays_whole() -> None:
    model = quick().fit(X, NAMES[Y], dict(zip(NAMES.tolist(), VECTORS, strict=True)))
    model.add_classes("a quite long name", VECTORS[0] + 1)
    assert model.classes_.tolist() == ["a quite long name", *NAMES]


@pytest.mark.parametrize(
    ("generator", "distribution", "weights", "random_state"),
    [
        ("CenterMapper", "statistical", "mapped", 0),
        ("CenterMapper", "small", "class_normalised", 5),
        ("WGANGP", "generated", "mapped", 0),
        ("WGANGP", "statistical", "class_normalised", 0),
        ("CenterMapper", "statistical", "mapped", "a RandomState"),
    ],
)
def test_refining_is_as_if_the_classes_had_been_there_from_the_start(
    numbers: GZSLData, labels: np.ndarray, generator: str, distribution: str, weights: str, random_state: Any
) -> None:
    def make() -> DGZ:
        seed = np.random.RandomState(0) if random_state == "a RandomState" else random_state
        return counter(generator, distribution=distribution, weights=weights, random_state=seed)

    new = late(numbers)
    expected = learned(learn(make(), numbers, labels))
    model = learn(make(), numbers, labels, left_out=new)
    assert model.add_classes(labels[new], numbers.attributes[new], refine=True) is model
    assert_same(learned(model), expected)

    without = learned(learn(make(), numbers, labels, left_out=new))
    assert_same(learned(model.remove_classes(labels[new], refine=True)), without)


@pytest.mark.parametrize("change", [{"lambda_1": 5.0}, {"weights": "free"}, {"n_per_class": 9}, {"n_epochs": 1}])
def test_a_refinement_follows_the_present_settings_of_the_classifier(fitted: DGZ, change: dict[str, Any]) -> None:
    before = learned(fitted)
    assert_same(learned(fitted.refine()), before)
    assert_same(learned(fitted.set_params(**change).refine()), learned(fit_quick(**change)))
    assert_same(learned(fitted.refine(X[::-1], Y[::-1])), learned(fitted.refine(X[::-1], Y[::-1])))


def test_a_refinement_without_a_seen_class_leaves_its_rows_out(numbers: GZSLData, labels: np.ndarray) -> None:
    gone = numbers.seen[[5, 1]]
    model, twin = (learn(counter(), numbers, labels) for _ in range(2))
    model.remove_classes(labels[gone], refine=True)
    np.testing.assert_array_equal(model.classes_, np.delete(labels, gone))
    rows = ~np.isin(numbers.y_train, gone)
    twin.remove_classes(labels[gone], refine=True, X=numbers.x_train[rows], y=labels[numbers.y_train[rows]])
    assert_same(learned(model), learned(twin))
    assert differs(model, learn(counter(), numbers, labels).remove_classes(labels[gone]))


def test_a_loaded_model_takes_on_classes_like_the_one_that_was_saved(
    numbers: GZSLData, labels: np.ndarray, tmp_path: Path
) -> None:
    new = late(numbers)
    model, unsaved = (learn(counter(), numbers, labels, left_out=new) for _ in range(2))
    model.save(tmp_path / "model")
    plain, refined = DGZ.load(tmp_path / "model"), DGZ.load(tmp_path / "model")
    plain.add_classes(labels[new], numbers.attributes[new])
    y = labels[numbers.y_train]
    refined.add_classes(labels[new], numbers.attributes[new], refine=True, X=numbers.x_train, y=y)
    assert_same(learned(plain), learned(unsaved.add_classes(labels[new], numbers.attributes[new])))
    model.add_classes(labels[new], numbers.attributes[new], refine=True)
    assert_same(learned(refined), learned(model))
    refined.save(tmp_path / "refined")
    twin = DGZ.load(tmp_path / "refined")
    np.testing.assert_array_equal(
        twin.decision_function(numbers.x_test_seen), refined.decision_function(numbers.x_test_seen)
    )


def test_a_model_can_be_grown_and_saved(fitted: DGZ, tmp_path: Path) -> None:
    fitted.add_classes([9, 7], VECTORS[:2] + 1).remove_classes([0, 5]).save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    assert twin.classes_.tolist() == [1, 2, 3, 4, 7, 9]
    assert_same(learned(twin), learned(fitted))


def test_free_weights_cannot_take_on_classes_but_can_lose_them(tmp_path: Path) -> None:
    model = fit_quick(weights="free")
    before = learned(model)
    for refine in (False, True):
        with refused("free weights cannot take on classes"):
            model.add_classes([9], VECTORS[:1], refine=refine)
    assert_same(learned(model), before)
    model.remove_classes([4, 0])
    np.testing.assert_array_equal(model.weights_, before["weights_"][[1, 2, 3, 5]])
    model.save(tmp_path / "model")
    assert_same(learned(DGZ.load(tmp_path / "model")), learned(model))
    model.remove_classes([5], refine=True)
    assert model.weights_.shape == (3, 5)
    assert model.decision_function(X).shape == (len(X), 3)


def test_all_seen_or_all_unseen_classes_may_go() -> None:
    assert set(fit_quick().remove_classes(SEEN).predict(X)) <= set(UNSEEN)
    assert set(fit_quick().remove_classes(UNSEEN, refine=True).predict(X)) <= set(SEEN)


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize(
    ("names", "vectors", "words"),
    [
        ([9, 5], VECTORS[:2], "New labels must be new and different from each other, found 9, 5"),
        ([9, 9], VECTORS[:2], "New labels must be new and different from each other, found 9, 9"),
        ([9], VECTORS[:1, :2], "attributes must have the shape (1, 3), found (1, 2)"),
        ([9], VECTORS[:2], "attributes must have the shape (1, 3), found (2, 3)"),
        ([9, 10], VECTORS[0], "attributes must have the shape (2, 3), found (1, 3)"),
        ([9, 8], [[0.0, 0, 0], [0, np.nan, 0]], "found NaN or infinity in the vector of"),
        ([9], [[0.0, np.inf, 0]], "attributes must be finite"),
        ([9], [[0.0, 1e300, 0]], "attributes must be finite"),
        ([9], [["a", "b", "c"]], "attributes must hold numbers"),
        ([9, 8], [[0.0, 0, 0], [0, 0]], "attributes"),
        (["nine"], VECTORS[:1], "New labels must be like the model's (int64), found <U4"),
        ([9.5], VECTORS[:1], "New labels must be like the model's (int64), found float64"),
        ([True], VECTORS[:1], "New labels must be like the model's (int64), found bool"),
        ([], np.empty((0, 3)), "New labels must"),
        ([[9]], VECTORS[:1], "abels must"),
    ],
)
def test_classes_that_cannot_be_added_leave_the_model_as_it_was(
    fitted: DGZ, names: Any, vectors: Any, words: str, refine: bool
) -> None:
    before = learned(fitted)
    with refused(words):
        fitted.add_classes(names, vectors, refine=refine)
    assert_same(learned(fitted), before)


@pytest.mark.parametrize("refine", [False, True])
@pytest.mark.parametrize("weights", ["mapped", "free"])
@pytest.mark.parametrize(
    ("names", "words"),
    [
        ([0, 99], "does not know 1 of classes: 99"),
        (["c0"], "does not know 1 of classes: c0"),
        ([], "at least one class"),
        (np.arange(6), "At least one class must remain"),
    ],
)
def test_classes_that_cannot_be_removed_leave_the_model_as_it_was(
    weights: str, names: Any, words: str, refine: bool
) -> None:
    model = fit_quick(weights=weights)
    before = learned(model)
    with refused(words):
        model.remove_classes(names, refine=refine)
    assert_same(learned(model), before)


BROKEN_ROWS: dict[str, tuple[dict[str, Any], str]] = {
    "X without y": ({"X": X}, "both X and y"),
    "y without X": ({"y": Y}, "both X and y"),
    "no rows of a seen class": ({"X": X[:18], "y": Y[:18]}, "training rows of every seen class"),
    "another length": ({"X": X, "y": Y[:-1]}, ""),
    "another width": ({"X": X[:, :4], "y": Y}, "features"),
    "NaN": ({"X": np.where(np.arange(24)[:, None] == 3, np.nan, X), "y": Y}, ""),
    "words": ({"X": X.astype(str), "y": Y}, ""),
}


@pytest.mark.parametrize("broken", BROKEN_ROWS)
def test_a_refinement_that_fails_leaves_the_model_as_it_was(fitted: DGZ, broken: str) -> None:
    arguments, words = BROKEN_ROWS[broken]
    before = learned(fitted)
    with refused(words):
        fitted.add_classes([9], VECTORS[:1], refine=True, **arguments)
    assert_same(learned(fitted), before)
    with refused(words):
        fitted.remove_classes([5], refine=True, **arguments)
    assert_same(learned(fitted), before)
    with refused(words):
        fitted.refine(**arguments)
    assert_same(learned(fitted), before)
    fitted.add_classes([9], VECTORS[:1], refine=True)  # and the rows of fit are still there
    assert fitted.weights_.shape == (7, 5)


@pytest.mark.parametrize("weights", ["mapped", "free"])
def test_a_loaded_model_without_rows_stays_as_it_was(weights: str, tmp_path: Path) -> None:
    fit_quick(weights=weights).save(tmp_path / "model")
    model = DGZ.load(tmp_path / "model")
    before = learned(model)
    if weights == "mapped":
        with refused("A loaded model holds no training rows"):
            model.add_classes([9], VECTORS[:1], refine=True)
        assert_same(learned(model), before)
    with refused("A loaded model holds no training rows"):
        model.remove_classes([5], refine=True)
    assert_same(learned(model), before)
    with refused("A loaded model holds no training rows"):
        model.refine()
    assert_same(learned(model), before)
    assert model.predict(X).shape == Y.shape


def test_a_training_that_breaks_down_leaves_the_model_as_it_was(fitted: DGZ) -> None:
    before = learned(fitted)
    fitted.set_params(learning_rate=1e30)
    with refused("Training the classifier stopped"):
        fitted.add_classes([9], VECTORS[:1], refine=True)
    assert_same(learned(fitted), before)
    with refused("Training the classifier stopped"):
        fitted.remove_classes([5], refine=True)
    assert_same(learned(fitted), before)
    with refused("Training the classifier stopped"):
        fitted.refine()
    assert_same(learned(fitted), before)


def test_a_model_without_seen_classes_cannot_be_refined(fitted: DGZ) -> None:
    before = learned(fitted)
    with refused("training rows of every seen class"):
        fitted.remove_classes(SEEN, refine=True)
    assert_same(learned(fitted), before)


def test_an_unfitted_model_has_no_classes_to_change(tmp_path: Path) -> None:
    for use in (
        lambda: quick().add_classes([9], VECTORS[:1]),
        lambda: quick().remove_classes([9]),
        lambda: quick().refine(X, Y),
        lambda: quick().predict(X),
        lambda: quick().save(tmp_path / "model"),
    ):
        with pytest.raises(NotFittedError):
            use()
    assert list(tmp_path.iterdir()) == []


def test_new_labels_may_come_in_any_form_that_fit_takes() -> None:
    frame = pd.DataFrame(VECTORS, index=NAMES)
    model = quick().fit(X, pd.Series(NAMES[Y]), frame)
    new = pd.DataFrame(VECTORS[:2] + 1, index=["x0", "a0"])
    model.add_classes(new.index, new)
    assert model.classes_.tolist() == ["a0", *NAMES, "x0"]
    assert model.classes_.dtype.kind == "U"
    np.testing.assert_array_equal(model.attributes_[0], np.float32(VECTORS[1] + 1))
    model.remove_classes(new.index)
    assert model.classes_.tolist() == NAMES.tolist()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.uint64])
def test_whole_numbers_of_any_width_stay_whole_numbers(fitted: DGZ, dtype: Any) -> None:
    fitted.add_classes(np.array([9], dtype=dtype), VECTORS[:1])
    assert fitted.classes_.dtype.kind in "iu"
    assert fitted.classes_.tolist() == [0, 1, 2, 3, 4, 5, 9]


# --- Checkpoints and history.
class InterruptionError(Exception):
    """Stands for Ctrl-C, which would end the tests too."""


def count_updates(patch: pytest.MonkeyPatch, stage: str, break_at: int | None = None) -> list[int]:
    """Keep a list of a stage's updates of a network; number ``break_at`` of them is interrupted."""
    modules = {"generator": (center, cvae, wgan), "classifier": (classifier,)}[stage]
    calls: list[int] = []

    def counted(update: Callable[..., None]) -> Callable[..., None]:
        def counting(*arguments: Any) -> None:
            calls.append(len(calls) + 1)
            if calls[-1] == break_at:
                raise InterruptionError
            update(*arguments)

        return counting

    for module in modules:
        for name in {"update", "descend"} & set(vars(module)):
            patch.setattr(module, name, counted(getattr(module, name)))
    return calls


@pytest.mark.parametrize("break_at", [0.5, 0.9])
@pytest.mark.parametrize("stage", ["generator", "classifier"])
@pytest.mark.parametrize(
    ("generator", "weights"), [("WGANGP", "mapped"), ("CVAE", "class_normalised"), ("CenterMapper", "free")]
)
def test_a_broken_training_goes_on_as_if_it_had_not_been_broken(
    generator: str, weights: str, stage: str, break_at: float, tmp_path: Path
) -> None:
    def make() -> DGZ:
        return quick(generator, weights=weights, distribution="small", lr_step=2)

    with pytest.MonkeyPatch.context() as patch:
        updates = {each: count_updates(patch, each) for each in ("generator", "classifier")}
        whole = make().fit(X, Y, VECTORS)
    n_updates = {each: len(calls) for each, calls in updates.items()}
    kept = {"checkpoint_folder": tmp_path / "kept", "checkpoint_seconds": 0}
    with pytest.MonkeyPatch.context() as patch:
        done = count_updates(patch, stage, break_at=math.ceil(break_at * n_updates[stage]))  # in the middle of an epoch
        with pytest.raises(InterruptionError):
            make().fit(X, Y, VECTORS, **kept)
    with pytest.MonkeyPatch.context() as patch:
        updates = {each: count_updates(patch, each) for each in ("generator", "classifier")}
        resumed = make().fit(X, Y, VECTORS, **kept)
    assert_same(learned(resumed), learned(whole))
    assert resumed.history_ == whole.history_
    # Whole epochs are not trained again: one of three, or two.
    assert len(updates[stage]) == n_updates[stage] * (2 if break_at == 0.5 else 1) // 3
    assert len(done) + len(updates[stage]) > n_updates[stage]
    assert len(updates["generator"]) == 0 or stage == "generator"
    names = sorted(path.name for path in (tmp_path / "kept").iterdir())
    assert names == ["classifier.safetensors", "generator.safetensors"]


def test_a_training_broken_before_its_first_state_was_kept_starts_anew(tmp_path: Path) -> None:
    with pytest.MonkeyPatch.context() as patch:
        count_updates(patch, "generator", break_at=20)
        with pytest.raises(InterruptionError):
            quick().fit(X, Y, VECTORS, checkpoint_folder=tmp_path / "kept", checkpoint_seconds=1000)
    assert not (tmp_path / "kept").exists()
    resumed = quick().fit(X, Y, VECTORS, checkpoint_folder=tmp_path / "kept")
    assert_same(learned(resumed), learned(fit_quick()))


def test_evaluations_on_the_way_survive_an_interruption(tiny: GZSLData, tmp_path: Path) -> None:
    arguments: dict[str, Any] = {"test": tiny, "evaluate_every": 1}
    whole = quick().fit(X, Y, VECTORS, **arguments)
    with pytest.MonkeyPatch.context() as patch:
        count_updates(patch, "generator", break_at=20)
        with pytest.raises(InterruptionError):
            quick().fit(X, Y, VECTORS, **arguments, checkpoint_folder=tmp_path, checkpoint_seconds=0)
    resumed = quick().fit(X, Y, VECTORS, **arguments, checkpoint_folder=tmp_path, checkpoint_seconds=0)
    assert resumed.history_ == whole.history_
    assert_same(learned(resumed), learned(whole))


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the checkpoints of a finished training."""
    folder = tmp_path_factory.mktemp("checkpoints")
    quick(random_state=0).fit(X, Y, VECTORS, checkpoint_folder=folder)
    return folder


OTHER_ROWS = X + np.float32(0.5) * (np.arange(24) == 7)[:, None]


@pytest.mark.parametrize(
    ("change", "arguments"),
    [
        ({"lambda_1": 2.0}, (X, Y, VECTORS)),
        ({"random_state": 1}, (X, Y, VECTORS)),
        ({"n_epochs": 4}, (X, Y, VECTORS)),
        ({"feature_scaling": "minmax"}, (X, Y, VECTORS)),
        ({"of_generator": {"attribute_noise": 0.1}}, (X, Y, VECTORS)),
        ({"generator": "CVAE"}, (X, Y, VECTORS)),
        ({}, (OTHER_ROWS, Y, VECTORS)),
        ({}, (X, Y[::-1].copy(), VECTORS)),
        ({}, (X, Y, VECTORS + 0.1)),
        ({}, (X, Y, VECTORS[:5])),
        ({}, (X, NAMES[Y], dict(zip(NAMES.tolist(), VECTORS, strict=True)))),
    ],
)
def test_checkpoints_of_something_else_are_refused(
    kept: Path, change: dict[str, Any], arguments: tuple[Any, ...]
) -> None:
    before = {path.name: path.read_bytes() for path in kept.iterdir()}
    with refused("generator.safetensors is a checkpoint of other settings or other data"):
        quick(**change).fit(*arguments, checkpoint_folder=kept)
    assert {path.name: path.read_bytes() for path in kept.iterdir()} == before


def test_checkpoints_serve_the_same_training_and_may_be_watched(kept: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = quick(verbose=True).fit(X, Y, VECTORS, checkpoint_folder=kept)
    assert_same(learned(model), learned(fit_quick()))


def test_checkpoints_of_another_random_state_are_refused(tmp_path: Path) -> None:
    quick(random_state=np.random.RandomState(0)).fit(X, Y, VECTORS, checkpoint_folder=tmp_path)
    with refused("is a checkpoint of other settings or other data"):
        quick(random_state=np.random.RandomState(1)).fit(X, Y, VECTORS, checkpoint_folder=tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(data=st.data())
def test_a_damaged_checkpoint_is_noticed_or_harmless(kept: Path, tmp_path: Path, data: st.DataObject) -> None:
    for name in ("generator", "classifier"):
        (tmp_path / f"{name}.safetensors").write_bytes((kept / f"{name}.safetensors").read_bytes())
    damage(tmp_path / "classifier.safetensors", data.draw)
    model, problem = attempt(lambda: quick().fit(X, Y, VECTORS, checkpoint_folder=tmp_path))
    assert model is not None or "classifier.safetensors" in problem


def test_history_tells_stages_epochs_and_scores(tiny: GZSLData) -> None:
    model = quick(of_generator={"n_epochs": 4}).fit(X, Y, VECTORS, test=tiny, evaluate_every=2)
    classifier = [("classifier", 1), ("classifier", 2), ("classifier", 3)]
    # After epoch 2 on the way, and after the last epoch once, for good.
    expected = [("generator", 1), ("generator", 2), *classifier, ("generator", 3), ("generator", 4), *classifier]
    assert [(row["stage"], row["epoch"]) for row in model.history_] == expected
    of_classifiers = [row for row in model.history_ if row["stage"] == "classifier"]
    assert [row["generator_epoch"] for row in of_classifiers] == [2, 2, 2, 4, 4, 4]
    for row in model.history_:
        assert np.isfinite(row["loss"])
        is_scored = {"acc_unseen", "acc_seen", "h", "acc_zsl"} <= row.keys()
        assert is_scored == (row["stage"] == "classifier")
    final = gzsl_scores(model, tiny)
    last = model.history_[-1]
    for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert last[name] == pytest.approx(getattr(final, name))


def test_a_classifier_on_the_way_is_that_of_a_shorter_training(tiny: GZSLData) -> None:
    long = quick(of_generator={"n_epochs": 4}).fit(X, Y, VECTORS, test=tiny, evaluate_every=2)
    short = quick(of_generator={"n_epochs": 2}).fit(X, Y, VECTORS, test=tiny)
    on_the_way = [row for row in long.history_ if row.get("generator_epoch") == 2]
    assert on_the_way == [row for row in short.history_ if row["stage"] == "classifier"]


@pytest.mark.parametrize("generator", ["CenterMapper", "WGANGP"])
@pytest.mark.parametrize("weights", ["mapped", "class_normalised"])
def test_test_rows_never_influence_the_model(tiny: GZSLData, generator: str, weights: str) -> None:
    other = GZSLData(**{**tiny_parts(), "x_test_seen": 1 - tiny.x_test_seen})
    plain = fit_quick(generator, weights=weights)
    assert all("h" not in row for row in plain.history_)
    for test, every in ((tiny, 0), (tiny, 1), (other, 1)):
        watched = quick(generator, weights=weights).fit(X, Y, VECTORS, test=test, evaluate_every=every)
        assert_same(learned(watched), learned(plain))


def test_named_classes_are_scored_like_numbered_ones(tiny: GZSLData) -> None:
    vectors = dict(zip(NAMES[::-1].tolist(), VECTORS[::-1], strict=True))
    named = quick().fit(X, NAMES[Y], vectors, test=tiny)
    assert named.history_ == quick().fit(X, Y, VECTORS, test=tiny).history_


def test_history_survives_saving(tiny: GZSLData, tmp_path: Path) -> None:
    model = quick().fit(X, Y, VECTORS, test=tiny, evaluate_every=1)
    model.save(tmp_path / "model")
    assert DGZ.load(tmp_path / "model").history_ == model.history_


def test_test_rows_that_cannot_be_scored_are_refused_before_training(tiny: GZSLData) -> None:
    with pytest.MonkeyPatch.context() as patch:
        count_updates(patch, "generator", break_at=1)
        with refused("they differ in ['5']"):
            quick().fit(X, Y, VECTORS[:5], test=tiny)
        with refused("evaluate_every must be a number from 0 up"):
            quick().fit(X, Y, VECTORS, test=tiny, evaluate_every=-1)
        with refused("X has 5 features, but 4 were fitted"):
            quick().fit(X[:, :4], Y, VECTORS, test=tiny)


# --- Files.
@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model's folder, to be copied before it is changed."""
    folder = tmp_path_factory.mktemp("saved") / "model"
    quick(attribute_scaling="standard").fit(X, Y, VECTORS).save(folder)
    return folder


def copied(saved: Path, folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for path in saved.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def with_header(saved: Path, folder: Path, **changes: Any) -> Path:
    header = json.loads((copied(saved, folder) / "model.json").read_text())
    (folder / "model.json").write_text(json.dumps({**header, **changes}))
    return folder


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_damage_never_gives_more_than_a_sentence(saved: Path, tmp_path: Path, name: str, data: st.DataObject) -> None:
    folder = copied(saved, tmp_path / "model")
    damage(folder / name, data.draw, within=2000)
    model, problem = attempt(lambda: DGZ.load(folder))
    assert str(folder) in problem if model is None else model.weights_.shape == (6, 5)
    assert "\n" not in problem


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=25, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("name", ["model.json", "model.safetensors"])
def test_a_truncated_file_is_always_noticed(saved: Path, tmp_path: Path, name: str, data: st.DataObject) -> None:
    folder = copied(saved, tmp_path / "model")
    content = (folder / name).read_bytes()
    end = len(content.rstrip()) - 1  # model.json ends in a line break that means nothing
    (folder / name).write_bytes(content[: data.draw(st.integers(0, end))])
    with pytest.raises(DataError, match=name.replace(".", r"\.")):
        DGZ.load(folder)


def test_a_newer_model_says_its_version(saved: Path, tmp_path: Path) -> None:
    with refused("is of a model of version 2, but this dgz reads 1"):
        DGZ.load(with_header(saved, tmp_path, version=2))


@pytest.mark.parametrize("content", ["[]", "{}", "3", "null", '"dgz-model"', '{"format": "dgz-bundle", "version": 1}'])
def test_foreign_json_is_no_model(saved: Path, tmp_path: Path, content: str) -> None:
    copied(saved, tmp_path)
    (tmp_path / "model.json").write_text(content)
    with refused("model.json is not of a model"):
        DGZ.load(tmp_path)


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000, b"1" * 5000])
def test_a_header_that_cannot_be_read_is_named(saved: Path, tmp_path: Path, content: bytes) -> None:
    copied(saved, tmp_path)
    (tmp_path / "model.json").write_bytes(content)
    with pytest.raises(DataError, match=r"model\.json is not valid JSON"):
        DGZ.load(tmp_path)


def test_missing_files_are_named(saved: Path, tmp_path: Path) -> None:
    with refused("nowhere is not a model: it has no model.json"):
        DGZ.load(tmp_path / "nowhere")
    with refused("is not a model: it has no model.json"):
        DGZ.load(tmp_path)
    folder = copied(saved, tmp_path / "model")
    (folder / "model.safetensors").unlink()
    with refused("model.safetensors cannot be read"):
        DGZ.load(folder)
    (folder / "model.safetensors").mkdir()
    with refused("model.safetensors cannot be read"):
        DGZ.load(folder)
    with refused("is not a model"):
        DGZ.load(saved / "model.json")


def test_each_tensor_is_needed_in_its_shape(saved: Path, tmp_path: Path) -> None:
    tensors = load_file(saved / "model.safetensors")
    assert {name.split("/")[0] for name in tensors} == {
        *("attributes", "weights", "scaler", "attribute_scaler"),
        *("generator", "classifier"),
    }
    folder = copied(saved, tmp_path / "model")
    for name in tensors:
        save_file({other: v for other, v in tensors.items() if other != name}, folder / "model.safetensors")
        with refused("is broken", name.split("/")[-1]):
            DGZ.load(folder)
        save_file({**tensors, name: torch.zeros(7, 9)}, folder / "model.safetensors")
        with refused("is broken"):
            DGZ.load(folder)
    save_file({**tensors, "classifier/more": torch.zeros(1)}, folder / "model.safetensors")
    with refused("is broken", "more"):
        DGZ.load(folder)


@pytest.mark.parametrize(
    "changes",
    [
        {"params": None},
        {"params": [1, 2]},
        {"classes": [0, 1, 2, 3, 4]},
        {"classes": 6},
        {"classes": [[0], [1], [2], [3], [4], [5]]},
        {"classes": [0, 1, 2, 3, 4, 4]},
        {"classes": [5, 4, 3, 2, 1, 0]},
        {"classes": [0, 1, 2, 3, 4, {}]},
        {"seen": [True]},
        {"seen": 5},
        {"n_features": 4},
        {"n_features": "five"},
        {"n_features": None},
        {"n_features": float("inf")},
        {"noise": "loud"},
        {"history": 5},
    ],
    ids=str,
)
def test_a_header_that_does_not_fit_is_broken(saved: Path, tmp_path: Path, changes: dict[str, Any]) -> None:
    with refused("is broken"):
        DGZ.load(with_header(saved, tmp_path, **changes))


@pytest.mark.parametrize("name", ["params", "classes", "seen", "n_features", "noise", "device", "history"])
def test_a_header_without_a_part_is_broken(saved: Path, tmp_path: Path, name: str) -> None:
    header = json.loads((copied(saved, tmp_path) / "model.json").read_text())
    del header[name]
    (tmp_path / "model.json").write_text(json.dumps(header))
    with refused("is broken", name):
        DGZ.load(tmp_path)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"lambda_3": 1}, "lambda_3"),
        ({"weights": "gifted"}, ""),
        ({"feature_scaling": "rubber"}, "feature_scaling must be one of"),
        ({"attribute_scaling": "rubber"}, "attribute_scaling must be one of"),
        ({"d_hidden": 9}, ""),
        ({"d_hidden": 10**30}, ""),
        ({"d_hidden": "wide"}, ""),
        ({"d_hidden": -1}, ""),
        ({"generator": "CenterMapper"}, ""),
        ({"generator": {}}, ""),
        ({"generator": {"kind": "Oracle"}}, "Oracle"),
        ({"generator": {"kind": "CenterMapper", "temperature": 1}}, "temperature"),
        ({"generator": {"kind": "CenterMapper", "hidden": [16, 9]}}, ""),
        ({"generator": {"kind": "CenterMapper", "hidden": None}}, ""),
        ({"generator": {"kind": "CVAE", "hidden": [16, 8]}}, ""),
    ],
    ids=str,
)
def test_parameters_that_are_not_the_models_are_refused(
    saved: Path, tmp_path: Path, changes: dict[str, Any], words: str
) -> None:
    header = json.loads((saved / "model.json").read_text())
    with refused("is broken", words):
        DGZ.load(with_header(saved, tmp_path, params={**header["params"], **changes}))


def test_saving_replaces_a_model_only_when_told(fitted: DGZ, tmp_path: Path) -> None:
    folder, other = tmp_path / "model", fit_quick(random_state=1)
    fitted.save(str(folder))
    with refused("exists already"):
        other.save(folder)
    assert not differs(DGZ.load(str(folder)), fitted)
    other.save(folder, overwrite=True)
    assert not differs(DGZ.load(folder), other)
    assert sorted(path.name for path in folder.iterdir()) == ["model.json", "model.safetensors"]


def test_a_save_that_fails_leaves_the_old_model(fitted: DGZ, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fitted.save(tmp_path / "model")

    def fail(*arguments: Any) -> None:
        raise SafetensorError("No space left on device")

    other = fit_quick(random_state=1)
    monkeypatch.setattr("safetensors.numpy.save_file", fail)
    with refused("model could not be written", "No space left"):
        other.save(tmp_path / "model", overwrite=True)
    monkeypatch.undo()

    def full(*arguments: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dgz.estimator.write_json", full)
    with pytest.raises(OSError, match="No space left"):
        other.save(tmp_path / "model", overwrite=True)
    with pytest.raises(OSError, match="No space left"):
        other.save(tmp_path / "new")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]
    assert_same(learned(DGZ.load(tmp_path / "model")), learned(fitted))


def test_a_loaded_model_keeps_the_kinds_of_its_parameters(fitted: DGZ, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    assert repr(twin) == repr(fitted)
    assert {**twin.get_params(), "generator": 0} == {**fitted.get_params(), "generator": 0}


def test_what_is_not_saved_is_the_rows(fitted: DGZ, tmp_path: Path) -> None:
    fitted.save(tmp_path / "model")
    tensors = load_file(tmp_path / "model" / "model.safetensors")
    assert all(len(values) != len(X) for values in tensors.values() if values.ndim)
    missing = {name for name in vars(fitted) if name.endswith("_")} - set(vars(DGZ.load(tmp_path / "model")))
    assert missing == set()


@pytest.mark.parametrize("attribute_scaling", ["none", "unit", "standard", "sqrt_d"])
@pytest.mark.parametrize("feature_scaling", ["none", "minmax", "minmax_l2"])
def test_every_scaling_is_saved(feature_scaling: str, attribute_scaling: str, tmp_path: Path) -> None:
    model = fit_quick(feature_scaling=feature_scaling, attribute_scaling=attribute_scaling)
    model.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(TEST_ROWS), model.decision_function(TEST_ROWS), strict=True)
    for one in (model, twin):
        one.add_classes([9], VECTORS[0] + 1)
    assert not differs(model, twin)


@pytest.mark.parametrize(
    "change",
    [
        {"d_hidden": 9},
        {"weights": "free"},
        {"feature_scaling": "none"},
        {"attribute_scaling": "standard"},
        {"generator__hidden": (4, 4)},
        {"generator": None},
        {"lambda_1": 9.0},
    ],
    ids=str,
)
def test_settings_changed_after_fit_do_not_spoil_what_is_saved(
    fitted: DGZ, change: dict[str, Any], tmp_path: Path
) -> None:
    fitted.set_params(**change)
    _, problem = attempt(lambda: fitted.save(tmp_path / "model") or fitted)
    if not problem:  # to refuse would be an answer, too, but a model that cannot be loaded is none
        twin = DGZ.load(tmp_path / "model")
        np.testing.assert_array_equal(twin.decision_function(X), fitted.decision_function(X))


def test_feature_names_are_saved(tmp_path: Path) -> None:
    frame = pd.DataFrame(X, columns=list("abcde"))
    model = quick().fit(frame, Y, VECTORS)
    model.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.predict(frame), model.predict(frame))
    with pytest.raises(ValueError, match="feature names"):
        twin.predict(frame[list("edcba")])


@pytest.mark.parametrize("random_state", [None, np.int64(3), np.random.RandomState(0)], ids=["None", "numpy", "state"])
def test_whatever_was_random_the_model_can_be_saved(random_state: Any, tmp_path: Path) -> None:
    model = fit_quick(random_state=random_state)
    model.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(X), model.decision_function(X), strict=True)


def test_numpys_numbers_are_numbers(fitted: DGZ, tmp_path: Path) -> None:
    grid = {
        "n_epochs": np.arange(4)[3],
        "lambda_1": np.float32(1),
        "lr_step": np.int64(25),
        "learning_rate": np.float64(0.01),
    }
    model = fit_quick(**grid, of_generator={"n_epochs": np.int64(3)})
    assert not differs(model, fitted)
    model.save(tmp_path / "model")
    assert params(DGZ.load(tmp_path / "model")) == params(fitted)


# --- Edges.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("n_seen", "n_all"), [(4, 5), (1, 6), (4, 4), (1, 2), (1, 1)], ids=lambda number: f"{number}")
def test_few_classes_are_enough(n_seen: int, n_all: int, weights: str) -> None:
    rows = n_seen > Y
    model = quick(weights=weights).fit(X[rows], Y[rows], VECTORS[:n_all])
    assert (model.seen_.sum(), len(model.classes_)) == (n_seen, n_all)
    scores = model.decision_function(TEST_ROWS)
    assert scores.shape == (len(TEST_ROWS), n_all)
    assert np.isfinite(scores).all()
    assert set(model.predict(TEST_ROWS)) <= set(range(n_all))


@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_a_class_with_one_row_is_enough(distribution: str) -> None:
    generator = "WGANGP" if distribution == "generated" else "CenterMapper"
    for rows in ([0, *range(6, 24)], [0, 6, 12, 18], [0]):  # one class has one row, all have, there is one at all
        model = quick(generator, distribution=distribution).fit(X[rows], Y[rows], VECTORS)
        assert np.isfinite(model.decision_function(TEST_ROWS)).all()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("attribute_scaling", ["none", "unit", "standard", "sqrt_d"])
def test_a_constant_attribute_and_a_vector_of_zeros_do_no_harm(attribute_scaling: str, weights: str) -> None:
    vectors = VECTORS.copy()
    vectors[:, 1] = 0.7
    vectors[4] = 0
    for attributes in (vectors, np.full_like(vectors, 0.7)):
        model = quick(attribute_scaling=attribute_scaling, weights=weights).fit(X, Y, attributes)
        assert np.isfinite(model.decision_function(TEST_ROWS)).all()


def test_a_constant_feature_and_a_row_of_zeros_do_no_harm() -> None:
    rows = X.copy()
    rows[:, 2] = 3
    rows[5] = 0
    for scaling in ("none", "minmax", "minmax_l2"):
        model = quick(feature_scaling=scaling).fit(rows, Y, VECTORS)
        assert np.isfinite(model.decision_function(rows)).all()
        assert np.isfinite(model.decision_function(np.zeros((2, 5)))).all()


KINDS: dict[str, Callable[[np.ndarray], Any]] = {
    "float16": lambda x: x.astype(np.float16),
    "float64": lambda x: x.astype(np.float64),
    "Fortran": np.asfortranarray,
    "every other column": lambda x: np.repeat(x, 2, axis=1)[:, ::2],
    "rows backwards": lambda x: x[::-1].copy()[::-1],
    "lists": lambda x: x.tolist(),
    "read-only": lambda x: np.frombuffer(x.tobytes(), dtype=np.float32).reshape(x.shape),
}


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_values_of_the_features_matter(kind: str) -> None:
    rows, test_rows = (np.round(part * 64) / np.float32(64) for part in (X, TEST_ROWS))
    model = quick().fit(rows, Y, VECTORS)
    given = KINDS[kind](rows)
    twin = quick().fit(given, Y, VECTORS)
    assert_same(learned(twin), learned(model))
    for one in (rows, test_rows):
        np.testing.assert_array_equal(twin.decision_function(KINDS[kind](one)), model.decision_function(one))
        np.testing.assert_array_equal(twin.predict(KINDS[kind](one)), model.predict(one))


def test_fit_leaves_its_arguments_alone() -> None:
    x, y, vectors = X.copy(), Y.copy(), np.float32(VECTORS)
    before = vectors.copy()
    model = quick().fit(x, y, vectors)
    model.predict(x)
    model.add_classes([9], vectors[:1])
    np.testing.assert_array_equal(x, X)
    np.testing.assert_array_equal(y, Y)
    np.testing.assert_array_equal(vectors, before)
    expected = model.decision_function(X)
    np.testing.assert_array_equal(model.decision_function(X), expected)


def test_labels_and_vectors_come_in_any_form(fitted: DGZ) -> None:
    order = np.array([3, 5, 0, 1, 4, 2])
    shuffled = {NAMES[i]: VECTORS[i].tolist() for i in order}
    frame = pd.DataFrame(VECTORS[order], index=NAMES[order])
    for y, vectors in [
        (NAMES[Y], shuffled),
        (NAMES[Y], frame),
        (pd.Series(NAMES[Y]), frame),
        (NAMES[Y].astype(object), shuffled),
        (NAMES[Y].tolist(), shuffled),
    ]:
        model = quick().fit(X, y, vectors)
        assert model.classes_.tolist() == NAMES.tolist()
        assert not differs(model, fitted)
        assert model.predict(TEST_ROWS).tolist() == NAMES[fitted.predict(TEST_ROWS)].tolist()
        assert set(model.predict(TEST_ROWS, classes=["c4", "c5"])) <= {"c4", "c5"}
    numbered = quick().fit(X, 10 * Y, pd.DataFrame(VECTORS, index=10 * np.arange(6)))
    np.testing.assert_array_equal(numbered.predict(TEST_ROWS), 10 * fitted.predict(TEST_ROWS))


@pytest.mark.parametrize("bad", [np.nan, np.inf])
def test_what_is_no_finite_number_is_refused(fitted: DGZ, bad: float) -> None:
    rows, vectors = X.copy(), VECTORS.copy()
    rows[3, 2] = bad
    vectors[5, 1] = bad
    with pytest.raises(ValueError, match=r"NaN|infinity"):
        quick().fit(rows, Y, VECTORS)
    for use in (fitted.predict, fitted.decision_function, fitted.predict_proba):
        with pytest.raises(ValueError, match=r"NaN|infinity"):
            use(rows)
    with refused("attributes must be finite, found NaN or infinity in the vector of class"):
        quick().fit(X, Y, vectors)


def test_features_beyond_float32_are_refused() -> None:
    rows = X.astype(np.float64)
    rows[3, 2] = 1e300
    with refused("X"):
        quick().fit(rows, Y, VECTORS)


@pytest.mark.parametrize("stage", ["generator", "classifier"])
def test_a_training_that_breaks_down_says_where(stage: str, tmp_path: Path) -> None:
    model = quick(learning_rate=1e30) if stage == "classifier" else quick(of_generator={"learning_rate": 1e30})
    with refused(f"Training the {stage} stopped in epoch", "no finite number"):
        model.fit(X, Y, VECTORS, checkpoint_folder=tmp_path, checkpoint_seconds=0)
    assert (tmp_path / "generator.safetensors").exists() == (stage == "classifier")


def test_a_random_state_may_be_a_state_or_nothing() -> None:
    one, two = (fit_quick(random_state=np.random.RandomState(3)) for _ in range(2))
    assert not differs(one, two)
    state = np.random.RandomState(3)
    first, second = fit_quick(random_state=state), fit_quick(random_state=state)
    assert not differs(first, one)
    assert differs(first, second)
    assert differs(fit_quick(random_state=None), fit_quick(random_state=None))


def test_training_neither_uses_nor_moves_global_randomness() -> None:
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = fit_quick("WGANGP")
    assert torch.equal(torch.get_rng_state(), before[0])
    np.testing.assert_array_equal(np.random.get_state()[1], before[1])  # noqa: NPY002
    torch.rand(1)
    assert not differs(model, fit_quick("WGANGP"))


def test_a_device_that_is_none_is_named() -> None:
    with refused("device 'nonsense' cannot be used here"):
        quick(device="nonsense").fit(X, Y, VECTORS)


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_a_gpu_that_is_not_there_is_named() -> None:
    with refused("device 'cuda' cannot be used here"):
        quick(device="cuda").fit(X, Y, VECTORS)
    assert not differs(fit_quick(device="auto"), fit_quick())


# --- The balance of seen and unseen classes.
def test_a_penalty_is_subtracted_from_the_scores_of_seen_classes(fitted: DGZ, tmp_path: Path) -> None:
    model = fit_quick(seen_penalty=0.25)
    assert not differs(model, fitted)
    assert model.seen_penalty_ == 0.25
    expected = fitted.decision_function(TEST_ROWS) - np.where(fitted.seen_, np.float32(0.25), np.float32(0))
    assert np.array_equal(model.decision_function(TEST_ROWS), expected)
    assert np.array_equal(model.predict(TEST_ROWS), fitted.predict(TEST_ROWS, seen_penalty=0.25))
    model.save(tmp_path / "model")
    again = DGZ.load(tmp_path / "model").add_classes([99], VECTORS[:1])
    assert again.seen_penalty_ == 0.25
    assert np.array_equal(again.decision_function(TEST_ROWS)[:, :-1], expected)
    # Another setting counts from the next training on, and until then a file has the one in use.
    model.set_params(seen_penalty=0.5).save(tmp_path / "same")
    assert DGZ.load(tmp_path / "same").seen_penalty == 0.25
    assert model.refine().seen_penalty_ == 0.5


def test_an_automatic_penalty_is_what_folds_of_the_training_rows_say(tmp_path: Path) -> None:
    model = fit_quick(seen_penalty="auto")
    found = [best_penalty(scores.curve) for scores in scores_on_folds()]
    assert model.seen_penalty_ == pytest.approx(np.mean([penalty for penalty, h in found if h > 0]), abs=1e-6)
    assert model.seen_penalty_ != 0
    assert not differs(model, fit_quick())
    model.save(tmp_path / "model")
    again = DGZ.load(tmp_path / "model")
    assert (again.seen_penalty, again.seen_penalty_) == ("auto", model.seen_penalty_)
    for _ in range(2):  # the second begins after all folds, with what was kept
        kept = quick(seen_penalty="auto").fit(X, Y, VECTORS, checkpoint_folder=tmp_path / "c", checkpoint_seconds=0)
        assert kept.seen_penalty_ == model.seen_penalty_


def scores_on_folds(**settings: Any) -> list[GZSLScores]:
    """What three folds of the training rows say of settings, with as many pseudo rows a training row as in the end."""
    found = []
    n_unseen = len(VECTORS) - len(np.unique(Y))
    for fold in validation_folds(GZSLData(x_train=X, y_train=Y, attributes=VECTORS), 3):
        n_pseudo = quick().n_per_class * n_unseen * len(fold.x_train) / len(X)
        twin = quick(**{"n_per_class": max(round(n_pseudo / len(fold.unseen)), 1), **settings})
        found.append(gzsl_scores(twin.fit(fold.x_train, fold.y_train, fold.attributes), fold))
    return found


def tilt_on_folds(lambda_1: float) -> tuple[float, float]:
    """Mean H on folds, and the mean of the penalties that are best there."""
    found = scores_on_folds(lambda_1=lambda_1)
    return float(np.mean([scores.h for scores in found])), mean_penalty([best_penalty(one.curve) for one in found])


def test_an_automatic_lambda_is_looked_for_on_folds_of_the_training_rows(tmp_path: Path) -> None:
    model = fit_quick(lambda_1="auto")
    tried = {1.0: tilt_on_folds(1.0)}
    step = 10.0 if tried[1.0][1] < 0 else 0.1
    tried[step] = tilt_on_folds(step)
    (h, tilt), (h_next, tilt_next) = tried[1.0], tried[step]
    if tilt * tilt_next < 0:
        assert model.lambda_1_ == pytest.approx(step ** (tilt / (tilt - tilt_next)), rel=1e-3)
    elif h_next <= h:
        assert model.lambda_1_ == 1.0
    else:
        assert math.log10(model.lambda_1_ / step) * math.log10(step) >= 0  # further on
    assert model.lambda_1 == "auto"
    assert not differs(model, fit_quick(lambda_1=model.lambda_1_))
    model.save(tmp_path / "model")
    again = DGZ.load(tmp_path / "model")
    assert (again.lambda_1, again.lambda_1_) == ("auto", model.lambda_1_)
    # Training the classifier anew keeps to what was found; another value counts from then on.
    assert not differs(model.refine(), again)
    assert model.set_params(lambda_1=0.5).refine().lambda_1_ == 0.5


def searched(says: dict[float, tuple[float, float]], **settings: Any) -> tuple[list[float], tuple[float, float]]:
    """Which λ1 are tried, and what is found, where one fold says this of each: H, and the best penalty."""
    search, tried = _Search(quick(**{"lambda_1": "auto", **settings})), []
    while search.next is not None:
        tried.append(search.next)
        h, penalty = says[search.next]
        curve = SeenUnseenCurve(np.array([-np.inf, penalty, np.inf]), np.array([0.0, h, h]), np.array([h, h, 0.0]))
        search.take([replace(scores_on_folds()[0], h=h, curve=curve)])
    return tried, search.found()


def test_lambda_goes_where_the_balance_says_until_it_tips_or_h_falls() -> None:
    up, down = (0.5, -0.1), (0.5, 0.1)
    assert searched({1.0: up, 10.0: (0.6, -0.05)}) == ([1.0, 10.0], (10.0, 0.0))  # no further
    assert searched({1.0: up, 10.0: (0.4, -0.05)}) == ([1.0, 10.0], (1.0, 0.0))
    tried, (value, _) = searched({1.0: up, 10.0: (0.6, 0.3)})
    assert (tried, value) == ([1.0, 10.0], pytest.approx(10**0.25))
    tried, (value, _) = searched({1.0: down, 0.1: (0.6, 0.05), 0.01: (0.61, -0.05)})
    assert (tried, value) == ([1.0, 0.1, 0.01], pytest.approx(10**-1.5))
    lower = {0.1: (0.6, 0.08), 0.01: (0.7, 0.06), 0.001: (0.8, 0.04)}
    assert searched({1.0: down, **lower}) == ([1.0, 0.1, 0.01, 0.001], (0.001, 0.0))
    assert searched({1.0: (0.5, 0.0)}) == ([1.0], (1.0, 0.0))
    # With a given penalty, the balance is round that one.
    assert searched({1.0: (0.5, 0.1), 10.0: (0.6, 0.2)}, seen_penalty=0.2) == ([1.0, 10.0], (10.0, 0.2))
    # With an open one there is no balance to find: the best H counts.
    assert searched({1.0: up, 10.0: (0.6, 0.3)}, seen_penalty="auto") == ([1.0, 10.0], (10.0, 0.3))
    assert searched({1.0: up, 10.0: (0.4, 0.3)}, seen_penalty="auto") == ([1.0, 10.0], (1.0, -0.1))
    assert searched({3.0: up}, seen_penalty="auto", lambda_1=3.0) == ([3.0], (3.0, -0.1))


def test_a_penalty_is_found_for_a_loss_that_leaves_unseen_classes_out() -> None:
    found = [best_penalty(scores.curve) for scores in scores_on_folds(lambda_1=0.0)]
    assert fit_quick(lambda_1=0.0, seen_penalty="auto").seen_penalty_ == pytest.approx(mean_penalty(found), abs=1e-6)


def test_generators_of_folds_are_trained_once(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[int] = []
    real = CenterMapper.fit

    def counted(self: CenterMapper, x: torch.Tensor, *args: Any, **options: Any) -> CenterMapper:
        trained.append(len(x))
        return real(self, x, *args, **options)

    monkeypatch.setattr(CenterMapper, "fit", counted)
    fit_quick(lambda_1="auto")
    assert len(trained) == 4


def test_a_loss_without_lambda_leaves_nothing_to_choose() -> None:
    with refused("lambda_1='auto' has nothing to choose: the loss 'plain' has no λ1"):
        quick(lambda_1="auto", loss="plain").check()


# --- Several members.
@pytest.mark.parametrize("weights", WEIGHTS)
def test_scores_of_several_members_are_the_mean_of_theirs(weights: str, tmp_path: Path) -> None:
    model, alone = fit_quick(n_members=3, weights=weights), fit_quick(weights=weights)
    classifier = model.classifier_
    vectors = model._vectors("cpu")
    each = torch.nn.functional.normalize(classifier.net_.eval()(vectors).detach(), dim=-1)
    assert each.shape == (3, *alone.weights_.shape)
    np.testing.assert_allclose(model.weights_, each.mean(0), atol=1e-6)
    np.testing.assert_allclose(each[0], alone.weights_, atol=1e-5)  # the first is as if it were alone
    assert min(abs(each[0] - each[1]).max(), abs(each[1] - each[2]).max()) > 1e-3
    assert len(model.history_) == len(alone.history_)
    assert model.count_parameters() > alone.count_parameters()
    model.save(tmp_path / "model")
    again = DGZ.load(tmp_path / "model")
    assert not differs(again, model)
    gone = np.flatnonzero(~model.seen_)[:1]
    again.remove_classes(gone)
    assert np.array_equal(again.weights_, np.delete(model.weights_, gone, axis=0))
    np.testing.assert_allclose(again.classifier_.class_weights(again._vectors("cpu")), again.weights_, atol=1e-6)
    if weights != "free":
        again.add_classes(gone, VECTORS[gone])
        np.testing.assert_allclose(again.weights_, model.weights_, atol=1e-6)


def test_members_learn_from_pseudo_rows_of_their_own(monkeypatch: pytest.MonkeyPatch) -> None:
    trained: list[torch.Tensor] = []
    real = Frame._classifier_training

    def watched(self: Any, classifiers: Any, task: Any, x: torch.Tensor, y: torch.Tensor, **options: Any) -> Any:
        trained.extend(x[rows] for rows in options["rows"][0])
        return real(self, classifiers, task, x, y, **options)

    monkeypatch.setattr(Frame, "_classifier_training", watched)
    model = fit_quick(n_members=2)
    first, second = trained
    assert torch.equal(first[: len(X)], second[: len(X)])
    assert not torch.isclose(first[len(X) :], second[len(X) :]).any(1).all()
    assert len(first) == len(second) == len(X) + 5 * int((~model.seen_).sum())


def test_test_scores_in_training_are_those_of_all_members_together(tiny: GZSLData) -> None:
    model = quick(n_members=3, n_epochs=4).fit(X, Y, VECTORS, test=tiny)
    last = [row for row in model.history_ if row["stage"] == "classifier"][-1]
    scores = gzsl_scores(model, tiny)
    assert (last["h"], last["acc_seen"]) == pytest.approx((scores.h, scores.acc_seen))


def test_one_seen_class_makes_no_folds() -> None:
    with refused("One seen class makes no folds to choose on: give lambda_1 and seen_penalty a value"):
        quick(seen_penalty="auto").fit(X[Y == 0], Y[Y == 0], VECTORS)


def test_vectors_of_unusual_norms_are_scaled_unless_told_otherwise(tmp_path: Path) -> None:
    with pytest.warns(DGZWarning, match=r"scaled to norm 1: attribute_scaling='unit' says that this is meant"):
        model = quick().fit(X, Y, 1000 * VECTORS)
    assert model.attribute_scaling == "auto"
    assert model.attribute_scaler_.method == "unit"
    assert not differs(model, quick(attribute_scaling="unit").fit(X, Y, 1000 * VECTORS))
    assert not differs(fit_quick(), fit_quick(attribute_scaling="none"))
    one_odd = np.concatenate([0 * VECTORS[:1], VECTORS[1:]])
    assert quick().fit(X, Y, one_odd).attribute_scaling_ == "none"
    # A class that is added later follows the rule that was found, and so does a model from a file.
    model.add_classes([len(VECTORS)], 5000 * VECTORS[:1])
    model.save(tmp_path / "model")
    again = DGZ.load(tmp_path / "model")
    assert (again.attribute_scaling, again.attribute_scaler_.method) == ("auto", "unit")
    assert np.array_equal(again.decision_function(X), model.decision_function(X))
    with pytest.warns(DGZWarning):
        (member,) = fit_many([quick()], X, Y, 1000 * VECTORS)
    assert member.attribute_scaler_.method == "unit"


@pytest.mark.parametrize("generator", GENERATORS)
def test_relative_noise_is_a_share_of_the_seen_vectors_spread(generator: str, tmp_path: Path) -> None:
    relative = {"noise_unit": "relative", "attribute_noise": 0.5}
    model = fit_quick(generator, of_generator=relative)
    assert model.generator_.noise_ == pytest.approx(0.5 * np.float32(VECTORS)[SEEN].std(), rel=1e-5)
    vectors = VECTORS.copy()
    vectors[UNSEEN] *= 100
    far = quick(generator, of_generator=relative, attribute_scaling="none").fit(X, Y, vectors)
    assert far.generator_.noise_ == model.generator_.noise_
    scaled = fit_quick(generator, of_generator=relative, attribute_scaling="unit")
    unit = VECTORS / np.linalg.norm(VECTORS, axis=1, keepdims=True)
    assert scaled.generator_.noise_ == pytest.approx(0.5 * unit[SEEN].std(), rel=1e-4)
    assert fit_quick(generator, of_generator={"attribute_noise": 0.5}).generator_.noise_ == 0.5
    model.save(tmp_path / "model")
    assert DGZ.load(tmp_path / "model").generator_.noise_ == model.generator_.noise_


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"distribution": "normal"}, "distribution must be one of generated, small, large, statistical, found 'normal'"),
    ({"n_per_class": 0}, "n_per_class must be a whole number from 1 up, found 0"),
    ({"small_std": -1.0}, "small_std must be a number from 0 up"),
    ({"large_std": float("nan")}, "large_std must be a number from 0 up"),
    ({"weights": "gifted"}, "weights must be one of mapped, free, class_normalised, linear, found 'gifted'"),
    ({"loss": "total"}, "loss must be one of revised, plain, incremental, adjusted, found 'total'"),
    ({"gate": "closed"}, "gate must be one of argmax_all, above_true, always, found 'closed'"),
    ({"lambda_1": -1.0}, "lambda_1 must be a number from 0 up, found -1.0"),
    ({"seen_penalty": "none"}, "seen_penalty must be a number or 'auto', found 'none'"),
    ({"seen_penalty": float("inf")}, "seen_penalty must be a number or 'auto', found inf"),
    ({"lambda_1": "none"}, "lambda_1 must be a number from 0 up, found 'none'"),
    ({"n_members": 0}, "n_members must be a whole number from 1 up"),
    ({"lambda_2": None}, "lambda_2 must be a number from 0 up, found None"),
    ({"temperature": 0.0}, "temperature must be a number from 1e-12 up, found 0.0"),
    ({"d_hidden": 0}, "d_hidden must be a whole number from 1 up, found 0"),
    ({"n_epochs": 0}, "n_epochs must be a whole number from 1 up, found 0"),
    ({"n_epochs": 1.5}, "n_epochs"),
    ({"learning_rate": -1.0}, "learning_rate"),
    ({"lr_step": 0}, "lr_step must be a whole number from 1 up, found 0"),
    ({"batch_size": 0}, "batch_size must be a whole number from 1 up, found 0"),
    ({"feature_scaling": "rubber"}, "feature_scaling must be one of"),
    ({"attribute_scaling": "rubber"}, "attribute_scaling must be one of"),
    ({"of_generator": {"n_epochs": 0}}, "n_epochs must be a whole number from 1 up, found 0"),
    ({"of_generator": {"attribute_noise": -0.1}}, "attribute_noise must be a number from 0 up, found -0.1"),
    ({"of_generator": {"noise_unit": "percent"}}, "noise_unit must be one of absolute, relative, found 'percent'"),
    ({"of_generator": {"steps_per_epoch": 0}}, "steps_per_epoch must be a whole number from 1 up, found 0"),
]


@pytest.mark.parametrize(("setting", "words"), WRONG, ids=lambda value: str(value)[:40])
def test_wrong_settings_are_named(setting: dict[str, Any], words: str) -> None:
    with refused(words):
        fit_quick(**setting)


@pytest.mark.parametrize(
    "setting", [*(setting for setting, _ in WRONG), {"distribution": "generated"}], ids=lambda value: str(value)[:40]
)
def test_wrong_settings_are_named_before_hours_of_training(setting: dict[str, Any]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        count_updates(patch, "generator", break_at=1)
        with refused():
            fit_quick(**setting)


def test_a_distribution_is_checked_even_where_nothing_is_drawn_from_it() -> None:
    with refused("distribution must be one of"):
        quick(distribution="normal").fit(X, Y, VECTORS[:4])


def test_a_model_whose_first_fit_failed_is_not_fitted() -> None:
    model = quick(learning_rate=1e30)
    with refused("stopped in epoch"):
        model.fit(X, Y, VECTORS)
    with pytest.raises(NotFittedError):
        model.predict(X)


# --- Stages do not move each other.
@pytest.mark.parametrize("generator", GENERATORS)
def test_the_classifiers_settings_leave_the_generator_alone(generator: str) -> None:
    expected = net_values(fit_quick(generator).generator_.net_)
    for change in (
        {"lambda_1": 9.0},
        {"gate": "always", "loss": "incremental", "lambda_2": 3.0},
        {"weights": "free"},
        {"weights": "class_normalised", "d_hidden": 5},
        {"n_epochs": 1, "batch_size": 4, "resample": True, "learning_rate": 0.1, "temperature": 1.0, "lr_step": None},
        {"distribution": "large", "n_per_class": 2, "large_std": 3.0},
    ):
        model = fit_quick(generator, **change)
        assert_same(net_values(model.generator_.net_), expected)
        assert differs(model, fit_quick(generator))


@pytest.mark.parametrize("generator", GENERATORS)
def test_unseen_classes_leave_the_generator_alone(generator: str) -> None:
    expected = net_values(fit_quick(generator).generator_.net_)
    moved = VECTORS.copy()
    moved[UNSEEN] += 1
    for vectors in (VECTORS[:4], VECTORS[:5], moved):
        assert_same(net_values(quick(generator).fit(X, Y, vectors).generator_.net_), expected)


def test_pseudo_rows_depend_on_the_seed_and_not_on_the_classifier(monkeypatch: pytest.MonkeyPatch) -> None:
    made = []

    def watched(*arguments: Any, **more: Any) -> Any:
        made.append(synthesise(*arguments, **more))
        return made[-1]

    monkeypatch.setattr("dgz.frame.synthesise", watched)
    monkeypatch.setattr("dgz.generators.CenterMapper.centers", lambda self, vectors, rng: torch.zeros(len(vectors), 5))
    for change in ({}, {"lambda_1": 9.0, "weights": "free", "n_epochs": 1}, {"random_state": 1}):
        fit_quick(**change)
    (rows, labels), (same, _), (other, _) = made
    assert labels.tolist() == 5 * [0] + 5 * [1]
    assert torch.equal(rows, same)
    assert not torch.equal(rows, other)


def test_the_generators_length_changes_the_classifier_only_through_pseudo_rows() -> None:
    short, long = (
        quick(of_generator={"n_epochs": n}).fit(X, Y, VECTORS[:4]) for n in (1, 6)
    )  # without unseen classes there are none
    assert not differs(short, long)
    assert differs(*(fit_quick(of_generator={"n_epochs": n}) for n in (1, 6)))


# --- It learns.
def test_unseen_numbers_are_recognised(numbers: GZSLData) -> None:
    model = DGZ.without_generator(
        **{"generator__hidden": (128, 64), "generator__learning_rate": 0.003, "generator__n_epochs": 20},
        **{"d_hidden": 64, "learning_rate": 0.003, "n_epochs": 20, "device": "cpu", "lr_step": None},
    )
    model.fit(numbers.x_train, numbers.y_train, numbers.attributes, test=numbers)
    scores = gzsl_scores(model, numbers)
    assert scores.h > 0.5
    assert scores.acc_zsl > 0.7
    assert scores.h == pytest.approx(model.history_[-1]["h"])
    h = [row["h"] for row in model.history_ if row["stage"] == "classifier"]
    assert h[-1] > h[0]


# --- A generator with a space of its own, and linear weights.
def embedding(**more: Any) -> ContrastiveWGANGP:
    """Into seven features, from five."""
    small = {"n_epochs": 3, "hidden": (16,), "critic_hidden": 16, "batch_size": 8, "learning_rate": 1e-3}
    return ContrastiveWGANGP(**{**small, "d_embedding": 7, "d_projection": 4, "d_comparator": 6, **more})


def embedded(of_generator: dict[str, Any] | None = None, **overrides: Any) -> DGZ:
    return quick(**{"distribution": "generated", **overrides}).set_params(generator=embedding(**of_generator or {}))


def learned_by_all(model: DGZ) -> dict[str, np.ndarray]:
    """Everything learned, the embedding too."""
    parts = {f"{part}/{name}": v for part, net in model._networks().items() for name, v in net_values(net).items()}
    return learned(model) | parts


def softly(kind: type[DGZ], **overrides: Any) -> DGZ:
    """One of the methods with a linear softmax, small."""
    small = {"n_epochs": 3, "hidden": (16,), "critic_hidden": 16, "batch_size": 8, "class_weight": 0.1}
    generator = embedding() if kind is CEGZSL else WGANGP(**small)
    few = {"generator": generator, "n_per_class": 5, "n_epochs": 3, "learning_rate": 0.01, "device": "cpu"}
    return kind(**{**few, **overrides})


METHODS: dict[str, Callable[..., DGZ]] = {
    "FCLSWGAN": functools.partial(softly, FCLSWGAN),
    "CEGZSL": functools.partial(softly, CEGZSL),
    "DGZ with an embedding": embedded,
    "DGZ with linear weights": functools.partial(quick, "WGANGP", weights="linear", temperature=0.5),
}


@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
@pytest.mark.parametrize("distribution", DISTRIBUTIONS)
def test_every_composition_with_an_embedding_keeps_the_contract(
    distribution: str, weights: str, tmp_path: Path
) -> None:
    model = embedded(distribution=distribution, weights=weights).fit(X, Y, VECTORS)
    assert model.n_features_in_ == 5
    h = model.embed(TEST_ROWS)
    assert h.shape == (len(TEST_ROWS), 7)
    assert h.dtype == np.float32
    (weight,), bias = model.generator_.embedding_.first.blocks, model.generator_.embedding_.first.bias
    plain = model.scaler_.transform(TEST_ROWS) @ weight.detach().numpy().T + bias.detach().numpy()
    np.testing.assert_allclose(h, np.maximum(plain, 0), atol=1e-6)
    scores = model.decision_function(TEST_ROWS)
    if weights == "linear":
        assert model.weights_.shape == (6, 8)
        expected = h @ model.weights_[:, :7].T + model.weights_[:, 7]
    else:
        assert model.weights_.shape == (6, 7)
        expected = h / np.maximum(np.linalg.norm(h, axis=1, keepdims=True), 1e-12) @ model.weights_.T
    np.testing.assert_allclose(scores, expected, atol=1e-5)
    np.testing.assert_array_equal(model.predict(TEST_ROWS), model.classes_[scores.argmax(axis=1)])

    model.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(TEST_ROWS), scores, strict=True)
    np.testing.assert_array_equal(twin.embed(TEST_ROWS), h, strict=True)
    assert params(twin) == params(model)
    assert_same(learned_by_all(twin), learned_by_all(model))
    assert_same(learned_by_all(clone(model).fit(X, Y, VECTORS)), learned_by_all(model))
    assert differs(model, clone(model).set_params(random_state=1).fit(X, Y, VECTORS))


@pytest.mark.parametrize("name", METHODS)
def test_every_method_is_the_same_after_saving_and_loading(name: str, tmp_path: Path) -> None:
    model = METHODS[name]().fit(X, Y, VECTORS)
    model.save(tmp_path / "model")
    twin = type(model).load(tmp_path / "model")
    assert type(twin) is type(model)
    np.testing.assert_array_equal(twin.predict(TEST_ROWS), model.predict(TEST_ROWS))
    np.testing.assert_array_equal(twin.decision_function(TEST_ROWS), model.decision_function(TEST_ROWS), strict=True)
    np.testing.assert_array_equal(twin.predict_proba(TEST_ROWS), model.predict_proba(TEST_ROWS), strict=True)
    assert_same(learned_by_all(twin), learned_by_all(model))
    assert twin.history_ == model.history_
    assert twin.generator_.get_params() == model.generator_.get_params()
    assert twin.classifier_.get_params() == model.classifier_.get_params()
    if model.distribution == "generated":
        np.testing.assert_array_equal(*(one.generate(UNSEEN, 4)[0] for one in (twin, model)))
    assert_same(learned_by_all(twin.refine(X, Y)), learned_by_all(model))


@pytest.mark.parametrize("saved_by", [DGZ, FCLSWGAN, CEGZSL])
@pytest.mark.parametrize("read_by", [DGZ, FCLSWGAN, CEGZSL])
def test_a_method_reads_its_own_models_alone(saved_by: type[DGZ], read_by: type[DGZ], tmp_path: Path) -> None:
    model = quick() if saved_by is DGZ else softly(saved_by)
    model.fit(X, Y, VECTORS).save(tmp_path / "model")
    if saved_by is read_by:
        assert type(read_by.load(tmp_path / "model")) is saved_by
        return
    name = saved_by.__name__
    with refused(f"holds a {name}, which is read by {name}.load and not by {read_by.__name__}.load"):
        read_by.load(tmp_path / "model")


def test_a_model_saved_before_there_were_other_methods_is_a_dgz(saved: Path, tmp_path: Path) -> None:
    header = json.loads((copied(saved, tmp_path / "old") / "model.json").read_text())
    assert header.pop("method") == "DGZ"
    (tmp_path / "old" / "model.json").write_text(json.dumps(header))
    assert_same(learned(DGZ.load(tmp_path / "old")), learned(DGZ.load(saved)))
    with refused("holds a DGZ"):
        CEGZSL.load(tmp_path / "old")


def test_each_tensor_of_an_embedding_is_needed_in_its_shape(tmp_path: Path) -> None:
    embedded().fit(X, Y, VECTORS).save(tmp_path / "model")
    path = tmp_path / "model" / "model.safetensors"
    tensors = load_file(path)
    of_embedding = [name for name in tensors if name.startswith("embedding/")]
    assert len(of_embedding) == 4
    for name in of_embedding:
        for harmed in ({}, {name: tensors[name][..., :-1].contiguous()}):
            save_file({**{key: value for key, value in tensors.items() if key != name}, **harmed}, path)
            with refused("is broken"):
                DGZ.load(tmp_path / "model")


def test_a_width_that_is_not_the_embeddings_is_refused(tmp_path: Path) -> None:
    embedded().fit(X, Y, VECTORS).save(tmp_path / "model")
    header = json.loads((tmp_path / "model" / "model.json").read_text())
    header["params"]["generator"]["d_embedding"] = 5
    (tmp_path / "model" / "model.json").write_text(json.dumps(header))
    with refused("its classes, vectors and weights do not fit together"):
        DGZ.load(tmp_path / "model")


# --- Rows as generator and classifier see them.
@pytest.mark.parametrize("feature_scaling", ["minmax_l2", "minmax", "none"])
def test_without_an_embedding_rows_are_scaled_alone(feature_scaling: str) -> None:
    model = fit_quick(feature_scaling=feature_scaling)
    np.testing.assert_array_equal(model.embed(TEST_ROWS), model.scaler_.transform(TEST_ROWS), strict=True)


def test_rows_that_cannot_be_embedded_are_refused() -> None:
    with pytest.raises(NotFittedError):
        embedded().embed(X)
    model = embedded().fit(X, Y, VECTORS)
    with refused("X has 4 features, but 5 were fitted"):
        model.embed(X[:, :4])
    with refused("X must have 2 dimensions"):
        model.embed(X[0])
    with refused("X must be finite, found NaN or infinity in row 3"):
        model.embed(np.where(np.arange(len(X))[:, None] == 3, np.nan, X))


@pytest.mark.parametrize("name", METHODS)
def test_rows_are_generated_for_any_class_in_any_number(name: str) -> None:
    labels = dict(zip(NAMES.tolist(), VECTORS, strict=True))
    model = METHODS[name](distribution="generated").fit(X, NAMES[Y], labels)
    rows, y = model.generate(NAMES[[5, 0, 4, 2]], [2, 3, 0, 4])  # neither sorted nor unseen alone
    assert y.tolist() == [NAMES[5]] * 2 + [NAMES[0]] * 3 + [NAMES[2]] * 4
    assert rows.shape == (9, model.weights_.shape[1] - (model.classifier_.weights == "linear"))
    assert rows.dtype == np.float32
    assert len(np.unique(rows, axis=0)) == 9
    # As many as are wanted are the first of more, so that numbers of others do not matter.
    more, of_more = model.generate(NAMES[[5, 0, 4, 2]], 4)
    assert of_more.tolist() == np.repeat(NAMES[[5, 0, 4, 2]], 4).tolist()
    np.testing.assert_array_equal(rows, more[[0, 1, 4, 5, 6, 12, 13, 14, 15]])
    same, other = (model.generate(NAMES[[5, 0, 4, 2]], 4, random_state=seed)[0] for seed in (0, 1))
    np.testing.assert_array_equal(same, more)
    assert not np.array_equal(other, more)
    one, label = model.generate(NAMES[3])
    assert len(one) == 50
    assert set(label) == {NAMES[3]}


def test_generated_rows_are_the_generators_of_the_classes_vectors() -> None:
    model = embedded(attribute_scaling="unit").fit(X, Y, VECTORS)
    rows, _ = model.generate([1, 5], 3, random_state=4)
    vectors = torch.tensor(model.attribute_scaler_.transform(VECTORS)[[1, 1, 1, 5, 5, 5]])
    expected = model.generator_.sample(vectors, random_stream(4, "generate"))
    np.testing.assert_array_equal(rows, expected.numpy())


@pytest.mark.parametrize("make", [embedded, quick], ids=["embedding", "features"])
@pytest.mark.parametrize("distribution", ["statistical", "small", "large"])
def test_gaussian_rows_lie_round_the_generators_centers(make: Callable[..., DGZ], distribution: str) -> None:
    model = make(distribution=distribution, small_std=0.2, large_std=3.0).fit(X, Y, VECTORS)
    n = 20_000
    rows, y = model.generate([4, 1], n)
    vectors = torch.tensor(model.attribute_scaler_.transform(VECTORS[[4, 1]]))
    centers = model.generator_.centers(vectors, random_stream(0, "generate")).numpy()
    covariance = np.array(reference.within_class_covariance(model.embed(X).tolist(), Y.tolist()))
    if distribution != "statistical":
        share = {"small": 0.2, "large": 3.0}[distribution]
        covariance = share**2 * np.trace(covariance) / len(covariance) * np.eye(len(covariance))
    largest = np.sqrt(np.diag(covariance).max())
    assert largest > 1e-3
    for label, middle in zip([4, 1], centers, strict=True):
        of_class = rows[y == label]
        np.testing.assert_allclose(of_class.mean(axis=0), middle, atol=6 * largest / n**0.5)
        np.testing.assert_allclose(np.cov(of_class.T), covariance, atol=0.05 * largest**2)


@pytest.mark.parametrize("make", [embedded, quick], ids=["embedding", "features"])
def test_a_loaded_model_generates_what_needs_no_rows(make: Callable[..., DGZ], tmp_path: Path) -> None:
    model = make(distribution="statistical").fit(X, Y, VECTORS)
    model.save(tmp_path / "model")
    twin = DGZ.load(tmp_path / "model")
    with refused("A loaded model holds no training rows, whose spread the generated ones would have"):
        twin.generate(UNSEEN)
    if model.generator_.can_sample:
        ours, theirs = (one.set_params(distribution="generated").generate(UNSEEN)[0] for one in (twin, model))
        np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize(
    ("names", "n_per_class", "words"),
    [
        ([4, 99], 3, "The model does not know 1 of classes: 99"),
        (["c4"], 3, "The model does not know 1 of classes: c4"),
        ([4], 0, "n_per_class must be whole numbers, and not all 0, found 0"),
        ([4, 5], [0, 0], "n_per_class must be whole numbers, and not all 0, found [0, 0]"),
        ([4, 5], [3, -1], "n_per_class must be whole numbers, and not all 0, found [3, -1]"),
        ([4], 2.0, "n_per_class must be whole numbers, and not all 0, found 2.0"),
        ([4], "many", "n_per_class must be whole numbers"),
    ],
)
def test_rows_that_cannot_be_generated_are_refused(fitted: DGZ, names: Any, n_per_class: Any, words: str) -> None:
    with refused(words):
        fitted.generate(names, n_per_class)


@pytest.mark.parametrize(("names", "n_per_class"), [([], 3), ([4, 5], [1, 2, 3])], ids=["no class", "too many numbers"])
def test_numbers_that_do_not_fit_the_classes_are_refused_in_a_sentence(
    fitted: DGZ, names: Any, n_per_class: Any
) -> None:
    with refused():
        fitted.generate(names, n_per_class)


def test_an_unfitted_model_generates_nothing() -> None:
    with pytest.raises(NotFittedError):
        quick().generate([4])


@pytest.mark.parametrize("gone", [0, 2])
def test_a_class_that_is_gone_leaves_the_spread_of_the_others_alone(gone: int) -> None:
    apart = X + 50 * np.equal(Y, gone)[:, None].astype(np.float32)  # far from all others
    model = quick(feature_scaling="none").fit(apart, Y, VECTORS)
    before = model.generate([4], 2000)[0].std(axis=0)
    after = model.remove_classes([gone]).generate([4], 2000)[0].std(axis=0)
    np.testing.assert_allclose(after, before, rtol=0.5)  # of fewer rows


# --- Classes come and go in an embedding.
@pytest.mark.parametrize("weights", ["mapped", "class_normalised"])
def test_added_classes_get_the_weights_of_their_vectors_in_an_embedding(weights: str) -> None:
    model = embedded(weights=weights).fit(X, Y, VECTORS[:5])
    before = learned_by_all(model)
    model.add_classes([5], VECTORS[5:])
    assert model.weights_.shape == (6, 7)
    np.testing.assert_array_equal(model.weights_[:5], before["weights_"])
    with torch.no_grad():
        mapped = model.classifier_.net_.eval()(torch.tensor(VECTORS[5:], dtype=torch.float32)).numpy()
    np.testing.assert_allclose(model.weights_[5:], mapped / max(np.linalg.norm(mapped), 1e-12), atol=1e-6)
    assert model.decision_function(TEST_ROWS).shape == (len(TEST_ROWS), 6)


@pytest.mark.parametrize("weights", ["mapped", "class_normalised"])
@pytest.mark.parametrize("distribution", ["generated", "statistical"])
def test_refining_in_an_embedding_is_as_if_the_classes_had_been_there_from_the_start(
    distribution: str, weights: str, tmp_path: Path
) -> None:
    def make() -> DGZ:
        return embedded(distribution=distribution, weights=weights)

    expected, without = (make().fit(X, Y, vectors) for vectors in (VECTORS, VECTORS[:5]))
    assert differs(expected, make().fit(X, Y, VECTORS + 0.5 * (np.arange(6) == 5)[:, None]))
    model = make().fit(X, Y, VECTORS[:5])
    model.save(tmp_path / "model")
    assert_same(learned_by_all(model.add_classes([5], VECTORS[5:], refine=True)), learned_by_all(expected))
    loaded = DGZ.load(tmp_path / "model").add_classes([5], VECTORS[5:], refine=True, X=X, y=Y)
    assert_same(learned_by_all(loaded), learned_by_all(expected))
    assert_same(learned_by_all(model.remove_classes([5], refine=True)), learned_by_all(without))


def test_linear_weights_cannot_take_on_classes_but_can_lose_them(tmp_path: Path) -> None:
    model = softly(CEGZSL).fit(X, Y, VECTORS)
    before = learned_by_all(model)
    with refused("free weights cannot take on classes"):
        model.add_classes([9], VECTORS[:1])
    assert_same(learned_by_all(model), before)
    model.remove_classes([4, 0])
    np.testing.assert_array_equal(model.weights_, before["weights_"][[1, 2, 3, 5]])
    model.save(tmp_path / "model")
    twin = CEGZSL.load(tmp_path / "model")
    assert_same(learned_by_all(twin), learned_by_all(model))
    np.testing.assert_array_equal(twin.predict(TEST_ROWS), model.predict(TEST_ROWS))


# --- How far the centres are, on the way.
CENTRED: dict[str, Callable[..., DGZ]] = {
    "center mapper": lambda n: quick(of_generator={"n_epochs": n}),
    "GAN": lambda n: quick("WGANGP", of_generator={"n_epochs": n}),
    "embedding": lambda n: embedded({"n_epochs": n, "decay_every": 1}),
    "CEGZSL": lambda n: softly(CEGZSL, generator=embedding(n_epochs=n)),
}


@pytest.mark.parametrize("name", CENTRED)
def test_the_distance_of_generated_centers_is_in_the_history(name: str, tiny: GZSLData, tmp_path: Path) -> None:
    model = CENTRED[name](4).fit(X, Y, VECTORS, test=tiny, evaluate_every=3)
    of_generator = [row for row in model.history_ if row["stage"] == "generator"]
    assert ["cacd" in row for row in of_generator] == [False, False, True, True]  # every third, and the last
    assert not any("cacd" in row for row in model.history_ if row["stage"] == "classifier")
    real = reference.class_means(model.embed(tiny.x_test_unseen).tolist(), tiny.y_test_unseen.tolist(), [4, 5])
    vectors = torch.tensor(model.attribute_scaler_.transform(VECTORS[UNSEEN]))
    generated = model.generator_.centers(vectors, random_stream(model.seed_, "centers"))
    assert of_generator[-1]["cacd"] == pytest.approx(reference.cacd(real, generated.tolist()), rel=1e-5)
    assert of_generator[-1]["cacd"] == pytest.approx(cacd(np.array(real), generated), rel=1e-5)
    # On the way, it is that of a shorter training, and so is the classifier.
    shorter = CENTRED[name](3).fit(X, Y, VECTORS, test=tiny, evaluate_every=3)
    assert of_generator[2]["cacd"] == [row for row in shorter.history_ if row["stage"] == "generator"][-1]["cacd"]
    assert of_generator[2]["cacd"] != of_generator[3]["cacd"]
    on_the_way = [row for row in model.history_ if row.get("generator_epoch") == 3]
    assert on_the_way == [row for row in shorter.history_ if row["stage"] == "classifier"]
    # All this is for the history alone.
    unwatched = CENTRED[name](4).fit(X, Y, VECTORS)
    assert not any("cacd" in row for row in unwatched.history_)
    assert_same(learned_by_all(unwatched), learned_by_all(model))
    model.save(tmp_path / "model")
    assert type(model).load(tmp_path / "model").history_ == model.history_


@pytest.mark.parametrize("name", METHODS)
def test_the_last_scores_of_the_history_are_those_of_the_model(name: str, tiny: GZSLData) -> None:
    model = METHODS[name]().fit(X, Y, VECTORS, test=tiny)
    final, tested = gzsl_scores(model, tiny), [row for row in model.history_ if "h" in row]
    assert [row["epoch"] for row in tested] == [1, 2, 3]
    for measure in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert tested[-1][measure] == pytest.approx(getattr(final, measure))


def test_a_broken_training_with_an_embedding_goes_on_as_if_it_had_not_been_broken(
    tiny: GZSLData, tmp_path: Path
) -> None:
    arguments: dict[str, Any] = {"test": tiny, "evaluate_every": 1}
    whole = softly(CEGZSL).fit(X, Y, VECTORS, **arguments)
    for stage, break_at in (("generator", 20), ("classifier", 75)):
        kept = {"checkpoint_folder": tmp_path / stage, "checkpoint_seconds": 0}
        with pytest.MonkeyPatch.context() as patch:
            count_updates(patch, stage, break_at=break_at)
            with pytest.raises(InterruptionError):
                softly(CEGZSL).fit(X, Y, VECTORS, **arguments, **kept)
        assert (tmp_path / stage).exists()
        resumed = softly(CEGZSL).fit(X, Y, VECTORS, **arguments, **kept)
        assert_same(learned_by_all(resumed), learned_by_all(whole))
        assert resumed.history_ == whole.history_


def test_the_embedding_sees_no_unseen_class_and_no_test_row(tiny: GZSLData) -> None:
    expected = net_values(embedded().fit(X, Y, VECTORS).generator_.embedding_)
    moved = VECTORS + (np.arange(6) >= 4)[:, None]
    for vectors, test in ((VECTORS[:4], None), (moved, None), (VECTORS, tiny)):
        model = embedded().fit(X, Y, vectors, test=test)
        assert_same(net_values(model.generator_.embedding_), expected)
