"""The classifier: that it learns with every kind of weights and every loss, which rows, rates and losses it uses, and
that many trained at once become what each would have become alone.
"""

from collections import Counter
from itertools import chain
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import normalize

import reference
from dgz import classifier as module
from dgz import losses
from dgz.classifier import ClassifierTraining, CosineClassifier, prepared
from dgz.errors import DGZError
from dgz.metrics import TestRows
from dgz.nets import LinearWeights
from dgz.training import SOUND, Checkpoints, random_stream

WEIGHTS = ["mapped", "free", "class_normalised"]  # of a cosine; linear ones have tests of their own, too
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


def spy(monkeypatch):
    """What one classifier gives its loss, step by step: logits, labels, which classes are seen, and settings."""
    calls, original = [], module.loss_and_slope

    def watched(logits, y, seen, **settings):
        assert len(logits) == len(y) == 1
        gate = losses.GATES[settings["gate"].item()]
        weights = {name: settings[name].item() for name in ("lambda_1", "lambda_2")}
        calls.append((logits[0], y[0], seen, {"loss": settings["loss"], "gate": gate, **weights}))
        return original(logits, y, seen, **settings)

    monkeypatch.setattr(module, "loss_and_slope", watched)
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


def many(**options):
    """Four classifiers that differ in all that may differ, the rows each learns from, and their seeds."""
    of_each = [
        {"lambda_1": 0.0, "lambda_2": 0.5, "temperature": 0.04, "gate": "argmax_all"},
        {"lambda_1": 4.0, "lambda_2": 2.0, "temperature": 0.1, "gate": "always"},
        {"lambda_1": 0.3, "lambda_2": 1.0, "temperature": 0.2, "gate": "above_true"},
        {"lambda_1": 1.0, "lambda_2": 0.0, "temperature": 0.04, "gate": "always"},
    ]
    rng = torch.Generator().manual_seed(1)
    n_rows = [45, 60, 20, 52]  # with four in a batch: 12, 15, 10 and 13 steps in an epoch
    options = {"n_epochs": 3, "batch_size": 4, "lr_step": 2, "learning_rate": 1e-3} | options
    return SimpleNamespace(
        classifiers=[tiny(**one, **options) for one in of_each],
        rows=[torch.randperm(60, generator=rng)[:n] for n in n_rows],
        seeds=[7, 3, 3, 11],
    )


def train_many(task, data, **options):
    return ClassifierTraining(
        task.classifiers, data.x, data.y, data.attributes, data.seen, rows=task.rows, seeds=task.seeds, **options
    )


# --- Learning.
@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("loss", LOSSES)
def test_every_kind_of_weights_learns_with_every_loss(weights, loss):
    data = rows()
    classifier = fit(tiny(weights=weights, loss=loss, n_epochs=40, lambda_1=0.5, d_hidden=64), data)
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
    logits, y, _, _ = calls[0]
    weights = start.net_(data.attributes).detach().numpy()
    at = [int(torch.nonzero((data.y == c).cumsum(0) == 1)[0]) for c in range(5)]  # one row of each class
    by_row = [
        [row @ w / (np.linalg.norm(row) * np.linalg.norm(w)) / 0.02 for w in weights] for row in data.x[at].numpy()
    ]
    for expected, c in zip(by_row, range(5), strict=True):
        distances = (logits[y == c] - torch.tensor(np.array(expected))).abs().amax(1)
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
    data, calls, values = rows(), spy(monkeypatch), []
    classifier = fit(tiny(loss=loss, n_epochs=1, **settings), data)
    assert len(calls) == 10
    for logits, y, seen, given in calls:
        assert logits.shape == (16, 5)
        assert logits.dtype == torch.float32
        assert seen is data.seen
        assert given == pytest.approx({"lambda_1": 1.0, "lambda_2": 1.0, "gate": "argmax_all", "loss": loss} | settings)
        args = () if loss == "plain" else (seen, *settings.values())
        values.append(getattr(losses, function)(logits, y, *args).item())
    assert classifier.history_[0]["loss"] == pytest.approx(np.mean(values), rel=1e-5)


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


# --- Steps in closed form, against autograd.
def plain_loss(classifier, logits, y, seen):
    if classifier.loss == "plain":
        return losses.cross_entropy(logits, y)
    if classifier.loss == "incremental":
        return losses.incremental_cross_entropy(logits, y, seen, classifier.lambda_1, classifier.lambda_2)
    return losses.revised_cross_entropy(logits, y, seen, classifier.lambda_1, classifier.gate)


def plain_steps(classifier, data, batches, seed=0):
    """Train as it is usually written, in float64: normalise, multiply, differentiate.

    Gives the losses, the parameters, and which of their entries have gradients: in float32, Adam makes steps of rounding
    where there is none, such as for a bias that class normalisation takes away again.
    """
    net = (
        clone(classifier).build(*data.attributes.shape, data.x.shape[1], random_stream(seed, "classifier's start")).net_
    )
    net.double().train()
    optimizer = torch.optim.Adam(net.parameters(), lr=classifier.learning_rate, betas=(0.5, 0.999))
    x, attributes, values = data.x.double(), data.attributes.double(), []
    for batch in batches:
        if classifier.weights == "linear":
            logits = (x[batch] @ net.weight.T + net.bias) / classifier.temperature
        else:
            logits = normalize(x[batch]) @ normalize(net(attributes)).T / classifier.temperature
        loss = plain_loss(classifier, logits, data.y[batch], data.seen)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        values.append(loss.item())
    has_gradient = [optimizer.state[part]["exp_avg_sq"] > 1e-12 for part in net.parameters()]
    return values, [part.detach().float() for part in net.parameters()], has_gradient


@pytest.mark.parametrize("loss", LOSSES)
def test_the_slope_in_the_weights_is_autograds(loss):
    data, task = rows(spread=0.5), many(loss=loss)
    training = train_many(task, data)
    training.x = training.x.double()
    rng = torch.Generator().manual_seed(0)
    weights = torch.randn(4, 5, 8, generator=rng, dtype=torch.double)
    weights[1, 2] = 0.0  # has no direction
    batch = torch.randint(60, (4, 20), generator=rng)
    values, slopes = training._slope(weights, batch)
    for k, classifier in enumerate(training.classifiers):
        of_member = weights[k].clone().requires_grad_()
        logits = training.x[batch[k]] @ normalize(of_member).T / classifier.temperature
        expected = plain_loss(classifier, logits, data.y[batch[k]], data.seen)
        assert values[k].item() == pytest.approx(expected.item(), rel=1e-6)
        torch.testing.assert_close(slopes[k], torch.autograd.grad(expected, of_member)[0], rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
@pytest.mark.parametrize(
    "options",
    [
        {"loss": "plain"},
        {"loss": "incremental", "lambda_1": 0.3, "lambda_2": 2.0},
        *({"loss": "revised", "lambda_1": 3.0, "gate": gate, "temperature": 0.1} for gate in losses.GATES),
    ],
    ids=lambda options: f"{options['loss']} {options.get('gate', '')}",
)
def test_a_classifiers_steps_are_those_of_autograd(weights, options):
    data = rows(spread=0.5)
    classifier = tiny(weights=weights, learning_rate=1e-3, **options)
    training = ClassifierTraining([classifier], data.x, data.y, data.attributes, data.seen, seeds=[0])
    training.shuffle()
    values = [training.step()["loss"].item() for _ in range(8)]
    expected, parameters, has_gradient = plain_steps(classifier, data, training.order[0, :8])
    assert values == pytest.approx(expected, rel=1e-4)
    for ours, theirs, where in zip(training.members[0].parameters(), parameters, has_gradient, strict=True):
        torch.testing.assert_close(ours[where], theirs[where], rtol=1e-3, atol=1e-5)
    assert torch.cat([where.flatten() for where in has_gradient]).double().mean() > 0.75


# --- Many at once.
def train_alone(task, data):
    """The same classifiers, one after the other."""
    return [
        clone(classifier).fit(data.x[index], data.y[index], data.attributes, data.seen, seed=seed)
        for classifier, index, seed in zip(task.classifiers, task.rows, task.seeds, strict=True)
    ]


# Class normalisation takes away what is added to all classes alike: such values have no slope but rounding's.
ADRIFT = ("first.bias", "second.bias", "before.mean")


def assert_close_classifiers(ours, theirs):
    for name, values in ours.net_.state_dict().items():
        if ours.weights == "class_normalised" and name in ADRIFT:
            continue
        other = theirs.net_.state_dict()[name]
        torch.testing.assert_close(values, other, rtol=1e-4, atol=1e-5, msg=lambda text, name=name: f"{name}: {text}")
    assert len(ours.history_) == len(theirs.history_)
    for one, other in zip(ours.history_, theirs.history_, strict=True):
        assert one == pytest.approx(other, rel=1e-4)


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
def test_many_trained_at_once_become_what_each_becomes_alone(weights, loss, resample):
    data = rows(spread=0.5)
    task = many(weights=weights, loss=loss, resample=resample)
    together = train_many(task, data).run()
    assert [id(one) for one in together] == [id(one) for one in task.classifiers]  # in the order they were given in
    for ours, theirs in zip(together, train_alone(task, data), strict=True):
        assert_close_classifiers(ours, theirs)
        assert not ours.net_.training
    finals = [one.history_[-1]["loss"] for one in together]
    assert len(set(finals)) == 4


def test_members_that_differ_in_nothing_but_one_setting_differ():
    data, names = rows(spread=0.5), ("lambda_1", "lambda_2", "temperature", "gate")
    changes = [{}, {"lambda_1": 3.0}, {"lambda_2": 3.0}, {"temperature": 0.1}, {"gate": "always"}]
    for loss, matters in (("revised", {"lambda_1", "temperature", "gate"}), ("incremental", {*names} - {"gate"})):
        classifiers = [tiny(loss=loss, **change) for change in changes]
        training = ClassifierTraining(classifiers, data.x, data.y, data.attributes, data.seen, seeds=[0] * 5)
        base, *changed = training.run()
        assert {name for name, one in zip(names, changed, strict=True) if bits(one) != bits(base)} == matters


def test_class_weights_of_all_members_are_those_of_each():
    data, task = rows(), many(weights="class_normalised")
    training = train_many(task, data)
    training.run()
    found = training.class_weights()
    assert found.shape == (4, 5, 8)
    np.testing.assert_allclose(found.norm(dim=-1), 1.0, rtol=1e-5)
    for weights, classifier in zip(found, training.classifiers, strict=True):
        torch.testing.assert_close(weights, classifier.class_weights(data.attributes))
    assert training.net.training


def test_fitted_members_share_nothing():
    data, task = rows(), many()
    first, *others = train_many(task, data).run()
    before = [bits(one) for one in others]
    with torch.no_grad():
        for values in first.net_.parameters():
            values.zero_()
    assert [bits(one) for one in others] == before


def test_each_member_has_its_own_numbers_from_after_epoch_and_test_rows():
    data, task = rows(spread=0.5), many()
    is_seen = data.seen[data.y]
    test_rows = TestRows(
        normalize(data.x[is_seen]), data.y[is_seen], normalize(data.x[~is_seen]), data.y[~is_seen], data.seen
    )
    training = train_many(task, data, test_rows=test_rows)
    tags = torch.tensor([float(classifier.temperature) for classifier in training.classifiers])
    together = training.run(after_epoch=lambda epoch: {"tag": epoch * tags, "common": epoch})
    for classifier in together:
        assert [row["common"] for row in classifier.history_] == [1, 2, 3]
        assert [row["tag"] for row in classifier.history_] == pytest.approx(
            [epoch * classifier.temperature for epoch in (1, 2, 3)]
        )
        expected = test_rows.scores(classifier.class_weights(data.attributes)[None])
        for name, value in expected.items():
            assert classifier.history_[-1][name] == value.item()
        assert set(classifier.history_[-1]) == {"epoch", "loss", "common", "tag", *expected}
    assert len({one.history_[-1]["acc_seen"] for one in together}) > 1


@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
def test_a_member_that_diverges_does_not_disturb_the_others(weights):
    data, task = rows(spread=0.5), many(weights=weights)
    expected = train_alone(task, data)
    broken = data.x.clone()
    broken[::3] = torch.inf
    data.x, data.y = torch.cat([data.x, broken]), torch.cat([data.y, data.y])
    task.rows[1] = task.rows[1] + 60  # of the one with most steps
    together = train_many(task, data).run()
    assert not np.isfinite([row["loss"] for row in together[1].history_]).any()
    for k in (0, 2, 3):
        assert_close_classifiers(together[k], expected[k])


def test_members_that_all_diverge_stop_the_training():
    data, task = rows(), many()
    data.x[::3] = torch.inf
    with pytest.raises(DGZError, match="Training the classifier stopped in epoch 1: its loss is no finite number"):
        train_many(task, data).run()


@pytest.mark.parametrize(
    ("weights", "value"), [(kind, np.nan) for kind in (*WEIGHTS, "linear")] + [("mapped", np.inf), ("free", -np.inf)]
)
def test_a_member_is_unsound_where_any_of_its_values_is_no_number(weights, value):
    training = train_many(many(weights=weights), rows())
    training.run()
    for values in training.net.state_dict().values():
        kept = values.clone()
        values[2].view(-1)[-1] = value
        assert training.measure()[SOUND].tolist() == [True, True, False, True]
        values.copy_(kept)
    assert training.measure()[SOUND].all()


def test_infinity_that_a_relu_would_hide_is_found():
    data = rows()
    settings = [tiny(weights="class_normalised") for _ in range(2)]
    training = ClassifierTraining(settings, data.x, data.y, data.attributes, data.seen, seeds=[0, 1])
    training.net.first.bias.data[1, 0] = -torch.inf
    assert training.measure()[SOUND].tolist() == [True, False]


def test_what_must_be_equal_to_train_at_once():
    shape = ClassifierTraining.shape_of(tiny(), 60)
    alike = {"lambda_1": 3.0, "lambda_2": 3.0, "temperature": 0.5, "gate": "always", "seen_ratio": 2.0}
    assert ClassifierTraining.shape_of(tiny(**alike), 52) == shape
    assert ClassifierTraining.shape_of(tiny(), 15) != shape  # too few rows to fill a batch
    apart = {
        "weights": "free", "loss": "plain", "d_hidden": 8, "n_epochs": 3, "learning_rate": 0.02, "lr_step": 1,
        "batch_size": 9, "resample": True, "lr_factor": 0.5, "beta_1": 0.9, "weight_decay": 0.01, "n_members": 2,
    }  # fmt: skip
    assert {*alike, *apart} == set(tiny().get_params())
    for name, value in apart.items():
        assert ClassifierTraining.shape_of(tiny(**{name: value}), 60) != shape


@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
def test_a_restart_with_new_rows_is_a_fresh_training_on_them(weights, resample):
    data, other = rows(spread=0.5), rows(spread=1.0)
    options = {"weights": weights, "resample": resample}
    training = train_many(many(**options), data)
    training.run()
    again = training.restart(25, other.x[25:]).run()
    data.x = torch.cat([data.x[:25], other.x[25:]])
    for ours, theirs in zip(again, train_many(many(**options), data).run(), strict=True):
        assert bits(ours) == bits(theirs)
        assert ours.history_ == theirs.history_


def test_a_restart_without_rows_repeats_the_training_and_leaves_what_was_fitted_alone():
    data, task = rows(spread=0.5), many(weights="class_normalised")
    training = train_many(task, data)
    before = data.x.clone()
    first = [(one.net_, bits(one), one.history_) for one in training.run()]
    again = training.restart().run()
    for (net, kept, history), one in zip(first, again, strict=True):
        assert one.net_ is not net
        assert bits(one) == kept == {name: values.tolist() for name, values in net.state_dict().items()}
        assert one.history_ == history
    training.restart(0, torch.flip(data.x, [0])).run()
    assert torch.equal(data.x, before)
    assert [kept for _, kept, _ in first] == [
        {name: values.tolist() for name, values in net.state_dict().items()} for net, _, _ in first
    ]


@pytest.mark.parametrize("resample", [False, True])
def test_many_trained_at_once_go_on_to_the_same_bits_after_a_break(resample, tmp_path):
    data, options = rows(spread=0.5), {"n_epochs": 5, "resample": resample}
    whole = train_many(many(**options), data).run()

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        train_many(many(**options), data).run(after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = train_many(many(**options), data).run(checkpoints=Checkpoints(tmp_path, "a", every=0))
    for ours, theirs in zip(resumed, whole, strict=True):
        assert bits(ours) == bits(theirs)
        assert ours.history_ == theirs.history_


# --- Precision.
@pytest.mark.parametrize("weights", WEIGHTS)
def test_a_classifier_learns_with_every_precision(weights):
    data = rows()
    found = {
        precision: fit(tiny(weights=weights, n_epochs=20, d_hidden=64), data, precision=precision)
        for precision in ("float32", "tf32", "bf16")
    }
    assert bits(found["tf32"]) == bits(found["float32"])  # which is for GPUs
    assert bits(found["bf16"]) != bits(found["float32"])
    for classifier in found.values():
        assert all(values.dtype == torch.float32 for values in classifier.net_.state_dict().values())
        cosines = normalize(data.x) @ classifier.class_weights(data.attributes).T
        assert cosines.dtype == torch.float32
        assert (cosines.argmax(1) == data.y).float().mean() > 0.95


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
    logits = torch.cat([args[0] for args in calls])
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
        for logits, y, _, _ in calls:
            nearest = torch.cdist(logits, expected).argmin(1)
            assert torch.equal(data.y[nearest], y)


# --- The same bits.
@pytest.mark.parametrize("resample", [False, True])
@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
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
@pytest.mark.parametrize("weights", [*WEIGHTS, "linear"])
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
    "weights": ["bilinear", None],
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
    "n_members": [0, 2.5],
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
        "lr_factor": 0.5, "beta_1": 0.9, "weight_decay": 0.01, "seen_ratio": 3.0, "n_members": 2,
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


# --- Linear weights: a softmax classifier with a bias, without cosines.
def linear(**options):
    return tiny(**{"weights": "linear", "loss": "plain", "temperature": 1.0} | options)


def test_rows_are_multiplied_with_a_one_for_the_bias_or_at_unit_length():
    x = rows().x
    for weights in WEIGHTS:
        np.testing.assert_allclose(prepared(x, weights).norm(dim=1), 1.0, rtol=1e-5)
        torch.testing.assert_close(prepared(x, weights) * x.norm(dim=1, keepdim=True), x)
    extended = prepared(x, "linear")
    assert torch.equal(extended[:, :-1], x)
    assert (extended[:, -1] == 1).all()


def test_a_linear_classifier_is_softmax_regression_with_a_bias():
    data = rows(spread=0.5)
    classifier = linear(learning_rate=1e-3)
    training = ClassifierTraining([classifier], data.x, data.y, data.attributes, data.seen, seeds=[0])
    layer = torch.nn.Linear(8, 5).double()
    start = clone(classifier).build(5, 4, 8, random_stream(0, "classifier's start")).net_
    layer.load_state_dict({name: values.double() for name, values in start.state_dict().items()})
    optimizer = torch.optim.Adam(layer.parameters(), lr=1e-3, betas=(0.5, 0.999))
    training.shuffle()
    for batch in training.order[0]:
        weights, biases = (values.tolist() for values in layer.parameters())
        expected = reference.linear_logits(data.x[batch].tolist(), weights, biases)
        value = training.step()["loss"].item()
        assert value == pytest.approx(reference.cross_entropy(expected, data.y[batch].tolist()), rel=1e-5)
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(layer(data.x[batch].double()), data.y[batch])
        loss.backward()
        optimizer.step()
        assert value == pytest.approx(loss.item(), rel=1e-5)
    member = training.members[0]
    torch.testing.assert_close(member.weight.detach(), layer.weight.detach().float(), rtol=1e-3, atol=1e-5)
    torch.testing.assert_close(member.bias.detach(), layer.bias.detach().float(), rtol=1e-3, atol=1e-5)
    assert (member.bias - start.bias).abs().max() > 1e-3


def test_linear_class_weights_are_as_they_are_with_a_column_for_the_bias():
    data = rows()
    classifier = fit(linear(n_epochs=5), data)
    assert isinstance(classifier.net_, LinearWeights)
    found = classifier.class_weights(data.attributes)
    assert found.shape == (5, 9)
    assert torch.equal(found[:, :-1], classifier.net_.weight)
    assert torch.equal(found[:, -1], classifier.net_.bias)
    assert not found.requires_grad
    assert (found.norm(dim=1) - 1).abs().min() > 1e-3  # of no particular length
    training = train_many(many(weights="linear"), data)
    assert training.class_weights().shape == (4, 5, 9)
    for weights, member in zip(training.class_weights(), training.members, strict=True):
        assert torch.equal(weights, member(data.attributes).detach())


@pytest.mark.parametrize("loss", LOSSES)
def test_a_linear_classifier_learns_with_every_loss(loss):
    data = rows()
    classifier = fit(linear(loss=loss, n_epochs=40, lambda_1=0.5), data)
    scores = data.x @ classifier.net_.weight.T + classifier.net_.bias
    assert (scores.argmax(1) == data.y).float().mean() > 0.95
    assert classifier.history_[-1]["loss"] < 0.5 * classifier.history_[0]["loss"]


def test_a_bias_tells_rows_apart_that_differ_in_length_alone():
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(3).repeat(20)
    x = (1.0 + y)[:, None] * torch.tensor([[0.6, 0.8]]) + 0.02 * torch.randn(60, 2, generator=rng)
    data = SimpleNamespace(x=x, y=y, attributes=torch.eye(3), seen=torch.ones(3, dtype=torch.bool))

    def accuracy(classifier, weights):
        return ((prepared(x, classifier.weights) @ weights.T).argmax(1) == y).float().mean().item()

    options = {"n_epochs": 60, "learning_rate": 0.05}
    found = fit(linear(**options), data)
    assert accuracy(found, found.class_weights(data.attributes)) > 0.95
    without = found.class_weights(data.attributes).clone()
    without[:, -1] = 0.0
    assert accuracy(found, without) < 0.7  # one of the outer classes takes all
    cosine = fit(tiny(weights="free", loss="plain", **options), data)
    assert accuracy(cosine, cosine.class_weights(data.attributes)) < 0.6


@pytest.mark.parametrize("scale", [0.1, 10.0])
def test_the_length_of_a_row_matters_to_linear_weights(scale):
    data = rows()
    plain = fit(linear(), data)
    data.x = data.x * scale
    assert (fit(linear(), data).net_.weight - plain.net_.weight).abs().max() > 1e-3


def test_test_rows_of_linear_weights_are_scored_with_their_bias():
    data = rows(spread=0.5)
    is_seen = data.seen[data.y]
    x_seen, x_unseen = (prepared(data.x[part], "linear") for part in (is_seen, ~is_seen))
    test_rows = TestRows(x_seen, data.y[is_seen], x_unseen, data.y[~is_seen], data.seen)
    training = ClassifierTraining(
        [linear()], data.x, data.y, data.attributes, data.seen, seeds=[0], test_rows=test_rows
    )
    (found,) = training.run()
    with torch.no_grad():
        predicted = (data.x @ found.net_.weight.T + found.net_.bias).argmax(1)
    for name, of in (("acc_seen", is_seen), ("acc_unseen", ~is_seen)):
        classes = sorted(set(data.y[of].tolist()))
        expected = reference.macro_accuracy(data.y[of].tolist(), predicted[of].tolist(), classes)
        assert found.history_[-1][name] == pytest.approx(expected)


def test_a_linear_classifier_learns_with_every_precision():
    data = rows()
    found = {
        precision: fit(linear(n_epochs=20), data, precision=precision) for precision in ("float32", "tf32", "bf16")
    }
    assert bits(found["tf32"]) == bits(found["float32"])
    assert bits(found["bf16"]) != bits(found["float32"])
    for classifier in found.values():
        assert classifier.net_.weight.dtype == torch.float32
        scores = data.x @ classifier.net_.weight.T + classifier.net_.bias
        assert (scores.argmax(1) == data.y).float().mean() > 0.95
