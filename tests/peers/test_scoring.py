"""The frame of methods without generation, on each of them: what is tested, kept, resumed, refused and saved."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from dgz.classifier import ClassifierTraining
from dgz.data import GZSLData
from dgz.data.synthetic import make_synthetic
from dgz.errors import DGZError
from dgz.metrics import gzsl_scores
from dgz.peers import AGZSL, CN, TCN, scoring
from dgz.peers.agzsl import _EpisodeTraining, _SeenExpertTraining
from dgz.peers.scoring import ScoringMethod, SeenTraining, width
from dgz.peers.tcn import _RelationTraining
from dgz.task import Task

SMALL: dict[type[ScoringMethod], dict[str, Any]] = {
    CN: {"d_hidden": 16, "learning_rate": 0.01},
    TCN: {"d_hidden": 16, "d_relation": 16, "steps_per_epoch": 20, "learning_rate": 0.003},
    AGZSL: {"d_hidden": 16, "n_episode_epochs": 4, "n_episodes": 20, "n_ways": 5, "learning_rate": 0.003},
}
KINDS = list(SMALL)


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return make_synthetic(20, 5, n_attributes=30, n_features=16, n_samples=600, difficulty=0.0)


def small(kind: type[ScoringMethod], **overrides: Any) -> ScoringMethod:
    return kind(**{"n_epochs": 4, "batch_size": 64, "device": "cpu", **SMALL[kind], **overrides})


def fit(model: ScoringMethod, data: GZSLData, **options: Any) -> ScoringMethod:
    return model.fit(data.x_train, data.y_train, data.attributes, **options)


def bits(model: ScoringMethod) -> dict[str, bytes]:
    return {
        f"{part}/{name}": values.numpy().tobytes()
        for part, net in model.networks_.items()
        for name, values in net.state_dict().items()
    }


def test_widths_are_the_published_ones_in_proportion() -> None:
    assert [width(None, 1600, d_x) for d_x in (2048, 1024, 128)] == [1600, 800, 256]
    assert width(24, 1600, 2048) == 24


# --- Test rows.
@pytest.mark.parametrize("kind", KINDS)
def test_every_epochs_scores_are_those_of_the_model_it_leaves(kind: type[ScoringMethod], data: GZSLData) -> None:
    model = fit(small(kind), data, test=data)
    rows = [row for row in model.history_ if row["stage"] == "classifier"]
    assert [row["epoch"] for row in rows] == [1, 2, 3, 4]
    assert all(row["generator_epoch"] == 0 for row in rows)
    scores = gzsl_scores(model, data)
    for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert rows[-1][name] == pytest.approx(getattr(scores, name), abs=1e-9)
    # An earlier row is of a model that trained for as long; the learning rate of none depends on how long it will be.
    early = gzsl_scores(fit(small(kind, n_epochs=2), data), data)
    assert (rows[1]["h"], rows[1]["acc_zsl"]) == pytest.approx((early.h, early.acc_zsl), abs=1e-9)
    assert rows[0]["acc_seen"] < rows[-1]["acc_seen"]


@pytest.mark.parametrize("kind", KINDS)
def test_without_test_rows_the_history_has_losses_alone(kind: type[ScoringMethod], data: GZSLData) -> None:
    model = fit(small(kind), data)
    losses = {"seen loss", "unseen loss"} if kind is TCN else {"loss"}
    rows = [row for row in model.history_ if row["stage"] == "classifier"]
    assert all(set(row) == {"stage", "generator_epoch", "epoch", *losses} for row in rows)
    first = next(iter(sorted(losses)))
    assert rows[-1][first] < rows[0][first]


@pytest.mark.parametrize("kind", KINDS)
def test_it_learns_the_seen_classes(kind: type[ScoringMethod], data: GZSLData) -> None:
    more = {"first_scale": 25.0} if kind is AGZSL else {}
    scores = gzsl_scores(fit(small(kind, n_epochs=15, batch_size=32, **more), data), data)
    assert scores.acc_seen > 0.6  # of 20 classes
    assert scores.acc_intra_seen > 0.7


@pytest.mark.parametrize("kind", KINDS)
def test_rows_are_compared_in_blocks(
    kind: type[ScoringMethod], data: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = fit(small(kind, n_epochs=1), data)
    whole, sizes = model.decision_function(data.x_test_seen), []
    compare = kind._compare
    monkeypatch.setattr(kind, "_compare", lambda self, x, vectors: sizes.append(len(x)) or compare(self, x, vectors))
    monkeypatch.setattr(scoring, "_MOST_VALUES", 20 * model._values_per_pair(16) * 7)
    np.testing.assert_allclose(model.decision_function(data.x_test_seen), whole, rtol=1e-5, atol=1e-5)
    assert max(sizes) == 7
    assert sum(sizes) == len(data.x_test_seen)
    monkeypatch.setattr(scoring, "_MOST_VALUES", 1)  # less than a row's: one at a time all the same
    assert model.decision_function(data.x_test_seen[:3]).shape == (3, 20)


def test_the_pairs_of_relation_and_attention_count_in_blocks(data: GZSLData) -> None:
    found = {kind: fit(small(kind, n_epochs=1), data)._values_per_pair(16) for kind in KINDS}
    assert found == {CN: 1, TCN: 32, AGZSL: 32}


# --- Training.
def test_rows_come_with_the_numbers_of_their_classes_among_the_seen() -> None:
    seen = torch.tensor([False, True, False, True, True])
    y = torch.tensor([1, 3, 4, 4, 1, 3])
    task = Task(torch.arange(6.0)[:, None], y, torch.arange(5.0)[:, None], seen, None)
    options: dict[str, Any] = {"n_steps": 1, "batch_size": 4, "seed": 0, "precision": "float32", "learning_rate": 0.1}

    class Still(SeenTraining):
        def step(self) -> dict[str, torch.Tensor]:
            return {}

    trainee = Still(task, "test", {"net": torch.nn.Linear(1, 1)}, **options)
    assert trainee.vectors.flatten().tolist() == [1.0, 3.0, 4.0]
    hits = torch.zeros(6)
    for _ in range(50):
        x, numbers = trainee.draw()
        assert len(x) == 4
        rows = x.flatten().long()
        assert torch.equal(torch.tensor([1, 3, 4])[numbers], y[rows])
        hits += torch.bincount(rows, minlength=6)
    assert hits.min() > 15  # of 33 expected
    assert Still(task, "test", {"net": torch.nn.Linear(1, 1)}, **{**options, "batch_size": 99}).draw()[0].shape == (
        6,
        1,
    )


def test_learning_rates_sink_by_steps() -> None:
    task = Task(torch.zeros(1, 1), torch.zeros(1).long(), torch.zeros(1, 1), torch.tensor([True]), None)

    class Still(SeenTraining):
        def step(self) -> dict[str, torch.Tensor]:
            return {}

    options: dict[str, Any] = {"n_steps": 1, "batch_size": 1, "seed": 0, "precision": "float32", "learning_rate": 8.0}
    net = {"net": torch.nn.Linear(1, 1)}
    for schedule, expected in (({"lr_step": 2, "lr_factor": 0.5}, [8, 8, 4, 4, 2]), ({"lr_factor": 0.5}, [8] * 5)):
        trainee, rates = Still(task, "test", net, **options, **schedule), []
        for epoch in range(1, 6):
            trainee.begin_epoch(epoch)
            rates.append(trainee.optimizer.param_groups[0]["lr"])
        assert rates == expected
    group = trainee.optimizer.param_groups[0]
    assert (group["betas"], group["weight_decay"]) == ((0.9, 0.999), 0.0)


STAGES = [(CN, ClassifierTraining), (TCN, _RelationTraining), (AGZSL, _EpisodeTraining), (AGZSL, _SeenExpertTraining)]


@pytest.mark.parametrize(("kind", "training"), STAGES)
def test_a_broken_fit_goes_on_to_the_same_bits(
    kind: type[ScoringMethod], training: Any, data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fit(small(kind), data, test=data)
    begin = training.begin_epoch

    def stop(self: Any, epoch: int) -> None:
        if epoch == 3:
            raise InterruptedError
        begin(self, epoch)

    kept: dict[str, Any] = {"test": data, "checkpoint_folder": tmp_path, "checkpoint_seconds": 0.0}
    broken = small(kind)
    with monkeypatch.context() as patch:
        patch.setattr(training, "begin_epoch", stop)
        with pytest.raises(InterruptedError):
            fit(broken, data, **kept)
    with pytest.raises(NotFittedError):
        broken.predict(data.x_test_seen)
    epochs: list[int] = []
    monkeypatch.setattr(training, "begin_epoch", lambda self, epoch: epochs.append(epoch) or begin(self, epoch))
    resumed = fit(small(kind), data, **kept)
    assert epochs[:2] == [3, 4]
    assert bits(resumed) == bits(whole)
    assert resumed.history_ == whole.history_
    with pytest.raises(DGZError, match="checkpoint of other settings or other data"):
        fit(small(kind, random_state=1), data, **kept)


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits_whatever_else_is_random(kind: type[ScoringMethod], data: GZSLData) -> None:
    before = torch.get_rng_state()
    first = fit(small(kind, n_epochs=2), data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert bits(fit(clone(first), data)) == bits(first)
    assert bits(fit(clone(first).set_params(random_state=1), data)) != bits(first)


@pytest.mark.parametrize("kind", KINDS)
def test_training_that_breaks_says_so_itself(kind: type[ScoringMethod], data: GZSLData) -> None:
    stage = "unseen expert" if kind is AGZSL else "classifier"
    model = small(kind, learning_rate=1e30)
    with pytest.raises(DGZError, match=f"Training the {stage} stopped in epoch 1: its .* is no finite number"):
        fit(model, data, test=data)
    with pytest.raises(NotFittedError):
        model.predict(data.x_test_seen)


@pytest.mark.parametrize("kind", KINDS)
def test_every_precision_trains(kind: type[ScoringMethod], data: GZSLData) -> None:
    found = {precision: fit(small(kind, precision=precision), data) for precision in ("float32", "tf32", "bf16")}
    assert bits(found["tf32"]) == bits(found["float32"])  # which is for GPUs
    assert bits(found["bf16"]) != bits(found["float32"])
    losses = [next(v for k, v in model.history_[-1].items() if k.endswith("loss")) for model in found.values()]
    assert losses[2] == pytest.approx(losses[0], rel=0.2)


@pytest.mark.parametrize("kind", KINDS)
def test_every_class_may_be_seen(kind: type[ScoringMethod], data: GZSLData) -> None:
    kept = data.attributes[data.seen]
    model = small(kind).fit(data.x_train, np.searchsorted(data.seen, data.y_train), kept)
    assert model.decision_function(data.x_test_seen).shape == (len(data.x_test_seen), 15)
    assert model.seen_.all()
    assert all("unseen loss" not in row for row in model.history_)


# --- After training.
@pytest.mark.parametrize("kind", KINDS)
def test_settings_changed_after_training_wait_for_the_next(
    kind: type[ScoringMethod], data: GZSLData, tmp_path: Path
) -> None:
    model = fit(small(kind), data)
    before = model.decision_function(data.x_test_seen)
    model.set_params(d_hidden=7, random_state=np.random.RandomState(0), feature_scaling="minmax")
    if kind is CN:
        model.set_params(seen_factor=0.5)
    if kind is AGZSL:
        model.set_params(seen_attention_temperature=0.1, attention_temperature=0.1)
    np.testing.assert_array_equal(model.decision_function(data.x_test_seen), before)
    model.save(tmp_path / "model")
    twin = kind.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(data.x_test_seen), before)
    assert (twin.d_hidden, twin.random_state, twin.feature_scaling) == (16, 0, "none")
    assert twin.history_ == model.history_


@pytest.mark.parametrize("kind", KINDS)
def test_bad_settings_get_a_sentence_before_any_work(kind: type[ScoringMethod], data: GZSLData) -> None:
    bad: list[tuple[dict[str, Any], str]] = [
        ({"n_epochs": 0}, "n_epochs must be a whole number from 1 up, found 0"),
        ({"batch_size": 0.5}, "batch_size must be a whole number from 1 up, found 0.5"),
        ({"d_hidden": 0}, "d_hidden must be a whole number from 1 up, found 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number from 1e-12 up, found 0.0"),
        ({"feature_scaling": "big"}, "feature_scaling must be one of none, minmax, minmax_l2, found 'big'"),
        ({"precision": "half"}, "precision must be one of"),
    ]
    for settings, sentence in bad:
        with pytest.raises(DGZError, match=sentence):
            fit(small(kind, **settings), data)
    with pytest.raises(DGZError, match="fit needs attributes"):
        small(kind).fit(data.x_train, data.y_train)
