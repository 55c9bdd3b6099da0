"""GCM-CF: its recipe, the classifier of a single row, the rule of three classifiers, and that it learns."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import NotFittedError
from torch import Tensor

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import CounterfactualVAEGAN, FeedbackVAEGAN
from dgz.generators.counterfactual import CounterfactualTraining
from dgz.metrics import decide, gzsl_scores
from dgz.peers import GCMCF, METHODS, TFVAEGAN, gcm_cf, make_method, scoring
from dgz.peers.gcm_cf import _SoftmaxTraining, train_softmaxes
from dgz.progress import Progress
from dgz.settings import configure

FEW = {"hidden": (64,), "d_decoder": 48, "n_critic": 1, "learning_rate": 0.01, "decoder_rate": 3e-3}
FEW |= {"gan_weight": 0.3, "kl_weight": 0.2, "kl_warm_up": 4, "n_contrasts": 5, "feedback_rate": 1e-3}
SMALL = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "n_unseen_per_class": 30, "n_unseen_epochs": 8}
SMALL |= {"n_row_epochs": 6, "row_learning_rate": 0.03, "row_batch_size": 200}  # so few features learn slowly
SMALL |= {"unseen_learning_rate": 0.01, "unseen_batch_size": 64, "batch_size": 64, "device": "cpu"}


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=5)


def model(epochs: int = 15, of_generator: dict[str, Any] | None = None, **overrides: Any) -> GCMCF:
    generator = CounterfactualVAEGAN(**{"n_epochs": epochs, **FEW, **(of_generator or {})})
    return GCMCF(**{"generator": generator, **SMALL, **overrides})


def fit(one: GCMCF, data: GZSLData, **options: Any) -> GCMCF:
    return one.fit(data.x_train, data.y_train, data.attributes, **options)


@pytest.fixture(scope="module")
def fitted(data: GZSLData) -> GCMCF:
    return fit(model(), data, test=data)


def bits(one: GCMCF) -> dict[str, bytes]:
    return {
        f"{part}/{name}": values.numpy().tobytes()
        for part, net in one.networks_.items()
        for name, values in net.state_dict().items()
    }


# --- The recipe.
def test_defaults_are_those_of_the_released_code() -> None:
    one = GCMCF()
    assert METHODS["gcm-cf"] is GCMCF
    assert (one.n_per_class, one.n_epochs, one.learning_rate, one.batch_size) == (300, 15, 1e-3, None)
    assert (one.n_unseen_per_class, one.n_unseen_epochs, one.unseen_batch_size) == (200, 9, 500)
    assert (one.unseen_learning_rate, one.unseen_beta_1) == (5e-4, 0.5)
    assert (one.n_row_epochs, one.row_learning_rate, one.row_batch_size) == (5, 1e-3, None)
    assert (one.feature_scaling, one.attribute_scaling) == ("minmax", "unit")
    assert one._new_generator().get_params() == CounterfactualVAEGAN().get_params()
    assert configure(make_method("gcm-cf"), ["generator.n_epochs=3", "row_learning_rate=0.1"]).generator.n_epochs == 3


PUBLISHED = {
    "AWA2": {
        "n_epochs": 160, "learning_rate": 1e-5, "gan_weight": 10.0, "decoder_weight": 0.1, "freeze_decoder": True,
        "feedback_strength": 0.01, "synthesis_strength": 0.01, "decoder_rate": 1e-4, "feedback_rate": 1e-4,
        "kl_weight": 6.0, "kl_warm_up": 40, "encoder_sees_class": False, "target_noise": 0.2, "contrast_weight": 1.0,
    },
    "CUB": {
        "n_epochs": 300, "learning_rate": 1e-4, "gan_weight": 10.0, "decoder_weight": 0.01, "freeze_decoder": False,
        "feedback_strength": 1.0, "synthesis_strength": 1.0, "decoder_rate": 1e-4, "feedback_rate": 1e-5,
        "kl_weight": 6.0, "kl_warm_up": 80, "encoder_sees_class": False, "target_noise": 0.2, "contrast_weight": 1.0,
    },
    "SUN": {
        "n_epochs": 200, "learning_rate": 1e-3, "gan_weight": 1.0, "decoder_weight": 0.01, "freeze_decoder": False,
        "feedback_strength": 0.1, "synthesis_strength": 0.01, "decoder_rate": 1e-4, "feedback_rate": 1e-4,
        "kl_weight": 4.0, "kl_warm_up": 80, "encoder_sees_class": False, "target_noise": 0.2, "contrast_weight": 1.0,
    },
    "APY": {
        "n_epochs": 150, "learning_rate": 1e-5, "gan_weight": 10.0, "decoder_weight": 0.1, "freeze_decoder": False,
        "feedback_strength": 0.01, "synthesis_strength": 0.01, "decoder_rate": 1e-4, "feedback_rate": 1e-5,
        "kl_weight": 6.0, "kl_warm_up": 0, "encoder_sees_class": True, "target_noise": 0.0, "contrast_weight": 0.0,
    },
}  # fmt: skip
# Rows per class, a row's softmax's learning rate and epochs; the seen one's learning rate, epochs and batch; the unseen
# one's rows, rate, β1, epochs and batch.
CLASSIFIERS = {
    "AWA2": (1800, 1e-3, 2, 1e-3, 15, 400, 100, 2e-3, 0.9, 2, 300),
    "CUB": (300, 1e-3, 5, 1e-3, 15, None, 200, 5e-4, 0.5, 9, 500),
    "SUN": (400, 5e-4, 6, 5e-4, 20, 1400, 400, 1e-3, 0.9, 2, 1400),
    "APY": (1800, 1e-3, 2, 1e-3, 15, None, 300, 2e-3, 0.9, 3, 1000),
}


@pytest.mark.parametrize("name", PUBLISHED)
def test_presets_are_those_of_the_released_scripts(name: str) -> None:
    one = make_method("gcm-cf", name, "att")
    assert type(one) is GCMCF
    generator = one.generator
    assert type(generator) is CounterfactualVAEGAN
    assert {key: getattr(generator, key) for key in PUBLISHED[name]} == PUBLISHED[name]
    assert (generator.batch_size, generator.n_critic, generator.gp_weight) == (64, 5, 10.0)
    assert (generator.n_contrasts, generator.contrast_scale, generator.encoded_noise) == (30, 500.0, True)
    found: tuple[Any, ...] = (one.n_per_class, one.row_learning_rate, one.n_row_epochs)
    found += (one.learning_rate, one.n_epochs, one.batch_size, one.n_unseen_per_class)
    found += (one.unseen_learning_rate, one.unseen_beta_1, one.n_unseen_epochs, one.unseen_batch_size)
    assert found == CLASSIFIERS[name]
    assert (one.attribute_scaling, one.feature_scaling) == ("unit", "minmax")
    assert GCMCF.preset(name, generator__n_epochs=7).generator.n_epochs == 7


def test_softmaxes_are_trained_as_the_released_ones_are(data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    found = {}
    start = _SoftmaxTraining.__init__

    def record(self: Any, method: GCMCF, task: Any, name: str, *args: Any, **options: Any) -> None:
        start(self, method, task, name, *args, **options)
        group = self.optimizer.param_groups[0]
        weights = self.net.blocks[0]
        assert weights.std().item() == pytest.approx(0.02, rel=0.1)
        assert not self.net.bias.any()
        found[name] = (len(self.x), self.batch_size, self.n_steps, group["lr"], group["betas"][0], tuple(weights.shape))
        assert self.x.shape[1] == weights.shape[1]

    monkeypatch.setattr(_SoftmaxTraining, "__init__", record)
    settings = {"n_epochs": 1, "n_unseen_epochs": 1, "batch_size": None, "unseen_beta_1": 0.9, "n_per_class": 90}
    fit(model(1, **settings | {"unseen_learning_rate": 0.02}), data)
    width = 128 + data.attributes.shape[1] + 48
    assert found["seen"] == (800, 90, 9, 0.01, 0.5, (80, width))
    assert found["unseen"] == (600, 64, 10, 0.02, 0.9, (20, width))


# --- The classifier of a single row.
def test_softmaxes_trained_together_are_those_trained_one_by_one() -> None:
    rng = torch.Generator().manual_seed(0)
    real, made = torch.randn(30, 4, generator=rng), torch.randn(12, 5, 4, generator=rng)
    y, y_made = torch.randint(3, (30,), generator=rng), 3 + torch.arange(12) % 2
    start = torch.randn(5, 4, generator=rng)
    places = [
        (torch.randint(30, (n,), generator=rng), torch.randint(12, (7 - n,), generator=rng)) for n in (3, 0, 7, 5, 2)
    ]
    batches = [(of_all, own, torch.cat([y[of_all], y_made[own]])) for of_all, own in places]
    weights, biases = train_softmaxes(real, made, batches, start, learning_rate=0.1)
    assert (weights.shape, biases.shape) == ((5, 5, 4), (5, 5))
    for i in range(5):
        net = torch.nn.Linear(4, 5)
        net.weight.data.copy_(start)
        net.bias.data.zero_()
        optimizer = torch.optim.Adam(net.parameters(), lr=0.1, betas=(0.5, 0.999))
        for of_all, own, labels in batches:
            loss = torch.nn.functional.cross_entropy(net(torch.cat([real[of_all], made[own, i]])), labels)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        torch.testing.assert_close(weights[i], net.weight, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(biases[i], net.bias, rtol=1e-4, atol=1e-5)
    assert not torch.allclose(weights[0], weights[1], atol=0.01)  # each has rows of its own


def test_each_row_has_a_softmax_of_real_rows_and_its_counterfactuals(
    fitted: GCMCF, data: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls: list[Any] = []

    def record(real: Tensor, made: Tensor, batches: Any, start: Tensor, **options: Any) -> Any:
        calls.append((real, made, batches, start, options))
        return train_softmaxes(real, made, batches, start, **options)

    monkeypatch.setattr(gcm_cf, "train_softmaxes", record)
    fitted._judged.clear()
    fitted.decision_function(data.x_test_unseen[:3])
    ((real, made, batches, start, options),) = calls
    assert options == {"learning_rate": 0.03}
    generator = fitted.generator_
    torch.testing.assert_close(real, generator.embed(torch.tensor(fitted.scaler_.transform(data.x_train))))
    assert start.std().item() == pytest.approx(0.02, rel=0.05)
    # Every row once an epoch, with its class.
    assert [len(y) for _, _, y in batches] == [200] * 42
    of_all, own = (torch.cat([batch[k] for batch in batches]) for k in (0, 1))
    assert torch.equal(torch.bincount(of_all), torch.full((800,), 6))
    assert torch.equal(torch.bincount(own), torch.full((600,), 6))
    labels = torch.cat([y[: len(places)] for places, _, y in batches])
    np.testing.assert_array_equal(labels, np.searchsorted(data.seen, data.y_train)[of_all])
    labels = torch.cat([y[len(places) :] for places, _, y in batches])
    assert torch.equal(labels, 80 + own % 20)
    # Each unseen class's rows are those that the row would be in it, spread as its code is.
    x = torch.tensor(fitted.scaler_.transform(data.x_test_unseen[:3]))
    vectors = fitted._vectors("cpu")[torch.tensor(data.unseen)]
    again = generator.counterfactuals(x, vectors)
    assert made.shape == (600, 3, real.shape[1])
    for i in range(3):
        for c in (0, 7, 19):
            rows = made[c::20, i, :128]
            nearest = (rows.mean(0) - again.flatten(0, 1)).square().sum(1).argmin().item()
            assert divmod(nearest, 20) == (i, c)
            assert rows.std(0).mean() > 1e-3


def test_a_rows_verdict_is_its_own(fitted: GCMCF, data: GZSLData) -> None:
    def gaps(X: Any) -> Tensor:
        fitted._judged.clear()
        return decide(fitted.decision_function(X), data.seen, data.unseen).gap

    whole = gaps(data.x_test_unseen)
    torch.testing.assert_close(gaps(data.x_test_unseen[7:8]), whole[7:8], rtol=1e-3, atol=1e-4)
    torch.testing.assert_close(gaps(data.x_test_unseen[::-1].copy()), whole.flip(0), rtol=1e-3, atol=1e-4)


def test_a_verdict_is_found_once(fitted: GCMCF, data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plain = [], GCMCF._train_row_softmaxes
    monkeypatch.setattr(
        GCMCF, "_train_row_softmaxes", lambda self, x, vectors: asked.append(len(x)) or plain(self, x, vectors)
    )
    fitted._judged.clear()
    rows = data.x_test_unseen
    first = fitted.decision_function(rows[:10])
    np.testing.assert_array_equal(fitted.decision_function(rows[:10]), first)
    twice = fitted.decision_function(rows[[3, 12, 12, 4, 11]])
    np.testing.assert_allclose(twice[[0, 3]], first[[3, 4]], rtol=1e-4, atol=1e-5)
    np.testing.assert_array_equal(twice[1], twice[2])
    assert asked == [10, 2]
    monkeypatch.setattr(gcm_cf, "_MOST_JUDGED", 5)
    fitted.decision_function(rows[20:28])
    assert len(fitted._judged) == 5
    fitted.decision_function(rows[23:28])  # the latest
    assert asked == [10, 2, 8]
    assert not fit(clone(fitted).set_params(generator__n_epochs=1, n_epochs=1), data)._judged  # another model's


def test_softmaxes_of_rows_that_break_say_so(data: GZSLData) -> None:
    one = model(1, row_learning_rate=1e38)
    with pytest.raises(DGZError, match="Softmaxes of single rows did not stay finite; a lower row_learning_rate may"):
        fit(one, data).decision_function(data.x_test_seen[:3])


def test_progress_is_shown_where_it_is_asked_for(data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    shown: list[int] = []

    class Counter(Progress):
        def advance(self, amount: int = 1, note: str = "") -> None:
            shown.append(amount)
            super().advance(amount, note)

    one = fit(model(1, n_epochs=1, verbose=True), data)
    monkeypatch.setattr(gcm_cf, "Progress", Counter)
    one.decision_function(data.x_test_seen[:3])
    assert shown == [3]


# --- The rule.
def test_scores_are_the_rule_over_three_classifiers(fitted: GCMCF, data: GZSLData) -> None:
    X = np.concatenate([data.x_test_seen[::20], data.x_test_unseen[::5]])
    x = torch.tensor(fitted.scaler_.transform(X))
    gaps = fitted._judge(x, fitted._vectors("cpu"))
    rows = fitted.generator_.embed(x)
    of_seen, of_unseen = (fitted.networks_[name](rows).detach() for name in ("seen", "unseen"))
    scores = fitted.decision_function(X)
    assert scores.dtype == np.float64
    found = decide(scores, data.seen, data.unseen)
    np.testing.assert_allclose(-found.gap, gaps, rtol=1e-6, atol=1e-6)
    np.testing.assert_array_equal(found.seen_class, data.seen[of_seen.argmax(1)])
    np.testing.assert_array_equal(found.unseen_class, data.unseen[of_unseen.argmax(1)])
    expected = np.where(gaps > 0, data.unseen[of_unseen.argmax(1)], data.seen[of_seen.argmax(1)])
    np.testing.assert_array_equal(fitted.predict(X), expected)
    assert 0 < np.mean(gaps.numpy() > 0) < 1
    # Within either group, scores differ as logits do.
    np.testing.assert_allclose(scores[:, data.seen], of_seen - of_seen.amax(1, True), atol=1e-3)
    below = scores[:, data.unseen] - scores[:, data.unseen].max(axis=1, keepdims=True)
    np.testing.assert_allclose(below, of_unseen - of_unseen.amax(1, True), atol=1e-3)


def test_a_rows_own_code_decides(fitted: GCMCF, data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    def gaps(X: Any) -> Tensor:
        fitted._judged.clear()
        return -decide(fitted.decision_function(X), data.seen, data.unseen).gap

    own = gaps(data.x_test_unseen)
    encode = CounterfactualVAEGAN.encode

    def of_nothing(self: Any, x: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        mean, log_var = encode(self, x, attributes)
        return torch.zeros_like(mean), log_var

    def of_others(self: Any, x: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor]:
        return encode(self, x.flip(0), attributes)

    for broken in (of_nothing, of_others):
        monkeypatch.setattr(CounterfactualVAEGAN, "encode", broken)
        other = gaps(data.x_test_unseen)
        # Rows of unseen classes are less like what is made of no code, or of another row's.
        assert (other < own).double().mean() > 0.75
        assert (other > 0).double().mean() < (own > 0).double().mean() - 0.02
    fitted._judged.clear()


# --- Learning.
def test_it_recognises_classes_it_never_saw(fitted: GCMCF, data: GZSLData) -> None:
    found = gzsl_scores(fitted, data)
    assert found.acc_seen > 0.5  # of 100 classes
    assert found.acc_unseen > 0.6
    assert found.acc_zsl > 0.8  # of 20 without training rows
    assert found.auroc > 0.9


def test_the_history_has_all_stages_and_the_last_row_is_the_model(fitted: GCMCF, data: GZSLData) -> None:
    stages = [row["stage"] for row in fitted.history_]
    assert stages == ["generator"] * 15 + ["unseen classifier"] * 8 + ["classifier"] * 8
    rows = fitted.history_[-8:]
    assert all(row["generator_epoch"] == 15 for row in rows)
    assert [row["epoch"] for row in rows] == list(range(1, 9))
    scores = gzsl_scores(fitted, data)
    for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert rows[-1][name] == pytest.approx(getattr(scores, name), abs=1e-9)
    assert len({row["acc_zsl"] for row in rows}) == 1  # the unseen softmax is trained by then
    assert rows[-1]["acc_seen"] > rows[0]["acc_seen"]
    for part in (fitted.history_[:15], fitted.history_[15:23], rows):
        name = "contrast loss" if part[0]["stage"] == "generator" else "loss"
        assert part[-1][name] < part[0][name]


def test_test_rows_are_judged_once_alone(data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    asked, plain = [], GCMCF._train_row_softmaxes
    monkeypatch.setattr(
        GCMCF, "_train_row_softmaxes", lambda self, x, vectors: asked.append(len(x)) or plain(self, x, vectors)
    )
    gzsl_scores(fit(model(1), data, test=data), data)
    assert asked == [len(data.x_test_seen), len(data.x_test_unseen)]  # not in each of 8 epochs, nor after them


def test_every_class_may_be_seen(data: GZSLData) -> None:
    kept = data.attributes[data.seen]
    one = model(1).fit(data.x_train, np.searchsorted(data.seen, data.y_train), kept)
    assert one.seen_.all()
    scores = one.decision_function(data.x_test_seen)
    assert scores.shape == (len(data.x_test_seen), 80)
    assert (scores.max(axis=1) == 0).all()
    assert set(one.networks_) == {"generator", "decoder", "feedback", "encoder", "seen"}
    assert [row["stage"] for row in one.history_] == ["generator"] + ["classifier"] * 8


def test_an_encoder_that_sees_classes_serves_too(data: GZSLData) -> None:
    one = fit(model(2, {"encoder_sees_class": True, "contrast_weight": 0.0, "target_noise": 0.0}), data)
    assert np.isfinite(one.decision_function(data.x_test_unseen)).all()


# --- In use.
def test_rows_are_judged_in_blocks_that_memory_holds(
    fitted: GCMCF, data: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, sizes = fitted.decision_function(data.x_test_seen[:50]), []

    def record(real: Tensor, made: Tensor, *args: Any, **options: Any) -> Any:
        sizes.append(made.shape[1])
        return train_softmaxes(real, made, *args, **options)

    d_row = 128 + 30 + 48
    needed = d_row * (600 + 200 + 4 * 100)  # a row's own rows and a batch; weights, gradients and two moments
    monkeypatch.setattr(gcm_cf, "train_softmaxes", record)
    monkeypatch.setattr(gcm_cf, "_MOST_VALUES", 14 * needed)
    monkeypatch.setattr(gcm_cf, "_BLOCK", 90)  # rows made at a time: not one for each of 20 classes and so many rows
    monkeypatch.setattr(scoring, "_MOST_VALUES", 45 * 3 * d_row)
    fitted._judged.clear()
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen[:50]), whole, rtol=1e-3, atol=1e-3)
    assert sum(sizes) == 50
    assert 7 <= max(sizes) <= 14


def test_settings_changed_after_training_wait_for_the_next(data: GZSLData, tmp_path: Path) -> None:
    one = fit(model(1), data)
    before = one.decision_function(data.x_test_seen)
    one.set_params(n_per_class=999, row_learning_rate=7.0, generator__synthesis_strength=0.1, feature_scaling="none")
    np.testing.assert_array_equal(one.decision_function(data.x_test_seen), before)
    one.save(tmp_path / "model")
    twin = GCMCF.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(data.x_test_seen), before)
    assert (twin.n_per_class, twin.row_learning_rate, twin.feature_scaling) == (30, 0.03, "minmax")
    assert twin.generator.synthesis_strength == 1.0
    assert twin.generator.hidden == (64,)
    assert twin.history_ == one.history_
    assert bits(twin) == bits(one)
    made = [part.generator_.sample(part._vectors("cpu"), torch.Generator().manual_seed(0)) for part in (one, twin)]
    assert torch.equal(*made)


@pytest.mark.parametrize(
    ("name", "value"),
    [("n_per_class", 10), ("n_row_epochs", 3), ("row_learning_rate", 0.01), ("row_batch_size", 100)],
)
def test_settings_of_a_rows_softmax_matter(data: GZSLData, fitted: GCMCF, name: str, value: Any) -> None:
    other = fit(model(**{name: value}), data)
    assert bits(other) == bits(fitted)  # all that is trained beforehand
    gaps = [
        decide(one.decision_function(data.x_test_unseen[:9]), data.seen, data.unseen).gap for one in (fitted, other)
    ]
    assert not torch.allclose(*gaps, rtol=0.01)


# --- The same bits.
def test_the_same_seed_gives_the_same_bits_whatever_else_is_random(data: GZSLData) -> None:
    before = torch.get_rng_state()
    first = fit(model(1, n_epochs=1), data)
    assert torch.equal(torch.get_rng_state(), before)
    torch.manual_seed(99)
    assert bits(fit(clone(first), data)) == bits(first)
    assert bits(fit(clone(first).set_params(random_state=1), data)) != bits(first)


STAGES = [
    (CounterfactualTraining, "generator"),
    (_SoftmaxTraining, "unseen classifier"),
    (_SoftmaxTraining, "classifier"),
]


@pytest.mark.parametrize(("training", "stage"), STAGES)
def test_a_broken_fit_goes_on_to_the_same_bits(
    training: Any, stage: str, data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = {"n_epochs": 3, "n_unseen_epochs": 3, "n_row_epochs": 1}
    whole = fit(model(3, **settings), data, test=data)
    begin = training.begin_epoch

    def is_it(self: Any) -> bool:
        return stage == "generator" or stage in self.networks

    def stop(self: Any, epoch: int) -> None:
        if epoch == 3 and is_it(self):
            raise InterruptedError
        begin(self, epoch)

    kept: dict[str, Any] = {"test": data, "checkpoint_folder": tmp_path, "checkpoint_seconds": 0.0}
    broken = model(3, **settings)
    with monkeypatch.context() as patch:
        patch.setattr(training, "begin_epoch", stop)
        with pytest.raises(InterruptedError):
            fit(broken, data, **kept)
    with pytest.raises(NotFittedError):
        broken.predict(data.x_test_seen)
    epochs: list[int] = []

    def note(self: Any, epoch: int) -> None:
        if is_it(self) and self.rng is not None and getattr(self, "classes", None) is not None:
            epochs.append(epoch)
        begin(self, epoch)

    monkeypatch.setattr(training, "begin_epoch", note)
    resumed = fit(model(3, **settings), data, **kept)
    assert epochs == [3]
    assert bits(resumed) == bits(whole)
    assert resumed.history_ == whole.history_
    with pytest.raises(DGZError, match="checkpoint of other settings or other data"):
        fit(model(3, **settings, random_state=1), data, **kept)


def test_every_precision_trains(data: GZSLData) -> None:
    found = [fit(model(1, n_epochs=1, precision=precision), data) for precision in ("float32", "tf32", "bf16")]
    assert bits(found[0]) == bits(found[1])  # which is for GPUs
    assert bits(found[0]) != bits(found[2])


# --- Settings that cannot be used.
def test_bad_settings_get_a_sentence_before_any_work(data: GZSLData) -> None:
    for settings, sentence in (
        ({"n_per_class": 0}, "n_per_class must be a whole number from 1 up, found 0"),
        ({"n_row_epochs": 0}, "n_row_epochs must be a whole number from 1 up, found 0"),
        ({"row_learning_rate": 0}, "row_learning_rate must be a number from 1e-12 up, found 0"),
        ({"row_batch_size": 0}, "row_batch_size must be a whole number from 1 up, found 0"),
        ({"n_epochs": 0}, "n_epochs must be a whole number from 1 up, found 0"),
        ({"batch_size": 0}, "batch_size must be a whole number from 1 up, found 0"),
        ({"learning_rate": 0.0}, "learning_rate must be a number from 1e-12 up, found 0.0"),
        ({"n_unseen_per_class": 1.5}, "n_unseen_per_class must be a whole number from 1 up, found 1.5"),
        ({"n_unseen_epochs": 0}, "n_unseen_epochs must be a whole number from 1 up, found 0"),
        ({"unseen_batch_size": 0}, "unseen_batch_size must be a whole number from 1 up, found 0"),
        ({"unseen_learning_rate": -1}, "unseen_learning_rate must be a number from 1e-12 up, found -1"),
        ({"unseen_beta_1": 1.0}, "unseen_beta_1 must be a number below 1, found 1.0"),
        ({"generator__n_contrasts": 0}, "n_contrasts must be a whole number from 1 up, found 0"),
        ({"feature_scaling": "big"}, "feature_scaling must be one of"),
        ({"generator": FeedbackVAEGAN()}, "generator must be a CounterfactualVAEGAN, .*, found a FeedbackVAEGAN"),
    ):
        with pytest.raises(DGZError, match=sentence):
            fit(model().set_params(**settings), data)
    with pytest.raises(DGZError, match="fit needs attributes"):
        model().fit(data.x_train, data.y_train)


def test_training_that_breaks_says_so_itself(data: GZSLData) -> None:
    one = model(1, unseen_learning_rate=1e38)
    with pytest.raises(DGZError, match="Training the unseen classifier stopped in epoch"):
        fit(one, data, test=data)
    with pytest.raises(NotFittedError):
        one.predict(data.x_test_seen)


def test_its_generator_goes_with_tf_vaegans_softmax(data: GZSLData) -> None:
    generator = CounterfactualVAEGAN(n_epochs=1, **FEW)
    one = TFVAEGAN(generator=generator, n_per_class=10, n_epochs=1, device="cpu")
    assert one.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape == (400,)
