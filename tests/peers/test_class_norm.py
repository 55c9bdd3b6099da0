"""CN: its recipe, what its network does to class vectors, and that unseen classes stay out of training."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.metrics import gzsl_scores
from dgz.nets import ClassNormalisedMapper
from dgz.peers import CN, class_norm


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def fit(data: GZSLData, attributes: Any = None, **settings: Any) -> CN:
    model = CN(**{"n_epochs": 10, "d_hidden": 64, "learning_rate": 3e-3, "batch_size": 64, "device": "cpu", **settings})
    return model.fit(data.x_train, data.y_train, data.attributes if attributes is None else attributes)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> CN:
    return fit(data)


# --- The recipe.
def test_defaults_are_those_of_the_notebook() -> None:
    one = CN()
    assert (one.n_epochs, one.batch_size, one.learning_rate, one.weight_decay) == (50, 256, 5e-4, 1e-4)
    assert (one.lr_step, one.lr_factor, one.temperature, one.seen_factor) == (25, 0.1, 1 / 25, 1.0)
    assert (one.feature_scaling, one.attribute_scaling) == ("none", "none")
    classifier = one._new_classifier(2048)
    assert (classifier.weights, classifier.loss, classifier.beta_1) == ("class_normalised", "plain", 0.9)
    assert (classifier.d_hidden, classifier.lr_step, classifier.resample) == (1024, 25, False)


def test_presets_trade_seen_accuracy_but_on_cub() -> None:
    assert {name: CN.preset(name).seen_factor for name in CN.presets} == {
        "AWA2": 0.95,
        "CUB": 1.0,
        "SUN": 0.95,
        "APY": 0.95,
    }


def test_its_network_is_class_normalised(fitted: CN) -> None:
    net = fitted.networks_["classifier"]
    assert type(net) is ClassNormalisedMapper
    assert [tuple(layer.blocks[0].shape) for layer in (net.first, net.second, net.third)] == [
        (64, 30),
        (64, 64),
        (128, 64),
    ]
    assert fitted.count_parameters() == 64 * 30 + 64 + 64 * 64 + 64 + 128 * 64 + 128


# --- Scores.
def slow_scores(model: CN, x: np.ndarray, factor: float) -> list[list[float]]:
    """Cosines from the equations, one number at a time: layers, and statistics that training left behind."""
    state = {name: values.tolist() for name, values in model.networks_["classifier"].state_dict().items()}

    def layer(name: str, values: list[float]) -> list[float]:
        weights, bias = state[f"{name}.blocks.0"], state[f"{name}.bias"]
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in zip(weights, bias, strict=True)]

    def standardised(name: str, values: list[float]) -> list[float]:
        mean, var = state[f"{name}.mean"], state[f"{name}.var"]
        return [(v - m) / (s + 1e-5) for v, m, s in zip(values, mean, var, strict=True)]

    def relu(values: list[float]) -> list[float]:
        return [max(v, 0.0) for v in values]

    scores: list[list[float]] = []
    for row in x.astype(float).tolist():
        scores.append([])
        for vector, is_seen in zip(model.attributes_.astype(float).tolist(), model.seen_, strict=True):
            length = math.sqrt(sum(v * v for v in vector))
            scaled = [v * math.sqrt(len(vector)) / length for v in vector]
            hidden = standardised("before", layer("second", relu(layer("first", scaled))))
            weights = relu(layer("third", standardised("after", relu(hidden))))
            dot = sum(a * b for a, b in zip(row, weights, strict=True))
            norms = math.hypot(*row) * math.hypot(*weights)
            scores[-1].append(dot / norms * (factor if is_seen else 1.0))
    return scores


def test_scores_are_cosines_and_those_of_seen_classes_are_made_smaller(data: GZSLData) -> None:
    few = np.isin(data.y_train, data.seen[:6])
    chosen = [*data.seen[:6], *data.unseen[:3]]
    vectors = {str(c): data.attributes[c] for c in chosen}
    model = CN(n_epochs=3, d_hidden=8, batch_size=16, seen_factor=0.8, device="cpu")
    model.fit(data.x_train[few], data.y_train[few].astype(str), vectors)
    found = model.decision_function(data.x_test_seen[:3])
    np.testing.assert_allclose(found, slow_scores(model, data.x_test_seen[:3], 0.8), rtol=1e-4, atol=1e-5)


def test_the_factor_moves_rows_to_unseen_classes(data: GZSLData, fitted: CN) -> None:
    plain, traded = gzsl_scores(fitted, data), gzsl_scores(fit(data, seen_factor=0.95), data)
    assert traded.acc_unseen > plain.acc_unseen
    assert traded.acc_seen < plain.acc_seen
    assert traded.acc_zsl == plain.acc_zsl
    # Nothing of training depends on it.
    scores = fitted.decision_function(data.x_test_seen)
    np.testing.assert_array_equal(fit(data, seen_factor=0.0).decision_function(data.x_test_seen)[:, fitted.seen_], 0.0)
    np.testing.assert_array_equal(
        fit(data, seen_factor=0.0).decision_function(data.x_test_seen)[:, ~fitted.seen_], scores[:, ~fitted.seen_]
    )


def test_the_length_of_rows_and_of_vectors_does_not_matter(data: GZSLData, fitted: CN) -> None:
    scores = fitted.decision_function(data.x_test_seen)
    np.testing.assert_allclose(fitted.decision_function(7 * data.x_test_seen), scores, rtol=1e-4, atol=1e-5)
    longer = fit(data, attributes=8 * data.attributes)  # which rounds nothing
    np.testing.assert_array_equal(longer.decision_function(data.x_test_seen), scores)


# --- What makes it what it is.
def test_hidden_values_are_standardised_over_the_seen_classes(data: GZSLData, fitted: CN) -> None:
    net = fitted.networks_["classifier"]
    assert not net.training
    before: list[torch.Tensor] = []
    handle = net.before.register_forward_hook(lambda layer, inputs, out: before.append(inputs[0]))
    net(fitted._vectors("cpu")[torch.as_tensor(fitted.seen_)])
    handle.remove()
    # The running statistics are those of the last steps, at a learning rate that has not sunk yet.
    torch.testing.assert_close(net.before.mean, before[0].mean(0), rtol=0.2, atol=0.05)
    torch.testing.assert_close(net.before.var, before[0].var(0, correction=0), rtol=0.3, atol=0.02)


def test_unseen_vectors_stay_out_of_training(data: GZSLData, fitted: CN) -> None:
    changed = data.attributes.copy()
    changed[data.unseen] = np.random.default_rng(0).random((20, 30))
    other = fit(data, attributes=changed)
    for name, values in fitted.networks_["classifier"].state_dict().items():
        assert torch.equal(values, other.networks_["classifier"].state_dict()[name]), name
    # Nor do they at test: every class has the scores it would have alone.
    scores = fitted.decision_function(data.x_test_unseen)
    np.testing.assert_array_equal(other.decision_function(data.x_test_unseen)[:, data.seen], scores[:, data.seen])


def test_it_trains_on_seen_classes_by_their_numbers(data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    found: dict[str, Any] = {}

    class Watched(class_norm.ClassifierTraining):
        def __init__(self, classifiers: Any, x: Any, y: Any, attributes: Any, seen: Any, **options: Any) -> None:
            found.update(y=y, attributes=attributes, seen=seen)
            super().__init__(classifiers, x, y, attributes, seen, **options)

    monkeypatch.setattr(class_norm, "ClassifierTraining", Watched)
    fit(data, n_epochs=1)
    np.testing.assert_array_equal(found["attributes"], data.attributes[data.seen])
    np.testing.assert_array_equal(data.seen[found["y"]], data.y_train)
    assert found["seen"].tolist() == [True] * 80


def test_it_recognises_classes_it_never_saw(data: GZSLData, fitted: CN) -> None:
    scores = gzsl_scores(fitted, data)
    assert scores.acc_seen > 0.5  # of 100 classes
    assert scores.acc_zsl > 0.7  # of 20


def test_bad_settings_get_a_sentence() -> None:
    for settings, sentence in (
        ({"seen_factor": -1.0}, "seen_factor must be a number from 0 up, found -1.0"),
        ({"temperature": 0.0}, "temperature must be a number from 1e-12 up, found 0.0"),
        ({"lr_step": 0}, "lr_step must be a whole number from 1 up, found 0"),
        ({"weight_decay": -1}, "weight_decay must be a number from 0 up, found -1"),
    ):
        with pytest.raises(DGZError, match=sentence):
            CN(**settings).check()
