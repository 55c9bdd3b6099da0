"""Every score against its slow twin, its known values, and the ways in which inputs can be awkward."""

import dataclasses
import gc
import json
import math
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import reference
from dgz import metrics
from dgz.errors import DGZError

SMALL = settings(max_examples=60, deadline=None)


# --- Inputs.
@st.composite
def tasks(draw):
    """Small GZSL test sets: scores on a coarse grid (many ties), imbalanced classes, classes without rows."""
    n_classes = draw(st.integers(2, 6))
    order = draw(st.permutations(range(n_classes)))
    n_seen = draw(st.integers(1, n_classes - 1))
    seen, unseen = order[:n_seen], order[n_seen:]  # neither sorted nor in one piece
    grid = st.integers(-3, 3) if draw(st.booleans()) else st.integers(-(2**20), 2**20)

    def rows(classes):
        y = draw(st.lists(st.sampled_from(classes), min_size=1, max_size=12))
        scores = draw(
            st.lists(st.lists(grid, min_size=n_classes, max_size=n_classes), min_size=len(y), max_size=len(y))
        )
        return np.array(scores) / 4.0, np.array(y)  # quarters: subtraction and midpoints are exact

    scores_seen, y_seen = rows(seen)
    scores_unseen, y_unseen = rows(unseen)
    return SimpleNamespace(
        seen=np.array(seen), unseen=np.array(unseen), scores_seen=scores_seen, y_seen=y_seen,
        scores_unseen=scores_unseen, y_unseen=y_unseen,
    )  # fmt: skip


def curve_of(task):
    on_seen = metrics.decide(task.scores_seen, task.seen, task.unseen)
    on_unseen = metrics.decide(task.scores_unseen, task.seen, task.unseen)
    return metrics.seen_unseen_curve(on_seen, task.y_seen, on_unseen, task.y_unseen, task.seen, task.unseen)


def twin_curve(task, **options):
    return reference.seen_unseen_curve(
        task.scores_seen.tolist(), task.y_seen.tolist(), task.scores_unseen.tolist(), task.y_unseen.tolist(),
        task.seen.tolist(), task.unseen.tolist(), **options,
    )  # fmt: skip


class Lookup:
    """A model whose features are row numbers into a table of scores."""

    def __init__(self, scores, classes=None):
        self.scores = scores
        self.classes_ = np.arange(scores.shape[1]) if classes is None else np.asarray(classes)
        self.largest_block = 0

    def decision_function(self, X):
        self.largest_block = max(self.largest_block, len(X))
        return self.scores[X[:, 0]]


def as_model_and_data(task):
    n = len(task.y_seen)
    rows = np.arange(n + len(task.y_unseen))[:, None]
    data = SimpleNamespace(
        x_test_seen=rows[:n], y_test_seen=task.y_seen, x_test_unseen=rows[n:], y_test_unseen=task.y_unseen,
        seen=np.sort(task.seen), unseen=np.sort(task.unseen),
    )  # fmt: skip
    return Lookup(np.concatenate([task.scores_seen, task.scores_unseen])), data


def random_task(rng, n=300, n_seen=5, n_unseen=4):
    n_classes = n_seen + n_unseen
    return SimpleNamespace(
        seen=np.arange(n_seen), unseen=np.arange(n_seen, n_classes),
        scores_seen=rng.normal(size=(n, n_classes)), y_seen=rng.integers(0, n_seen, n),
        scores_unseen=rng.normal(size=(n, n_classes)), y_unseen=rng.integers(n_seen, n_classes, n),
    )  # fmt: skip


def readonly(array):
    array = np.array(array)
    array.flags.writeable = False
    return array


def noncontiguous(array):
    return np.repeat(array, 2, axis=0)[::2]


def reversed_twice(array):
    return np.ascontiguousarray(array[::-1])[::-1]  # negative strides


def big_endian(array):
    array = np.asarray(array)
    return array.astype(array.dtype.newbyteorder(">"))


FORMS = [np.array, readonly, noncontiguous, reversed_twice, big_endian, torch.tensor, lambda a: a.tolist()]


# --- Accuracy.
@SMALL
@given(
    st.lists(st.tuples(st.integers(-2, 5), st.integers(-2, 5)), max_size=20),
    st.lists(st.integers(-3, 6), min_size=1, unique=True),
)
def test_per_class_and_macro_accuracy_are_their_twins(pairs, classes):
    y_true, y_pred = [a for a, _ in pairs], [b for _, b in pairs]
    expected = reference.per_class_accuracy(y_true, y_pred, classes)
    np.testing.assert_array_equal(metrics.per_class_accuracy(y_true, y_pred, classes), expected)
    if all(math.isnan(a) for a in expected):
        with pytest.raises(DGZError, match="has a row"):
            metrics.macro_accuracy(y_true, y_pred, classes)
    else:
        twin = reference.macro_accuracy(y_true, y_pred, classes)
        assert metrics.macro_accuracy(y_true, y_pred, classes) == pytest.approx(twin, abs=1e-15)


def test_accuracy_is_macro_and_not_micro():
    y_true, y_pred = [0] * 9 + [1], [0] * 10
    assert metrics.macro_accuracy(y_true, y_pred, [0, 1]) == 0.5
    assert reference.micro_accuracy(y_true, y_pred, [0, 1]) == 0.9


def test_class_ids_may_be_huge_or_unsigned():
    y = np.array([2**40, 2**40, 3], dtype=np.uint64)
    np.testing.assert_array_equal(metrics.per_class_accuracy(y, y, np.array([3, 2**40], dtype=np.uint64)), [1, 1])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (
            lambda: metrics.per_class_accuracy([0, 1], [0], [0, 1]),
            "y_pred must hold one class id per row, found 1 for 2",
        ),
        (lambda: metrics.per_class_accuracy([0.5], [0], [0]), "y_true must hold integer class ids"),
        (lambda: metrics.per_class_accuracy(["cat"], [0], [0]), "y_true must hold numbers"),
        (lambda: metrics.per_class_accuracy([[0]], [0], [0]), "y_true must have 1 dimension"),
        (lambda: metrics.per_class_accuracy([0], [0], [0, 0]), "none twice"),
        (lambda: metrics.per_class_accuracy([0], [0], []), "at least one class id"),
        (lambda: metrics.macro_accuracy([], [], [0]), "None of the 1 classes has a row"),
    ],
)
def test_accuracy_says_what_is_wrong(call, message):
    with pytest.raises(DGZError, match=message):
        call()


@given(st.floats(0, 1), st.floats(0, 1))
def test_harmonic_mean_is_its_twin(u, s):
    h = metrics.harmonic_mean(u, s)
    assert type(h) is float
    assert h == reference.harmonic_mean(u, s) == metrics.harmonic_mean(np.array([u]), np.array([s]))[0]


def test_harmonic_mean_of_nothing_is_zero_and_of_nan_is_nan():
    assert metrics.harmonic_mean(0.0, 0.0) == 0.0
    assert math.isnan(metrics.harmonic_mean(math.nan, 0.5))


# --- Decisions.
@SMALL
@given(tasks(), st.integers(-12, 12))
def test_predict_is_argmax_after_the_penalty_ties_included(task, quarters):
    decisions = metrics.decide(task.scores_seen, task.seen, task.unseen)
    seen, unseen, scores = task.seen.tolist(), task.unseen.tolist(), task.scores_seen.tolist()
    np.testing.assert_array_equal(decisions.predict(), task.scores_seen.argmax(1))
    assert decisions.predict(quarters / 4).tolist() == reference.predict(scores, seen, quarters / 4)
    assert decisions.seen_class.tolist() == reference.predict(scores, seen, among=seen)
    assert decisions.unseen_class.tolist() == reference.predict(scores, seen, among=unseen)
    assert decisions.gap.tolist() == reference.gap(scores, seen, unseen)


def test_a_tie_goes_to_the_lower_class_id_whichever_group_it_is_in():
    scores = np.ones((1, 4))
    assert metrics.decide(scores, [2, 3], [0, 1]).predict().tolist() == [0]
    assert metrics.decide(scores, [3, 0], [2, 1]).predict().tolist() == [0]
    assert metrics.decide(scores + np.eye(4)[0], [3, 0], [2, 1]).predict(1.0).tolist() == [0]
    assert metrics.decide(scores + np.eye(4)[3], [3, 0], [2, 1]).predict(1.0).tolist() == [1]


def test_infinite_penalties_and_infinite_scores():
    inf = np.inf
    scores = np.array([[inf, 0.0], [0.0, inf], [inf, inf], [-inf, -inf], [1e308, -1e308]])
    decisions = metrics.decide(scores, [0], [1])
    np.testing.assert_array_equal(decisions.predict(), scores.argmax(1))
    assert decisions.predict(inf).tolist() == [1] * 5
    assert decisions.predict(-inf).tolist() == [0] * 5
    assert decisions.gap.isfinite().all()


def test_columns_in_another_order_are_matched_by_class_id():
    rng = np.random.default_rng(0)
    scores, order = rng.normal(size=(20, 6)), rng.permutation(6)
    plain = metrics.decide(scores, [0, 2, 4], [1, 3, 5])
    shuffled = metrics.decide(scores[:, order], [0, 2, 4], [1, 3, 5], classes=order)
    assert all(torch.equal(a, b) for a, b in zip(plain, shuffled, strict=True))
    assert not torch.equal(plain.predict(), metrics.decide(scores[:, order], [0, 2, 4], [1, 3, 5]).predict())


@pytest.mark.parametrize("column", [0, 1, 2, 3])
def test_nan_is_an_error_wherever_it_stands(column):
    scores = np.zeros((3, 4))
    scores[1, column] = np.nan
    with pytest.raises(DGZError, match="scores hold NaN in 1 of 3 rows"):
        metrics.decide(scores, [0, 2], [1, 3])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.decide(np.zeros((2, 3)), [0, 7], [1]), "seen holds class 7"),
        (lambda: metrics.decide(np.zeros((2, 3)), [0], [1], classes=[0, 1]), "one column per class, found 3 for 2"),
        (lambda: metrics.decide(np.zeros((2, 0)), [0], [1]), "at least one class id"),
        (lambda: metrics.decide(np.zeros(2), [0], [1]), "scores must have 2 dimension"),
        (lambda: metrics.decide(np.zeros((2, 3)), [], [1]), "seen must hold at least one class id"),
        (lambda: metrics.decide(np.zeros((2, 3)), [0], [1]).predict(math.nan), "seen_penalty must be a number"),
    ],
)
def test_decide_says_what_is_wrong(call, message):
    with pytest.raises(DGZError, match=message):
        call()


# --- The curve.
@SMALL
@given(tasks())
def test_curve_area_and_best_h_are_their_twins(task):
    curve = curve_of(task)
    penalties, u, s = twin_curve(task)
    np.testing.assert_array_equal(curve.seen_penalty[1:-1], penalties[1:-1])
    np.testing.assert_allclose(curve.acc_unseen, u, atol=1e-12)
    np.testing.assert_allclose(curve.acc_seen, s, atol=1e-12)
    assert metrics.ausuc(curve) == pytest.approx(reference.ausuc(u, s), abs=1e-12)
    twin_h = max(reference.harmonic_mean(a, b) for a, b in zip(u, s, strict=True))
    assert metrics.best_penalty(curve)[1] == pytest.approx(twin_h, abs=1e-12)


@SMALL
@given(tasks())
def test_predict_at_the_curves_penalties_reproduces_the_curve(task):
    curve = curve_of(task)
    on_seen = metrics.decide(task.scores_seen, task.seen, task.unseen)
    on_unseen = metrics.decide(task.scores_unseen, task.seen, task.unseen)
    for penalty, u, s in zip(curve.seen_penalty, curve.acc_unseen, curve.acc_seen, strict=True):
        assert metrics.macro_accuracy(task.y_unseen, on_unseen.predict(penalty), task.unseen) == pytest.approx(u)
        assert metrics.macro_accuracy(task.y_seen, on_seen.predict(penalty), task.seen) == pytest.approx(s)


@SMALL
@given(tasks())
def test_best_penalty_gives_the_highest_h_and_no_penalty_beats_it(task):
    curve = curve_of(task)
    penalty, h = metrics.best_penalty(curve)
    model, data = as_model_and_data(task)
    if h > 0:
        assert metrics.gzsl_scores(model, data, seen_penalty=penalty).h == pytest.approx(h)
    assert h == pytest.approx(curve.h.max())
    assert math.isfinite(penalty)
    for other in np.linspace(-4, 4, 17) + 0.03125:  # never on a gap, where a tie would be split by class id
        assert metrics.gzsl_scores(model, data, seen_penalty=other).h <= h + 1e-12


@SMALL
@given(tasks(), st.integers(-8, 8))
def test_a_constant_added_to_all_scores_changes_nothing(task, constant):
    model, data = as_model_and_data(task)
    before = metrics.gzsl_scores(model, data).to_dict()
    model.scores = model.scores + constant
    assert metrics.gzsl_scores(model, data).to_dict() == before


@SMALL
@given(tasks())
def test_curve_runs_from_all_seen_to_all_unseen(task):
    curve = curve_of(task)
    scores = metrics.gzsl_scores(*as_model_and_data(task))
    assert (curve.acc_unseen[0], curve.acc_seen[-1]) == (0.0, 0.0)
    assert curve.acc_seen[0] == pytest.approx(scores.acc_intra_seen)
    assert curve.acc_unseen[-1] == pytest.approx(scores.acc_zsl)
    assert (curve.seen_penalty[0], curve.seen_penalty[-1]) == (-np.inf, np.inf)
    assert (np.diff(curve.seen_penalty) > 0).all()
    assert (np.diff(curve.acc_unseen) >= 0).all()
    assert (np.diff(curve.acc_seen) <= 0).all()


def test_neighbouring_floats_share_a_threshold():
    # No number lies between these two gaps, so no penalty can tell the rows apart and the curve must not claim it.
    gaps = torch.tensor([np.nextafter(1.0, 0.0), 1.0], dtype=torch.double)
    zero = torch.zeros(1, dtype=torch.long)
    on_seen, on_unseen = metrics.Decisions(zero, zero + 1, gaps[1:]), metrics.Decisions(zero, zero + 1, gaps[:1])
    curve = metrics.seen_unseen_curve(on_seen, [0], on_unseen, [1], [0], [1])
    np.testing.assert_array_equal(curve.seen_penalty, [-np.inf, np.inf])
    assert metrics.ausuc(curve) == 0.5
    assert metrics.best_penalty(curve) == (0.0, 0.0)


def test_extreme_gaps_do_not_overflow_the_midpoint():
    for low in (-np.inf, 1.5e308):  # the difference of the first pair overflows, and the sum of the second
        on_seen, on_unseen = metrics.decide([[np.inf, 0.0]], [0], [1]), metrics.decide([[low, 0.0]], [0], [1])
        curve = metrics.seen_unseen_curve(on_seen, [0], on_unseen, [1], [0], [1])
        assert len(curve.seen_penalty) == 3
        assert np.isfinite(curve.seen_penalty[1])
        assert metrics.ausuc(curve) == 1.0


@pytest.mark.parametrize("n_rows", range(2, 60))
def test_rounding_never_lifts_an_accuracy_above_one(n_rows):
    task = SimpleNamespace(
        seen=np.array([0]), unseen=np.array([1]), y_seen=np.zeros(n_rows, dtype=int), y_unseen=np.ones(n_rows, dtype=int),
        scores_seen=np.eye(2)[[0] * n_rows], scores_unseen=np.eye(2)[[1] * n_rows],
    )  # fmt: skip
    curve = curve_of(task)
    assert 1 - 1e-12 < curve.acc_seen[0] <= 1
    assert 1 - 1e-12 < curve.acc_unseen[-1] <= 1


def test_perfect_scores_have_area_one_and_inverted_ones_zero():
    y_seen, y_unseen = np.array([0, 0, 0, 1]), np.array([2, 3, 3])
    perfect = SimpleNamespace(
        seen=np.array([0, 1]), unseen=np.array([2, 3]), y_seen=y_seen, y_unseen=y_unseen,
        scores_seen=np.eye(4)[y_seen], scores_unseen=np.eye(4)[y_unseen],
    )  # fmt: skip
    assert metrics.ausuc(curve_of(perfect)) == pytest.approx(1.0)
    assert metrics.best_penalty(curve_of(perfect)) == (0.0, pytest.approx(1.0))
    swapped = SimpleNamespace(**{**vars(perfect), "scores_seen": -perfect.scores_seen})
    assert metrics.ausuc(curve_of(swapped)) == 0.0


def test_area_is_macro_and_agrees_with_micro_only_when_balanced():
    # Seen class 0, unseen classes 1 and 2. Three rows of class 1 are right once called unseen, the one row of class 2
    # is taken for class 1, and every unseen row changes sides (gap -1) before the seen one does (gap 1). So S stays 1
    # while U climbs to its end: by class (3/3 + 0/1) / 2 = 1/2, by row 3/4.
    task = SimpleNamespace(
        seen=np.array([0]), unseen=np.array([1, 2]), y_seen=np.array([0]), y_unseen=np.array([1, 1, 1, 2]),
        scores_seen=np.array([[1.0, 0.0, 0.0]]), scores_unseen=np.array([[0.0, 1.0, 0.0]] * 4),
    )  # fmt: skip
    _, u_micro, s_micro = twin_curve(task, accuracy=reference.micro_accuracy)
    assert metrics.ausuc(curve_of(task)) == pytest.approx(1 / 2)
    assert reference.ausuc(u_micro, s_micro) == pytest.approx(3 / 4)
    task.y_unseen = np.array([1, 1, 2, 2])
    _, u_micro, s_micro = twin_curve(task, accuracy=reference.micro_accuracy)
    assert metrics.ausuc(curve_of(task)) == pytest.approx(reference.ausuc(u_micro, s_micro)) == pytest.approx(1 / 2)


def test_best_penalty_is_midway_between_two_gaps_and_nearest_zero():
    zeros = torch.zeros(1, dtype=torch.long)

    def curve(gap_seen, gap_unseen):
        on_seen = metrics.Decisions(zeros, zeros + 1, torch.tensor([gap_seen], dtype=torch.double))
        on_unseen = metrics.Decisions(zeros, zeros + 1, torch.tensor([gap_unseen], dtype=torch.double))
        return metrics.seen_unseen_curve(on_seen, [0], on_unseen, [1], [0], [1])

    assert metrics.best_penalty(curve(3.0, 1.0)) == (2.0, 1.0)
    assert metrics.best_penalty(curve(1.0, 3.0)) == (0.0, 0.0)
    # Two penalties of equal H, one of them worse in its last bit: the nearer to zero is taken.
    tie = metrics.SeenUnseenCurve(
        np.array([-np.inf, -5.0, 2.0, np.inf]), np.array([0.0, 0.5, 0.5, 1.0]), np.array([1.0, 0.5 + 1e-16, 0.5, 0.0])
    )
    assert metrics.best_penalty(tie) == (2.0, 0.5)


def test_curve_refuses_labels_of_the_other_group_and_no_rows():
    decisions, none = metrics.decide(np.eye(2), [0], [1]), metrics.decide(np.zeros((0, 2)), [0], [1])
    with pytest.raises(DGZError, match="y_seen holds class 1, which is none of the 1 expected"):
        metrics.seen_unseen_curve(decisions, [0, 1], decisions, [1, 1], [0], [1])
    with pytest.raises(DGZError, match="y_unseen holds no rows"):
        metrics.seen_unseen_curve(decisions, [0, 0], none, [], [0], [1])
    with pytest.raises(DGZError, match="y_seen must hold one class id per row, found 1 for 2"):
        metrics.seen_unseen_curve(decisions, [0], decisions, [1, 1], [0], [1])


@SMALL
@given(st.lists(st.integers(-4, 4), min_size=1, max_size=15), st.lists(st.integers(-4, 4), min_size=1, max_size=15))
def test_auroc_is_its_twin(gap_seen, gap_unseen):
    value = metrics.auroc(gap_seen, gap_unseen)
    assert value == pytest.approx(reference.auroc(gap_seen, gap_unseen), abs=1e-15)
    assert metrics.auroc(gap_unseen, gap_seen) == pytest.approx(1 - value)


def test_auroc_refuses_nothing_and_nan():
    for gap_seen, gap_unseen in [([], [1.0]), ([1.0], []), ([math.nan], [1.0]), ([1.0], [math.nan])]:
        with pytest.raises(DGZError, match="at least one number each and no NaN"):
            metrics.auroc(gap_seen, gap_unseen)


# --- A model's scores.
@SMALL
@given(tasks(), st.integers(-12, 12), st.integers(1, 30))
def test_gzsl_scores_are_their_twins(task, quarters, batch_size):
    model, data = as_model_and_data(task)
    scores = metrics.gzsl_scores(model, data, seen_penalty=quarters / 4, batch_size=batch_size)
    seen, unseen = task.seen.tolist(), task.unseen.tolist()
    y_seen, y_unseen = task.y_seen.tolist(), task.y_unseen.tolist()
    on_seen = reference.predict(task.scores_seen.tolist(), seen, quarters / 4)
    on_unseen = reference.predict(task.scores_unseen.tolist(), seen, quarters / 4)
    assert scores.acc_seen == pytest.approx(reference.macro_accuracy(y_seen, on_seen, seen))
    assert scores.acc_unseen == pytest.approx(reference.macro_accuracy(y_unseen, on_unseen, unseen))
    assert scores.h == pytest.approx(reference.harmonic_mean(scores.acc_unseen, scores.acc_seen))
    among_unseen = reference.predict(task.scores_unseen.tolist(), seen, among=unseen)
    among_seen = reference.predict(task.scores_seen.tolist(), seen, among=seen)
    assert scores.acc_zsl == pytest.approx(reference.macro_accuracy(y_unseen, among_unseen, unseen))
    assert scores.acc_intra_unseen == scores.acc_zsl
    assert scores.acc_intra_seen == pytest.approx(reference.macro_accuracy(y_seen, among_seen, seen))
    gaps = [reference.gap(block.tolist(), seen, unseen) for block in (task.scores_seen, task.scores_unseen)]
    assert scores.auroc == pytest.approx(reference.auroc(*gaps))
    assert scores.ausuc == pytest.approx(reference.ausuc(*twin_curve(task)[1:]), abs=1e-12)
    classes = sorted(seen + unseen)
    twin = reference.per_class_accuracy(y_seen + y_unseen, on_seen + on_unseen, classes)
    assert list(scores.per_class) == classes
    np.testing.assert_array_equal(list(scores.per_class.values()), twin)
    assert model.largest_block <= batch_size


def test_gzsl_scores_follow_classes_and_not_the_order_of_columns():
    task = random_task(np.random.default_rng(1))
    model, data = as_model_and_data(task)
    order = np.random.default_rng(2).permutation(len(model.classes_))
    shuffled = Lookup(model.scores[:, order], classes=order)
    assert metrics.gzsl_scores(shuffled, data).to_dict() == metrics.gzsl_scores(model, data).to_dict()


def test_gzsl_scores_of_a_fold_whose_class_ids_have_holes():
    task = random_task(np.random.default_rng(3))
    model, data = as_model_and_data(task)
    plain = metrics.gzsl_scores(model, data)
    spread = np.array([10 * c + 3 for c in range(9)])
    model.classes_ = spread
    for name in ("seen", "unseen", "y_test_seen", "y_test_unseen"):
        setattr(data, name, spread[getattr(data, name)])
    scores = metrics.gzsl_scores(model, data)
    assert scores.to_dict() == {
        **plain.to_dict(),
        "per_class": {str(10 * c + 3): a for c, a in plain.per_class.items()},
    }


def test_to_dict_is_json_and_thin():
    task = random_task(np.random.default_rng(4))
    task.y_unseen[task.y_unseen == 7] = 6  # class 7 has no rows
    model, data = as_model_and_data(task)
    scores = metrics.gzsl_scores(model, data, seen_penalty=0.25)
    assert len(scores.curve.seen_penalty) > 200
    text = json.dumps(scores.to_dict(), allow_nan=False)  # raises on NaN, infinity and numpy's types
    record = json.loads(text)
    assert record["per_class"]["7"] is None
    assert record["seen_penalty"] == 0.25
    assert record["acc_intra_unseen"] == record["acc_zsl"] == scores.acc_zsl
    assert {len(values) for values in record["curve"].values()} == {200}
    assert record["curve"]["seen_penalty"][0] is None
    assert record["curve"]["acc_unseen"][-1] == scores.curve.acc_unseen[-1]
    assert record["curve"]["acc_seen"][0] == scores.curve.acc_seen[0]
    whole = scores.to_dict(max_points=10**6)["curve"]
    assert whole["acc_seen"] == scores.curve.acc_seen.tolist()


def test_scores_are_frozen():
    scores = metrics.gzsl_scores(*as_model_and_data(random_task(np.random.default_rng(5), n=9)))
    with pytest.raises(dataclasses.FrozenInstanceError):
        scores.h = 1.0


def one_column_less(model, data):
    model.scores = model.scores[:, :-1]


def one_class_less(model, data):
    model.classes_, model.scores = model.classes_[:-1], model.scores[:, :-1]


def one_class_more(model, data):
    model.classes_, model.scores = np.arange(10), np.pad(model.scores, [(0, 0), (0, 1)])


def class_names(model, data):
    model.classes_ = np.array([f"class {c}" for c in model.classes_])


def a_nan(model, data):
    model.scores[3, 2] = np.nan


def no_seen_rows(model, data):
    data.x_test_seen, data.y_test_seen = data.x_test_seen[:0], data.y_test_seen[:0]


def no_unseen_rows(model, data):
    data.x_test_unseen, data.y_test_unseen = data.x_test_unseen[:0], data.y_test_unseen[:0]


def one_row_for_all(model, data):
    model.decision_function = lambda X: np.zeros((1, 9))


def labels_of_the_other_group(model, data):
    data.y_test_seen = data.y_test_unseen


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (one_column_less, "one column per class, found 8 for 9"),
        (one_class_less, r"model.classes_ must be the data's seen and unseen classes; they differ in \['8'\]"),
        (one_class_more, r"model.classes_ must be the data's seen and unseen classes; they differ in \['9'\]"),
        (class_names, "seen and unseen classes; they differ in"),
        (a_nan, "scores hold NaN in 1 of 20 rows"),
        (no_seen_rows, "x_test_seen holds no rows"),
        (no_unseen_rows, "x_test_unseen holds no rows"),
        (one_row_for_all, "decision_function gave 1 rows of scores for 20 of x_test_seen"),
        (labels_of_the_other_group, "y_seen holds class"),
    ],
)
def test_gzsl_scores_say_what_is_wrong(harm, message):
    model, data = as_model_and_data(random_task(np.random.default_rng(6), n=20))
    harm(model, data)
    with pytest.raises(DGZError, match=message):
        metrics.gzsl_scores(model, data)


def test_gzsl_scores_refuse_an_empty_batch():
    model, data = as_model_and_data(random_task(np.random.default_rng(6), n=20))
    with pytest.raises(DGZError, match="batch_size must be at least 1, found 0"):
        metrics.gzsl_scores(model, data, batch_size=0)


# --- Scores of classifiers in training.
def seen_first(task):
    """The same task with the seen classes' ids below the unseen ones', where a tie of the two goes to a seen class."""
    order = np.concatenate([np.sort(task.seen), np.sort(task.unseen)])
    place = np.argsort(order)
    return SimpleNamespace(
        seen=place[task.seen], unseen=place[task.unseen],
        scores_seen=task.scores_seen[:, order], y_seen=place[task.y_seen],
        scores_unseen=task.scores_unseen[:, order], y_unseen=place[task.y_unseen],
    )  # fmt: skip


def as_test_rows(task):
    """Test rows of which each is a unit vector, so that a classifier's weights (K, C, n) are its scores."""
    n_seen, is_seen = len(task.y_seen), torch.zeros(len(task.seen) + len(task.unseen), dtype=torch.bool)
    is_seen[torch.tensor(task.seen)] = True
    x = torch.eye(n_seen + len(task.y_unseen), dtype=torch.double)
    y_seen, y_unseen = torch.tensor(task.y_seen), torch.tensor(task.y_unseen)
    return metrics.TestRows(x[:n_seen], y_seen, x[n_seen:], y_unseen, is_seen)


def as_weights(*tasks):
    return torch.tensor(np.stack([np.concatenate([task.scores_seen, task.scores_unseen]).T for task in tasks]))


@SMALL
@given(tasks(), st.sampled_from([1, 7, 30, 2**26]), st.integers(-12, 12))
def test_scores_in_training_are_those_of_gzsl_scores(task, most_scores, quarters):
    task = seen_first(task)
    members = [SimpleNamespace(**vars(task)) for _ in range(4)]
    for member, change in zip(members, (np.array, np.negative, np.fliplr, np.flipud), strict=True):
        member.scores_seen, member.scores_unseen = change(task.scores_seen), change(task.scores_unseen)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(metrics, "_MOST_SCORES", most_scores)
        # The members' penalties differ; without any, none is given.
        penalties = torch.tensor([quarters / 4, 0, -quarters / 4, quarters / 2])
        found = as_test_rows(task).scores(as_weights(*members), penalties if quarters else None)
    assert set(found) == {"acc_unseen", "acc_seen", "h", "acc_zsl"}
    expected = [
        metrics.gzsl_scores(*as_model_and_data(member), seen_penalty=penalty)
        for member, penalty in zip(members, penalties.tolist(), strict=True)
    ]
    for name, values in found.items():
        assert values.shape == (4,)
        assert values.dtype == torch.double
        assert values.tolist() == pytest.approx([getattr(scores, name) for scores in expected], abs=1e-12)


def test_scores_in_training_follow_classes_and_not_the_order_of_columns():
    task = random_task(np.random.default_rng(3))
    place = np.array([4, 0, 8, 2, 6, 1, 3, 5, 7])  # seen and unseen classes in turns
    mixed = SimpleNamespace(**vars(task))
    mixed.seen, mixed.unseen, mixed.y_seen, mixed.y_unseen = (
        place[values] for values in (task.seen, task.unseen, task.y_seen, task.y_unseen)
    )
    for name in ("scores_seen", "scores_unseen"):
        setattr(mixed, name, getattr(task, name)[:, np.argsort(place)])
    found, expected = (as_test_rows(one).scores(as_weights(one)) for one in (mixed, task))
    assert {name: value.item() for name, value in found.items()} == pytest.approx(
        {name: value.item() for name, value in expected.items()}
    )
    assert found["h"].item() == pytest.approx(metrics.gzsl_scores(*as_model_and_data(task)).h)


def test_weights_that_are_no_numbers_are_never_right():
    x, y = torch.eye(3), torch.arange(3)
    rows = metrics.TestRows(x[:1], y[:1], x[1:], y[1:], torch.tensor([True, False, False]))
    scores = rows.scores(torch.stack([torch.eye(3), torch.full((3, 3), torch.nan)]))
    assert all(values.tolist() == [1.0, 0.0] for values in scores.values())


def test_a_tie_of_the_two_groups_counts_as_seen_whichever_id_is_lower():
    x, is_seen = torch.eye(4), torch.tensor([False, True, False, True])
    rows = metrics.TestRows(x[:2], torch.tensor([1, 3]), x[2:], torch.tensor([0, 2]), is_seen)
    found = rows.scores(torch.ones(1, 4, 4))  # the first of each group is best, with the same score
    assert {name: value.item() for name, value in found.items()} == {
        "acc_seen": 0.5, "acc_unseen": 0.0, "h": 0.0, "acc_zsl": 0.5,
    }  # fmt: skip


def test_scores_in_training_are_macro_and_leave_out_classes_without_rows():
    # Of seen classes 0 to 2, class 1 has no rows and class 2 one of four; unseen class 4 has none.
    x, is_seen = torch.eye(5), torch.tensor([True, True, True, False, False])
    rows = metrics.TestRows(x[:4], torch.tensor([0, 0, 0, 2]), x[4:], torch.tensor([3]), is_seen)
    scores = torch.tensor([[1.0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [0, 1, 0, 0, 0], [1, 0, 0, 0, 0], [0, 0, 0, 1, 0]])
    found = rows.scores(scores.T[None])
    assert found["acc_seen"].item() == pytest.approx((2 / 3 + 0) / 2)
    assert found["acc_unseen"].item() == found["acc_zsl"].item() == 1.0


def test_scores_in_training_never_exist_all_at_once(monkeypatch):
    task = random_task(np.random.default_rng(0), n=50)
    sizes, original = [], torch.Tensor.max
    monkeypatch.setattr(metrics, "_MOST_SCORES", 2 * 9 * 30)
    monkeypatch.setattr(torch.Tensor, "max", lambda self, *args: sizes.append(self.shape) or original(self, *args))
    as_test_rows(task).scores(as_weights(task, task))
    assert {size[1] for size in sizes} == {30, 10}  # rows at a time
    assert sum(size.numel() for size in sizes) == 2 * 100 * 9


def test_scoring_in_training_leaves_rows_and_weights_alone():
    task = random_task(np.random.default_rng(1), n=20)
    rows, weights = as_test_rows(task), as_weights(task).requires_grad_()
    before = rows.x.clone(), rows.y.clone(), weights.detach().clone()
    found = rows.scores(weights)
    assert not any(value.requires_grad for value in found.values())
    assert all(torch.equal(a, b) for a, b in zip(before, (rows.x, rows.y, weights), strict=True))


# --- CMMD.
@st.composite
def samples(draw):
    d = draw(st.integers(1, 3))

    def some(n):
        values = draw(st.lists(st.integers(-8, 8), min_size=n * d, max_size=n * d))
        return np.array(values, dtype=float).reshape(n, d) / 2

    return some(draw(st.integers(2, 7))), some(draw(st.integers(2, 7)))


@SMALL
@given(samples(), st.integers(1, 9))
def test_mmd_is_its_twin_whatever_the_block_size(pair, block_size):
    x, y = pair
    kernel = [[reference.imq_kernel(a, b) for b in y.tolist()] for a in x.tolist()]
    np.testing.assert_allclose(metrics.imq_kernel(x, y), kernel, rtol=1e-12)
    value = metrics.mmd(x, y, block_size=block_size)
    assert value == pytest.approx(reference.mmd(x.tolist(), y.tolist()), abs=1e-12)
    assert value == pytest.approx(metrics.mmd(x, y), abs=1e-12)
    if len(x) == len(y):
        assert value == pytest.approx(reference.mmd_printed(x.tolist(), y.tolist()), abs=1e-12)


@SMALL
@given(samples(), st.data())
def test_cmmd_is_its_twin(pair, data):
    x, y = pair
    labels = st.integers(0, 3)
    real_y = data.draw(st.lists(labels, min_size=len(x), max_size=len(x)))
    pseudo_y = data.draw(st.lists(labels, min_size=len(y), max_size=len(y)))
    usable = [c for c in range(4) if min(real_y.count(c), pseudo_y.count(c)) >= 2]
    if usable:
        twin = reference.cmmd(x.tolist(), real_y, y.tolist(), pseudo_y, usable)
        for classes in (None, [3, 1, 0, 2]):  # unusable classes are skipped
            assert metrics.cmmd(x, real_y, y, pseudo_y, classes, block_size=2) == pytest.approx(twin, abs=1e-12)
    else:
        with pytest.raises(DGZError, match="two real and two generated rows"):
            metrics.cmmd(x, real_y, y, pseudo_y)


def test_cmmd_counts_only_the_classes_asked_for():
    x, y = np.array([[0.0], [0.0], [9.0], [9.0]]), np.array([3, 3, 4, 4])
    pseudo = np.array([[2.0], [2.0], [9.0], [9.0]])
    assert metrics.cmmd(x, y, pseudo, y, classes=[3]) == pytest.approx(4 / 3)
    assert metrics.cmmd(x, y, pseudo, y, classes=[4]) == pytest.approx(0.0)


def test_mmd_is_near_zero_for_one_distribution_and_clearly_positive_for_two():
    rng = np.random.default_rng(0)
    x, same, shifted = rng.normal(size=(400, 8)), rng.normal(size=(300, 8)), rng.normal(size=(300, 8)) + 1.0
    assert abs(metrics.mmd(x, same)) < 0.002
    assert metrics.mmd(x, shifted) > 0.05


def test_mmd_is_unbiased():
    # Averaged over many small samples of one distribution it is 0, on both sides of it; the biased one is not.
    rng = np.random.default_rng(0)
    values = [metrics.mmd(rng.normal(size=(4, 2)), rng.normal(size=(6, 2))) for _ in range(600)]
    assert abs(np.mean(values)) < 4 * np.std(values) / math.sqrt(len(values))
    assert min(values) < 0 < max(values)
    biased = np.mean([_biased_mmd(rng.normal(size=(4, 2)), rng.normal(size=(6, 2))) for _ in range(600)])
    assert biased > 10 * np.std(values) / math.sqrt(len(values))


def _biased_mmd(x, y):
    return float(
        metrics.imq_kernel(x, x).mean() + metrics.imq_kernel(y, y).mean() - 2 * metrics.imq_kernel(x, y).mean()
    )


def test_mmd_is_accurate_far_from_the_origin():
    # The naive |x|² + |y|² − 2xy loses all of a unit distance to cancellation at 1e8.
    rng = np.random.default_rng(0)
    x, y = rng.integers(-9, 9, size=(20, 3)) / 4, rng.integers(-9, 9, size=(20, 3)) / 4
    assert metrics.mmd(x + 2.0**40, y + 2.0**40) == pytest.approx(metrics.mmd(x, y), abs=1e-9)


def test_mmd_never_holds_more_than_a_block(monkeypatch):
    shapes = []
    kernel = metrics.imq_kernel
    monkeypatch.setattr(metrics, "imq_kernel", lambda x, y: shapes.append((len(x), len(y))) or kernel(x, y))
    rng = np.random.default_rng(0)
    metrics.mmd(rng.normal(size=(50, 2)), rng.normal(size=(33, 2)), block_size=16)
    assert max(max(shape) for shape in shapes) == 16
    assert len(shapes) == 10 + 6 + 4 * 3  # 4 + 3 + 2 + 1 and 3 + 2 + 1 blocks on and above the diagonal, then all


def test_a_repeated_row_is_no_diagonal():
    x = np.ones((3, 2))
    assert metrics.mmd(x, x) == 0.0  # 6/6 + 6/6 − 2 · 9/9
    assert metrics.mmd(x, x, block_size=2) == 0.0


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: metrics.mmd(np.zeros((1, 2)), np.zeros((2, 2))), "two rows in x and y"),
        (lambda: metrics.mmd(np.zeros((2, 2)), np.zeros((2, 2)), block_size=-1), "positive block_size"),
        (lambda: metrics.mmd(np.zeros((2, 2)), np.zeros((2, 3))), "same width, found 2 and 3"),
        (lambda: metrics.mmd(np.full((2, 2), np.nan), np.zeros((2, 2))), "finite features"),
        (
            lambda: metrics.cmmd(np.zeros((2, 2)), [0], np.zeros((2, 2)), [0, 0]),
            "real_y must hold one class id per row",
        ),
        (lambda: metrics.cmmd(np.zeros((0, 2)), [], np.zeros((2, 2)), [0, 0]), "found none"),
    ],
)
def test_cmmd_says_what_is_wrong(call, message):
    with pytest.raises(DGZError, match=message):
        call()


# --- CACD.
@SMALL
@given(samples(), st.data())
def test_class_means_and_cacd_are_their_twins(pair, data):
    x, other = pair
    y = data.draw(st.lists(st.integers(0, 3), min_size=len(x), max_size=len(x)))
    classes = [2, 0, 3]
    np.testing.assert_allclose(metrics.class_means(x, y, classes), reference.class_means(x.tolist(), y, classes))
    k = min(len(x), len(other))
    real, generated = x[:k].tolist(), other[:k].tolist()
    assert metrics.cacd(real, generated) == pytest.approx(reference.cacd(real, generated))
    assert metrics.cacd_printed(real, generated) == pytest.approx(reference.cacd_printed(real, generated))


def test_cacd_and_its_printed_form_are_two_numbers():
    real, generated = np.zeros((2, 2)), np.array([[3.0, 4.0], [0.0, 16.0]])
    assert metrics.cacd(real, generated) == (5 + 16) / 2
    assert metrics.cacd_printed(real, generated) == pytest.approx(math.sqrt(5) + 4)


def test_cacd_refuses_a_class_without_rows_and_other_shapes():
    centers = metrics.class_means([[1.0]], [0], classes=[0, 1])
    with pytest.raises(DGZError, match="a class without rows has none"):
        metrics.cacd(centers, [[1.0], [1.0]])
    with pytest.raises(DGZError, match=r"found \(1, 1\) and \(2, 1\)"):
        metrics.cacd([[1.0]], [[1.0], [1.0]])


# --- Awkward inputs.
@pytest.mark.parametrize("form", FORMS)
def test_every_form_of_input_gives_the_same(form):
    task = random_task(np.random.default_rng(7), n=40)

    def everything(form):
        on_seen = metrics.decide(form(task.scores_seen), form(task.seen), form(task.unseen))
        on_unseen = metrics.decide(form(task.scores_unseen), form(task.seen), form(task.unseen))
        ends = form(task.seen), form(task.unseen)
        curve = metrics.seen_unseen_curve(on_seen, form(task.y_seen), on_unseen, form(task.y_unseen), *ends)
        real, pseudo = (form(task.scores_seen), form(task.y_seen)), (form(task.scores_unseen), form(task.y_seen))
        return [
            *metrics.per_class_accuracy(form(task.y_seen), form(task.y_unseen), form(task.seen)),
            metrics.macro_accuracy(form(task.y_seen), form(task.scores_seen.argmax(1)), form(task.seen)),
            *curve.seen_penalty, *curve.acc_unseen, *curve.acc_seen,
            metrics.auroc(form(task.scores_seen[:, 0]), form(task.scores_seen[:, 1])),
            metrics.cmmd(*real, *pseudo, form(task.seen)),
            *metrics.class_means(*real, form(task.seen)).flatten().tolist(),
            metrics.cacd(form(task.scores_seen), form(task.scores_unseen)),
        ]  # fmt: skip

    assert everything(form) == everything(lambda a: a)


def test_the_door_shares_memory_and_keeps_it_alive():
    array = readonly(np.arange(10_000.0).reshape(100, 100))
    tensor = metrics._tensor(array, "array", 2)
    assert tensor.data_ptr() == array.ctypes.data
    assert not array.flags.writeable
    expected = array.sum()
    del array
    gc.collect()
    noise = [np.full((100, 100), -1.0) for _ in range(20)]  # would land in the memory if it had been freed
    assert tensor.sum() == expected
    assert len(noise) == 20


@pytest.mark.parametrize("dtype", [np.float16, np.float32, np.float64, np.int32])
def test_scores_of_any_precision(dtype):
    rng = np.random.default_rng(8)
    scores = rng.integers(-50, 50, size=(60, 6)).astype(dtype)  # exact in every one of them
    wide = metrics.decide(scores.astype(float), [0, 1, 2], [3, 4, 5])
    assert all(torch.equal(a, b) for a, b in zip(metrics.decide(scores, [0, 1, 2], [3, 4, 5]), wide, strict=True))


def test_half_precision_is_raised_before_the_arithmetic():
    # In half precision 2048 − 0.5 rounds to 2048, a Gram trick around 300 overflows, and a mean is rounded to 8 bits.
    assert metrics.decide(np.array([[2048.0, 0.5]], dtype=np.float16), [0], [1]).gap.item() == 2047.5
    x = (np.arange(40).reshape(20, 2) + 300).astype(np.float16)
    assert metrics.mmd(x, x[::2]) == pytest.approx(reference.mmd(x.tolist(), x[::2].tolist()), abs=1e-12)
    neighbours = torch.tensor([[1.0], [1.0078125]], dtype=torch.bfloat16)
    assert metrics.class_means(neighbours, [0, 0], [0]).item() == 1.00390625


def test_tensors_with_gradients_are_read_like_others():
    scores = torch.eye(2, requires_grad=True)
    assert metrics.decide(scores, [0], [1]).gap.tolist() == [1.0, -1.0]
    assert metrics.mmd(scores, scores) == pytest.approx(reference.mmd([[1, 0], [0, 1]], [[1, 0], [0, 1]]))


def test_inputs_are_left_alone():
    task = random_task(np.random.default_rng(9), n=30)
    before = {name: value.copy() for name, value in vars(task).items()}
    metrics.gzsl_scores(*as_model_and_data(task))
    metrics.cmmd(task.scores_seen, task.y_seen, task.scores_unseen, task.y_seen)
    for name, value in before.items():
        np.testing.assert_array_equal(getattr(task, name), value)


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
def test_cuda_gives_what_the_cpu_gives():
    task = random_task(np.random.default_rng(10))
    model, data = as_model_and_data(task)
    expected = metrics.gzsl_scores(model, data).to_dict()
    x, other, y = task.scores_seen, task.scores_unseen, task.y_seen
    cmmd, means = metrics.cmmd(x, y, other, y), metrics.class_means(x, y, task.seen)
    model.scores = torch.tensor(model.scores, device="cuda")
    assert metrics.gzsl_scores(model, data).to_dict() == expected
    on_device = [torch.tensor(a, device="cuda") for a in (x, y, other, y)]
    assert metrics.cmmd(*on_device) == pytest.approx(cmmd, abs=1e-12)
    assert metrics.cmmd(x, y, *on_device[2:]) == pytest.approx(cmmd, abs=1e-12)
    there = metrics.class_means(on_device[0], y, task.seen)
    assert there.is_cuda
    np.testing.assert_allclose(there.cpu(), means)
    assert metrics.cacd(there, means) < 1e-12
    predicted = metrics.decide(on_device[0], task.seen, task.unseen).predict()
    assert predicted.is_cuda
    assert metrics.macro_accuracy(y, predicted, task.seen) == metrics.macro_accuracy(y, predicted.cpu(), task.seen)


# --- Which group rows are taken for.
@SMALL
@given(tasks(), st.integers(-12, 12), st.integers(1, 30))
def test_shares_taken_for_the_other_group_are_their_twins(task, quarters, batch_size):
    model, data = as_model_and_data(task)
    scores = metrics.gzsl_scores(model, data, seen_penalty=quarters / 4, batch_size=batch_size)
    seen, unseen = task.seen.tolist(), task.unseen.tolist()
    on_seen = reference.predict(task.scores_seen.tolist(), seen, quarters / 4)
    on_unseen = reference.predict(task.scores_unseen.tolist(), seen, quarters / 4)
    assert scores.seen_as_unseen == pytest.approx(reference.share_taken_for(on_seen, unseen))
    assert scores.unseen_as_seen == pytest.approx(reference.share_taken_for(on_unseen, seen))


def test_a_penalty_moves_rows_from_one_group_to_the_other():
    task = random_task(np.random.default_rng(6))
    model, data = as_model_and_data(task)
    found = [metrics.gzsl_scores(model, data, seen_penalty=penalty) for penalty in (-99.0, 0.0, 99.0)]
    for name, start, end in (("seen_as_unseen", 0.0, 1.0), ("unseen_as_seen", 1.0, 0.0)):
        first, middle, last = (getattr(scores, name) for scores in found)
        assert (first, last) == (start, end)
        assert 0.2 < middle < 0.8


def test_shares_count_rows_whichever_class_they_are_of():
    # Nine rows of one class and one of another: a share of the rows, not a mean over classes.
    scores_seen = np.array([[1.0, 0.0, 0.0]] * 9 + [[0.0, 0.0, 1.0]])
    task = SimpleNamespace(
        seen=np.array([0, 1]), unseen=np.array([2]), scores_seen=scores_seen, y_seen=np.array([0] * 9 + [1]),
        scores_unseen=np.array([[0.0, 0.0, 1.0], [0.0, 1.0, 0.0]]), y_unseen=np.array([2, 2]),
    )  # fmt: skip
    scores = metrics.gzsl_scores(*as_model_and_data(task))
    assert scores.seen_as_unseen == pytest.approx(0.1)
    assert scores.unseen_as_seen == 0.5
    record = json.loads(json.dumps(scores.to_dict()))
    assert record["confusion"] == {"seen_as_unseen": scores.seen_as_unseen, "unseen_as_seen": 0.5}
