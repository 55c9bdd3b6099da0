"""Each observation against a slow computation of its own, and against what would make it wrong."""

import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch

import reference
from dgz import DGZ, load_numbers, observations
from dgz.classifier import prepared
from dgz.data import GZSLData
from dgz.errors import DGZError
from dgz.generators import WGANGP

D_X, N_SEEN, N_UNSEEN = 6, 4, 3
ROWS_OF_UNSEEN = (9, 4, 7)


# --- A small data set and a model that answers from a table.
def small_data(rows_of_unseen=ROWS_OF_UNSEEN):
    rng = np.random.default_rng(0)
    places = 3 * rng.normal(size=(N_SEEN + N_UNSEEN, D_X))
    y = {
        "train": np.repeat(np.arange(N_SEEN), 8),
        "test_seen": np.repeat(np.arange(N_SEEN), 2),
        "test_unseen": np.repeat(np.arange(N_SEEN, N_SEEN + N_UNSEEN), rows_of_unseen),
    }
    y = {split: rng.permutation(labels) for split, labels in y.items()}
    parts = {f"x_{split}": places[labels] + rng.normal(size=(len(labels), D_X)) for split, labels in y.items()}
    parts |= {f"y_{split}": labels for split, labels in y.items()}
    names = ["owl", "fox", "bee", "ant", "elk", "cat", "hen"]  # their order by name is not that by id
    return GZSLData(**parts, attributes=places, class_names=names)


class FakeModel:
    """Generated rows spread around given centres, one for each class id; raw rows are halved on their way in."""

    n_per_class, temperature, lambda_1_, weights, seed_ = 5, 0.3, 0.2, "mapped", 7

    def __init__(self, data, centers, *, named=False):
        labels = np.array(data.class_names) if named else np.arange(data.n_classes)
        order = np.argsort(labels)
        self.classes_, self.centers = labels[order], np.asarray(centers)[order]
        self.seen_ = np.isin(order, data.seen)
        self.attributes_ = data.attributes[order]
        weights = np.random.default_rng(1).normal(size=(data.n_classes, D_X))
        self.weights_ = (weights / np.linalg.norm(weights, axis=1, keepdims=True)).astype(np.float32)[order]
        self.attribute_scaler_ = SimpleNamespace(transform=lambda vectors: np.asarray(vectors, dtype=np.float32))
        self.generator_ = SimpleNamespace(net_=torch.nn.Linear(1, 1), centers=self._centers)
        self.asked = []

    def _centers(self, vectors, rng):
        at = [np.flatnonzero((self.attributes_ == vector).all(1))[0] for vector in vectors.numpy()]
        return torch.tensor(self.centers[at])

    def embed(self, X):
        return np.asarray(X, dtype=np.float32) / 2

    def generate(self, names, n_per_class=50, *, random_state=0):
        counts = np.broadcast_to(n_per_class, len(names))
        self.asked.append((list(names), counts.tolist(), random_state))
        y = np.repeat(names, counts)
        noise = np.random.default_rng(random_state).normal(size=(len(y), D_X))
        return (self.centers[np.searchsorted(self.classes_, y)] + 0.3 * noise).astype(np.float32), y


def real_centers(data):
    """Centres of the embedded rows: of test rows where a class is unseen, of training rows elsewhere."""
    x = np.concatenate([data.x_train, data.x_test_unseen]) / 2
    y = np.concatenate([data.y_train, data.y_test_unseen])
    return np.array([x[y == c].astype(np.float64).mean(0) for c in range(data.n_classes)])


@pytest.fixture
def data():
    return small_data()


@pytest.fixture(scope="module")
def numbers():
    return load_numbers(0)


@pytest.fixture(scope="module")
def fitted(numbers):
    """The two kinds of models, after a short training."""
    models = {
        "without generator": DGZ.without_generator(generator__n_epochs=20, lambda_1=0.1),
        "WGAN": DGZ(generator=WGANGP(n_epochs=3, critic_hidden=64), n_per_class=20),
    }
    for model in models.values():
        model.set_params(generator__hidden=(64, 32), d_hidden=64, n_epochs=3, device="cpu")
        model.fit(numbers.x_train, numbers.y_train, numbers.attributes, test=numbers, evaluate_every=1000)
    return models


KINDS = ["without generator", "WGAN"]


# --- Generation.
def test_generation_is_the_slow_cmmd_and_cacd(data):
    centers = real_centers(data) + 0.2
    found = observations.generation(FakeModel(data, centers), data, random_state=3)
    x, y = (data.x_test_unseen / 2).tolist(), data.y_test_unseen.tolist()
    pseudo_x, pseudo_y = FakeModel(data, centers).generate(data.unseen, ROWS_OF_UNSEEN, random_state=3)
    expected = reference.cmmd(x, y, pseudo_x.tolist(), pseudo_y.tolist(), data.unseen.tolist())
    assert found["cmmd"] == pytest.approx(expected, rel=1e-4)
    assert found["cacd"] == pytest.approx(0.2 * math.sqrt(D_X), rel=1e-4)
    assert json.loads(json.dumps(found)) == found


def test_generation_asks_for_as_many_rows_as_are_real_and_at_least_two():
    data = small_data(rows_of_unseen=(9, 1, 7))
    model = FakeModel(data, real_centers(data))
    observations.generation(model, data, random_state=5)
    assert model.asked == [(data.unseen.tolist(), [9, 2, 7], 5)]


def test_generation_is_worse_where_two_classes_are_taken_for_each_other(data):
    centers = real_centers(data)
    swapped = centers.copy()
    swapped[data.unseen[:2]] = centers[data.unseen[1::-1]]
    right, wrong = (observations.generation(FakeModel(data, each), data) for each in (centers, swapped))
    assert right["cacd"] < 1e-5
    apart = reference.center_distance(*centers[data.unseen[:2]].tolist())
    assert wrong["cacd"] == pytest.approx(2 * apart / N_UNSEEN, rel=1e-4)
    assert wrong["cmmd"] > right["cmmd"] + 0.05


def test_generation_is_the_same_by_name_and_by_id(data):
    centers = real_centers(data) + np.arange(data.n_classes)[:, None]
    by_id, by_name = (observations.generation(FakeModel(data, centers, named=named), data) for named in (False, True))
    assert by_name["cacd"] == by_id["cacd"]
    assert by_name["cmmd"] == pytest.approx(by_id["cmmd"], rel=0.1)  # the same noise falls on other rows


def test_classes_without_test_rows_are_left_out():
    data = small_data(rows_of_unseen=(9, 0, 7))
    centers = np.nan_to_num(real_centers_of_present(data), nan=1e6)
    assert observations.generation(FakeModel(data, centers), data)["cacd"] < 1e-5


def real_centers_of_present(data):
    with np.errstate(invalid="ignore"), pytest.warns(RuntimeWarning, match="Mean of empty slice"):
        return real_centers(data)


@pytest.mark.parametrize("observe", [observations.generation, observations.projection])
def test_without_test_rows_of_unseen_classes_there_is_a_sentence(observe):
    data = small_data(rows_of_unseen=(0, 0, 0))
    with pytest.raises(DGZError, match="no test rows of unseen classes"):
        observe(FakeModel(data, data.attributes), data)


@pytest.mark.parametrize("kind", KINDS)
def test_generation_of_a_fitted_model(kind, fitted, numbers):
    model = fitted[kind]
    found = observations.generation(model, numbers)
    last_epoch = [row for row in model.history_ if row["stage"] == "generator"][-1]
    assert found["cacd"] == pytest.approx(last_epoch["cacd"], rel=1e-5)
    assert found == observations.generation(model, numbers)
    real = model.embed(numbers.x_test_unseen)
    counts = [int((numbers.y_test_unseen == c).sum()) for c in numbers.unseen]
    pseudo_x, pseudo_y = model.generate(numbers.unseen, np.array(counts))
    rows = [real.tolist(), numbers.y_test_unseen.tolist(), pseudo_x.tolist(), pseudo_y.tolist()]
    assert found["cmmd"] == pytest.approx(reference.cmmd(*rows, numbers.unseen.tolist()), rel=1e-4)


# --- Projection.
class FlatTSNE:
    """In t-SNE's place: a map that shows the first two features as they are."""

    def __init__(self, **options):
        self.options = options

    def fit_transform(self, x):
        assert 0 < self.options["perplexity"] < len(x)
        return x[:, :2]


@pytest.fixture
def flat(monkeypatch):
    monkeypatch.setattr("sklearn.manifold.TSNE", FlatTSNE)


def corner(cloud):
    return list(zip(cloud["x"], cloud["y"], cloud["class"], strict=True))


@pytest.mark.usefixtures("flat")
@pytest.mark.parametrize("named", [False, True])
def test_projection_shows_real_and_generated_rows_of_the_largest_classes(data, named):
    model = FakeModel(data, 5.0 + real_centers(data), named=named)
    found = observations.projection(model, data, n_classes=2, n_rows=8, random_state=1)
    assert found["classes"] == ["elk", "hen"]  # 9 and 7 rows, of classes 4 and 6
    labels = ["elk", "hen"] if named else [4, 6]
    assert model.asked == [(labels, [8, 7], 1)]  # 9 are cut to 8, and as many are generated
    assert found["real"]["class"] == found["generated"]["class"] == [0] * 8 + [1] * 7
    assert len(set(corner(found["real"]))) == 15
    for x, y, place in corner(found["real"]):
        among = data.x_test_unseen[data.y_test_unseen == (4, 6)[place], :2] / 2
        assert np.abs(among - [x, y]).max(1).min() < 0.006
    expected, _ = model.generate(labels, [8, 7], random_state=1)
    assert np.allclose([point[:2] for point in corner(found["generated"])], expected[:, :2], atol=0.006)
    assert json.loads(json.dumps(found)) == found


@pytest.mark.usefixtures("flat")
def test_of_equally_large_classes_those_with_smaller_ids_are_shown():
    data = small_data(rows_of_unseen=(3, 5, 5))
    for named in (False, True):
        model = FakeModel(data, real_centers(data), named=named)
        assert observations.projection(model, data, n_classes=2)["classes"] == ["cat", "hen"]  # ids 5 and 6
        assert observations.projection(model, data, n_classes=1)["classes"] == ["cat"]


@pytest.mark.usefixtures("flat")
def test_which_rows_are_shown_depends_on_the_seed_alone(data):
    model = FakeModel(data, real_centers(data))
    first, again, other = (observations.projection(model, data, n_rows=3, random_state=seed) for seed in (0, 0, 1))
    assert first == again
    assert corner(first["real"]) != corner(other["real"])


def test_the_map_keeps_classes_together_and_is_the_same_twice(data):
    model = FakeModel(data, real_centers(data))
    found = observations.projection(model, data)
    assert found == observations.projection(model, data)
    assert found["perplexity"] == pytest.approx((2 * sum(ROWS_OF_UNSEEN) - 1) / 3, abs=0.01)
    points = np.array([point[:2] for side in ("real", "generated") for point in corner(found[side])])
    classes = np.array(found["real"]["class"] + found["generated"]["class"])
    distances = np.linalg.norm(points[:, None] - points, axis=2) + np.diag(np.full(len(points), np.inf))
    assert (classes[distances.argmin(1)] == classes).mean() > 0.8


@pytest.mark.parametrize("rows_of_unseen", [(1, 0, 0), (2, 0, 0), (1, 1, 0)])
def test_a_handful_of_rows_makes_a_map(rows_of_unseen):
    data = small_data(rows_of_unseen)
    found = observations.projection(FakeModel(data, data.attributes), data)
    assert len(found["real"]["x"]) == len(found["generated"]["y"]) == sum(rows_of_unseen)
    assert np.isfinite([found[side][axis] for side in ("real", "generated") for axis in ("x", "y")]).all()


def test_a_map_of_no_classes_is_refused(data):
    with pytest.raises(DGZError, match="n_classes"):
        observations.projection(FakeModel(data, data.attributes), data, n_classes=0)


def test_projection_of_a_fitted_model(fitted, numbers):
    found = observations.projection(fitted["WGAN"], numbers, n_classes=3, n_rows=5)
    assert found["classes"] == [numbers.class_names[c] for c in numbers.unseen[:3]]  # all have as many rows
    assert len(found["real"]["x"]) == len(found["generated"]["x"]) == 15


# --- Gradients.
def slow_gradients(model, data, random_state=0):
    """Norms and shares by loops over rows and classes; for data of which no row is left out."""
    places = {c: i for i, c in enumerate(model.classes_)}
    unseen = [c for c in model.classes_ if c in data.unseen]
    pseudo_x, pseudo_y = model.generate(unseen, model.n_per_class, random_state=random_state)
    raw = np.concatenate([model.embed(data.x_train), pseudo_x]).astype(np.float64)
    x = raw / np.linalg.norm(raw, axis=1, keepdims=True) if model.weights == "mapped" else np.c_[raw, np.ones(len(raw))]
    y = [places[c] for c in [*data.y_train, *pseudo_y]]
    weights = model.weights_.astype(np.float64)
    pull, push = (
        np.array(part) for part in reference.pull_and_push(x.tolist(), y, weights.tolist(), model.temperature)
    )
    is_seen = model.seen_
    expected = {}
    for name, part in (("pull", pull), ("push", push)):
        norms = np.linalg.norm(part, axis=1)
        expected |= {f"{name}_on_seen": norms[is_seen].mean(), f"{name}_on_unseen": norms[~is_seen].mean()}

    def share(lambda_1):
        sizes = {True: 0.0, False: 0.0}
        for u in np.flatnonzero(~is_seen):
            sums = {True: np.zeros(x.shape[1]), False: np.zeros(x.shape[1])}
            for row, label in zip(x, y, strict=True):
                e = np.exp(weights @ row / model.temperature)
                rivals = np.where(is_seen, 1, lambda_1) * e if is_seen[label] else e
                sums[bool(is_seen[label])] += rivals[u] / rivals.sum() * row
            for of_seen, total in sums.items():
                sizes[of_seen] += np.linalg.norm(total)
        return sizes[True] / sum(sizes.values())

    expected["seen_share_of_push"] = share(model.lambda_1_)
    return expected | {f"seen_share_of_push_at_{value:g}": share(value) for value in (0, 0.01, 0.1, 1, 10)}


@pytest.mark.parametrize("weights", ["mapped", "linear"])
def test_gradients_are_the_slow_ones(data, weights):
    model = FakeModel(data, real_centers(data))
    model.weights = weights
    if weights == "linear":  # a column for the bias
        model.weights_ = np.c_[model.weights_, np.linspace(-1, 1, len(model.weights_))].astype(np.float32)
    found = observations.gradients(model, data)
    for name, value in slow_gradients(model, data).items():
        assert found[name] == pytest.approx(value, rel=1e-3), name
    assert found["cosine_of_pull_and_center"] == 1
    assert max(found["proposition_1_gap"], found["equation_7_gap"]) < 1e-12
    assert json.loads(json.dumps(found)) == found


def test_a_wrong_formula_leaves_a_gap(data, monkeypatch):
    model = FakeModel(data, real_centers(data))
    right = observations.pull_and_push, observations.incremental_gradient
    monkeypatch.setattr(observations, "pull_and_push", lambda *args: (right[0](*args)[0], 0.99 * right[0](*args)[1]))
    found = observations.gradients(model, data)
    assert found["proposition_1_gap"] > 1e-3
    assert found["equation_7_gap"] < 1e-12
    monkeypatch.setattr(observations, "pull_and_push", right[0])
    # A λ1 in the third sum that is not quite that of the loss.
    monkeypatch.setattr(observations, "incremental_gradient", lambda *args: right[1](*args[:5], 0.98 * args[5], 1.0))
    found = observations.gradients(model, data)
    assert found["proposition_1_gap"] < 1e-12
    assert found["equation_7_gap"] > 1e-4
    # A pull that is not to the class's own centre.
    monkeypatch.setattr(observations, "pull_and_push", lambda *args: [part.roll(1, 0) for part in right[0](*args)])
    assert observations.gradients(model, data)["cosine_of_pull_and_center"] < 0.9


@pytest.mark.parametrize("lambda_1", [0.0, 1.0, 4.0])
def test_the_models_own_lambda_is_used(data, lambda_1):
    model = FakeModel(data, real_centers(data))
    model.lambda_1_ = lambda_1
    found = observations.gradients(model, data)
    assert found["seen_share_of_push"] == pytest.approx(slow_gradients(model, data)["seen_share_of_push"], rel=1e-3)
    assert found["equation_7_gap"] < 1e-12


def test_gradients_are_the_same_by_name_and_by_id(data):
    by_id, by_name = (FakeModel(data, real_centers(data), named=named) for named in (False, True))
    for model in (by_id, by_name):  # without noise, whose order would follow that of the classes
        model.generate = lambda names, n, *, random_state, model=model: (
            np.repeat(model.centers[np.searchsorted(model.classes_, names)], n, axis=0).astype(np.float32),
            np.repeat(names, n),
        )
    first, second = (observations.gradients(model, data) for model in (by_id, by_name))
    gaps = {"proposition_1_gap", "equation_7_gap"}
    for name in first.keys() - gaps:
        assert second[name] == pytest.approx(first[name], rel=1e-3), name


def test_thinning_keeps_the_balance_of_real_and_generated_rows(data):
    model = FakeModel(data, real_centers(data))
    model.n_per_class = 8
    x, y = observations._classifier_rows(model, data, n_rows=8, random_state=0)  # of 32
    assert model.asked[-1][1] == [2, 2, 2]
    assert torch.bincount(y)[:N_SEEN].sum() == 8
    assert torch.linalg.vector_norm(x, dim=1).tolist() == pytest.approx([1] * len(x))
    again, _ = observations._classifier_rows(model, data, n_rows=8, random_state=0)
    other, _ = observations._classifier_rows(model, data, n_rows=8, random_state=1)
    assert torch.equal(x, again)
    assert not torch.equal(x, other)
    rows = prepared(torch.tensor(model.embed(data.x_train)).double(), "mapped")
    for row, label in zip(x[:8], y[:8], strict=True):  # each is a training row, with its own label
        at = (rows - row).abs().sum(1).argmin()
        assert torch.equal(rows[at], row)
        assert data.y_train[at] == label


@pytest.mark.parametrize("kind", KINDS)
def test_gradients_of_a_fitted_model(kind, fitted, numbers):
    found = observations.gradients(fitted[kind], numbers)
    assert max(found["proposition_1_gap"], found["equation_7_gap"]) < 1e-12
    assert found["cosine_of_pull_and_center"] == 1
    shares = [found[f"seen_share_of_push_at_{value}"] for value in ("0", "0.01", "0.1", "1", "10")]
    assert shares[0] == 0
    assert shares == sorted(shares)
    assert shares[1] < 0.1 < shares[3]
    assert found["seen_share_of_push"] == shares[2 if kind == "without generator" else 3]


# --- The toy.
class FakeGAN:
    """A generator of ten times its prior plus its class vector."""

    def __init__(self, **settings):
        self.settings = settings

    def fit(self, x, y, attributes, *, seed):
        assert x.shape == (2000, 2)
        assert attributes.tolist() == [[0.0, 0.0]]
        assert not y.any()
        assert x.mean(0).abs().max() < 0.1
        assert (x.std(0) - 1).abs().max() < 0.1

    def net_(self, z, a):
        return 10 * z + a

    def sample(self, attributes, rng):
        return self.net_(torch.randn(attributes.shape, generator=rng), attributes)


def test_the_toy_holds_the_prior_and_moves_the_class_vectors(monkeypatch):
    made = []
    monkeypatch.setattr(observations, "WGANGP", lambda **settings: made.append(FakeGAN(**settings)) or made[-1])
    found = observations.toy(0.04, n_epochs=9)
    assert made[0].settings["attribute_noise"] == 0.04
    assert made[0].settings["n_epochs"] == 9
    assert found["std"] == pytest.approx([1, 1], abs=0.15)  # 300 vectors, and nothing of the prior
    assert found["std"] == pytest.approx([np.std(found["generated"][axis], ddof=1) for axis in "xy"], abs=0.002)
    assert found["std_with_prior"] == pytest.approx([10, 10], rel=0.1)


def test_the_toy_is_small_and_the_same_twice():
    found = observations.toy(0.04, n_epochs=2)
    assert found == observations.toy(0.04, n_epochs=2)
    assert found["generated"] != observations.toy(0.04, n_epochs=2, seed=1)["generated"]
    assert found["truth"] == observations.toy(0.0, n_epochs=1)["truth"]
    assert {len(found[part][axis]) for part in ("truth", "generated") for axis in "xy"} == {300}
    assert json.loads(json.dumps(found)) == found


def test_the_toy_gives_all_threads_back(monkeypatch):
    during = []
    monkeypatch.setattr(FakeGAN, "fit", lambda self, *args, **kwargs: during.append(torch.get_num_threads()))
    monkeypatch.setattr(observations, "WGANGP", FakeGAN)
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        observations.toy(0.0)
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert during == [1]


def test_without_noise_the_toys_class_vectors_lead_nowhere():
    # Weights that only ever multiply zeros stay as they started, so this holds from the first epochs on.
    without, wide = (observations.toy(noise, n_epochs=40) for noise in (0.0, 1.0))
    assert max(without["std"]) < 0.15 * min(without["std_with_prior"])
    assert max(wide["std"]) > 3 * max(without["std"])
