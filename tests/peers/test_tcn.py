"""TCN: its recipe, its relations and soft targets against slow twins, and what contrast with unseen classes does."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge
from torch import nn

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.metrics import gzsl_scores
from dgz.peers import TCN
from dgz.peers.tcn import _RelationTraining, relations, similarity
from dgz.task import Task


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(**settings: Any) -> TCN:
    few = {"n_epochs": 3, "steps_per_epoch": 50, "learning_rate": 2e-3, "d_hidden": 64, "d_relation": 64}
    return TCN(**{**few, "device": "cpu", **settings})


def fit(one: TCN, data: GZSLData) -> TCN:
    return one.fit(data.x_train, data.y_train, data.attributes)


def small_task() -> Task:
    """Rows of three seen classes of five, which are not the first three."""
    rng = torch.Generator().manual_seed(0)
    y = torch.tensor([0, 2, 4]).repeat(4)
    seen = torch.tensor([True, False, True, False, True])
    return Task(torch.rand(12, 6, generator=rng), y, torch.rand(5, 4, generator=rng), seen, None)


def training(task: Task, **settings: Any) -> _RelationTraining:
    one = model(d_hidden=7, d_relation=5, batch_size=8, steps_per_epoch=1, **settings)
    one.seed_ = 3
    one._build(len(task.vectors), task.vectors.shape[1], task.x.shape[1])
    return _RelationTraining(one, task)


def ordered(net: Any) -> list[torch.Tensor]:
    """Weights and bias of each layer."""
    return [values for layer in (net.first, *net.rest) for values in (layer.blocks[0], layer.bias)]


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = TCN()
    assert one.n_epochs * one.steps_per_epoch == 50_000
    assert (one.batch_size, one.learning_rate, one.unseen_weight, one.ridge) == (32, 1e-5, 0.01, 1.0)
    assert (one.feature_scaling, one.attribute_scaling) == ("none", "auto")
    one.seed_ = 0
    one._build(200, 312, 2048)
    shapes = {name: [tuple(v.shape) for v in ordered(net)] for name, net in one.networks_.items()}
    assert shapes["prototypes"] == [(1024, 312), (1024,), (2048, 1024), (2048,)]
    assert shapes["relation"] == [(1024, 2048), (1024,), (1, 1024), (1,)]


def test_layers_start_as_xavier_has_it() -> None:
    one = TCN()
    one.seed_ = 0
    one._build(200, 312, 2048)
    for net in one.networks_.values():
        for name, values in net.named_parameters():
            if name.endswith("bias"):
                assert not values.any()
            else:
                assert values.std().item() == pytest.approx(math.sqrt(2 / sum(values.shape)), rel=0.05)


def test_one_adam_moves_everything_by_the_published_betas() -> None:
    trainee = training(small_task())
    (group,) = trainee.optimizer.param_groups
    assert (group["betas"], group["weight_decay"], group["lr"]) == ((0.5, 0.9), 0.0, 2e-3)
    assert len(group["params"]) == 8


# --- Relations.
def slow_relations(nets: Any, x: list[list[float]], vectors: list[list[float]]) -> list[list[float]]:
    """The equations, pair by pair: a leaky ReLU after both layers of a prototype, a ReLU in the relation."""
    state = {f"{part}.{k}": v.tolist() for part, net in nets.items() for k, v in net.state_dict().items()}

    def layer(name: str, values: list[float]) -> list[float]:
        pairs = zip(state[f"{name}.blocks.0"], state[f"{name}.bias"], strict=True)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in pairs]

    def leaky(values: list[float]) -> list[float]:
        return [v if v > 0 else 0.01 * v for v in values]

    found: list[list[float]] = []
    for row in x:
        found.append([])
        for vector in vectors:
            prototype = leaky(layer("prototypes.rest.0", leaky(layer("prototypes.first", vector))))
            product = [a * b for a, b in zip(row, prototype, strict=True)]
            hidden = [max(v, 0.0) for v in layer("relation.first", product)]
            found[-1].append(layer("relation.rest.0", hidden)[0])
    return found


def test_relations_are_of_elementwise_products() -> None:
    task = small_task()
    nets = training(task).networks
    x, vectors = task.x[:4] - 0.5, task.vectors - 0.5
    found = relations(nets["prototypes"], nets["relation"], x, vectors)
    torch.testing.assert_close(found, torch.tensor(slow_relations(nets, x.tolist(), vectors.tolist())))


def test_scores_are_relations_with_every_class(data: GZSLData) -> None:
    one = fit(model(n_epochs=1), data)
    found = one.decision_function(data.x_test_seen[:2])
    expected = slow_relations(one.networks_, data.x_test_seen[:2].tolist(), data.attributes[:9].tolist())
    np.testing.assert_allclose(found[:, :9], expected, rtol=1e-3, atol=1e-4)


# --- Soft targets.
@pytest.mark.parametrize("strength", [1.0, 0.1])
def test_similarities_are_a_ridge_regressions_coefficients(strength: float) -> None:
    rng = np.random.default_rng(0)
    seen, unseen = rng.random((6, 9)), rng.random((5, 9))
    seen += unseen[0]  # so that each resembles one
    expected = Ridge(alpha=strength).fit(unseen.T, seen.T).coef_
    expected[expected < 1e-3] = 0
    assert (expected == 0).any()
    expected = [row / (row.sum() or 1.0) for row in expected]
    np.testing.assert_allclose(similarity(seen, unseen, strength), expected, rtol=1e-5)


def test_a_class_that_resembles_no_other_has_no_targets() -> None:
    unseen = np.array([[1.0, 0.0, 0.0]])
    np.testing.assert_array_equal(similarity(np.array([[-1.0, 0.0, 0.0], [2.0, 0.0, 0.0]]), unseen), [[0.0], [1.0]])
    assert similarity(np.ones((1, 3)), unseen).tolist() == [[0.0]]  # nothing to tell it by


# --- A step.
def test_a_step_is_that_of_two_binary_cross_entropies() -> None:
    """Against the released code's own words: sigmoid, BCELoss of seen and of unseen columns, Adam."""
    task = small_task()
    x, y = training(task, unseen_weight=0.3).draw()
    trainee = training(task, unseen_weight=0.3)  # which draws the same
    nets = {
        "prototypes": nn.Sequential(nn.Linear(4, 7), nn.LeakyReLU(), nn.Linear(7, 6), nn.LeakyReLU()),
        "relation": nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 1), nn.Sigmoid()),
    }
    for part, net in nets.items():
        for mine, theirs in zip(ordered(trainee.networks[part]), net.parameters(), strict=True):
            theirs.data = mine.detach().clone()
    parameters = [*nets["prototypes"].parameters(), *nets["relation"].parameters()]
    adam = torch.optim.Adam(parameters, lr=2e-3, betas=(0.5, 0.9))
    order = torch.tensor([0, 2, 4, 1, 3])
    pairs = nets["prototypes"](task.vectors[order])[None] * x[:, None]
    found = nets["relation"](pairs).squeeze(-1)
    own = torch.zeros(8, 3).scatter_(1, y[:, None], 1.0)
    alike = torch.tensor(similarity(task.vectors[order[:3]].numpy(), task.vectors[order[3:]].numpy()))[y]
    seen_loss, unseen_loss = nn.BCELoss()(found[:, :3], own), nn.BCELoss()(found[:, 3:], alike)
    (seen_loss + 0.3 * unseen_loss).backward()
    adam.step()
    losses = trainee.step()
    torch.testing.assert_close(losses["seen loss"], seen_loss)
    torch.testing.assert_close(losses["unseen loss"], unseen_loss)
    for part, net in nets.items():
        for mine, theirs in zip(ordered(trainee.networks[part]), net.parameters(), strict=True):
            torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-6)


def test_columns_of_a_step_belong_to_their_classes() -> None:
    task = small_task()
    trainee = training(task)
    assert torch.equal(trainee.vectors, task.vectors[[0, 2, 4, 1, 3]])
    assert torch.equal(trainee.targets[:, :3], torch.eye(3))
    np.testing.assert_allclose(
        trainee.targets[:, 3:], similarity(task.vectors[[0, 2, 4]].numpy(), task.vectors[[1, 3]].numpy())
    )
    x, y = trainee.draw()
    for row, number in zip(x, y, strict=True):
        at = int((task.x == row).all(1).nonzero())
        assert task.y[at] == torch.tensor([0, 2, 4])[number]


# --- What makes it what it is.
def test_contrast_with_unseen_classes_brings_rows_to_them(data: GZSLData) -> None:
    with_it, without = (gzsl_scores(fit(model(unseen_weight=w), data), data) for w in (0.05, 0.0))
    assert with_it.acc_unseen > without.acc_unseen + 0.15
    assert with_it.unseen_as_seen < without.unseen_as_seen - 0.2
    assert with_it.acc_zsl > 0.6  # of 20 classes without training rows
    assert with_it.acc_seen > 0.3  # of 100


def test_unseen_vectors_matter_in_training_and_nothing_else_of_unseen_classes(data: GZSLData) -> None:
    few: dict[str, Any] = {"n_epochs": 1, "steps_per_epoch": 5, "learning_rate": 1e-3}
    one = fit(model(**few), data)
    changed = data.attributes.copy()
    changed[data.unseen] = changed[data.unseen][::-1]
    renamed = model(**few).fit(data.x_train, data.y_train, changed)  # the same sums in another order
    changed[data.unseen] = 1 - changed[data.unseen]
    other = model(**few).fit(data.x_train, data.y_train, changed)

    def gap(another: TCN) -> float:
        pairs = zip(one.networks_["relation"].parameters(), another.networks_["relation"].parameters(), strict=True)
        return max((a - b).abs().max().item() for a, b in pairs)

    assert gap(renamed) < 1e-4
    assert gap(other) > 1e-3


def test_bad_settings_get_a_sentence() -> None:
    for settings, sentence in (
        ({"unseen_weight": -0.1}, "unseen_weight must be a number from 0 up, found -0.1"),
        ({"ridge": 0}, "ridge must be a number from 1e-12 up, found 0"),
        ({"steps_per_epoch": 0}, "steps_per_epoch must be a whole number from 1 up, found 0"),
        ({"d_relation": 2.5}, "d_relation must be a whole number from 1 up, found 2.5"),
    ):
        with pytest.raises(DGZError, match=sentence):
            TCN(**settings).check()
