"""AGZSL: its experts and virtual classes against slow twins, and the rule by which two experts make one decision."""

import math
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn.functional import normalize

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.metrics import decide, gzsl_scores
from dgz.peers import AGZSL
from dgz.peers.agzsl import Expert, _EpisodeTraining, _SeenExpertTraining, combine
from dgz.task import Task
from dgz.training import clipped


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(**settings: Any) -> AGZSL:
    few = {"n_epochs": 4, "n_episode_epochs": 2, "n_episodes": 50, "n_ways": 10, "d_hidden": 64}
    return AGZSL(**{**few, "learning_rate": 3e-3, "first_scale": 25.0, "device": "cpu", **settings})


def fit(one: AGZSL, data: GZSLData, **options: Any) -> AGZSL:
    return one.fit(data.x_train, data.y_train, data.attributes, **options)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> AGZSL:
    return fit(model(), data, test=data)


def training(kind: Any, task: Task, **settings: Any) -> Any:
    one = AGZSL(**{"d_hidden": 7, "batch_size": 8, "device": "cpu", **settings})
    one.seed_ = 3
    one._build(len(task.vectors), task.vectors.shape[1], task.x.shape[1])
    return kind(one, task)


def coded_task(n_seen: int = 6, n_rows: int = 5) -> Task:
    """Rows and vectors that say which class they are of; the seen classes are every other one."""
    n_classes = 2 * n_seen
    y = torch.arange(0, n_classes, 2).repeat(n_rows)
    vectors = torch.eye(n_classes)
    # The last column numbers the rows of a class, from 1.
    number = torch.arange(1, n_rows + 1).repeat_interleave(n_seen)[:, None]
    return Task(torch.cat([vectors[y], number], dim=1), y, vectors, torch.arange(n_classes) % 2 == 0, None)


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = AGZSL()
    assert (one.n_epochs, one.batch_size, one.lr_step, one.lr_factor, one.seen_weight_decay) == (100, 64, 2, 0.87, 9e-7)
    assert (one.n_episode_epochs, one.n_episodes, one.n_ways, one.n_shots, one.mixing) == (200, 1000, 20, 4, 5.0)
    assert (one.learning_rate, one.unseen_weight_decay, one.clip, one.first_scale) == (5e-4, 5e-7, 1.0, 10.0)
    assert (one.attention_temperature, one.seen_attention_temperature) == (10.0, 5.0)
    assert (one.feature_scaling, one.attribute_scaling) == ("none", "auto")
    one.seed_ = 0
    one._build(200, 312, 2048)
    for name, expert in one.networks_.items():
        shapes = [tuple(values.shape) for values in expert_parameters(expert)]
        assert shapes == [(312, 2048), (312,), (1600, 312), (1600,), (2048, 1600), (2048,), ()]
        assert expert.scale.item() == 10.0
        assert expert.relu_attention == (name == "seen")
        layers = [expert.attention, expert.mapper.first, expert.mapper.rest[0]]
        for layer in layers:
            (weights,), bias = layer.blocks, layer.bias
            if name == "unseen":  # N(0, 0.02²), as f-CLSWGAN has it
                assert weights.std().item() == pytest.approx(0.02, rel=0.05)
                assert not bias.any()
            else:  # uniform within 1 / √d_in, as PyTorch has it
                bound = weights.shape[1] ** -0.5
                assert weights.abs().max().item() == pytest.approx(bound, rel=0.01)
                assert 0.9 * bound < bias.abs().max().item() <= bound


def test_experts_are_trained_with_their_own_schedules() -> None:
    task = coded_task()
    seen, unseen = training(_SeenExpertTraining, task), training(_EpisodeTraining, task)
    for trainee, decay, rates in ((seen, 9e-7, [1, 1, 0.87, 0.87, 0.87**2]), (unseen, 5e-7, [1] * 5)):
        (group,) = trainee.optimizer.param_groups
        assert (group["betas"], group["weight_decay"]) == ((0.9, 0.999), decay)
        found = []
        for epoch in range(1, 6):
            trainee.begin_epoch(epoch)
            found.append(group["lr"] / 5e-4)
        assert found == pytest.approx(rates)
    assert (seen.n_steps, unseen.n_steps) == (4, 1000)


# --- An expert.
def slow_expert(expert: Expert, x: list[list[float]], vectors: list[list[float]], tau: float) -> list[list[float]]:
    """The equations, one number at a time."""
    state = {name: values.tolist() for name, values in expert.state_dict().items()}

    def layer(name: str, values: list[float]) -> list[float]:
        pairs = zip(state[f"{name}.blocks.0"], state[f"{name}.bias"], strict=True)
        return [sum(w * v for w, v in zip(row, values, strict=True)) + b for row, b in pairs]

    found: list[list[float]] = []
    for row in x:
        raw = layer("attention", row)
        powers = [math.exp((max(v, 0.0) if expert.relu_attention else v) / tau) for v in raw]
        attention = [1 + power / sum(powers) for power in powers]
        found.append([])
        for vector in vectors:
            adapted = [a * v for a, v in zip(attention, vector, strict=True)]
            hidden = [max(v, 0.0) for v in layer("mapper.first", adapted)]
            weights = [max(v, 0.0) for v in layer("mapper.rest.0", hidden)]
            cosine = sum(a * b for a, b in zip(row, weights, strict=True)) / (math.hypot(*weights) or 1.0)
            found[-1].append(state["scale"] * cosine)
    return found


@pytest.mark.parametrize("relu_attention", [True, False])
def test_an_expert_reweights_class_vectors_for_each_row(relu_attention: bool) -> None:
    rng = torch.Generator().manual_seed(0)
    expert = Expert(4, 6, 15, scale=3.0, relu_attention=relu_attention)
    for values in expert_parameters(expert)[:-1]:
        values.data.normal_(generator=rng)
    x, vectors = normalize(torch.randn(7, 6, generator=rng)), torch.randn(3, 4, generator=rng)
    found = expert(x, vectors, 0.7)
    torch.testing.assert_close(found, torch.tensor(slow_expert(expert, x.tolist(), vectors.tolist(), 0.7)))
    # Weights that are the same for all rows would give other scores.
    still = expert.mapper(vectors)
    assert not torch.allclose(found, 3.0 * x @ normalize(still).T, atol=0.05)
    assert torch.allclose(found, expert(x, vectors, 0.7001), atol=0.05)
    assert not torch.allclose(found, expert(x, vectors, 70.0), atol=0.05)


def test_scores_are_the_rule_over_both_experts(fitted: AGZSL, data: GZSLData) -> None:
    x = normalize(torch.tensor(data.x_test_unseen[:6])).tolist()
    of_seen = np.array(slow_expert(fitted.networks_["seen"], x, data.attributes.tolist(), 5.0))
    of_unseen = np.array(slow_expert(fitted.networks_["unseen"], x, data.attributes[data.unseen].tolist(), 10.0))
    best = of_seen[:, data.unseen].max(1, keepdims=True)
    expected = of_seen.copy()
    expected[:, data.unseen] = best + of_unseen - of_unseen.max(1, keepdims=True)
    found = fitted.decision_function(data.x_test_unseen[:6])
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-3)


# --- One decision of two experts.
def test_the_seen_expert_chooses_the_group_and_each_its_own_class() -> None:
    rng = torch.Generator().manual_seed(0)
    unseen = torch.tensor([1, 4, 5])
    of_seen, of_unseen = torch.randn(500, 8, generator=rng), 30 + 5 * torch.randn(500, 3, generator=rng)
    found = combine(of_seen, of_unseen, unseen)
    winners = set()
    for scores, mine, theirs in zip(found, of_seen, of_unseen, strict=True):
        winner = int(mine.argmax())
        is_unseen = winner in unseen
        winners.add(is_unseen)
        assert int(scores.argmax()) == (int(unseen[theirs.argmax()]) if is_unseen else winner)
        assert int(scores[unseen].argmax()) == int(theirs.argmax())
        kept = [c for c in range(8) if c not in unseen]
        assert torch.equal(scores[kept].float(), mine[kept])
    assert winners == {True, False}


def test_close_scores_stay_in_order() -> None:
    of_unseen = torch.tensor([[1e-3, 1e-3 + 1e-9, 1e-3]])
    assert of_unseen.argmax() == 1
    assert combine(torch.full((1, 3), 100.0), of_unseen, torch.arange(3)).argmax() == 1


def test_t1_is_the_unseen_experts_and_the_groups_the_seen_experts(fitted: AGZSL, data: GZSLData) -> None:
    x = normalize(torch.tensor(data.x_test_unseen))
    with torch.no_grad():
        of_seen = fitted.networks_["seen"](x, torch.tensor(data.attributes), 5.0)
        of_unseen = fitted.networks_["unseen"](x, torch.tensor(data.attributes[data.unseen]), 10.0)
    alone = data.unseen[of_unseen.argmax(1)]
    np.testing.assert_array_equal(fitted.predict(data.x_test_unseen, classes=data.unseen), alone)
    first = of_seen.argmax(1).numpy()
    np.testing.assert_array_equal(
        fitted.predict(data.x_test_unseen), np.where(np.isin(first, data.unseen), alone, first)
    )
    assert decide(of_seen, data.seen, data.unseen).unseen_class.tolist() != alone.tolist()


# --- Virtual classes.
def test_an_episode_mixes_pairs_of_seen_classes_rows_and_vectors_alike() -> None:
    trainee = training(_EpisodeTraining, coded_task(), n_ways=3, n_shots=4)
    numbers = set()
    for _ in range(20):
        x, vectors = trainee.episode()
        assert x.shape == (12, 13)
        used: list[int] = []
        for way, vector in enumerate(vectors):
            rows = x[4 * way : 4 * way + 4]
            torch.testing.assert_close(rows[:, :-1], vector.expand(4, -1))  # the same share of the same classes
            parts = vector.nonzero().flatten().tolist()
            assert len(parts) == 2
            assert vector.sum().item() == pytest.approx(1.0)
            used += parts
            numbers |= {round(number, 4) for number in rows[:, -1].tolist()}
        assert len(set(used)) == 6  # no class twice
        assert all(c % 2 == 0 for c in used)  # nor an unseen one
    assert len(numbers) > 100  # rows are drawn for every shot, of both classes


def test_rows_are_of_the_classes_mixed_however_many_these_have() -> None:
    task = coded_task()
    kept = torch.tensor([k for k in range(30) if task.y[k] != 4 or k == 2])  # class 4 keeps one row
    task = Task(task.x[kept], task.y[kept], task.vectors, task.seen, None)
    trainee = training(_EpisodeTraining, task, n_ways=3, n_shots=8)
    hits = torch.zeros(6)
    for _ in range(30):
        x, vectors = trainee.episode()
        for way, vector in enumerate(vectors):
            (a, b), numbers = vector.nonzero().flatten().tolist(), x[8 * way : 8 * way + 8, -1]
            lone = [c for c in (a, b) if c == 4]
            if lone:
                share, other = vector[4].item(), vector[a + b - 4].item()
                rest = (numbers - share * 1) / other  # numbers of the other class's rows, when its own is row 1
                torch.testing.assert_close(rest, rest.round(), atol=1e-3, rtol=0)
                hits += torch.bincount(rest.round().long(), minlength=6)
    assert (hits[1:] > 0).all()
    assert hits[0] == 0


def test_shares_have_a_beta_distribution() -> None:
    task = coded_task()
    for mixing in (5.0, 1.0):
        trainee = training(_EpisodeTraining, task, n_ways=3, n_shots=1, mixing=mixing)
        # The larger share of a pair is λ or 1 − λ: its distribution function is F(x) − F(1 − x).
        shares = torch.cat([trainee.episode()[1].amax(1) for _ in range(700)]).numpy()
        for at in (0.6, 0.8, 0.95):
            expected = at**mixing - (1 - at) ** mixing
            assert np.mean(shares <= at) == pytest.approx(expected, abs=4 * math.sqrt(0.25 / len(shares)))
    trainee = training(_EpisodeTraining, task, n_ways=3, n_shots=1, mixing=1e9)
    _, vectors = trainee.episode()  # nothing is left of the other class
    assert (vectors.amax(1) > 0.99).all()
    assert set(vectors.argmax(1).tolist()) <= set(range(0, 12, 2))


def test_an_episode_is_smaller_where_there_are_few_classes(data: GZSLData) -> None:
    assert training(_EpisodeTraining, coded_task(5), n_ways=20).episode()[1].shape == (2, 10)
    assert training(_EpisodeTraining, coded_task(6), n_ways=2).episode()[1].shape == (2, 12)
    few = np.isin(data.y_train, data.seen[:3])
    with pytest.raises(DGZError, match="AGZSL mixes seen classes and needs at least 4 of them, found 3"):
        model().fit(data.x_train[few], data.y_train[few], data.attributes)


# --- Steps.
@pytest.mark.parametrize("most", [0.5, 100.0])
def test_gradients_are_clipped_all_together(most: float) -> None:
    rng = torch.Generator().manual_seed(0)
    leaves = [nn.Parameter(torch.zeros(3, 2)), nn.Parameter(torch.zeros(4))]
    for leaf in leaves:
        leaf.grad = torch.randn(leaf.shape, generator=rng)
    found = clipped([leaf.grad for leaf in leaves], most)
    nn.utils.clip_grad_norm_(leaves, most)
    for mine, leaf in zip(found, leaves, strict=True):
        torch.testing.assert_close(mine, leaf.grad, rtol=1e-5, atol=1e-6)
    assert not clipped([torch.zeros(2)], 1.0)[0].any()


class Twin(nn.Module):
    """An expert as one would write it first."""

    def __init__(self, expert: Expert) -> None:
        super().__init__()
        d_hidden, d_a = expert.mapper.first.blocks[0].shape
        d_x = expert.attention.blocks[0].shape[1]
        self.guide, self.one, self.two = nn.Linear(d_x, d_a), nn.Linear(d_a, d_hidden), nn.Linear(d_hidden, d_x)
        self.scale = nn.Parameter(torch.zeros(()))
        self.relu_attention = expert.relu_attention
        for mine, theirs in zip(self.ordered(), expert_parameters(expert), strict=True):
            mine.data = theirs.detach().clone()

    def ordered(self) -> list[nn.Parameter]:
        layers = (self.guide, self.one, self.two)
        return [values for layer in layers for values in (layer.weight, layer.bias)] + [self.scale]

    def forward(self, x: torch.Tensor, vectors: torch.Tensor, tau: float) -> torch.Tensor:
        x = normalize(x)
        raw = self.guide(x).relu() if self.relu_attention else self.guide(x)
        adapted = (1 + (raw / tau).softmax(1))[:, None, :] * vectors[None]
        weights = normalize(self.two(self.one(adapted).relu()).relu(), dim=-1)
        return self.scale * torch.einsum("ncd,nd->nc", weights, x)


def expert_parameters(expert: Expert) -> list[torch.Tensor]:
    layers = (expert.attention, expert.mapper.first, expert.mapper.rest[0])
    return [values for layer in layers for values in (layer.blocks[0], layer.bias)] + [expert.scale]


@pytest.mark.parametrize("kind", [_SeenExpertTraining, _EpisodeTraining])
@pytest.mark.parametrize("clip", [1e-3, 1.0])
def test_a_step_is_cross_entropy_over_its_classes(kind: Any, clip: float) -> None:
    task = coded_task()
    settings = {"n_ways": 3, "n_shots": 2, "clip": clip, "learning_rate": 0.01}
    twin = training(kind, task, **settings)  # which draws the same
    if kind is _EpisodeTraining:
        (x, vectors), y = twin.episode(), torch.tensor([0, 0, 1, 1, 2, 2])
    else:
        (x, y), vectors = twin.draw(), task.vectors[::2]
    trainee = training(kind, task, **settings)
    plain = Twin(trainee.expert)
    decay = 5e-7 if kind is _EpisodeTraining else 9e-7
    adam = torch.optim.Adam(plain.parameters(), lr=0.01, weight_decay=decay)
    loss = nn.functional.cross_entropy(plain(x, vectors, 10.0), y)
    loss.backward()
    length = nn.utils.clip_grad_norm_(plain.parameters(), clip)
    assert length > 1e-3
    adam.step()
    torch.testing.assert_close(trainee.step()["loss"], loss)
    for mine, theirs in zip(expert_parameters(trainee.expert), plain.ordered(), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=2e-5)


# --- Learning.
def test_it_recognises_classes_it_never_saw(fitted: AGZSL, data: GZSLData) -> None:
    scores = gzsl_scores(fitted, data)
    assert scores.acc_seen > 0.4  # of 100 classes
    assert scores.acc_zsl > 0.5  # of 20
    assert scores.acc_unseen > 0.2


def test_the_history_tells_the_experts_apart(fitted: AGZSL) -> None:
    stages = [row["stage"] for row in fitted.history_]
    assert stages == ["unseen expert"] * 2 + ["classifier"] * 4
    assert all(set(row) == {"stage", "epoch", "loss"} for row in fitted.history_[:2])
    assert all({"h", "acc_zsl", "loss"} <= set(row) for row in fitted.history_[2:])
    assert len({row["acc_zsl"] for row in fitted.history_[2:]}) == 1  # the unseen expert is trained by then
    assert fitted.history_[1]["loss"] < fitted.history_[0]["loss"]
    assert fitted.history_[-1]["loss"] < fitted.history_[2]["loss"]


def test_one_experts_training_does_not_move_the_other(fitted: AGZSL, data: GZSLData) -> None:
    for change, kept in (({"n_episode_epochs": 1}, "seen"), ({"n_epochs": 1}, "unseen")):
        other = fit(model(**change), data)
        for name in ("seen", "unseen"):
            pairs = zip(other.networks_[name].parameters(), fitted.networks_[name].parameters(), strict=True)
            assert all(torch.equal(a, b) for a, b in pairs) == (name == kept)


def test_bad_settings_get_a_sentence() -> None:
    for settings, sentence in (
        ({"n_ways": 1}, "n_ways must be at least 2, so that there is something to tell apart, found 1"),
        ({"n_ways": 2.5}, "n_ways must be a whole number from 1 up, found 2.5"),
        ({"n_shots": 0}, "n_shots must be a whole number from 1 up, found 0"),
        ({"n_episodes": 0}, "n_episodes must be a whole number from 1 up, found 0"),
        ({"mixing": 0}, "mixing must be a number from 1e-12 up, found 0"),
        ({"clip": -1}, "clip must be a number from 1e-12 up, found -1"),
        ({"first_scale": 0}, "first_scale must be a number from 1e-12 up, found 0"),
        ({"seen_weight_decay": -1}, "seen_weight_decay must be a number from 0 up, found -1"),
        ({"seen_attention_temperature": 0}, "seen_attention_temperature must be a number from 1e-12 up"),
        ({"lr_step": 0}, "lr_step must be a whole number from 1 up, found 0"),
    ):
        with pytest.raises(DGZError, match=sentence):
            AGZSL(**settings).check()
