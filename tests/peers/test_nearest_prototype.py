import numpy as np
import pytest

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.metrics import gzsl_scores
from dgz.peers import NearestPrototype


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def problem(d_x: int = 5, d_a: int = 3) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.standard_normal((30, d_x)), np.arange(30) % 4 + 1, rng.standard_normal((7, d_a))


@pytest.mark.parametrize("sharpness", [1.0, 20.0])
def test_prototypes_are_means_of_directions_and_mixtures_of_them(sharpness: float) -> None:
    x, y, vectors = problem()
    model = NearestPrototype(feature_scaling="none", sharpness=sharpness, space="prototypes", seen_penalty=0.125)
    scores = model.fit(x, y, vectors).decision_function(x)
    means = {}
    for label in (1, 2, 3, 4):
        own = [row / np.linalg.norm(row) for row, each in zip(x, y, strict=True) if each == label]
        means[label] = sum(own) / len(own)
    for label in range(7):
        prototype = means.get(label)
        if prototype is None:
            weights = {seen: np.exp(sharpness * cosine(vectors[label], vectors[seen])) for seen in means}
            prototype = sum(weight * means[seen] for seen, weight in weights.items()) / sum(weights.values())
        expected = [cosine(row, prototype) - 0.125 * (label in means) for row in x]
        np.testing.assert_allclose(scores[:, label], expected, atol=1e-5)


def shared_space() -> GZSLData:
    """Rows near their class's vector but for a constant: the gap between pictures and texts."""
    rng = np.random.default_rng(0)
    vectors = rng.standard_normal((30, 16))
    labels = {"train": np.repeat(np.arange(20), 6), "seen": np.repeat(np.arange(20), 4), "unseen": np.arange(20, 30)}
    rows = {name: vectors[y] + 0.5 + 0.8 * rng.standard_normal((len(y), 16)) for name, y in labels.items()}
    return GZSLData(
        x_train=rows["train"],
        y_train=labels["train"],
        x_test_seen=rows["seen"],
        y_test_seen=labels["seen"],
        x_test_unseen=rows["unseen"],
        y_test_unseen=labels["unseen"],
        attributes=vectors,
    )


def test_in_a_shared_space_a_class_is_its_vector() -> None:
    data = shared_space()
    model = NearestPrototype(space="shared", seen_penalty=0.0).fit(data.x_train, data.y_train, data.attributes)
    expected = [[cosine(row, vector) for vector in data.attributes] for row in data.x_test_unseen]
    np.testing.assert_allclose(model.decision_function(data.x_test_unseen), expected, atol=1e-5)
    assert model.feature_scaling_ == "none"


def test_a_space_that_is_shared_is_found_on_folds() -> None:
    data = shared_space()
    model = NearestPrototype().fit(data.x_train, data.y_train, data.attributes)
    assert model.space_ == "shared"
    prototypes = NearestPrototype(space="prototypes").fit(data.x_train, data.y_train, data.attributes)
    assert prototypes.feature_scaling_ == "minmax_l2"
    assert gzsl_scores(model, data).h > gzsl_scores(prototypes, data).h + 0.2


def test_one_width_by_chance_is_no_shared_space() -> None:
    data = load_numbers(0, n_train=10, n_test=3)
    rng = np.random.default_rng(0)
    widened = data.attributes @ rng.standard_normal((data.attributes.shape[1], data.x_train.shape[1]))
    model = NearestPrototype().fit(data.x_train, data.y_train, widened)
    assert model.space_ == "prototypes"
    assert gzsl_scores(model, data).h > 0.3


@pytest.mark.parametrize(("d_a", "scaling"), [(3, "auto"), (3, "none"), (5, "minmax")])
def test_a_space_that_cannot_be_shared_is_refused(d_a: int, scaling: str) -> None:
    with pytest.raises(
        DGZError, match=rf"A shared space needs .*found widths 5 and {d_a}, and the scaling '{scaling}'"
    ):
        NearestPrototype(space="shared", feature_scaling=scaling).fit(*problem(d_a=d_a))


def test_an_unseen_class_is_placed_by_its_vector() -> None:
    data = load_numbers(0)
    arguments = (data.x_train, data.y_train, data.attributes)
    chosen = gzsl_scores(NearestPrototype().fit(*arguments), data)
    # With hardly any weight on cosines, all unseen classes have one prototype.
    blunt = gzsl_scores(NearestPrototype(sharpness=1e-9).fit(*arguments), data)
    assert chosen.acc_zsl > blunt.acc_zsl + 0.3
    assert chosen.h > 0.55
