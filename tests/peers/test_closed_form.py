"""What the closed-form methods share: the choice of settings on folds, odd data, files, and their linear algebra."""

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgz.data import GZSLData, load_numbers, load_xlsa, validation_folds
from dgz.errors import DGZError
from dgz.metrics import best_penalty, gzsl_scores
from dgz.peers import ESZSL, METHODS, SAE, CenterRidge, NearestPrototype, SeenSoftmax, load_model
from dgz.peers.closed_form import ClosedForm, class_sums, spectrum

KINDS: list[type[ClosedForm]] = [CenterRidge, ESZSL, SAE, NearestPrototype, SeenSoftmax]
# A few settings of each, so that every one can be tried the slow way.
FEW: dict[type[ClosedForm], dict[str, tuple[Any, ...]]] = {
    CenterRidge: {"alpha": (0.01, 1.0), "bandwidth": (1.0, 4.0)},
    ESZSL: {"labels": ("zero_one", "signs"), "feature_ridge": (10.0,), "class_ridge": (0.1, 10.0)},
    SAE: {"encoder_weight": (0.001, 10.0), "space": ("features", "classes")},
    NearestPrototype: {"space": ("shared", "prototypes"), "sharpness": (3.0, 30.0)},
    SeenSoftmax: {"alpha": (0.001,), "n_top": (1, 10), "novelty": ("probability", "energy")},
}
FIXED: dict[type[ClosedForm], dict[str, Any]] = {
    kind: {name: values[-1] for name, values in few.items()} | {"seen_penalty": 0.0} for kind, few in FEW.items()
}


@pytest.fixture(scope="module")
def numbers() -> GZSLData:
    return load_numbers(0, n_train=8, n_test=3)


def made_up(
    n_classes: int = 8, n_seen: int = 6, n_rows: int = 5, d_x: int = 6, d_a: int = 3, **changes: Any
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    vectors = changes.get("vectors", rng.random((n_classes, d_a)))
    y = np.repeat(np.arange(n_seen), n_rows)
    x = (vectors @ rng.standard_normal((vectors.shape[1], d_x)))[y] + 0.1 * rng.standard_normal((len(y), d_x))
    return x, y, vectors


def with_constant_columns() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    x, y, vectors = made_up()
    x[:, 2], vectors[:, 1] = 3.0, 0.5
    return x, y, vectors


ODD = {
    "two seen classes, so one in each fold": made_up(3, 2),
    "two rows of two classes": made_up(3, 2, 2),
    "vectors of zeros": made_up(vectors=np.zeros((8, 3))),
    "a vector of zeros": made_up(vectors=np.vstack([np.zeros(3), np.random.default_rng(1).random((7, 3))])),
    "more features than rows": made_up(n_rows=3, d_x=200),
    "more entries of vectors than classes": made_up(d_a=300),
    "no unseen classes": made_up(6, 6),
    "as many features as entries of vectors": made_up(d_a=6),
    "one feature": made_up(d_x=1),
    "one entry of vectors": made_up(d_a=1),
    "constant columns": with_constant_columns(),
    "rows all alike": (np.ones((12, 4)), np.repeat(np.arange(4), 3), np.eye(6)),
    "huge values": (made_up()[0] * 1e15, made_up()[1], made_up()[2] * 1e10),
    "tiny values": (made_up()[0] * 1e-15, made_up()[1], made_up()[2] * 1e-10),
}


@pytest.mark.parametrize("case", ODD)
@pytest.mark.parametrize("kind", KINDS)
def test_odd_data_give_finite_scores(
    kind: type[ClosedForm], case: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "tried", FEW[kind])
    x, y, vectors = ODD[case]
    for scaling in ("minmax_l2", "none"):
        model = kind(**dict.fromkeys(FEW[kind], "auto"), feature_scaling=scaling).fit(x, y, vectors)
        scores = model.decision_function(x)
        assert scores.shape == (len(x), len(vectors))
        assert np.isfinite(scores).all()
        assert np.isfinite(model.predict_proba(x)).all()
        model.save(tmp_path / scaling)
        np.testing.assert_array_equal(load_model(tmp_path / scaling).decision_function(x), scores)


@pytest.mark.parametrize("kind", KINDS)
def test_settings_are_those_with_the_best_mean_h_over_folds(
    kind: type[ClosedForm], numbers: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "tried", FEW[kind])
    model = kind(**dict.fromkeys(FEW[kind], "auto"), random_state=1)
    model.fit(numbers.x_train, numbers.y_train, numbers.attributes)
    train = GZSLData(x_train=numbers.x_train, y_train=numbers.y_train, attributes=numbers.attributes)
    best: tuple[float, dict[str, Any], float] = (-1.0, {}, 0.0)
    for values in product(*FEW[kind].values()):
        point = dict(zip(FEW[kind], values, strict=True))
        if point.get("space") == "shared":  # of one width are only features and class vectors of other data
            continue
        found = []
        for fold in validation_folds(train, 3, random_state=1):
            alone = kind(**point, seen_penalty=0.0).fit(fold.x_train, fold.y_train, fold.attributes)
            found.append(best_penalty(gzsl_scores(alone, fold).curve))
        h = float(np.mean([h for _, h in found]))
        if h > best[0]:
            best = (h, point, float(np.mean([penalty for penalty, _ in found])))
    assert {name: getattr(model, f"{name}_") for name in FEW[kind]} == best[1]
    # The softmax of a fold starts from that of another ridge, all else is the same to the last bits.
    assert model.seen_penalty_ == pytest.approx(best[2], abs=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_under_a_given_penalty_settings_are_those_with_the_best_mean_h_at_it(
    kind: type[ClosedForm], numbers: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "tried", FEW[kind])
    train = GZSLData(x_train=numbers.x_train, y_train=numbers.y_train, attributes=numbers.attributes)
    folds = validation_folds(train, 3, random_state=1)
    points = [dict(zip(FEW[kind], values, strict=True)) for values in product(*FEW[kind].values())]
    points = [point for point in points if point.get("space") != "shared"]
    chosen = []
    for penalty in (-0.05, 0.0, 0.25):
        model = kind(**dict.fromkeys(FEW[kind], "auto"), seen_penalty=penalty, random_state=1)
        model.fit(numbers.x_train, numbers.y_train, numbers.attributes)
        assert model.seen_penalty_ == penalty
        chosen.append({name: getattr(model, f"{name}_") for name in FEW[kind]})
        found = []
        for point in points:
            alone = [kind(**point, seen_penalty=penalty).fit(f.x_train, f.y_train, f.attributes) for f in folds]
            found.append(np.mean([gzsl_scores(one, f).h for one, f in zip(alone, folds, strict=True)]))
        assert found[points.index(chosen[-1])] == pytest.approx(max(found), abs=1e-6)
    if kind is NearestPrototype:  # what is best where the penalty is free is not best under every penalty
        assert chosen[0] != chosen[1] or chosen[1] != chosen[2]


def clone_with(model: ClosedForm, **changes: Any) -> ClosedForm:
    return type(model)(**{**model.get_params(), **changes})


@pytest.mark.parametrize("kind", KINDS)
def test_unseen_classes_play_no_part_in_the_choice(
    kind: type[ClosedForm], numbers: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kind, "tried", FEW[kind])
    changed = numbers.attributes.copy()
    changed[numbers.unseen] = 3 * np.random.default_rng(0).random(changed[numbers.unseen].shape)
    one, two = (kind().fit(numbers.x_train, numbers.y_train, each) for each in (numbers.attributes, changed))
    for name in (*kind.tried, "seen_penalty"):
        assert getattr(one, f"{name}_") == getattr(two, f"{name}_")
    assert (one.decision_function(numbers.x_test_unseen) != two.decision_function(numbers.x_test_unseen)).any()


@pytest.mark.parametrize("kind", KINDS)
def test_random_state_draws_the_folds_and_nothing_else(kind: type[ClosedForm], numbers: GZSLData) -> None:
    arguments = (numbers.x_train, numbers.y_train, numbers.attributes)
    settings = {**FIXED[kind], "seen_penalty": "auto"}
    chosen = {kind(**settings, random_state=seed).fit(*arguments).seen_penalty_ for seed in range(3)}
    assert len(chosen) > 1
    one, two = (kind(**FIXED[kind], random_state=seed).fit(*arguments) for seed in range(2))
    np.testing.assert_array_equal(
        one.decision_function(numbers.x_test_seen), two.decision_function(numbers.x_test_seen)
    )


@pytest.mark.parametrize("kind", KINDS)
def test_the_penalty_is_subtracted_from_seen_classes_alone(kind: type[ClosedForm], numbers: GZSLData) -> None:
    arguments = (numbers.x_train, numbers.y_train, numbers.attributes)
    none, some = (
        kind(**{**FIXED[kind], "seen_penalty": penalty}).fit(*arguments).decision_function(numbers.x_test_seen)
        for penalty in (0.0, 0.5)
    )
    np.testing.assert_allclose(none[:, numbers.seen] - some[:, numbers.seen], 0.5, rtol=1e-4)
    np.testing.assert_array_equal(none[:, numbers.unseen], some[:, numbers.unseen])


@pytest.mark.parametrize("kind", KINDS)
def test_a_file_has_the_settings_behind_what_was_learned(
    kind: type[ClosedForm], numbers: GZSLData, tmp_path: Path
) -> None:
    model = kind(**FIXED[kind]).fit(numbers.x_train, numbers.y_train, numbers.attributes)
    before, settings = model.decision_function(numbers.x_test_seen), model.settings()
    # What is set later is for the next fit, but for the temperature, which learning does not depend on.
    model.set_params(feature_scaling="minmax", attribute_scaling="unit", seen_penalty=7.0, temperature=3.0)
    np.testing.assert_array_equal(model.decision_function(numbers.x_test_seen), before)
    model.save(tmp_path / "model")
    twin = load_model(tmp_path / "model")
    assert twin.settings() == {**settings, "temperature": 3.0}
    np.testing.assert_array_equal(twin.decision_function(numbers.x_test_seen), before)


@pytest.mark.parametrize("kind", KINDS)
def test_one_seen_class_needs_settings_that_are_given(kind: type[ClosedForm]) -> None:
    x, y, vectors = made_up(3, 1)
    with pytest.raises(DGZError, match=r"One seen class makes no folds .*: give .*seen_penalty a value\."):
        kind().fit(x, y, vectors)
    assert np.isfinite(kind(**FIXED[kind]).fit(x, y, vectors).decision_function(x)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_classes_with_one_row_each_need_settings_that_are_given(kind: type[ClosedForm]) -> None:
    x, y, vectors = made_up(n_rows=1)
    with pytest.raises(DGZError, match="has a second row to play test-seen"):
        kind().fit(x, y, vectors)
    assert np.isfinite(kind(**FIXED[kind]).fit(x, y, vectors).decision_function(x)).all()


def test_folds_that_tell_nothing_leave_the_neutral_penalty() -> None:
    x, y, vectors = made_up(3, 2)
    assert SeenSoftmax().fit(x, y, vectors).seen_penalty_ == pytest.approx(np.log(0.5))
    assert CenterRidge().fit(x, y, vectors).seen_penalty_ == 0.0


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"seen_penalty": "much"}, "seen_penalty must be a number or 'auto', found 'much'."),
        ({"seen_penalty": float("nan")}, "seen_penalty must be a number or 'auto', found nan."),
        ({"temperature": 0.0}, "temperature must be a positive number, found 0.0."),
        ({"feature_scaling": "odd"}, "feature_scaling must be one of"),
        ({"attribute_scaling": "odd"}, "attribute_scaling must be one of"),
        ({"n_folds": 1}, "n_folds must be from 2 to the number of seen classes"),
    ],
)
def test_wrong_settings_are_explained(kind: type[ClosedForm], settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DGZError) as caught:
        kind(**settings).fit(*made_up())
    assert sentence in str(caught.value)


@pytest.mark.parametrize(
    ("model", "sentence"),
    [
        (ESZSL(labels="half"), "labels must be one of auto, zero_one, signs, found 'half'."),
        (ESZSL(feature_ridge=0.0), "feature_ridge must be a positive number or 'auto', found 0.0."),
        (ESZSL(class_ridge="much"), "class_ridge must be a positive number or 'auto', found 'much'."),
        (SAE(encoder_weight=-1.0), "encoder_weight must be a positive number or 'auto', found -1.0."),
        (SAE(encoder_weight=float("inf")), "encoder_weight must be a positive number or 'auto', found inf."),
        (SAE(space="shared"), "space must be one of auto, features, classes, found 'shared'."),
        (NearestPrototype(sharpness=None), "sharpness must be a positive number or 'auto', found None."),
        (SeenSoftmax(n_top=0), "n_top must be a whole number from 1 up, found 0."),
        (SeenSoftmax(n_top=1.5), "n_top must be a whole number from 1 up, found 1.5."),
        (SeenSoftmax(novelty="size"), "novelty must be one of auto, probability, energy, found 'size'."),
        (SeenSoftmax(n_steps=0), "n_steps must be a whole number from 1 up, found 0."),
    ],
)
def test_wrong_settings_of_one_method_are_explained(model: ClosedForm, sentence: str) -> None:
    with pytest.raises(DGZError) as caught:
        model.fit(*made_up())
    assert str(caught.value) == sentence


def test_a_failed_fit_leaves_no_model() -> None:
    model = CenterRidge().fit(*made_up())
    with pytest.raises(DGZError):
        model.fit(*made_up(n_rows=1))
    with pytest.raises(ValueError, match="not fitted"):
        model.predict(made_up()[0])


@pytest.mark.parametrize("shape", [(7, 4), (4, 7), (5, 5), (1, 3), (3, 1)])
def test_the_spectrum_makes_up_the_matrix_again(shape: tuple[int, int]) -> None:
    rows = np.random.default_rng(0).standard_normal(shape)
    for each in (rows, np.vstack([rows, rows]), np.hstack([rows, rows])):
        values, axes = spectrum(each)
        assert len(values) == min(shape)
        assert (values > 0).all()
        np.testing.assert_allclose(axes.T @ axes, np.eye(len(values)), atol=1e-10)
        np.testing.assert_allclose(axes * values @ axes.T, each.T @ each, atol=1e-10)


def test_rows_of_zeros_have_no_spectrum() -> None:
    for shape in ((3, 5), (5, 3)):
        values, axes = spectrum(np.zeros(shape))
        assert values.shape == (0,)
        assert axes.shape == (shape[1], 0)


def test_sums_of_classes_are_sums_of_their_rows() -> None:
    rng = np.random.default_rng(0)
    x, y = rng.random((20, 3)), rng.integers(0, 4, 20)
    sums = class_sums(x, y, np.array([0, 2, 3]))
    for k, label in enumerate((0, 2, 3)):
        np.testing.assert_allclose(sums[k], sum(row for row, own in zip(x, y, strict=True) if own == label))


@pytest.mark.data
@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "least"), [("eszsl", 0.53), ("sae", 0.6), ("nearest-prototype", 0.4), ("seen-softmax", 0.33)]
)
def test_they_are_fair_baselines_on_real_cub(name: str, least: float, data_root: Path) -> None:
    data = load_xlsa(data_root, "CUB", "res50", "sent")
    model = METHODS[name]().fit(data.x_train, data.y_train, data.attributes)
    assert gzsl_scores(model, data).h > least
