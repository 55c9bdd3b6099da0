"""The classifier: that it learns with every kind of weights and every loss, and which rows, rates and losses it uses."""

from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import normalize

from dgz import classifier as module
from dgz import losses
from dgz.classifier import CosineClassifier
from dgz.errors import DGZError
from dgz.training import Checkpoints, random_stream

WEIGHTS = ["mapped", "free", "class_normalised"]
LOSSES = ["revised", "plain", "incremental"]


# --- Inputs.
def rows(per_class=12, spread=0.1):
    """Separable rows of three seen and two unseen classes; each entry of a class's vector lights up two features."""
    rng = torch.Generator().manual_seed(0)
    attributes = torch.cat([torch.eye(4), torch.tensor([[1.0, 1, 0, 0]])]) + 0.2 * torch.rand(5, 4, generator=rng)
    centers = attributes.repeat_interleave(2, dim=1)
    y = torch.arange(5).repeat(per_class)
    x = centers[y] + spread * torch.randn(len(y), 8, generator=rng)
    return SimpleNamespace(x=x, y=y, attributes=attributes, seen=torch.tensor([True, False, True, True, False]))


def tiny(**options):
    options = {"n_epochs": 2, "d_hidden": 16, "learning_rate": 0.01, "batch_size": 16, "lr_step": None} | options
    return CosineClassifier(**options)


def fit(classifier, data, **options):
    return classifier.fit(data.x, data.y, data.attributes, data.seen, **options)


def bits(classifier):
    return {name: values.tolist() for name, values in classifier.net_.state_dict().items()}


def spy(monkeypatch, name="cross_entropy"):
    """The arguments of every call of a loss, step by step."""
    calls, original = [], getattr(losses, name)
    monkeypatch.setattr(module, name, lambda *args: calls.append(args) or original(*args))
    return calls


def one_class_per_row(n):
    """A problem in which a row's label tells which row it is."""
    rng = torch.Generator().manual_seed(0)
    x, attributes = torch.randn(n, 3, generator=rng), torch.randn(n, 2, generator=rng)
    return SimpleNamespace(x=x, y=torch.arange(n), attributes=attributes, seen=torch.ones(n, dtype=torch.bool))


def rows_of_epochs(calls, n_steps):
    """Which rows each epoch saw, in order."""
    assert len(calls) % n_steps == 0
    visits = [args[1].tolist() for args in calls]
    return [list(chain(*visits[start : start + n_steps])) for start in range(0, len(visits), n_steps)]


# --- Learning.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_kind_of_weights_learns_with_every_loss(weights, loss):
    data = rows()
    classifier = fit(tiny(weights=weights, loss=loss, n_epochs=40, lambda_1=0.5), data)
    first, last = classifier.history_[0]["loss"], classifier.history_[-1]["loss"]
    assert [row["epoch"] for row in classifier.history_] == list(range(1, 41))
    assert last < 0.5 * first
    cosines = normalize(data.x) @ classifier.class_weights(data.attributes).T
    assert (cosines.argmax(1) == data.y).float().mean() > 0.95


def test_mapped_weights_come_from_the_class_vector_and_free_ones_do_not():
    data = rows()
    data.attributes[3] = data.attributes[0]
    for weights in WEIGHTS:
        found = fit(tiny(weights=weights), data).class_weights(data.attributes)
        assert torch.equal(found[0], found[3]) == (weights != "free")
        assert not torch.equal(found[0], found[1])


def test_scores_are_cosines_over_the_temperature(monkeypatch):
    data, calls = rows(), spy(monkeypatch)
    classifier = fit(tiny(loss="plain", n_epochs=1, temperature=0.02, batch_size=60), data)
    start = clone(classifier).build(5, 4, 8, random_stream(0, "classifier's start"))
    logits, y = calls[0]
    weights = start.net_(data.attributes).detach().numpy()
    at = [int(torch.nonzero((data.y == c).cumsum(0) == 1)[0]) for c in range(5)]  # one row of each class
    by_row = [
        [row @ w / (np.linalg.norm(row) * np.linalg.norm(w)) / 0.02 for w in weights] for row in data.x[at].numpy()
    ]
    for expected, c in zip(by_row, range(5), strict=True):
        distances = (logits[y == c].detach() - torch.tensor(np.array(expected))).abs().amax(1)
        assert distances.min() < 1e-3
    assert logits.abs().max() <= 50.001
    assert sorted(y.tolist()) == sorted(data.y.tolist())


@pytest.mark.parametrize("scale", [1e-3, 1e3])
def test_the_length_of_a_row_does_not_matter(scale):
    data = rows()
    plain = fit(tiny(), data)
    data.x = data.x * scale
    scaled = fit(tiny(), data)
    for name, values in plain.net_.state_dict().items():
        torch.testing.assert_close(scaled.net_.state_dict()[name], values, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize(
    ("loss", "function", "settings"),
    [
        ("revised", "revised_cross_entropy", {"lambda_1": 0.3, "gate": "above_true"}),
        ("revised", "revised_cross_entropy", {"lambda_1": 4.0, "gate": "always"}),
        ("incremental", "incremental_cross_entropy", {"lambda_1": 0.3, "lambda_2": 0.6}),
        ("plain", "cross_entropy", {}),
    ],
)
def test_settings_reach_the_loss(monkeypatch, loss, function, settings):
    data, calls = rows(), spy(monkeypatch, function)
    classifier = fit(tiny(loss=loss, n_epochs=1, **settings), data)
    assert len(calls) == 10
    for args in calls:
        assert args[0].shape == (16, 5)
        assert args[0].dtype == torch.float32
        if loss != "plain":
            assert args[2] is data.seen
            assert list(args[3:]) == list(settings.values())
    expected = np.mean([getattr(losses, function)(*args).item() for args in calls])
    assert classifier.history_[0]["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("gate", ["argmax_all", "above_true", "always"])
def test_lambda_1_keeps_seen_rows_off_the_unseen_classes(gate):
    # With a larger λ1, rows of seen classes push the unseen classes' weights further away.
    data = rows(spread=0.6)
    scores = []
    for lambda_1 in (0.0, 20.0):
        classifier = fit(tiny(weights="free", gate=gate, lambda_1=lambda_1, n_epochs=20), data)
        cosines = normalize(data.x[data.seen[data.y]]) @ classifier.class_weights(data.attributes).T
        scores.append(cosines[:, ~data.seen].amax(1).mean().item())
    assert scores[1] < scores[0] - 0.01


# --- Class weights.
@pytest.mark.parametrize("weights", WEIGHTS)
def test_class_weights_have_unit_norm_and_leave_no_trace(weights):
    data, modes = rows(), []
    classifier = tiny(weights=weights, n_epochs=3)

    def look(epoch):
        modes.append(classifier.net_.training)
        found = classifier.class_weights(data.attributes)
        modes.append(classifier.net_.training)
        np.testing.assert_allclose(found.norm(dim=1), 1.0, rtol=1e-5)
        assert not found.requires_grad
        return {}

    fit(classifier, data, after_epoch=look)
    assert modes == [True] * 6
    assert not classifier.net_.training
    classifier.class_weights(data.attributes)
    assert not classifier.net_.training
    undisturbed = fit(tiny(weights=weights, n_epochs=3), data)
    assert bits(classifier) == bits(undisturbed)
    assert classifier.history_ == undisturbed.history_


def test_class_weights_are_the_nets_in_use():
    data = rows()
    classifier = fit(tiny(weights="class_normalised", n_epochs=1), data)
    together = classifier.class_weights(data.attributes)
    apart = torch.cat([classifier.class_weights(vector[None]) for vector in data.attributes])
    torch.testing.assert_close(together, apart)  # no class depends on the others
    classifier.net_.train()
    assert torch.equal(classifier.class_weights(data.attributes), together)
    assert classifier.net_.training


# --- Learning rates.
@pytest.mark.parametrize(
    ("lr_step", "powers"), [(None, [0] * 7), (1, range(7)), (3, [0, 0, 0, 1, 1, 1, 2]), (25, [0] * 7)]
)
def test_the_learning_rate_sinks_in_steps(monkeypatch, lr_step, powers):
    trainees, train = [], module.train
    monkeypatch.setattr(
        module,
        "train",
        lambda stage, trainee, *args, **kw: trainees.append(trainee) or train(stage, trainee, *args, **kw),
    )

    def rate(epoch):
        (group,) = trainees[0].optimizers["classifier"].param_groups
        return {"rate": group["lr"]}

    classifier = fit(tiny(n_epochs=7, lr_step=lr_step, learning_rate=0.02), rows(), after_epoch=rate)
    assert [row["rate"] for row in classifier.history_] == pytest.approx([0.02 * 10.0**-power for power in powers])


def test_a_smaller_rate_moves_weights_less():
    data = rows()
    kept, sunk = [], []

    def watch(moves, classifier, last):
        def after_epoch(epoch):
            values = torch.cat([v.detach().flatten().clone() for v in classifier.net_.parameters()])
            if last:
                moves.append((values - last.pop()).abs().max().item())
            last.append(values)
            return {}

        return after_epoch

    for moves, lr_step in ((kept, None), (sunk, 2)):
        classifier = tiny(n_epochs=6, lr_step=lr_step, weights="free")
        fit(classifier, data, after_epoch=watch(moves, classifier, []))
    assert sunk[-1] < 0.05 * kept[-1]  # two steps of ten down


# --- Which rows.
def test_every_row_is_visited_once_in_an_epoch_and_the_last_batch_is_filled(monkeypatch):
    calls = spy(monkeypatch)
    fit(tiny(loss="plain", n_epochs=3, batch_size=10), one_class_per_row(103))
    epochs = rows_of_epochs(calls, n_steps=11)
    assert len(epochs) == 3
    assert all(len(args[1]) == 10 for args in calls)
    for visits in epochs:
        assert sorted(visits[:103]) == list(range(103))
        assert visits[103:] == visits[:7]
        assert visits[:103] != sorted(visits[:103])
    assert epochs[0] != epochs[1] != epochs[2]


def test_rows_that_fill_their_batches_are_visited_once(monkeypatch):
    calls = spy(monkeypatch)
    fit(tiny(loss="plain", n_epochs=2, batch_size=10), one_class_per_row(120))
    for visits in rows_of_epochs(calls, n_steps=12):
        assert sorted(visits) == list(range(120))


@pytest.mark.parametrize(("n", "batch_size", "in_batch"), [(25, 512, 25), (25, 10, 10), (100, 10, 10), (1, 512, 1)])
def test_small_data_have_ten_steps_an_epoch(monkeypatch, n, batch_size, in_batch):
    calls = spy(monkeypatch)
    fit(tiny(loss="plain", n_epochs=2, batch_size=batch_size), one_class_per_row(n))
    epochs = rows_of_epochs(calls, n_steps=10)
    assert len(epochs) == 2
    for visits in epochs:
        assert len(visits) == 10 * in_batch
        counts = Counter(visits)
        assert set(counts) == set(range(n))
        assert max(counts.values()) - min(counts.values()) <= 1


def test_resampling_makes_all_classes_equally_likely(monkeypatch):
    # Three of seven classes have rows, very unequally many.
    y = torch.repeat_interleave(torch.tensor([5, 1, 2]), torch.tensor([160, 30, 10]))
    rng = torch.Generator().manual_seed(0)
    data = SimpleNamespace(
        x=torch.randn(200, 3, generator=rng), y=y[torch.randperm(200, generator=rng)],
        attributes=torch.randn(7, 2, generator=rng), seen=torch.ones(7, dtype=torch.bool),
    )  # fmt: skip
    calls = spy(monkeypatch)
    # At a vanishing rate a row's logits never change, so that they tell which row it is.
    fit(tiny(loss="plain", n_epochs=15, batch_size=20, resample=True, learning_rate=1e-12), data)
    assert len(calls) == 15 * 10
    labels = torch.cat([args[1] for args in calls])
    n = len(labels)
    assert n == 3000
    counts = torch.bincount(labels, minlength=7).double()
    assert (counts[[0, 3, 4, 6]] == 0).all()
    np.testing.assert_allclose(counts[[1, 2, 5]] / n, 1 / 3, atol=4 * (2 / 9 / n) ** 0.5)
    logits = torch.cat([args[0].detach() for args in calls])
    for c, n_rows in ((1, 30), (2, 10), (5, 160)):
        _, visits = logits[labels == c].round(decimals=3).unique(dim=0, return_counts=True)
        assert len(visits) == n_rows or c == 5  # every row of the class; of the largest, nearly every
        assert len(visits) > 0.95 * n_rows
        expected = n / 3 / n_rows
        assert visits.max() < expected + 6 * expected**0.5 + 3
        assert visits.min() > expected - 6 * expected**0.5 - 1


def test_without_resampling_classes_come_as_often_as_they_have_rows(monkeypatch):
    data = one_class_per_row(100)
    data.y = torch.cat([torch.zeros(90, dtype=torch.long), torch.ones(10, dtype=torch.long)])
    calls = spy(monkeypatch)
    fit(tiny(loss="plain", n_epochs=1, batch_size=10), data)
    assert sum((args[1] == 1).sum().item() for args in calls) == 10


def test_rows_keep_their_labels_when_drawn(monkeypatch):
    for resample in (False, True):
        data, calls = rows(spread=1e-3), spy(monkeypatch)
        fit(tiny(loss="plain", n_epochs=1, resample=resample, learning_rate=1e-12), data)
        start = tiny().build(5, 4, 8, random_stream(0, "classifier's start"))
        expected = normalize(data.x) @ start.class_weights(data.attributes).T / 0.04
        for logits, y in calls:
            nearest = torch.cdist(logits.detach(), expected).argmin(1)
            assert torch.equal(data.y[nearest], y)


# --- The same bits.
@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_the_same_seed_gives_the_same_bits(weights, resample):
    data, runs = rows(), []
    state = torch.get_rng_state()
    for seed in (0, 0, 1):
        classifier = fit(tiny(weights=weights, resample=resample), data, seed=seed)
        assert torch.equal(torch.get_rng_state(), state)
        runs.append((bits(classifier), classifier.history_))
        torch.manual_seed(len(runs))  # must not matter
        state = torch.get_rng_state()
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    assert runs[0][1] != runs[2][1]


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_broken_training_goes_on_to_the_same_bits(weights, resample, tmp_path):
    data = rows()
    options = {"weights": weights, "resample": resample, "n_epochs": 5, "lr_step": 2}
    whole = fit(tiny(**options), data)

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(**options), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(**options), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert bits(resumed) == bits(whole)
    assert resumed.history_ == whole.history_


def test_fit_leaves_its_data_alone():
    data = rows()
    before = [values.clone() for values in vars(data).values()]
    fit(tiny(), data)
    assert all(torch.equal(a, b) for a, b in zip(before, vars(data).values(), strict=True))


# --- Doors.
BAD = {
    "weights": ["linear", None],
    "loss": ["hinge", None],
    "gate": ["sometimes", None],
    "lambda_1": [-0.1, float("nan"), None, "4"],
    "lambda_2": [-0.1, float("inf")],
    "temperature": [0, 0.0, -0.04, float("nan"), None],
    "d_hidden": [0, 2.5],
    "n_epochs": [0, -1, 1.5, None],
    "learning_rate": [-1e-4, float("nan"), "fast"],
    "lr_step": [0, -25, 2.5],
    "batch_size": [0, 2.5],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_setting_is_refused_in_a_sentence(option):
    data = rows()
    for value in BAD[option]:
        with pytest.raises(DGZError, match=f"^{option} must be "):
            fit(tiny(**{option: value}), data)


def test_scikit_learns_contract():
    changed = {
        "weights": "free", "loss": "incremental", "gate": "always", "lambda_1": 0.2, "lambda_2": 0.4, "temperature": 0.1,
        "d_hidden": 8, "n_epochs": 2, "learning_rate": 0.02, "lr_step": 1, "batch_size": 9, "resample": True,
    }  # fmt: skip
    classifier = CosineClassifier(**changed)
    assert classifier.get_params() == changed == clone(classifier).get_params()
    assert all(changed[name] != value for name, value in CosineClassifier().get_params().items())
    data = rows()
    fit(classifier, data)
    assert classifier.get_params() == changed  # fitting changes no setting
    assert not hasattr(clone(classifier), "net_")
    assert bits(fit(CosineClassifier().set_params(**changed), data)) == bits(classifier)


def test_training_reports_what_after_epoch_says():
    classifier = fit(tiny(), rows(), after_epoch=lambda epoch: {"h": epoch / 4})
    assert [row["h"] for row in classifier.history_] == [0.25, 0.5]
    assert all(set(row) == {"epoch", "loss", "h"} for row in classifier.history_)
