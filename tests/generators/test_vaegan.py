"""VAE-GANs: their losses and steps against slow twins, what f-VAEGAN-D2's and TF-VAEGAN's have in common, and learning."""

import copy
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone
from torch.nn.functional import leaky_relu, normalize

from dgz.errors import DGZError
from dgz.generators import GENERATORS, VAEGAN, FeedbackVAEGAN, vaegan
from dgz.generators.vaegan import AdaptivePenalty, mean_penalty, reconstruction_loss
from dgz.model import DGZ
from dgz.nets import Critic, initialise
from dgz.training import Checkpoints, adam, random_stream

SMALL = settings(max_examples=40, deadline=None)
KINDS = pytest.mark.parametrize("kind", [VAEGAN, FeedbackVAEGAN])
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(seed=0, spread=0.05, n=60):
    """Rows in [0, 1] of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[0.8, 0.2, 0.8, 0.2, 0.5], [0.2, 0.8, 0.2, 0.8, 0.5], [0.8, 0.8, 0.2, 0.2, 0.8], [0.2] * 5])
    place = torch.randint(4, (n,), generator=rng)
    x = (centers[place] + spread * torch.randn(n, 5, generator=rng)).clamp(0, 1)
    attributes = normalize(torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.05 * torch.randn(6, 4, generator=rng))
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(kind, **options):
    options = {"n_epochs": 1, "hidden": (16,), "n_critic": 2, "learning_rate": 0.01} | options
    return kind(**({"d_decoder": 7} if kind is FeedbackVAEGAN else {}) | options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    d_a, d_x = data.attributes.shape[1], data.x.shape[1]
    generator.build(d_a, d_x, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def larger(trainee, critic=5):
    """Multiply all parameters: so near to zero as they start, few losses would matter for a long time."""
    with torch.no_grad():
        for name, net in trainee.networks.items():
            for values in net.parameters():
                values.mul_(critic if name == "critic" else 5)


def bits(net):
    return {name: values.tolist() for name, values in net.state_dict().items()}


def all_bits(generator):
    return {name: bits(net) for name, net in generator.networks().items()}


# --- Formulas.
@SMALL
@given(st.integers(1, 4), st.integers(1, 4), st.integers(0, 99))
def test_the_reconstruction_loss_is_its_twin(n, d_x, seed):
    rng = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(n, d_x, generator=rng)
    x = torch.rand(n, d_x, generator=rng)
    total = 0.0
    for i in range(n):
        for j in range(d_x):
            p = 1 / (1 + math.exp(-logits[i, j].item()))
            total -= x[i, j].item() * math.log(p) + (1 - x[i, j].item()) * math.log(1 - p)
    assert reconstruction_loss(logits, x).item() == pytest.approx(total / n, rel=1e-4)


def test_far_logits_have_finite_losses_and_rows_beyond_the_range_count_as_its_ends():
    logits = torch.tensor([[1e4, -1e4]], requires_grad=True)
    loss = reconstruction_loss(logits, torch.tensor([[0.0, 1.0]]))
    assert loss.item() == pytest.approx(2e4)
    assert torch.autograd.grad(loss, logits)[0].tolist() == [[1.0, -1.0]]
    near = torch.tensor([[0.3, -2.0]])
    beyond, ends = (reconstruction_loss(near, torch.tensor([x])) for x in ([1.7, -0.2], [1.0, 0.0]))
    assert beyond == ends


@SMALL
@given(st.integers(1, 5), st.integers(1, 4), st.integers(1, 3), st.integers(0, 99))
def test_the_penalty_is_that_of_autograd(n, d_x, d_a, seed):
    rng = torch.Generator().manual_seed(seed)
    critic = initialise(Critic(d_x, d_a, 7), rng).double()
    with torch.no_grad():
        for values in critic.parameters():
            values.normal_(generator=rng)
    x, fake = torch.rand(2, n, d_x, generator=rng, dtype=torch.double)
    a, alpha = torch.rand(n, d_a, generator=rng).double(), torch.rand(n, 1, generator=rng).double()
    total = 0.0
    for i in range(n):
        point = (alpha[i] * x[i] + (1 - alpha[i]) * fake[i]).requires_grad_()
        (slope,) = torch.autograd.grad(critic(point[None], a[i : i + 1]).sum(), point)
        total += (math.sqrt(sum(value**2 for value in slope.tolist())) - 1) ** 2
    assert mean_penalty(critic, x, fake, a, alpha).item() == pytest.approx(total / n, rel=1e-5)


@pytest.mark.parametrize(
    ("penalty", "factor"), [(0.0, 1 / 1.1), (1.0, 1 / 1.1), (1.002, 1.0), (1.04, 1.0), (1.06, 1.1), (50.0, 1.1)]
)
def test_the_penaltys_weight_follows_its_size(penalty, factor):
    adaptive = AdaptivePenalty(10)
    for times in range(1, 4):
        adaptive.adapt(torch.tensor(penalty))
        assert adaptive.weight.item() == pytest.approx(10 * factor**times, rel=1e-6)
    assert list(adaptive.state_dict()) == ["weight"]  # so that checkpoints hold it
    assert not list(adaptive.parameters())


def test_the_penaltys_weight_never_gets_lost():
    falling, rising = AdaptivePenalty(10.0), AdaptivePenalty(10.0)
    for _ in range(3000):
        falling.adapt(torch.tensor(0.0))
        rising.adapt(torch.tensor(9.0))
    assert 0 < falling.weight < 1e-29
    assert 1e29 < rising.weight < torch.inf
    falling.adapt(torch.tensor(9.0))
    assert falling.weight == pytest.approx(1.1e-30, rel=1e-4)


# --- Steps, against autograd.
class Twin:
    """The training as one would write it down: in float64, with autograd, the losses in loops."""

    def __init__(self, trainee, data):
        vae = self.vae = trainee.generator
        self.nets = {name: copy.deepcopy(net).double() for name, net in trainee.networks.items() if name != "penalty"}
        self.vectors, self.gp_weight = data.attributes.double(), vae.gp_weight
        rates = {"decoder": getattr(vae, "decoder_rate", 0), "feedback": getattr(vae, "feedback_rate", 0)}
        self.optimizers = {}
        for name, net in self.nets.items():
            betas = (0.9, 0.999) if name == "encoder" else (0.5, 0.999)
            rate = rates.get(name, vae.learning_rate)
            self.optimizers[name] = torch.optim.Adam(net.parameters(), lr=rate, betas=betas)

    def descend(self, loss, *names):
        parameters = [values for name in names for values in self.nets[name].parameters()]
        for values, slope in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            values.grad = slope  # none for the critic's last bias, which cancels out
        for name in names:
            self.optimizers[name].step()

    def encoded(self, x, a, noise):
        hidden = leaky_relu(self.nets["encoder"].first(x, a), 0.2)
        hidden = leaky_relu(self.nets["encoder"].rest[0](hidden), 0.2)
        last = self.nets["encoder"].rest[1](hidden)
        d_z = last.shape[1] // 2
        mean, log_var = last[:, :d_z], last[:, d_z:]
        return mean, log_var, mean + torch.exp(0.5 * log_var) * noise

    def made(self, z, a, strength):
        net = self.nets["generator"]
        hidden = leaky_relu(net.first(z, a), 0.2)
        row = torch.sigmoid(net.rest[0](hidden))
        if strength is None:
            return row
        seen = leaky_relu(self.nets["decoder"].first(row), 0.2).detach()
        advice = leaky_relu(self.nets["feedback"].first(seen), 0.2)
        advice = leaky_relu(self.nets["feedback"].rest[0](advice), 0.2)
        return torch.sigmoid(net.rest[0](hidden + strength * advice))

    def told_badly(self, x, a):
        """The decoder's weighted L1 loss, a number at a time."""
        if "decoder" not in self.nets:
            return torch.zeros(())
        net, total = self.nets["decoder"], 0.0
        for row, vector in zip(x, a, strict=True):
            out = net.rest[0](leaky_relu(net.first(row[None]), 0.2))[0]
            out = out / torch.sqrt(sum(value**2 for value in out))
            apart = [out[k] - vector[k] for k in range(len(vector))]
            length = torch.sqrt(sum(d**2 for d in apart))
            total = total + sum(d**2 / length * abs(d) for d in apart)
        return self.vae.decoder_weight * total / len(x)

    def turn(self, batches, noise, strength=None):
        """Of batches (x, y, noisy class vectors, α, noise of the code), and the noise of the generator's step."""
        vae, critic = self.vae, self.nets["critic"]
        fakes = []
        for x, y, noisy, _, z in batches:
            with torch.no_grad():
                code = self.encoded(x, self.vectors[y], z)[2] if vae.encoded_noise else z
                fakes.append(self.made(code, noisy, strength))
        penalties = []
        for (x, y, _, alpha, _), fake in zip(batches, fakes, strict=True):
            a = self.vectors[y]
            if "decoder" in self.nets:
                self.descend(self.told_badly(x, a), "decoder")
            between = (alpha * x + (1 - alpha) * fake).requires_grad_()
            (slope,) = torch.autograd.grad(critic(between, a).sum(), between, create_graph=True)
            penalty = (slope.norm(dim=1) - 1).square().mean()
            penalties.append(penalty.item())
            critic_loss = critic(fake, a).mean() - critic(x, a).mean() + self.gp_weight * penalty
            self.descend(vae.gan_weight * critic_loss, "critic")
        ratio = sum(penalties) / len(penalties)
        self.gp_weight *= 1.1 if ratio > 1.05 else 1 / 1.1 if ratio < 1.001 else 1.0
        x, y, noisy, _, _ = batches[-1]
        a = self.vectors[y]
        mean, log_var, code = self.encoded(x, a, noise[0])
        again = self.made(code, noisy, strength)
        cross_entropy = -(x * again.log() + (1 - x) * (1 - again).log()).sum() / len(x)
        kl = -0.5 * (1 + log_var - mean**2 - log_var.exp()).sum() / len(x)
        fake = again if vae.encoded_noise else self.made(noise[1], noisy, strength)
        loss = cross_entropy + vae.kl_weight * kl - vae.gan_weight * critic(fake, a).mean() + self.told_badly(fake, a)
        learning = ["decoder"] if "decoder" in self.nets and not vae.freeze_decoder else []
        self.descend(loss, "generator", "encoder", *learning, *([] if strength is None else ["feedback"]))
        return critic_loss.item(), loss.item(), cross_entropy.item(), kl.item()


def recorded(trainee, monkeypatch):
    """Everything random that a training draws from now on."""
    vae, seen = trainee.generator, SimpleNamespace(rows=[], noisy=[], codes=[], priors=[], alphas=[])
    draw, blur, draw_prior, slopes = trainee.draw, vae._blur, vae._draw_prior, vaegan.critic_slopes

    def keep(place, value):
        place.append(value)
        return value

    def draw_code(mean, log_var):
        noise = torch.randn(mean.shape, generator=trainee.rng)
        seen.codes.append(noise)
        return mean + torch.exp(0.5 * log_var) * noise

    monkeypatch.setattr(trainee, "draw", lambda n: keep(seen.rows, draw(n)))
    monkeypatch.setattr(vae, "_blur", lambda a, rng: keep(seen.noisy, blur(a, rng)))
    monkeypatch.setattr(vae, "_draw_prior", lambda a, rng: keep(seen.priors, draw_prior(a, rng)))
    monkeypatch.setattr(trainee, "draw_code", draw_code)
    monkeypatch.setattr(vaegan, "critic_slopes", lambda *args: seen.alphas.append(args[4]) or slopes(*args))
    return seen


VARIANTS = [
    (VAEGAN, {}),
    (VAEGAN, {"encoded_noise": False}),
    (FeedbackVAEGAN, {}),
    (FeedbackVAEGAN, {"freeze_decoder": True}),
    (FeedbackVAEGAN, {"encoded_noise": False}),
]


@pytest.mark.parametrize("steep", [5, 40], ids=["flat critic", "steep critic"])
@pytest.mark.parametrize(("kind", "variant"), VARIANTS)
def test_all_steps_are_those_of_autograd(kind, variant, steep, monkeypatch):
    data = rows()
    options = {"batch_size": 10, "attribute_noise": 0.1, "learning_rate": 1e-3, "gp_weight": 5.0, "gan_weight": 3.0}
    options |= {"kl_weight": 0.7, "d_prior": 3}
    if kind is FeedbackVAEGAN:
        options |= {"feedback_strength": 0.6, "decoder_weight": 2.0, "decoder_rate": 2e-3, "feedback_rate": 3e-3}
    trainee = training_of(tiny(kind, **options, **variant), data)
    larger(trainee, critic=steep)
    twin = Twin(trainee, data)
    seen = recorded(trainee, monkeypatch)
    encoded = trainee.generator.encoded_noise
    strengths = [None] if kind is VAEGAN else [None, 0.6]
    for _ in range(3):
        for place in vars(seen).values():
            place.clear()
        losses = trainee.step()
        expected = []
        for turn, strength in enumerate(strengths):
            (x, y), noisy, alpha = seen.rows[turn], seen.noisy[turn], torch.cat(seen.alphas[2 * turn : 2 * turn + 2])
            if encoded:
                code, *noise = seen.codes[2 * turn : 2 * turn + 2]
            else:
                noise, code = [seen.codes[turn], seen.priors[2 * turn + 1]], seen.priors[2 * turn]
            parts = (x.double(), y, noisy.double(), alpha.double(), code.double())
            batches = list(zip(*(part.chunk(2) for part in parts), strict=True))
            expected.append(twin.turn(batches, [part.double() for part in noise], strength))
        means = np.mean(expected, axis=0)
        names = ["critic loss", "generator loss", "reconstruction loss", "kl loss"]
        assert [losses[name].item() for name in names] == pytest.approx(list(means), rel=1e-3, abs=1e-4)
        assert trainee.penalty.weight.item() == pytest.approx(twin.gp_weight, rel=1e-5)
    assert (twin.gp_weight > 5) == (steep == 40)
    for name, net in twin.nets.items():
        for (which, ours), theirs in zip(trainee.networks[name].named_parameters(), net.parameters(), strict=True):
            torch.testing.assert_close(
                ours, theirs.float(), rtol=1e-3, atol=2e-5, msg=lambda text, at=f"{name} {which}": f"{at}: {text}"
            )


@KINDS
def test_a_step_never_asks_the_device_for_a_number(kind, monkeypatch):
    trainee = training_of(tiny(kind, attribute_noise=0.1), rows())
    trainee.step()

    def refuse(*args):
        raise AssertionError("a number was read")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    losses = trainee.step()
    monkeypatch.undo()
    assert all(value.isfinite() for value in losses.values())


def test_a_code_has_the_encoders_mean_and_deviation():
    trainee = training_of(tiny(VAEGAN), rows())
    mean, log_var = torch.tensor([[3.0, -1.0]]).expand(20_000, 2), torch.tensor([[0.5, -2.0]]).expand(20_000, 2)
    code = trainee.draw_code(mean, log_var)
    np.testing.assert_allclose(code.mean(0), [3.0, -1.0], atol=0.05)
    np.testing.assert_allclose(code.std(0), np.exp([0.25, -1.0]), rtol=0.03)
    assert not torch.equal(code, trainee.draw_code(mean, log_var))


def test_a_step_moves_encoder_generator_and_critic_and_the_penaltys_weight():
    trainee = training_of(tiny(VAEGAN), rows())
    before = {name: bits(net) for name, net in trainee.networks.items()}
    losses = trainee.step()
    assert {name for name, net in trainee.networks.items() if bits(net) != before[name]} == set(before)
    assert set(before) == {"generator", "critic", "encoder", "penalty"}
    assert set(losses) == {"critic loss", "generator loss", "reconstruction loss", "kl loss", "gp weight"}
    later = trainee.step()
    assert later["gp weight"] < losses["gp weight"]  # each is a number of its own


def test_the_encoder_sees_clean_vectors_and_the_generator_noisy_ones():
    data = rows()
    trainee = training_of(tiny(VAEGAN, attribute_noise=0.5), data)
    of_encoder, of_generator = [], []
    trainee.encoder.register_forward_pre_hook(lambda net, inputs: of_encoder.append(inputs[1]))
    trainee.generator.net_.register_forward_pre_hook(lambda net, inputs: of_generator.append(inputs[1]))
    trainee.step()
    inputs = (torch.cat(of_encoder), torch.cat(of_generator))
    distance = [(a[:, None] - data.attributes).norm(dim=2).min(1).values for a in inputs]
    assert distance[0].max() < 1e-6
    assert distance[1].min() > 0.05
    assert torch.equal(of_generator[1], of_generator[0].chunk(2)[1])  # of the last critic step


@pytest.mark.parametrize("kind", [VAEGAN, FeedbackVAEGAN])
@pytest.mark.parametrize("setting", ["gan_weight", "kl_weight", "gp_weight"])
def test_each_weight_matters(kind, setting):
    data = rows()
    one, two = (fit(tiny(kind, n_epochs=2, **{setting: value}), data) for value in (0.5, 4.0))
    assert bits(one.net_) != bits(two.net_)


@KINDS
def test_where_codes_come_from_matters(kind):
    data = rows()
    one, two = (fit(tiny(kind, n_epochs=2, encoded_noise=value), data) for value in (True, False))
    assert bits(one.net_) != bits(two.net_)


# --- Networks and settings.
@pytest.mark.parametrize(("d_x", "d_hidden"), [(2048, 4096), (128, 512), (5, 512)])
def test_networks_are_the_published_ones_and_in_proportion_for_narrower_rows(d_x, d_hidden):
    vae = VAEGAN().build(3, d_x, random_stream(0, "x"))
    trainee = vae._trainee(torch.rand(4, d_x), torch.arange(4), torch.eye(4, 3), seed=0, precision="float32")

    def shapes(net):
        return [[tuple(block.shape) for block in layer.blocks] for layer in (net.first, *getattr(net, "rest", ()))]

    assert shapes(vae.net_) == [[(d_hidden, 3), (d_hidden, 3)], [(d_x, d_hidden)]]
    assert shapes(trainee.encoder) == [[(d_hidden, d_x), (d_hidden, 3)], [(6, d_hidden)], [(6, 6)]]
    assert shapes(trainee.critic) == [[(d_hidden, d_x), (d_hidden, 3)]]
    assert shapes(VAEGAN(d_prior=2).new_encoder(3, d_x))[-2:] == [[(4, d_hidden)], [(4, 4)]]


def test_optimizers_are_those_of_the_released_code():
    trainee = training_of(tiny(VAEGAN, learning_rate=3e-4), rows())
    found = {name: one.param_groups[0] for name, one in trainee.optimizers.items()}
    assert {name: (group["lr"], *group["betas"]) for name, group in found.items()} == {
        "generator": (3e-4, 0.5, 0.999),
        "critic": (3e-4, 0.5, 0.999),
        "encoder": (3e-4, 0.9, 0.999),
    }


@KINDS
def test_defaults_are_those_of_the_released_scripts(kind):
    found = kind().get_params()
    expected = {"batch_size": 64, "n_critic": 5, "gp_weight": 10.0, "gan_weight": 10.0, "kl_weight": 1.0, "hidden": 1}
    expected |= {"encoded_noise": True, "attribute_noise": 0.0, "d_prior": None, "learning_rate": 1e-4}
    assert {name: found[name] for name in expected} == expected
    assert GENERATORS[kind.__name__] is kind


BAD = {
    "n_epochs": [0, 1.5],
    "attribute_noise": [-0.1, float("nan")],
    "noise_unit": ["percent"],
    "learning_rate": [0, -1e-4, "fast"],
    "hidden": [(), (0,), 3, "16"],
    "d_prior": [0, 2.5],
    "n_critic": [0, 1.5],
    "gp_weight": [-1.0, float("nan")],
    "gan_weight": [-1.0, float("inf")],
    "kl_weight": [-1.0, None],
    "encoded_noise": [None, 1, "yes"],
    "critic_hidden": [0, 2.5],
    "batch_size": [0, 2.5],
}


@KINDS
@pytest.mark.parametrize("option", BAD)
def test_a_bad_setting_is_refused_in_a_sentence(kind, option):
    for value in BAD[option]:
        with pytest.raises(DGZError, match=f"^{option} must be "):
            fit(tiny(kind, **{option: value}), rows())


@KINDS
def test_scikit_learns_contract(kind):
    changed = {"n_epochs": 2, "attribute_noise": 0.5, "gan_weight": 3.0, "hidden": (7, 3), "encoded_noise": False}
    one = kind(**changed)
    twin = clone(one)
    assert twin.get_params() == one.get_params()
    assert {name: twin.get_params()[name] for name in changed} == changed
    fit(one, rows())
    assert one.get_params() == twin.get_params()
    assert all_bits(fit(twin, rows())) == all_bits(one)
    with pytest.raises(ValueError, match="Invalid parameter 'relu_out'"):
        kind().set_params(relu_out=True)


# --- Rows.
def test_samples_are_made_of_noise_and_clean_vectors_and_lie_between_0_and_1():
    data = rows()
    vae = fit(tiny(VAEGAN, attribute_noise=0.5, d_prior=3), data)
    made = []
    vae.net_.register_forward_hook(lambda net, inputs, output: made.append((*inputs, output)))
    sampled = vae.sample(data.attributes, random_stream(0, "test"))
    z, a, logits = made[0]
    assert torch.equal(a, data.attributes)
    assert torch.equal(z, torch.randn(6, 3, generator=random_stream(0, "test")))
    torch.testing.assert_close(sampled, 1 / (1 + torch.exp(-logits)))
    assert sampled.shape == (6, 5)
    assert not sampled.requires_grad
    assert not vae.embeds
    assert vae.networks() == {"generator": vae.net_}
    many = vae.sample(data.attributes[:1].expand(20_000, -1), random_stream(0, "test"))
    assert 0 < many.min() < many.max() < 1


# --- The same bits.
@KINDS
def test_the_same_seed_gives_the_same_bits(kind):
    data, runs = rows(), []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))  # must not matter
        before = torch.get_rng_state()
        generator = fit(tiny(kind, n_epochs=3), data, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append((all_bits(generator), generator.history_))
    assert runs[0] == runs[1]
    assert all(runs[0][0][name] != runs[2][0][name] for name in runs[0][0])


@KINDS
def test_a_broken_training_goes_on_to_the_same_bits(kind, tmp_path):
    data, options = rows(), {"n_epochs": 5, "attribute_noise": 0.1}
    whole = fit(tiny(kind, **options), data)

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(kind, **options), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(kind, **options), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert all_bits(resumed) == all_bits(whole)
    assert resumed.history_ == whole.history_  # the penalty's weight, too
    assert resumed.history_[-1]["gp weight"] < resumed.history_[0]["gp weight"] < 10


@KINDS
def test_it_trains_with_every_precision(kind):
    data = rows()
    found = [fit(tiny(kind, n_epochs=3), data, precision=precision) for precision in ("float32", "tf32", "bf16")]
    assert all_bits(found[0]) == all_bits(found[1])  # which is for GPUs
    assert all_bits(found[0]) != all_bits(found[2])
    centers = [one.centers(data.attributes, random_stream(0, "test")) for one in found]
    assert all(values.dtype == torch.float32 for values in centers)
    torch.testing.assert_close(centers[2], centers[0], rtol=0.05, atol=0.05)


@KINDS
def test_unseen_classes_have_no_part_in_training(kind):
    data, other = rows(), rows()
    other.attributes = torch.cat([other.attributes, torch.ones(3, 4)])
    other.attributes[[1, 4]] = 9.0
    one, two = (fit(tiny(kind, n_epochs=2), part) for part in (data, other))
    assert all_bits(one) == all_bits(two)


# --- Learning.
LONG = {"n_epochs": 150, "hidden": (32,), "learning_rate": 4e-3, "gan_weight": 1.0, "batch_size": 60}


@pytest.fixture(scope="module")
def learned():
    data = rows()
    return data, fit(tiny(VAEGAN, **LONG), data)


def test_generated_classes_lie_where_the_real_ones_do(learned):
    data, vae = learned
    means = torch.stack([data.x[data.y == c].mean(0) for c in SEEN])
    centers = vae.centers(data.attributes[SEEN], random_stream(0, "test"))
    np.testing.assert_allclose(centers, means, atol=0.12)
    first, last = vae.history_[0], vae.history_[-1]
    assert last["reconstruction loss"] < first["reconstruction loss"] - 0.5
    for vector in data.attributes[SEEN]:
        spread = vae.sample(vector.expand(500, -1), random_stream(0, "test")).std(0).mean()
        assert 0.001 < spread < 0.25


def test_the_code_tells_what_the_class_does_not():
    data = rows(n=200)
    data.x[:, 4] = 0.1 + 0.8 * (torch.arange(200) % 2)  # rows of a class are of two kinds
    options = {"batch_size": 50, "n_critic": 1, "kl_weight": 0.05, "gan_weight": 0.1}
    trainee = training_of(tiny(VAEGAN, **options), data)
    larger(trainee)
    for _ in range(200):
        trainee.step()
    with torch.no_grad():
        a = data.attributes[data.y]
        again = vaegan.as_rows(trainee.generator.net_(trainee.encode(data.x, a)[0], a))
        blind = vaegan.as_rows(trainee.generator.net_(torch.zeros(200, 4), a))
    assert (again - data.x)[:, 4].square().mean() < 0.02
    assert (blind - data.x)[:, 4].square().mean() > 0.1


def test_the_critics_opinion_moves_the_generator():
    data = rows()

    def opinion(weight):
        trainee = training_of(tiny(VAEGAN, gan_weight=weight, n_critic=1), data)
        larger(trainee, critic=20)
        trainee._step_critic = lambda *args: torch.zeros(())
        for _ in range(60):
            trainee.step()
        a = data.attributes[data.y]
        with torch.no_grad():
            return trainee.critic(trainee.generator.sample(a, random_stream(0, "test")), a).mean().item()

    indifferent, moved, slavish = (opinion(weight) for weight in (0.0, 1.0, 100.0))
    assert indifferent + 0.1 < moved < slavish - 0.1


def test_the_penaltys_weight_falls_until_the_critic_is_steep():
    data = rows()
    vae = fit(tiny(VAEGAN, **LONG | {"n_epochs": 100}), data)
    weights = [row["gp weight"] for row in vae.history_]
    assert weights[9] == pytest.approx(10 / 1.1**10, rel=1e-3)
    assert min(weights) > 1e-6  # it comes back


# --- With other parts.
@KINDS
@pytest.mark.parametrize("distribution", ["generated", "statistical"])
def test_it_goes_with_dgzs_classifier_and_any_distribution(kind, distribution):
    data = rows(n=40)
    x, y, vectors = data.x.numpy(), data.y.numpy(), data.attributes.numpy()
    model = DGZ(
        generator=tiny(kind, n_epochs=2),
        distribution=distribution,
        n_epochs=2,
        n_per_class=5,
        d_hidden=8,
        feature_scaling="minmax",
        device="cpu",
    )
    model.fit(x, y, vectors)
    assert set(model.predict(x)) <= set(range(6))
    width = 5 if kind is VAEGAN else 5 + 4 + 7
    assert model.embed(x).shape == (40, width)
    made, labels = model.generate([1, 4], 3)
    assert made.shape == (6, width)
    assert labels.tolist() == [1, 1, 1, 4, 4, 4]


@KINDS
def test_attribute_noise_changes_what_is_learned(kind):
    data = rows()
    none, absolute = (fit(tiny(kind, n_epochs=2, attribute_noise=value), data) for value in (0.0, 0.3))
    relative = fit(tiny(kind, n_epochs=2, attribute_noise=0.3, noise_unit="relative"), data)
    assert len({str(bits(one.net_)) for one in (none, absolute, relative)}) == 3
    assert relative.noise_ == pytest.approx(0.3 * data.attributes[SEEN].std(correction=0).item())


@pytest.mark.parametrize("scales", [(), (1.0,), (1e4, 1e-4)])
def test_further_losses_are_minimised_too_whatever_their_slopes_are_scaled_by(scales):
    part, other = (torch.tensor(values, requires_grad=True) for values in ([1.0, -2.0], [3.0]))
    loss, further = (part**2).sum() * other.sum(), [((part**3).sum(), scale) for scale in scales]
    optimizers = [adam([values], 0.1) for values in (part, other)]
    vaegan.descend_together(optimizers, loss, *further)  # the other has no part in these
    torch.testing.assert_close(part.grad, torch.tensor([6.0, -12.0]) + len(scales) * torch.tensor([3.0, 12.0]))
    torch.testing.assert_close(other.grad, torch.tensor([5.0]))
    # Adam's first step is the sign of a slope; where there is none, none is made.
    torch.testing.assert_close(part.detach() - torch.tensor([1.0, -2.0]), -0.1 * part.grad.sign())
    torch.testing.assert_close(other.detach(), torch.tensor([2.9]))
