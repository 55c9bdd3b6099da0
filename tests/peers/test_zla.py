"""ZLA: its recipe, its prior, and that the prior is what moves rows between seen and unseen classes."""

import math
from typing import Any

import numpy as np
import pytest
import torch

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import WGANGP, CenterMapper
from dgz.losses import cross_entropy, log_prior
from dgz.many import fit_many
from dgz.metrics import gzsl_scores
from dgz.peers import ZLA


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(**overrides: Any) -> ZLA:
    few = {"learning_rate": 2e-3, "n_epochs": 8, "batch_size": 128, "device": "cpu"}
    generator = CenterMapper(n_epochs=20, hidden=(64,), learning_rate=1e-3)
    return ZLA(**{"generator": generator, "distribution": "statistical", "n_per_class": 10, **few, **overrides})


def fit(one: ZLA, data: GZSLData) -> ZLA:
    return one.fit(data.x_train, data.y_train, data.attributes)


# --- The recipe.
def test_defaults_and_presets_are_those_of_the_released_code() -> None:
    one = ZLA()
    assert (one.n_per_class, one.n_epochs, one.lr_step, one.lr_factor) == (10, 60, 30, 0.5)
    assert (one.learning_rate, one.weight_decay, one.temperature, one.d_hidden) == (1e-4, 1e-4, 0.04, 1024)
    assert (one.feature_scaling, one.attribute_scaling, one.batch_size) == ("minmax", "auto", 512)
    generator = one._new_generator()
    assert isinstance(generator, WGANGP)
    assert (tuple(generator.widths(2048)), generator.attribute_noise, generator.class_weight) == ((4096,), 0.0, 0.0)
    ratios = {name: ZLA.preset(name).seen_ratio for name in ("AWA2", "CUB", "CUB/att", "SUN", "APY")}
    assert ratios == {"AWA2": 1000.0, "CUB": 30.0, "CUB/att": 45.0, "SUN": 60.0, "APY": 300.0}


def test_the_classifier_gets_its_settings(data: GZSLData) -> None:
    fitted = fit(model(seen_ratio=7.0, n_epochs=1), data)
    used = fitted.classifier_.get_params()
    assert (used["loss"], used["seen_ratio"], used["weight_decay"], used["lr_factor"]) == ("adjusted", 7.0, 1e-4, 0.5)


@pytest.mark.parametrize("ratio", [0.0, -1.0])
def test_a_ratio_that_is_none_is_refused(data: GZSLData, ratio: float) -> None:
    with pytest.raises(DGZError, match="seen_ratio must be"):
        fit(model(seen_ratio=ratio), data)


# --- The prior.
def test_the_prior_is_the_formulas() -> None:
    y, seen = torch.tensor([0, 0, 0, 2, 2, 1, 3, 3, 3, 3]), torch.tensor([True, False, True, False])
    found = log_prior(y, seen, seen_ratio=4.0)
    # Of five rows of seen classes, three and two; the unseen ones are alike, however many rows were generated.
    expected = [math.log(4 / 5 * 3 / 5), math.log(1 / 5 / 2), math.log(4 / 5 * 2 / 5), math.log(1 / 5 / 2)]
    np.testing.assert_allclose(found.numpy(), expected, rtol=1e-6)
    assert found.exp().sum() == pytest.approx(1)


def test_the_loss_is_cross_entropy_of_logits_with_the_prior_added() -> None:
    rng = torch.Generator().manual_seed(0)
    x, y = torch.randn(40, 6, generator=rng), torch.arange(40) % 4
    attributes, seen = torch.randn(4, 3, generator=rng), torch.tensor([True, True, False, True])
    classifiers = [CosineClassifier(loss="adjusted", seen_ratio=ratio, d_hidden=8) for ratio in (2.0, 50.0)]
    training = ClassifierTraining(classifiers, x, y, attributes, seen, seeds=[0, 1])
    rows = torch.stack([torch.arange(20), torch.arange(20, 40)])
    weights = training.net(attributes).detach().requires_grad_()
    loss, slope = training._slope(weights.detach(), rows)
    unit = torch.nn.functional.normalize(weights, dim=-1)
    for k, ratio in enumerate((2.0, 50.0)):
        logits = training.x[rows[k]] @ unit[k].T / 0.04 + log_prior(y, seen, ratio)
        expected = cross_entropy(logits, y[rows[k]])
        assert loss[k].item() == pytest.approx(expected.item(), rel=1e-5)
        (gradient,) = torch.autograd.grad(expected, weights, retain_graph=True)
        torch.testing.assert_close(slope[k], gradient[k], rtol=1e-4, atol=1e-6)


def test_prediction_knows_no_prior(data: GZSLData) -> None:
    fitted = fit(model(seen_ratio=100.0), data)
    rows = fitted.embed(data.x_test_seen)
    cosines = rows / np.linalg.norm(rows, axis=1, keepdims=True) @ fitted.weights_.T
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen), cosines, atol=1e-5)


def test_the_ratio_moves_rows_to_unseen_classes(data: GZSLData) -> None:
    """What makes it ZLA: without its prior, all of these would be the same model."""
    accuracies = [gzsl_scores(fit(model(seen_ratio=ratio), data), data) for ratio in (0.1, 1.0, 100.0)]
    unseen, seen = [one.acc_unseen for one in accuracies], [one.acc_seen for one in accuracies]
    assert unseen[0] + 0.3 < unseen[1] < unseen[2] - 0.1
    assert seen[0] > seen[2] + 0.3


def test_models_of_several_ratios_are_trained_at_once(data: GZSLData) -> None:
    alone = [fit(model(seen_ratio=ratio), data) for ratio in (1.0, 100.0)]
    together = [model(seen_ratio=ratio) for ratio in (1.0, 100.0)]
    fit_many(together, data.x_train, data.y_train, data.attributes)
    for one, other in zip(alone, together, strict=True):
        np.testing.assert_allclose(one.weights_, other.weights_, atol=1e-4)
    assert np.abs(together[0].weights_ - together[1].weights_).max() > 1e-3


def test_weight_decay_is_used(data: GZSLData) -> None:
    plain, decayed = (fit(model(weight_decay=value), data) for value in (0.0, 0.1))
    norms = [sum(float(p.detach().norm()) for p in one.classifier_.net_.parameters()) for one in (plain, decayed)]
    assert norms[1] < norms[0]
