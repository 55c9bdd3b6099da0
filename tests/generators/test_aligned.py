"""CADA-VAE's generator: its losses and its step against twins, its warm-ups, and that its two spaces become one."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from dgz import DGZ, load_numbers
from dgz.errors import DGZError
from dgz.generators import GENERATORS, AlignedVAEs, aligned, base
from dgz.generators.aligned import wasserstein_distance
from dgz.losses import kl_divergence
from dgz.training import Checkpoints, random_stream

SMALL = settings(max_examples=40, deadline=None)
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(seed=0, spread=0.1):
    """Sixty rows of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[2.0, 0, 2, 0, 1], [0, 2, 0, 2, 1], [2, 2, 0, 0, 2], [0, 0, 2, 2, 0]]) + 0.5
    place = torch.randint(4, (60,), generator=rng)
    x = centers[place] + spread * torch.randn(60, 5, generator=rng)
    attributes = torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.1 * torch.randn(6, 4, generator=rng)
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    options = {
        "n_epochs": 4,
        "d_latent": 3,
        "hidden": (8, 7),
        "hidden_vectors": (6, 9),
        "learning_rate": 0.01,
    } | options
    return AlignedVAEs(**{"batch_size": 20, "n_per_seen": 10} | options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    d_a, d_x = data.attributes.shape[1], data.x.shape[1]
    generator.build(d_a, d_x, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def all_bits(generator):
    return {
        (name, key): values.tolist()
        for name, net in generator.networks().items()
        for key, values in net.state_dict().items()
    }


# --- The formulas.
def gaussians(seed, n=3, d=4):
    rng = torch.Generator().manual_seed(seed)
    return tuple(torch.randn(n, d, generator=rng, dtype=torch.double) for _ in range(2))


@SMALL
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 5))
def test_the_divergence_is_its_twin(seed, n, d):
    mean, log_var = gaussians(seed, n, d)
    for i, found in enumerate(kl_divergence(mean, log_var).tolist()):
        total = 0.0
        for k in range(d):
            mu, var = mean[i, k].item(), math.exp(log_var[i, k].item())
            total += 0.5 * (mu**2 + var - math.log(var) - 1)
        assert found == pytest.approx(total)


@SMALL
@given(st.integers(0, 999), st.integers(1, 4), st.integers(1, 5))
def test_the_distance_is_its_twin(seed, n, d):
    one, other = gaussians(seed, n, d), gaussians(seed + 1000, n, d)
    for i, found in enumerate(wasserstein_distance(one, other).tolist()):
        total = 0.0
        for k in range(d):
            total += (one[0][i, k].item() - other[0][i, k].item()) ** 2
            sigma, sigma_other = math.sqrt(math.exp(one[1][i, k])), math.sqrt(math.exp(other[1][i, k]))
            total += (sigma - sigma_other) ** 2
        assert found == pytest.approx(math.sqrt(total))


def test_equal_gaussians_have_no_distance_and_a_finite_slope():
    mean, log_var = (values.requires_grad_() for values in gaussians(0))
    distance = wasserstein_distance((mean, log_var), (mean.detach(), log_var.detach()))
    assert distance.max() < 1e-5
    slopes = torch.autograd.grad(distance.sum(), (mean, log_var))
    assert all((slope == 0).all() for slope in slopes)
    # Rows and class vectors of nothing but zeros, with biases that start at zero, are such a case.
    x, y, attributes = torch.zeros(6, 5), torch.arange(6) % 2, torch.zeros(2, 4)
    assert np.isfinite(tiny().fit(x, y, attributes).history_[-1]["loss"])


# --- The networks.
def layers(net):
    return [tuple(values.shape) for values in net.parameters() if values.ndim == 2]


def test_the_networks_are_the_published_ones():
    generator = AlignedVAEs()
    generator.build(85, 2048, random_stream(0, "x"))
    x, y, attributes = torch.rand(4, 2048), torch.arange(4), torch.rand(5, 85)
    trainee = generator._trainee(x, y, attributes, 0, "float32")
    assert {name: layers(net) for name, net in trainee.networks.items()} == {
        "embedding": [(1560, 2048), (64, 1560), (64, 1560)],
        "decoder": [(1660, 64), (2048, 1660)],
        "generator": [(1450, 85), (64, 1450), (64, 1450)],
        "vector decoder": [(665, 64), (85, 665)],
    }
    for net in trainee.networks.values():
        for values in net.parameters():
            if values.ndim == 1:
                assert (values == 0).all()
            else:  # Xavier's with a gain of 0.5
                bound = 0.5 * math.sqrt(6 / sum(values.shape))
                assert 0.99 * bound < values.abs().max() <= bound
                assert abs(values.mean()) < 0.05 * bound
    decoder = trainee.networks["decoder"]
    z = torch.randn(3, 64)
    hidden = (z @ decoder.first.blocks[0].T).clamp(min=0)  # plain ReLUs
    torch.testing.assert_close(decoder(z), hidden @ decoder.rest[0].blocks[0].T)
    mean, log_var = generator.embedding_(x)
    hidden = (x @ generator.embedding_.first.blocks[0].T).clamp(min=0)
    torch.testing.assert_close(mean, hidden @ generator.embedding_.mean.blocks[0].T)
    torch.testing.assert_close(log_var, hidden @ generator.embedding_.log_var.blocks[0].T)
    (group,) = trainee.optimizers["all"].param_groups
    assert (group["betas"], group["amsgrad"], group["weight_decay"]) == ((0.9, 0.999), True, 0.0)
    assert group["lr"] == 1.5e-4


@pytest.mark.parametrize(
    ("d_x", "widths", "vector_widths"),
    [(2048, (1560, 1660), (1450, 665)), (1024, (780, 830), (725, 332)), (128, (256, 256), (256, 256))],
)
def test_default_widths_are_in_proportion_to_the_features(d_x, widths, vector_widths):
    generator = AlignedVAEs()
    assert tuple(generator.widths(d_x)) == widths
    assert tuple(generator.vector_widths(d_x)) == vector_widths
    assert generator.embedded_width(d_x) == 64


# --- The weights of the losses.
@pytest.mark.parametrize("n_epochs", [100, 10])
def test_weights_rise_as_in_the_released_code(n_epochs):
    published = {"kl": (0, 93, 0.25), "cross": (21, 75, 2.37), "alignment": (6, 22, 8.13)}
    trainee = training_of(tiny(n_epochs=n_epochs), rows())
    for epoch in range(n_epochs):
        trainee.begin_epoch(epoch + 1)
        for name, (start, end, factor) in published.items():
            expected = min(max((epoch * 100 / n_epochs - start) / (end - start), 0), 1) * factor
            assert trainee.weights[name].item() == pytest.approx(expected, abs=1e-6)
            assert trainee.weights[name].shape == ()


def test_weights_change_in_place():
    trainee = training_of(tiny(), rows())
    places = {name: values.data_ptr() for name, values in trainee.weights.items()}
    for epoch in (1, 2, 3):
        trainee.begin_epoch(epoch)
        assert {name: values.data_ptr() for name, values in trainee.weights.items()} == places


# --- A latent vector.
def test_the_released_code_draws_with_the_variance_and_one_number_for_each_row():
    generator, (mean, log_var) = tiny(), gaussians(0, n=5)
    found = generator._draw((mean, log_var), random_stream(0, "test"))
    noise = torch.randn(5, 1, generator=random_stream(0, "test"))
    for i in range(5):
        for k in range(4):
            expected = mean[i, k] + math.exp(log_var[i, k]) * noise[i, 0]
            assert found[i, k].item() == pytest.approx(expected.item())


def test_the_paper_draws_with_the_deviation_and_a_number_for_each_dimension():
    generator, (mean, log_var) = tiny(sampling="paper"), gaussians(0, n=5)
    found = generator._draw((mean, log_var), random_stream(0, "test"))
    noise = torch.randn(5, 4, generator=random_stream(0, "test"))
    for i in range(5):
        for k in range(4):
            expected = mean[i, k] + math.sqrt(math.exp(log_var[i, k])) * noise[i, k]
            assert found[i, k].item() == pytest.approx(expected.item())


# --- A step.
class Twin:
    """The step once more, in double precision: one number at a time, and PyTorch's own Adam."""

    def __init__(self, trainee, data, rate):
        self.nets = {name: copy.deepcopy(net).double() for name, net in trainee.networks.items()}
        self.data, self.weights = data, {name: value.item() for name, value in trainee.weights.items()}
        self.rng = torch.Generator()
        self.rng.set_state(trainee.rng.get_state())
        parameters = [values for net in self.nets.values() for values in net.parameters()]
        self.optimizer = torch.optim.Adam(parameters, lr=rate, betas=(0.9, 0.999), amsgrad=True)

    def encoder(self, name, values):
        net = self.nets[name]
        hidden = (net.first.blocks[0] @ values + net.first.bias).clamp(min=0)
        return net.mean.blocks[0] @ hidden + net.mean.bias, net.log_var.blocks[0] @ hidden + net.log_var.bias

    def decoder(self, name, z):
        net = self.nets[name]
        hidden = (net.first.blocks[0] @ z + net.first.bias).clamp(min=0)
        return net.rest[0].blocks[0] @ hidden + net.rest[0].bias

    def step(self, n, noise):
        picked = torch.randint(len(self.data.x), (n,), generator=self.rng)
        x, a = self.data.x[picked].double(), self.data.attributes[self.data.y[picked]].double()
        seen_a = a + noise * torch.randn(a.shape, generator=self.rng) if noise else a
        for_x, for_a = (torch.randn(n, 1, generator=self.rng).double() for _ in range(2))
        loss = 0.0
        for i in range(n):
            of_x, of_a = self.encoder("embedding", x[i]), self.encoder("generator", seen_a[i])
            z_x, z_a = of_x[0] + of_x[1].exp() * for_x[i], of_a[0] + of_a[1].exp() * for_a[i]
            own = (self.decoder("decoder", z_x) - x[i]).abs().sum() + (
                self.decoder("vector decoder", z_a) - a[i]
            ).abs().sum()
            cross = (self.decoder("decoder", z_a) - x[i]).abs().sum() + (
                self.decoder("vector decoder", z_x) - a[i]
            ).abs().sum()
            kl = sum(-0.5 * (1 + log_var - mean**2 - log_var.exp()).sum() for mean, log_var in (of_x, of_a))
            gap = ((of_x[0] - of_a[0]) ** 2).sum() + ((of_x[1].exp().sqrt() - of_a[1].exp().sqrt()) ** 2).sum()
            weights = self.weights
            loss = loss + own + weights["kl"] * kl + weights["cross"] * cross + weights["alignment"] * gap.sqrt()
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        return loss.item() / n


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_a_step_is_its_twin(noise):
    data = rows()
    trainee = training_of(tiny(n_epochs=100, learning_rate=1e-3, attribute_noise=noise, batch_size=7), data)
    trainee.begin_epoch(41)  # in which every loss has some weight
    assert all(weight > 0.1 for weight in trainee.weights.values())
    twin = Twin(trainee, data, rate=1e-3)
    for _ in range(3):
        assert trainee.step()["loss"].item() == pytest.approx(twin.step(7, noise), rel=1e-5)
    for name, net in trainee.networks.items():
        for ours, theirs in zip(net.parameters(), twin.nets[name].parameters(), strict=True):
            torch.testing.assert_close(ours, theirs.float(), rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize("weight", ["kl_weight", "cross_weight", "alignment_weight"])
def test_every_loss_has_a_share(weight):
    data = rows()
    on, off = (fit(tiny(**options), data) for options in ({}, {weight: 0.0}))
    assert on.history_[0] == off.history_[0]  # all weights start at zero
    assert all_bits(on) != all_bits(off)


def test_an_epoch_has_a_step_for_each_batch_of_rows():
    assert [training_of(tiny(batch_size=size), rows()).n_steps for size in (7, 20, 50, 60, 100)] == [9, 3, 2, 1, 1]


# --- What it is for.
def told_by_vectors(generator, data):
    """The share of rows whose own class vector's centre is the nearest of the seen classes'."""
    centers = generator.centers(data.attributes[SEEN], random_stream(0, "test"))
    nearest = torch.cdist(generator.embed(data.x), centers).argmin(1)
    return (torch.tensor(SEEN)[nearest] == data.y).float().mean().item()


def test_rows_and_class_vectors_meet_in_the_latent_space():
    data = rows()
    options = {"n_epochs": 60, "hidden": (32, 32), "hidden_vectors": (32, 32), "d_latent": 4}
    whole = fit(tiny(**options), data)
    assert told_by_vectors(whole, data) == 1.0
    assert whole.history_[-1]["alignment loss"] < 0.3 * whole.history_[0]["alignment loss"]
    assert whole.history_[-1]["cross loss"] < 0.3 * whole.history_[0]["cross loss"]
    drawn = whole.sample(data.attributes[SEEN].repeat_interleave(50, dim=0), random_stream(0, "test"))
    centers = torch.stack([whole.embed(data.x[data.y == label]).mean(0) for label in SEEN])
    assert (torch.cdist(drawn, centers).argmin(1) == torch.arange(4).repeat_interleave(50)).float().mean() > 0.9
    # Either of the two losses that give the method its name brings them together; without both, chance does.
    for weight in ("cross_weight", "alignment_weight"):
        assert told_by_vectors(fit(tiny(**options, **{weight: 0.0}), data), data) > 0.9
    apart = [fit(tiny(**options, cross_weight=0.0, alignment_weight=0.0), data, seed=seed) for seed in range(2)]
    assert np.mean([told_by_vectors(one, data) for one in apart]) < 0.6


# --- The space of its rows.
def test_rows_go_to_their_latent_means_and_classes_to_theirs():
    data = rows()
    generator = fit(tiny(), data)
    assert generator.embeds
    assert generator.networks() == {"generator": generator.net_, "embedding": generator.embedding_}
    assert GENERATORS["AlignedVAEs"] is AlignedVAEs
    assert torch.equal(generator.embed(data.x), generator.embedding_(data.x)[0])
    assert generator.embed(data.x).shape == (60, generator.embedded_width(5)) == (60, 3)
    centers = generator.centers(data.attributes, random_stream(0, "test"))
    assert torch.equal(centers, generator.net_(data.attributes)[0])
    many = generator.sample(data.attributes[:1].expand(20_000, -1), random_stream(0, "test"))
    np.testing.assert_allclose(many.mean(0), centers[0], atol=5 * many.std(0).max().item() / 20_000**0.5)
    first, again, other = (generator.sample(data.attributes, random_stream(seed, "test")) for seed in (0, 0, 1))
    assert torch.equal(first, again)
    assert not torch.equal(first, other)
    assert not any(values.requires_grad for values in (first, centers, generator.embed(data.x)))


@pytest.mark.parametrize("block", [1, 7, 65536])
def test_rows_are_embedded_a_block_at_a_time(block, monkeypatch):
    data = rows()
    generator = fit(tiny(n_per_seen=20), data)
    expected = generator.embed(data.x), *generator.training_rows(data.x, data.y, random_stream(0, "test"))
    for module in (base, aligned):
        monkeypatch.setattr(module, "BLOCK", block)
    sizes = []
    generator.embedding_.register_forward_pre_hook(lambda net, inputs: sizes.append(len(inputs[0])))
    found = generator.embed(data.x), *generator.training_rows(data.x, data.y, random_stream(0, "test"))
    torch.testing.assert_close(found[0], expected[0])
    torch.testing.assert_close(found[1].mean(), expected[1].mean(), atol=0.1, rtol=0)
    assert torch.equal(found[2], expected[2])
    assert max(sizes) <= block
    assert sum(sizes) == 60 + 80


@pytest.mark.parametrize("n_per_seen", [1, 5, 40])
def test_a_classifier_learns_from_so_many_latent_vectors_of_each_seen_class(n_per_seen):
    data = rows()
    generator = fit(tiny(n_per_seen=n_per_seen), data)
    seen_by = []
    generator.embedding_.register_forward_pre_hook(lambda net, inputs: seen_by.append(inputs[0].clone()))
    latent, y = generator.training_rows(data.x, data.y, random_stream(0, "test"))
    assert latent.shape == (4 * n_per_seen, 3)
    assert torch.bincount(y).tolist() == [n_per_seen, 0, n_per_seen, n_per_seen, 0, n_per_seen]
    assert len(latent) == generator.n_training_rows(len(data.x), len(SEEN))
    assert not latent.requires_grad
    (picked,) = seen_by
    for label in SEEN:
        own = data.x[data.y == label]
        served = [(own == row).all(1).nonzero().item() for row in picked[y == label]]
        counts = np.bincount(served, minlength=len(own))
        assert counts.max() - counts.min() <= 1  # every row before any serves twice
    # Drawn round the means of those rows, in the ratio of the variances.
    mean, log_var = generator.embedding_(picked)
    steps = ((latent - mean) / log_var.exp()).detach()
    np.testing.assert_allclose(steps, steps[:, :1].expand(-1, 3), atol=1e-3)
    assert steps.abs().max() > 0.1
    assert not torch.equal(latent, generator.training_rows(data.x, data.y, random_stream(1, "test"))[0])


# --- The same bits.
def test_the_same_seed_gives_the_same_encoders():
    data = rows()
    before = torch.get_rng_state()
    first, again, other = (fit(tiny(), data, seed=seed) for seed in (0, 0, 1))
    assert all_bits(first) == all_bits(again)
    assert first.history_ == again.history_
    assert all_bits(first) != all_bits(other)
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_training_goes_on_to_the_same_encoders(tmp_path):
    data = rows()
    whole = fit(tiny(n_epochs=6, attribute_noise=0.1), data)

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(
            tiny(n_epochs=6, attribute_noise=0.1),
            data,
            after_epoch=stop,
            checkpoints=Checkpoints(tmp_path, "a", every=0),
        )
    resumed = fit(tiny(n_epochs=6, attribute_noise=0.1), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert all_bits(resumed) == all_bits(whole)
    assert resumed.history_ == whole.history_


def test_unseen_classes_have_no_part_in_training():
    data, other = rows(), rows()
    other.attributes[[1, 4]] = 9.0
    assert all_bits(fit(tiny(), data)) == all_bits(fit(tiny(), other))


def test_it_trains_with_every_precision():
    data = rows()
    plain, rounded, coarse = (fit(tiny(), data, precision=precision) for precision in ("float32", "tf32", "bf16"))
    assert all_bits(plain) == all_bits(rounded) != all_bits(coarse)
    torch.testing.assert_close(plain.embed(data.x), coarse.embed(data.x), rtol=0.1, atol=0.1)


# --- Settings.
BAD = {
    "n_epochs": [0, 2.5],
    "attribute_noise": [-0.1, float("nan")],
    "noise_unit": ["percent"],
    "learning_rate": [-1e-4, "fast"],
    "d_latent": [0, 2.5],
    "hidden": [(), (8,), (8, 0), (8, 4.5), (8, 8, 8), 2, "88"],
    "hidden_vectors": [(8,), (8, 0), 2],
    "kl_weight": [-1.0, float("inf")],
    "cross_weight": [-1.0, None],
    "alignment_weight": [-1.0, float("nan")],
    "sampling": ["both", None],
    "n_per_seen": [0, 2.5],
    "batch_size": [0, 2.5],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_setting_is_refused_in_a_sentence(option):
    for value in BAD[option]:
        with pytest.raises(DGZError, match=rf"^{option} must be .*\.$"):
            fit(tiny(**{option: value}), rows())


def test_scikit_learns_contract():
    generator = tiny(sampling="paper", attribute_noise=0.5)
    assert clone(generator).get_params() == generator.get_params()
    assert set(BAD) == set(AlignedVAEs().get_params())


# --- Any generator goes with any classifier and any distribution.
def test_it_goes_with_dgzs_classifier_and_gaussian_rows():
    data = load_numbers(0, n_train=8, n_test=3)
    widths = {"d_latent": 16, "hidden": (64, 64), "hidden_vectors": (64, 64), "batch_size": 32}
    generator = tiny(n_epochs=25, learning_rate=3e-3, n_per_seen=8, **widths)
    small = {"n_per_class": 10, "d_hidden": 32, "n_epochs": 10, "learning_rate": 5e-3, "batch_size": 80}
    scaling = {"feature_scaling": "minmax", "device": "cpu"}
    model = DGZ(generator=generator, distribution="statistical", **small, **scaling)
    model.fit(data.x_train, data.y_train, data.attributes)
    assert model.embed(data.x_test_seen).shape == (240, 16)
    assert (model.predict(data.x_test_seen) == data.y_test_seen).mean() > 0.2  # of 100 classes
    assert (model.predict(data.x_test_unseen, classes=data.unseen) == data.y_test_unseen).mean() > 0.2  # of 20


def test_noise_on_class_vectors_changes_what_is_learned():
    data = rows()
    plain, noisy, again = (fit(tiny(attribute_noise=noise), data) for noise in (0.0, 0.5, 0.5))
    assert all_bits(plain) != all_bits(noisy)
    assert all_bits(noisy) == all_bits(again)
    relative = fit(tiny(attribute_noise=0.5, noise_unit="relative"), data)
    assert relative.noise_ == pytest.approx(0.5 * np.std(data.attributes[SEEN].numpy()), rel=1e-5)
    # Synthesis is from clean ones.
    centers = noisy.centers(data.attributes, random_stream(0, "test"))
    assert torch.equal(centers, noisy.net_(data.attributes)[0])
