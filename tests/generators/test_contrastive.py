"""CE-GZSL's generator: its losses against their twins, what each moves, and in which space its rows live."""

import copy
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn.functional import cross_entropy, normalize

import reference
from dgz.generators import GENERATORS, WGANGP, ContrastiveWGANGP, base, wgan
from dgz.generators.contrastive import supervised_contrast
from dgz.training import Checkpoints, random_stream

SMALL = settings(max_examples=60, deadline=None)
SEEN = [0, 2, 3, 5]


# --- Inputs.
def rows(seed=0, spread=0.2):
    """Sixty rows of four seen classes, of a problem with two further classes."""
    rng = torch.Generator().manual_seed(seed)
    centers = torch.tensor([[2.0, 0, 2, 0, 1], [0, 2, 0, 2, 1], [2, 2, 0, 0, 2], [0, 0, 2, 2, 0]]) + 0.5
    place = torch.randint(4, (60,), generator=rng)
    x = centers[place] + spread * torch.randn(60, 5, generator=rng)
    attributes = 3 * torch.eye(4)[[0, 1, 1, 2, 3, 3]] + 0.1 * torch.randn(6, 4, generator=rng)
    return SimpleNamespace(x=x, y=torch.tensor(SEEN)[place], attributes=attributes)


def tiny(**options):
    options = {"n_epochs": 1, "hidden": (16,), "critic_hidden": 16, "n_critic": 2, "learning_rate": 0.01} | options
    return ContrastiveWGANGP(**{"d_embedding": 7, "d_projection": 4, "d_comparator": 6} | options)


def fit(generator, data, **options):
    return generator.fit(data.x, data.y, data.attributes, **options)


def training_of(generator, data, seed=0):
    """What ``fit`` trains, before its first step."""
    generator.build(4, 5, random_stream(seed, "generator's start")).noise_ = generator.attribute_noise
    return generator._trainee(data.x, data.y, data.attributes, seed, "float32")


def bits(net):
    return {name: values.tolist() for name, values in net.state_dict().items()}


def all_bits(generator):
    return {name: bits(net) for name, net in generator.networks().items()}


def on_sphere(n, d=3, seed=0):
    return normalize(torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.double))


# --- The supervised contrastive loss.
@SMALL
@given(st.lists(st.integers(0, 3), min_size=2, max_size=9), st.floats(0.05, 2.0), st.integers(0, 99))
def test_the_contrast_is_its_twin(classes, temperature, seed):
    points = on_sphere(len(classes), seed=seed)
    found = supervised_contrast(points, torch.tensor(classes), temperature)
    assert found.item() == pytest.approx(reference.supervised_contrast(points.tolist(), classes, temperature))


def test_points_without_others_of_their_class_are_no_anchors_but_stand_in_the_way():
    points, y = on_sphere(5), torch.tensor([4, 7, 4, 9, 4])
    of_anchors = []
    for i in (0, 2, 4):
        others = [a for a in range(5) if a != i]
        total = sum(torch.exp(points[i] @ points[a] / 0.3) for a in others)
        positives = [p for p in (0, 2, 4) if p != i]
        of_anchors.append(-sum(torch.log(torch.exp(points[i] @ points[p] / 0.3) / total) for p in positives) / 2)
    found = supervised_contrast(points, y, 0.3)
    assert found.item() == pytest.approx((sum(of_anchors) / 3).item())
    without = supervised_contrast(points[[0, 2, 4]], y[[0, 2, 4]], 0.3)
    assert found > without + 0.1  # of a class by itself there is less to tell apart


def test_points_of_classes_that_are_all_different_have_no_contrast():
    points = on_sphere(6).requires_grad_()
    found = supervised_contrast(points, torch.arange(6), 0.1)
    assert found.item() == 0.0
    (slope,) = torch.autograd.grad(found, points)
    assert (slope == 0).all()


def test_two_points_of_one_class_alone_are_as_near_as_can_be_wherever_they_are():
    assert supervised_contrast(on_sphere(2), torch.tensor([3, 3]), 0.1).item() == pytest.approx(0.0, abs=1e-12)
    # Of more points of one class, each is one of n - 1, and equal ones are the best that can be.
    equal = on_sphere(1).repeat(5, 1)
    assert supervised_contrast(equal, torch.zeros(5), 0.1).item() == pytest.approx(np.log(4))
    assert supervised_contrast(on_sphere(5), torch.zeros(5), 0.1).item() > np.log(4) + 0.1


def test_the_contrast_falls_as_classes_gather():
    y = torch.tensor([0, 0, 0, 1, 1, 1])
    free = on_sphere(6, seed=3).requires_grad_()
    before = supervised_contrast(normalize(free), y, 0.5).item()
    optimizer = torch.optim.SGD([free], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        supervised_contrast(normalize(free), y, 0.5).backward()
        optimizer.step()
    points = normalize(free.detach())
    similar = points @ points.T
    assert similar[:3, :3].min() > 0.9
    assert similar[3:, 3:].min() > 0.9
    assert similar[:3, 3:].max() < -0.9
    assert supervised_contrast(points, y, 0.5).item() < before - 0.5


def test_gradients_of_the_contrast_are_its_slopes():
    y = torch.tensor([1, 2, 1, 2, 5])
    assert torch.autograd.gradcheck(lambda points: supervised_contrast(points, y, 0.3), on_sphere(5).requires_grad_())


def test_a_low_temperature_neither_overflows_nor_vanishes():
    points = on_sphere(6).float().requires_grad_()
    found = supervised_contrast(points, torch.tensor([0, 0, 1, 1, 2, 2]), 1e-3)
    assert found.isfinite()
    assert torch.autograd.grad(found, points)[0].isfinite().all()


def test_a_single_point_has_no_contrast():
    point = on_sphere(1).requires_grad_()
    found = supervised_contrast(point, torch.tensor([2]), 0.1)
    assert found.item() == 0.0
    assert (torch.autograd.grad(found, point)[0] == 0).all()


# --- Steps, against autograd.
def slow_contrast(points, y, temperature):
    """The twin once more, in numbers that can be differentiated."""
    of_anchors = []
    for i in range(len(y)):
        positives = [p for p in range(len(y)) if p != i and y[p] == y[i]]
        if positives:
            total = sum(torch.exp(points[i] @ points[a] / temperature) for a in range(len(y)) if a != i)
            logs = [torch.log(torch.exp(points[i] @ points[p] / temperature) / total) for p in positives]
            of_anchors.append(-sum(logs) / len(positives))
    return sum(of_anchors) / len(of_anchors)


def project(embedding, h):
    """Without the cast to float32."""
    return normalize(embedding.projection(h))


def of_pairs(comparator, h, vectors):
    """The comparator's scores, a pair at a time."""
    (of_h, of_a), bias = comparator.first.blocks, comparator.first.bias

    def score(row, vector):
        hidden = of_h @ row + of_a @ vector + bias
        return comparator.last[0] @ torch.where(hidden > 0, hidden, 0.2 * hidden)

    return torch.stack([torch.stack([score(row, vector) for vector in vectors]) for row in h])


class Twin:
    """The training as one would write it down: in float64, with autograd, and every loss in loops."""

    def __init__(self, trainee, data, rate):
        self.nets = {name: copy.deepcopy(net).double() for name, net in trainee.networks.items()}
        judge = trainee.judge
        self.judge = None if judge is None else copy.deepcopy(judge.net).double()
        self.gan = trainee.generator
        self.vectors = data.attributes.double()
        self.optimizers = {
            name: torch.optim.Adam(net.parameters(), lr=rate, betas=(0.5, 0.999)) for name, net in self.nets.items()
        }

    def told_apart(self, h, y):
        places = torch.tensor([SEEN.index(c) for c in y.tolist()])
        scores = of_pairs(self.nets["comparator"], h, self.vectors[SEEN]) / self.gan.comparator_temperature
        return cross_entropy(scores, places)

    def descend(self, loss, *names):
        parameters = [values for name in names for values in self.nets[name].parameters()]
        for values, gradient in zip(parameters, torch.autograd.grad(loss, parameters, allow_unused=True), strict=True):
            values.grad = gradient  # none for the critic's last bias, which cancels out
        for name in names:
            self.optimizers[name].step()

    def step_critic(self, x, fake, y, alpha):
        critic, embedding, a = self.nets["critic"], self.nets["embedding"], self.vectors[y]
        between = (alpha * x + (1 - alpha) * fake).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between, a).sum(), between, create_graph=True)
        penalty = self.gan.gp_weight * (slope.norm(dim=1) - 1).square().mean()
        # One loss of all four networks, as in the released code.
        h = embedding(x)
        contrast = slow_contrast(project(embedding, h), y.tolist(), self.gan.instance_temperature)
        loss = critic(fake, a).mean() - critic(x, a).mean() + penalty
        self.descend(loss + contrast + self.told_apart(h, y), "critic", "embedding", "comparator")

    def step_generator(self, x, y, z, noisy):
        embedding, gan = self.nets["embedding"], self.gan
        generated = self.nets["generator"](z, noisy)
        h = embedding(generated)
        points = torch.cat([project(embedding, h), project(embedding, embedding(x)).detach()])
        contrast = slow_contrast(points, [*y.tolist(), *y.tolist()], gan.instance_temperature)
        loss = -self.nets["critic"](generated, self.vectors[y]).mean()
        loss = loss + gan.instance_weight * contrast + gan.comparator_weight * self.told_apart(h, y)
        if self.judge is not None:
            places = torch.tensor([SEEN.index(c) for c in y.tolist()])
            loss = loss + gan.class_weight * cross_entropy(self.judge(generated), places)
        self.descend(loss, "generator")
        return loss.item()


@pytest.mark.parametrize("class_weight", [0.0, 0.4], ids=["plain", "judged"])
def test_all_steps_are_those_of_autograd(class_weight, monkeypatch):
    data = rows()
    options = {"batch_size": 10, "attribute_noise": 0.1, "learning_rate": 1e-3, "gp_weight": 5.0}
    weights = {"instance_weight": 0.3, "comparator_weight": 0.2, "class_weight": class_weight}
    weights |= {"instance_temperature": 0.4, "comparator_temperature": 0.7}
    trainee = training_of(tiny(**options, **weights), data)
    with torch.no_grad():  # so near to zero as they start, few losses would matter
        for net in trainee.networks.values():
            for values in net.parameters():
                values.mul_(5)
    twin = Twin(trainee, data, rate=1e-3)
    drawn, inputs, to_critic, draw = [], [], [], trainee.draw
    monkeypatch.setattr(trainee, "draw", lambda n: drawn.append(draw(n)) or drawn[-1])
    trainee.networks["generator"].register_forward_pre_hook(lambda net, values: inputs.append(values))
    slopes = wgan.critic_slopes
    monkeypatch.setattr(wgan, "critic_slopes", lambda *args: to_critic.append(args) or slopes(*args))
    for step in range(3):
        losses = trainee.step()
        (all_x, all_y), (all_z, all_noisy) = drawn[step], inputs[2 * step]
        batches = zip(*(part.chunk(2) for part in (all_x, all_y, all_z, all_noisy)), to_critic[-2:], strict=True)
        for x, y, z, noisy, (_, _, _, _, alpha, _) in batches:
            x, z, noisy = x.double(), z.double(), noisy.double()
            with torch.no_grad():
                fake = twin.nets["generator"](z, noisy)
            twin.step_critic(x, fake, y, alpha.double())
        expected = twin.step_generator(x, y, z, noisy)  # with the last batch of these
        assert losses["generator loss"].item() == pytest.approx(expected, abs=1e-4)
    assert set(twin.nets) == {"generator", "critic", "embedding", "comparator"}
    for name, net in trainee.networks.items():
        for (which, ours), theirs in zip(net.named_parameters(), twin.nets[name].parameters(), strict=True):
            torch.testing.assert_close(
                ours, theirs.float(), rtol=1e-3, atol=1e-5, msg=lambda text, at=f"{name} {which}": f"{at}: {text}"
            )


# --- What each part moves.
def moved_by_a_step(data, removed=None):
    """Which parts of the networks a critic step moves, with one loss removed, and where the embedding ends."""
    trainee = training_of(tiny(), data)
    if removed:
        loss = getattr(trainee, removed)
        setattr(trainee, removed, lambda *args: 0 * loss(*args))
    before = {name: copy.deepcopy(net) for name, net in trainee.networks.items()}
    x, y = trainee.draw(1)
    trainee._step_critic(x, x.flip(0), y, torch.full((len(x), 1), 0.5))
    moved = {
        f"{name}.{which.split('.')[0]}"
        for name, net in trainee.networks.items()
        for (which, now), old in zip(net.named_parameters(), before[name].parameters(), strict=True)
        if not torch.equal(now, old)
    }
    return moved, bits(trainee.embedding.first)


def test_the_embedding_learns_from_both_losses():
    data = rows()
    both, by_both = moved_by_a_step(data)
    contrast_alone, by_contrast = moved_by_a_step(data, removed="_comparisons")
    comparisons_alone, by_comparisons = moved_by_a_step(data, removed="_instances")
    of_critic = {"critic.first", "critic.last"}
    assert both == of_critic | {
        "embedding.first", "embedding.projection", "comparator.first", "comparator.last",
    }  # fmt: skip
    assert contrast_alone == of_critic | {"embedding.first", "embedding.projection"}
    assert comparisons_alone == of_critic | {"embedding.first", "comparator.first", "comparator.last"}
    assert by_both != by_contrast
    assert by_both != by_comparisons
    assert by_contrast != by_comparisons


def test_the_generators_step_moves_the_generator_alone():
    trainee = training_of(tiny(instance_weight=1.0, comparator_weight=1.0), rows())
    trainee._step_critic = lambda *args: torch.zeros(())
    before = {name: bits(net) for name, net in trainee.networks.items()}
    trainee.step()
    assert {name for name, net in trainee.networks.items() if bits(net) != before[name]} == {"generator"}


def test_the_embedding_learns_in_every_critic_step_and_from_real_rows():
    data = rows()
    trainee = training_of(tiny(n_critic=3), data)
    seen_by = []
    trainee.embedding.register_forward_pre_hook(lambda net, inputs: seen_by.append(inputs[0].detach()))
    trainee.step()
    assert len(seen_by) == 3 + 2  # then generated rows, and real ones beside them
    is_real = [all(row in data.x.tolist() for row in x.tolist()) for x in seen_by]
    assert is_real == [True, True, True, False, True]
    assert torch.equal(seen_by[4], seen_by[2])  # of the last critic step


def test_without_guidance_the_generator_is_a_plain_gans():
    data, options = rows(), {"n_epochs": 3, "attribute_noise": 0.1}
    unguided = fit(tiny(instance_weight=0.0, comparator_weight=0.0, decay_every=None, **options), data)
    shared = {name: value for name, value in unguided.get_params().items() if name in WGANGP().get_params()}
    plain = fit(WGANGP(**shared), data)
    assert bits(unguided.net_) == bits(plain.net_)
    assert unguided.history_ == plain.history_
    for weight in ("instance_weight", "comparator_weight"):
        guided = fit(tiny(**{"instance_weight": 0.0, "comparator_weight": 0.0, weight: 0.1}, **options), data)
        assert bits(guided.net_) != bits(plain.net_)
        assert bits(guided.embedding_) == bits(unguided.embedding_)  # which learns from real rows alone


@pytest.mark.parametrize("setting", ["instance_temperature", "comparator_temperature"])
def test_each_temperature_matters(setting):
    data = rows()
    one, two = (fit(tiny(**{setting: value}), data) for value in (0.1, 0.5))
    assert bits(one.embedding_) != bits(two.embedding_)


def test_unseen_classes_have_no_part_in_training():
    data, other = rows(), rows()
    other.attributes = torch.cat([other.attributes, torch.ones(3, 4)])
    other.attributes[[1, 4]] = 9.0
    one, two = (fit(tiny(n_epochs=2), part) for part in (data, other))
    assert all_bits(one) == all_bits(two)
    assert training_of(tiny(), other).seen_vectors.shape == (4, 4)


# --- Learning rates.
@pytest.mark.parametrize(
    ("decay_every", "powers"), [(None, [0] * 5), (1, range(5)), (2, [0, 0, 1, 1, 2]), (100, [0] * 5)]
)
def test_all_learning_rates_decay_together(decay_every, powers):
    trainee = training_of(tiny(decay_every=decay_every), rows())
    for epoch, power in enumerate(powers, start=1):
        trainee.begin_epoch(epoch)
        for name in ("generator", "critic", "embedding"):
            rates = [group["lr"] for group in trainee.optimizers[name].param_groups]
            assert rates == [pytest.approx(0.01 * 0.99**power, rel=1e-12)]
    assert set(trainee.optimizers) == {"generator", "critic", "embedding"}


def test_a_decay_changes_what_is_learned():
    data = rows()
    steady, decaying = (fit(tiny(n_epochs=3, decay_every=every), data) for every in (None, 1))
    assert all(all_bits(steady)[name] != all_bits(decaying)[name] for name in ("generator", "embedding"))
    assert steady.history_[0] == decaying.history_[0]  # from the second epoch on


# --- The space of its rows.
def test_samples_are_embeddings_of_generated_rows():
    data = rows()
    gan = fit(tiny(n_epochs=2), data)
    made = []
    gan.net_.register_forward_hook(lambda net, inputs, output: made.append((inputs, output)))
    sampled = gan.sample(data.attributes, random_stream(0, "test"))
    ((z, a), generated) = made[0]
    assert torch.equal(a, data.attributes)
    assert z.shape == (6, 4)
    assert generated.shape == (6, 5)
    assert sampled.shape == (6, 7)
    assert torch.equal(sampled, gan.embedding_(generated))
    assert not sampled.requires_grad
    assert gan.embeds
    again, other = (gan.sample(data.attributes, random_stream(seed, "test")) for seed in (0, 1))
    assert torch.equal(sampled, again)
    assert not torch.equal(sampled, other)


def test_centers_are_means_of_embedded_samples():
    data = rows()
    gan = fit(tiny(n_epochs=5), data)
    vectors = data.attributes[SEEN]
    centers = gan.centers(vectors, random_stream(0, "test"))
    assert centers.shape == (4, 7)
    many = [gan.sample(vector.expand(20_000, -1), random_stream(i, "many")) for i, vector in enumerate(vectors)]
    spread = torch.stack([part.std(0) for part in many]).max().item()
    np.testing.assert_allclose(centers, torch.stack([part.mean(0) for part in many]), atol=5 * spread / 500**0.5)


@pytest.mark.parametrize("block", [1, 7, 60, 65536])
def test_rows_are_embedded_a_block_at_a_time(block, monkeypatch):
    data = rows()
    gan = fit(tiny(), data)
    expected = gan.embedding_(data.x).detach()
    monkeypatch.setattr(base, "BLOCK", block)
    sizes = []
    gan.embedding_.register_forward_pre_hook(lambda net, inputs: sizes.append(len(inputs[0])))
    found = gan.embed(data.x)
    torch.testing.assert_close(found, expected)
    assert not found.requires_grad
    assert max(sizes) == min(block, 60)
    assert sum(sizes) == 60
    assert gan.embed(data.x[:0]).shape == (0, 7)


@pytest.mark.parametrize(("d_x", "expected"), [(2048, 2048), (300, 300), (128, 256), (2, 256)])
def test_default_widths_are_the_papers_for_its_features_and_in_proportion_for_others(d_x, expected):
    gan = ContrastiveWGANGP().build(3, d_x, random_stream(0, "x"))
    assert gan.embedded_width(d_x) == expected
    trainee = gan._trainee(torch.rand(4, d_x), torch.arange(4), torch.eye(4, 3), seed=0, precision="float32")
    embedding, comparator = trainee.networks["embedding"], trainee.networks["comparator"]
    assert embedding.first.blocks[0].shape == (expected, d_x)
    assert embedding.projection.blocks[0].shape == (512, expected)
    assert [tuple(block.shape) for block in comparator.first.blocks] == [(expected, expected), (expected, 3)]
    assert [len(layer.bias) for layer in (gan.net_.first, *gan.net_.rest)] == [max(2 * d_x, 512), d_x]
    assert trainee.critic.first.bias.shape == (max(2 * d_x, 512),)


def test_widths_are_those_asked_for():
    trainee = training_of(tiny(), rows())
    assert trainee.embedding.first.blocks[0].shape == (7, 5)
    assert trainee.embedding.projection.blocks[0].shape == (4, 7)
    assert [tuple(block.shape) for block in trainee.comparator.first.blocks] == [(6, 7), (6, 4)]


def test_what_is_used_after_training_is_generator_and_embedding():
    gan = fit(tiny(), rows())
    assert gan.networks() == {"generator": gan.net_, "embedding": gan.embedding_}
    assert GENERATORS["ContrastiveWGANGP"] is ContrastiveWGANGP


# --- The same bits.
def test_the_same_seed_gives_the_same_embedding():
    data = rows()
    first, again, other = (all_bits(fit(tiny(n_epochs=3), data, seed=seed)) for seed in (0, 0, 1))
    assert first == again
    assert all(first[name] != other[name] for name in ("generator", "embedding"))


def test_a_broken_training_goes_on_to_the_same_embedding(tmp_path):
    data, options = rows(), {"n_epochs": 5, "decay_every": 2, "class_weight": 0.1}
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


# --- Learning.
def test_generated_rows_find_their_classes_in_the_embedding():
    data = rows()
    gan = fit(tiny(n_epochs=150, hidden=(64,), critic_hidden=64, relu_out=False, d_embedding=16, n_critic=3), data)
    h, vectors = gan.embed(data.x), data.attributes[SEEN]
    means = torch.stack([h[data.y == c].mean(0) for c in SEEN])
    assert (torch.cdist(h, means).argmin(1) == torch.tensor([SEEN.index(c) for c in data.y])).all()
    sampled = gan.sample(vectors.repeat_interleave(50, dim=0), random_stream(0, "test"))
    nearest = torch.cdist(sampled, means).argmin(1)
    assert (nearest == torch.arange(4).repeat_interleave(50)).float().mean() > 0.9


def test_the_embedding_tells_classes_apart_on_its_sphere():
    data = rows(spread=1.0)
    gan = fit(tiny(n_epochs=100), data)
    start = training_of(tiny(), data).embedding

    def contrast(embedding):
        with torch.no_grad():
            return supervised_contrast(embedding.project(embedding(data.x)), data.y, 0.1).item()

    assert contrast(gan.embedding_) < contrast(start) - 1.0
