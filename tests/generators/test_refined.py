"""FREE's generator: its refining module, its margin, and the space of its rows."""

from types import SimpleNamespace

import pytest
import torch
from sklearn.base import clone
from torch.nn.functional import leaky_relu, normalize

from dgz import DGZ
from dgz.errors import DGZError
from dgz.generators import RefiningVAEGAN
from dgz.generators.feedback import weighted_l1
from dgz.generators.refined import adaptive_margin
from dgz.training import Checkpoints, random_stream

SEEN = [0, 2, 3, 5]


def rows(n=60, spread=0.05):
    """Rows in [0, 1] of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.8, 0.2, 0.8, 0.2, 0.5], [0.2, 0.8, 0.2, 0.8, 0.5], [0.8, 0.8, 0.2, 0.2, 0.8], [0.2] * 5])
    place = torch.randint(4, (n,), generator=rng)
    x = (centers[place] + spread * torch.randn(n, 5, generator=rng)).clamp(0, 1)
    attributes = normalize(torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.05 * torch.rand(6, 4, generator=rng))
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    options = {"n_epochs": 1, "hidden": (16,), "learning_rate": 0.01, "d_refined": 7, "margin": 2.0} | options
    return RefiningVAEGAN(**options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    generator.build(4, 5, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def bits(generator):
    return {
        f"{part}/{name}": values.tolist()
        for part, net in generator.networks().items()
        for name, values in net.state_dict().items()
    }


# --- The margin.
@pytest.mark.parametrize("balance", [0.2, 0.5, 0.8])
@pytest.mark.parametrize("margin", [0.0, 1.0, 50.0])
def test_the_margin_loss_is_its_twin(margin, balance):
    points, own, other = torch.randn(3, 7, 4, generator=torch.Generator().manual_seed(0))
    total = 0.0
    for i in range(7):
        near = sum((points[i, k].item() - own[i, k].item()) ** 2 for k in range(4))
        far = sum((points[i, k].item() - other[i, k].item()) ** 2 for k in range(4))
        total += max(0.0, margin + balance * near - (1 - balance) * far)
    assert adaptive_margin(points, own, other, margin, balance).item() == pytest.approx(total / 7, rel=1e-5)


def test_another_class_is_never_the_rows_own():
    trainee = training_of(tiny(), rows())
    of = torch.arange(4).repeat(200)
    drawn = trainee._others(torch.zeros(800, 4), of)
    assert (drawn != of).all()
    assert {(a, b) for a, b in zip(of.tolist(), drawn.tolist(), strict=True)} == {
        (a, b) for a in range(4) for b in range(4) if a != b
    }


def test_the_nearest_other_class_is_the_one_with_the_nearest_centre():
    trainee = training_of(tiny(other="nearest"), rows())
    mean, of = trainee.centers.values.detach() + 0.01, torch.arange(4)
    found = trainee._others(mean, of)
    for k in range(4):
        far = [(mean[k] - trainee.centers.values[j]).norm().item() if j != k else float("inf") for j in range(4)]
        assert found[k] == far.index(min(far))


def test_a_single_seen_class_has_no_other():
    data = rows()
    data.y[:] = 3
    fit(tiny(), data)
    fit(tiny(other="nearest"), data)


# --- The module.
def test_the_module_describes_rows_by_a_mean_a_spread_and_hidden_values():
    data, generator = rows(), tiny()
    generator.build(4, 5, random_stream(0, "start"))
    net = generator.refiner_
    with torch.no_grad():
        for values in net.parameters():
            values.normal_(generator=torch.Generator().manual_seed(len(values)))
    hidden, mean, spread = generator.refine(data.x)
    inner = leaky_relu(data.x @ net.first.blocks[0].T + net.first.bias, 0.2)
    out = inner @ net.rest[0].blocks[0].T + net.rest[0].bias
    torch.testing.assert_close(hidden, inner)
    torch.testing.assert_close(mean, out[:, :4])
    torch.testing.assert_close(spread, 1 / (1 + torch.exp(-out[:, 4:])))
    torch.testing.assert_close(generator.embed(data.x), torch.cat([data.x, hidden, mean.sigmoid()], dim=1))
    assert generator.embedded_width(5) == 5 + 7 + 4


def test_training_rows_have_noise_and_test_rows_have_none():
    data = rows()
    generator = fit(tiny(), data)
    assert torch.equal(generator.embed(data.x), generator.embed(data.x))
    first, y = generator.training_rows(data.x, data.y, random_stream(0, "a"))
    other, _ = generator.training_rows(data.x, data.y, random_stream(0, "b"))
    assert torch.equal(y, data.y)
    assert torch.equal(first[:, :12], generator.embed(data.x)[:, :12])
    assert not torch.equal(first[:, 12:], other[:, 12:])


def test_the_widths_are_the_papers():
    generator = RefiningVAEGAN().build(312, 2048, torch.Generator())
    assert generator.refiner_.first.blocks[0].shape == (4096, 2048)
    assert generator.refiner_.rest[0].blocks[0].shape == (624, 4096)
    assert generator.embedded_width(2048) == 2048 + 4096 + 312


# --- What it learns.
def test_refined_rows_gather_round_their_classes_centres():
    """What makes it FREE: without the margin's loss, means do not come nearer to their own centres."""
    data = rows()

    def nearest(margin_matters):
        trainee = training_of(tiny(margin=1.0, balance=0.5, refining_rate=0.01), data)
        if not margin_matters:
            trainee.generator.margin = -1e9  # a loss that is always 0
        for _ in range(150):
            trainee.step()
        with torch.no_grad():
            mean = trainee.generator.refine(data.x)[1]
            found = torch.cdist(mean, trainee.centers.values).argmin(1)
        return (found == trainee.place[data.y]).float().mean().item()

    assert nearest(True) > 0.95
    assert nearest(False) < 0.8


def test_the_module_learns_class_vectors_of_real_rows_and_the_generator_to_make_such_rows():
    data = rows()
    alone = {"margin": 0.0, "balance": 0.0, "gan_weight": 0.0, "kl_weight": 0.01}  # nothing pulls the other way
    trainee = training_of(tiny(refining_weight=1.0, refining_rate=0.01, **alone), data)

    def error():
        with torch.no_grad():
            _, mean, _ = trainee.generator.refine(data.x)
            return weighted_l1(mean.sigmoid(), trainee.targets[data.y]).item()

    before = error()
    for _ in range(200):
        trainee.step()
    assert error() < 0.5 * before


def test_the_generators_loss_has_the_modules_with_its_weight():
    data = rows()
    trainee = training_of(tiny(refining_weight=3.0), data)
    generated = torch.rand(len(data.x), 5, generator=torch.Generator().manual_seed(0))
    state = trainee.rng.get_state()
    value = trainee.guidance(generated, data.x, data.y)
    trainee.rng.set_state(state)
    _, mean, spread = trainee.generator.refine(generated)
    noise = torch.randn(mean.shape, generator=trainee.rng)
    expected = 3.0 * weighted_l1((mean + spread * noise).sigmoid(), trainee.targets[data.y])
    torch.testing.assert_close(value, expected)
    assert trainee.n_steps == 2  # two passes over what is less than a batch


@pytest.mark.parametrize("options", [{}, {"freeze_refiner": True}, {"refining_weight": 0.0}])
def test_the_module_learns_from_generated_rows_unless_it_is_frozen(options):
    trainee = training_of(tiny(**options), rows())
    trainee._step_critic = lambda *args: torch.zeros(())
    before = {name: [v.clone() for v in net.state_dict().values()] for name, net in trainee.networks.items()}
    trainee.step()
    moved = {
        name
        for name, net in trainee.networks.items()
        if any((new != old).any() for new, old in zip(net.state_dict().values(), before[name], strict=True))
    }
    assert moved == {"generator", "encoder", "penalty"} | (set() if options else {"refiner"})


def test_centres_learn_as_fast_as_the_generator_and_the_module_at_its_own_rate():
    trainee = training_of(tiny(learning_rate=0.02, refining_rate=0.003), rows())
    rates = {name: optimizer.param_groups[0]["lr"] for name, optimizer in trainee.optimizers.items()}
    assert rates == {"encoder": 0.02, "generator": 0.02, "critic": 0.02, "refiner": 0.003, "centers": 0.02}
    before = trainee.centers.values.detach().clone()
    x, y = trainee.draw(1)
    trainee._step_critic(x, x.flip(0), y, torch.full((len(x), 1), 0.5))
    # Adam's first step is as long as the rate.
    assert (trainee.centers.values - before).abs().max().item() == pytest.approx(0.02, rel=1e-3)


def test_all_networks_are_moved_by_a_step():
    trainee = training_of(tiny(), rows())
    before = {name: [v.clone() for v in net.state_dict().values()] for name, net in trainee.networks.items()}
    trainee.step()
    for name, net in trainee.networks.items():
        assert any((new != old).any() for new, old in zip(net.state_dict().values(), before[name], strict=True)), name


# --- The contract of generators.
def test_a_broken_training_goes_on_as_if_it_had_not_been_broken(tmp_path):
    data = rows()
    whole = fit(tiny(n_epochs=4), data)

    class StopError(Exception):
        pass

    def stop(epoch):
        if epoch == 3:
            raise StopError
        return {}

    with pytest.raises(StopError):
        fit(tiny(n_epochs=4), data, checkpoints=Checkpoints(tmp_path, "x", 0), after_epoch=stop)
    resumed = fit(tiny(n_epochs=4), data, checkpoints=Checkpoints(tmp_path, "x", 0))
    assert bits(resumed) == bits(whole)
    assert bits(fit(clone(whole), data)) == bits(whole)
    assert bits(fit(tiny(n_epochs=4), data, seed=1)) != bits(whole)


def test_unseen_classes_do_not_move_what_is_learned():
    data, other = rows(), rows()
    other.attributes[[1, 4]] += 1.0
    assert bits(fit(tiny(), data)) == bits(fit(tiny(), other))


@pytest.mark.parametrize("noise", [0.0, 0.5])
def test_it_goes_with_dgzs_classifier_and_any_distribution(noise):
    data = rows()
    arrays = [values.numpy() for values in (data.x, data.y, data.attributes)]
    for distribution in ("generated", "statistical", "small"):
        generator = tiny(attribute_noise=noise)
        model = DGZ(generator=generator, distribution=distribution, n_epochs=2, n_per_class=5, d_hidden=8, device="cpu")
        assert model.fit(*arrays).predict(arrays[0]).shape == (60,)


def test_attribute_noise_changes_what_is_learned():
    assert bits(fit(tiny(attribute_noise=0.5), rows())) != bits(fit(tiny(), rows()))


@pytest.mark.parametrize(
    ("options", "sentence"),
    [
        ({"other": "none"}, "other must be one of random, nearest"),
        ({"margin": -1.0}, "margin must be"),
        ({"balance": -0.1}, "balance must be"),
        ({"refining_weight": float("nan")}, "refining_weight must be"),
        ({"refining_rate": 0.0}, "refining_rate must be"),
        ({"d_refined": 0}, "d_refined must be"),
        ({"freeze_refiner": "no"}, "freeze_refiner must be True or False"),
    ],
)
def test_bad_settings_get_a_sentence(options, sentence):
    with pytest.raises(DGZError, match=sentence):
        fit(tiny(**options), rows())
