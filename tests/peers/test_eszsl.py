import numpy as np
import pytest

from dgz.data import GZSLData, load_numbers
from dgz.metrics import gzsl_scores
from dgz.peers import ESZSL


def slow_weights(
    x: np.ndarray, y: np.ndarray, vectors: np.ndarray, other: float, gamma: float, lambda_: float
) -> np.ndarray:
    """The paper's one line, with its letters: X (d, m), Y (m, z), S (a, z)."""
    seen = sorted(set(y.tolist()))
    labels = np.full((len(x), len(seen)), other)
    for i, label in enumerate(y):
        labels[i, seen.index(label)] = 1
    X, S = x.T, vectors[seen].T
    left = np.linalg.inv(X @ X.T + gamma * np.eye(len(X)))
    right = np.linalg.inv(S @ S.T + lambda_ * np.eye(len(S)))
    V = left @ X @ labels @ S.T @ right
    return np.array([V @ a for a in vectors])


@pytest.mark.parametrize(("n", "d_x", "d_a"), [(40, 5, 3), (12, 20, 3), (40, 5, 9)])
@pytest.mark.parametrize(("labels", "other"), [("zero_one", 0.0), ("signs", -1.0)])
def test_weights_are_those_of_the_closed_form(n: int, d_x: int, d_a: int, labels: str, other: float) -> None:
    rng = np.random.default_rng(0)
    x, y, vectors = rng.random((n, d_x)), np.arange(n) % 4 + 1, rng.random((6, d_a))
    for gamma, lambda_ in ((0.5, 0.1), (10.0, 3.0)):
        model = ESZSL(
            feature_scaling="none", labels=labels, feature_ridge=gamma, class_ridge=lambda_, seen_penalty=0.25
        ).fit(x, y, vectors)
        expected = slow_weights(x.astype(np.float32).astype(float), y, vectors, other, gamma, lambda_)
        np.testing.assert_allclose(model.weights_, expected, rtol=1e-3, atol=1e-5)
        scores = np.array([[row @ weights for weights in expected] for row in x])
        scores[:, 1:5] -= 0.25
        np.testing.assert_allclose(model.decision_function(x), scores, rtol=1e-3, atol=1e-4)


def test_it_minimises_the_papers_objective() -> None:
    rng = np.random.default_rng(0)
    x, y, vectors = rng.random((30, 4)), np.arange(30) % 4, rng.random((4, 3))
    gamma, lambda_ = 0.3, 0.7
    weights = slow_weights(x, y, vectors, 0.0, gamma, lambda_)
    V = np.linalg.lstsq(vectors, weights, rcond=None)[0].T

    def objective(V: np.ndarray) -> float:
        S, Y = vectors.T, np.eye(4)[y]
        ridges = gamma * np.sum((V @ S) ** 2) + lambda_ * np.sum((x @ V) ** 2) + gamma * lambda_ * np.sum(V**2)
        return float(np.sum((x @ V @ S - Y) ** 2) + ridges)

    least = objective(V)
    for _ in range(50):
        assert objective(V + 0.01 * rng.standard_normal(V.shape)) > least


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=12, n_test=4)


def test_both_ridges_matter(numbers: GZSLData) -> None:
    arguments = (numbers.x_train, numbers.y_train, numbers.attributes)
    chosen = gzsl_scores(ESZSL().fit(*arguments), numbers).h
    for poor in ({"feature_ridge": 1e6}, {"feature_ridge": 1e-6}, {"class_ridge": 1e3}):
        assert gzsl_scores(ESZSL(**poor).fit(*arguments), numbers).h < chosen - 0.02
    assert chosen > 0.7
