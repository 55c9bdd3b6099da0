"""GCM-CF's generator: its losses against slow twins, what its encoder sees, and rows as they would be in other classes."""

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
from dgz.generators import GENERATORS, CounterfactualVAEGAN, FeedbackVAEGAN, feedback, vaegan
from dgz.generators.counterfactual import contrast, draw_codes
from dgz.generators.vaegan import as_rows
from dgz.model import DGZ
from dgz.training import Checkpoints, random_stream

SMALL = settings(max_examples=40, deadline=None)
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(n=60, spread=0.05, n_unseen=2):
    """Rows in [0, 1] of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(0)
    centers = torch.tensor([[0.8, 0.2, 0.8, 0.2, 0.5], [0.2, 0.8, 0.2, 0.8, 0.5], [0.8, 0.8, 0.2, 0.2, 0.8], [0.2] * 5])
    place = torch.randint(4, (n,), generator=rng)
    x = (centers[place] + spread * torch.randn(n, 5, generator=rng)).clamp(0, 1)
    attributes = normalize(torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.05 * torch.randn(6, 4, generator=rng))
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes, centers=centers)


def tiny(**options):
    options = {"n_epochs": 1, "hidden": (16,), "n_critic": 2, "learning_rate": 0.01, "d_decoder": 7} | options
    return CounterfactualVAEGAN(**{"kl_warm_up": 2, "n_contrasts": 2, **options})


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0, larger=1.0):
    """What ``fit`` trains, before its first step; parameters may start larger, so that all of them matter."""
    d_a, d_x = data.attributes.shape[1], data.x.shape[1]
    generator.build(d_a, d_x, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    trainee = generator._trainee(data.x, data.y, data.attributes, seed, "float32")
    with torch.no_grad():
        for net in trainee.networks.values():
            for values in net.parameters():
                values.mul_(larger)
    return trainee


def bits(net):
    return {name: values.tolist() for name, values in net.state_dict().items()}


def all_bits(generator):
    return {name: bits(net) for name, net in generator.networks().items()}


# --- The contrastive loss.
@SMALL
@given(st.integers(1, 4), st.integers(1, 4), st.integers(1, 5), st.floats(0, 500), st.integers(0, 99))
def test_the_contrast_is_its_twin(n, n_classes, d_x, scale, seed):
    rng = torch.Generator().manual_seed(seed)
    made, x = torch.rand(n, n_classes, d_x, generator=rng), torch.rand(n, d_x, generator=rng)
    total = 0.0
    for i in range(n):
        logits = []
        for c in range(n_classes):
            apart = [(x[i, k].item() - made[i, c, k].item()) ** 2 for k in range(d_x)]
            logits.append(-scale * sum(apart) / d_x)
        top = max(logits)
        total -= logits[0] - top - math.log(sum(math.exp(value - top) for value in logits))
    assert contrast(made, x, scale).item() == pytest.approx(total / n, rel=1e-3, abs=1e-4)


def test_other_classes_are_seen_and_none_comes_twice():
    data = rows()
    for asked, expected in ((1, 1), (2, 2), (3, 3), (30, 3)):
        trainee = training_of(tiny(n_contrasts=asked), data)
        hits = torch.zeros(6, 6)
        for _ in range(60):
            chosen = trainee.draw_classes(data.y)
            assert chosen.shape == (60, expected + 1)
            assert torch.equal(chosen[:, 0], data.y)
            assert (chosen.sort(1).values.diff() > 0).all()
            for own, others in zip(data.y, chosen[:, 1:], strict=True):
                hits[own, others] += 1
        shares = hits / hits.sum(1, keepdim=True)
        assert shares[:, [1, 4]].nan_to_num().sum() == 0
        for own in SEEN:
            others = [c for c in SEEN if c != own]
            torch.testing.assert_close(shares[own, others], torch.full((3,), 1 / 3), atol=0.07, rtol=0)


def test_scaled_slopes_of_the_contrast_are_at_most_one():
    trainee = training_of(tiny(contrast_weight=3.0, contrast_scale=70.0), rows())
    trainee.step()
    x, y = trainee.draw()
    ((loss, scale),) = trainee.further_losses(x, y)
    assert loss.item() == pytest.approx(3 * trainee.last_contrast.item())
    made = (1 - x[:, None]).round().repeat(1, 3, 1).requires_grad_()  # as far from the rows as can be
    made.data[:, 1:] = x[:, None]
    (slopes,) = torch.autograd.grad(3 * scale * contrast(made, x, 70.0), made)
    assert 0.5 < slopes.abs().max() <= 1
    flat = training_of(tiny(contrast_scale=0.0), rows())
    assert np.isfinite([value.item() for value in flat.step().values()]).all()


def test_a_single_class_has_nothing_to_contrast_with():
    data = rows()
    data.y = torch.full_like(data.y, 3)
    trainee = training_of(tiny(), data)
    assert trainee.draw_classes(data.y).tolist() == [[3]] * 60
    assert trainee.step()["contrast loss"] == 0


def encoded(vae, x, a, noise):
    """A code as one would write it down, of one row and one class vector."""
    first, second, last = vae.encoder_.first, *vae.encoder_.rest
    hidden = first.blocks[0] @ x + first.bias
    if vae.encoder_sees_class:
        hidden = hidden + first.blocks[1] @ a
    hidden = leaky_relu(second.blocks[0] @ leaky_relu(hidden, 0.2) + second.bias, 0.2)
    out = last.blocks[0] @ hidden + last.bias
    mean, log_var = out[: len(out) // 2], out[len(out) // 2 :]
    return mean, log_var, mean + torch.exp(0.5 * log_var) * noise


def made(vae, z, a, strength):
    """A row of a code and a class vector; with feedback where there is a strength."""
    net = vae.net_
    hidden = leaky_relu(net.first.blocks[0] @ z + net.first.blocks[1] @ a + net.first.bias, 0.2)
    row = torch.sigmoid(net.rest[0].blocks[0] @ hidden + net.rest[0].bias)
    if strength is None:
        return row
    seen = leaky_relu(vae.decoder_.first.blocks[0] @ row + vae.decoder_.first.bias, 0.2).detach()
    advice = leaky_relu(vae.feedback_.first.blocks[0] @ seen + vae.feedback_.first.bias, 0.2)
    advice = leaky_relu(vae.feedback_.rest[0].blocks[0] @ advice + vae.feedback_.rest[0].bias, 0.2)
    return torch.sigmoid(net.rest[0].blocks[0] @ (hidden + strength * advice) + net.rest[0].bias)


VARIANTS = [{}, {"encoder_sees_class": True}, {"target_noise": 0.0}, {"contrast_weight": 0.0}, {"attribute_noise": 0.1}]


@pytest.mark.parametrize("variant", VARIANTS)
def test_what_is_minimised_is_what_one_would_write_down(variant, monkeypatch):
    """Both turns of a step: losses in loops, in double precision, and their slopes by autograd."""
    data = rows(n=12)
    options = {"batch_size": 6, "n_critic": 1, "kl_weight": 0.7, "gan_weight": 3.0, "decoder_weight": 2.0, "d_prior": 3}
    options |= {"feedback_strength": 0.6, "synthesis_strength": 0.3, "contrast_weight": 1.5, "contrast_scale": 80.0}
    trainee = training_of(tiny(**options | variant), data, larger=5.0)
    vae = trainee.generator
    trainee.begin_epoch(2)  # half of β
    found, seen = [], SimpleNamespace()

    def record(optimizers, loss, *further):
        loss = loss + sum(value for value, _ in further)
        parameters = [values for one in optimizers for values in one.param_groups[0]["params"]]
        found.append((loss.item(), torch.autograd.grad(loss, parameters), vars(seen).copy(), copy.deepcopy(trainee)))

    def keep(owner, name):
        plain = getattr(owner, name)

        def kept(*args, **kwargs):
            value = plain(*args, **kwargs)
            vars(seen).setdefault(name, []).append(value)
            return value

        monkeypatch.setattr(owner, name, kept)

    def randn(*size, **options):
        value = plain_randn(*size, **options)
        vars(seen).setdefault("noise", []).append(value)
        return value

    plain_randn, turn = torch.randn, trainee.turn
    monkeypatch.setattr(vaegan, "descend_together", record)
    monkeypatch.setattr(torch, "randn", randn)
    for name in ("draw", "draw_classes"):
        keep(trainee, name)
    keep(vae, "_blur")
    monkeypatch.setattr(trainee, "turn", lambda *args: vars(seen).clear() or turn(*args))
    losses = trainee.step()
    monkeypatch.undo()
    assert len(found) == 2
    contrasts = []
    for strength, (loss, slopes, drawn, then) in zip((None, 0.6), found, strict=True):
        (x, y), noise = drawn["draw"][0], list(drawn["noise"])
        # In this order: attribute noise, the critic's codes, the code, the target, and the contrast's codes and noise.
        noisy = drawn["_blur"][0].double()
        noise = noise[1:] if variant.get("attribute_noise") else noise
        code_noise = noise[1].double()
        target_noise = noise[2].double() if vae.target_noise else torch.zeros(6, 5).double()
        nets = then.generator
        for net in (*nets.networks().values(), then.critic):
            net.double()
        x, vectors = x.double(), data.attributes.double()
        cross_entropy, kl, opinion, told, contrasted = 0.0, 0.0, 0.0, 0.0, 0.0
        for i in range(6):
            a = vectors[y[i]]
            mean, log_var, z = encoded(nets, x[i], a, code_noise[i])
            again = made(nets, z, noisy[i], strength)
            target = x[i] + vae.target_noise * target_noise[i]
            cross_entropy -= (target * again.log() + (1 - target) * (1 - again).log()).sum() / 6
            kl -= 0.5 * (1 + log_var - mean**2 - log_var.exp()).sum() / 6
            opinion += then.critic(again[None], a[None])[0] / 6
            apart = nets.describe(again[None])[0][0] - a / a.norm()
            told += (apart.abs() ** 3).sum() / apart.norm() / 6
            if vae.contrast_weight:
                logits = []
                for k, c in enumerate(drawn["draw_classes"][0][i]):
                    spread = noise[2 + bool(vae.target_noise)][i, k].double()
                    code = encoded(nets, x[i], vectors[c], spread)[2]
                    vector = drawn["_blur"][1][i, k].double()
                    copied = made(nets, code, vector, None if strength is None else 0.3)
                    logits.append(-80.0 * ((x[i] - copied) ** 2).sum() / 5)
                contrasted -= torch.log_softmax(torch.stack(logits), 0)[0] / 6
        expected = cross_entropy + 0.35 * kl - 3.0 * opinion + 2.0 * told + vae.contrast_weight * contrasted
        assert loss == pytest.approx(expected.item(), rel=1e-4)
        moving = [nets.encoder_, nets.net_, nets.decoder_, *([] if strength is None else [nets.feedback_])]
        parameters = [values for net in moving for values in net.parameters()]
        for ours, theirs in zip(slopes, torch.autograd.grad(expected, parameters), strict=True):
            torch.testing.assert_close(ours, theirs.float(), rtol=1e-3, atol=1e-4)
        contrasts.append(contrasted)
    if vae.contrast_weight:
        assert losses["contrast loss"].item() == pytest.approx(sum(contrasts).item() / 2, rel=1e-3)
    else:
        assert "contrast loss" not in losses


def test_the_decoder_learns_from_real_rows_without_a_weight(monkeypatch):
    data, losses = rows(), []
    trainee = training_of(tiny(decoder_weight=0.01), data)
    monkeypatch.setattr(feedback, "descend", lambda optimizer, loss: losses.append((optimizer, loss.item())))
    trainee._step_critic(data.x, data.x, data.y, torch.full((len(data.x), 1), 0.5))
    found = trainee.generator.describe(data.x)[0]
    (optimizer, loss), expected = losses[0], feedback.weighted_l1(found, trainee.targets[data.y])
    assert optimizer is trainee.optimizers["decoder"]
    assert loss == pytest.approx(expected.item(), rel=1e-6)
    # TF-VAEGAN's has the weight there, too.
    plain = FeedbackVAEGAN(hidden=(16,), d_decoder=7, decoder_weight=0.01)
    plain.build(4, 5, random_stream(0, "generator's start")).noise_ = 0.0
    plain._trainee(data.x, data.y, data.attributes, 0, "float32")._step_critic(
        data.x, data.x, data.y, torch.full((len(data.x), 1), 0.5)
    )
    found = plain.describe(data.x)[0]
    assert losses[1][1] == pytest.approx(0.01 * feedback.weighted_l1(found, trainee.targets[data.y]).item(), rel=1e-6)


def test_noise_may_lead_the_target_out_of_the_range():
    trainee = training_of(tiny(target_noise=0.5), rows())
    logits, x = torch.full((400, 5), 2.0), torch.tensor([[0.0, 1.0, 1.7, -0.4, 0.5]]).expand(400, 5)
    state = trainee.rng.get_state()
    found = trainee.rebuilt_badly(logits, x)
    target = x.clamp(0, 1) + 0.5 * torch.randn(400, 5, generator=trainee.rng.set_state(state))
    assert target.min() < -0.2 < 1.2 < target.max()
    p = torch.sigmoid(torch.tensor(2.0))
    expected = -(target * p.log() + (1 - target) * (1 - p).log()).sum() / 400
    assert found.item() == pytest.approx(expected.item(), rel=1e-5)
    still = training_of(tiny(target_noise=0.0), rows())
    assert still.rebuilt_badly(logits, x) == vaegan.reconstruction_loss(logits, x)


# --- The weight of the KL divergence.
@pytest.mark.parametrize(
    ("warm_up", "expected"), [(4, [0, 1.5, 3, 4.5, 6, 6, 6]), (0, [6] * 7), (1, [0, 6, 6, 6, 6, 6, 6])]
)
def test_the_weight_of_the_kl_divergence_rises_on_a_straight_line(warm_up, expected):
    trainee = training_of(tiny(kl_weight=6.0, kl_warm_up=warm_up), rows())
    place, found = trainee.kl_weight, []
    for epoch in range(1, 8):
        trainee.begin_epoch(epoch)
        found.append(trainee.weigh_kl(torch.tensor(2.0)).item() / 2)
    assert found == pytest.approx(expected)
    assert trainee.kl_weight is place  # changed where a captured step reads it


def test_codes_say_more_about_rows_before_the_weight_has_risen():
    data = rows()
    early, late = (fit(tiny(n_epochs=30, kl_weight=20.0, kl_warm_up=warm), data) for warm in (0, 1000))
    assert late.history_[-1]["kl loss"] > 5 * early.history_[-1]["kl loss"]


# --- Encoder and counterfactuals.
def test_the_encoder_sees_no_class_vectors_unless_asked_to():
    data = rows()
    blind, seeing = (training_of(tiny(encoder_sees_class=value), data, larger=5.0).generator for value in (False, True))
    assert [tuple(block.shape) for block in blind.encoder_.first.blocks] == [(16, 5)]
    assert [tuple(block.shape) for block in seeing.encoder_.first.blocks] == [(16, 5), (16, 4)]
    for vae in (blind, seeing):
        one, two = (vae.encode(data.x, data.attributes[[c]])[0] for c in (0, 1))
        assert torch.equal(one, two) == (vae is blind)


@pytest.mark.parametrize("sees_class", [False, True])
def test_a_counterfactual_is_made_of_the_rows_own_code(sees_class):
    data = rows()
    options = {"encoder_sees_class": sees_class, "synthesis_strength": 0.3, "d_prior": 3}
    vae = training_of(tiny(**options), data, larger=25.0).generator
    found = vae.counterfactuals(data.x[:7], data.attributes)
    assert found.shape == (7, 6, 5)
    assert not found.requires_grad
    for i in range(7):
        for c in range(6):
            a = data.attributes[c]
            code = encoded(vae, data.x[i], a, torch.zeros(3))[0]
            torch.testing.assert_close(found[i, c], made(vae, code, a, 0.3), rtol=1e-4, atol=1e-5)
    # A code of another row, or none, gives other rows.
    assert not torch.allclose(found, found.roll(1, 0), atol=1e-2)
    noise = torch.randn(4, 6, 3, generator=random_stream(0, "test"))
    drawn = vae.counterfactuals(data.x[:7], data.attributes, noise)
    assert drawn.shape == (7, 4, 6, 5)
    for i, k, c in ((0, 0, 0), (4, 3, 2), (6, 1, 5)):
        code = encoded(vae, data.x[i], data.attributes[c], noise[k, c])[2]
        torch.testing.assert_close(drawn[i, k, c], made(vae, code, data.attributes[c], 0.3), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(drawn[:, 0], found, atol=1e-3)


def test_codes_are_drawn_for_each_row_and_class():
    mean, log_var = torch.tensor([[[3.0, -1.0]]]).expand(5000, 1, 2), torch.tensor([[[0.5, -2.0]]]).expand(5000, 1, 2)
    codes = draw_codes(mean, log_var, 4, random_stream(0, "test"))
    assert codes.shape == (5000, 4, 2)
    torch.testing.assert_close(codes.mean((0, 1)), torch.tensor([3.0, -1.0]), atol=0.05, rtol=0)
    torch.testing.assert_close(codes.std((0, 1)), torch.tensor([0.25, -1.0]).exp(), atol=0, rtol=0.03)
    assert not torch.equal(codes[:, 0], codes[:, 1])


# --- Networks and settings.
@pytest.mark.parametrize(("d_x", "d_hidden"), [(2048, 4096), (128, 512), (5, 512)])
def test_networks_are_tf_vaegans_and_an_encoder_of_rows(d_x, d_hidden):
    vae = CounterfactualVAEGAN().build(3, d_x, random_stream(0, "x"))
    encoder = vae.encoder_
    shapes = [[tuple(block.shape) for block in layer.blocks] for layer in (encoder.first, *encoder.rest)]
    assert shapes == [[(d_hidden, d_x)], [(6, d_hidden)], [(6, 6)]]
    plain = FeedbackVAEGAN().build(3, d_x, random_stream(0, "x"))
    for name, net in plain.networks().items():
        pairs = zip(net.parameters(), vae.networks()[name].parameters(), strict=True)
        assert all(torch.equal(ours, theirs) for ours, theirs in pairs)
    assert list(vae.networks()) == ["generator", "decoder", "feedback", "encoder"]


def test_what_is_trained_is_what_is_kept():
    data = rows()
    vae = tiny()
    trainee = training_of(vae, data)
    assert trainee.encoder is vae.encoder_ is trainee.networks["encoder"]
    before = {name: bits(net) for name, net in trainee.networks.items()}
    losses = trainee.step()
    assert {name for name, net in trainee.networks.items() if bits(net) != before[name]} == set(before)
    assert set(before) == {"generator", "critic", "encoder", "penalty", "decoder", "feedback"}
    others = {"critic loss", "generator loss", "reconstruction loss", "kl loss", "gp weight"}
    assert set(losses) == {*others, "contrast loss"}
    group = trainee.optimizers["encoder"].param_groups[0]
    assert (group["lr"], group["betas"]) == (0.01, (0.9, 0.999))


def test_defaults_are_those_of_the_released_code():
    expected = {"kl_weight": 6.0, "kl_warm_up": 40, "n_epochs": 160, "encoder_sees_class": False, "target_noise": 0.2}
    expected |= {"contrast_weight": 1.0, "n_contrasts": 30, "contrast_scale": 500.0}
    found, plain = CounterfactualVAEGAN().get_params(), FeedbackVAEGAN().get_params()
    assert {name: found[name] for name in expected} == expected
    rest = set(found) - set(expected)
    assert {name: found[name] for name in rest} == {name: plain[name] for name in rest}
    assert set(plain) <= set(found)
    assert GENERATORS["CounterfactualVAEGAN"] is CounterfactualVAEGAN


BAD = {
    "kl_warm_up": [-1, None],
    "kl_weight": [-1.0],
    "encoder_sees_class": [None, 1, "yes"],
    "target_noise": [-0.1, float("nan")],
    "contrast_weight": [-1.0, float("inf")],
    "n_contrasts": [0, 2.5],
    "contrast_scale": [-1.0, "far"],
    "feedback_rate": [0],
}


@pytest.mark.parametrize("option", BAD)
def test_a_bad_setting_is_refused_in_a_sentence(option):
    for value in BAD[option]:
        with pytest.raises(DGZError, match=f"^{option} must be "):
            fit(tiny(**{option: value}), rows())


def test_scikit_learns_contract():
    one = tiny(contrast_weight=0.5, encoder_sees_class=True)
    twin = clone(one)
    assert twin.get_params() == one.get_params()
    assert all_bits(fit(twin, rows())) == all_bits(fit(one, rows()))


# --- The same bits.
def test_the_same_seed_gives_the_same_bits():
    data, runs = rows(), []
    for seed in (0, 0, 1):
        torch.manual_seed(len(runs))  # must not matter
        before = torch.get_rng_state()
        generator = fit(tiny(n_epochs=3), data, seed=seed)
        assert torch.equal(torch.get_rng_state(), before)
        runs.append((all_bits(generator), generator.history_))
    assert runs[0] == runs[1]
    assert all(runs[0][0][name] != runs[2][0][name] for name in runs[0][0])


def test_a_broken_training_goes_on_to_the_same_bits(tmp_path):
    data, options = rows(), {"n_epochs": 6, "kl_warm_up": 5, "attribute_noise": 0.1}
    whole = fit(tiny(**options), data)

    def stop(epoch):
        if epoch == 4:
            raise InterruptedError
        return {}

    with pytest.raises(InterruptedError):
        fit(tiny(**options), data, after_epoch=stop, checkpoints=Checkpoints(tmp_path, "a", every=0))
    resumed = fit(tiny(**options), data, checkpoints=Checkpoints(tmp_path, "a", every=0))
    assert all_bits(resumed) == all_bits(whole)
    assert resumed.history_ == whole.history_


def test_a_step_never_asks_the_device_for_a_number(monkeypatch):
    trainee = training_of(tiny(attribute_noise=0.1), rows())
    trainee.step()

    def refuse(*args):
        raise AssertionError("a number was read")

    for name in ("item", "tolist", "__bool__", "__float__", "__int__", "numpy", "cpu"):
        monkeypatch.setattr(torch.Tensor, name, refuse)
    losses = trainee.step()
    monkeypatch.undo()
    assert all(value.isfinite() for value in losses.values())


def test_it_trains_with_every_precision():
    data = rows()
    found = [fit(tiny(n_epochs=3), data, precision=precision) for precision in ("float32", "tf32", "bf16")]
    assert all_bits(found[0]) == all_bits(found[1])  # which is for GPUs
    assert all_bits(found[0]) != all_bits(found[2])
    again = [one.counterfactuals(data.x, data.attributes) for one in found]
    assert all(values.dtype == torch.float32 for values in again)
    torch.testing.assert_close(again[2], again[0], rtol=0.05, atol=0.05)


def test_unseen_classes_have_no_part_in_training():
    data, other = rows(), rows()
    other.attributes = torch.cat([other.attributes, torch.ones(3, 4)])
    other.attributes[[1, 4]] = 9.0
    one, two = (fit(tiny(n_epochs=2), part) for part in (data, other))
    assert all_bits(one) == all_bits(two)


# --- Learning.
def of_two_kinds():
    """Rows of four classes, each of which has light and dark ones: feature 4 is one or the other, and no class's own."""
    data = rows(n=200)
    data.dark = torch.arange(200) % 2
    data.x[:, 4] = 0.1 + 0.8 * data.dark
    return data


LONG = {"n_epochs": 30, "batch_size": 25, "n_critic": 1, "gan_weight": 0.1, "kl_weight": 0.05, "hidden": (32,)}
LONG |= {"decoder_rate": 0.01, "feedback_rate": 0.01, "n_contrasts": 3, "kl_warm_up": 10, "learning_rate": 0.01}


@pytest.fixture(scope="module")
def learned():
    data = of_two_kinds()
    return data, fit(tiny(**LONG), data)


def test_a_counterfactual_has_all_of_the_row_that_the_class_does_not_say(learned):
    data, vae = learned
    found = vae.counterfactuals(data.x, data.attributes[SEEN])
    # In every class: as light or as dark as the row is,
    kind = (found[:, :, 4] > 0.5).long()
    assert (kind == data.dark[:, None]).float().mean() > 0.95
    # and all else as the class has it, whatever the row's own.
    nearest = torch.cdist(found[:, :, :4].flatten(0, 1), data.centers[:, :4]).argmin(1).view(200, 4)
    assert (nearest == torch.arange(4)).float().mean() > 0.95
    history = vae.history_
    assert history[-1]["contrast loss"] < 0.5 * history[0]["contrast loss"]
    assert history[-1]["reconstruction loss"] < history[0]["reconstruction loss"] - 0.3


def test_by_contrast_classes_are_told_that_codes_alone_would_have_left_out():
    data = rows(n=100)
    data.attributes = 0.02 * data.attributes  # so weak an input that codes, which may say all, are used instead
    free = {"kl_weight": 0.0, "gan_weight": 0.0, "decoder_weight": 0.0, "n_epochs": 10}
    own, told, apart = torch.searchsorted(torch.tensor(SEEN), data.y), [], []
    for weight in (0.0, 1.0):
        vae = fit(tiny(**LONG | free | {"contrast_weight": weight}), data)
        far = (vae.counterfactuals(data.x, data.attributes[SEEN]) - data.x[:, None]).square().mean(-1)
        told.append((far.argmin(1) == own).float().mean().item())
        apart.append((far.mean() - far.gather(1, own[:, None]).mean()).item())
    assert told[0] < 0.85 < 0.95 < told[1]
    assert apart[1] > 3 * apart[0]


def test_generated_classes_lie_where_the_real_ones_do(learned):
    data, vae = learned
    means = torch.stack([vae.embed(data.x)[data.y == c].mean(0) for c in SEEN])
    sampled = vae.sample(data.attributes[SEEN].repeat_interleave(50, dim=0), random_stream(0, "test"))
    assert (torch.cdist(sampled, means).argmin(1) == torch.arange(4).repeat_interleave(50)).float().mean() > 0.95


# --- With other parts.
@pytest.mark.parametrize("distribution", ["generated", "statistical"])
def test_it_goes_with_dgzs_classifier_and_any_distribution(distribution):
    data = rows(n=40)
    x, y, vectors = data.x.numpy(), data.y.numpy(), data.attributes.numpy()
    options = {"n_epochs": 2, "n_per_class": 5, "d_hidden": 8, "feature_scaling": "minmax", "device": "cpu"}
    model = DGZ(generator=tiny(n_epochs=2), distribution=distribution, **options).fit(x, y, vectors)
    assert set(model.predict(x)) <= set(range(6))
    assert model.embed(x).shape == (40, 5 + 4 + 7)
    assert model.generate([1, 4], 3)[0].shape == (6, 5 + 4 + 7)


def test_attribute_noise_changes_what_is_learned():
    data = rows()
    none, absolute = (fit(tiny(n_epochs=2, attribute_noise=value), data) for value in (0.0, 0.3))
    relative = fit(tiny(n_epochs=2, attribute_noise=0.3, noise_unit="relative"), data)
    assert len({str(bits(one.net_)) for one in (none, absolute, relative)}) == 3


def test_rows_are_the_feedbacks(learned):
    data, vae = learned
    codes = vae.encode(data.x, data.attributes[data.y])[0]
    expected = as_rows(vae.decode(codes, data.attributes[data.y], vae.synthesis_strength))
    found = vae.counterfactuals(data.x, data.attributes)[torch.arange(200), data.y]
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-5)
