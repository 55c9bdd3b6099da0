from pathlib import Path
from typing import Any

import numpy as np
import pytest

from conftest import tiny_parts
from dgz.data import GZSLData, check, describe, load_data, save_bundle
from dgz.errors import DGZError


def warnings_of(folder: Path, **changes: Any) -> str:
    parts = tiny_parts()
    parts["attributes"] = np.asarray(parts["attributes"]) + 1  # usual norms
    save_bundle(GZSLData(**{**parts, **changes}), folder / "bundle", overwrite=True)
    report = check(folder / "bundle")
    assert not report.problems
    return "\n".join(report.warnings)


def test_a_clean_set_has_no_warnings(tmp_path: Path) -> None:
    assert warnings_of(tmp_path) == ""


def test_each_known_trouble_gets_a_warning(tmp_path: Path) -> None:
    parts = tiny_parts()
    vectors = np.asarray(parts["attributes"]) + 1
    x = np.array(parts["x_train"])
    constant = x.copy()
    constant[:, 2] = 3
    twins = vectors.copy()
    twins[5] = twins[0]
    flat = vectors.copy()
    flat[:, 1] = 1
    test = np.array(parts["x_test_unseen"])
    test[1] = x[0]
    y = np.repeat([0, 1, 2, 3], [21, 1, 1, 1])
    expected = {
        "outside the usual 0.5 to 50: networks are trained on vectors scaled to norm 1": {"attributes": 100 * vectors},
        "outside the usual 0.5 to 50: a scaling of them may help": {"attributes": np.r_[99 * vectors[:1], vectors[1:]]},
        "same vector as another cannot be told apart: c0, c5": {"attributes": twins},
        "1 column(s) of the class vectors are the same for all classes": {"attributes": flat},
        "1 feature column(s) are constant": {"x_train": constant},
        "1 row(s) of x_test_unseen are exact copies of training rows": {"x_test_unseen": test},
        "unbalanced: 'c1' has 1, 'c0' has 21": {"y_train": y},
        "1 unseen class(es) have no test rows: c5": {"y_test_unseen": np.full(6, 4)},
        "12 rows of val_loc are test rows": {"leaks": {"val_loc": 12}},
    }
    for sentence, change in expected.items():
        assert sentence in warnings_of(tmp_path, **change)


def test_facts_are_what_the_arrays_say(tiny: GZSLData) -> None:
    facts = describe(tiny)
    assert facts["classes"] == {"seen": 4, "unseen": 2}
    assert facts["rows"] == {"train": 24, "test_seen": 8, "test_unseen": 6}
    norms = np.linalg.norm(tiny.attributes, axis=1)
    assert facts["class vector norms"] == {"min": pytest.approx(norms.min()), "max": pytest.approx(norms.max())}


def test_a_source_is_found_by_name_bundle_or_xlsa_folder(tmp_path: Path, tiny: GZSLData) -> None:
    save_bundle(tiny, tmp_path / "bundle")
    assert load_data("numbers").n_classes == 100
    assert load_data(tmp_path / "bundle").hashes == tiny.hashes
    with pytest.raises(DGZError, match="neither a folder nor the name of an embedded data set"):
        load_data(tmp_path / "nothing")
    with pytest.raises(DGZError, match=r"holds no data set: expected a bundle\.json or \.mat files\."):
        load_data(tmp_path)


@pytest.mark.data
def test_the_parent_of_data_sets_lists_them(data_root: Path) -> None:
    with pytest.raises(DGZError, match=r"data sets inside it: .*/APY, .*/AWA2, .*/CUB, .*/SUN"):
        load_data(data_root)


@pytest.mark.data
def test_split_files_alone_are_checked_for_leaks(data_root: Path) -> None:
    awa2, apy = check(data_root / "AWA2"), check(data_root / "APY")
    assert ["res101.mat is missing" in problem for problem in awa2.problems] == [True]
    assert [warning.split(":")[0] for warning in awa2.warnings] == [
        "4,031 rows of train_loc are test rows",
        "1,851 rows of val_loc are test rows",
    ]
    assert apy.warnings == []
    assert apy.facts["rows"] == {"train": 5932, "test_seen": 1483, "test_unseen": 7924}


@pytest.mark.data
def test_percentages_as_class_vectors_are_warned_of(data_root: Path, tmp_path: Path) -> None:
    from dgz.data import import_arrays, read_class_table

    table = read_class_table(data_root / "CUB-photos" / "class_attributes.csv")
    assert (len(table.names), table.vectors.shape[1]) == (50, 312)
    seen = [name for name, group in zip(table.names, table.groups or (), strict=True) if group == "seen"]
    assert len(seen) == 40
    rows = np.random.default_rng(0).random((80, 3))
    save_bundle(import_arrays(rows, seen * 2, table), tmp_path / "photos")
    assert any("outside the usual 0.5 to 50" in warning for warning in check(tmp_path / "photos").warnings)
