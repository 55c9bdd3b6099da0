import numpy as np
import pytest
from scipy.linalg import solve_sylvester

from dgz.data import GZSLData, load_numbers
from dgz.metrics import gzsl_scores
from dgz.peers import SAE


def problem(d_x: int = 5, d_a: int = 3, n: int = 40) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    x, y, vectors = rng.random((n, d_x)), np.sort(rng.integers(1, 6, n)), rng.random((7, d_a))
    return x.astype(np.float32).astype(float), y, vectors.astype(np.float32).astype(float)


def encoder(x: np.ndarray, y: np.ndarray, vectors: np.ndarray, weight: float) -> np.ndarray:
    model = SAE(feature_scaling="none", encoder_weight=weight, space="classes", seen_penalty=0.0)
    return np.asarray(model.fit(x, y, vectors).weights_, dtype=float)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


@pytest.mark.parametrize("weight", [0.01, 1.0, 50.0])
def test_the_encoder_solves_the_sylvester_equation(weight: float) -> None:
    x, y, vectors = problem()
    X, S = x.T, vectors[y].T
    expected = solve_sylvester(S @ S.T, weight * X @ X.T, (1 + weight) * S @ X.T)
    np.testing.assert_allclose(encoder(x, y, vectors, weight), expected, rtol=1e-3, atol=1e-5)


@pytest.mark.parametrize(("d_x", "d_a", "n"), [(5, 12, 40), (60, 3, 20), (60, 12, 20)])
def test_without_full_rank_it_is_the_smallest_solution(d_x: int, d_a: int, n: int) -> None:
    x, y, vectors = problem(d_x, d_a, n)
    X, S = x.T, vectors[y].T
    W = encoder(x, y, vectors, 0.5)
    np.testing.assert_allclose(S @ S.T @ W + 0.5 * W @ X @ X.T, 1.5 * S @ X.T, rtol=1e-3, atol=1e-4)
    # No part of it lies where neither rows nor class vectors do.
    outside_rows = np.eye(d_x) - np.linalg.pinv(X.T) @ X.T
    outside_classes = np.eye(d_a) - S @ np.linalg.pinv(S)
    assert np.abs(outside_classes @ W @ outside_rows).max() < 1e-5


def test_it_minimises_the_papers_objective() -> None:
    x, y, vectors = problem()
    X, S = x.T, vectors[y].T

    def objective(W: np.ndarray) -> float:
        return float(np.sum((X - W.T @ S) ** 2) + 0.5 * np.sum((W @ X - S) ** 2))

    W, rng = encoder(x, y, vectors, 0.5), np.random.default_rng(1)
    for _ in range(50):
        assert objective(W + 0.01 * rng.standard_normal(W.shape)) > objective(W)


def test_its_extremes_are_two_regressions() -> None:
    x, y, vectors = problem()
    rows_to_vectors = np.linalg.lstsq(x, vectors[y], rcond=None)[0].T
    vectors_to_rows = np.linalg.lstsq(vectors[y], x, rcond=None)[0]
    np.testing.assert_allclose(encoder(x, y, vectors, 1e7), rows_to_vectors, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(encoder(x, y, vectors, 1e-7), vectors_to_rows, rtol=1e-3, atol=1e-4)


def test_scores_are_cosines_in_either_space() -> None:
    x, y, vectors = problem()
    W = encoder(x, y, vectors, 2.0)
    expected = {
        "features": [[cosine(row, W.T @ a) for a in vectors] for row in x],
        "classes": [[cosine(W @ row, a) for a in vectors] for row in x],
    }
    for space, scores in expected.items():
        model = SAE(feature_scaling="none", encoder_weight=2.0, space=space, seen_penalty=0.0).fit(x, y, vectors)
        np.testing.assert_allclose(model.decision_function(x), scores, atol=1e-4)
        assert model.weights_.shape == {"features": (7, 5), "classes": (3, 5)}[space]


def test_a_model_refitted_in_the_other_space_forgets_the_first() -> None:
    x, y, vectors = problem()
    model = SAE(encoder_weight=1.0, space="features", seen_penalty=0.0).fit(x, y, vectors)
    model.set_params(space="classes").fit(x, y, vectors)
    fresh = SAE(encoder_weight=1.0, space="classes", seen_penalty=0.0).fit(x, y, vectors)
    np.testing.assert_array_equal(model.decision_function(x), fresh.decision_function(x))


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=12, n_test=4)


def test_it_recognises_numbers_in_both_spaces_and_folds_find_the_better_one(numbers: GZSLData) -> None:
    arguments = (numbers.x_train, numbers.y_train, numbers.attributes)
    h = {space: gzsl_scores(SAE(space=space).fit(*arguments), numbers).h for space in ("features", "classes")}
    assert min(h.values()) > 0.5
    chosen = SAE().fit(*arguments)
    assert gzsl_scores(chosen, numbers).h == h[chosen.space_]


def test_the_decoder_matters(numbers: GZSLData) -> None:
    # Without it (an encoder that outweighs all) the map is plain regression onto class vectors.
    arguments = (numbers.x_train, numbers.y_train, numbers.attributes)
    chosen, plain = (SAE(encoder_weight=weight, space="features").fit(*arguments) for weight in ("auto", 1e6))
    assert gzsl_scores(chosen, numbers).h > gzsl_scores(plain, numbers).h + 0.1
