"""GCM-CF: its recipe, the classifier of a single row, the rule of three classifiers, and that it learns."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.exceptions import NotFittedError
from torch import Tensor

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.generators import CounterfactualVAEGAN, FeedbackVAEGAN
from dgz.generators.counterfactual import CounterfactualTraining
from dgz.generators.vaegan import as_rows
from dgz.metrics import decide, gzsl_scores
from dgz.peers import GCMCF, METHODS, TFVAEGAN, make_method, scoring
from dgz.peers.gcm_cf import CounterfactualDiscriminant, _SoftmaxTraining
from dgz.settings import configure

FEW = {"hidden": (64,), "d_decoder": 48, "n_critic": 1, "learning_rate": 0.01, "decoder_rate": 3e-3}
FEW |= {"gan_weight": 0.3, "kl_weight": 0.2, "kl_warm_up": 4, "n_contrasts": 5, "feedback_rate": 1e-3}
SMALL = {"n_per_class": 30, "n_epochs": 8, "learning_rate": 0.01, "n_unseen_per_class": 30, "n_unseen_epochs": 8}
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
    assert (one.feature_scaling, one.attribute_scaling) == ("minmax", "unit")
    assert one._new_generator().get_params() == CounterfactualVAEGAN().get_params()
    assert configure(make_method("gcm-cf"), ["generator.n_epochs=3", "ridge=0.1"]).generator.n_epochs == 3


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
# Rows per class; the seen softmax's learning rate, epochs and batch; the unseen one's rows, rate, β1, epochs and batch.
CLASSIFIERS = {
    "AWA2": (1800, 1e-3, 15, None, 100, 2e-3, 0.9, 2, 300),
    "CUB": (300, 1e-3, 15, None, 200, 5e-4, 0.5, 9, 500),
    "SUN": (400, 5e-4, 20, 1400, 400, 1e-3, 0.9, 2, 1400),
    "APY": (1800, 1e-3, 15, None, 300, 2e-3, 0.9, 3, 1000),
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
    found: tuple[Any, ...] = (one.n_per_class, one.learning_rate, one.n_epochs, one.batch_size, one.n_unseen_per_class)
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
def some_rows(n: int = 80, d: int = 4, n_seen: int = 5, seed: int = 0) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows of seen classes and their classes, test rows, and counterfactuals of these under three classes."""
    rng = torch.Generator().manual_seed(seed)
    y = torch.cat([torch.arange(n_seen), torch.randint(n_seen, (n - n_seen,), generator=rng)])
    mixing = torch.randn(d, d, generator=rng)
    x = 3 * torch.randn(n_seen, d, generator=rng)[y] + torch.randn(n, d, generator=rng) @ mixing + 7
    tested = 3 * torch.randn(6, d, generator=rng) + 7
    return x, y, tested, tested[:, None] + torch.randn(6, 3, d, generator=rng)


@pytest.mark.parametrize("ridge", [1e-6, 0.3, 5.0])
def test_the_closed_form_is_brute_force(ridge: float) -> None:
    x, y, tested, made = some_rows()
    found = CounterfactualDiscriminant(5, 4).fit(x, y, ridge)
    of_seen, of_unseen = found(tested, made, 11)
    assert of_seen.dtype == of_unseen.dtype == torch.double
    rows = x.double().numpy()
    centers = np.array([rows[y.numpy() == c].mean(axis=0) for c in range(5)])
    covariance = np.zeros((4, 4))
    for row, c in zip(rows, y.tolist(), strict=True):
        covariance += np.outer(row - centers[c], row - centers[c]) / len(rows)
    inverse = np.linalg.inv(covariance + ridge * np.trace(covariance) / 4 * np.eye(4))
    for i in range(6):
        one = tested[i].double().numpy()
        for c in range(5):
            apart = one - centers[c]
            expected = math.log((y == c).sum()) - apart @ inverse @ apart / 2
            assert of_seen[i, c].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)
        for u in range(3):
            apart = one - made[i, u].double().numpy()
            expected = math.log(11) - apart @ inverse @ apart / 2
            assert of_unseen[i, u].item() == pytest.approx(expected, rel=1e-4, abs=1e-4)


def test_it_is_linear_discriminant_analysis() -> None:
    x, y, tested, made = some_rows(n=300)
    of_seen, _ = CounterfactualDiscriminant(5, 4).fit(x, y, 1e-9)(tested, made, 1)
    theirs = LinearDiscriminantAnalysis(solver="lsqr").fit(x.numpy(), y.numpy()).decision_function(tested.numpy())
    # Up to what is the same for all classes of a row.
    np.testing.assert_allclose(of_seen - of_seen[:, :1], theirs - theirs[:, :1], rtol=1e-3)


def test_rows_that_do_not_spread_have_scores_all_the_same() -> None:
    x, y = torch.eye(3).repeat(2, 1), torch.arange(3).repeat(2)
    of_seen, of_unseen = CounterfactualDiscriminant(3, 3).fit(x, y, 1.0)(x[:1], x[None, :1], 2)
    assert of_seen.isfinite().all()
    assert of_seen.argmax() == 0
    assert of_unseen.item() == pytest.approx(math.log(2))


def test_it_decides_as_a_softmax_trained_for_each_row_does(fitted: GCMCF, data: GZSLData) -> None:
    """The released code's slow way, with enough steps: a softmax of all classes for this row, on drawn codes."""
    rng, generator = torch.Generator().manual_seed(0), fitted.generator_
    train = torch.tensor(fitted.scaler_.transform(data.x_train))
    real, y = generator.embed(train), torch.tensor(np.searchsorted(data.seen, data.y_train))
    vectors = fitted._vectors("cpu")[torch.tensor(data.unseen)]
    tested = np.concatenate([data.x_test_seen[::40], data.x_test_unseen[::10]])
    of_softmax = []
    for row in torch.tensor(fitted.scaler_.transform(tested)):
        made = generator.embed(generator.counterfactuals(row.expand(30, -1), vectors, rng).flatten(0, 1))
        x, labels = torch.cat([real, made]), torch.cat([y, 80 + torch.arange(20).repeat(30)])
        net = torch.nn.Linear(x.shape[1], 100)
        net.weight.data.normal_(0, 0.02, generator=rng)
        net.bias.data.zero_()
        adam = torch.optim.Adam(net.parameters(), lr=0.03, betas=(0.5, 0.999), fused=True)
        for _ in range(60):
            rows = torch.randint(len(x), (200,), generator=rng)
            adam.zero_grad()
            torch.nn.functional.cross_entropy(net(x[rows]), labels[rows]).backward()
            adam.step()
        scores = net(generator.embed(row[None])).detach()[0]
        of_softmax.append((scores[80:].max() - scores[:80].max()).item())
    gaps = -decide(fitted.decision_function(tested), data.seen, data.unseen).gap
    assert len(gaps) == 20
    agreement = ((torch.tensor(of_softmax) > 0) == (gaps > 0)).float().mean()
    assert agreement >= 0.9
    assert np.corrcoef(of_softmax, gaps)[0, 1] > 0.75


# --- The rule.
def slowly(one: GCMCF, data: GZSLData, X: Any) -> tuple[Tensor, Tensor, Tensor]:
    """Of each row: the gap of its own classifier, and the logits of the two softmaxes."""
    generator, nets = one.generator_, one.networks_
    x = torch.tensor(one.scaler_.transform(X))
    vectors = torch.tensor(one.attribute_scaler_.transform(data.attributes))[torch.tensor(data.unseen)]
    train, y = torch.tensor(one.scaler_.transform(data.x_train)), data.y_train
    real = generator.embed(train).double()
    centers = torch.stack([real[y == c].mean(0) for c in data.seen])
    apart = real - centers[np.searchsorted(data.seen, y)]
    covariance = apart.T @ apart / len(real)
    width = len(covariance)
    inverse = torch.linalg.inv(covariance + one.ridge * covariance.trace() / width * torch.eye(width))
    gaps = []
    for row in x:
        code = generator.encoder_(row[None])[:, : generator.d_prior or data.attributes.shape[1]]
        logits = generator.decode(code.expand(len(vectors), -1), vectors, generator.synthesis_strength)
        made, own = generator.embed(as_rows(logits.detach())).double(), generator.embed(row[None]).double()
        counts = torch.tensor([np.sum(y == c) for c in data.seen])
        of_seen = counts.log() - ((own - centers) @ inverse * (own - centers)).sum(1) / 2
        of_unseen = math.log(one.n_per_class) - ((own - made) @ inverse * (own - made)).sum(1) / 2
        gaps.append(of_unseen.max() - of_seen.max())
    rows = generator.embed(x)
    with torch.no_grad():
        return torch.stack(gaps), nets["seen"](rows), nets["unseen"](rows)


def test_scores_are_the_rule_over_three_classifiers(fitted: GCMCF, data: GZSLData) -> None:
    X = np.concatenate([data.x_test_seen[::20], data.x_test_unseen[::5]])
    gaps, of_seen, of_unseen = slowly(fitted, data, X)
    scores = fitted.decision_function(X)
    assert scores.dtype == np.float64
    found = decide(scores, data.seen, data.unseen)
    np.testing.assert_allclose(-found.gap, gaps, rtol=1e-3, atol=1e-2)
    np.testing.assert_array_equal(found.seen_class, data.seen[of_seen.argmax(1)])
    np.testing.assert_array_equal(found.unseen_class, data.unseen[of_unseen.argmax(1)])
    sure = np.abs(gaps.numpy()) > 0.05
    expected = np.where(gaps > 0, data.unseen[of_unseen.argmax(1)], data.seen[of_seen.argmax(1)])
    np.testing.assert_array_equal(fitted.predict(X)[sure], expected[sure])
    assert 0 < np.mean(gaps.numpy() > 0) < 1
    # Within either group, scores differ as logits do.
    np.testing.assert_allclose(scores[:, data.seen], of_seen - of_seen.amax(1, True), atol=1e-3)
    below = scores[:, data.unseen] - scores[:, data.unseen].max(axis=1, keepdims=True)
    np.testing.assert_allclose(below, of_unseen - of_unseen.amax(1, True), atol=1e-3)


def test_a_rows_own_code_decides(fitted: GCMCF, data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    def gaps(X: Any) -> Tensor:
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


def test_test_rows_are_made_again_once_alone(data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes, plain = [], CounterfactualVAEGAN.counterfactuals
    monkeypatch.setattr(
        CounterfactualVAEGAN, "counterfactuals", lambda self, x, *args: sizes.append(len(x)) or plain(self, x, *args)
    )
    fit(model(1), data, test=data)
    assert sum(sizes) == len(data.x_test_seen) + len(data.x_test_unseen)  # not in each of 8 epochs


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
def test_rows_are_compared_in_blocks(fitted: GCMCF, data: GZSLData, monkeypatch: pytest.MonkeyPatch) -> None:
    whole, sizes = fitted.decision_function(data.x_test_seen[:50]), []
    compare = GCMCF._compare
    monkeypatch.setattr(GCMCF, "_compare", lambda self, x, vectors: sizes.append(len(x)) or compare(self, x, vectors))
    monkeypatch.setattr(scoring, "_MOST_VALUES", 100 * fitted._values_per_pair(128) * 7)
    np.testing.assert_allclose(fitted.decision_function(data.x_test_seen[:50]), whole, rtol=1e-4, atol=1e-3)
    assert sizes == [7] * 7 + [1]


def test_memory_is_that_of_counterfactual_rows(fitted: GCMCF) -> None:
    d_row = 128 + 30 + 48
    needed = 20 * (64 + 128 + d_row)  # of a test row: what it is made of, made again, and described, at the least
    assert needed < 100 * fitted._values_per_pair(128) < 20 * needed


def test_settings_changed_after_training_wait_for_the_next(data: GZSLData, tmp_path: Path) -> None:
    one = fit(model(1), data)
    before = one.decision_function(data.x_test_seen)
    one.set_params(n_per_class=999, ridge=7.0, generator__synthesis_strength=0.1, feature_scaling="none")
    np.testing.assert_array_equal(one.decision_function(data.x_test_seen), before)
    one.save(tmp_path / "model")
    twin = GCMCF.load(tmp_path / "model")
    np.testing.assert_array_equal(twin.decision_function(data.x_test_seen), before)
    assert (twin.n_per_class, twin.ridge, twin.feature_scaling) == (30, 1.0, "minmax")
    assert twin.generator.synthesis_strength == 1.0
    assert twin.generator.hidden == (64,)
    assert twin.history_ == one.history_
    assert bits(twin) == bits(one)
    made = [part.generator_.sample(part._vectors("cpu"), torch.Generator().manual_seed(0)) for part in (one, twin)]
    assert torch.equal(*made)


@pytest.mark.parametrize("name", ["n_per_class", "ridge"])
def test_settings_of_a_rows_classifier_matter(data: GZSLData, fitted: GCMCF, name: str) -> None:
    other = fit(model(**{name: 10 * getattr(fitted, name)}), data)
    nets = [{part: net for part, net in bits(one).items() if "discriminant" not in part} for one in (fitted, other)]
    assert nets[0] == nets[1]
    gaps = [decide(one.decision_function(data.x_test_seen), data.seen, data.unseen).gap for one in (fitted, other)]
    if name == "n_per_class":
        torch.testing.assert_close(gaps[0] - gaps[1], torch.full_like(gaps[0], math.log(10)))
    else:
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
    settings = {"n_epochs": 3, "n_unseen_epochs": 3}
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
        ({"ridge": 0}, "ridge must be a number from 1e-06 up, found 0"),
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
