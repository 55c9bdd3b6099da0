"""TF-VAEGAN's generator: its decoder, its feedback, and the space of its rows. Steps are tested with all VAE-GANs."""

import math
from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import leaky_relu, normalize

from dgz.errors import DGZError
from dgz.generators import VAEGAN, FeedbackVAEGAN, base
from dgz.generators.feedback import weighted_l1
from dgz.generators.vaegan import as_rows
from dgz.training import random_stream

SMALL = settings(max_examples=40, deadline=None)
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(n=60, spread=0.05):
    """Rows in [0, 1] of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.8, 0.2, 0.8, 0.2, 0.5], [0.2, 0.8, 0.2, 0.8, 0.5], [0.8, 0.8, 0.2, 0.2, 0.8], [0.2] * 5])
    place = torch.randint(4, (n,), generator=rng)
    x = (centers[place] + spread * torch.randn(n, 5, generator=rng)).clamp(0, 1)
    attributes = normalize(torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.05 * torch.randn(6, 4, generator=rng))
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    options = {"n_epochs": 1, "hidden": (16,), "n_critic": 2, "learning_rate": 0.01, "d_decoder": 7} | options
    return FeedbackVAEGAN(**options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    generator.build(4, 5, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def bits(net):
    return {name: values.tolist() for name, values in net.state_dict().items()}


def moved_by(trainee, work):
    before = {name: bits(net) for name, net in trainee.networks.items()}
    work()
    return {name for name, net in trainee.networks.items() if bits(net) != before[name]}


# --- The decoder's loss.
@SMALL
@given(st.integers(1, 4), st.integers(1, 5), st.integers(0, 99))
def test_the_weighted_distance_is_its_twin(n, d_a, seed):
    found, wanted = torch.randn(2, n, d_a, generator=torch.Generator().manual_seed(seed))
    total = 0.0
    for i in range(n):
        apart = [found[i, k].item() - wanted[i, k].item() for k in range(d_a)]
        length = math.sqrt(sum(d**2 for d in apart))
        for d in apart:
            total += d**2 / length * abs(d)
    assert weighted_l1(found, wanted).item() == pytest.approx(total / n, rel=1e-4)


def test_vectors_that_are_found_have_no_loss_and_no_slope():
    found = torch.randn(3, 4).requires_grad_()
    loss = weighted_l1(found, found.detach().clone())
    assert loss == 0
    assert (torch.autograd.grad(loss, found)[0] == 0).all()


def test_gradients_of_the_weighted_distance_go_through_its_weights():
    found, wanted = torch.randn(2, 3, 4, generator=torch.Generator().manual_seed(1), dtype=torch.double)
    assert torch.autograd.gradcheck(lambda values: weighted_l1(values, wanted), found.requires_grad_())


# --- Feedback.
def built(**options):
    """A generator with parameters of a size that matters."""
    generator = tiny(**options).build(4, 5, random_stream(0, "generator's start"))
    with torch.no_grad():
        for net in generator.networks().values():
            for values in net.parameters():
                values.normal_(generator=torch.Generator().manual_seed(len(values)))
    return generator


@pytest.mark.parametrize("strength", [0.0, 0.01, 1.0])
def test_a_row_is_made_described_and_made_again(strength):
    generator, rng = built(), torch.Generator().manual_seed(0)
    z, a = torch.randn(2, 6, 4, generator=rng)
    found = generator.decode(z, a, strength)
    net, decoder, advisor = generator.net_, generator.decoder_, generator.feedback_
    for i in range(6):
        hidden = leaky_relu(net.first.blocks[0] @ z[i] + net.first.blocks[1] @ a[i] + net.first.bias, 0.2)
        first = 1 / (1 + torch.exp(-(net.rest[0].blocks[0] @ hidden + net.rest[0].bias)))
        seen = leaky_relu(decoder.first.blocks[0] @ first + decoder.first.bias, 0.2)
        advice = leaky_relu(advisor.first.blocks[0] @ seen + advisor.first.bias, 0.2)
        advice = leaky_relu(advisor.rest[0].blocks[0] @ advice + advisor.rest[0].bias, 0.2)
        again = net.rest[0].blocks[0] @ (hidden + strength * advice) + net.rest[0].bias
        torch.testing.assert_close(found[i], again, rtol=1e-4, atol=1e-4)
    plain = net(z, a)
    assert torch.equal(found, plain) == (strength == 0)


def test_what_the_decoder_saw_is_a_fixed_input():
    generator, rng = built(), torch.Generator().manual_seed(0)
    z, a = torch.randn(2, 6, 4, generator=rng)
    loss = generator.decode(z, a, 1.0).square().sum()
    parameters = list(generator.decoder_.parameters())
    assert torch.autograd.grad(loss, parameters, allow_unused=True, retain_graph=True) == (None,) * len(parameters)
    others = [*generator.net_.parameters(), *generator.feedback_.parameters()]
    assert all((slope != 0).any() for slope in torch.autograd.grad(loss, others))


def test_synthesis_has_a_strength_of_its_own():
    generator = built(feedback_strength=0.5, synthesis_strength=0.25)
    a = normalize(torch.randn(6, 4, generator=torch.Generator().manual_seed(0)))
    z = torch.randn(6, 4, generator=random_stream(0, "test"))
    expected = generator.embed(as_rows(generator.decode(z, a, 0.25)))
    assert torch.equal(generator.sample(a, random_stream(0, "test")), expected)
    generator.feedback_strength = 9.0
    assert torch.equal(generator.sample(a, random_stream(0, "test")), expected)
    generator.synthesis_strength = 0.0
    without = generator.sample(a, random_stream(0, "test"))
    assert torch.equal(without, generator.embed(as_rows(generator.net_(z, a))))
    assert not torch.equal(without, expected)


# --- What each part moves.
def test_the_first_turn_is_without_feedback_and_the_second_with_it():
    data = rows()
    trainee = training_of(tiny(feedback_strength=0.3), data)
    generator, calls = trainee.generator, []
    decode, turn = generator.decode, trainee.turn
    generator.net_.register_forward_pre_hook(lambda net, inputs: calls.append("plain"))
    generator.decode = lambda z, a, strength: calls.append(strength) or decode(z, a, strength)
    trainee.turn = lambda *args: calls.append("turn") or turn(*args)
    trainee.step()
    assert calls == ["turn", "plain", "plain", "turn", 0.3, 0.3]  # all of the critic's at once, then the generator's


@pytest.mark.parametrize("freeze", [False, True])
def test_who_learns_in_the_generators_step(freeze):
    trainee = training_of(tiny(freeze_decoder=freeze), rows())
    trainee._step_critic = lambda *args: torch.zeros(())
    with_decoder = set() if freeze else {"decoder"}
    assert moved_by(trainee, trainee.step) == {"generator", "encoder", "feedback", "penalty"} | with_decoder
    plain = training_of(tiny(freeze_decoder=freeze), rows())
    plain._step_critic = lambda *args: torch.zeros(())
    work = lambda: plain.turn(plain.generator.net_, ["encoder", "generator"])  # noqa: E731
    assert moved_by(plain, work) == {"generator", "encoder", "penalty"}


@pytest.mark.parametrize("freeze", [False, True])
def test_the_decoder_learns_from_real_rows_in_every_critic_step(freeze):
    data = rows()
    trainee = training_of(tiny(freeze_decoder=freeze, n_critic=3), data)
    described, describe = [], trainee.generator.describe
    trainee.generator.describe = lambda x: described.append(x.detach()) or describe(x)
    assert moved_by(trainee, trainee.step) == set(trainee.networks)
    is_real = [all(row in data.x.tolist() for row in x.tolist()) for x in described]
    assert is_real == [True, True, True, False] * 2
    x, y = trainee.draw(1)
    alone = moved_by(trainee, lambda: trainee._step_critic(x, x.flip(0), y, torch.full((len(x), 1), 0.5)))
    assert alone == {"critic", "decoder"}


def test_without_weight_the_decoder_stays_as_it_is_and_moves_nothing():
    data = rows()
    trainee = training_of(tiny(decoder_weight=0.0), data)
    assert "decoder" not in moved_by(trainee, trainee.step)
    weightless, weighty = (fit(tiny(decoder_weight=weight), data) for weight in (0.0, 5.0))
    assert bits(weightless.net_) != bits(weighty.net_)


def test_learning_rates_are_those_asked_for():
    trainee = training_of(tiny(learning_rate=1e-3, decoder_rate=2e-3, feedback_rate=3e-3), rows())
    found = {name: one.param_groups[0] for name, one in trainee.optimizers.items()}
    assert {name: (group["lr"], group["betas"][0]) for name, group in found.items()} == {
        "generator": (1e-3, 0.5),
        "critic": (1e-3, 0.5),
        "encoder": (1e-3, 0.9),
        "decoder": (2e-3, 0.5),
        "feedback": (3e-3, 0.5),
    }


def test_the_decoder_looks_for_vectors_of_unit_length_whatever_their_scale():
    data, scaled = rows(), rows()
    scaled.attributes = 7 * scaled.attributes
    targets = [training_of(tiny(), part).targets for part in (data, scaled)]
    torch.testing.assert_close(targets[0], data.attributes)
    torch.testing.assert_close(targets[1], data.attributes)


# --- The space of its rows.
def test_a_row_comes_with_what_the_decoder_makes_of_it():
    data, generator = rows(), built()
    found = generator.embed(data.x)
    assert found.shape == (60, 5 + 4 + 7)
    assert generator.embedded_width(5) == 16
    x, vectors, hidden = found.split([5, 4, 7], dim=1)
    assert torch.equal(x, data.x)
    net = generator.decoder_
    expected = leaky_relu(data.x @ net.first.blocks[0].T + net.first.bias, 0.2)
    torch.testing.assert_close(hidden, expected)
    torch.testing.assert_close(vectors, normalize(expected @ net.rest[0].blocks[0].T + net.rest[0].bias))
    torch.testing.assert_close(vectors.norm(dim=1), torch.ones(60))
    assert not found.requires_grad
    assert generator.embeds
    assert generator.embed(data.x[:0]).shape == (0, 16)
    networks = {"generator": generator.net_, "decoder": generator.decoder_, "feedback": generator.feedback_}
    assert generator.networks() == networks


@pytest.mark.parametrize("block", [1, 7, 60])
def test_rows_are_described_a_block_at_a_time(block, monkeypatch):
    data, generator = rows(), built()
    expected = generator.embed(data.x)
    monkeypatch.setattr(base, "BLOCK", block)
    torch.testing.assert_close(generator.embed(data.x), expected)


@pytest.mark.parametrize(("d_x", "d_hidden"), [(2048, 4096), (128, 512), (5, 512)])
def test_networks_are_the_published_ones_and_in_proportion_for_narrower_rows(d_x, d_hidden):
    generator = FeedbackVAEGAN().build(3, d_x, random_stream(0, "x"))

    def shapes(net):
        return [tuple(layer.blocks[0].shape) for layer in (net.first, *net.rest)]

    assert shapes(generator.decoder_) == [(d_hidden, d_x), (3, d_hidden)]
    assert shapes(generator.feedback_) == [(d_hidden, d_hidden), (d_hidden, d_hidden)]
    assert generator.embedded_width(d_x) == d_x + 3 + d_hidden
    plain = VAEGAN().build(3, d_x, random_stream(0, "x"))
    assert all(torch.equal(a, b) for a, b in zip(plain.net_.parameters(), generator.net_.parameters(), strict=True))


def test_widths_may_differ():
    data = rows()
    generator = fit(tiny(hidden=(16, 9), d_decoder=3, critic_hidden=4, d_prior=2), data)
    assert generator.sample(data.attributes, random_stream(0, "test")).shape == (6, 5 + 4 + 3)
    assert [len(layer.bias) for layer in (generator.feedback_.first, *generator.feedback_.rest)] == [16, 16]


# --- Settings.
def test_defaults_are_those_of_the_released_code():
    expected = {"decoder_weight": 0.01, "freeze_decoder": False, "feedback_strength": 1.0, "synthesis_strength": 1.0}
    expected |= {"decoder_rate": 1e-4, "feedback_rate": 1e-4, "d_decoder": None}
    found = FeedbackVAEGAN().get_params()
    assert {name: found[name] for name in expected} == expected
    assert set(found) - set(expected) == set(VAEGAN().get_params())


BAD = {
    "d_decoder": [0, 2.5],
    "decoder_weight": [-1.0, float("nan")],
    "freeze_decoder": [None, 1, "yes"],
    "feedback_strength": [-0.1, float("inf")],
    "synthesis_strength": [-0.1, None],
    "decoder_rate": [0, -1e-4],
    "feedback_rate": [0, "fast"],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_setting_is_refused_in_a_sentence(option):
    for value in BAD[option]:
        with pytest.raises(DGZError, match=f"^{option} must be "):
            fit(tiny(**{option: value}), rows())


# --- Learning.
@pytest.fixture(scope="module")
def learned():
    data = rows()
    options = {"gan_weight": 1.0, "learning_rate": 4e-3, "decoder_rate": 4e-3, "decoder_weight": 1.0}
    return data, fit(tiny(n_epochs=120, hidden=(32,), d_decoder=16, **options), data)


def test_the_decoder_finds_class_vectors_of_real_and_of_generated_rows(learned):
    data, generator = learned
    cosines = (generator.describe(data.x)[0] * data.attributes[data.y]).sum(1)
    assert cosines.min() > 0.9
    a = data.attributes[SEEN].repeat_interleave(50, dim=0)
    of_generated = generator.sample(a, random_stream(0, "test"))[:, 5:9]
    assert (of_generated * a).sum(1).mean() > 0.9


def test_generated_rows_find_their_classes(learned):
    data, generator = learned
    x = generator.embed(data.x)
    means = torch.stack([x[data.y == c].mean(0) for c in SEEN])
    sampled = generator.sample(data.attributes[SEEN].repeat_interleave(50, dim=0), random_stream(0, "test"))
    nearest = torch.cdist(sampled, means).argmin(1)
    assert (nearest == torch.arange(4).repeat_interleave(50)).float().mean() > 0.95


def test_feedback_alone_can_mend_what_the_generator_does_badly():
    data = rows()
    generator = tiny(learning_rate=1e-12, feedback_rate=0.02, gan_weight=0.0, n_critic=1)
    trainee = training_of(generator, data)
    with torch.no_grad():
        for net in trainee.networks.values():
            for values in net.parameters():
                values.mul_(15)
    for _ in range(100):
        trainee.step()
    a, z = data.attributes[data.y], torch.randn(60, 4, generator=random_stream(0, "test"))

    def error(strength):
        with torch.no_grad():
            return (as_rows(generator.decode(z, a, strength)) - data.x).square().mean().item()

    assert error(1.0) < 0.75 * error(0.0)
    assert error(0.5) < error(0.0)
