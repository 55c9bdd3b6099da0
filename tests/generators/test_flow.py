"""IZF's generator: that it is exactly invertible, its densities and losses against their twins, and that it learns."""

import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from dgz import DGZ, load_numbers
from dgz.errors import DGZError
from dgz.generators import GENERATORS, ZeroShotFlow
from dgz.generators.flow import Coupling, Flow, squared_discrepancy
from dgz.nets import initialise
from dgz.training import Checkpoints, clipped, random_stream

SMALL = settings(max_examples=40, deadline=None)
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(seed=0, spread=0.1):
    """Sixty rows of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[0.8, 0, 0.9, 0.1, 0.5], [0, 1, 0.1, 1, 0.5], [1, 1, 0, 0, 1], [0, 0, 1, 1, 0]])
    place = torch.randint(4, (60,), generator=rng)
    x = centers[place] + spread * torch.randn(60, 5, generator=rng)
    attributes = torch.tensor([[0.0, 0], [0, 0.5], [0, 1], [1, 0], [0.5, 0.5], [1, 1]])
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    return ZeroShotFlow(**{"n_epochs": 1, "hidden": (16,), "depth": 2, "batch_size": 60} | options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    d_a, d_x = data.attributes.shape[1], data.x.shape[1]
    generator.build(d_a, d_x, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def a_flow(d_x=6, d_a=2, depth=3, gain=10.0, seed=0, hidden=(8,)):
    """One that is far from doing nothing."""
    rng = torch.Generator().manual_seed(seed)
    flow = initialise(Flow(d_x, d_a, hidden, depth), rng)
    flow.shuffle(rng)
    with torch.no_grad():
        for values in flow.parameters():
            values.copy_(gain * 0.02 * torch.randn(values.shape, generator=rng))
    return flow


def bits(generator):
    return {name: values.tolist() for name, values in generator.net_.state_dict().items()}


# --- One network, two ways.
@pytest.mark.parametrize("d_x", [2, 3, 6, 33])
def test_the_two_ways_undo_each_other(d_x):
    flow = a_flow(d_x)
    x = torch.randn(50, d_x, generator=random_stream(0, "x"))
    latents, _ = flow(x)
    assert (latents - x).abs().max() > 0.5
    assert (flow.inverse(latents) - x).abs().max() < 1e-4
    back, _ = flow(flow.inverse(x))
    assert (back - x).abs().max() < 1e-4


def test_they_do_so_after_training_and_at_a_paper_size():
    data = rows()
    flow = fit(tiny(n_epochs=20), data).net_
    assert (flow.inverse(flow(data.x)[0]) - data.x).abs().max() < 1e-4
    wide = ZeroShotFlow(depth=1).build(312, 2048, random_stream(0, "x")).net_
    x = torch.rand(4, 2048, generator=random_stream(0, "x"))
    assert (wide.inverse(wide(x)[0]) - x).abs().max() < 1e-4
    net = wide.blocks[0].by_first
    assert [tuple(layer.blocks[0].shape) for layer in (net.first, *net.rest)] == [(1024, 1024), (2048, 1024)]


@pytest.mark.parametrize("d_x", [2, 5, 6])
def test_the_log_determinant_is_that_of_the_jacobian(d_x):
    flow = a_flow(d_x).double()
    for row in torch.randn(5, d_x, generator=random_stream(1, "x"), dtype=torch.double):
        jacobian = torch.autograd.functional.jacobian(lambda x: flow(x[None])[0][0].double(), row)
        sign, expected = torch.linalg.slogdet(jacobian)
        assert flow(row[None])[1].item() == pytest.approx(expected.item(), abs=1e-4)
        assert abs(sign) == 1


def slow_coupling(block, row):
    """One row through one block, number by number."""
    moved = [row[place] for place in block.order.tolist()]
    half = len(row) // 2
    first, second = moved[:half], moved[half:]

    def answer(net, values):
        (weights,), biases = net.first.blocks, net.first.bias
        hidden = reference.linear_logits([values], weights.tolist(), biases.tolist())[0]
        hidden = [h if h > 0 else 0.01 * h for h in hidden]
        (weights,), biases = net.rest[0].blocks, net.rest[0].bias
        out = reference.linear_logits([hidden], weights.tolist(), biases.tolist())[0]
        n = len(out) // 2
        return [2.0 * (2 / math.pi) * math.atan(s / 2.0) for s in out[:n]], out[n:]

    stretch, move = answer(block.by_second, second)
    first = [x * math.exp(s) + t for x, s, t in zip(first, stretch, move, strict=True)]
    total = sum(stretch)
    stretch, move = answer(block.by_first, first)
    second = [x * math.exp(s) + t for x, s, t in zip(second, stretch, move, strict=True)]
    return first + second, total + sum(stretch)


@pytest.mark.parametrize("d_x", [2, 5, 6])
def test_a_block_is_its_twin(d_x):
    flow = a_flow(d_x)
    x = torch.randn(4, d_x, generator=random_stream(0, "x"))
    latents, log_determinant = flow(x)
    for i, row in enumerate(x.tolist()):
        expected = 0.0
        for block in flow.blocks:
            row, part = slow_coupling(block, row)
            expected += part
        np.testing.assert_allclose(latents[i].tolist(), row, rtol=1e-3, atol=1e-4)
        assert log_determinant[i].item() == pytest.approx(expected, abs=1e-4)


def test_no_block_stretches_by_more_than_e_squared():
    block = Coupling(4, (8,))
    initialise(block, random_stream(0, "x"))
    with torch.no_grad():
        for values in block.parameters():
            values.mul_(1e6)
    x = torch.randn(20, 4, generator=random_stream(0, "x"))
    _, log_determinant = block(x)
    assert log_determinant.abs().max() <= 4 * 2.0
    assert block(x)[0].isfinite().all()


def test_permutations_are_random_different_and_kept():
    flow = ZeroShotFlow(depth=4).build(2, 50, random_stream(0, "x")).net_
    orders = [block.order.tolist() for block in flow.blocks]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert len({tuple(order) for order in orders}) == 4
    assert {f"blocks.{k}.order" for k in range(4)} <= set(flow.state_dict())
    other = ZeroShotFlow(depth=4).build(2, 50, random_stream(1, "x")).net_
    assert other.blocks[0].order.tolist() != orders[0]


# --- Where class vectors lie.
def test_class_vectors_that_fit_lie_on_a_scale_of_one_round_the_seen_mean():
    vectors = torch.randn(7, 3, generator=random_stream(0, "x")) * torch.tensor([0.1, 2.0, 0.0]) + 5
    flow = Flow(8, 3, (4,), 1)
    flow.settle(vectors)
    place = flow.place(vectors)
    assert place.shape == (7, 8)
    assert (place[:, 3:] == 0).all()
    np.testing.assert_allclose(place[:, :3].mean(0), 0, atol=1e-5)
    assert place[:, :3].square().mean().item() == pytest.approx(1, rel=1e-4)
    assert flow.free.tolist() == [0, 0, 0, 1, 1, 1, 1, 1]
    ratio = torch.pdist(place) / torch.pdist(vectors)
    np.testing.assert_allclose(ratio, ratio[0].item(), rtol=1e-4)  # one factor for all


@pytest.mark.parametrize("n_seen", [3, 20])
def test_class_vectors_that_are_too_wide_are_projected_on_principal_directions(n_seen):
    vectors = torch.randn(n_seen, 9, generator=random_stream(0, "x"))
    flow = Flow(10, 9, (4,), 1)
    flow.settle(vectors)
    assert flow.basis.shape == (9, 5)  # half of the features
    n_used = min(n_seen - 1, 5)
    inner = flow.basis.T @ flow.basis
    expected = torch.zeros(5, 5)
    expected[:n_used, :n_used] = inner[0, 0] * torch.eye(n_used)
    np.testing.assert_allclose(inner, expected, atol=1e-5)  # orthonormal but for one factor, or nothing
    assert flow.free.tolist() == [0.0] * n_used + [1.0] * (10 - n_used)
    place = flow.place(vectors)
    assert place[:, :n_used].square().mean().item() == pytest.approx(1, rel=1e-4)
    gaps = vectors - vectors.mean(0)
    _, _, directions = torch.linalg.svd(gaps, full_matrices=False)
    kept = (gaps @ directions[:n_used].T).norm(dim=1)
    ratio = place.norm(dim=1) / kept
    np.testing.assert_allclose(ratio, ratio[0].item(), rtol=1e-3)
    if n_seen == 3:  # nothing is lost
        np.testing.assert_allclose(kept, gaps.norm(dim=1), rtol=1e-3)


def test_where_they_lie_is_kept_with_the_flow():
    data = rows()
    flow = fit(tiny(), data)
    again = tiny().build(2, 5, torch.Generator())
    again.net_.load_state_dict(flow.net_.state_dict())
    samples = [one.sample(data.attributes, random_stream(0, "x")) for one in (flow, again)]
    assert torch.equal(*samples)


@pytest.mark.parametrize(("d_a", "d_x", "n_seen"), [(1, 2, 1), (5, 2, 3), (3, 1, 2), (40, 7, 4)])
def test_any_widths_fit_together(d_a, d_x, n_seen):
    rng = random_stream(0, "x")
    x, attributes = torch.rand(2 * n_seen, d_x, generator=rng), torch.rand(n_seen + 1, d_a, generator=rng)
    generator = tiny().fit(x, torch.arange(n_seen).repeat(2), attributes)
    assert generator.sample(attributes, rng).shape == (n_seen + 1, d_x)
    assert generator.sample(attributes, rng).isfinite().all()


# --- Its losses, against loops.
def slow_density(latents, place, free, std):
    """Minus the log of the latent Gaussian, one number at a time."""
    total = 0.0
    for row, middle in zip(latents, place, strict=True):
        for value, mean, is_free in zip(row, middle, free, strict=True):
            s = 1.0 if is_free else std
            total += (value - mean) ** 2 / (2 * s**2) + math.log(s * math.sqrt(2 * math.pi))
    return total / len(latents)


@pytest.mark.parametrize("noise", [0.0, 0.3])
def test_the_flow_loss_is_the_negative_log_likelihood(noise, monkeypatch):
    data = rows()
    trainee = training_of(tiny(attribute_std=0.4, input_noise=0.05, attribute_noise=noise), data)
    seen, flow = [], trainee.flow
    flow.register_forward_hook(lambda net, inputs, out: seen.append((inputs[0], *out)))
    blurred, blur = [], trainee.generator._blur
    monkeypatch.setattr(trainee.generator, "_blur", lambda a, rng: blurred.append(blur(a, rng)) or blurred[-1])
    x, y = data.x[:7], data.y[:7]
    loss = trainee._flow_loss(x, y)
    ((noisy, latents, log_determinant),) = seen
    assert (noisy - x).min() >= 0
    assert 0.03 < (noisy - x).max() < 0.05
    gap = (blurred[0] - data.attributes[y]).abs().max()
    assert gap > 0.1 if noise else gap == 0
    expected = slow_density(latents.tolist(), flow.place(blurred[0]).tolist(), flow.free.tolist(), 0.4)
    assert loss.item() == pytest.approx(expected - log_determinant.mean().item(), rel=1e-4)


def test_the_flow_loss_is_that_of_a_density_over_rows():
    """With Gaussian latents, exp(-loss) integrates to one over all rows: so it is a density, factors and all."""
    data = rows()
    data.x = data.x[:, :2]
    trainee = training_of(tiny(depth=2, attribute_std=0.5, input_noise=0.0), data)
    grid = torch.linspace(-8, 8, 321)
    points = torch.cartesian_prod(grid, grid)
    place, flow = trainee.flow.place(data.attributes[3:4]), trainee.flow
    with torch.no_grad():
        latents, log_determinant = flow(points)
        log_density = -((latents - place) / trainee.std).square().sum(1) / 2 + log_determinant
        log_density = log_density - trainee.log_std - math.log(2 * math.pi)
    assert (log_density.exp().sum() * 0.05**2).item() == pytest.approx(1, abs=1e-2)


def test_the_center_loss_is_the_distance_of_all_classes_from_their_means():
    data = rows()
    trainee = training_of(tiny(), data)
    middles = trainee.flow.inverse(trainee.flow.place(data.attributes[SEEN])).tolist()
    means = reference.class_means(data.x.tolist(), data.y.tolist(), SEEN)
    centers = trainee.generator.centers(data.attributes[SEEN], random_stream(0, "x"))
    np.testing.assert_allclose(centers, middles, rtol=1e-5, atol=1e-6)
    expected = sum(math.dist(middle, mean) for middle, mean in zip(middles, means, strict=True))
    assert trainee.step()["center loss"].item() == pytest.approx(expected, rel=1e-4)


@SMALL
@given(st.integers(2, 5), st.integers(2, 6), st.integers(1, 4), st.integers(0, 99))
def test_the_discrepancy_is_its_twin(n, m, d, seed):
    rng = torch.Generator().manual_seed(seed)
    x, y = torch.randn(n, d, generator=rng), 1 + torch.randn(m, d, generator=rng)
    expected = reference.mmd(x.tolist(), y.tolist())
    assert squared_discrepancy(x, y).item() == pytest.approx(expected, abs=1e-4)


def test_the_discrepancys_gradient_is_its_slope():
    x, y = (torch.randn(4, 3, generator=random_stream(k, "x"), dtype=torch.double) for k in (0, 1))

    def found(y):
        kernels = [6 / (6 + (a[:, None] - b).square().sum(2)) for a, b in ((x, x), (y, y), (x, y))]
        within = sum((k.sum() - k.trace()) / 12 for k in kernels[:2])
        return within - 2 * kernels[2].mean()

    y.requires_grad_()
    (ours,), (theirs,) = (torch.autograd.grad(part(y), y) for part in (lambda y: squared_discrepancy(x, y), found))
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


def test_rows_for_the_discrepancy_are_of_unseen_classes():
    data = rows()
    trainee = training_of(tiny(), data)
    middles, made = trainee._generate(200)
    assert middles.shape == (4, 5)
    place = trainee.flow.place(data.attributes[[1, 4]])[:, :2]
    found = trainee.flow(made)[0]
    distances, which = torch.cdist(found[:, :2], place).min(1)
    assert distances.max() < 1e-3
    assert set(which.tolist()) == {0, 1}
    noise = found[:, 2:]
    assert abs(noise.mean()) < 0.2
    assert 0.8 < noise.std() < 1.2


def test_noisy_class_vectors_stand_in_all_that_is_generated_in_training():
    data = rows()
    trainee = training_of(tiny(attribute_noise=0.1), data)
    scale = trainee.flow.basis[0, 0].item()  # of class vectors in the latent space
    middles, made = (trainee.flow(part)[0][:, :2].detach() for part in trainee._generate(500))
    gaps = middles - trainee.flow.place(data.attributes[SEEN])[:, :2]
    assert 0.02 * scale < gaps.abs().mean() < 0.2 * scale
    distances = torch.cdist(made, trainee.flow.place(data.attributes[[1, 4]])[:, :2]).min(1).values
    assert distances.square().mean().sqrt().item() == pytest.approx(0.1 * scale * 2**0.5, rel=0.15)


def test_the_loss_is_the_weighted_sum_and_its_default_weights_are_the_recipes():
    assert [getattr(ZeroShotFlow(), f"{name}_weight") for name in ("flow", "center", "mmd")] == [2.0, 1.0, 0.1]
    trainee = training_of(tiny(flow_weight=3.0, center_weight=0.5, mmd_weight=7.0), rows())
    found = {name: value.item() for name, value in trainee.step().items()}
    assert set(found) == {"loss", "flow loss", "center loss", "discrepancy"}
    expected = 3 * found["flow loss"] + 0.5 * found["center loss"] - 7 * found["discrepancy"]
    assert found["loss"] == pytest.approx(expected, rel=1e-5)


def test_gradients_are_cut_together():
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    for most, factor in ((10.0, 1.0), (5.0, 1.0), (2.5, 0.5)):
        for found, whole in zip(clipped(gradients, most), gradients, strict=True):
            torch.testing.assert_close(found, factor * whole)


def test_a_step_is_adams_with_decay_and_gradients_that_are_cut():
    data = rows()
    settings_ = {"most_gradient": 0.5, "weight_decay": 0.1, "learning_rate": 1e-3}
    one, twin = (training_of(tiny(**settings_), data) for _ in range(2))
    one.step()
    x, y = twin.draw()
    loss = 2 * twin._flow_loss(x, y)
    middles, unseen = twin._generate(len(x))
    means = torch.stack([data.x[data.y == c].mean(0) for c in SEEN])
    loss = loss + (middles - means).norm(dim=1).sum() - 0.1 * squared_discrepancy(x, unseen)
    parameters = list(twin.flow.parameters())
    optimizer = torch.optim.Adam(parameters, lr=1e-3, weight_decay=0.1)
    loss.backward()
    assert torch.nn.utils.clip_grad_norm_(parameters, 0.5) > 5
    optimizer.step()
    for ours, theirs in zip(one.flow.parameters(), parameters, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-3, atol=1e-6)


# --- What it sees.
def test_it_depends_on_vectors_of_unseen_classes_through_the_discrepancy_alone():
    data, other = rows(), rows()
    other.attributes[[1, 4]] = 0.9
    pair = [bits(fit(tiny(n_epochs=2), part)) for part in (data, other)]
    assert pair[0] != pair[1]
    pair = [bits(fit(tiny(n_epochs=2, mmd_weight=0.0), part)) for part in (data, other)]
    assert pair[0] == pair[1]


def test_without_unseen_classes_there_is_no_discrepancy():
    data = rows()
    data.y, data.attributes = torch.tensor([SEEN.index(c) for c in data.y.tolist()]), data.attributes[SEEN]
    flow = fit(tiny(), data)
    assert set(flow.history_[0]) == {"epoch", "loss", "flow loss", "center loss"}


def test_samples_have_their_classs_vector_and_standard_noise():
    data = rows()
    flow = fit(tiny(n_epochs=10, attribute_noise=0.1), data)
    vectors = data.attributes[[4]].expand(2000, -1)
    sampled = flow.sample(vectors, random_stream(0, "x"))
    assert not sampled.requires_grad
    latents = flow.net_(sampled)[0].detach()
    np.testing.assert_allclose(latents[:, :2], flow.net_.place(vectors)[:, :2], atol=1e-3)  # clean, whatever the noise
    np.testing.assert_allclose(latents[:, 2:].mean(0), 0, atol=0.1)
    np.testing.assert_allclose(latents[:, 2:].std(0), 1, atol=0.1)
    assert torch.equal(sampled, flow.sample(vectors, random_stream(0, "x")))
    assert not torch.equal(sampled, flow.sample(vectors, random_stream(1, "x")))


def test_attribute_noise_changes_what_is_learned():
    data = rows()
    found = [bits(fit(tiny(attribute_noise=noise), data)) for noise in (0.0, 0.1, 0.2)]
    assert found[0] != found[1]
    assert found[1] != found[2]
    relative = fit(tiny(attribute_noise=0.5, noise_unit="relative"), data)
    assert relative.noise_ == pytest.approx(0.5 * data.attributes[SEEN].std(correction=0).item())


# --- Learning.
def far(flow, data):
    """The distance of each seen class's generated middle from the real one."""
    means = torch.stack([data.x[data.y == c].mean(0) for c in SEEN])
    sampled = flow.sample(data.attributes[SEEN].repeat_interleave(200, dim=0), random_stream(0, "x"))
    return (sampled.view(4, 200, 5).mean(1) - means).norm(dim=1).mean().item()


@pytest.fixture(scope="module")
def fitted():
    return fit(tiny(n_epochs=120, learning_rate=0.01), rows())


def test_it_learns_where_classes_lie_and_how_they_spread(fitted):
    data = rows()
    assert far(fitted, data) < 0.15
    assert far(tiny().build(2, 5, random_stream(0, "x")), data) > 0.8
    sampled = fitted.sample(data.attributes[[0]].expand(500, -1), random_stream(0, "x"))
    assert 0.03 < sampled.std(0).mean() < 0.2  # 0.1 in the data
    first, last = fitted.history_[0], fitted.history_[-1]
    assert last["flow loss"] < first["flow loss"] - 3
    assert last["center loss"] < 0.3 * first["center loss"]


def test_it_reads_class_vectors_off_real_rows(fitted):
    data = rows()
    latents, place = fitted.net_(data.x)[0], fitted.net_.place(data.attributes[SEEN])
    found = torch.cdist(latents[:, :2], place[:, :2]).argmin(1)
    assert (torch.tensor(SEEN)[found] == data.y).float().mean() > 0.95


def test_the_center_loss_is_what_centres_classes():
    data = rows()
    means = torch.stack([data.x[data.y == c].mean(0) for c in SEEN])
    gaps = []
    for weight in (0.0, 20.0):
        one = fit(tiny(n_epochs=40, learning_rate=0.01, center_weight=weight), data)
        gaps.append((one.centers(data.attributes[SEEN], random_stream(0, "x")) - means).norm(dim=1).mean())
    assert gaps[1] < 0.5 * gaps[0]


def test_the_discrepancy_drives_unseen_classes_away_from_seen_rows():
    data, found = rows(), {}
    for weight in (0.0, 100.0):
        flow = fit(tiny(n_epochs=40, learning_rate=0.01, mmd_weight=weight), data)
        unseen = flow.sample(data.attributes[[1, 4]].repeat_interleave(100, dim=0), random_stream(0, "x"))
        found[weight] = squared_discrepancy(data.x, unseen).item()
    assert found[100.0] > found[0.0] + 0.1


def test_the_flow_loss_is_what_spreads_rows():
    data = rows()
    loose = fit(tiny(n_epochs=40, learning_rate=0.01, flow_weight=0.0), data)
    sampled = loose.sample(data.attributes[[0]].expand(500, -1), random_stream(0, "x"))
    assert sampled.std(0).mean() > 0.3  # nothing says what noise stands for


# --- The same bits.
def test_the_same_seed_gives_the_same_bits():
    data = rows()
    first, again, other = (bits(fit(tiny(n_epochs=3), data, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_training_and_sampling_leave_the_global_random_state_alone():
    before = torch.get_rng_state()
    fit(tiny(attribute_noise=0.1), rows()).sample(torch.eye(2), random_stream(0, "x"))
    assert torch.equal(torch.get_rng_state(), before)


def test_a_broken_training_goes_on_to_the_same_bits(tmp_path):
    data, options = rows(), {"n_epochs": 4, "attribute_noise": 0.1}
    whole = fit(tiny(**options), data)

    def stop(epoch):
        if epoch == 3:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(**options), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(**options), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert bits(resumed) == bits(whole)
    assert resumed.history_ == whole.history_


@pytest.mark.parametrize("precision", ["tf32", "bf16"])
def test_it_trains_with_every_precision(precision):
    data = rows()
    flow = fit(tiny(n_epochs=60, learning_rate=0.01), data, precision=precision)
    assert far(flow, data) < 0.3
    assert all(values.dtype in (torch.float32, torch.long) for values in flow.net_.state_dict().values())


# --- Settings.
@pytest.mark.parametrize(
    ("hidden", "d_x", "expected"),
    [(None, 2048, [1024]), (None, 128, [256]), (1, 2048, [1024]), (2, 2048, [1024, 1024]), ((7, 3), 2048, [7, 3])],
)
def test_widths_are_the_prototypes_for_its_features_and_in_proportion_for_others(hidden, d_x, expected):
    assert list(ZeroShotFlow(hidden=hidden).widths(d_x)) == expected


def test_defaults_are_the_prototypes():
    expected = {"depth": 5, "learning_rate": 5e-4, "weight_decay": 1e-5, "batch_size": 256, "most_gradient": 10.0}
    expected |= {"input_noise": 0.008, "attribute_noise": 0.0}
    assert {name: getattr(ZeroShotFlow(), name) for name in expected} == expected
    (group,) = training_of(ZeroShotFlow(), rows()).optimizers["generator"].param_groups
    assert (group["lr"], group["betas"], group["weight_decay"]) == (5e-4, (0.9, 0.999), 1e-5)


@pytest.mark.parametrize(
    ("option", "values"),
    {
        "n_epochs": [0, 1.5],
        "attribute_noise": [-0.1, float("nan")],
        "noise_unit": ["percent"],
        "depth": [0, 2.5],
        "hidden": [(), (0,), 3, "16"],
        "attribute_std": [0.0, -1.0, float("nan")],
        "flow_weight": [-1.0],
        "center_weight": [-1.0, "much"],
        "mmd_weight": [-0.1],
        "input_noise": [-0.1, float("inf")],
        "most_gradient": [0.0],
        "weight_decay": [-1e-5],
        "learning_rate": [0.0],
        "batch_size": [0, 2.5],
    }.items(),
)
def test_a_bad_setting_is_refused_in_a_sentence(option, values):
    for value in values:
        with pytest.raises(DGZError, match=f"^{option} must be "):
            fit(tiny(**{option: value}), rows())


# --- Under other classifiers.
@pytest.mark.parametrize("distribution", ["generated", "statistical"])
def test_it_goes_with_dgzs_classifier(distribution):
    data = load_numbers(0, n_train=5, n_test=2)
    generator = tiny(n_epochs=2, batch_size=128, attribute_noise=0.05)
    model = DGZ(generator=generator, distribution=distribution, n_per_class=5, n_epochs=2, device="cpu")
    model.fit(data.x_train, data.y_train, data.attributes)
    assert model.predict(data.x_test_unseen).shape == (40,)
    assert GENERATORS["ZeroShotFlow"] is ZeroShotFlow
