"""The training loop: streams, devices, steps, histories, and that a broken training goes on as if nothing had been."""

import functools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file
from sklearn.base import clone
from sklearn.exceptions import NotFittedError

from conftest import damage
from dgz import DGZ, fit_many, training
from dgz.errors import DataError, DGZError
from dgz.nets import MLP, ClassStandardisation, initialise
from dgz.progress import Progress
from dgz.training import Checkpoints, Trainee, random_stream, train, watching

CPU = torch.device("cpu")


class Toy(Trainee):
    """Two networks, two optimizers, a running statistic, random numbers in every step and a rate that sinks."""

    def __init__(self, seed=0, n_steps=3):
        self.net = initialise(MLP([2], [4, 1]), random_stream(seed, "toy's start"))
        self.norm = ClassStandardisation(2)
        self.judge = initialise(MLP([1], [3, 1]), random_stream(seed, "judge's start"))
        self.networks = {"toy": self.net, "judge": self.judge, "norm": self.norm}
        self.optimizers = {
            "toy": training.adam(self.net.parameters(), 0.01),
            "judge": training.adam(self.judge.parameters(), 0.02),
        }
        self.rng = random_stream(seed, "toy")
        self.n_steps = n_steps
        self.epochs, self.losses = [], []

    def begin_epoch(self, epoch):
        self.epochs.append(epoch)
        training.set_rate(self.optimizers["toy"], 0.01 / epoch)

    def step(self):
        x = torch.randn(8, 2, generator=self.rng)
        out = self.net(self.norm(x))
        judged = (self.judge(out.detach()).squeeze(1) - x[:, 0]).square().mean()
        training.descend(self.optimizers["judge"], judged)
        loss = (out.squeeze(1) - x.sum(1)).square().mean() + 0.1 * self.judge(out).mean()
        training.descend(self.optimizers["toy"], loss)
        self.losses.append((loss.item(), judged.item()))
        return {"loss": loss, "judge loss": judged}


class Breaks(Toy):
    """A toy whose named loss is ``value`` from one step on."""

    def __init__(self, at_step, value=math.nan, which=("loss",)):
        super().__init__()
        self.at_step, self.value, self.which, self.steps = at_step, value, which, 0

    def step(self):
        self.steps += 1
        row = super().step()
        return row | {name: torch.tensor(self.value) for name in self.which if self.steps >= self.at_step}


class Pair(Toy):
    """A toy that stands for two trained at once; each may break, with its loss or its values, from one step on."""

    def __init__(self, loss_breaks_at=(math.inf, math.inf), values_break_at=(math.inf, math.inf)):
        super().__init__()
        self.loss_breaks_at, self.values_break_at = loss_breaks_at, values_break_at

    def step(self):
        loss = super().step()["loss"]
        is_broken = torch.tensor([len(self.losses) >= step for step in self.loss_breaks_at])
        return {"loss": torch.stack([loss, 2 * loss]).masked_fill(is_broken, math.nan)}

    def measure(self):
        return {training.SOUND: torch.tensor([len(self.losses) < step for step in self.values_break_at])}


def state(trainee):
    """Everything that the next step depends on, as plain lists."""
    optimizers = {
        name: [{key: value.tolist() for key, value in state.items()} for state in one.state_dict()["state"].values()]
        for name, one in trainee.optimizers.items()
    }
    networks = {name: {k: v.tolist() for k, v in net.state_dict().items()} for name, net in trainee.networks.items()}
    return {"networks": networks, "optimizers": optimizers, "rng": trainee.rng.get_state().tolist()}


def stop_at(epoch):
    def after_epoch(finished):
        if finished == epoch:
            raise InterruptedError
        return {"seen": finished}

    return after_epoch


# --- Random streams.
def test_streams_differ_by_seed_and_by_stage():
    draws = {
        (seed, stage): tuple(torch.rand(4, generator=random_stream(seed, stage)).tolist())
        for seed in (0, 1, 11, -1)
        for stage in ("", "a", "b", "1/a", "generator", "generator's start")
    }
    assert len(set(draws.values())) == len(draws)


def test_a_stream_is_the_same_on_every_day_and_ignores_the_global_state():
    torch.manual_seed(1)
    first = random_stream(7, "generator")
    torch.manual_seed(2)
    again = random_stream(7, "generator")
    # sha256("7/generator") begins with 4c a7 97 45 93 d4 4a 49; half of that is the seed.
    assert first.initial_seed() == again.initial_seed() == 0x4CA7974593D44A49 // 2
    assert torch.rand(1, generator=first).item() == torch.rand(1, generator=again).item()
    assert torch.rand(2, generator=random_stream(7, "generator")).tolist() == pytest.approx(
        [0.01356095, 0.11011028], abs=1e-7
    )


def test_a_stream_leaves_the_global_state_alone():
    before = torch.get_rng_state()
    torch.rand(3, generator=random_stream(0, "a"))
    assert torch.equal(torch.get_rng_state(), before)


# --- Devices.
def test_auto_takes_a_gpu_where_there_is_one(monkeypatch):
    assert training.pick_device("cpu") == training.pick_device(torch.device("cpu")) == torch.device("cpu")
    for available, kind in ((False, "cpu"), (True, "cuda")):
        monkeypatch.setattr(torch.cuda, "is_available", lambda available=available: available)
        assert training.pick_device("auto").type == kind


@pytest.mark.parametrize("device", ["nonsense", "", "cuda:-3", "xla", "hpu", "privateuseone"])
def test_a_device_that_is_not_there_is_refused_in_one_sentence(device):
    with pytest.raises(DGZError, match=f"^device '{device}' cannot be used here: ") as caught:
        training.pick_device(device)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 300


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_cuda_where_there_is_none_is_refused():
    for device in ("cuda", "cuda:0", torch.device("cuda")):
        with pytest.raises(DGZError, match=r"^device 'cuda(:0)?' cannot be used here: "):
            training.pick_device(device)


# --- One step.
def test_adam_has_the_released_settings():
    net = MLP([2], [1])
    optimizer = training.adam(net.parameters(), 0.003)
    (group,) = optimizer.param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (0.003, (0.5, 0.999), 0)
    assert all(a is b for a, b in zip(training.parameters_of(optimizer), net.parameters(), strict=True))
    assert len(group["params"]) == 2


def test_adams_moments_are_there_from_the_start_and_change_nothing():
    ours, theirs = (initialise(MLP([2], [4, 1]), random_stream(0, "x")) for _ in range(2))
    optimizer = training.adam(ours.parameters(), 0.003)
    for values in ours.parameters():
        moments = optimizer.state[values]
        assert set(moments) == {"step", "exp_avg", "exp_avg_sq"}
        assert moments["exp_avg"].shape == moments["exp_avg_sq"].shape == values.shape
        assert all((moment == 0).all() for moment in moments.values())
    plain = torch.optim.Adam(theirs.parameters(), lr=0.003, betas=(0.5, 0.999))
    for step in range(3):
        x = torch.randn(5, 2, generator=random_stream(step, "rows"))
        training.descend(optimizer, ours(x).square().mean())
        plain.zero_grad()
        theirs(x).square().mean().backward()
        plain.step()
    for a, b in zip(ours.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)


def test_a_new_rate_counts_from_the_next_step_on():
    values = torch.zeros(1, requires_grad=True)
    optimizer = training.adam([values], 0.5)
    for rate in (0.5, 0.125, 2.0):
        training.set_rate(optimizer, rate)
        before = values.item()
        training.update(optimizer, [torch.ones(1)])  # Adam's step for gradients that never change is the rate
        assert before - values.item() == pytest.approx(rate, rel=1e-5)


def test_an_update_takes_gradients_in_the_order_of_the_parameters():
    wide, long = torch.zeros(2, 3, requires_grad=True), torch.zeros(4, requires_grad=True)
    signs = torch.tensor([[1.0, -1], [1, 1], [-1, 1]]).T  # rows are not one after the other in memory
    training.update(training.adam([wide, long], 0.01), [signs, -torch.ones(4)])
    torch.testing.assert_close(wide.detach(), -0.01 * signs)
    torch.testing.assert_close(long.detach(), torch.full((4,), 0.01))


def test_a_parameter_without_a_gradient_stays_and_so_do_its_moments():
    moved, still = torch.zeros(2, requires_grad=True), torch.zeros(2, requires_grad=True)
    optimizer = training.adam([moved, still], 0.01)
    training.update(optimizer, [torch.ones(2), torch.ones(2)])
    before = {name: moment.tolist() for name, moment in optimizer.state[still].items()}
    training.update(optimizer, [torch.ones(2), None])  # the gradient of the step before does not count again
    assert {name: moment.tolist() for name, moment in optimizer.state[still].items()} == before
    assert optimizer.state[moved]["step"] == 2
    torch.testing.assert_close(moved.detach(), torch.full((2,), -0.02))
    torch.testing.assert_close(still.detach(), torch.full((2,), -0.01))


def test_an_update_wants_a_gradient_for_each_parameter():
    with pytest.raises(ValueError, match="zip"):
        training.update(training.adam([torch.zeros(2, requires_grad=True)], 0.01), [])


def test_descending_moves_its_own_parameters_alone():
    toy = Toy()
    x = torch.ones(3, 2)
    before = {name: [v.detach().clone() for v in net.parameters()] for name, net in toy.networks.items()}
    loss = toy.judge(toy.net(x)).square().mean() + toy.net(x).mean()
    expected = torch.autograd.grad(loss, list(toy.net.parameters()), retain_graph=True)
    training.descend(toy.optimizers["toy"], loss)
    assert all(values.grad is None for values in toy.judge.parameters())
    assert all(torch.equal(a, b) for a, b in zip(before["judge"], toy.judge.parameters(), strict=True))
    for old, new, gradient in zip(before["toy"], toy.net.parameters(), expected, strict=True):
        # Adam's first step is the learning rate times the gradient's sign.
        torch.testing.assert_close(new, old - 0.01 * gradient.sign() * (gradient.abs() > 1e-6), rtol=0, atol=1e-4)
        assert not torch.equal(new, old)


def test_descending_starts_from_fresh_gradients():
    def two_steps(between):
        toy = Toy()
        for _ in range(2):
            training.descend(toy.optimizers["toy"], toy.net(torch.ones(3, 2)).mean())
            between(toy)
        return [values.tolist() for values in toy.net.parameters()]

    assert two_steps(lambda toy: None) == two_steps(lambda toy: toy.net.zero_grad())


# --- Precision.
def how_matrices_are_multiplied():
    return torch.backends.cuda.matmul.allow_tf32, torch.is_autocast_enabled("cpu")


@pytest.fixture(params=[False, True])
def before(request):
    """Whether TF32 was allowed before."""
    kept = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = request.param
    yield request.param
    torch.backends.cuda.matmul.allow_tf32 = kept


@pytest.mark.parametrize(
    ("precision", "inside"), [("float32", (False, False)), ("tf32", (True, False)), ("bf16", (True, True))]
)
def test_a_precision_ends_with_its_block_however_that_ends(before, precision, inside):
    with training.multiplying(precision, CPU):
        assert how_matrices_are_multiplied() == inside
    assert how_matrices_are_multiplied() == (before, False)
    with pytest.raises(InterruptedError), training.multiplying(precision, CPU):
        raise InterruptedError
    assert how_matrices_are_multiplied() == (before, False)


def test_one_precision_inside_another_is_the_inner_one():
    with training.multiplying("bf16", CPU):
        with training.multiplying("float32", CPU):
            assert how_matrices_are_multiplied() == (False, False)
        assert how_matrices_are_multiplied() == (True, True)


def test_bf16_rounds_products_on_the_cpu_and_the_others_do_not():
    x = torch.tensor([[1 + 2.0**-9]])  # two bits more than bfloat16 has
    for precision, expected in (("float32", x), ("tf32", x), ("bf16", torch.ones(1, 1))):
        with training.multiplying(precision, CPU):
            assert torch.equal((x @ torch.eye(1)).float(), expected)
            assert torch.equal(x * 1.0, x)  # what is no product of matrices keeps its bits


@pytest.mark.parametrize(
    ("precision", "inside"), [("float32", (False, False)), ("tf32", (True, False)), ("bf16", (True, True))]
)
def test_steps_alone_are_taken_with_the_trainees_precision(before, precision, inside):
    steps, between = [], []

    class Watching(Toy):
        def step(self):
            steps.append(how_matrices_are_multiplied())
            return super().step()

    toy = Watching()
    toy.precision = precision
    train("toy", toy, 2, after_epoch=lambda epoch: between.append(how_matrices_are_multiplied()) or {})
    assert steps == [inside] * 6
    assert between == [(before, False)] * 2


def test_float16_stands_for_tf32_only_where_inputs_are_of_a_middling_size():
    for size, fits in ((1.0, True), (0.02, True), (900.0, True), (0.001, False), (2000.0, False), (math.nan, False)):
        inputs = torch.ones(3), torch.tensor([[0.0, -size], [0.0, size]])
        assert training.in_range("tf32", *inputs) == training.in_range("tf32", *inputs[::-1]) == fits
        assert training.in_range("float32", *inputs)
        assert training.in_range("bf16", *inputs)


def test_there_are_no_fused_kernels_on_a_cpu():
    assert not training.has_kernels(CPU)


# --- Histories.
def test_a_history_has_the_mean_of_each_loss_and_what_after_epoch_says():
    toy = Toy()
    history = train("toy", toy, 4, after_epoch=lambda epoch: {"score": 10 * epoch, "at": toy.epochs[-1]})
    assert [row["epoch"] for row in history] == [1, 2, 3, 4] == toy.epochs
    assert [row["score"] for row in history] == [10, 20, 30, 40]
    assert [row["at"] for row in history] == [1, 2, 3, 4]
    assert len(toy.losses) == 12
    for index, name in enumerate(("loss", "judge loss")):
        for row in history:
            steps = [losses[index] for losses in toy.losses[3 * row["epoch"] - 3 : 3 * row["epoch"]]]
            assert row[name] == pytest.approx(sum(steps) / 3, rel=1e-6)
            assert isinstance(row[name], float)
    assert set(history[0]) == {"epoch", "loss", "judge loss", "score", "at"}
    json.dumps(history, allow_nan=False)


def test_several_trained_at_once_have_a_number_each():
    history = train("toy", Pair(), 2)
    assert [set(row) for row in history] == [{"epoch", "loss"}] * 2
    for row, one in zip(history, train("toy", Toy(), 2), strict=True):
        assert row["loss"] == pytest.approx([one["loss"], 2 * one["loss"]])
        assert all(isinstance(value, float) for value in row["loss"])
    json.dumps(history, allow_nan=False)


def test_after_epoch_may_give_tensors():
    def after_epoch(epoch):
        one, each = torch.tensor(epoch / 4, requires_grad=True), torch.tensor([epoch, 7])
        return {"one": one, "each": each, "word": "x", "list": [epoch], "single": torch.tensor([0.5])}

    history = train("toy", Toy(), 2, after_epoch=after_epoch)
    for row, epoch in zip(history, (1, 2), strict=True):
        assert (row["one"], row["each"], row["single"]) == (epoch / 4, [epoch, 7.0], [0.5])
        assert (row["word"], row["list"]) == ("x", [epoch])
    json.dumps(history, allow_nan=False)


def test_what_is_measured_after_each_epoch_joins_the_history():
    class Measuring(Toy):
        def measure(self):
            return super().measure() | {"steps": torch.tensor(len(self.losses))}

    assert [row["steps"] for row in train("toy", Measuring(), 3)] == [3, 6, 9]


def test_an_epoch_is_begun_then_shuffled_then_stepped():
    events = []

    class Recording(Toy):
        def begin_epoch(self, epoch):
            events.append(epoch)

        def shuffle(self):
            events.append("shuffle")

        def step(self):
            events.append("step")
            return super().step()

    train("toy", Recording(n_steps=2), 2)
    assert events == [1, "shuffle", "step", "step", 2, "shuffle", "step", "step"]


def test_a_trainee_may_weigh_its_losses_itself():
    class Weighing(Toy):
        def mean_losses(self, totals):
            return {f"twice the {name}": 2 * total / self.n_steps for name, total in totals.items()}

    for row, one in zip(train("toy", Weighing(), 2), train("toy", Toy(), 2), strict=True):
        assert row["twice the loss"] == pytest.approx(2 * one["loss"], rel=1e-6)
        assert "loss" not in row


def test_training_is_repeatable_and_depends_on_the_seed():
    runs = []
    for seed in (0, 0, 1):
        toy = Toy(seed)
        torch.manual_seed(len(runs))  # must not matter
        runs.append((train("toy", toy, 3), state(toy)))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]


# --- Progress.
def test_progress_goes_to_standard_error(monkeypatch, capsys):
    monkeypatch.setattr(training, "Progress", functools.partial(training.Progress, log_every=0.0))
    history = train("toy", Toy(), 2, after_epoch=lambda epoch: {"h": 0.5 + epoch / 8}, verbose=True)
    out, err = capsys.readouterr()
    assert out == ""
    lines = err.splitlines()[-2:]
    for line, row, percent in zip(lines, history, ("62.5", "75.0"), strict=True):
        expected = f"toy: {row['epoch']} of 2 epochs loss {row['loss']:.3g}  judge loss {row['judge loss']:.3g}"
        assert line == f"{expected}  test H {percent}"


def test_progress_of_several_shows_their_mean(monkeypatch, capsys):
    monkeypatch.setattr(training, "Progress", functools.partial(training.Progress, log_every=0.0))
    (row,) = train("toy", Pair(), 1, after_epoch=lambda epoch: {"h": torch.tensor([0.25, 0.5])}, verbose=True)
    line = capsys.readouterr().err.splitlines()[-1]
    assert line == f"toy: 1 of 1 epochs loss {sum(row['loss']) / 2:.3g}  test H 37.5"


def test_progress_is_silent_unless_asked_for(monkeypatch, capsys):
    monkeypatch.setattr(training, "Progress", functools.partial(training.Progress, log_every=0.0))
    train("toy", Toy(), 2)
    assert capsys.readouterr() == ("", "")


def test_progress_of_a_resumed_training_starts_where_it_stopped(monkeypatch, capsys, tmp_path):
    with pytest.raises(InterruptedError):
        train("toy", Toy(), 5, after_epoch=stop_at(4), checkpoints=Checkpoints(tmp_path, "a", every=0))
    monkeypatch.setattr(training, "Progress", functools.partial(training.Progress, log_every=0.0))
    train("toy", Toy(), 5, checkpoints=Checkpoints(tmp_path, "a", every=0), verbose=True)
    counts = [line.split()[1] for line in capsys.readouterr().err.splitlines()]
    assert counts == ["3", "4", "5"]


# --- Observers.
def watched(n_epochs=3, trainee=None, **options):
    """What an observer was told, and the history of the same training."""
    told = []
    with watching(lambda *what: told.append(what)):
        history = train("toy", trainee or Toy(), n_epochs, **options)
    return told, history


def test_an_observer_is_told_each_row_of_the_history():
    told, history = watched(after_epoch=lambda epoch: {"h": torch.tensor(epoch / 10)})
    assert [(stage, epoch) for stage, epoch, _ in told] == [("toy", 1), ("toy", 2), ("toy", 3)]
    assert [{"epoch": epoch, **row} for _, epoch, row in told] == history
    assert set(told[0][2]) == {"loss", "judge loss", "h"}


def test_an_observer_is_told_at_once():
    epochs = []
    toy = Toy()
    with watching(lambda stage, epoch, row: epochs.append((epoch, len(toy.losses)))):
        train("toy", toy, 3)
    assert epochs == [(1, 3), (2, 6), (3, 9)]


def test_watching_changes_nothing():
    plain, seen = Toy(), Toy()
    history = train("toy", plain, 4)
    assert watched(4, seen)[1] == history
    assert state(seen) == state(plain)


def test_all_observers_are_told_the_outermost_first_and_each_owns_its_row():
    told = []

    def spoil(stage, epoch, row):
        told.append(("outer", epoch, dict(row)))
        row.clear()

    with watching(spoil):
        with watching(lambda stage, epoch, row: told.append(("inner", epoch, row))):
            history = train("toy", Toy(), 2)
        train("toy", Toy(), 1)
    train("toy", Toy(), 1)
    assert [who[:2] for who in told] == [("outer", 1), ("inner", 1), ("outer", 2), ("inner", 2), ("outer", 1)]
    assert [{"epoch": epoch, **row} for who, epoch, row in told if who == "inner"] == history


def test_what_is_trained_inside_an_epoch_is_in_its_row_alone():
    told, _ = watched(2, after_epoch=lambda epoch: {"classifier": train("classifier", Toy(seed=epoch), 2)})
    assert [(stage, epoch) for stage, epoch, _ in told] == [("toy", 1), ("toy", 2)]
    assert told[1][2]["classifier"] == train("classifier", Toy(seed=2), 2)


def test_a_part_is_called_so():
    told = []
    with watching(lambda stage, *_: told.append(stage)), training.part("fold 1"):
        train("toy", Toy(), 1)
        with training.part("again"):
            train("toy", Toy(), 1)
    assert told == ["fold 1/toy", "fold 1/again/toy"]


@pytest.mark.parametrize(("places", "factors"), [((0, 1), (1, 2)), ((1, 0), (2, 1))])
def test_several_trained_at_once_are_told_in_the_order_they_were_given_in(places, factors):
    pair = Pair()
    pair.places = places
    told, history = watched(2, pair)
    plain = train("toy", Toy(), 2)
    for (_, _, row), alone, kept in zip(told, plain, history, strict=True):
        assert row["loss"] == [factor * alone["loss"] for factor in factors]
        assert kept["loss"] == [alone["loss"], 2 * alone["loss"]]


def test_epochs_from_before_an_interruption_are_told_again(tmp_path):
    checkpoints = functools.partial(Checkpoints, tmp_path, "a", every=0)
    with pytest.raises(InterruptedError):
        train("toy", Toy(), 4, after_epoch=stop_at(3), checkpoints=checkpoints())
    told, history = watched(4, Toy(), checkpoints=checkpoints())
    assert [{"epoch": epoch, **row} for _, epoch, row in told] == history
    assert [epoch for _, epoch, _ in told] == [1, 2, 3, 4]


def test_other_threads_are_not_watched():
    told = []
    with watching(lambda *what: told.append(what)), ThreadPoolExecutor(1) as pool:
        pool.submit(train, "toy", Toy(), 1).result()
    assert told == []


class PrunedError(Exception):
    """What an observer ends a training with."""


def prune_at(at_stage, at_epoch):
    def observer(stage, epoch, row):
        if (stage, epoch) == (at_stage, at_epoch):
            raise PrunedError("enough")

    return observer


def test_an_observers_error_ends_the_training_as_it_is_and_closes_the_bar(monkeypatch, tmp_path):
    closed = []

    class Bar(Progress):
        def __exit__(self, *why):
            closed.append(why[0])
            super().__exit__(*why)

    monkeypatch.setattr(training, "Progress", Bar)
    toy, checkpoints = Toy(), Checkpoints(tmp_path, "a", every=0)
    with pytest.raises(PrunedError, match=r"^enough$"), watching(prune_at("toy", 2)):
        train("toy", toy, 5, checkpoints=checkpoints, verbose=True)
    assert (closed, toy.epochs) == ([PrunedError], [1, 2])
    assert len(checkpoints.restore("toy", Toy())) == 2
    assert watched(1)[0][0][1] == 1  # and nobody is left watching from before


@pytest.mark.parametrize("stage", ["generator", "classifier"])
@pytest.mark.parametrize("was_fitted", [False, True])
def test_a_model_whose_training_an_observer_ended_is_not_fitted(tiny, stage, was_fitted):
    model = DGZ.without_generator(n_epochs=3, generator__n_epochs=3, d_hidden=4, generator__hidden=(4,), device="cpu")
    known = (tiny.x_train, tiny.y_train, tiny.attributes)
    if was_fitted:
        model.fit(*known)
    with pytest.raises(PrunedError), watching(prune_at(stage, 2)):
        model.fit(*known)
    with pytest.raises(NotFittedError):
        model.predict(tiny.x_test_seen)
    again, fresh = model.fit(*known), clone(model).fit(*known)
    assert again.history_ == fresh.history_
    assert again.weights_.tobytes() == fresh.weights_.tobytes()


def test_a_models_stages_are_told_as_its_history_has_them(tiny):
    told = []
    model = DGZ.without_generator(n_epochs=2, generator__n_epochs=3, d_hidden=4, generator__hidden=(4,), device="cpu")
    known = {"X": tiny.x_train, "y": tiny.y_train, "attributes": tiny.attributes, "test": tiny}
    with watching(lambda stage, epoch, row: told.append({"stage": stage, "epoch": epoch, **row})):
        model.fit(**known)
    assert told == [{k: v for k, v in row.items() if k != "generator_epoch"} for row in model.history_]
    assert clone(model).fit(**known).history_ == model.history_


def test_what_is_chosen_on_folds_is_told_as_such(tiny):
    told = []
    model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1, d_hidden=4, generator__hidden=(4,), device="cpu")
    with watching(lambda stage, *_: told.append(stage)):
        model.set_params(seen_penalty="auto").fit(tiny.x_train, tiny.y_train, tiny.attributes)
    folds = [f"fold {k}/{stage}" for k in (1, 2, 3) for stage in ("generator", "classifier")]
    assert told == [*folds, "generator", "classifier"]


def test_models_fitted_at_once_have_a_number_each_in_their_order(tiny):
    # The second learns from more rows, so that it is put first inside.
    settings = {"n_epochs": 2, "generator__n_epochs": 1, "d_hidden": 4, "generator__hidden": (4,), "batch_size": 8}
    models = [DGZ.without_generator(n_per_class=n, device="cpu", **settings) for n in (2, 50)]
    told = []
    with watching(lambda stage, epoch, row: told.append((stage, row))):
        fit_many(models, tiny.x_train, tiny.y_train, tiny.attributes, test=tiny)
    rows = [row for stage, row in told if stage == "classifier"]
    assert len(rows) == 2
    for k, model in enumerate(models):
        own = [row for row in model.history_ if row["stage"] == "classifier"]
        assert [{name: values[k] for name, values in row.items()} for row in rows] == [
            {name: row[name] for name in ("loss", "acc_unseen", "acc_seen", "h", "acc_zsl")} for row in own
        ]


@pytest.mark.parametrize("is_watched", [False, True])
def test_a_gpu_is_waited_for_after_each_epoch_only_where_someone_watches(monkeypatch, is_watched):
    class Elsewhere(Toy):
        """A toy that claims to be on a GPU."""

        @property
        def rng(self):
            return SimpleNamespace(device=SimpleNamespace(type="cuda"))

        @rng.setter
        def rng(self, stream):
            self.stream = stream

        def step(self):
            return {"loss": torch.rand((), generator=self.stream)}

    def epoch(trainee):
        return training._Numbers.of(trainee.mean_losses(trainee.step()) | trainee.measure())

    read, ones = [], torch.ones
    monkeypatch.setattr(training, "_epoch", epoch)
    monkeypatch.setattr(training, "_PATIENCE", 1000.0)
    monkeypatch.setattr(training.torch, "ones", lambda *size, device=None, **more: ones(*size, **more))
    monkeypatch.setattr(training, "_read", lambda unread, real=training._read: read.append(len(unread)) or real(unread))
    with watching(lambda *_: None) if is_watched else nullcontext():
        history = train("toy", Elsewhere(), 5)
    assert read == ([1] * 5 if is_watched else [5])
    assert [row["epoch"] for row in history] == [1, 2, 3, 4, 5]


# --- Checkpoints.
@pytest.mark.parametrize("stopped_at", [1, 2, 4, 6])
def test_a_resumed_training_ends_as_an_unbroken_one(tmp_path, stopped_at):
    unbroken = Toy()
    history = train("toy", unbroken, 6, after_epoch=lambda epoch: {"seen": epoch})
    broken = Toy()
    with pytest.raises(InterruptedError):
        train("toy", broken, 6, after_epoch=stop_at(stopped_at), checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = Toy(seed=5)  # another start, which the file must replace whole
    if stopped_at == 1:
        resumed = Toy()  # nothing was kept yet
    checkpoints = Checkpoints(tmp_path, "a", every=0)
    assert checkpoints.path("toy").exists() == (stopped_at > 1)
    assert train("toy", resumed, 6, after_epoch=lambda epoch: {"seen": epoch}, checkpoints=checkpoints) == history
    assert state(resumed) == state(unbroken)
    assert resumed.epochs == list(range(stopped_at, 7))


def test_a_finished_training_is_not_trained_again(tmp_path):
    history = train("toy", Toy(), 3, checkpoints=Checkpoints(tmp_path, "a"))
    again = Toy(seed=1)
    assert train("toy", again, 3, checkpoints=Checkpoints(tmp_path, "a")) == history
    assert again.epochs == []
    unbroken = Toy()
    train("toy", unbroken, 3)
    assert state(again) == state(unbroken)


def test_stages_have_a_file_each(tmp_path):
    checkpoints = Checkpoints(tmp_path / "new" / "folder", "a", every=0)
    train("one", Toy(0), 2, checkpoints=checkpoints)
    train("two", Toy(1), 2, checkpoints=checkpoints)
    assert sorted(path.name for path in checkpoints.folder.iterdir()) == ["one.safetensors", "two.safetensors"]
    restored = Toy(2)
    assert len(checkpoints.restore("one", restored)) == 2
    expected = Toy(0)
    train("one", expected, 2)
    assert state(restored) == state(expected)


def test_files_are_written_at_the_end_and_no_more_often_than_asked(tmp_path, monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])
    checkpoints = Checkpoints(tmp_path, "a", every=30)
    kept = []

    def after_epoch(epoch):  # runs before the epoch's own state is kept
        clock[0] += 12
        path = checkpoints.path("toy")
        kept.append(len(checkpoints.restore("toy", Toy())) if path.exists() else 0)
        return {}

    train("toy", Toy(), 8, after_epoch=after_epoch, checkpoints=checkpoints)
    assert kept == [0, 0, 0, 3, 3, 3, 6, 6]  # 36 and 72 seconds are the first at least 30 after the last
    assert len(checkpoints.restore("toy", Toy())) == 8


def test_a_checkpoint_of_another_training_is_refused(tmp_path):
    train("toy", Toy(), 2, checkpoints=Checkpoints(tmp_path, "a", every=0))
    kept = (tmp_path / "toy.safetensors").read_bytes()
    with pytest.raises(DGZError, match="checkpoint of other settings or other data; start anew") as caught:
        train("toy", Toy(), 2, checkpoints=Checkpoints(tmp_path, "b", every=0))
    assert not isinstance(caught.value, DataError)  # nothing is broken
    assert str(tmp_path / "toy.safetensors") in str(caught.value)
    assert (tmp_path / "toy.safetensors").read_bytes() == kept


class Wider(Toy):
    def __init__(self):
        super().__init__()
        self.net = initialise(MLP([2], [5, 1]), self.rng)
        self.networks |= {"toy": self.net}
        self.optimizers |= {"toy": training.adam(self.net.parameters(), 0.01)}


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The file of a toy that has been trained for two epochs, and what it holds."""
    folder = tmp_path_factory.mktemp("kept")
    train("toy", Toy(), 2, checkpoints=Checkpoints(folder, "a"))
    return (folder / "toy.safetensors").read_bytes()


def refused(folder, trainee=None):
    with pytest.raises(DataError, match="is not a whole checkpoint of this training") as caught:
        train("toy", trainee or Toy(), 3, checkpoints=Checkpoints(folder, "a"))
    assert str(caught.value).startswith(str(folder / "toy.safetensors"))
    assert "\n" not in str(caught.value)  # one sentence, even where torch says more
    assert not str(caught.value).endswith("..")


def test_a_checkpoint_of_other_networks_is_refused(tmp_path, kept):
    (tmp_path / "toy.safetensors").write_bytes(kept)
    refused(tmp_path, Wider())


@pytest.mark.parametrize(
    "content", [b"", b"\0", b"not a checkpoint", b"\x08\0\0\0\0\0\0\0{}      ", b"\xff" * 200, b"PK\x03\x04" * 50]
)
def test_a_file_that_is_no_checkpoint_is_refused(tmp_path, content):
    (tmp_path / "toy.safetensors").write_bytes(content)
    refused(tmp_path)


@pytest.mark.parametrize("share", [0.1, 0.5, 0.9, 0.9999])
def test_a_truncated_checkpoint_is_refused(tmp_path, kept, share):
    (tmp_path / "toy.safetensors").write_bytes(kept[: int(share * len(kept))])
    refused(tmp_path)


@pytest.mark.parametrize("words", [{}, {"fingerprint": "a"}, {"fingerprint": "a", "history": "[{"}])
def test_a_checkpoint_without_its_words_is_refused(tmp_path, kept, words):
    (tmp_path / "toy.safetensors").write_bytes(kept)
    save_file(load_file(tmp_path / "toy.safetensors"), tmp_path / "toy.safetensors", metadata=words)
    refused(tmp_path)


@pytest.mark.parametrize(
    "name",
    ["rng", "net/toy/first.bias", "net/norm/mean", "adam/toy/0/exp_avg", "adam/toy/1/exp_avg_sq", "adam/judge/2/step"],
)
@pytest.mark.parametrize("harm", ["missing", "of another shape"])
def test_a_checkpoint_with_a_bad_entry_is_refused(tmp_path, kept, name, harm):
    path = tmp_path / "toy.safetensors"
    path.write_bytes(kept)
    tensors = load_file(path)
    values = tensors.pop(name)
    if harm == "of another shape":
        tensors[name] = torch.cat([values.reshape(-1), values.reshape(-1)])
    save_file(tensors, path, metadata={"fingerprint": "a", "history": '[{"epoch": 1}]'})
    refused(tmp_path)


def test_a_random_state_that_is_none_is_refused(tmp_path, kept):
    path = tmp_path / "toy.safetensors"
    for harm in (lambda state: state.to(torch.int32), torch.zeros_like):
        path.write_bytes(kept)
        tensors = load_file(path)
        tensors["rng"] = harm(tensors["rng"])
        save_file(tensors, path, metadata={"fingerprint": "a", "history": "[]"})
        refused(tmp_path)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_a_damaged_checkpoint_never_raises_anything_but_a_sentence(tmp_path_factory, kept, data):
    # A flipped digit of a weight may go unnoticed; a traceback, at once or in the next step, may not come.
    folder = tmp_path_factory.mktemp("damaged")
    path = folder / "toy.safetensors"
    path.write_bytes(kept)
    damage(path, data.draw, within=8 + int.from_bytes(kept[:8], "little"))
    was_cut = path.stat().st_size < len(kept)
    try:
        train("toy", Toy(n_steps=1), 3, checkpoints=Checkpoints(folder, "a"))
    except DGZError:
        return
    assert not was_cut


# --- Losses that are no numbers.
@pytest.mark.parametrize(
    ("value", "which"), [(math.nan, ("loss",)), (math.inf, ("judge loss",)), (-math.inf, ("loss",))]
)
def test_a_loss_that_is_no_number_stops_the_training(value, which):
    with pytest.raises(
        DGZError, match=f"Training the toy stopped in epoch 2: its {which[0]} is no finite number"
    ) as caught:
        train("toy", Breaks(at_step=5, value=value, which=which), 4)
    assert "kept in" not in str(caught.value)


def test_one_broken_step_in_an_epoch_is_enough():
    trainee = Breaks(at_step=2)
    trainee.n_steps = 4
    with pytest.raises(DGZError, match="stopped in epoch 1"):
        train("toy", trainee, 1)


def test_every_broken_loss_is_named():
    with pytest.raises(DGZError, match="its loss and judge loss is no finite number"):
        train("toy", Breaks(at_step=1, which=("loss", "judge loss")), 1)


def test_values_that_are_no_numbers_stop_the_training_though_the_loss_is_one():
    class Overflows(Toy):
        def step(self):
            row = super().step()
            if len(self.losses) == 6:  # the last step of epoch 2
                with torch.no_grad():
                    self.judge.first.bias[0] = math.inf
            return row

    with pytest.raises(DGZError, match="Training the toy stopped in epoch 2: its state is no finite number"):
        train("toy", Overflows(), 4)


def test_of_several_one_that_breaks_leaves_the_others_to_go_on():
    history = train("toy", Pair(loss_breaks_at=(4, math.inf), values_break_at=(4, math.inf)), 3)
    assert [math.isfinite(row["loss"][0]) for row in history] == [True, False, False]
    assert [row["loss"][1] for row in history] == pytest.approx([2 * row["loss"] for row in train("toy", Toy(), 3)])


@pytest.mark.parametrize(
    ("breaks", "broken"), [({"loss_breaks_at": (1, 5)}, "loss"), ({"values_break_at": (1, 5)}, "state")]
)
def test_several_of_which_none_is_left_stop(breaks, broken):
    with pytest.raises(DGZError, match=f"stopped in epoch 2: its {broken} is no finite number"):
        train("toy", Pair(**breaks), 4)


def test_the_checkpoint_from_before_a_broken_loss_is_kept_and_whole(tmp_path):
    checkpoints = Checkpoints(tmp_path, "a", every=0)
    with pytest.raises(DGZError, match="stopped in epoch 3") as caught:
        train("toy", Breaks(at_step=8), 5, checkpoints=checkpoints)
    assert str(checkpoints.path("toy")) in str(caught.value)
    restored, expected = Toy(seed=3), Toy()
    history = checkpoints.restore("toy", restored)
    assert history == train("toy", expected, 2)
    assert state(restored) == state(expected)


def test_a_broken_loss_before_any_checkpoint_promises_none(tmp_path):
    with pytest.raises(DGZError) as caught:
        train("toy", Breaks(at_step=1), 5, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert "kept" not in str(caught.value)
    assert list(tmp_path.iterdir()) == []


def test_parameters_that_count_their_steps_together_can_be_kept(tmp_path):
    toy = Toy()
    shared = torch.zeros(())
    for state_of_one in toy.optimizers["toy"].state.values():
        state_of_one["step"] = shared
    shared.fill_(7.0)
    checkpoints = Checkpoints(tmp_path, "f", every=0.0)
    checkpoints.save("toy", toy, [], is_last=True)
    again = Toy()
    checkpoints.restore("toy", again)
    assert {float(one["step"]) for one in again.optimizers["toy"].state.values()} == {7.0}


# --- Trainings too short to be worth a file.
def seconds_per_epoch(monkeypatch, seconds):
    """A clock that only epochs move, as an ``after_epoch`` that moves it."""
    clock = [0.0]
    monkeypatch.setattr(training.time, "monotonic", lambda: clock[0])

    def after_epoch(epoch):
        clock[0] += seconds
        return {}

    return after_epoch


@pytest.mark.parametrize(("seconds", "is_kept"), [(0.0, False), (9.9, False), (10.0, True), (16.0, True), (40.0, True)])
def test_the_end_of_a_short_training_is_kept_only_where_asked_for(tmp_path, monkeypatch, seconds, is_kept):
    after_epoch = seconds_per_epoch(monkeypatch, seconds)
    for keep_short, expected in ((False, is_kept), (True, True)):
        checkpoints = Checkpoints(tmp_path / str(keep_short), "a", every=30, keep_short=keep_short)
        train("toy", Toy(), 3, after_epoch=after_epoch, checkpoints=checkpoints)
        assert checkpoints.path("toy").exists() == expected
        if expected:  # whole, to its last epoch
            assert len(checkpoints.restore("toy", Toy())) == 3


def test_the_end_of_a_training_that_was_kept_on_the_way_is_kept(tmp_path, monkeypatch):
    # 36 seconds after three epochs, and the fourth, 12 seconds later, is the last.
    after_epoch = seconds_per_epoch(monkeypatch, 12.0)
    checkpoints = Checkpoints(tmp_path, "a", every=30, keep_short=False)
    whole = Toy()
    history = train("toy", whole, 4, after_epoch=after_epoch, checkpoints=checkpoints)
    again = Toy(seed=5)
    assert train("toy", again, 4, checkpoints=Checkpoints(tmp_path, "a", every=30, keep_short=False)) == history
    assert again.epochs == []
    assert state(again) == state(whole)


def test_a_long_training_that_broke_goes_on_though_short_ones_are_not_kept(tmp_path, monkeypatch):
    unbroken = Toy()
    history = train("toy", unbroken, 6)
    after_epoch = seconds_per_epoch(monkeypatch, 31.0)

    def broken_off(epoch):
        if epoch == 4:
            raise InterruptedError
        return after_epoch(epoch)

    with pytest.raises(InterruptedError):
        train("toy", Toy(), 6, after_epoch=broken_off, checkpoints=Checkpoints(tmp_path, "a", keep_short=False))
    resumed = Toy(seed=5)
    assert train("toy", resumed, 6, checkpoints=Checkpoints(tmp_path, "a", keep_short=False)) == history
    assert resumed.epochs == [4, 5, 6]
    assert state(resumed) == state(unbroken)


def test_short_trainings_are_kept_unless_said_otherwise(tmp_path):
    assert Checkpoints(tmp_path, "a").keep_short
    train("toy", Toy(), 2, checkpoints=Checkpoints(tmp_path, "a"))
    assert [path.name for path in tmp_path.iterdir()] == ["toy.safetensors"]
