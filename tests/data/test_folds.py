import numpy as np
import pytest

from dgz.data import FeatureScaler, GZSLData, load_numbers, validation_folds
from dgz.errors import DGZError


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=10, n_test=3)


def test_folds_hold_training_rows_of_seen_classes_only(numbers: GZSLData) -> None:
    seen_names = {numbers.class_names[i] for i in numbers.seen}
    for fold in validation_folds(numbers, 4):
        index = np.concatenate([fold.train_index, fold.test_seen_index, fold.test_unseen_index])
        assert np.isin(index, numbers.train_index).all()
        assert set(fold.class_names) == seen_names
        row_of = {source: row for row, source in enumerate(numbers.train_index)}
        for split in ("train", "test_seen", "test_unseen"):
            rows = [row_of[source] for source in getattr(fold, f"{split}_index")]
            np.testing.assert_array_equal(getattr(fold, f"x_{split}"), numbers.x_train[rows])
            names = [fold.class_names[i] for i in getattr(fold, f"y_{split}")]
            assert names == [numbers.class_names[i] for i in numbers.y_train[rows]]


def test_every_seen_class_plays_unseen_exactly_once(numbers: GZSLData) -> None:
    folds = validation_folds(numbers, 3)
    played = [fold.class_names[i] for fold in folds for i in fold.unseen]
    assert sorted(played) == sorted(numbers.class_names[i] for i in numbers.seen)
    assert [len(fold.unseen) for fold in folds] == [27, 27, 26]


def test_each_remaining_class_holds_out_its_share(numbers: GZSLData) -> None:
    fold = validation_folds(numbers, 4, test_fraction=0.3)[0]
    assert set(np.bincount(fold.y_test_seen, minlength=fold.n_classes)[fold.seen]) == {3}
    assert set(np.bincount(fold.y_train, minlength=fold.n_classes)[fold.seen]) == {7}


def test_folds_follow_from_the_seed(numbers: GZSLData) -> None:
    one, same, other = (validation_folds(numbers, random_state=seed)[0].hashes["split"] for seed in (0, 0, 1))
    assert one == same != other


def test_a_scaler_fitted_in_a_fold_has_seen_no_other_row() -> None:
    x = np.random.default_rng(0).random((40, 3))
    x[0] = 100  # class 0's first row: an outlier that only folds which train on it may know of
    data = GZSLData(x_train=x, y_train=np.repeat(np.arange(4), 10), attributes=np.eye(4))
    for fold in validation_folds(data, 2):
        top = 1 / FeatureScaler("minmax").fit(fold.x_train).scale_.min()
        assert (top > 50) == (0 in fold.train_index)


def test_a_classs_only_row_stays_in_training() -> None:
    data = GZSLData(x_train=np.eye(7), y_train=[0, 1, 1, 2, 2, 3, 3], attributes=np.eye(4))
    for fold in validation_folds(data, 2):
        assert set(fold.y_train) == set(fold.seen)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"n_folds": 1}, "n_folds must be from 2 to the number of seen classes"),
        ({"n_folds": 81}, "n_folds must be from 2 to the number of seen classes"),
        ({"test_fraction": 0.0}, "test_fraction must lie between 0 and 1"),
    ],
)
def test_impossible_folds_are_refused(numbers: GZSLData, arguments: dict[str, float], sentence: str) -> None:
    with pytest.raises(DGZError, match=sentence):
        validation_folds(numbers, **arguments)  # type: ignore[arg-type]


def test_an_empty_fold_is_refused() -> None:
    data = GZSLData(x_train=np.eye(4), y_train=[0, 1, 2, 3], attributes=np.eye(4), name="single")
    with pytest.raises(DGZError, match="fold 1 of 2 is empty: no remaining class of 'single' has a second row"):
        validation_folds(data, 2)
