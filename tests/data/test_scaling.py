import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from sklearn.base import clone
from sklearn.preprocessing import MinMaxScaler

from dgz.data import AttributeScaler, FeatureScaler
from dgz.errors import DGZError

rows = hnp.arrays(np.float32, (6, 4), elements=st.floats(-1e3, 1e3, width=32))


@given(rows, rows)
def test_minmax_is_scikit_learns_fitted_on_training_rows(train: np.ndarray, test: np.ndarray) -> None:
    ours = FeatureScaler("minmax").fit(train)
    theirs = MinMaxScaler().fit(train.astype(np.float64))
    varied = np.ptp(train, axis=0) > 1e-3
    np.testing.assert_allclose(ours.transform(test)[:, varied], theirs.transform(test)[:, varied], rtol=1e-3, atol=1e-2)
    assert np.isfinite(ours.transform(test)).all()


@given(rows)
def test_minmax_l2_rows_have_norm_five_or_zero(train: np.ndarray) -> None:
    norms = np.linalg.norm(FeatureScaler().fit_transform(train).astype(np.float64), axis=1)
    assert np.all(np.isclose(norms, 5, rtol=1e-4) | (norms < 1e-6))


def test_a_constant_column_becomes_zero_and_stays_finite() -> None:
    scaler = FeatureScaler("minmax").fit([[1.0, 3.0], [2.0, 3.0]])
    assert scaler.transform([[1.5, 3.0]]).tolist() == [[0.5, 0.0]]
    assert np.isfinite(scaler.transform([[1.5, 4.0]])).all()


def test_none_changes_nothing_and_copies_nothing() -> None:
    x = np.random.default_rng(0).random((3, 2), dtype=np.float32)
    assert np.shares_memory(FeatureScaler("none").fit_transform(x), x)
    assert np.shares_memory(AttributeScaler("none").fit_transform(x), x)


def test_the_default_is_the_released_codes() -> None:
    assert (FeatureScaler().method, FeatureScaler().norm) == ("minmax_l2", 5.0)


@pytest.mark.parametrize(("method", "norm"), [("unit", 1.0), ("sqrt_d", 2.0)])
def test_class_vectors_get_their_norm(method: str, norm: float) -> None:
    vectors = AttributeScaler(method).fit_transform([[3.0, 0, 4, 0], [0, 0, 0, 0]])  # type: ignore[arg-type]
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), [norm, 0], rtol=1e-6)


def test_standardised_vectors_have_mean_zero_and_spread_one_but_constant_columns_zero() -> None:
    vectors = np.random.default_rng(0).random((50, 3)).astype(np.float32)
    vectors[:, 1] = 0.1
    scaler = AttributeScaler("standard").fit(vectors)
    scaled = scaler.transform(vectors)
    np.testing.assert_allclose(scaled.mean(axis=0), 0, atol=1e-5)
    np.testing.assert_allclose(scaled.std(axis=0), [1, 0, 1], atol=1e-5)
    np.testing.assert_allclose(scaler.transform(vectors[:1] + 1)[0, 1], 0)


@pytest.mark.parametrize("scaler", [FeatureScaler("minmax"), AttributeScaler("unit")])
def test_another_width_is_refused(scaler: FeatureScaler | AttributeScaler) -> None:
    with pytest.raises(DGZError, match=r"3.*2 were fitted"):
        clone(scaler).fit(np.eye(2)).transform(np.eye(3))


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(DGZError, match="feature_scaling must be one of none, minmax, minmax_l2, found 'max'"):
        FeatureScaler("max").fit(np.eye(2))  # type: ignore[arg-type]
    with pytest.raises(DGZError, match="attribute_scaling must be one of none, unit, standard, sqrt_d, found 'l1'"):
        AttributeScaler("l1").fit(np.eye(2))  # type: ignore[arg-type]
