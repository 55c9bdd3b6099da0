from typing import Any

import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from dgz.data import GZSLData, load_numbers
from dgz.errors import DGZError
from dgz.estimator import resolve_classes
from dgz.metrics import gzsl_scores
from dgz.peers import CenterRidge


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=12, n_test=4)


def quick(**overrides: Any) -> CenterRidge:
    return CenterRidge(**{"alpha": 0.01, "bandwidth": 2.0, "seen_penalty": 0.01, **overrides})


@pytest.fixture(scope="module")
def fitted(numbers: GZSLData) -> CenterRidge:
    return quick().fit(numbers.x_train, numbers.y_train, numbers.attributes)


def test_classes_absent_from_y_are_unseen(fitted: CenterRidge, numbers: GZSLData) -> None:
    np.testing.assert_array_equal(fitted.classes_, np.arange(100))
    np.testing.assert_array_equal(np.flatnonzero(~fitted.seen_), numbers.unseen)


def test_labels_may_be_names_in_a_mapping_or_a_data_frame(fitted: CenterRidge, numbers: GZSLData) -> None:
    names = np.array(numbers.class_names)
    vectors = dict(zip(names[::-1], numbers.attributes[::-1], strict=True))
    frame = pd.DataFrame(numbers.attributes, index=names)
    expected = names[fitted.predict(numbers.x_test_unseen)]
    for attributes in (vectors, frame):
        model = quick().fit(numbers.x_train, names[numbers.y_train], attributes)
        assert model.predict(numbers.x_test_unseen).tolist() == expected.tolist()


def test_predict_is_the_argmax_of_the_decision_function(fitted: CenterRidge, numbers: GZSLData) -> None:
    scores = fitted.decision_function(numbers.x_test_seen)
    np.testing.assert_array_equal(fitted.predict(numbers.x_test_seen), scores.argmax(axis=1))
    probabilities = fitted.predict_proba(numbers.x_test_seen)
    np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)
    np.testing.assert_array_equal(probabilities.argmax(axis=1), scores.argmax(axis=1))


def test_predict_can_be_confined_to_some_classes(fitted: CenterRidge, numbers: GZSLData) -> None:
    scores = fitted.decision_function(numbers.x_test_unseen)[:, numbers.unseen]
    predicted = fitted.predict(numbers.x_test_unseen, classes=numbers.unseen[::-1])
    np.testing.assert_array_equal(predicted, numbers.unseen[scores.argmax(axis=1)])


def test_a_penalty_on_seen_classes_moves_predictions_to_unseen_ones(fitted: CenterRidge, numbers: GZSLData) -> None:
    shares = [
        np.isin(fitted.predict(numbers.x_test_seen, seen_penalty=penalty), numbers.unseen).mean()
        for penalty in (-2.0, 0.0, 0.05, 2.0)
    ]
    assert shares == sorted(shares)
    assert (shares[0], shares[-1]) == (0.0, 1.0)


def test_prediction_in_blocks_equals_prediction_at_once(
    fitted: CenterRidge, numbers: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = fitted.predict(numbers.x_test_seen)
    monkeypatch.setattr("dgz.estimator._BLOCK", 7)
    np.testing.assert_array_equal(fitted.predict(numbers.x_test_seen), whole)


def test_many_classes_make_blocks_smaller(
    fitted: CenterRidge, numbers: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole, score, sizes = fitted.predict(numbers.x_test_seen), fitted._scores, []
    monkeypatch.setattr("dgz.estimator._MOST_SCORES", 5 * 100 + 99)
    monkeypatch.setattr(fitted, "_scores", lambda X: sizes.append(len(X)) or score(X))
    np.testing.assert_array_equal(fitted.predict(numbers.x_test_seen), whole)
    assert set(sizes[:-1]) == {5}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ((np.eye(3), [0, 1, 5], np.eye(4)), "found 1 label(s) without: 5"),
        ((np.eye(3), ["a", "b", "c"], np.eye(4)), "pass a mapping or a DataFrame keyed by your labels"),
        ((np.eye(3), ["a", "b", "c"], {"a": [1.0], "b": [1.0, 2.0]}), "must have the same length, found 1, 2"),
        ((np.eye(3), [0, 1, 2], None), "fit needs attributes"),
        (
            (np.eye(3), [0, 1, 2], np.full((3, 2), np.nan)),
            "must be finite, found NaN or infinity in the vector of class",
        ),
    ],
)
def test_wrong_arguments_of_fit_are_explained(arguments: tuple[Any, ...], sentence: str) -> None:
    with pytest.raises(DGZError) as caught:
        quick().fit(*arguments)
    assert sentence in str(caught.value)


def test_a_frame_with_a_repeated_label_is_refused() -> None:
    with pytest.raises(DGZError, match="names a class more than once"):
        resolve_classes(np.array(["a"]), pd.DataFrame(np.eye(2), index=["a", "a"]))


def test_unknown_classes_and_widths_are_refused(fitted: CenterRidge, numbers: GZSLData) -> None:
    with pytest.raises(DGZError, match="does not know 1 of classes: 100"):
        fitted.predict(numbers.x_test_seen, classes=[1, 100])
    with pytest.raises(DGZError, match="at least one class"):
        fitted.predict(numbers.x_test_seen, classes=[])
    with pytest.raises(ValueError, match="3 features, but CenterRidge is expecting 128 features"):
        fitted.predict(np.eye(3))


def test_the_estimator_is_cloneable_and_its_parameters_are_its_signature(fitted: CenterRidge) -> None:
    twin = clone(fitted)
    assert twin.get_params() == fitted.get_params()
    assert not hasattr(twin, "classes_")


def test_scores_of_an_estimator_are_reproducible(numbers: GZSLData) -> None:
    one, two = (
        gzsl_scores(CenterRidge(random_state=3).fit(numbers.x_train, numbers.y_train, numbers.attributes), numbers)
        for _ in range(2)
    )
    assert one.to_dict() == two.to_dict()


def test_the_top_labels_are_the_scores_in_order(
    fitted: CenterRidge, numbers: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = numbers.x_test_unseen
    monkeypatch.setattr("dgz.estimator._BLOCK", 7)
    labels, probabilities = fitted.predict_top(rows, 3)
    order = np.argsort(-fitted.decision_function(rows), axis=1)[:, :3]
    np.testing.assert_array_equal(labels, fitted.classes_[order])
    every = fitted.predict_proba(rows)
    np.testing.assert_allclose(probabilities, np.take_along_axis(every, order, axis=1), rtol=1e-5)


def test_the_top_labels_obey_classes_and_penalty_as_predict_does(fitted: CenterRidge, numbers: GZSLData) -> None:
    rows, unseen = numbers.x_test_seen, numbers.unseen
    for classes, penalty in ((None, 0.05), (unseen, 0.0), (np.arange(50), 0.1)):
        labels, probabilities = fitted.predict_top(rows, 1000, classes, penalty)
        np.testing.assert_array_equal(labels[:, 0], fitted.predict(rows, classes, penalty))
        assert labels.shape[1] == (100 if classes is None else len(classes))
        np.testing.assert_allclose(probabilities.sum(axis=1), 1, rtol=1e-5)


@pytest.mark.parametrize(
    ("rows", "top", "sentence"),
    [
        (np.eye(3), 1, "X must have 128 columns, as the training rows had, found 3."),
        (np.full((2, 128), np.inf), 1, "X must be finite, found NaN or infinity in row 0."),
        (np.zeros((2, 128)), 0, "top must be a whole number from 1 up, found 0."),
    ],
)
def test_rows_that_cannot_be_ranked_are_explained(fitted: CenterRidge, rows: Any, top: int, sentence: str) -> None:
    with pytest.raises(DGZError) as caught:
        fitted.predict_top(rows, top)
    assert str(caught.value) == sentence
