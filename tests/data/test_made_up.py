"""The data sets that need no files: two-digit numbers and synthetic ones."""

import numpy as np
import pytest
from sklearn.datasets import load_digits

from dgz.data import GZSLData, load_numbers, make_synthetic
from dgz.data.numbers import DIGIT_STROKES, STROKES
from dgz.errors import DGZError
from dgz.metrics import gzsl_scores
from dgz.peers import CenterRidge


def halves(x: np.ndarray) -> set[bytes]:
    """Every digit picture in some rows of numbers."""
    pictures = x.reshape(-1, 8, 2, 8).transpose(0, 2, 1, 3).reshape(-1, 64)
    return {picture.tobytes() for picture in np.ascontiguousarray(pictures)}


def test_numbers_are_two_real_digits_side_by_side() -> None:
    data = load_numbers(3)
    pictures, digits = load_digits(return_X_y=True)
    digit_of = {picture.astype(np.float32).tobytes(): digit for picture, digit in zip(pictures, digits, strict=True)}
    for row, label in zip(data.x_train[::97], data.y_train[::97], strict=True):
        left, right = (np.ascontiguousarray(half).tobytes() for half in np.split(row.reshape(8, 16), 2, axis=1))
        assert (digit_of[left], digit_of[right]) == divmod(label, 10)


def test_training_and_test_numbers_share_no_digit_picture() -> None:
    data = load_numbers(1)
    assert not halves(data.x_train) & (halves(data.x_test_seen) | halves(data.x_test_unseen))


@pytest.mark.parametrize("seed", range(5))
def test_twenty_numbers_are_unseen_but_every_digit_is_known(seed: int) -> None:
    data = load_numbers(seed, n_train=1, n_test=1)
    assert (len(data.seen), len(data.unseen)) == (80, 20)
    for side in np.divmod(data.unseen, 10):
        assert np.bincount(side, minlength=10).tolist() == [2] * 10


def test_the_seed_changes_classes_and_samples() -> None:
    one, same, other = load_numbers(0), load_numbers(0), load_numbers(1)
    assert one.hashes == same.hashes
    assert one.hashes["split"] != other.hashes["split"]
    assert one.hashes["attributes"] == other.hashes["attributes"]


def test_strokes_tell_all_digits_apart() -> None:
    assert DIGIT_STROKES.shape == (10, len(STROKES))
    assert len(np.unique(DIGIT_STROKES, axis=0)) == 10


def test_synthetic_data_has_the_asked_for_shape() -> None:
    data = make_synthetic(30, 6, n_attributes=7, n_features=11, n_samples=1000, test_fraction=0.25)
    assert (len(data.seen), len(data.unseen)) == (24, 6)
    assert (data.x_train.shape[1], data.attributes.shape) == (11, (30, 7))
    assert len(data.y_train) + len(data.y_test_seen) + len(data.y_test_unseen) == 1000
    assert data.x_train.min() >= 0


def test_synthetic_data_follows_from_its_seed() -> None:
    shape = {"n_attributes": 4, "n_features": 5, "n_samples": 100}
    one, same, other = (make_synthetic(10, random_state=seed, **shape).hashes for seed in (0, 0, 1))
    assert one == same != other


def test_the_defaults_are_awa2s_shape() -> None:
    data = make_synthetic()
    assert (data.n_classes, len(data.unseen), data.attributes.shape[1], data.x_train.shape[1]) == (50, 10, 85, 2048)
    assert len(data.y_train) + len(data.y_test_seen) + len(data.y_test_unseen) == 37_322


def test_difficulty_lowers_the_score_and_neither_end_is_flat() -> None:
    def score(difficulty: float) -> float:
        data: GZSLData = make_synthetic(40, n_attributes=40, n_features=128, n_samples=2000, difficulty=difficulty)
        model = CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.0).fit(
            data.x_train, data.y_train, data.attributes
        )
        return gzsl_scores(model, data).acc_zsl

    scores = [score(difficulty) for difficulty in (0.0, 0.3, 0.6, 1.0)]
    assert scores == sorted(scores, reverse=True)
    assert scores[0] > 0.85
    assert 0.2 < scores[2] < scores[0] - 0.2


@pytest.mark.slow
def test_synthetic_data_reaches_imagenet_21ks_number_of_classes() -> None:
    data = make_synthetic(21_841, 841, n_attributes=16, n_features=32, n_samples=50_000)
    assert (len(data.seen), len(data.unseen)) == (21_000, 841)


@pytest.mark.parametrize(
    "arguments", [{"n_unseen": 0}, {"n_unseen": 50}, {"n_samples": 99}, {"difficulty": 1.1}, {"test_fraction": 0.0}]
)
def test_impossible_shapes_are_refused(arguments: dict[str, float]) -> None:
    with pytest.raises(DGZError, match=next(iter(arguments))):
        make_synthetic(**arguments)  # type: ignore[arg-type]
