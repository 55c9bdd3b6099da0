"""Importing people's own arrays: every format, every way to give labels and splits, and what can be wrong with them."""

import csv
import io
import sys
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import damage
from dgz.data import ClassTable, import_arrays, read_class_table, read_labels, read_rows
from dgz.errors import DataError, DGZError

TABLE = ClassTable(("cat", "dog", "fox"), np.eye(3, dtype=np.float32), ("seen", "seen", "unseen"))
X = np.arange(20, dtype=np.float32).reshape(10, 2) / 7
Y = ["cat"] * 4 + ["dog"] * 4 + ["fox"] * 2
SPLIT = ["train", "train", "test", "train", "test", "train", "train", "train", "test", "test"]


def write_csv(path: Path, header: list[str], rows: list[list[Any]]) -> Path:
    with path.open("w", newline="") as file:
        csv.writer(file).writerows([header, *rows])
    return path


def write_samples(path: Path) -> Path:
    """The ten samples with labels and splits, in the format of the path's ending."""
    rows = [[float(x[0]), float(x[1]), y, split] for x, y, split in zip(X, Y, SPLIT, strict=True)]
    if path.suffix == ".csv":
        return write_csv(path, ["f0", "f1", "label", "split"], rows)
    if path.suffix == ".npz":
        np.savez_compressed(path, X=X, y=Y, split=SPLIT)
    else:
        pq.write_table(pa.table({"f0": X[:, 0], "f1": X[:, 1], "label": Y, "split": SPLIT}), path)
    return path


@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet"])
def test_a_file_with_labels_and_splits_is_all_it_takes(tmp_path: Path, ending: str) -> None:
    rows = read_rows(write_samples(tmp_path / f"samples{ending}"))
    data = import_arrays(rows.features, rows.labels, TABLE, splits=rows.splits)
    np.testing.assert_array_equal(data.x_train, X[[0, 1, 3, 5, 6, 7]])
    np.testing.assert_array_equal(data.x_test_seen, X[[2, 4]])
    np.testing.assert_array_equal(data.x_test_unseen, X[[8, 9]])
    assert data.y_test_seen.tolist() == [0, 1]
    assert data.unseen.tolist() == [2]
    assert data.train_index.tolist() == [0, 1, 3, 5, 6, 7]


def test_npy_features_come_with_separate_labels(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", X.astype(np.float64))
    np.save(tmp_path / "y.npy", np.array(Y))
    write_csv(tmp_path / "y.csv", ["label"], [[y] for y in Y])
    np.testing.assert_array_equal(read_rows(tmp_path / "x.npy").features, X)
    assert read_labels(tmp_path / "y.npy").tolist() == read_labels(tmp_path / "y.csv").tolist() == Y


def test_a_parquet_column_of_lists_is_a_matrix(tmp_path: Path) -> None:
    pq.write_table(pa.table({"features": list(X), "label": Y}), tmp_path / "x.parquet")
    rows = read_rows(tmp_path / "x.parquet")
    np.testing.assert_array_equal(rows.features, X)


def test_a_class_table_is_read(tmp_path: Path) -> None:
    table = read_class_table(
        write_csv(
            tmp_path / "c.csv", ["class", "split", "furry", "wild"], [["cat", "Seen", 1, 0], ["fox", "unseen", 1, 1]]
        )
    )
    assert (table.names, table.groups) == (("cat", "fox"), ("seen", "unseen"))
    np.testing.assert_array_equal(table.vectors, [[1, 0], [1, 1]])


def test_without_groups_the_classes_without_training_rows_are_unseen() -> None:
    table = ClassTable(TABLE.names, TABLE.vectors)
    assert import_arrays(X, Y, table, splits=SPLIT).unseen.tolist() == [2]
    assert import_arrays(X[:8], Y[:8], table).unseen.tolist() == [2]


def test_the_drawn_split_is_stratified_repeatable_and_leaves_single_rows_in_training() -> None:
    labels = ["cat"] * 10 + ["dog"]
    x = np.arange(22).reshape(11, 2)
    one, same, other = (import_arrays(x, labels, TABLE, test_fraction=0.3, random_state=seed) for seed in (0, 0, 1))
    assert np.bincount(one.y_test_seen).tolist() == [3]
    assert np.bincount(one.y_train).tolist() == [7, 1]
    assert one.hashes == same.hashes
    assert one.hashes["split"] != other.hashes["split"]


def test_number_labels_are_row_numbers_or_names() -> None:
    assert import_arrays(X, [0] * 5 + [1] * 5, TABLE).y_train.max() == 1
    named = ClassTable(("10", "20", "30"), TABLE.vectors, TABLE.groups)
    assert sorted(set(import_arrays(X, [10] * 5 + [20] * 5, named).y_train.tolist())) == [0, 1]


def test_number_labels_that_are_names_only_in_part_are_refused() -> None:
    named = ClassTable(("1", "2", "3"), TABLE.vectors, TABLE.groups)  # labels 0 to 2 would be one off, unnoticed
    with pytest.raises(DataError, match=r"found 1 label\(s\) without: 0"):
        import_arrays(X, [0] * 5 + [1] * 5, named)


def test_zero_padded_names_stay_names(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "y.csv", ["label"], [["00"], ["01"]])
    assert read_labels(path).tolist() == ["00", "01"]


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": ["cat"] * 9 + ["emu"]}, "found 1 label(s) without: emu"),
        ({"labels": [1] * 5 + [3] * 5}, "rows 0 to 2 of the table, found 1 to 3 (are they counted from 1?)"),
        ({"labels": Y[:9]}, "10 rows of features but 9 labels"),
        ({"labels": [0.5] * 10}, "class names or whole numbers"),
        ({"splits": ["train"] * 10}, "Rows of unseen classes must be test rows, found 2 training row(s), the first at 8 (class 'fox')"),
        ({"splits": ["val"] * 10}, "split must be train or test, found 'val' in row 0"),
        ({"splits": ["test"] * 10}, "x_train has no rows"),
        ({"splits": ["test"]}, "10 rows of features but 1 entries of split"),
        ({"features": np.full((10, 2), np.inf)}, "must be finite"),
        ({"test_fraction": 1.5}, "test_fraction must lie between 0 and 1, found 1.5"),
        ({"classes": ClassTable(("a", "a", "b"), TABLE.vectors)}, "without: cat, dog, fox"),
    ],
)  # fmt: skip
def test_what_is_wrong_with_the_arrays_is_said(change: dict[str, Any], sentence: str) -> None:
    arguments = {"features": X, "labels": Y, "classes": TABLE} | change
    with pytest.raises(DGZError) as caught:
        import_arrays(**arguments)
    assert sentence in str(caught.value)


def test_duplicate_class_names_are_refused() -> None:
    table = ClassTable(("cat", "dog", "cat"), TABLE.vectors, TABLE.groups)
    with pytest.raises(DataError, match="class_names must differ"):
        import_arrays(X[:8], Y[:8], table)


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        ("", "is empty; expected a header line"),
        ("name,split,v\n", "has a header but no rows"),
        ("colour,split,v\na,seen,1\n", "must have a column called name or class or class_name, found colour, split, v"),
        ("name,split\na,seen\n", "has no vector columns beside name and split: words belong in columns called"),
        ("name,gloss_2\na,a bird\n", "holds words (gloss_2): 'dgz data words' makes vectors of them"),
        (
            "gloss,name,v\na bird,a,1\n",
            "both words (gloss) and numbers (v): leave one kind out, or let 'dgz data words",
        ),
        ("name,text\na,a bird\n", "found 'a bird' (words belong in columns called description, gloss or phrases"),
        ("name,split,Split,v\na,seen,seen,1\n", "more than one column called split, whatever their case"),
        ("name,split,v\na,both,1\n", "split must be seen or unseen, found 'both' for class 'a'"),
        ("name,v,v\na,1,1\n", "more than one column called v"),
        ("name,v,w\na,1\n", "line 2: expected 3 values, found 2"),
        ("name,v\na,red\n", "line 2: column 'v' must hold numbers, found 'red'"),
        ('name,v\n"a,1\n', "cannot be read as CSV"),
        (b"name,v\n\xff\xfe,1\n", "cannot be read as CSV"),
    ],
)
def test_a_broken_class_table_is_described(tmp_path: Path, content: str | bytes, sentence: str) -> None:
    path = tmp_path / "classes.csv"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(DataError) as caught:
        read_class_table(path)
    assert sentence in str(caught.value)
    assert str(path) in str(caught.value)


def test_pickled_objects_are_never_loaded(tmp_path: Path) -> None:
    np.save(tmp_path / "x.npy", np.array([{"a": 1}], dtype=object), allow_pickle=True)
    with pytest.raises(DataError, match="cannot be read as a numpy array"):
        read_rows(tmp_path / "x.npy")


def test_an_array_that_claims_more_than_it_holds_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, {"descr": "<f4", "fortran_order": False, "shape": (10**12, 2048)})
    (tmp_path / "x.npy").write_bytes(header.getvalue() + bytes(64))
    with zipfile.ZipFile(tmp_path / "x.npz", "w") as archive:
        archive.writestr("X.npy", header.getvalue() + bytes(64))
    for name in ("x.npy", "x.npz"):
        with pytest.raises(DataError, match=r"claims the shape \(1000000000000, 2048\)"):
            read_rows(tmp_path / name)


def test_a_zip_bomb_is_refused(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "x.npz", "w", zipfile.ZIP_BZIP2) as archive:
        archive.writestr("X.npy", bytes(50_000_000))
    with pytest.raises(DataError, match=r"is refused: X\.npy claims 50000000 bytes"):
        read_rows(tmp_path / "x.npz")


def test_an_unknown_ending_names_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=r"must end in \.npy, \.npz, \.csv, \.parquet, found '\.txt'"):
        read_rows(tmp_path / "x.txt")


@pytest.mark.parametrize("ending", [".csv", ".npz", ".parquet"])
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60, deadline=None)
@given(data=st.data())
def test_damaged_samples_give_a_data_error_or_a_matrix(tmp_path: Path, ending: str, data: st.DataObject) -> None:
    path = write_samples(tmp_path / f"x{ending}")
    damage(path, data.draw)
    try:
        rows = read_rows(path)
    except DataError as error:
        assert str(path) in str(error)  # noqa: PT017 - either outcome is right
        return
    assert rows.features.ndim == 2


def test_parquet_without_pyarrow_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write_samples(tmp_path / "x.parquet")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(DGZError, match=r"needs pyarrow: install dgz\[parquet\]"):
        read_rows(path)
