"""The reader of xlsa17 files, on files in every format that people have, on the real ones, and on broken ones."""

import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import scipy.io
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import damage
from dgz.data import GZSLData, load_xlsa, read_xlsa_splits
from dgz.errors import DataError, DGZError

NAMES = ["ant", "bee", "cat", "dog"]


def contents() -> tuple[dict[str, Any], dict[str, Any]]:
    """A small data set as its two files hold it: 12 rows, 3 classes seen and one (bee) unseen."""
    rng = np.random.default_rng(0)
    labels = np.repeat([1, 2, 3, 4], 3)
    features = {"features": rng.random((5, 12)).astype(np.float32), "labels": labels.reshape(-1, 1).astype(np.uint8)}
    splits = {
        "att": rng.random((2, 4)),
        "allclasses_names": np.array([[name] for name in NAMES], dtype=object),
        "trainval_loc": np.array([[8, 2, 7, 1, 10, 11]], dtype=np.uint16).T,
        "test_seen_loc": np.array([[3, 9, 12]], dtype=np.uint16).T,
        "test_unseen_loc": np.array([[4, 5, 6]], dtype=np.uint16).T,
        "train_loc": np.array([[1, 2, 3]], dtype=np.uint16).T,
        "val_loc": np.array([[7, 8]], dtype=np.uint16).T,
    }
    return features, splits


def write_v5(path: Path, variables: dict[str, Any], *, compressed: bool = False) -> None:
    scipy.io.savemat(path, variables, do_compression=compressed)


def write_v73(path: Path, variables: dict[str, Any]) -> None:
    """The HDF5 layout of MATLAB 7.3: a 512-byte block, reversed dimensions, cells as references."""
    with h5py.File(path, "w", userblock_size=512) as file:
        for name, value in variables.items():
            if value.dtype == object:
                references = np.empty(value.shape[::-1], dtype=h5py.ref_dtype)
                for i, text in enumerate(value.ravel()):
                    codes = np.array([[ord(letter)] for letter in text], dtype=np.uint16)
                    references.ravel()[i] = file.create_dataset(f"#refs#/{name}{i}", data=codes).ref
                file.create_dataset(name, data=references, dtype=h5py.ref_dtype)
            else:
                file.create_dataset(name, data=value.T, compression="gzip")
    with path.open("r+b") as file:
        file.write(b"MATLAB 7.3 MAT-file, Platform: GLNXA64".ljust(512))


WRITERS = {
    "v5": write_v5,
    "v7": lambda path, variables: write_v5(path, variables, compressed=True),
    "v7.3": write_v73,
}


def write_set(folder: Path, features: dict[str, Any], splits: dict[str, Any], version: str = "v5") -> Path:
    folder.mkdir(exist_ok=True)
    WRITERS[version](folder / "res101.mat", features)
    WRITERS[version](folder / "att_splits.mat", splits)
    return folder


def load_changed(folder: Path, **changes: Any) -> GZSLData:
    """Load the small data set with some variables replaced, or left out where they are None."""
    parts = [{**part} for part in contents()]
    for part in parts:
        part |= {name: value for name, value in changes.items() if name in part}
        for name in [name for name, value in part.items() if value is None]:
            del part[name]
    write_set(folder / "set", *parts)
    return load_xlsa(folder, "set")


@pytest.mark.parametrize("version", WRITERS)
def test_every_matlab_version_gives_the_same_data(tmp_path: Path, version: str) -> None:
    features, splits = contents()
    write_set(tmp_path / version, features, splits, version)
    data = load_xlsa(tmp_path, version)
    rows = splits["trainval_loc"].ravel().astype(int) - 1
    np.testing.assert_array_equal(data.x_train, features["features"].T[rows])
    np.testing.assert_array_equal(data.x_test_seen, features["features"].T[[2, 8, 11]])
    np.testing.assert_array_equal(data.x_test_unseen, features["features"].T[[3, 4, 5]])
    np.testing.assert_array_equal(data.y_train, features["labels"].ravel()[rows] - 1)
    np.testing.assert_array_equal(data.attributes, splits["att"].T.astype(np.float32))
    np.testing.assert_array_equal(data.train_index, rows)
    assert data.class_names == tuple(NAMES)
    assert (data.seen.tolist(), data.unseen.tolist()) == ([0, 2, 3], [1])


@pytest.mark.parametrize("dtype", ["uint8", "int16", "uint32", "int64", "float64"])
@pytest.mark.parametrize("row_vector", [False, True])
def test_labels_come_in_any_width_and_direction(tmp_path: Path, dtype: str, row_vector: bool) -> None:
    labels = contents()[0]["labels"].astype(dtype)
    data = load_changed(tmp_path, labels=labels.T if row_vector else labels)
    assert data.y_test_unseen.tolist() == [1, 1, 1]


@pytest.mark.parametrize("version", WRITERS)
def test_double_precision_features_become_float32(tmp_path: Path, version: str) -> None:
    features, splits = contents()
    features["features"] = features["features"].astype(np.float64)
    write_set(tmp_path / "set", features, splits, version)
    assert load_xlsa(tmp_path, "set").x_train.dtype == np.float32


def test_a_file_without_class_names_loads_with_made_up_ones(tmp_path: Path) -> None:
    assert load_changed(tmp_path, allclasses_names=None).class_names == ("class_0", "class_1", "class_2", "class_3")


def test_a_file_without_inner_splits_loads(tmp_path: Path) -> None:
    assert load_changed(tmp_path, train_loc=None, val_loc=None).leaks == {}


def test_leaks_are_counted_and_clean_sets_are_not_accused(tmp_path: Path) -> None:
    assert load_changed(tmp_path).leaks == {"train_loc": 1}  # row 3 is a test row; val_loc is clean


def test_rows_outside_every_index_set_are_left_out(tmp_path: Path) -> None:
    features, _ = contents()
    data = load_changed(tmp_path, trainval_loc=np.array([[11], [7], [1]]))
    np.testing.assert_array_equal(data.x_train, features["features"].T[[10, 6, 0]])
    np.testing.assert_array_equal(data.x_test_unseen, features["features"].T[[3, 4, 5]])


@given(st.permutations(range(12)), st.integers(3, 12))
def test_rows_are_sorted_into_the_split_in_place(order: list[int], n: int) -> None:
    from dgz.data.xlsa import _reorder_rows

    x = np.arange(24, dtype=np.float32).reshape(12, 2)
    expected = x[order[:n]]
    _reorder_rows(x, np.array(order[:n]))
    np.testing.assert_array_equal(x[:n], expected)
    assert sorted(x[:, 0]) == list(range(0, 24, 2))


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"labels": contents()[0]["labels"] - 1}, "labels must run from 1 to 4 (the classes of att_splits.mat), found 0 to 3"),
        ({"labels": contents()[0]["labels"] + 1}, "found 2 to 5"),
        ({"labels": contents()[0]["labels"][:5]}, "a column for each of the 5 labels, found (5, 12)"),
        ({"labels": contents()[0]["labels"] / 2}, "must hold whole numbers, found 0.5 in row 0"),
        ({"features": contents()[0]["features"] * np.nan}, "must be finite"),
        ({"att": contents()[1]["att"][:, :3]}, "labels must run from 1 to 3"),
        ({"att": None}, "lacks att: it is not an xlsa17 split file"),
        ({"features": None}, "lacks features: it is not an xlsa17 features file"),
        ({"trainval_loc": np.array([[0], [1]])}, "trainval_loc must count rows from 1, found 0"),
        ({"test_seen_loc": np.array([[13]])}, "test_seen_loc must count rows from 1 to 12 (the rows of res101.mat), found 13"),
        ({"test_seen_loc": np.array([[1]])}, "train_index and test_seen_index must be disjoint, found 1 row(s) in both"),
        ({"trainval_loc": np.array([[1], [1], [7]])}, "train_index holds a source row more than once"),
        ({"test_unseen_loc": np.array([[3], [4]])}, "y_test_unseen must hold unseen classes only, found 1 other(s): 'ant'"),
        ({"allclasses_names": np.array([["ant"]] * 4, dtype=object)}, "class_names must differ"),
        ({"features": np.array([["x"]], dtype=object)}, "features must hold numbers"),
    ],
)  # fmt: skip
def test_broken_content_is_named_with_its_file(tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(DataError) as caught:
        load_changed(tmp_path, **change)
    assert sentence in str(caught.value)
    assert str(tmp_path / "set") in str(caught.value)


def test_missing_files_say_what_is_there_instead(tmp_path: Path) -> None:
    write_set(tmp_path / "set", *contents())
    with pytest.raises(DataError, match=r"res50.mat is missing \(features found there: res101\)"):
        load_xlsa(tmp_path, "set", features="res50")
    with pytest.raises(DataError, match=r"sent_splits.mat is missing \(semantics found there: att\)"):
        load_xlsa(tmp_path, "set", semantics="sent")
    with pytest.raises(DGZError, match="other is not a folder"):
        load_xlsa(tmp_path, "other")


@pytest.mark.parametrize("version", WRITERS)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40, deadline=None)
@given(data=st.data())
def test_damaged_files_give_a_data_error_or_whole_data(tmp_path: Path, version: str, data: st.DataObject) -> None:
    folder = write_set(tmp_path / "set", *contents(), version)
    path = folder / data.draw(st.sampled_from(["res101.mat", "att_splits.mat"]))
    damage(path, data.draw, within=700)  # flips beyond the headers would mostly change values
    try:
        loaded = load_xlsa(tmp_path, "set")
    except DataError as error:
        assert str(folder) in str(error)  # noqa: PT017 - either outcome is right
        return
    assert np.isfinite(loaded.x_train).all()


def test_a_hollow_hdf5_array_is_refused_before_memory_is_taken(tmp_path: Path) -> None:
    features, splits = contents()
    write_set(tmp_path / "set", features, splits, "v7.3")
    with h5py.File(tmp_path / "set" / "res101.mat", "a") as file:
        del file["features"]
        file.create_dataset("features", shape=(10**9, 2048), chunks=(1, 2048), dtype="f4")  # 8 TB of nothing
    with pytest.raises(DataError, match="features claims the shape"):
        load_xlsa(tmp_path, "set")


def test_hdf5_links_to_other_files_are_not_followed(tmp_path: Path) -> None:
    features, splits = contents()
    write_set(tmp_path / "set", features, splits, "v7.3")
    path = tmp_path / "set" / "res101.mat"
    os.rename(path, tmp_path / "elsewhere.mat")  # noqa: PTH104
    with h5py.File(path, "w") as file:
        file["labels"] = features["labels"].T
        file["features"] = h5py.ExternalLink(str(tmp_path / "elsewhere.mat"), "/features")
    with pytest.raises(DataError, match="lacks features"):
        load_xlsa(tmp_path, "set")


@pytest.mark.data
@pytest.mark.parametrize(("semantics", "width"), [("sent", 1024), ("att", 312)])
def test_real_cub_has_its_known_shape_and_leak(data_root: Path, semantics: str, width: int) -> None:
    data = load_xlsa(data_root, "CUB", "res50", semantics)
    assert data.x_train.shape == (7057, 2048)
    assert (len(data.y_test_seen), len(data.y_test_unseen)) == (1764, 2967)
    assert (len(data.seen), len(data.unseen)) == (150, 50)
    assert data.attributes.shape == (200, width)
    assert data.leaks == {"train_loc": 1173, "val_loc": 591}
    raw = scipy.io.loadmat(data_root / "CUB" / "res50.mat", variable_names=["features", "labels"])
    np.testing.assert_array_equal(data.x_test_unseen, raw["features"].T[data.test_unseen_index])
    np.testing.assert_array_equal(data.y_test_unseen, raw["labels"].ravel()[data.test_unseen_index] - 1)


@pytest.mark.data
def test_real_cub_sentences_are_not_normalised(data_root: Path) -> None:
    norms = np.linalg.norm(load_xlsa(data_root, "CUB", "res50", "sent").attributes, axis=1)
    assert norms.min() == pytest.approx(16.65, abs=0.01)
    assert norms.max() == pytest.approx(22.55, abs=0.01)


@pytest.mark.data
@pytest.mark.parametrize(
    ("name", "leaks"),
    [("AWA2", {"train_loc": 4031, "val_loc": 1851}), ("SUN", {"train_loc": 2320, "val_loc": 260})],
)
def test_real_split_files_leak_where_they_are_known_to(data_root: Path, name: str, leaks: dict[str, int]) -> None:
    assert read_xlsa_splits(data_root / name / "att_splits.mat").leaks == leaks


@pytest.mark.data
def test_the_clean_apy_file_is_not_accused(data_root: Path) -> None:
    splits = read_xlsa_splits(data_root / "APY" / "att_splits.mat")
    assert not any(splits.leaks.values())
    assert len(splits.index["trainval_loc"]) == 5932
