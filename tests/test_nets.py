"""Layers against what they stand for, the critic's closed form against autograd, and where weights start."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

import reference
from dgz import nets
from dgz.generators import wasserstein_loss

SMALL = settings(max_examples=40, deadline=None)


def stream(seed=0):
    return torch.Generator().manual_seed(seed)


def filled(net, seed=0, std=0.5):
    """A network in float64 whose parameters, biases too, are large enough to matter."""
    rng = stream(seed)
    with torch.no_grad():
        for values in net.double().parameters():
            values.copy_(std * torch.randn(values.shape, generator=rng))
    return net


def randn(*shape, seed=1):
    return torch.randn(shape, generator=stream(seed), dtype=torch.double)


# --- Layers.
@SMALL
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 5), st.integers(0, 9))
def test_block_linear_is_a_linear_layer_on_the_concatenation(d_inputs, d_out, n, seed):
    layer = filled(nets.BlockLinear(d_inputs, d_out), seed)
    inputs = [randn(n, d, seed=seed + i).requires_grad_() for i, d in enumerate(d_inputs)]
    joined = torch.cat([values.detach() for values in inputs], dim=1).requires_grad_()
    weight = torch.cat([block.detach() for block in layer.blocks], dim=1).requires_grad_()
    bias = layer.bias.detach().requires_grad_()
    out, expected = layer(*inputs), linear(joined, weight, bias)
    torch.testing.assert_close(out, expected, rtol=1e-12, atol=1e-13)
    # And so are its gradients, in inputs, blocks and bias.
    pull = randn(n, d_out, seed=seed + 9)
    ours = torch.autograd.grad((out * pull).sum(), [*inputs, *layer.blocks, layer.bias])
    theirs = torch.autograd.grad((expected * pull).sum(), [joined, weight, bias])
    k = len(inputs)
    torch.testing.assert_close(torch.cat(ours[:k], dim=1), theirs[0], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(torch.cat(ours[k : 2 * k], dim=1), theirs[1], rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(ours[-1], theirs[2], rtol=1e-12, atol=1e-13)


def test_block_linear_wants_one_value_for_each_block():
    layer = filled(nets.BlockLinear([2, 3], 4))
    with pytest.raises(ValueError, match="zip"):
        layer(randn(5, 2))


def slow_mlp(net, row):
    """One row through the net, one number at a time: leaky ReLU of slope 0.2 between layers, none after the last."""
    for layer in [net.first, *net.rest]:
        weight = torch.cat(list(layer.blocks), dim=1).tolist()
        if layer is not net.first:
            row = [value if value > 0 else 0.2 * value for value in row]
        row = [
            sum(w * v for w, v in zip(ws, row, strict=True)) + b
            for ws, b in zip(weight, layer.bias.tolist(), strict=True)
        ]
    return [max(value, 0.0) for value in row] if net.relu_out else row


@pytest.mark.parametrize("relu_out", [False, True])
@pytest.mark.parametrize("widths", [[5], [6, 5], [7, 6, 5]])
def test_mlp_is_its_layers_one_after_the_other(widths, relu_out):
    net = filled(nets.MLP([2, 3], widths, relu_out=relu_out))
    z, a = randn(9, 2), randn(9, 3, seed=2)
    out = net(z, a)
    assert out.shape == (9, 5)
    expected = [slow_mlp(net, row) for row in torch.cat([z, a], dim=1).tolist()]
    np.testing.assert_allclose(out.detach(), expected, rtol=1e-12, atol=1e-13)
    assert (out.min() == 0) if relu_out else (out.min() < 0)


def test_free_weights_ignore_class_vectors_and_forget_classes():
    net = filled(nets.FreeWeights(4, 3))
    before = net(torch.zeros(4, 2)).detach().clone()
    assert torch.equal(net(torch.ones(4, 2)), before)
    net.remove(np.array([2, 0]))
    assert torch.equal(net(torch.zeros(2, 2)), before[[1, 3]])
    assert net.weight.requires_grad
    assert [name for name, _ in net.named_parameters()] == ["weight"]


# --- The critic.
@pytest.mark.parametrize("seed", range(5))
def test_the_slope_is_the_gradient_of_the_critic(seed):
    critic = filled(nets.Critic(4, 3, 16), seed)
    x, a = randn(20, 4, seed=seed).requires_grad_(), randn(20, 3, seed=seed + 50)
    (expected,) = torch.autograd.grad(critic(x, a).sum(), x)
    hidden = critic.hidden(x, a)
    torch.testing.assert_close(critic.slope(hidden), expected, rtol=1e-12, atol=1e-13)
    torch.testing.assert_close(critic.score(hidden), critic(x, a), rtol=0, atol=0)
    assert (hidden < 0).any()
    assert (hidden > 0).any()


def test_the_slope_at_a_kink_is_autograds():
    critic = filled(nets.Critic(2, 1, 3))
    with torch.no_grad():
        critic.first.bias.zero_()
    x, a = torch.zeros(1, 2, dtype=torch.double, requires_grad=True), torch.zeros(1, 1, dtype=torch.double)
    (expected,) = torch.autograd.grad(critic(x, a).sum(), x)
    torch.testing.assert_close(critic.slope(critic.hidden(x, a)), expected, rtol=1e-12, atol=0)


def twice_differentiated(critic, x, fake, a, alpha, gp_weight):
    """The critic's loss as it is usually written: the penalty's gradient by autograd, to be differentiated again."""
    between = (alpha * x + (1 - alpha) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between, a).sum(), between, create_graph=True)
    penalty = (slope.square().sum(1).sqrt() - 1).square().mean()
    return critic(fake, a).mean() - critic(x, a).mean() + gp_weight * penalty, slope


@pytest.mark.parametrize("gp_weight", [0.0, 0.5, 10.0])
@pytest.mark.parametrize("seed", range(4))
def test_the_penaltys_gradient_is_that_of_differentiating_twice(seed, gp_weight):
    critic = filled(nets.Critic(5, 3, 12), seed)
    x, fake, a = randn(15, 5, seed=seed), randn(15, 5, seed=seed + 20), randn(15, 3, seed=seed + 40)
    alpha = torch.rand(15, 1, generator=stream(seed), dtype=torch.double)
    loss = wasserstein_loss(critic, x, fake, a, alpha, gp_weight)
    twin, slope = twice_differentiated(critic, x, fake, a, alpha, gp_weight)
    slow = reference.wasserstein_loss(critic(x, a).tolist(), critic(fake, a).tolist(), slope.tolist(), gp_weight)
    assert loss.item() == pytest.approx(twin.item(), rel=1e-12)
    assert loss.item() == pytest.approx(slow, rel=1e-12)
    parameters = dict(critic.named_parameters())
    ours = torch.autograd.grad(loss, list(parameters.values()))
    theirs = torch.autograd.grad(twin, list(parameters.values()))
    for name, one, other in zip(parameters, ours, theirs, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-11, atol=1e-13, msg=lambda text, name=name: f"{name}: {text}")


def test_the_penalty_alone_moves_both_weights():
    critic = filled(nets.Critic(5, 3, 12))
    x, a = randn(15, 5), randn(15, 3)
    alpha = torch.rand(15, 1, generator=stream(), dtype=torch.double)
    loss = wasserstein_loss(critic, x, x, a, alpha, 1.0)  # real and generated rows are the same: the penalty is left
    weights = [critic.first.blocks[0], critic.last.blocks[0]]
    assert all(gradient.abs().max() > 0.01 for gradient in torch.autograd.grad(loss, weights))


def test_a_critic_without_slope_has_finite_gradients():
    critic = nets.Critic(5, 3, 12)
    with torch.no_grad():
        for values in critic.parameters():
            values.zero_()
    loss = wasserstein_loss(
        critic, torch.ones(4, 5), torch.zeros(4, 5), torch.ones(4, 3), torch.full((4, 1), 0.5), 10.0
    )
    assert loss.item() == 10.0
    assert all(gradient.isfinite().all() for gradient in torch.autograd.grad(loss, list(critic.parameters())))


# --- Class normalisation.
def test_class_standardisation_in_training_uses_the_classes_at_hand():
    layer = nets.ClassStandardisation(3).double()
    values = (2 * randn(7, 3) + 5).requires_grad_()
    out = layer(values)
    mean, var = values.detach().numpy().mean(0), values.detach().numpy().var(0)
    np.testing.assert_allclose(out.detach(), (values.detach().numpy() - mean) / (var + 1e-5), rtol=1e-12)
    # Mean and variance are part of what is differentiated.
    pull = randn(7, 3, seed=3)
    by_hand = values - values.sum(0) / 7
    by_hand = by_hand / (by_hand.square().sum(0) / 7 + 1e-5)
    ours, theirs = (torch.autograd.grad((result * pull).sum(), values)[0] for result in (out, by_hand))
    torch.testing.assert_close(ours, theirs, rtol=1e-10, atol=1e-12)


def test_class_standardisation_in_use_has_the_running_statistics():
    layer = nets.ClassStandardisation(2, momentum=0.25).double()
    mean, var = np.zeros(2), np.ones(2)
    for seed in range(5):
        values = 3 * randn(6, 2, seed=seed) - 4
        layer(values)
        mean = 0.75 * mean + 0.25 * values.numpy().mean(0)
        var = 0.75 * var + 0.25 * values.numpy().var(0)
    np.testing.assert_allclose(layer.mean, mean, rtol=1e-12)
    np.testing.assert_allclose(layer.var, var, rtol=1e-12)
    layer.eval()
    values = randn(1, 2, seed=9)  # one class alone is standardised as any other
    np.testing.assert_allclose(layer(values), (values.numpy() - mean) / (var + 1e-5), rtol=1e-12)
    np.testing.assert_allclose(layer.mean, mean, rtol=1e-12)  # and leaves no trace
    np.testing.assert_allclose(layer.var, var, rtol=1e-12)
    assert set(layer.state_dict()) == {"mean", "var"}


def test_class_standardisation_of_a_single_class_is_finite():
    assert torch.equal(nets.ClassStandardisation(3)(torch.full((1, 3), 7.0)), torch.zeros(1, 3))


def test_the_class_normalised_mapper_is_blind_to_the_length_of_a_class_vector():
    net = nets.initialise(nets.ClassNormalisedMapper(4, 16, 5), stream()).eval()
    attributes = torch.randn(6, 4, generator=stream(1))
    out = net(attributes)
    assert out.shape == (6, 5)
    assert out.min() == 0 < out.max()
    torch.testing.assert_close(net(attributes * torch.tensor([[1e-3], [0.1], [1], [7], [1e2], [1e4]])), out)
    assert net(torch.zeros(2, 4)).isfinite().all()


# --- Where weights start.
def test_weights_start_normal_and_biases_at_zero():
    net = nets.initialise(nets.MLP([60, 40], [300, 200]), stream())
    for name, values in net.named_parameters():
        if name.endswith("bias"):
            assert (values == 0).all()
            continue
        n = values.numel()
        assert abs(values.mean().item()) < 4 * 0.02 / n**0.5
        assert values.std().item() == pytest.approx(0.02, abs=4 * 0.02 / (2 * n) ** 0.5)
        outside = (values.abs() > 0.04).double().mean().item()  # of a Gaussian, 4.55 % lie beyond two deviations
        assert outside == pytest.approx(0.0455, abs=4 * (0.0455 * 0.9545 / n) ** 0.5)


def test_the_class_normalised_mapper_starts_by_its_own_rule():
    net = nets.initialise(nets.ClassNormalisedMapper(25, 400, 100), stream())
    for values, std in [
        (net.first.blocks[0], 25**-0.5 / 3**0.5),
        (net.second.blocks[0], 400**-0.5 / 3**0.5),
        (net.third.blocks[0], (400 * 100) ** -0.5),
    ]:
        assert values.std().item() == pytest.approx(std, rel=0.05)
        assert values.abs().max().item() == pytest.approx(3**0.5 * std, rel=0.01)  # uniform: all within √3 deviations
    assert 0 < net.second.bias.abs().max() <= 400**-0.5
    assert (net.third.bias == 0).all()


MAKERS = [
    lambda: nets.MLP([3, 2], [8, 4]),
    lambda: nets.Critic(4, 3, 8),
    lambda: nets.FreeWeights(5, 4),
    lambda: nets.ClassNormalisedMapper(3, 8, 4),
]


@pytest.mark.parametrize("make", MAKERS)
def test_the_same_stream_gives_the_same_values_and_leaves_none_out(make):
    def start(seed):
        net = make()
        with torch.no_grad():
            for values in net.parameters():
                values.fill_(torch.nan)  # what was there before must not matter
        return [values.detach() for values in nets.initialise(net, stream(seed)).parameters()]

    first, again, other = start(0), start(0), start(1)
    assert all(values.isfinite().all() for values in first)
    assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))
    assert any(not torch.equal(a, b) for a, b in zip(first, other, strict=True))


@pytest.mark.parametrize("make", MAKERS)
def test_making_a_network_leaves_the_global_random_state_alone(make):
    before = torch.get_rng_state()
    net = make()
    assert nets.initialise(net, stream()) is net
    assert torch.equal(torch.get_rng_state(), before)
