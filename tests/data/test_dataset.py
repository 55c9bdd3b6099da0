from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import tiny_parts
from dgz.data import GZSLData
from dgz.errors import DataError


def broken(**changes: Any) -> tuple[str, ...]:
    """The problems found when a valid data set is changed like this."""
    with pytest.raises(DataError) as caught:
        GZSLData(**{**tiny_parts(), **changes})
    return caught.value.problems


def with_nan(x: Any, row: int) -> Any:
    x = np.array(x)
    x[row, 1] = np.nan
    return x


def test_classes_without_training_rows_are_unseen(tiny: GZSLData) -> None:
    assert tiny.seen.tolist() == [0, 1, 2, 3]
    assert tiny.unseen.tolist() == [4, 5]


def test_arrays_are_read_only_but_the_callers_own_are_not() -> None:
    parts = tiny_parts()
    data = GZSLData(**parts)
    with pytest.raises(ValueError, match="read-only"):
        data.x_train[0, 0] = 1
    with pytest.raises(AttributeError):
        data.x_train = parts["x_train"]
    assert parts["x_train"].flags.writeable  # type: ignore[attr-defined]
    assert np.shares_memory(data.x_train, parts["x_train"])  # type: ignore[arg-type]


@pytest.mark.parametrize("dtype", [np.float16, np.float64, np.int8])
def test_features_of_any_number_type_become_contiguous_float32(dtype: Any) -> None:
    parts = tiny_parts()
    data = GZSLData(**{**parts, "x_train": np.asfortranarray(np.asarray(parts["x_train"]).astype(dtype))})
    assert data.x_train.dtype == np.float32
    assert data.x_train.flags.c_contiguous


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"x_train": with_nan(tiny_parts()["x_train"], 3)}, "finite float32, found NaN or infinity in row 3"),
        ({"x_train": np.asarray(tiny_parts()["x_train"], dtype=float) * 1e300}, "x_train must be finite float32"),
        ({"attributes": with_nan(tiny_parts()["attributes"], 5)}, "row 5 (class 'c5')"),
        ({"y_train": np.repeat(np.arange(1, 7), 4)}, "0 to 5, found 1 to 6 (are the labels counted from 1?)"),
        ({"y_train": np.repeat([0, 1, 2, -1], 6)}, "0 to 5, found -1 to 2"),
        ({"y_train": np.repeat([0, 1, 2, 4], 6), "seen": [0, 1, 2, 3]}, "seen classes only, found 1 other(s): 'c4'"),
        ({"y_test_seen": np.repeat([0, 1, 2, 4], 2)}, "y_test_seen must hold seen classes only"),
        ({"y_test_unseen": np.repeat([0, 5], 3)}, "y_test_unseen must hold unseen classes only"),
        ({"class_names": ["c"] * 6}, "class_names must differ, found more than once: c."),
        ({"class_names": ["a", "b"]}, "2 class_names but 6 rows of attributes"),
        ({"class_names": ["a", "b", "c", "d", "e", " "]}, "must not be empty"),
        ({"attributes": np.ones((5, 3)), "class_names": None}, "y_test_unseen must hold class ids from 0 to 4"),
        ({"seen": [0, 1, 2, 3, 4], "unseen": [4, 5]}, "either seen or unseen, found as both: 'c4'"),
        ({"seen": [0, 1, 2], "unseen": [4, 5]}, "found 1 that are neither: 'c3'"),
        ({"seen": [0, 1, 2, 3, 4], "unseen": [5]}, "Every seen class needs training rows, found 1 without: 'c4'"),
        ({"seen": [1, 0, 2, 3]}, "seen must be sorted"),
        ({"x_test_seen": np.ones((8, 4))}, "x_test_seen has 4 columns but x_train has 5"),
        ({"x_test_seen": np.ones((7, 5))}, "x_test_seen has 7 rows but y_test_seen has 8 labels"),
        ({"train_index": np.zeros(24)}, "train_index holds a source row more than once"),
        ({"test_seen_index": np.arange(8)}, "train_index and test_seen_index must be disjoint, found 8 row(s) in both"),
        ({"train_index": np.arange(-1, 23)}, "must not be negative, found -1"),
        ({"train_index": np.arange(3)}, "train_index has 3 entries but y_train has 24 labels"),
        ({"x_train": np.empty((0, 5)), "y_train": []}, "x_train has no rows"),
        ({"x_train": np.ones(24)}, "x_train must have 2 dimensions"),
        ({"x_train": np.full((24, 5), "a")}, "x_train must hold numbers"),
        ({"y_train": np.full(24, 0.5)}, "y_train must hold whole numbers, found 0.5 in row 0"),
        ({"y_train": ["a"] * 24}, "y_train must hold whole numbers"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_said_in_a_sentence(change: dict[str, Any], sentence: str) -> None:
    assert any(sentence in problem for problem in broken(**change)), broken(**change)


def test_all_problems_are_listed_not_only_the_first() -> None:
    parts = tiny_parts()
    problems = broken(x_train=with_nan(parts["x_train"], 0), attributes=with_nan(parts["attributes"], 0))
    assert len(problems) == 2


def test_hashes_depend_on_values_not_on_dtype_or_order_in_memory(tiny: GZSLData) -> None:
    parts = tiny_parts()
    same = GZSLData(**{**parts, "x_train": np.asfortranarray(np.asarray(parts["x_train"], dtype=np.float64))})
    assert same.hashes == tiny.hashes


def test_each_hash_notices_its_own_part_only(tiny: GZSLData) -> None:
    parts = tiny_parts()

    def changed(**change: Any) -> set[str]:
        hashes = GZSLData(**{**parts, **change}).hashes
        return {key for key in hashes if hashes[key] != tiny.hashes[key]}

    x = np.array(parts["x_train"])
    x[0, 0] = np.nextafter(x[0, 0], np.float32(2))
    y = np.array(parts["y_train"])
    y[0] = 1
    assert changed(x_train=x) == {"features"}
    assert changed(attributes=2 * np.asarray(parts["attributes"])) == {"attributes"}
    assert changed(y_train=y) == {"split"}


def test_the_features_hash_is_that_of_the_source_in_any_split() -> None:
    rng = np.random.default_rng(0)
    source, labels = rng.random((10, 3)), np.repeat([0, 1], 5)
    one, two = (
        GZSLData(
            x_train=source[rows], y_train=labels[rows], train_index=rows,
            x_test_seen=source[rest], y_test_seen=labels[rest], test_seen_index=rest, attributes=np.eye(2),
        )
        for rows, rest in (([0, 1, 5, 6], [2, 3, 4, 7, 8, 9]), ([9, 8, 7, 0], [1, 2, 3, 4, 5, 6]))
    )  # fmt: skip
    assert one.hashes["features"] == two.hashes["features"]
    assert one.hashes["split"] != two.hashes["split"]


def test_the_record_is_json_safe_and_complete(tiny: GZSLData) -> None:
    record = tiny.record()
    assert record["n_rows"] == {"train": 24, "test_seen": 8, "test_unseen": 6}
    assert (record["n_seen"], record["n_unseen"], record["n_features"], record["n_attributes"]) == (4, 2, 5, 3)
    assert set(record["hashes"]) == {"features", "attributes", "split"}


@given(st.sampled_from(sorted(tiny_parts())), st.data())
def test_hostile_arguments_give_a_data_error_or_a_valid_set(name: str, data: st.DataObject) -> None:
    hostile = data.draw(
        st.one_of(
            st.none(), st.integers(), st.text(max_size=3), st.lists(st.floats(width=32), max_size=4),
            st.lists(st.lists(st.integers(-3, 9), min_size=2, max_size=2), max_size=3),
            st.lists(st.text(max_size=2), min_size=6, max_size=6),
        )
    )  # fmt: skip
    try:
        made = GZSLData(**{**tiny_parts(), name: hostile})
    except (DataError, TypeError):
        return
    assert np.isfinite(made.x_train).all()
    assert len(set(made.class_names)) == made.n_classes
