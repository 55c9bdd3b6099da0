"""SDGZSL's generator: its networks and its step against twins, the turns of its parts, and what its embedding keeps."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from torch import nn

from dgz import DGZ, load_numbers
from dgz.errors import DGZError
from dgz.generators import GENERATORS, DisentanglingVAE, disentangled
from dgz.generators.disentangled import BatchNormalisation, relation_loss
from dgz.training import Checkpoints, random_stream

SMALL = settings(max_examples=40, deadline=None)
SEEN = [0, 2, 3, 5]
NO_DROPOUT = {"encoder_dropout": 0.0, "decoder_dropout": 0.0, "autoencoder_dropout": 0.0}


# --- Inputs.
def rows(seed=0, spread=0.2):
    """Sixty rows of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[2.0, 0, 2, 0, 1], [0, 2, 0, 2, 1], [2, 2, 0, 0, 2], [0, 0, 2, 2, 0]]) + 0.5
    place = torch.randint(4, (60,), generator=rng)
    x = centers[place] + spread * torch.randn(60, 5, generator=rng)
    attributes = torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.1 * torch.randn(6, 4, generator=rng)
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    widths = {"d_prior": 3, "d_code": 6, "d_hidden": 8, "d_semantic": 4, "d_rest": 3}
    return DisentanglingVAE(**{"n_epochs": 3, "learning_rate": 0.01, "batch_size": 10, **widths, **options})


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    d_a, d_x = data.attributes.shape[1], data.x.shape[1]
    generator.build(d_a, d_x, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def bits(net):
    return {name: values.tolist() for name, values in net.state_dict().items()}


def all_bits(generator):
    return {name: bits(net) for name, net in generator.networks().items()}


# --- The relation loss.
@SMALL
@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), st.integers(0, 99))
def test_the_relation_loss_is_over_the_classes_in_the_batch(classes, seed):
    """Its twin is the released code's: a column for each different class of the batch, and a plain mean."""
    y = torch.tensor(classes)
    of_class = torch.rand(len(y), 7, generator=torch.Generator().manual_seed(seed), dtype=torch.double)
    different = sorted(set(classes))
    total = 0.0
    for i, label in enumerate(classes):
        for c in different:
            total += (of_class[i, c].item() - (1.0 if c == label else 0.0)) ** 2
    expected = total / (len(classes) * len(different))
    for columns in (y, torch.arange(7), torch.tensor([*range(6), *classes])):
        assert relation_loss(of_class[:, columns], y, columns).item() == pytest.approx(expected)


def test_relations_are_the_networks_of_all_pairs():
    data = rows()
    trainee = training_of(tiny(), data)
    with torch.no_grad():
        for values in trainee.relation.parameters():
            values.mul_(3)
    s = torch.randn(5, 4)
    found = trainee._relations(s, data.attributes)
    first, last = trainee.relation.first, trainee.relation.rest[0]
    weight = torch.cat(list(first.blocks), dim=1)
    for i in range(5):
        for j in range(6):
            hidden = (weight @ torch.cat([s[i], data.attributes[j]]) + first.bias).clamp(min=0)  # a plain ReLU
            expected = torch.sigmoid(last.blocks[0] @ hidden + last.bias)
            assert found[i, j].item() == pytest.approx(expected.item(), abs=1e-5)
    assert found.std() > 0.01


# --- Batch normalisation.
def test_batch_normalisation_is_pytorchs():
    ours, theirs = BatchNormalisation(4), nn.BatchNorm1d(4, 0.8)
    with torch.no_grad():
        for values, others in zip(ours.parameters(), theirs.parameters(), strict=True):
            others.copy_(values.copy_(torch.rand(4)))
    for seed in range(3):
        batch = 2 + 3 * torch.randn(6, 4, generator=torch.Generator().manual_seed(seed))
        torch.testing.assert_close(ours(batch, training=True), theirs.train()(batch))
    torch.testing.assert_close(ours.mean, theirs.running_mean)
    torch.testing.assert_close(ours.var, theirs.running_var)
    before = bits(ours)
    torch.testing.assert_close(ours(batch, training=False), theirs.eval()(batch))
    assert bits(ours) == before
    # What is in use does not depend on the other rows, nor on PyTorch's own switch.
    torch.testing.assert_close(ours.train()(batch[:1], training=False), ours.eval()(batch, training=False)[:1])


def test_one_row_is_normalised_by_the_running_statistics():
    layer = BatchNormalisation(4)
    row = torch.randn(1, 4)
    assert torch.equal(layer(row, training=True), layer(row, training=False))
    data = rows()
    one = SimpleNamespace(x=data.x[:1], y=data.y[:1], attributes=data.attributes)
    assert np.isfinite(fit(tiny(batch_size=1), data).history_[-1]["loss"])
    assert np.isfinite(fit(tiny(), one).history_[-1]["loss"])


# --- The networks.
def layers(net):
    return [tuple(values.shape) for values in net.parameters() if values.ndim == 2]


def test_the_networks_are_the_published_ones():
    generator = DisentanglingVAE()
    generator.build(85, 2048, random_stream(0, "x"))
    trainee = generator._trainee(torch.rand(4, 2048), torch.arange(4), torch.rand(5, 85), 0, "float32")
    assert {name: layers(net) for name, net in trainee.networks.items()} == {
        "generator": [(2048, 20), (2048, 85), (2048, 2048), (2048, 2048), (2048, 2048)],
        "embedding": [(1024, 2048)],
        "encoder": [(2048, 2048), (2048, 85), (2048, 2048), (128, 2048), (20, 128), (20, 128)],
        "rest": [(1024, 2048)],
        "autoencoder": [(2048, 1024), (2048, 1024), (2048, 2048)],
        "relation": [(2048, 1024), (2048, 85), (1, 2048)],
        "discriminator": [(2, 1024), (2, 1024)],
    }
    # As PyTorch starts its layers: uniform in ± 1 / √d_in, d_in of the whole input.
    for net, d_in in ((trainee.encoder.first, 2048 + 85), (trainee.networks["generator"].last, 2048)):
        for values in net.parameters():
            assert 0.98 * d_in**-0.5 < values.abs().max() <= d_in**-0.5
    assert all(len(optimizer.param_groups) == 1 for optimizer in trainee.optimizers.values())
    for optimizer in trainee.optimizers.values():
        (group,) = optimizer.param_groups
        assert (group["betas"], group["weight_decay"], group["lr"]) == ((0.9, 0.999), 1e-6, 1e-4)
        assert not group["amsgrad"]
    moved = [values for one in trainee.optimizers.values() for group in one.param_groups for values in group["params"]]
    assert len(moved) == len({id(values) for values in moved})
    assert len(moved) == sum(len(list(net.parameters())) for net in trainee.networks.values())


@pytest.mark.parametrize(
    ("d_x", "d_hidden", "d_semantic"), [(2048, 2048, 1024), (1280, 1280, 1024), (512, 512, 512), (128, 256, 128)]
)
def test_default_widths_are_in_proportion_to_the_features(d_x, d_hidden, d_semantic):
    generator = DisentanglingVAE()
    assert (generator.hidden_width(d_x), generator.embedded_width(d_x)) == (d_hidden, d_semantic)
    generator.build(3, d_x, random_stream(0, "x"))
    trainee = generator._trainee(torch.rand(4, d_x), torch.arange(4), torch.rand(4, 3), 0, "float32")
    assert layers(trainee.rest) == layers(trainee.networks["embedding"]) == [(d_semantic, d_x)]


def linear_of(layer):
    weight = torch.cat(list(layer.blocks), dim=1)
    twin = nn.Linear(weight.shape[1], len(weight))
    twin.load_state_dict({"weight": weight.detach(), "bias": layer.bias.detach()})
    return twin.double()


def norm_of(layer):
    twin = nn.BatchNorm1d(len(layer.weight), 0.8)
    state = {"weight": layer.weight, "bias": layer.bias, "running_mean": layer.mean, "running_var": layer.var}
    twin.load_state_dict({**state, "num_batches_tracked": torch.tensor(0)})
    return twin.double()


class Twin(nn.Module):
    """Everything once more in double precision, of PyTorch's own layers, as the recipe lists them."""

    def __init__(self, trainee, data):
        super().__init__()
        nets, leaky = trainee.networks, nn.LeakyReLU(0.2)
        encoder, decoder, auto = nets["encoder"], nets["generator"], nets["autoencoder"]
        self.encode = nn.Sequential(
            linear_of(encoder.first), leaky, linear_of(encoder.second), leaky, linear_of(encoder.code)
        )
        self.mean, self.var = linear_of(encoder.mean), nn.Sequential(linear_of(encoder.var), nn.Softplus())
        self.decode = nn.Sequential(
            linear_of(decoder.first), leaky,
            linear_of(decoder.second), norm_of(decoder.after_second),
            linear_of(decoder.third), norm_of(decoder.after_third), leaky,
            linear_of(decoder.last), leaky,
        )  # fmt: skip
        self.to_s, self.to_n = (nn.Sequential(linear_of(layer), leaky) for layer in (nets["embedding"], nets["rest"]))
        self.back = nn.Sequential(linear_of(auto.first), leaky, linear_of(auto.rest[0]), leaky)
        relation = nets["relation"]
        self.relation = nn.Sequential(linear_of(relation.first), nn.ReLU(), linear_of(relation.rest[0]), nn.Sigmoid())
        self.discriminator = nn.Sequential(linear_of(nets["discriminator"].first), nn.Sigmoid())
        self.vae, self.x, self.y = trainee.generator, data.x.double(), data.y
        self.a = data.attributes.double()
        self.betas = trainee.kl_weight.item(), trainee.correlation_weight.item()
        self.rng = torch.Generator()
        self.rng.set_state(trainee.rng.get_state())
        options = {"lr": self.vae.learning_rate, "weight_decay": self.vae.weight_decay}
        self.critic = torch.optim.Adam(self.discriminator.parameters(), **options)
        others = [values for name, values in self.named_parameters() if not name.startswith("discriminator")]
        self.others = torch.optim.Adam(others, **options)

    def step(self, n, noise):
        n_batches = 1 + self.vae.n_penalised
        picked = torch.randint(len(self.x), (n_batches * n,), generator=self.rng)
        return [self.one(rows, k, noise) for k, rows in enumerate(picked.split(n))]

    def one(self, picked, k, noise):
        x, y = self.x[picked], self.y[picked]
        a = self.a[y]
        code = self.encode(torch.cat([x, a], 1))
        mean, var = self.mean(code), self.var(code)
        z = mean + var.sqrt() * torch.randn(mean.shape, generator=self.rng)
        noisy = a + noise * torch.randn(a.shape, generator=self.rng) if noise else a
        rebuilt = self.decode(torch.cat([z, noisy], 1))
        kl = -0.5 * (1 + var.log() - mean**2 - var).sum()
        beta, gamma = self.betas
        loss = (((rebuilt - x) ** 2).sum() + beta * kl) / len(x)
        different = sorted(set(y.tolist()))
        target = torch.tensor([[float(label == c) for c in different] for label in y.tolist()]).double()
        parts = []
        for inputs in (rebuilt, x):
            s, rest = self.to_s(inputs), self.to_n(inputs)
            parts.append((s, rest))
            relations = torch.stack(
                [torch.cat([self.relation(torch.cat([s[i], self.a[c]])) for c in different]) for i in range(len(x))]
            )
            loss = loss + self.vae.relation_weight * nn.functional.mse_loss(relations, target)
            loss = loss + nn.functional.mse_loss(self.back(torch.cat([s, rest], 1)), x)
        if k == 0:
            self.learn_to_tell_apart(parts)
        else:
            for part in parts:
                scores = self.discriminator(torch.cat(part, 1))
                loss = loss + gamma * (scores[:, :1] - scores[:, 1:]).mean()
        self.others.zero_grad()
        loss.backward()
        self.others.step()
        return loss.item()

    def learn_to_tell_apart(self, parts):
        n = len(parts[0][0])
        # Drawn in this order: s of rebuilt rows and of real ones, then n of both.
        orders = [torch.rand(n, generator=self.rng).argsort() for _ in range(4)]
        total = 0.0
        for (s, rest), for_s, for_n in zip(parts, orders[:2], orders[2:], strict=True):
            joint = self.discriminator(torch.cat([s, rest], 1).detach())
            mixed = self.discriminator(torch.cat([s[for_s], rest[for_n]], 1).detach())
            total = total + nn.functional.cross_entropy(joint, torch.zeros(n, dtype=torch.long))
            total = total + nn.functional.cross_entropy(mixed, torch.ones(n, dtype=torch.long))
        self.critic.zero_grad()
        (self.vae.discriminator_weight * total).backward()
        self.critic.step()


def weights_of(trainee):
    """All numbers, in the order of the twin's parts."""
    nets = trainee.networks
    encoder, decoder, auto, relation = (nets[name] for name in ("encoder", "generator", "autoencoder", "relation"))
    in_order = [encoder.first, encoder.second, encoder.code, encoder.mean, encoder.var, decoder.first, decoder.second]
    in_order += [
        decoder.after_second,
        decoder.third,
        decoder.after_third,
        decoder.last,
        nets["embedding"],
        nets["rest"],
    ]
    in_order += [auto.first, auto.rest[0], relation.first, relation.rest[0], nets["discriminator"].first]
    found = []
    for layer in in_order:
        twin = norm_of(layer) if isinstance(layer, BatchNormalisation) else linear_of(layer)
        found += [values for name, values in twin.state_dict().items() if name != "num_batches_tracked"]
    return found


@pytest.mark.parametrize("noise", [0.0, 0.3])
@pytest.mark.parametrize("batch_size", [4, 7], ids=["fewer rows than classes", "more rows than classes"])
def test_a_step_is_its_twin(noise, batch_size, monkeypatch):
    monkeypatch.setattr(disentangled, "_VARIANCE_DROPOUT", 0.0)
    data = rows()
    options = {"attribute_noise": noise, "batch_size": batch_size, "learning_rate": 1e-3, "weight_decay": 0.01}
    weights = {"kl_warm_up": 0.02, "correlation_weight": 20.0, "correlation_warm_up": 0.05, "relation_weight": 5.0}
    trainee = training_of(tiny(**options, **weights, **NO_DROPOUT), data)
    trainee.begin_epoch(11)
    assert (trainee.kl_weight.item(), trainee.correlation_weight.item()) == (pytest.approx(0.2), pytest.approx(10.0))
    with torch.no_grad():  # so near to indifferent as it starts, the discriminator would not matter
        for values in trainee.discriminator.parameters():
            values.mul_(5)
    twin = Twin(trainee, data)
    for _ in range(2):
        losses = trainee.step()
        assert losses["loss"].item() == pytest.approx(twin.step(batch_size, noise)[-1], rel=1e-4)
    theirs = {name: values for name, values in twin.state_dict().items() if not name.endswith("num_batches_tracked")}
    for ours, (name, expected) in zip(weights_of(trainee), theirs.items(), strict=True):
        # The second normalisation takes away what the bias of the first adds, which is left to rounding errors.
        free = name in ("decode.3.bias", "decode.5.running_mean")
        torch.testing.assert_close(
            ours, expected, rtol=1e-3, atol=5e-3 if free else 2e-5, msg=lambda text, at=name: f"{at}: {text}"
        )


def test_in_use_nothing_is_dropped_and_running_statistics_stand_for_the_batch():
    data = rows()
    generator = fit(tiny(), data)
    trainee = training_of(tiny(), data)
    trainee.networks = {**trainee.networks, **copy.deepcopy(generator.networks())}
    twin = Twin(trainee, data).eval()
    z, a = torch.randn(6, 3), data.attributes
    expected = twin.decode(torch.cat([z, a], 1).double())
    before = all_bits(generator)
    with torch.no_grad():
        torch.testing.assert_close(generator.net_(z, a).double(), expected, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(generator.net_(z[:1], a[:1]).double(), expected[:1], rtol=1e-4, atol=1e-5)
    assert all_bits(generator) == before
    torch.testing.assert_close(generator.embed(data.x).double(), twin.to_s(data.x.double()), rtol=1e-4, atol=1e-5)


def test_dropout_is_where_the_recipe_has_it(monkeypatch):
    data, calls, plain = rows(), [], disentangled.drop

    def watched(values, share, rng):
        calls.append((share, tuple(values.shape)))
        return plain(values, share, rng)

    monkeypatch.setattr(disentangled, "drop", watched)
    shares = {"encoder_dropout": 0.1, "decoder_dropout": 0.3, "autoencoder_dropout": 0.5}
    trainee = training_of(tiny(n_penalised=1, **shares), data)
    assert trainee.step()["loss"].isfinite()
    one = [(0.1, (10, 8)), (0.2, (10, 3))]  # the encoder's second layer, and the variance before its softplus
    one += [(0.3, (10, 8))] * 3  # after every hidden layer of the decoder
    one += [(0.5, (20, 4)), (0.5, (20, 3)), (0.5, (20, 8)), (0.5, (20, 5))]  # s, n, hidden layer, output
    assert calls == one * 2
    calls.clear()
    trainee.generator.sample(data.attributes, random_stream(0, "test"))
    trainee.generator.embed(data.x)
    assert calls == []


# --- The turns.
@pytest.mark.parametrize(
    ("batch_size", "n_penalised", "n_steps"), [(10, 2, 2), (10, 1, 3), (7, 2, 3), (64, 2, 1), (1, 3, 15)]
)
def test_an_epoch_goes_once_through_the_rows(batch_size, n_penalised, n_steps):
    trainee = training_of(tiny(batch_size=batch_size, n_penalised=n_penalised), rows())
    assert trainee.n_steps == n_steps


def test_the_discriminator_learns_once_and_the_others_are_penalised_after_that(monkeypatch):
    data = rows()
    trainee = training_of(tiny(n_penalised=3), data)
    trainee.begin_epoch(2)
    turns, one = [], trainee._step

    def watched(x, y, *, is_penalised):
        before = {name: bits(net) for name, net in trainee.networks.items()}
        found = one(x, y, is_penalised=is_penalised)
        moved = {name for name, net in trainee.networks.items() if bits(net) != before[name]}
        turns.append((is_penalised, "discriminator" in moved, moved | {"discriminator"} == set(trainee.networks)))
        assert len(x) == 10
        return found

    monkeypatch.setattr(trainee, "_step", watched)
    losses = trainee.step()
    assert turns == [(False, True, True), (True, False, True), (True, False, True), (True, False, True)]
    assert set(losses) == {"loss", "kl loss", "relation loss", "discriminator loss"}


def test_the_penalty_brings_the_discriminators_gap_down():
    """With no other loss to speak of, s and n change until pairs of a row look like mixed ones, and beyond."""
    data = rows()
    gaps = []
    for weight in (0.0, 1e4):
        generator = tiny(correlation_weight=weight, correlation_warm_up=1.0, n_penalised=20, **NO_DROPOUT)
        trainee = training_of(generator, data)
        trainee.begin_epoch(2)
        trainee._step_discriminator = lambda s, n: torch.zeros(())  # it stands still
        for _ in range(3):
            trainee.step()
        with torch.no_grad():
            s = nn.functional.leaky_relu(generator.embedding_(data.x), 0.2)
            gaps.append(trainee._gap(s, nn.functional.leaky_relu(trainee.rest(data.x), 0.2)).mean().item())
    assert gaps[1] < gaps[0] - 0.2


def test_the_discriminator_learns_to_tell_pairs_of_a_row_from_mixed_ones():
    data = rows()
    trainee = training_of(tiny(d_rest=4, learning_rate=0.05), data)
    rng = torch.Generator().manual_seed(0)
    # What a line through a sigmoid can see of dependence: of pairs that cancel out, mixed ones are the extreme ones.
    s = 3 * torch.randn(400, 4, generator=rng)
    with torch.no_grad():
        first = trainee.discriminator.first
        for block in first.blocks:
            block.copy_(torch.tensor([[1.0] * 4, [-1.0] * 4]))
        first.bias.copy_(torch.tensor([-2.0, 2.0]))
    losses = [trainee._step_discriminator(s, -s).item() for _ in range(100)]
    assert losses[-1] < losses[0] - 0.1
    with torch.no_grad():
        gap, mixed = trainee._gap(s, -s), trainee._gap(trainee._shuffled(s), -trainee._shuffled(s))
    assert gap.mean() > mixed.mean() + 0.1


def test_shuffled_rows_are_the_same_rows_in_another_order():
    trainee = training_of(tiny(), rows())
    values = torch.arange(40.0).view(20, 2)
    found = trainee._shuffled(values)
    assert not torch.equal(found, values)
    assert torch.equal(found[found[:, 0].argsort()], values)
    assert not torch.equal(found, trainee._shuffled(values))


def test_weights_rise_from_epoch_to_epoch():
    generator = tiny(kl_warm_up=0.3, correlation_weight=0.5, correlation_warm_up=0.4)
    trainee = training_of(generator, rows())
    places = trainee.kl_weight.data_ptr(), trainee.correlation_weight.data_ptr()
    found = []
    for epoch in range(1, 6):
        trainee.begin_epoch(epoch)
        found.append((trainee.kl_weight.item(), trainee.correlation_weight.item()))
    expected = [(0.0, 0.0), (0.3, 0.2), (0.6, 0.4), (0.9, 0.5), (1.0, 0.5)]
    np.testing.assert_allclose(found, expected, atol=1e-6)
    assert (trainee.kl_weight.data_ptr(), trainee.correlation_weight.data_ptr()) == places


@pytest.mark.parametrize(
    ("setting", "value"),
    [
        ("relation_weight", 0.0),
        ("correlation_weight", 0.0),
        ("correlation_warm_up", 0.0),
        ("kl_warm_up", 0.0),
        ("n_penalised", 1),
        ("weight_decay", 0.1),
        ("encoder_dropout", 0.0),
        ("decoder_dropout", 0.0),
        ("autoencoder_dropout", 0.0),
    ],
)
def test_each_setting_matters(setting, value):
    data = rows()
    settings_on = {"correlation_weight": 1.0, "correlation_warm_up": 0.5, "kl_warm_up": 0.5}
    one, other = (fit(tiny(**settings_on | change), data) for change in ({}, {setting: value}))
    assert all_bits(one)["embedding"] != all_bits(other)["embedding"]


# --- What it is for.
LEARNING = {"n_epochs": 60, "d_hidden": 32, "d_semantic": 8, "d_rest": 8, "batch_size": 20, "learning_rate": 5e-3}


def test_the_kept_part_is_that_which_class_vectors_speak_of():
    """Beside what the classes differ in, rows have something that varies far more and that no vector speaks of."""
    data = rows()
    noise = 4 * torch.randn(60, 1, generator=torch.Generator().manual_seed(9))
    data.x = torch.cat([data.x, noise, -noise], dim=1)

    def spread(values):
        """Of rows within classes, against that between classes."""
        means = torch.stack([values[data.y == label].mean(0) for label in SEEN])
        within = (values - means[torch.searchsorted(torch.tensor(SEEN), data.y)]).norm(dim=1).mean()
        return (within / (means - means.mean(0)).norm(dim=1).mean()).item()

    few = LEARNING | {"n_epochs": 30}
    consistent, without = (
        fit(tiny(**few | {"relation_weight": weight, "autoencoder_dropout": 0.0}), data) for weight in (300.0, 0.0)
    )
    assert spread(data.x) > 1.5
    assert spread(consistent.embed(data.x)) < 0.6 * spread(without.embed(data.x))


def test_generated_rows_find_their_classes():
    data = rows()
    generator = fit(tiny(**LEARNING), data)
    s = generator.embed(data.x)
    means = torch.stack([s[data.y == label].mean(0) for label in SEEN])
    assert (torch.cdist(s, means).argmin(1) == torch.searchsorted(torch.tensor(SEEN), data.y)).all()
    drawn = generator.sample(data.attributes[SEEN].repeat_interleave(50, dim=0), random_stream(0, "test"))
    nearest = torch.cdist(drawn, means).argmin(1)
    assert (nearest == torch.arange(4).repeat_interleave(50)).float().mean() > 0.9
    history = generator.history_
    assert history[-1]["loss"] < 0.5 * history[0]["loss"]
    assert history[-1]["relation loss"] < 0.5 * history[0]["relation loss"]


# --- The space of its rows.
def test_samples_are_the_kept_part_of_generated_rows():
    data = rows()
    generator = fit(tiny(), data)
    made = []
    generator.net_.register_forward_hook(lambda net, inputs, output: made.append((inputs, output)))
    sampled = generator.sample(data.attributes, random_stream(0, "test"))
    ((z, a), generated) = made[0]
    assert torch.equal(a, data.attributes)
    assert torch.equal(z, torch.randn(6, 3, generator=random_stream(0, "test")))
    assert generated.shape == (6, 5)
    assert torch.equal(sampled, generator.embed(generated))
    assert sampled.shape == (6, generator.embedded_width(5)) == (6, 4)
    assert not sampled.requires_grad
    assert generator.embeds
    assert generator.networks() == {"generator": generator.net_, "embedding": generator.embedding_}
    assert GENERATORS["DisentanglingVAE"] is DisentanglingVAE
    assert torch.equal(sampled, generator.sample(data.attributes, random_stream(0, "test")))
    assert not torch.equal(sampled, generator.sample(data.attributes, random_stream(1, "test")))
    assert generator.centers(data.attributes, random_stream(0, "test")).shape == (6, 4)


@pytest.mark.parametrize("block", [1, 4, 16384])
def test_rows_are_made_a_block_at_a_time(block, monkeypatch):
    data = rows()
    generator = fit(tiny(), data)
    expected = generator.embed(data.x), generator.sample(data.attributes, random_stream(0, "test"))
    monkeypatch.setattr(disentangled, "_BLOCK", block)
    sizes = []
    generator.net_.register_forward_pre_hook(lambda net, inputs: sizes.append(len(inputs[0])))
    torch.testing.assert_close(generator.embed(data.x), expected[0])
    torch.testing.assert_close(generator.sample(data.attributes, random_stream(0, "test")), expected[1])
    assert sizes == [min(block, 6)] * (6 // min(block, 6)) + ([2] if block == 4 else [])


# --- The same bits.
def test_the_same_seed_gives_the_same_networks():
    data = rows()
    before = torch.get_rng_state()
    first, again, other = (fit(tiny(), data, seed=seed) for seed in (0, 0, 1))
    assert all_bits(first) == all_bits(again)
    assert first.history_ == again.history_
    assert all(all_bits(first)[name] != all_bits(other)[name] for name in ("generator", "embedding"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_training_goes_on_to_the_same_networks(tmp_path):
    data, options = rows(), {"n_epochs": 6, "attribute_noise": 0.1, "correlation_warm_up": 0.2, "kl_warm_up": 0.1}
    whole = fit(tiny(**options), data)

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(**options), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(**options), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert all_bits(resumed) == all_bits(whole)  # running statistics, too
    assert resumed.history_ == whole.history_


def test_it_can_be_used_after_each_epoch_without_a_trace():
    data, generator = rows(), tiny()

    def use(epoch):
        generator.centers(data.attributes, random_stream(epoch, "test"))
        generator.embed(data.x)
        return {}

    assert all_bits(fit(generator, data, after_epoch=use)) == all_bits(fit(tiny(), data))


def test_unseen_classes_have_no_part_in_training():
    data, other = rows(), rows()
    other.attributes[[1, 4]] = 9.0
    for size in (3, 10):  # fewer and more rows than seen classes
        assert all_bits(fit(tiny(batch_size=size), data)) == all_bits(fit(tiny(batch_size=size), other))


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
    "batch_size": [0, 2.5],
    **{key: [0, 2.5] for key in ("d_prior", "d_code")},
    **{key: [0, -1, 2.5] for key in ("d_hidden", "d_semantic", "d_rest")},
    **{key: [-1.0, math.nan] for key in ("relation_weight", "correlation_weight", "discriminator_weight")},
    **{key: [-1.0, math.inf] for key in ("kl_warm_up", "correlation_warm_up", "weight_decay")},
    "n_penalised": [0, 1.5],
    **{key: [-0.1, 1.0, 2, math.nan] for key in ("encoder_dropout", "decoder_dropout", "autoencoder_dropout")},
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_setting_is_refused_in_a_sentence(option):
    for value in BAD[option]:
        with pytest.raises(DGZError, match=rf"^{option} must be .*\.$"):
            fit(tiny(**{option: value}), rows())


def test_scikit_learns_contract():
    generator = tiny(relation_weight=2.0, attribute_noise=0.5)
    assert clone(generator).get_params() == generator.get_params()
    assert set(BAD) == set(DisentanglingVAE().get_params())


# --- Any generator goes with any classifier and any distribution.
def test_it_goes_with_dgzs_classifier_and_gaussian_rows():
    data = load_numbers(0, n_train=8, n_test=3)
    widths = {"d_hidden": 64, "d_semantic": 32, "d_rest": 16, "batch_size": 20}
    generator = tiny(n_epochs=8, learning_rate=3e-3, **widths)
    small = {"n_per_class": 10, "d_hidden": 32, "n_epochs": 8, "learning_rate": 5e-3, "batch_size": 80}
    scaling = {"feature_scaling": "minmax", "device": "cpu"}
    model = DGZ(generator=generator, distribution="statistical", **small, **scaling)
    model.fit(data.x_train, data.y_train, data.attributes)
    assert model.embed(data.x_test_seen).shape == (240, 32)
    assert (model.predict(data.x_test_seen) == data.y_test_seen).mean() > 0.2  # of 100 classes
    assert (model.predict(data.x_test_unseen, classes=data.unseen) == data.y_test_unseen).mean() > 0.2  # of 20


def test_noise_on_class_vectors_changes_what_is_learned():
    data = rows()
    plain, noisy, again = (fit(tiny(attribute_noise=noise), data) for noise in (0.0, 0.5, 0.5))
    assert all_bits(plain) != all_bits(noisy)
    assert all_bits(noisy) == all_bits(again)
    relative = fit(tiny(attribute_noise=0.5, noise_unit="relative"), data)
    assert relative.noise_ == pytest.approx(0.5 * np.std(data.attributes[SEEN].numpy()), rel=1e-5)
