from pathlib import Path

import numpy as np
import pytest
from scipy.spatial.distance import pdist

from dgz.data import load_numbers, load_xlsa
from dgz.errors import DGZError
from dgz.metrics import gzsl_scores
from dgz.peers import CenterRidge
from dgz.peers.center_ridge import predict_centers


def test_centers_solve_the_ridge_equations() -> None:
    rng = np.random.default_rng(0)
    known, means, new = rng.random((6, 3)), rng.random((6, 4)), rng.random((2, 3))
    width = 1.5 * np.median(pdist(known))

    def kernel(a: np.ndarray, b: np.ndarray) -> float:
        return float(np.exp(-np.sum((a - b) ** 2) / (2 * width**2)))

    gram = np.array([[kernel(a, b) for b in known] for a in known])
    weights = np.linalg.solve(gram + 0.1 * np.eye(6), means - means.mean(axis=0))
    expected = [means.mean(axis=0) + sum(kernel(a, b) * w for b, w in zip(known, weights, strict=True)) for a in new]
    expected = [center / np.linalg.norm(center) for center in expected]
    np.testing.assert_allclose(predict_centers(known, means, new, 0.1, 1.5), expected, rtol=1e-5)


def test_settings_are_chosen_and_beat_a_poor_choice_on_numbers() -> None:
    data = load_numbers(0, n_train=20)
    arguments = (data.x_train, data.y_train, data.attributes)
    chosen = CenterRidge().fit(*arguments)
    poor = CenterRidge(alpha=1.0, bandwidth=0.5, seen_penalty=0.0).fit(*arguments)
    assert gzsl_scores(chosen, data).h > gzsl_scores(poor, data).h + 0.05
    assert chosen.seen_penalty_ > 0


def test_test_rows_play_no_part_in_fitting() -> None:
    data = load_numbers(0, n_train=10)
    permuted = np.random.default_rng(0).permutation(data.attributes[data.unseen])
    changed = data.attributes.copy()
    changed[data.unseen] = permuted
    one = CenterRidge().fit(data.x_train, data.y_train, data.attributes)
    two = CenterRidge().fit(data.x_train, data.y_train, changed)
    assert (one.alpha_, one.bandwidth_, one.seen_penalty_) == (two.alpha_, two.bandwidth_, two.seen_penalty_)


@pytest.mark.parametrize("value", [0.0, -1.0, "much"])
def test_a_wrong_setting_is_refused(value: float | str) -> None:
    with pytest.raises(DGZError, match="alpha must be a positive number or 'auto'"):
        CenterRidge(alpha=value).fit(np.eye(4), [0, 0, 1, 1], np.eye(3))


@pytest.mark.data
def test_it_is_a_fair_baseline_on_real_cub(data_root: Path) -> None:
    data = load_xlsa(data_root, "CUB", "res50", "sent")
    scores = gzsl_scores(CenterRidge().fit(data.x_train, data.y_train, data.attributes), data)
    assert scores.h > 0.58
    assert scores.acc_zsl > 0.74
