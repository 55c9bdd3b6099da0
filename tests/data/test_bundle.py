import json
import resource
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from conftest import damage, tiny_parts
from dgz.data import GZSLData, load_bundle, save_bundle
from dgz.errors import DataError, DGZError


def test_what_is_read_back_is_the_same_bit_for_bit(tmp_path: Path) -> None:
    parts = tiny_parts()
    extremes = np.array(parts["x_train"])
    extremes[0] = [-0.0, np.finfo(np.float32).tiny / 2, np.finfo(np.float32).max, np.finfo(np.float32).min, 1 / 3]
    data = GZSLData(
        **{**parts, "x_train": extremes}, name="Vögel", features="f", semantics="s", leaks={"val_loc": 3},
        train_index=np.arange(100, 124), test_seen_index=np.arange(8), test_unseen_index=np.arange(50, 56),
    )  # fmt: skip
    save_bundle(data, tmp_path / "bundle")
    back = load_bundle(tmp_path / "bundle")
    for name, value in vars(data).items():
        if isinstance(value, np.ndarray):
            assert getattr(back, name).dtype == value.dtype
            assert getattr(back, name).tobytes() == value.tobytes(), name
    assert (back.name, back.features, back.semantics, back.class_names) == ("Vögel", "f", "s", data.class_names)
    assert (back.leaks, back.hashes) == ({"val_loc": 3}, data.hashes)


def test_a_set_without_test_rows_is_kept_too(tmp_path: Path) -> None:
    data = GZSLData(x_train=np.eye(2), y_train=[0, 1], attributes=np.eye(3))
    save_bundle(data, tmp_path / "bundle")
    assert load_bundle(tmp_path / "bundle").x_test_unseen.shape == (0, 2)


def test_a_bundle_holds_no_pickle(tmp_path: Path, tiny: GZSLData) -> None:
    save_bundle(tiny, tmp_path / "bundle")
    assert sorted(path.name for path in (tmp_path / "bundle").iterdir()) == ["arrays.safetensors", "bundle.json"]


def test_an_existing_bundle_is_kept_unless_asked_otherwise(tmp_path: Path, tiny: GZSLData) -> None:
    save_bundle(tiny, tmp_path / "bundle")
    with pytest.raises(DGZError, match="exists already"):
        save_bundle(tiny, tmp_path / "bundle")
    save_bundle(tiny, tmp_path / "bundle", overwrite=True)
    assert load_bundle(tmp_path / "bundle").hashes == tiny.hashes


@pytest.mark.parametrize("limit", [100, 1500])
def test_a_full_disk_leaves_nothing(tmp_path: Path, tiny: GZSLData, limit: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, hard))
    try:
        with pytest.raises((DGZError, OSError), match=r"large|could not be written"):
            save_bundle(tiny, tmp_path / "bundle")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert list(tmp_path.iterdir()) == []


def test_a_changed_value_is_noticed(tmp_path: Path, tiny: GZSLData) -> None:
    save_bundle(tiny, tmp_path / "bundle")
    path = tmp_path / "bundle" / "arrays.safetensors"
    content = path.read_bytes()
    place = content.index(tiny.x_train.tobytes())
    path.write_bytes(content[:place] + np.float32(0.5).tobytes() + content[place + 4 :])
    with pytest.raises(DataError, match="was changed after it was written: the hash of its features differs"):
        load_bundle(tmp_path / "bundle")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "zip"}, "is not of a bundle"),
        ({"version": 2}, "is of a bundle of version 2, but this dgz reads 1"),
        ({"class_names": 3}, "header is broken"),
        ({"hashes": None}, "header is broken"),
        ({"class_names": ["a"]}, "1 class_names but 6 rows"),
    ],
)
def test_a_foreign_or_broken_header_is_refused(
    tmp_path: Path, tiny: GZSLData, change: dict[str, object], sentence: str
) -> None:
    save_bundle(tiny, tmp_path / "bundle")
    path = tmp_path / "bundle" / "bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=sentence):
        load_bundle(tmp_path / "bundle")


def test_a_folder_that_is_no_bundle_is_named(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=r"is not a bundle: it has no bundle\.json"):
        load_bundle(tmp_path)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(data=st.data())
def test_damage_is_always_noticed(tmp_path: Path, tiny: GZSLData, data: st.DataObject) -> None:
    save_bundle(tiny, tmp_path / "bundle", overwrite=True)
    path = tmp_path / "bundle" / "arrays.safetensors"
    damage(path, data.draw)
    try:
        same = load_bundle(tmp_path / "bundle").hashes == tiny.hashes  # a flip may hit padding
    except DataError:
        return
    assert same
