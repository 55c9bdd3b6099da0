"""LisGAN's generator: its souls, its two losses against their twins, and that they are what holds its rows."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from dgz import DGZ, load_numbers
from dgz.errors import DGZError
from dgz.generators import GENERATORS, WGANGP, SoulWGANGP, wgan
from dgz.generators.souls import find_souls, to_nearest_soul
from dgz.training import Checkpoints, random_stream

SMALL = settings(max_examples=40, deadline=None)
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(seed=0, spread=0.2):
    """Eighty rows of four seen classes, each in two clusters, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[2.0, 0, 2, 0, 1], [0, 2, 0, 2, 1], [2, 2, 0, 0, 2], [0, 0, 2, 2, 0]]) + 0.5
    place, side = torch.randint(4, (80,), generator=rng), torch.randint(2, (80, 1), generator=rng)
    x = centers[place] + 0.8 * (side - 0.5) + spread * torch.randn(80, 5, generator=rng)
    attributes = 3 * torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.1 * torch.randn(6, 4, generator=rng)
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    options = {"n_epochs": 1, "hidden": (16,), "critic_hidden": 16, "n_critic": 2, "learning_rate": 0.01} | options
    return SoulWGANGP(**{"class_weight": 0.0, "batch_size": 20, "n_fakes": 6} | options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    generator.build(4, 5, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def bits(generator):
    return {name: values.tolist() for name, values in generator.net_.state_dict().items()}


def nearest(row, souls):
    """The squared distance from a row to the nearest of some souls, one number at a time."""
    return min(sum((a - b) ** 2 for a, b in zip(row, soul, strict=True)) for soul in souls)


# --- Souls.
def test_souls_are_the_clusters_of_a_class():
    rng = torch.Generator().manual_seed(0)
    middles = torch.tensor([[0.0, 0], [5, 0], [0, 5]])
    x = middles.repeat_interleave(8, dim=0) + 0.1 * torch.randn(24, 2, generator=rng)
    order = torch.randperm(48, generator=rng)
    both, y = torch.cat([x, x + 100])[order], torch.tensor([7] * 24 + [3] * 24)[order]
    souls = find_souls(both, y, 3, seed=0)
    assert souls.shape == (2, 3, 2)
    expected = torch.stack([x[8 * k : 8 * k + 8].mean(0) for k in range(3)])
    expected = expected[[0, 2, 1]]  # in the order of their first coordinate, which is about 0 twice
    for found, shift in ((souls[1], 0), (souls[0], 100)):  # class 3 comes first
        distances = torch.cdist(found, expected + shift)
        assert (distances.min(1).values < 1e-4).all()
        assert (distances.min(0).values < 1e-4).all()


@pytest.mark.parametrize("n_rows", [1, 2, 3, 5])
def test_a_class_with_few_different_rows_has_them_as_souls(n_rows, recwarn):
    x = torch.tensor([[0.0, 1], [2, 3], [4, 5], [0, 1], [2, 3]])[:n_rows]
    souls = find_souls(x, torch.zeros(n_rows, dtype=torch.long), 3, seed=0)
    different = torch.unique(x, dim=0)
    assert souls.shape == (1, 3, 2)
    assert torch.equal(torch.unique(souls[0], dim=0), different)
    assert torch.equal(souls[0][: len(different)], different)
    assert not recwarn  # k-means would say that it cannot find so many


def test_one_soul_is_the_classs_mean_and_seeds_repeat():
    data = rows()
    means = torch.stack([data.x[data.y == c].mean(0) for c in SEEN])
    torch.testing.assert_close(find_souls(data.x, data.y, 1, seed=0)[:, 0], means)
    first, again = (find_souls(data.x, data.y, 4, seed=seed) for seed in (5, 5))
    assert torch.equal(first, again)


def test_souls_leave_the_global_random_state_alone():
    data = rows()
    before = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    find_souls(data.x, data.y, 3, seed=0)
    assert torch.equal(torch.get_rng_state(), before[0])
    assert (np.random.get_state()[1] == before[1]).all()  # noqa: NPY002


# --- Its losses, against loops.
@SMALL
@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_distances_to_the_nearest_soul_are_their_twin(n, n_souls, d, seed):
    rng = torch.Generator().manual_seed(seed)
    x, souls = torch.randn(n, d, generator=rng), torch.randn(n, n_souls, d, generator=rng)
    expected = [nearest(x[i].tolist(), souls[i].tolist()) for i in range(n)]
    np.testing.assert_allclose(to_nearest_soul(x, souls), expected, rtol=1e-4, atol=1e-6)


def watched(trainee):
    """Batches drawn, and what the generator was given and gave."""
    drawn, made, draw = [], [], trainee.draw
    trainee.draw = lambda n: drawn.append(draw(n)) or drawn[-1]
    trainee.networks["generator"].register_forward_hook(lambda net, a, out: made.append((a, out.detach())))
    return drawn, made


@pytest.mark.parametrize("class_weight", [0.0, 0.4], ids=["plain", "judged"])
def test_the_row_term_is_the_mean_distance_of_rows_from_their_classs_souls(class_weight):
    data, losses = rows(), []
    for weight in (0.0, 0.3):
        options = {"mean_soul_weight": 0.0, "class_weight": class_weight}
        trainee = training_of(tiny(row_soul_weight=weight, **options), data)
        drawn, made = watched(trainee)
        losses.append(trainee.step())
    y, generated = drawn[0][1].chunk(2)[-1].tolist(), made[-1][1].tolist()
    souls = find_souls(data.x, data.y, 3, seed=0).tolist()
    expected = sum(nearest(row, souls[SEEN.index(c)]) for row, c in zip(generated, y, strict=True)) / len(y)
    assert expected > 0.1
    plain, held = losses
    assert (held["generator loss"] - plain["generator loss"]).item() == pytest.approx(0.3 * expected, rel=1e-4)
    assert held["critic loss"].item() == plain["critic loss"].item()


@pytest.mark.parametrize("prior", [True, False])
def test_the_mean_term_is_the_mean_distance_of_every_classs_mean_from_its_souls(prior):
    data, losses = rows(), []
    for weight in (0.0, 0.3):
        options = {"row_soul_weight": 0.0, "prior": prior, "attribute_noise": 0.05}
        trainee = training_of(tiny(mean_soul_weight=weight, **options), data)
        _, made = watched(trainee)
        losses.append(trainee.step())
    inputs, fakes = made[-1]
    assert len(fakes) == 4 * 6  # of all seen classes, whatever the batch has
    assert not torch.equal(fakes[0], fakes[1])
    gaps = (inputs[-1] - data.attributes[SEEN].repeat_interleave(6, dim=0)).abs()
    assert 0.01 < gaps.mean() < 0.1  # noisy vectors of their classes
    souls = find_souls(data.x, data.y, 3, seed=0).tolist()
    expected = 0.0
    for c in range(4):
        own = fakes[6 * c : 6 * c + 6].tolist()
        mean = [sum(row[j] for row in own) / 6 for j in range(5)]
        expected += nearest(mean, souls[c]) / 4
    plain, held = losses
    assert (held["generator loss"] - plain["generator loss"]).item() == pytest.approx(0.3 * expected, rel=1e-4)


def test_a_step_moves_the_generator_by_the_gradient_of_all_its_losses():
    data = rows()
    weights = {"mean_soul_weight": 0.5, "row_soul_weight": 0.25, "class_weight": 0.4}
    trainee = training_of(tiny(n_critic=1, learning_rate=1e-3, **weights), data)
    drawn, made = watched(trainee)
    net = copy.deepcopy(trainee.networks["generator"]).double()
    trainee.step()
    (_, y), (z, a), (fake_z, fake_a) = drawn[0], made[-2][0], made[-1][0]
    places = torch.tensor([SEEN.index(c) for c in y.tolist()])
    souls = find_souls(data.x, data.y, 3, seed=0).double()
    generated = net(z.double(), a.double())
    means = torch.stack([part.mean(0) for part in net(fake_z.double(), fake_a.double()).split(6)])
    loss = -copy.deepcopy(trainee.critic).double()(generated, data.attributes[y].double()).mean()
    scores = copy.deepcopy(trainee.judge.net).double()(generated)
    loss = loss + 0.4 * torch.nn.functional.cross_entropy(scores, places)
    to_souls = torch.stack([(row - souls[p]).square().sum(1).min() for row, p in zip(generated, places, strict=True)])
    of_means = torch.stack([(mean - own).square().sum(1).min() for mean, own in zip(means, souls, strict=True)])
    loss = loss + 0.25 * to_souls.mean() + 0.5 * of_means.mean()
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-3, betas=(0.5, 0.999))
    loss.backward()
    optimizer.step()
    for ours, theirs in zip(trainee.networks["generator"].parameters(), net.parameters(), strict=True):
        torch.testing.assert_close(ours, theirs.float(), rtol=1e-3, atol=1e-5)


def test_without_weight_it_is_f_clswgans_generator():
    data = rows()
    free = tiny(mean_soul_weight=0.0, row_soul_weight=0.0, n_epochs=2, attribute_noise=0.1)
    shared = {name: value for name, value in free.get_params().items() if name in WGANGP().get_params()}
    assert bits(fit(free, data)) == bits(plain := fit(WGANGP(**shared), data))
    for weight in ("mean_soul_weight", "row_soul_weight"):
        held = tiny(**{"mean_soul_weight": 0.0, "row_soul_weight": 0.0, weight: 0.1}, n_epochs=2, attribute_noise=0.1)
        assert bits(fit(held, data)) != bits(plain)


# --- Learning.
def test_souls_hold_the_rows_of_their_class():
    """What LisGAN adds to f-CLSWGAN: after little training, rows are near souls where the critic alone has no idea."""
    data, found = rows(), {}
    souls = find_souls(data.x, data.y, 3, seed=0)
    vectors = data.attributes[SEEN]
    for name, weights in {"none": (0.0, 0.0), "mean": (2.0, 0.0), "row": (0.0, 2.0)}.items():
        options = {"n_epochs": 30, "learning_rate": 0.01, "relu_out": False, "n_critic": 1}
        gan = fit(tiny(mean_soul_weight=weights[0], row_soul_weight=weights[1], **options), data)
        sampled = gan.sample(vectors.repeat_interleave(50, dim=0), random_stream(0, "test")).view(4, 50, 5)
        of_rows = to_nearest_soul(sampled.flatten(0, 1), souls.repeat_interleave(50, dim=0)).mean().item()
        found[name] = of_rows, to_nearest_soul(sampled.mean(1), souls).mean().item()
    assert found["row"][0] < 0.5 * found["none"][0]
    assert found["mean"][1] < 0.3 * found["none"][1]


# --- What it sees.
def test_unseen_classes_have_no_part_in_training():
    data, other = rows(), rows()
    other.attributes = torch.cat([other.attributes, torch.ones(3, 4)])
    other.attributes[[1, 4]] = 9.0
    one, two = (fit(tiny(n_epochs=2, class_weight=0.1), part) for part in (data, other))
    assert bits(one) == bits(two)


def test_its_judge_has_a_hundred_epochs_where_others_have_fifty(monkeypatch):
    data, calls, train = rows(), [], wgan.train
    monkeypatch.setattr(wgan, "train", lambda *args, **kw: calls.append(args[2]) or train(*args, **kw))
    training_of(tiny(class_weight=0.1), data)
    shared = {name: value for name, value in tiny().get_params().items() if name in WGANGP().get_params()}
    training_of(WGANGP(**{**shared, "class_weight": 0.1}), data)
    assert calls == [100, 50]


def test_attribute_noise_and_other_suppressions_change_what_is_learned():
    data = rows()
    plain = bits(fit(tiny(), data))
    for change in ({"attribute_noise": 0.1}, {"attribute_noise": 0.1, "noise_unit": "relative"}, {"l2": 0.01}):
        assert bits(fit(tiny(**change), data)) != plain
    assert bits(fit(tiny(fgm=0.05), data)) != plain


@pytest.mark.parametrize(("d_x", "width"), [(2048, 4096), (128, 512)])
def test_networks_are_f_clswgans(d_x, width):
    gan = SoulWGANGP(class_weight=0.0).build(3, d_x, random_stream(0, "x"))
    assert [len(layer.bias) for layer in (gan.net_.first, *gan.net_.rest)] == [width, d_x]
    gan.noise_ = 0.0
    trainee = gan._trainee(torch.rand(4, d_x), torch.arange(4), torch.eye(4, 3), seed=0, precision="float32")
    assert trainee.critic.first.bias.shape == (width,)
    assert trainee.souls.shape == (4, 3, d_x)
    assert set(trainee.networks) == {"generator", "critic"}


# --- The same bits.
def test_the_same_seed_gives_the_same_bits():
    data = rows()
    first, again, other = (bits(fit(tiny(n_epochs=3), data, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert first != other


def test_a_broken_training_goes_on_to_the_same_bits(tmp_path):
    data, options = rows(), {"n_epochs": 4, "class_weight": 0.1}
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


@pytest.mark.parametrize(
    ("option", "values"),
    {
        "n_souls": [0, 2.5],
        "n_fakes": [0, None],
        "mean_soul_weight": [-1.0, float("nan")],
        "row_soul_weight": [-1.0, "much"],
        "class_weight": [-1.0],
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
    generator = tiny(n_epochs=2, n_fakes=3, batch_size=64, attribute_noise=0.05)
    model = DGZ(generator=generator, distribution=distribution, n_per_class=5, n_epochs=2, device="cpu")
    model.fit(data.x_train, data.y_train, data.attributes)
    assert model.predict(data.x_test_unseen).shape == (40,)
    assert GENERATORS["SoulWGANGP"] is SoulWGANGP
