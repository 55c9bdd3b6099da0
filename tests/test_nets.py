"""Layers against what they stand for, closed forms against autograd, many at once against one, and the start."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import linear

import reference
from dgz import nets
from dgz.generators import critic_slopes

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
    return [max(value, 0.0) for value in row] if net.out == "relu" else row


@pytest.mark.parametrize("relu_out", [False, True])
@pytest.mark.parametrize("widths", [[5], [6, 5], [7, 6, 5]])
def test_mlp_is_its_layers_one_after_the_other(widths, relu_out):
    net = filled(nets.MLP([2, 3], widths, out="relu" if relu_out else "linear"))
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


# --- Gradients in closed form.
def backpropagated(net, x, slope):
    """The gradients that a network writes into buffers, which hold something else before."""
    gradients = {values: torch.full_like(values, torch.nan) for values in net.parameters()}
    net.backpropagate(x.T.contiguous(), slope, gradients)
    return [gradients[values] for values in net.parameters()]


@pytest.mark.parametrize("relu_out", [False, True])
@pytest.mark.parametrize("widths", [[5], [6, 5], [7, 6, 5], [4, 7, 6, 5]])
def test_backpropagation_is_autograds(widths, relu_out):
    net = filled(nets.MLP([3], widths, out="relu" if relu_out else "linear"))
    x, target = randn(9, 3), randn(9, 5, seed=2)
    outputs = []

    def slope(out):
        outputs.append(out.T.clone())
        return 3 * (out - target.T) ** 2

    ours = backpropagated(net, x, slope)
    out = net(x)
    torch.testing.assert_close(outputs, [out.detach()], rtol=1e-12, atol=1e-13)
    assert (out == 0).any() == relu_out
    theirs = torch.autograd.grad(((out - target) ** 3).sum(), list(net.parameters()))
    torch.testing.assert_close(ours, list(theirs), rtol=1e-11, atol=1e-13)
    assert all(gradient.abs().max() > 0.01 for gradient in ours)
    assert all(values.grad is None for values in net.parameters())


@SMALL
@given(st.lists(st.integers(1, 4), min_size=1, max_size=3), st.integers(1, 4), st.integers(1, 5), st.booleans())
def test_backpropagation_is_autograds_at_kinks_too(widths, d_in, n, relu_out):
    net = filled(nets.MLP([d_in], widths, out="relu" if relu_out else "linear"))
    with torch.no_grad():
        for name, values in net.named_parameters():
            if name.endswith("bias"):
                values.zero_()
    x = torch.zeros(n, d_in, dtype=torch.double)  # all that is bent is exactly at its kink
    x[0] = 1.0
    ours = backpropagated(net, x, torch.ones_like)
    theirs = torch.autograd.grad(net(x).sum(), list(net.parameters()))
    torch.testing.assert_close(ours, list(theirs), rtol=1e-11, atol=1e-13)


# --- The critic.
def twice_differentiated(critic, x, fake, a, alpha, gp_weight):
    """The critic's loss as it is usually written: the penalty's gradient by autograd, to be differentiated again."""
    between = (alpha * x + (1 - alpha) * fake).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between, a).sum(), between, create_graph=True)
    penalty = (slope.square().sum(1).sqrt() - 1).square().mean()
    return critic(fake, a).mean() - critic(x, a).mean() + gp_weight * penalty, slope


def rows_for(critic, n, seed=0):
    """Real rows, generated ones, class vectors and α."""
    d_x, d_a = (block.shape[1] for block in critic.first.blocks)
    alpha = torch.rand(n, 1, generator=stream(seed), dtype=torch.double)
    return randn(n, d_x, seed=seed), randn(n, d_x, seed=seed + 20), randn(n, d_a, seed=seed + 40), alpha


def assert_slopes_are_autograds(critic, slopes, loss):
    """The gradients of all parameters but the last bias, which cancels out."""
    parameters = dict(critic.named_parameters())
    expected = torch.autograd.grad(loss, list(parameters.values()))
    for (name, values), other in zip(parameters.items(), expected, strict=True):
        if values is critic.last.bias:
            assert values not in slopes
            assert other.abs().max() < 1e-14
            continue
        torch.testing.assert_close(
            slopes[values], other, rtol=1e-11, atol=1e-12, msg=lambda text, name=name: f"{name}: {text}"
        )
    assert len(slopes) == 4


@pytest.mark.parametrize("gp_weight", [0.0, 1.0, 10.0])
@SMALL
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 12), st.integers(1, 15), st.integers(0, 9))
def test_the_critics_loss_and_slopes_are_those_of_differentiating_twice(gp_weight, d_x, d_a, d_hidden, n, seed):
    critic = filled(nets.Critic(d_x, d_a, d_hidden), seed)
    x, fake, a, alpha = rows_for(critic, n, seed)
    loss, slopes = critic_slopes(critic, x, fake, a, alpha, gp_weight)
    twin, slope = twice_differentiated(critic, x, fake, a, alpha, gp_weight)
    slow = reference.wasserstein_loss(critic(x, a).tolist(), critic(fake, a).tolist(), slope.tolist(), gp_weight)
    assert loss.item() == pytest.approx(twin.item(), rel=1e-11, abs=1e-12)
    assert loss.item() == pytest.approx(slow, rel=1e-11, abs=1e-12)
    assert_slopes_are_autograds(critic, slopes, twin)
    assert not any(values.requires_grad for values in slopes.values())


def test_every_part_of_the_critics_loss_moves_it():
    critic = filled(nets.Critic(5, 3, 12))
    x, fake, a, alpha = rows_for(critic, 15)
    _, of_rows = critic_slopes(critic, x, fake, a, alpha, 0.0)
    assert all(values.abs().max() > 0.01 for values in of_rows.values())
    _, of_penalty = critic_slopes(critic, x, x, a, alpha, 1.0)  # real and generated rows are the same
    weights = [critic.first.blocks[0], critic.last.blocks[0]]
    assert all(of_penalty[values].abs().max() > 0.01 for values in weights)
    # The slope does not depend on where it is taken, nor on the class.
    assert all((of_penalty[values] == 0).all() for values in (critic.first.blocks[1], critic.first.bias))


def test_the_critics_slopes_at_a_kink_are_autograds():
    critic = filled(nets.Critic(2, 1, 3))
    with torch.no_grad():
        critic.first.bias.zero_()
    x, a = torch.zeros(1, 2, dtype=torch.double), torch.zeros(1, 1, dtype=torch.double)
    alpha = torch.full((1, 1), 0.5, dtype=torch.double)
    loss, slopes = critic_slopes(critic, x, x, a, alpha, 1.0)
    twin, _ = twice_differentiated(critic, x, x, a, alpha, 1.0)
    assert loss.item() == pytest.approx(twin.item(), rel=1e-12)
    assert_slopes_are_autograds(critic, slopes, twin)


@pytest.mark.parametrize("flat", ["first", "last", "both"])
def test_the_penalty_of_a_critic_without_slope_is_whole_and_moves_nothing(flat):
    critic = filled(nets.Critic(5, 3, 12))
    with torch.no_grad():
        for layer in (critic.first, critic.last):
            if flat == "both" or layer is getattr(critic, flat):
                layer.blocks[0].zero_()
    x, fake, a, alpha = rows_for(critic, 15)
    loss, slopes = critic_slopes(critic, x, fake, a, alpha, 10.0)
    without = critic(fake, a).mean() - critic(x, a).mean()
    assert loss.item() == pytest.approx(without.item() + 10.0, rel=1e-12)
    assert_slopes_are_autograds(critic, slopes, without)


def test_a_critic_of_zeros_has_finite_slopes_in_float32():
    critic = nets.Critic(5, 3, 12)
    with torch.no_grad():
        for values in critic.parameters():
            values.zero_()
    ones = torch.ones(4, 5), torch.zeros(4, 5), torch.ones(4, 3), torch.full((4, 1), 0.5)
    loss, slopes = critic_slopes(critic, *ones, 10.0)
    assert loss.item() == 10.0
    assert all(values.dtype == torch.float32 and values.isfinite().all() for values in slopes.values())


# --- Many at once.
STACKED = {
    "one input": (lambda: nets.MLP([4], [6, 5]), [4]),
    "two inputs": (lambda: nets.MLP([2, 4], [7, 6, 5], out="relu"), [2, 4]),
    "free": (lambda: nets.FreeWeights(9, 5), [4]),
    "linear": (lambda: nets.LinearWeights(9, 4), [4]),  # and a bias
    "class-normalised": (lambda: nets.ClassNormalisedMapper(4, 6, 5), [4]),
}


def three(make):
    return [filled(make(), seed) for seed in range(3)]


@pytest.mark.parametrize("name", STACKED)
def test_stacked_networks_give_what_each_gives_alone(name):
    make, widths = STACKED[name]
    singles = three(make)
    together = nets.stack(singles)
    inputs = [randn(9, width, seed=width) for width in widths]
    pull = randn(3, 9, 5, seed=8)
    for training in (True, False):
        outs = [net.train(training)(*inputs) for net in singles]
        out = together.train(training)(*inputs)
        torch.testing.assert_close(out, torch.stack(outs), rtol=1e-12, atol=1e-13)
        assert not torch.equal(out[0], out[1])
        gradients = torch.autograd.grad((out * pull).sum(), list(together.parameters()))
        alone = [
            torch.autograd.grad((one * part).sum(), list(net.parameters()))
            for net, one, part in zip(singles, outs, pull, strict=True)
        ]
        for ours, theirs in zip(gradients, zip(*alone, strict=True), strict=True):
            torch.testing.assert_close(ours, torch.stack(theirs), rtol=1e-11, atol=1e-12)
    for (key, values), *others in zip(
        together.state_dict().items(), *(net.state_dict().values() for net in singles), strict=True
    ):
        # Running statistics, too.
        torch.testing.assert_close(values, torch.stack(others), rtol=1e-12, atol=1e-13, msg=key)


@pytest.mark.parametrize("name", STACKED)
def test_a_network_taken_out_is_the_one_put_in(name):
    make, widths = STACKED[name]
    singles = three(make)
    before = [{key: values.clone() for key, values in net.state_dict().items()} for net in singles]
    together = nets.stack(singles)
    inputs = [randn(9, width, seed=width) for width in widths]
    for k, state in enumerate(before):
        for take in (nets.member_of, nets.unstack):
            taken = take(together, k)
            assert type(taken) is type(singles[k])
            assert taken.state_dict().keys() == state.keys()
            assert all(torch.equal(values, state[key]) for key, values in taken.state_dict().items())
            assert all(values.requires_grad for values in taken.parameters())
            torch.testing.assert_close(taken.eval()(*inputs), singles[k].eval()(*inputs), rtol=1e-12, atol=1e-13)


@pytest.mark.parametrize("name", STACKED)
def test_a_member_shares_its_values_and_an_unstacked_network_has_its_own(name):
    make, _ = STACKED[name]
    singles = three(make)
    together = nets.stack(singles)
    member, own = nets.member_of(together, 1), nets.unstack(together, 1)
    kept = [values.clone() for values in own.state_dict().values()]
    with torch.no_grad():
        for values in together.state_dict().values():
            values.add_(1.0)
    for ours, whole in zip(member.state_dict().values(), together.state_dict().values(), strict=True):
        assert torch.equal(ours, whole[1])
    with torch.no_grad():
        for values in member.state_dict().values():
            values.zero_()
    assert all((values[1] == 0).all() for values in together.state_dict().values())
    assert all((values[0] != 0).any() for values in together.state_dict().values())
    for net in (own, singles[1]):
        assert all(torch.equal(a, b) for a, b in zip(net.state_dict().values(), kept, strict=True))


def test_the_running_statistics_of_a_member_are_those_of_the_whole():
    together = nets.stack(three(STACKED["class-normalised"][0]))
    member = nets.member_of(together, 2)
    before = member.before.mean.clone()
    together.train()(randn(9, 4))
    assert not torch.equal(member.before.mean, before)
    assert torch.equal(member.before.mean, together.before.mean[2])


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
    lambda: nets.LinearWeights(5, 4),
    lambda: nets.ClassNormalisedMapper(3, 8, 4),
    lambda: nets.Embedding(4, 6, 3),
    lambda: nets.Comparator(4, 3, 8),
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


# --- A bias for each class.
def test_linear_weights_have_their_bias_in_the_last_column_and_forget_it_with_the_class():
    net = filled(nets.LinearWeights(4, 3))
    weights = net(torch.zeros(4, 2))
    assert weights.shape == (4, 4)
    assert torch.equal(weights, torch.cat([net.weight, net.bias[:, None]], dim=1))
    assert torch.equal(net(torch.ones(4, 2)), weights)
    before = weights.detach().clone()
    net.remove(np.array([2, 0]))
    assert torch.equal(net(torch.zeros(2, 2)), before[[1, 3]])
    assert {name: tuple(values.shape) for name, values in net.named_parameters()} == {"weight": (2, 3), "bias": (2,)}
    assert all(values.requires_grad for values in net.parameters())


def test_linear_weights_start_like_all_others_and_without_bias():
    net = nets.initialise(nets.LinearWeights(100, 200), stream())
    assert (net.bias == 0).all()
    assert net.weight.std().item() == pytest.approx(0.02, rel=0.03)


# --- The embedding.
def test_an_embedding_is_a_linear_layer_cut_at_zero():
    net = filled(nets.Embedding(4, 6, 3))
    x = randn(9, 4)
    (weight,), bias = net.first.blocks, net.first.bias
    expected = reference.linear_logits(x.tolist(), weight.tolist(), bias.tolist())
    h = net(x)
    assert h.shape == (9, 6)
    np.testing.assert_allclose(h.detach(), np.maximum(expected, 0.0), rtol=1e-12, atol=1e-13)
    assert np.min(expected) < 0 < h.max()


def test_projections_lie_on_a_sphere_in_the_direction_of_their_layer():
    net = filled(nets.Embedding(4, 6, 3))
    h = randn(9, 6).abs()
    points = net.project(h)
    assert points.shape == (9, 3)
    (weight,), bias = net.projection.blocks, net.projection.bias
    for point, raw in zip(points, reference.linear_logits(h.tolist(), weight.tolist(), bias.tolist()), strict=True):
        length = sum(value**2 for value in raw) ** 0.5
        assert point.tolist() == pytest.approx([value / length for value in raw], rel=1e-5, abs=1e-6)
        assert abs(length - 1) > 1e-3  # or nothing would have been done


def test_projections_are_float32_whatever_they_are_multiplied_with():
    net = nets.initialise(nets.Embedding(4, 6, 3), stream())
    with torch.autocast("cpu", torch.bfloat16):
        points = net.project(net(torch.ones(5, 4)))
    assert points.dtype == torch.float32
    np.testing.assert_allclose(points.detach().norm(dim=1), 1.0, rtol=1e-6)


def test_a_projection_without_direction_is_no_nan():
    net = filled(nets.Embedding(4, 6, 3))
    with torch.no_grad():
        net.projection.bias.zero_()
    h = torch.zeros(2, 6, dtype=torch.double, requires_grad=True)
    points = net.project(h)
    assert (points == 0).all()
    assert torch.autograd.grad(points.sum(), h)[0].isfinite().all()


# --- Scores of pairs.
ANY_BLOCK = pytest.mark.parametrize("most", [1, 13, 40, 2**27], ids=lambda most: f"at most {most} values")


def pair_inputs(n, n_classes, k, seed=0):
    return [randn(*shape, seed=seed + i).requires_grad_() for i, shape in enumerate([(n, k), (n_classes, k), (k,)])]


@ANY_BLOCK
@settings(SMALL, max_examples=20)
@given(st.integers(1, 7), st.integers(1, 5), st.integers(1, 4), st.integers(0, 9))
def test_pair_scores_and_their_gradients_are_their_twins(most, n, n_classes, k, seed):
    rows, classes, last = inputs = pair_inputs(n, n_classes, k, seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(nets, "_MOST_PAIR_VALUES", most)
        scores = nets.pair_scores(*inputs)
        pull = randn(n, n_classes, seed=seed + 9)
        ours = torch.autograd.grad((scores * pull).sum(), inputs)
    assert scores.shape == (n, n_classes)
    np.testing.assert_allclose(
        scores.detach(), reference.pair_scores(*(values.tolist() for values in inputs)), rtol=1e-12, atol=1e-13
    )
    expected = torch.nn.functional.leaky_relu(rows[:, None] + classes[None], 0.2) @ last
    theirs = torch.autograd.grad((expected * pull).sum(), inputs)
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-11, atol=1e-12)


@ANY_BLOCK
def test_gradients_of_pair_scores_are_their_slopes(most, monkeypatch):
    monkeypatch.setattr(nets, "_MOST_PAIR_VALUES", most)
    assert torch.autograd.gradcheck(nets.pair_scores, pair_inputs(7, 3, 2))


def test_gradients_of_pair_scores_at_a_kink_are_autograds():
    rows, classes, last = pair_inputs(3, 3, 4)
    with torch.no_grad():
        rows.copy_(-classes)  # each row with its own class: exactly 0 in every place
    ours = torch.autograd.grad(nets.pair_scores(rows, classes, last).sum(), (rows, classes, last))
    plain = (torch.nn.functional.leaky_relu(rows[:, None] + classes, 0.2) @ last).sum()
    torch.testing.assert_close(list(ours), list(torch.autograd.grad(plain, (rows, classes, last))))


def test_the_hidden_values_of_pairs_exist_a_block_at_a_time(monkeypatch):
    sizes, pairs = [], nets._pairs

    def watched(rows, classes):
        for block in pairs(rows, classes):
            sizes.append(tuple(block.shape))
            yield block

    monkeypatch.setattr(nets, "_pairs", watched)
    monkeypatch.setattr(nets, "_MOST_PAIR_VALUES", 25)  # of 3 · 4 values for a row: two rows
    scores = nets.pair_scores(*pair_inputs(5, 3, 4))
    assert sizes == [(2, 3, 4), (2, 3, 4), (1, 3, 4)]
    scores.sum().backward()
    assert sizes[3:] == sizes[:3]  # in both directions


def test_a_comparator_is_a_network_of_one_hidden_layer_on_every_pair():
    net = filled(nets.Comparator(4, 3, 8))
    plain = filled(nets.MLP([4, 3], [8, 1]), seed=5)
    with torch.no_grad():
        for mine, its in zip(plain.first.parameters(), net.first.parameters(), strict=True):
            mine.copy_(its)
        plain.rest[0].blocks[0].copy_(net.last)
        plain.rest[0].bias.zero_()  # the same for all classes, so that the comparator has none
    h, attributes = randn(5, 4).requires_grad_(), randn(6, 3, seed=2)
    scores = net(h, attributes)
    expected = [[slow_mlp(plain, [*row, *vector])[0] for vector in attributes.tolist()] for row in h.tolist()]
    np.testing.assert_allclose(scores.detach(), expected, rtol=1e-12, atol=1e-13)
    # And so are its gradients, in the rows and in all it learns.
    pull = randn(5, 6, seed=3)
    ours = torch.autograd.grad((scores * pull).sum(), [h, *net.first.parameters(), net.last])
    of_pairs = plain(h.repeat_interleave(6, dim=0), attributes.repeat(5, 1)).view(5, 6)
    theirs = torch.autograd.grad((of_pairs * pull).sum(), [h, *plain.first.parameters(), plain.rest[0].blocks[0]])
    torch.testing.assert_close(list(ours), list(theirs), rtol=1e-11, atol=1e-12)
    assert all(gradient.abs().max() > 0.01 for gradient in ours)


def test_a_comparator_learns_with_bf16_products():
    net, h, attributes = nets.Comparator(4, 3, 8), randn(5, 4).float().requires_grad_(), randn(6, 3, seed=2).float()
    nets.initialise(net, stream())
    exact = net(h, attributes)
    with torch.autocast("cpu", torch.bfloat16):
        coarse = net(h, attributes)
    torch.testing.assert_close(coarse.float(), exact, rtol=0.05, atol=1e-4)
    gradients = torch.autograd.grad(coarse.float().square().sum(), [h, *net.parameters()])
    assert all(gradient.dtype == torch.float32 and gradient.isfinite().all() for gradient in gradients)
    assert all(gradient.abs().max() > 0 for gradient in gradients)
