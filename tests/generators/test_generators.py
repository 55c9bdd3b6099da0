"""The class level: that each generator learns, what it sees of noise and data, and what repeats bit for bit."""

import copy
import functools
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

import reference
from dgz.errors import DGZError
from dgz.generators import CVAE, WGANGP, CenterMapper, ContrastiveWGANGP, base, wgan
from dgz.nets import MLP
from dgz.progress import Progress
from dgz.training import Checkpoints, random_stream

SMALL = settings(max_examples=25, deadline=None)
KINDS = [WGANGP, CVAE, CenterMapper, ContrastiveWGANGP]  # those of rivals have tests of their own
IN_FEATURE_SPACE = [kind for kind in KINDS if not kind.embeds]


# --- Inputs.
def rows(seed=0, counts=(10, 14, 20, 16), spread=0.2):
    """Rows of four classes, not in order and not equally many, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[2.0, 0, 2, 0, 1], [0, 2, 0, 2, 1], [2, 2, 0, 0, 2], [0, 0, 2, 2, 0]]) + 0.5
    y = torch.repeat_interleave(torch.tensor([0, 2, 3, 5]), torch.tensor(counts))
    y = y[torch.randperm(len(y), generator=rng)]
    place = {0: 0, 2: 1, 3: 2, 5: 3}
    x = centers[[place[c] for c in y.tolist()]] + spread * torch.randn(len(y), 5, generator=rng)
    attributes = 3 * torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.1 * torch.randn(6, 4, generator=rng)
    return SimpleNamespace(x=x, y=y, attributes=attributes, seen=torch.tensor([0, 2, 3, 5]))


def class_means(data):
    return torch.tensor(reference.class_means(data.x.tolist(), data.y.tolist(), data.seen.tolist()))


def tiny(kind, **options):
    """A generator of ``kind`` with narrow layers and one step per epoch, where nothing else is asked for."""
    options = {"n_epochs": 1, "hidden": (16, 8), "learning_rate": 0.01} | options
    if kind is CenterMapper:
        options = {"steps_per_epoch": 1} | options
    if issubclass(kind, WGANGP):
        options = {"critic_hidden": 16, "n_critic": 2, "attribute_noise": 0.08} | options
    if kind is ContrastiveWGANGP:
        options = {"d_projection": 4, "d_comparator": 6, "d_embedding": 5} | options
    return kind(**options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def trainee_of(generator, data, monkeypatch):
    """What ``fit`` would train, before its first step."""
    caught = []
    monkeypatch.setattr(base, "train", lambda stage, trainee, *args, **kwargs: caught.append(trainee) or [])
    fit(generator, data)
    monkeypatch.undo()
    return caught[0]


def watch(net):
    """Everything that goes into ``net`` from now on, call by call, whichever way its gradients are made."""
    calls = []
    net.register_forward_pre_hook(lambda net, inputs: calls.append([values.detach().clone() for values in inputs]))
    if isinstance(net, MLP):
        backpropagate = net.backpropagate
        net.backpropagate = lambda values, *rest: calls.append([values.T.clone()]) or backpropagate(values, *rest)
    return calls


def watch_critic(monkeypatch):
    """The arguments of every step of a critic from now on."""
    calls, critic_slopes = [], wgan.critic_slopes
    monkeypatch.setattr(wgan, "critic_slopes", lambda *args: calls.append(args) or critic_slopes(*args))
    return calls


def bits(generator):
    return {name: values.tolist() for name, values in generator.net_.state_dict().items()}


def untrained(generator, data, seed=0):
    """The network that ``fit`` starts from."""
    return (
        clone(generator).build(data.attributes.shape[1], data.x.shape[1], random_stream(seed, "generator's start")).net_
    )


def how_far(values, known):
    """The distance of each row to the nearest known one: exactly 0 for a copy."""
    return torch.cdist(values, known, compute_mode="donot_use_mm_for_euclid_dist").min(1)


# --- Learning.
def test_a_center_mapper_reaches_the_class_means():
    data = rows()
    mapper = fit(
        tiny(CenterMapper, n_epochs=20, steps_per_epoch=14, hidden=(64,), relu_out=False, attribute_noise=0.0), data
    )
    centers = mapper.centers(data.attributes[data.seen], random_stream(0, "test"))
    np.testing.assert_allclose(centers, class_means(data), atol=0.05)
    assert mapper.history_[-1]["loss"] < 0.001 * mapper.history_[0]["loss"]


def test_a_vae_reaches_the_class_means():
    data = rows()
    vae = fit(tiny(CVAE, n_epochs=200, hidden=(64,)), data)
    centers = vae.centers(data.attributes[data.seen], random_stream(0, "test"))
    np.testing.assert_allclose(centers, class_means(data), atol=0.2)
    assert vae.history_[-1]["loss"] < 0.1 * vae.history_[0]["loss"]


def test_a_gan_finds_every_class():
    data = rows()
    options = {"hidden": (64,), "critic_hidden": 64, "relu_out": False, "n_critic": 5}
    gan = fit(tiny(WGANGP, n_epochs=200, **options), data)
    means, vectors = class_means(data), data.attributes[data.seen]
    centers = gan.centers(vectors, random_stream(0, "test"))
    assert torch.cdist(centers.double(), means.double()).argmin(1).tolist() == [0, 1, 2, 3]
    assert reference.cacd(means.tolist(), centers.tolist()) < 0.35 * means.norm(dim=1).mean()
    rows_of_one = gan.sample(vectors[:1].expand(500, -1), random_stream(0, "test"))
    assert 0.02 < rows_of_one.std(0).mean() < 0.8  # of 0.2: neither a point nor all of space


def test_a_gans_center_is_the_mean_of_its_samples():
    data = rows()
    gan = fit(tiny(WGANGP, n_epochs=5), data)
    vectors = data.attributes[data.seen]
    expected = torch.stack(
        [gan.sample(v.expand(20_000, -1), random_stream(i, "many")).mean(0) for i, v in enumerate(vectors)]
    )
    spread = gan.sample(vectors[:1].expand(2000, -1), random_stream(0, "one")).std(0).max().item()
    centers = gan.centers(vectors, random_stream(0, "test"))
    assert centers.shape == (4, 5)
    np.testing.assert_allclose(centers, expected, atol=5 * spread / 500**0.5)


@pytest.mark.parametrize("kind", KINDS)
def test_losses_are_reported_for_every_epoch(kind):
    generator = fit(tiny(kind, n_epochs=3), rows(), after_epoch=lambda epoch: {"twice": 2 * epoch})
    of_gan = {"critic loss", "generator loss"}
    losses = {CenterMapper: {"loss"}, CVAE: {"loss", "kl loss"}}.get(kind, of_gan)
    assert [row["epoch"] for row in generator.history_] == [1, 2, 3]
    assert [row["twice"] for row in generator.history_] == [2, 4, 6]
    assert all(set(row) == {"epoch", "twice"} | losses for row in generator.history_)


@pytest.mark.parametrize("kind", [WGANGP, CVAE])
@pytest.mark.parametrize(("batch_size", "n_steps"), [(512, 1), (60, 1), (59, 2), (7, 9)])
def test_an_epoch_has_a_step_for_each_batch_of_rows(kind, batch_size, n_steps, monkeypatch):
    trainee = trainee_of(tiny(kind, batch_size=batch_size), rows(), monkeypatch)
    assert trainee.n_steps == n_steps
    for n_batches in (1, 3):
        x, y = trainee.draw(n_batches)
        assert len(x) == len(y) == n_batches * min(batch_size, 60)


@pytest.mark.parametrize("kind", [WGANGP, CVAE])
def test_batches_are_rows_with_their_own_classes(kind, monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(kind, batch_size=20), data, monkeypatch)
    hits = torch.zeros(60)
    for _ in range(20):
        x, y = trainee.draw(3)
        distances, index = how_far(x, data.x)
        assert (distances == 0).all()
        assert torch.equal(y, data.y[index])
        hits += torch.bincount(index, minlength=60)
    assert hits.min() >= 5  # each of 60 rows is expected 20 times
    assert hits.max() <= 40


def test_a_generator_can_be_used_after_each_epoch():
    data, centers = rows(), []

    def after_epoch(epoch):
        centers.append(mapper.centers(data.attributes, random_stream(0, "test")))
        return {}

    mapper = tiny(CenterMapper, n_epochs=3)
    fit(mapper, data, after_epoch=after_epoch)
    assert torch.equal(centers[-1], mapper.centers(data.attributes, random_stream(0, "test")))
    assert not torch.equal(centers[0], centers[-1])


# --- The same bits.
@pytest.mark.parametrize("kind", KINDS)
def test_the_same_seed_gives_the_same_bits(kind):
    data, runs = rows(), []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))  # must not matter
        generator = fit(tiny(kind, n_epochs=4), data, seed=seed)
        runs.append((bits(generator), generator.history_))
    assert runs[0] == runs[1]
    assert runs[0][0] != runs[2][0]
    assert runs[0][1] != runs[2][1]


@pytest.mark.parametrize("kind", KINDS)
def test_training_and_sampling_leave_the_global_random_state_alone(kind):
    data = rows()
    before = torch.get_rng_state()
    fit(tiny(kind), data).centers(data.attributes, random_stream(0, "test"))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("kind", [WGANGP, CVAE])
def test_samples_repeat_with_the_stream(kind):
    data = rows()
    generator = fit(tiny(kind), data)
    first, again, other = (generator.sample(data.attributes, random_stream(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not first.requires_grad


@pytest.mark.parametrize("kind", KINDS)
def test_a_broken_training_goes_on_to_the_same_bits(kind, tmp_path):
    data = rows()
    whole = fit(tiny(kind, n_epochs=5), data)

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(kind, n_epochs=5), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(kind, n_epochs=5), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert bits(resumed) == bits(whole)
    assert resumed.history_ == whole.history_


@pytest.mark.parametrize("kind", KINDS)
def test_fit_leaves_its_data_alone(kind):
    data = rows()
    before = [values.clone() for values in (data.x, data.y, data.attributes)]
    fit(tiny(kind, n_epochs=2, fgm=0.1, l2=0.1), data)
    assert all(torch.equal(a, b) for a, b in zip(before, (data.x, data.y, data.attributes), strict=True))


@pytest.mark.parametrize("kind", KINDS)
def test_a_generator_trains_with_every_precision(kind):
    data = rows()
    found = {
        precision: fit(tiny(kind, n_epochs=3), data, precision=precision) for precision in ("float32", "tf32", "bf16")
    }
    assert bits(found["tf32"]) == bits(found["float32"])  # which is for GPUs
    assert bits(found["bf16"]) != bits(found["float32"])
    centers = [one.centers(data.attributes, random_stream(0, "test")) for one in found.values()]
    assert all(values.dtype == torch.float32 for values in centers)
    torch.testing.assert_close(centers[2], centers[0], rtol=0.05, atol=0.05)


# --- What a CenterMapper sees of the data.
def test_a_center_mapper_sees_class_means_and_counts_alone():
    # Quarters around the same means: the two sets share no row, and their sums are exact.
    data, other = rows(), rows()
    means = torch.tensor([[1.0, 2.0, 3.0, 0.5, 0.25]]) * torch.tensor([[1.0], [2.0], [0.5], [4.0]])
    for one, size in ((data, 0.25), (other, 1.5)):
        for c, mean in zip(one.seen, means, strict=True):
            index = torch.nonzero(one.y == c).squeeze(1)
            signs = torch.ones(len(index), 5)
            signs[::2] = -1  # an even number of rows, half above and half below the mean
            one.x[index] = mean + size * signs
    other.x, other.y = other.x.flip(0), other.y.flip(0)
    assert not torch.isin(data.x[:, 0], other.x[:, 0]).any()
    runs = [fit(tiny(CenterMapper, n_epochs=5, steps_per_epoch=3), one) for one in (data, other)]
    assert bits(runs[0]) == bits(runs[1])
    assert runs[0].history_ == runs[1].history_
    # With other counts, the same means weigh differently.
    keep = torch.ones(len(data.y), dtype=torch.bool)
    keep[torch.nonzero(data.y == 0).squeeze(1)[:4]] = False
    fewer = SimpleNamespace(x=data.x[keep], y=data.y[keep], attributes=data.attributes)
    assert bits(fit(tiny(CenterMapper, n_epochs=5, steps_per_epoch=3), fewer)) != bits(runs[0])


def test_a_center_mappers_loss_is_the_squared_error_of_all_rows_less_a_constant():
    data = rows()
    constants = []
    for seed in range(4):
        mapper = fit(tiny(CenterMapper, attribute_noise=0.0), data, seed=seed)
        outputs = untrained(mapper, data, seed)(data.attributes[data.y])
        constants.append(reference.squared_error(outputs.tolist(), data.x.tolist()) - mapper.history_[0]["loss"])
    # Far from the start, too: the loss of step 200 is that of the net after 199.
    before, after = (fit(tiny(CenterMapper, n_epochs=n, attribute_noise=0.0), data) for n in (199, 200))
    outputs = before.net_(data.attributes[data.y])
    constants.append(reference.squared_error(outputs.tolist(), data.x.tolist()) - after.history_[-1]["loss"])
    # The constant is the spread within classes: the trace of their covariance, over n instead of n − C.
    trace = np.trace(reference.within_class_covariance(data.x.tolist(), data.y.tolist()))
    assert constants == pytest.approx([trace * (60 - 4) / 60] * 5, abs=2e-5)


# --- Steps in closed form, against autograd.
def plain_adam(net, rate):
    return torch.optim.Adam(net.parameters(), lr=rate, betas=(0.5, 0.999))


def descend(optimizer, loss, parameters):
    for values, gradient in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        values.grad = gradient
    optimizer.step()


def assert_close_nets(ours, theirs, **tolerance):
    for (name, a), b in zip(ours.named_parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(a, b.to(a.dtype), **tolerance, msg=lambda text, name=name: f"{name}: {text}")


def double_twin(net):
    """A copy in float64, where no rounding becomes a step: Adam's are as long for small gradients as for large ones."""
    return copy.deepcopy(net).double()


def test_a_gans_steps_are_those_of_autograd(monkeypatch):
    data = rows()
    options = {"n_critic": 3, "batch_size": 20, "attribute_noise": 0.3, "learning_rate": 1e-3, "gp_weight": 5.0}
    trainee = trainee_of(tiny(WGANGP, **options), data, monkeypatch)
    net, critic = double_twin(trainee.networks["generator"]), double_twin(trainee.critic)
    optimizers = plain_adam(net, 1e-3), plain_adam(critic, 1e-3)
    inputs, to_critic = watch(trainee.networks["generator"]), watch_critic(monkeypatch)
    for _ in range(4):
        losses = trainee.step()
        vectors_of_steps = zip(*(values.double().chunk(3) for values in inputs[-2]), strict=True)
        for (_, x, _, a, alpha, _), vectors in zip(to_critic[-3:], vectors_of_steps, strict=True):
            x, a, alpha = x.double(), a.double(), alpha.double()
            fake = net(*vectors).detach()
            between = (alpha * x + (1 - alpha) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between, a).sum(), between, create_graph=True)
            loss = critic(fake, a).mean() - critic(x, a).mean() + 5.0 * (slope.norm(dim=1) - 1).square().mean()
            descend(optimizers[1], loss, list(critic.parameters()))
        generator_loss = -critic(net(*vectors), a).mean()
        descend(optimizers[0], generator_loss, list(net.parameters()))
        assert losses["critic loss"].item() == pytest.approx(loss.item(), abs=1e-4)
        assert losses["generator loss"].item() == pytest.approx(generator_loss.item(), abs=1e-4)
    assert_close_nets(trainee.critic, critic, rtol=1e-3, atol=1e-5)
    assert_close_nets(trainee.networks["generator"], net, rtol=1e-3, atol=1e-5)
    assert (trainee.critic.last.bias == 0).all()  # which cancels out


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("relu_out", [False, True])
@pytest.mark.parametrize("hidden", [(16,), (16, 8), (9, 8, 7)])
def test_a_center_mapper_trains_as_by_autograd(hidden, relu_out, noise):
    data = rows()
    options = {"n_epochs": 5, "steps_per_epoch": 4, "hidden": hidden, "relu_out": relu_out, "attribute_noise": noise}
    in_closed_form = fit(tiny(CenterMapper, **options), data)
    by_autograd = fit(tiny(CenterMapper, l2=1e-30, **options), data)  # too small a term to change anything
    assert_close_nets(in_closed_form.net_, by_autograd.net_, rtol=1e-3, atol=1e-5)
    for one, other in zip(in_closed_form.history_, by_autograd.history_, strict=True):
        assert one["loss"] == pytest.approx(other["loss"], rel=1e-5)


def test_a_center_mappers_closed_form_is_taken_where_nothing_is_added_to_the_loss(monkeypatch):
    for options, taken in (({}, True), ({"l2": 1e-30}, False), ({"fgm": 0.01}, False)):
        trainee = trainee_of(tiny(CenterMapper, **options), rows(), monkeypatch)
        calls = []
        monkeypatch.setattr(trainee, "_step_in_closed_form", lambda calls=calls: calls.append(1) or torch.zeros(()))
        trainee.step()
        assert bool(calls) == taken


def test_a_center_mappers_steps_are_those_of_autograd_on_all_rows(monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(CenterMapper, attribute_noise=0.0), data, monkeypatch)
    net = double_twin(trainee.networks["generator"])
    optimizer = plain_adam(net, 0.01)
    for _ in range(10):
        trainee.step()
        loss = (net(data.attributes[data.y].double()) - data.x.double()).square().sum(1).mean()
        descend(optimizer, loss, list(net.parameters()))
    assert_close_nets(trainee.networks["generator"], net, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("n_classes", [1, 7, 8, 9])
def test_classes_that_are_added_to_fill_up_change_nothing(n_classes, monkeypatch):
    rng = torch.Generator().manual_seed(0)
    y = torch.arange(n_classes).repeat(3)
    data = SimpleNamespace(
        x=torch.rand(len(y), 5, generator=rng), y=y, attributes=torch.rand(n_classes, 4, generator=rng)
    )
    trainee = trainee_of(tiny(CenterMapper, attribute_noise=0.0), data, monkeypatch)
    assert len(trainee.share) == len(trainee.means) == len(trainee.attributes)
    assert len(trainee.share) in (8, 16)
    assert (trainee.share[n_classes:] == 0).all()
    outputs = untrained(trainee.generator, data)(data.attributes).detach()
    means = torch.tensor(reference.class_means(data.x.tolist(), y.tolist(), range(n_classes)))
    assert trainee.step()["loss"].item() == pytest.approx((outputs - means).square().sum(1).mean().item(), rel=1e-4)


# --- Noise on class vectors.
@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_absolute_or_relative_to_the_seen_class_vectors(kind):
    data = rows()
    data.attributes[[1, 4]] = 1e3  # unseen classes do not count
    assert fit(tiny(kind, attribute_noise=0.3), data).noise_ == 0.3
    relative = fit(tiny(kind, attribute_noise=0.3, noise_unit="relative"), data)
    assert relative.noise_ == pytest.approx(0.3 * np.std(data.attributes[data.seen].numpy()), rel=1e-5)
    assert fit(tiny(kind, attribute_noise=0.0, noise_unit="relative"), data).noise_ == 0.0


def test_the_unit_of_noise_alone_does_not_matter():
    data = rows()
    relative = fit(tiny(CenterMapper, n_epochs=3, attribute_noise=0.3, noise_unit="relative"), data)
    absolute = fit(tiny(CenterMapper, n_epochs=3, attribute_noise=relative.noise_), data)
    assert bits(relative) == bits(absolute)


@pytest.mark.parametrize("kind", KINDS)
def test_training_noise_has_the_promised_deviation_and_no_mean(kind, monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(kind, attribute_noise=0.5, learning_rate=1e-6), data, monkeypatch)
    inputs, drawn = watch(trainee.networks["generator"]), []
    if kind is not CenterMapper:
        draw = trainee.draw
        monkeypatch.setattr(trainee, "draw", lambda *n_batches: drawn.append(draw(*n_batches)) or drawn[-1])
    for _ in range(50):
        trainee.step()
    if issubclass(kind, WGANGP):  # all critic steps at once, then the generator's, which reuses the last one's batch
        inputs = inputs[::2]
    assert len(inputs) == 50
    noise = []
    for i, call in enumerate(inputs):
        clean = data.attributes[drawn[i][1] if drawn else data.seen]
        noise.append((call[-1][: len(clean)] - clean).flatten())
    noise = torch.cat(noise)
    n = {CenterMapper: 50 * 4 * 4, CVAE: 50 * 60 * 4}.get(kind, 50 * 2 * 60 * 4)  # independent numbers
    assert len(noise) == n
    assert noise.mean().abs() < 4 * 0.5 / n**0.5
    assert noise.std().item() == pytest.approx(0.5, abs=4 * 0.5 / (2 * n) ** 0.5)


def test_the_generators_step_reuses_the_last_critic_steps_noise(monkeypatch):
    trainee = trainee_of(tiny(WGANGP, n_critic=3), rows(), monkeypatch)
    inputs = watch(trainee.networks["generator"])
    trainee.step()
    for_critic, for_generator = inputs
    _, before, last = zip(*(values.chunk(3) for values in for_critic), strict=True)
    assert all(torch.equal(a, b) for a, b in zip(for_generator, last, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(for_generator, before, strict=True))


def test_the_generators_step_reuses_the_last_critic_steps_classes(monkeypatch):
    trainee = trainee_of(tiny(WGANGP, n_critic=3), rows(), monkeypatch)
    to_first_layer, to_critic = watch(trainee.critic.first), watch_critic(monkeypatch)
    trainee.step()
    ((_, a),) = to_first_layer
    assert torch.equal(a, to_critic[-1][3])
    assert not torch.equal(a, to_critic[-2][3])


def test_the_critic_sees_clean_vectors_and_the_generator_noisy_ones(monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(WGANGP, attribute_noise=0.5), data, monkeypatch)
    to_generator, to_first_layer = watch(trainee.networks["generator"]), watch(trainee.critic.first)
    to_critic = watch_critic(monkeypatch)
    for _ in range(3):
        trainee.step()
    assert len(to_critic) == 3 * 2
    assert len(to_first_layer) == 3  # in the generator's steps
    for a in (*(args[3] for args in to_critic), *(a for _, a in to_first_layer)):
        assert (how_far(a, data.attributes).values == 0).all()
    assert all((how_far(a, data.attributes).values > 0).all() for _, a in to_generator)


def test_the_critic_steps_on_real_rows_and_on_generated_ones_of_their_classes(monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(WGANGP, gp_weight=3.0, attribute_noise=0.0), data, monkeypatch)
    start = untrained(trainee.generator, data)
    to_generator, to_critic = watch(trainee.networks["generator"]), watch_critic(monkeypatch)
    losses = trainee.step()
    assert len(to_critic) == 2
    noise = to_generator[0][0].chunk(2)
    for (critic, x, fake, a, alpha, gp_weight), z in zip(to_critic, noise, strict=True):
        assert critic is trainee.critic
        distances, index = how_far(x, data.x)
        assert (distances == 0).all()
        assert torch.equal(a, data.attributes[data.y[index]])
        torch.testing.assert_close(fake, start(z, a).detach())
        assert not fake.requires_grad
        assert alpha.shape == (60, 1)
        assert 0 <= alpha.min() < 0.2 < 0.8 < alpha.max() < 1
        assert gp_weight == 3.0
    for first, second in zip(to_critic[0][1:5], to_critic[1][1:5], strict=True):
        assert not torch.equal(first, second)
    assert set(losses) == {"critic loss", "generator loss"}


def test_the_encoder_sees_clean_vectors_and_the_decoder_noisy_ones(monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(CVAE, attribute_noise=0.5), data, monkeypatch)
    to_encoder, to_decoder = watch(trainee.networks["encoder"]), watch(trainee.networks["generator"])
    trainee.step()
    distances, index = how_far(to_encoder[0][0], data.x)
    assert (distances == 0).all()
    assert torch.equal(to_encoder[0][1], data.attributes[data.y[index]])
    assert (how_far(to_decoder[0][1], data.attributes).values > 0).all()


@pytest.mark.parametrize("kind", [WGANGP, CVAE])
@pytest.mark.parametrize("d_prior", [None, 2, 7])
def test_samples_come_from_a_prior_and_the_clean_vector(kind, d_prior):
    data = rows()
    generator = fit(tiny(kind, attribute_noise=100.0, d_prior=d_prior), data)
    vectors = data.attributes[[0, 1, 4, 4, 5]]
    inputs = watch(generator.net_)
    sampled = generator.sample(vectors, random_stream(0, "test"))
    z, a = inputs[0]
    assert torch.equal(a, vectors)
    assert z.shape == (5, d_prior or 4)
    assert torch.equal(sampled, generator.net_(z, a))
    assert not torch.equal(z[2], z[3])
    many = watch(generator.net_)
    generator.sample(vectors[:1].expand(5000, -1), random_stream(0, "test"))
    assert many[0][0].mean().abs() < 0.05
    assert many[0][0].std().item() == pytest.approx(1.0, abs=0.05)


def test_without_prior_noise_is_what_tells_samples_apart():
    data = rows()
    vectors = data.attributes[[0, 0, 0, 2]]
    still = fit(tiny(WGANGP, prior=False, attribute_noise=0.0, n_epochs=3), data)
    sampled = still.sample(vectors, random_stream(0, "test"))
    assert torch.equal(sampled[0], sampled[1])
    assert torch.equal(sampled[0], sampled[2])
    assert torch.equal(sampled, still.net_(vectors))
    np.testing.assert_allclose(still.centers(vectors, random_stream(0, "test")), sampled, rtol=1e-5, atol=1e-6)
    noisy = fit(tiny(WGANGP, prior=False, attribute_noise=0.3, n_epochs=3, relu_out=False), data)
    inputs = watch(noisy.net_)
    sampled = noisy.sample(vectors, random_stream(0, "test"))
    assert len(sampled.unique(dim=0)) == 4
    assert len(inputs[0]) == 1
    noisy.sample(vectors[:1].expand(4000, -1), random_stream(0, "test"))
    assert (inputs[1][0] - vectors[0]).std().item() == pytest.approx(0.3, rel=0.05)


# --- Overfitting suppressed otherwise.
def loss_of(generator):
    return generator.history_[0]["generator loss" if isinstance(generator, WGANGP) else "loss"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_l2_term_is_the_sum_of_the_weight_matrices_norms(kind, monkeypatch):
    data, first_losses = rows(), []
    for l2 in (0.0, 0.5):
        trainee = trainee_of(tiny(kind, l2=l2), data, monkeypatch)
        parameters = dict(trainee.networks["generator"].named_parameters())
        norms = []
        with torch.no_grad():
            for name, values in parameters.items():
                if name.endswith("bias"):
                    values.fill_(0.5)  # of any size, since they do not count
                else:
                    norms.append(np.linalg.norm(values.numpy()))
        first_losses.append(list(trainee.step().values())[-1 if issubclass(kind, WGANGP) else 0].item())
    assert len(norms) == (3 if kind is CenterMapper else 4)
    assert first_losses[1] - first_losses[0] == pytest.approx(0.5 * sum(norms), rel=1e-4)


@pytest.mark.parametrize("kind", KINDS)
def test_the_l2_term_makes_weights_smaller(kind):
    data = rows()
    plain, heavy = (fit(tiny(kind, l2=l2, n_epochs=60), data) for l2 in (0.0, 5.0))
    norms = [sum(w.norm().item() for w in one.net_.parameters() if w.ndim == 2) for one in (plain, heavy)]
    assert norms[1] < 0.5 * norms[0]


@pytest.mark.parametrize("kind", KINDS)
def test_the_adversarial_step_has_its_length_and_raises_the_loss(kind, monkeypatch):
    data = rows()
    options = {"attribute_noise": 0.1, "relu_out": False, "learning_rate": 1e-3}
    plain, moved = fit(tiny(kind, **options), data), fit(tiny(kind, fgm=0.05, **options), data)
    assert loss_of(moved) > loss_of(plain)
    assert bits(moved) != bits(plain)
    trainee = trainee_of(tiny(kind, fgm=0.05, **options), data, monkeypatch)
    inputs = watch(trainee.networks["generator"])
    trainee.step()
    start, end = inputs[-2][-1], inputs[-1][-1]
    moves = (end - start).norm(dim=1)[: 4 if kind is CenterMapper else 60]  # what is added to fill up has no gradient
    np.testing.assert_allclose(moves, 0.05, rtol=1e-4)
    assert all(torch.equal(a, b) for a, b in zip(inputs[-2][:-1], inputs[-1][:-1], strict=True))  # the prior stays


def test_the_adversarial_step_follows_the_gradient(monkeypatch):
    data = rows()
    mapper = tiny(CenterMapper, fgm=0.05, attribute_noise=0.0, relu_out=False)
    trainee = trainee_of(mapper, data, monkeypatch)
    start = untrained(mapper, data)
    inputs = watch(trainee.networks["generator"])
    trainee.step()
    vectors = data.attributes[data.seen].clone().requires_grad_()
    ((start(vectors) - class_means(data)).square().sum()).backward()
    direction = torch.nn.functional.normalize(vectors.grad, dim=1)
    np.testing.assert_allclose((inputs[1][0] - inputs[0][0])[:4], 0.05 * direction, atol=1e-5)


def test_an_adversarial_step_without_gradient_is_none(monkeypatch):
    # Every output is cut to 0: the loss is flat in the class vectors.
    data = rows()
    trainee = trainee_of(tiny(CenterMapper, fgm=0.05, attribute_noise=0.0), data, monkeypatch)
    net = trainee.networks["generator"]
    with torch.no_grad():
        net.rest[-1].bias.fill_(-100.0)
    inputs = watch(net)
    trainee.step()
    assert torch.equal(inputs[0][0], inputs[1][0])
    assert all(values.isfinite().all() for values in net.parameters())


# --- The variational part.
def test_a_vaes_divergence_is_its_twin(monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(CVAE, kl_weight=0.7, d_prior=3, attribute_noise=0.0), data, monkeypatch)
    with torch.no_grad():
        for values in trainee.encoder.parameters():
            values.mul_(20)
    codes = []
    trainee.encoder.register_forward_hook(lambda net, inputs, output: codes.append(output.detach()))
    drawn, draw = [], trainee.draw
    monkeypatch.setattr(trainee, "draw", lambda: drawn.append(draw()) or drawn[-1])
    outputs = []
    trainee.networks["generator"].register_forward_hook(lambda net, inputs, output: outputs.append(output.detach()))
    losses = trainee.step()
    mean, log_variance = codes[0][:, :3], codes[0][:, 3:]
    assert mean.abs().max() > 0.1
    kl = reference.gaussian_kl(mean.tolist(), log_variance.tolist())
    assert losses["kl loss"].item() == pytest.approx(kl, rel=1e-4)
    ours = torch.distributions.Normal(mean, (log_variance / 2).exp())
    prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
    assert kl == pytest.approx(torch.distributions.kl_divergence(ours, prior).sum(1).mean().item(), rel=1e-4)
    error = reference.squared_error(outputs[0].tolist(), drawn[0][0].tolist())
    assert losses["loss"].item() == pytest.approx(error + 0.7 * kl, rel=1e-4)


def test_a_vaes_code_has_the_encoders_mean_and_deviation(monkeypatch):
    data = rows()
    trainee = trainee_of(tiny(CVAE, learning_rate=1e-9, d_prior=2), data, monkeypatch)
    with torch.no_grad():
        trainee.encoder.rest[-1].bias.copy_(torch.tensor([3.0, -1.0, 0.5, -2.0]))
    inputs = watch(trainee.networks["generator"])
    for _ in range(50):
        trainee.step()
    z = torch.cat([call[0] for call in inputs])
    np.testing.assert_allclose(z.mean(0), [3.0, -1.0], atol=0.1)
    np.testing.assert_allclose(z.std(0), np.exp([0.25, -1.0]), rtol=0.06)


# --- Doors.
def test_a_center_mapper_has_no_samples():
    data = rows()
    mapper = fit(tiny(CenterMapper), data)
    with pytest.raises(DGZError, match="A CenterMapper gives class centres and no samples"):
        mapper.sample(data.attributes, random_stream(0, "test"))


def test_a_center_is_the_net_of_the_clean_vector():
    data = rows()
    mapper = fit(tiny(CenterMapper, attribute_noise=5.0), data)
    centers = mapper.centers(data.attributes, random_stream(0, "test"))
    assert torch.equal(centers, mapper.net_(data.attributes))
    assert not centers.requires_grad


@pytest.mark.parametrize("kind", IN_FEATURE_SPACE)
def test_outputs_below_zero_are_cut_where_asked_for(kind):
    data = rows()
    for relu_out in (True, False):
        generator = fit(tiny(kind, relu_out=relu_out), data)
        with torch.no_grad():
            generator.net_.rest[-1].bias.copy_(torch.tensor([-9.0, 9.0, -9.0, 9.0, -9.0]))
        centers = generator.centers(data.attributes, random_stream(0, "test"))
        assert (centers[:, 1::2] > 0).all()
        assert ((centers[:, ::2] == 0) if relu_out else (centers[:, ::2] < 0)).all()


COMMON = {
    "n_epochs": [0, -1, 1.5, "many", None, float("nan")],
    "attribute_noise": [-0.1, float("nan"), float("inf"), "0.08"],
    "noise_unit": ["percent", None],
    "l2": [-1e-9, None],
    "fgm": [-0.08, float("inf")],
    "learning_rate": [-1e-4, float("nan"), "fast"],
    "hidden": [(), (0,), (16, -8), (4.5,), 0, 3, 16, "16"],
}
OF_KIND = {
    CenterMapper: {"steps_per_epoch": [0, 2.5]},
    WGANGP: {
        "batch_size": [0, 2.5],
        "n_critic": [0, 1.5],
        "critic_hidden": [0, 2.5],
        "gp_weight": [-1.0, float("nan")],
        "d_prior": [-1, 0, 2.5],
        "class_weight": [-1.0, float("nan")],
    },
    CVAE: {"batch_size": [0, 2.5], "kl_weight": [-1.0, float("nan")], "d_prior": [-1, 0, 2.5]},
}
OF_KIND[ContrastiveWGANGP] = OF_KIND[WGANGP] | {
    "d_embedding": [0, 2.5],
    "d_projection": [0, 2.5],
    "d_comparator": [0, 2.5],
    "decay_every": [0, 2.5],
    "instance_weight": [-1.0, float("nan")],
    "comparator_weight": [-1.0, float("inf")],
    "instance_temperature": [0.0, float("nan")],
    "comparator_temperature": [-1.0, float("nan")],
}


@pytest.mark.parametrize(("kind", "option"), [(kind, option) for kind in KINDS for option in COMMON | OF_KIND[kind]])
def test_a_bad_setting_is_refused_in_a_sentence(kind, option):
    data = rows()
    for value in (COMMON | OF_KIND[kind])[option]:
        with pytest.raises(DGZError, match=f"^{option} must be "):
            fit(tiny(kind, **{option: value}), data)


@pytest.mark.parametrize("kind", KINDS)
def test_numbers_may_be_numpys(kind):
    data = rows()
    plain = fit(tiny(kind, n_epochs=2, attribute_noise=0.25, hidden=(16, 8)), data)
    options = {"n_epochs": np.int64(2), "attribute_noise": np.float32(0.25), "hidden": tuple(np.array([16, 8]))}
    assert bits(fit(tiny(kind, **options), data)) == bits(plain)


@pytest.mark.parametrize("kind", KINDS)
def test_scikit_learns_contract(kind):
    changed = {"n_epochs": 2, "attribute_noise": 0.5, "noise_unit": "relative", "l2": 0.1, "fgm": 0.2, "hidden": (7, 3)}
    generator = kind(**changed)
    assert {name: generator.get_params()[name] for name in changed} == changed
    copy = clone(generator)
    assert copy.get_params() == generator.get_params()
    assert copy is not generator
    fit(generator, rows())
    assert generator.get_params() == copy.get_params()  # fitting changes no setting
    assert not hasattr(clone(generator), "net_")
    other = kind().set_params(**generator.get_params())
    assert bits(fit(other, rows())) == bits(generator)
    with pytest.raises(ValueError, match="Invalid parameter 'n_epoch'"):
        kind().set_params(n_epoch=3)


@pytest.mark.parametrize("kind", IN_FEATURE_SPACE)
@SMALL
@given(st.lists(st.integers(1, 9), min_size=1, max_size=3), st.integers(1, 5), st.integers(1, 5), st.integers(1, 4))
def test_any_widths_fit_together(kind, hidden, d_a, d_x, n_classes):
    rng = torch.Generator().manual_seed(0)
    x, attributes = torch.rand(2 * n_classes, d_x, generator=rng), torch.rand(n_classes + 1, d_a, generator=rng)
    generator = tiny(kind, hidden=tuple(hidden)).fit(x, torch.arange(n_classes).repeat(2), attributes)
    assert isinstance(generator.net_, MLP)
    centers = generator.centers(attributes, random_stream(0, "test"))
    assert centers.shape == (n_classes + 1, d_x)
    assert centers.isfinite().all()


@pytest.mark.parametrize("kind", KINDS)
def test_training_shows_progress_when_asked(kind, monkeypatch, capsys):
    monkeypatch.setattr("dgz.training.Progress", functools.partial(Progress, log_every=0.0))
    fit(tiny(kind, n_epochs=2), rows(), verbose=True)
    lines = capsys.readouterr().err.splitlines()
    assert lines[-1].startswith("generator: 2 of 2 epochs ")
    fit(tiny(kind, n_epochs=2), rows())
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    ("d_x", "expected"), [(2048, (4096, 2048)), (1280, (2560, 1280)), (128, (512, 256)), (2, (512, 256))]
)
def test_the_default_widths_are_the_papers_for_its_features_and_in_proportion_for_others(d_x, expected):
    assert tuple(CenterMapper().widths(d_x)) == expected
    gan, data = WGANGP().build(3, d_x, random_stream(0, "x")), (torch.rand(4, d_x), torch.arange(4), torch.eye(4, 3))
    trainee = gan._trainee(*data, seed=0, precision="float32")
    assert trainee.networks["critic"].first.bias.shape == (expected[0],)
    assert [
        len(layer.bias) for layer in (trainee.networks["generator"].first, *trainee.networks["generator"].rest)
    ] == [*expected, d_x]


@pytest.mark.parametrize(("hidden", "expected"), [(1, (512,)), (2, (512, 256)), (None, (512, 256)), ((7,), (7,))])
def test_a_number_of_layers_takes_so_many_of_the_usual_ones(hidden, expected):
    gan = WGANGP(hidden=hidden)
    gan.check()
    trainee = training_of(gan, rows())
    net = trainee.networks["generator"]
    assert [len(layer.bias) for layer in (net.first, *net.rest)] == [*expected, 5]
    assert trainee.critic.first.bias.shape == (expected[0],)


@pytest.mark.parametrize("kind", IN_FEATURE_SPACE)
def test_rows_of_a_plain_generator_are_in_the_space_of_the_features(kind):
    data = rows()
    generator = fit(tiny(kind), data)
    assert not generator.embeds
    assert generator.embed(data.x) is data.x
    assert generator.embedded_width(5) == 5
    assert generator.networks() == {"generator": generator.net_}


# --- Rows that a classifier must recognise.
def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step but after all that it learns beforehand."""
    d_a, d_x = data.attributes.shape[1], data.x.shape[1]
    generator.build(d_a, d_x, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def recognised_badly(judge, x, y, seen):
    """The judge's mean negative log-likelihood, one number at a time."""
    (weights,), biases = judge.net.blocks, judge.net.bias
    places = [seen.index(c) for c in y.tolist()]
    return reference.cross_entropy(reference.linear_logits(x.tolist(), weights.tolist(), biases.tolist()), places)


@pytest.mark.parametrize("class_weight", [0.01, 0.7])
def test_the_generators_loss_has_the_judges_with_its_weight(class_weight):
    data, losses = rows(), []
    for weight in (0.0, class_weight):
        trainee = training_of(tiny(WGANGP, class_weight=weight), data)
        drawn, made, draw = [], [], trainee.draw
        trainee.draw = lambda n_batches, draw=draw, drawn=drawn: drawn.append(draw(n_batches)) or drawn[-1]
        trainee.networks["generator"].register_forward_hook(lambda net, a, out, made=made: made.append(out.detach()))
        losses.append(trainee.step())
    y = drawn[0][1].chunk(2)[-1]  # the last critic step's batch serves the generator's, too
    badly = recognised_badly(trainee.judge, made[-1], y, data.seen.tolist())
    assert badly > 0.1
    plain, judged = losses
    assert judged["generator loss"].item() - plain["generator loss"].item() == pytest.approx(
        class_weight * badly, rel=1e-3
    )
    assert judged["critic loss"].item() == plain["critic loss"].item()  # whose rows are the same


def test_a_judges_weight_moves_the_generator_by_the_gradient_of_its_loss():
    data = rows()
    nets = {}
    for weight in (0.0, 0.7):
        trainee = training_of(tiny(WGANGP, class_weight=weight, n_critic=1, attribute_noise=0.0), data)
        net, critic = double_twin(trainee.networks["generator"]), trainee.critic
        start, inputs, drawn, draw = copy.deepcopy(net), watch(trainee.networks["generator"]), [], trainee.draw
        trainee.draw = lambda n_batches, draw=draw, drawn=drawn: drawn.append(draw(n_batches)) or drawn[-1]
        trainee.step()
        (_, y), (z, a) = drawn[0], (values.double() for values in inputs[-1])
        generated = net(z, a)
        loss = -double_twin(critic)(generated, a).mean()
        if weight:
            places = torch.tensor([data.seen.tolist().index(c) for c in y.tolist()])
            scores = double_twin(trainee.judge.net)(generated)
            loss = loss + weight * torch.nn.functional.cross_entropy(scores, places)
        descend(plain_adam(net, 0.01), loss, list(net.parameters()))
        assert_close_nets(trainee.networks["generator"], net, rtol=1e-3, atol=1e-5)
        nets[weight] = trainee.networks["generator"]
        assert any((a - b).abs().max() > 1e-3 for a, b in zip(net.parameters(), start.parameters(), strict=True))
    pairs = zip(nets[0.0].parameters(), nets[0.7].parameters(), strict=True)
    assert any((a - b).abs().max() > 1e-3 for a, b in pairs)


def test_the_judge_knows_the_seen_classes_alone_and_knows_them_well():
    data = rows(counts=(200, 280, 400, 320))
    trainee = training_of(tiny(WGANGP, class_weight=0.1), data)
    judge = trainee.judge
    assert judge.net.bias.shape == (4,)  # of six classes
    assert [judge.place[c].item() for c in data.seen] == [0, 1, 2, 3]
    with torch.no_grad():
        right = judge.net(data.x).argmax(1) == judge.place[data.y]
    assert right.float().mean() > 0.99
    assert judge.loss(data.x, data.y).item() == pytest.approx(
        recognised_badly(judge, data.x, data.y, data.seen.tolist()), rel=1e-5
    )


@pytest.mark.parametrize(("n", "n_steps", "in_batch"), [(60, 1, 60), (250, 3, 100)])
def test_the_judge_is_trained_as_in_the_released_scripts(n, n_steps, in_batch, monkeypatch):
    data, calls, train = rows(), [], wgan.train
    data.x, data.y = (values.repeat(5, *([1] * (values.ndim - 1)))[:n] for values in (data.x, data.y))
    monkeypatch.setattr(wgan, "train", lambda *args, **kw: calls.append(args) or train(*args, **kw))
    judge = training_of(tiny(WGANGP, class_weight=0.1), data).judge
    assert [(stage, n_epochs) for stage, _, n_epochs in calls] == [("judge", 50)]
    assert judge.n_steps == n_steps
    assert [group["lr"] for group in judge.optimizers["judge"].param_groups] == [1e-3]
    sizes, loss = [], judge.loss
    judge.net.requires_grad_(True)
    judge.loss = lambda x, y: sizes.append((len(x), len(y))) or loss(x, y)
    judge.step()
    assert sizes == [(in_batch, in_batch)]


def test_the_judge_is_left_as_it_is_while_the_gan_trains():
    data = rows()
    trainee = training_of(tiny(WGANGP, class_weight=0.5), data)
    before = {name: values.clone() for name, values in trainee.judge.net.state_dict().items()}
    assert not any(values.requires_grad for values in trainee.judge.net.parameters())
    for _ in range(5):
        trainee.step()
    assert all(torch.equal(values, before[name]) for name, values in trainee.judge.net.state_dict().items())
    assert set(trainee.networks) == set(trainee.optimizers) == {"generator", "critic"}


def test_there_is_no_judge_where_it_has_no_weight(monkeypatch):
    monkeypatch.setattr(wgan, "_Judge", None)  # calling it would break
    assert training_of(tiny(WGANGP, class_weight=0.0), rows()).judge is None


def test_a_judge_makes_rows_easier_to_recognise():
    data, badly = rows(), {}
    vectors, y = data.attributes[data.seen].repeat(50, 1), data.seen.repeat(50)
    judge = training_of(tiny(WGANGP, class_weight=1.0), data).judge
    for weight in (0.0, 20.0):
        gan = fit(tiny(WGANGP, n_epochs=60, class_weight=weight), data)
        badly[weight] = judge.loss(gan.sample(vectors, random_stream(0, "test")), y).item()
    assert badly[20.0] < 0.7 * badly[0.0]


def test_a_broken_training_with_a_judge_goes_on_to_the_same_bits(tmp_path):
    data, options = rows(), {"n_epochs": 4, "class_weight": 0.5}
    whole = fit(tiny(WGANGP, **options), data)

    def stop(epoch):
        if epoch == 3:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(WGANGP, **options), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(WGANGP, **options), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert bits(resumed) == bits(whole)
    assert resumed.history_ == whole.history_
    assert bits(fit(tiny(WGANGP, **options), data, seed=1)) != bits(whole)
    assert [path.name for path in tmp_path.iterdir()] == ["generator.safetensors"]  # of the judge nothing is kept


def test_unseen_classes_do_not_move_a_judged_generator():
    data, other = rows(), rows()
    other.attributes = torch.cat([other.attributes, torch.ones(2, 4)])
    other.attributes[[1, 4]] = 9.0
    one, two = (fit(tiny(WGANGP, n_epochs=2, class_weight=0.5), part) for part in (data, other))
    assert bits(one) == bits(two)
