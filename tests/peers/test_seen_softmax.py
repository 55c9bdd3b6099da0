import numpy as np
import pytest
from scipy.special import log_softmax, logsumexp
from sklearn.linear_model import LogisticRegression

from dgz.data import GZSLData, load_numbers
from dgz.metrics import gzsl_scores, macro_accuracy
from dgz.peers import SeenSoftmax
from dgz.peers.seen_softmax import combine_vectors, fit_softmax


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=12, n_test=4)


def fit(numbers: GZSLData, **settings: object) -> SeenSoftmax:
    model = SeenSoftmax(**{"alpha": 0.001, "n_top": 10, **settings})  # type: ignore[arg-type]
    return model.fit(numbers.x_train, numbers.y_train, numbers.attributes)


@pytest.mark.parametrize("alpha", [0.1, 0.001])
def test_the_softmax_is_logistic_regression(alpha: float) -> None:
    rng = np.random.default_rng(0)
    x, y = 3 + rng.standard_normal((60, 4)).astype(np.float32), np.arange(60) % 3
    x[np.arange(60), y] += 1
    theirs = LogisticRegression(C=1 / (alpha * len(x)), tol=1e-8, max_iter=1000).fit(x.astype(float), y)
    ours = fit_softmax(x, y, 3, alpha)
    np.testing.assert_allclose(ours["weights"], theirs.coef_, atol=2e-3)
    logits = x @ ours["weights"].T + ours["bias"]
    np.testing.assert_allclose(np.exp(log_softmax(logits, axis=1)), theirs.predict_proba(x), atol=2e-3)
    again = fit_softmax(x, y, 3, alpha, start=fit_softmax(x, y, 3, 0.01))
    np.testing.assert_allclose(again["weights"], ours["weights"], atol=2e-3)


def test_more_steps_bring_a_lower_loss() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.standard_normal((60, 4)).astype(np.float32), np.arange(60) % 3
    x[np.arange(60), y] += 1

    def loss(n_steps: int) -> float:
        found = fit_softmax(x, y, 3, 0.001, n_steps)
        shares = log_softmax(x @ found["weights"].T + found["bias"], axis=1)
        return float(-shares[np.arange(60), y].mean() + 0.0005 * np.sum(found["weights"] ** 2))

    losses = [loss(n_steps) for n_steps in (1, 3, 30)]
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < losses[0] - 0.02


def test_a_class_alone_is_certain() -> None:
    found = fit_softmax(np.ones((3, 2), dtype=np.float32), np.zeros(3, dtype=int), 1, 0.1)
    np.testing.assert_array_equal(found["weights"], np.zeros((1, 2)))


@pytest.mark.parametrize("n_top", [1, 2, 4, 9])
def test_combined_vectors_are_those_of_the_likeliest_classes(n_top: int) -> None:
    rng = np.random.default_rng(0)
    shares, vectors = rng.dirichlet(np.ones(4), 6), rng.standard_normal((4, 3))
    for row, combined in zip(shares, combine_vectors(shares, vectors, n_top), strict=True):
        best = sorted(range(4), key=lambda k: -row[k])[:n_top]
        np.testing.assert_allclose(combined, sum(row[k] * vectors[k] for k in best))


def probabilities(model: SeenSoftmax, x: np.ndarray) -> np.ndarray:
    logits = model.scaler_.transform(x) @ model.weights_.T + model.bias_
    return np.exp(log_softmax(logits.astype(float), axis=1))


def slow_rule(model: SeenSoftmax, x: np.ndarray, known: np.ndarray) -> np.ndarray:
    """What the docstring says, row by row: ``known`` rows have their likeliest seen class, others go to ConSE."""
    seen, unseen = np.flatnonzero(model.seen_), np.flatnonzero(~model.seen_)
    scale = np.std(model.attributes_, axis=0)
    vectors = (model.attributes_ - model.attributes_.mean(axis=0)) / np.where(scale > 1e-6, scale, np.inf)
    labels = []
    for shares, is_known in zip(probabilities(model, x), known, strict=True):
        if is_known:
            labels.append(seen[shares.argmax()])
            continue
        top = np.argsort(-shares)[: model.n_top_]
        mean = sum(shares[k] * vectors[seen[k]] for k in top) / shares[top].sum()
        cosines = [mean @ vectors[u] / np.linalg.norm(mean) / np.linalg.norm(vectors[u]) for u in unseen]
        labels.append(unseen[int(np.argmax(cosines))])
    return np.array(labels)


@pytest.mark.parametrize("threshold", [1e-6, 0.1, 0.5, 0.9, 1 - 1e-6])
def test_the_penalty_is_the_logarithm_of_the_threshold(numbers: GZSLData, threshold: float) -> None:
    rows = np.concatenate([numbers.x_test_seen[::3], numbers.x_test_unseen])
    model = fit(numbers, seen_penalty=float(np.log(threshold)))
    known = probabilities(model, rows).max(axis=1) >= threshold
    expected = slow_rule(model, rows, known)
    np.testing.assert_array_equal(model.predict(rows), expected)
    np.testing.assert_array_equal(np.isin(model.predict(rows), numbers.seen), known)
    # Calibrated stacking on top moves the same threshold.
    loose = fit(numbers, seen_penalty=-100.0)
    np.testing.assert_array_equal(loose.predict(rows, seen_penalty=float(np.log(threshold)) + 100.0), expected)


def test_energies_have_a_threshold_too(numbers: GZSLData) -> None:
    rows = np.concatenate([numbers.x_test_seen[::3], numbers.x_test_unseen])
    free = fit(numbers, seen_penalty=0.0, novelty="energy")
    energies = logsumexp(free.scaler_.transform(rows) @ free.weights_.T + free.bias_, axis=1)
    np.testing.assert_allclose(free.decision_function(rows)[:, numbers.seen].max(axis=1), energies, rtol=1e-5)
    threshold = float(np.median(energies)) + 1e-4
    model = fit(numbers, seen_penalty=threshold, novelty="energy")
    np.testing.assert_array_equal(model.predict(rows), slow_rule(model, rows, energies >= threshold))


def test_the_best_unseen_class_has_a_score_of_zero(numbers: GZSLData) -> None:
    for settings in ({}, {"novelty": "energy"}, {"seen_penalty": 3.0}):
        best = fit(numbers, **settings).decision_function(numbers.x_test_seen)[:, numbers.unseen].max(axis=1)
        np.testing.assert_array_equal(best, np.zeros(len(best)))


def test_scores_of_seen_classes_are_log_probabilities(numbers: GZSLData) -> None:
    model = fit(numbers, seen_penalty=0.0)
    scores = model.decision_function(numbers.x_test_seen)[:, numbers.seen]
    np.testing.assert_allclose(np.exp(scores), probabilities(model, numbers.x_test_seen), rtol=1e-4)
    np.testing.assert_allclose(np.exp(scores.astype(float)).sum(axis=1), 1, rtol=1e-5)


def test_ausuc_sweeps_the_threshold(numbers: GZSLData) -> None:
    model = fit(numbers, seen_penalty=-0.5)
    parts = [(numbers.x_test_seen, numbers.y_test_seen), (numbers.x_test_unseen, numbers.y_test_unseen)]
    surest = [probabilities(model, x).max(axis=1).astype(np.float32) for x, _ in parts]
    if_known, if_novel = (
        [model.predict(x, classes=group) for x, _ in parts] for group in (numbers.seen, numbers.unseen)
    )
    u, s = [], []
    for threshold in [*np.unique(np.concatenate(surest)), 2.0]:
        labels = [np.where(best >= threshold, a, b) for best, a, b in zip(surest, if_known, if_novel, strict=True)]
        s.append(macro_accuracy(parts[0][1], labels[0], numbers.seen))
        u.append(macro_accuracy(parts[1][1], labels[1], numbers.unseen))
    area = sum((u[i + 1] - u[i]) * (s[i + 1] + s[i]) / 2 for i in range(len(u) - 1))
    assert gzsl_scores(model, numbers).ausuc == pytest.approx(area, abs=1e-4)


def test_sure_rows_are_told_apart(numbers: GZSLData) -> None:
    # In float32, log-probabilities within 1e-7 of 0 would all be one value, and the curve would have a gap there.
    model = fit(numbers, seen_penalty=0.0)
    model.weights_, model.bias_ = 8 * model.weights_, 8 * model.bias_
    best = model.decision_function(numbers.x_train)[:, numbers.seen].max(axis=1)
    assert np.mean(best > -1e-7) > 0.5
    assert len(np.unique(best)) > 0.95 * len(best)


def test_the_threshold_and_conse_are_what_makes_it_recognise_unseen_classes(numbers: GZSLData) -> None:
    chosen, trusting = fit(numbers, seen_penalty="auto"), fit(numbers, seen_penalty=-1000.0)
    assert gzsl_scores(chosen, numbers).h > 0.4
    assert gzsl_scores(trusting, numbers).acc_unseen == 0
    one, many = (gzsl_scores(fit(numbers, n_top=n_top), numbers).acc_zsl for n_top in (1, 10))
    assert many > one + 0.1
