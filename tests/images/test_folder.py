"""A folder of photos and a table of classes become a data set: which photos, which classes, and what is said about it."""

import csv
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from dgz.data import ClassTable, load_bundle, load_data, save_bundle
from dgz.errors import DataError, DGZError
from dgz.images import PhotoError, backbone_of, import_images, save_images
from dgz.images.folder import find_photos, match_classes
from images.making import colours, save_photo, tiny_backbone

TABLE = ClassTable(("ant", "bee", "cat", "dodo"), np.eye(4, dtype=np.float32), ("seen", "seen", "unseen", "unseen"))


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DGZ_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Ten photos of each of three classes, all different; the fourth class has none."""
    place = tmp_path / "photos"
    for c, name in enumerate(("ant", "bee", "cat")):
        for i in range(10):
            save_photo(place / name / f"{i}.png", (80 * c, 10 * i, 7))
    return place


def made(folder: Path, classes: Any = TABLE, **options: Any) -> Any:
    return import_images(folder, classes, **{"backbone": tiny_backbone(), **options})


def test_photos_become_rows_of_the_right_class_and_split(folder: Path) -> None:
    data, report = made(folder, name="animals", semantics="own")
    assert (data.name, data.features, data.semantics) == ("animals", "tiny", "own")
    assert data.class_names == TABLE.names
    assert (data.seen.tolist(), data.unseen.tolist()) == ([0, 1], [2, 3])
    assert [len(x) for x in (data.y_train, data.y_test_seen, data.y_test_unseen)] == [16, 4, 10]
    assert report.photos == tuple(f"{name}/{i}.png" for name in ("ant", "bee", "cat") for i in range(10))
    for split in ("train", "test_seen", "test_unseen"):
        rows = zip(*(getattr(data, f"{key}_{split}") for key in "xy"), getattr(data, f"{split}_index"), strict=True)
        for x, label, row in rows:
            path = folder / report.photos[row]
            assert data.class_names[label] == path.parent.name
            np.testing.assert_allclose(x, colours(Image.open(path)), rtol=1e-6)
    assert (report.refused, report.ignored, report.warnings) == ({}, (), ())


def test_the_split_is_drawn_by_the_seed(folder: Path) -> None:
    splits = [made(folder, random_state=seed, test_fraction=0.5)[0].train_index.tolist() for seed in (0, 0, 1)]
    assert splits[0] == splits[1] != splits[2]
    assert len(splits[0]) == 10


def test_the_table_may_be_a_file(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "classes.csv").write_text("name,a,b\nant,1,0\nbee,0,1\ncat,1,1\ndodo,0,0\n")
    data, _ = made(folder, tmp_path / "classes.csv")
    assert data.unseen.tolist() == [3]  # no word on seen and unseen: classes with photos are seen
    assert len(data.y_test_unseen) == 0


# --- What counts as a photo.
def test_photos_are_found_however_deep_and_in_order(folder: Path) -> None:
    save_photo(folder / "ant" / "more" / "deep" / "A.PNG", (1, 2, 3))
    save_photo(folder / "ant" / ".hidden.png", (1, 2, 3))
    save_photo(folder / ".hidden" / "a.png", (1, 2, 3))
    save_photo(folder / "ant" / ".thumbs" / "a.png", (1, 2, 3))
    save_photo(folder / "lost.png", (1, 2, 3))
    (folder / "ant" / "notes.txt").write_text("x")
    (folder / "bee" / "raw.nef").write_text("x")
    found = find_photos(folder)
    assert list(found.photos) == ["ant", "bee", "cat"]
    assert [path.name for path in found.photos["ant"]] == [f"{i}.png" for i in range(10)] + ["A.PNG"]
    assert found.ignored == ("ant/notes.txt", "bee/raw.nef", "lost.png")
    (warning,) = found.warnings
    assert warning == (
        "3 file(s) or link(s) were ignored, as they are no photos of a class: ant/notes.txt, bee/raw.nef, lost.png."
    )
    _, report = made(folder)
    assert report.ignored == found.ignored
    assert report.warnings == found.warnings


def test_links_are_followed_within_the_folder_only(folder: Path, tmp_path: Path) -> None:
    secret = save_photo(tmp_path / "secret" / "s.png", (1, 2, 3))
    (folder / "ant" / "out.png").symlink_to(secret)
    (folder / "ant" / "up.png").symlink_to("../../secret/s.png")
    (folder / "ant" / "in.png").symlink_to("../bee/3.png")
    (folder / "ant" / "none.png").symlink_to("nowhere.png")
    (folder / "ant" / "round").symlink_to(folder)
    (folder / "elsewhere").symlink_to(secret.parent)
    found = find_photos(folder)
    assert [path.name for path in found.photos["ant"]] == [f"{i}.png" for i in range(10)] + ["in.png"]
    assert found.ignored == ("ant/none.png", "ant/out.png", "ant/round", "ant/up.png", "elsewhere")
    assert "elsewhere" not in found.photos
    linked = tmp_path / "link"
    linked.symlink_to(folder)  # the folder itself may be one
    assert {name: len(paths) for name, paths in find_photos(linked).photos.items()} == {"ant": 11, "bee": 10, "cat": 10}


def test_a_folder_that_cannot_be_read_is_not_passed_over(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.scandir

    def refuse(path: Any) -> Any:  # as root may read everything
        if Path(path).name == "bee":
            raise PermissionError(13, "Permission denied", str(path))
        return real(path)

    monkeypatch.setattr(os, "scandir", refuse)
    with pytest.raises(PermissionError, match="bee"):
        find_photos(folder)


def test_odd_names_are_no_trouble(folder: Path, tmp_path: Path) -> None:
    save_photo(folder / "ant" / 'a, "b"\nc.png', (1, 2, 3))
    bad = os.fsdecode(os.fsencode(folder / "ant") + b"/\xff\xfe.png")
    (folder / "ant" / "0.png").rename(bad)
    data, report = made(folder)
    save_images(data, report, tmp_path / "b")
    with (tmp_path / "b" / "photos.csv").open(encoding="utf-8", newline="") as file:
        paths = [row["path"] for row in csv.DictReader(file)]
    assert 'ant/a, "b"\nc.png' in paths
    assert "ant/\\xff\\xfe.png" in paths
    json.dumps(report.photos).encode()


# --- Which class a subfolder is.
def test_subfolders_are_matched_from_strict_to_forgiving() -> None:
    names = ["Sooty Albatross", "fish-crow", "2 spot", "3 spot", "Café", "001"]
    matched = match_classes(["001.Sooty_Albatross", "12 Fish crow", "2_spot", "3-SPOT", "Cafe\u0301", "001"], names)
    assert list(matched.values()) == ["Sooty Albatross", "fish-crow", "2 spot", "3 spot", "Café", "001"]
    assert match_classes(["cat", "Cat"], ["Cat", "cat"]) == {"cat": "cat", "Cat": "Cat"}
    assert match_classes(["1. cat", "2. cat"], ["2. cat", "1. cat"]) == {"1. cat": "1. cat", "2. cat": "2. cat"}


@pytest.mark.parametrize(
    ("subfolders", "names", "sentence"),
    [
        (["eel"], ["ant"], "Every subfolder with photos needs a class in the table, found 1 without: eel."),
        (["CAT"], ["cat", "Cat"], "The subfolder CAT fits more than one class: cat, Cat."),
        (["spot"], ["2 spot", "3 spot"], "The subfolder spot fits more than one class: 2 spot, 3 spot."),
        (["cat", "001.cat"], ["cat"], "The class cat fits more than one subfolder: cat, 001.cat."),
        (["ants"], ["ant"], "found 1 without: ants."),
        (["12"], ["13"], "found 1 without: 12."),
    ],
)
def test_a_subfolder_of_no_class_or_of_two_is_named(subfolders: list[str], names: list[str], sentence: str) -> None:
    with pytest.raises(DataError) as error:
        match_classes(subfolders, names)
    assert sentence in str(error.value)


def test_a_subfolder_without_photos_needs_no_class(folder: Path) -> None:
    (folder / "plans").mkdir()
    _, report = made(folder)
    assert report.warnings == ("1 subfolder(s) hold no photos: plans.",)
    save_photo(folder / "plans" / "a.png", (1, 2, 3))
    with pytest.raises(DataError, match=r"found 1 without: plans\."):
        made(folder)


def test_what_cannot_become_a_data_set_is_refused_before_the_work(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("begun")

    monkeypatch.setattr("dgz.images.folder.extract", refuse)
    with pytest.raises(DataError, match=r"Every seen class needs photos, found 1 without: dodo\."):
        made(folder, ClassTable(TABLE.names, TABLE.vectors, ("seen", "seen", "unseen", "seen")))
    (tmp_path / "empty").mkdir()
    with pytest.raises(
        DataError, match=r"empty holds no photos in subfolders, one for each class; photos end in \.jpg, "
    ):
        made(tmp_path / "empty")
    with pytest.raises(DGZError, match=r"nowhere is not a folder\."):
        made(tmp_path / "nowhere")
    with pytest.raises(AssertionError, match="begun"):
        made(folder)


# --- Bad photos and copies.
def test_bad_photos_are_named_or_left_out(folder: Path) -> None:
    (folder / "bee" / "3.png").write_bytes(b"")
    with pytest.raises(PhotoError, match=r"^bee/3\.png is empty \(0 bytes\)\.$"):
        made(folder)
    data, report = made(folder, bad="skip")
    assert report.refused == {"bee/3.png": "bee/3.png is empty (0 bytes)."}
    assert len(report.photos) == 29
    assert "bee/3.png" not in report.photos
    rows = np.concatenate([data.train_index, data.test_seen_index, data.test_unseen_index])
    assert sorted(rows) == list(range(29))


def test_photos_none_of_which_can_be_used_are_refused(folder: Path) -> None:
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    with pytest.raises(
        DataError, match=r"None of the 30 photos can be used; the first one: ant/0\.png is empty \(0 bytes"
    ):
        made(folder, bad="skip")


def test_a_class_does_not_become_unseen_by_losing_its_photos(folder: Path) -> None:
    for path in (folder / "bee").iterdir():
        path.write_bytes(b"")
    table = ClassTable(TABLE.names, TABLE.vectors)
    with pytest.raises(DataError, match=r"Every seen class needs training rows, found 1 without: 'bee'"):
        made(folder, table, bad="skip")


def test_copies_that_matter_are_counted(folder: Path) -> None:
    _, before = made(folder)
    assert before.warnings == ()
    # All of ant's photos are one: some are training rows, some test rows. One of them is among bee's and cat's, too.
    for i in range(1, 10):
        (folder / "ant" / f"{i}.png").write_bytes((folder / "ant" / "0.png").read_bytes())
    (folder / "cat" / "0.png").write_bytes((folder / "bee" / "0.png").read_bytes())
    data, report = made(folder)
    is_train = 10 in data.train_index  # bee/0.png
    classes, splits = report.warnings
    assert classes == "1 photo(s) lie in more than one class, for example bee/0.png and cat/0.png."
    assert splits.startswith(
        f"{1 + is_train} photo(s) are among the training rows and among the test rows, for example "
    )
    # Copies within the training rows of one class are nobody's business.
    lonely = ClassTable(("ant",), np.eye(1, dtype=np.float32))
    alone = folder.parent / "alone"
    for i in range(3):
        save_photo(alone / "ant" / f"{i}.png", (1, 1, 1) if i < 2 else (2, 2, 2))
    for seed in range(20):
        data, report = made(alone, lonely, random_state=seed)
        apart = (0 in data.train_index) != (1 in data.train_index)
        assert bool(report.warnings) == apart


# --- The bundle.
def test_the_bundle_holds_its_backbone_and_the_list_of_photos(folder: Path, tmp_path: Path) -> None:
    data, report = made(folder)
    save_images(data, report, tmp_path / "b")
    assert sorted(path.name for path in (tmp_path / "b").iterdir()) == [
        "arrays.safetensors",
        "backbone",
        "bundle.json",
        "photos.csv",
    ]
    for load in (load_bundle, load_data):
        assert load(tmp_path / "b").hashes == data.hashes
    backbone = backbone_of(tmp_path / "b")
    assert backbone is not None
    assert backbone.digest == report.backbone.digest
    with (tmp_path / "b" / "photos.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [int(row["row"]) for row in rows] == list(range(30))
    for row in rows:
        index = int(row["row"])
        assert row["path"] == report.photos[index]
        assert row["class"] == Path(row["path"]).parent.name
        assert index in getattr(data, f"{row['split']}_index")


def test_a_bundle_of_arrays_has_no_backbone(folder: Path, tmp_path: Path) -> None:
    data, _ = made(folder)
    save_bundle(data, tmp_path / "b")
    assert backbone_of(tmp_path / "b") is None
    (tmp_path / "b" / "backbone").mkdir()
    with pytest.raises(DGZError, match="holds no backbone"):
        backbone_of(tmp_path / "b")


def test_the_bundle_is_written_whole_or_not_at_all(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data, report = made(folder)
    save_images(data, report, tmp_path / "b")
    before = {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()}
    with pytest.raises(DGZError, match="exists already"):
        save_images(data, report, tmp_path / "b")

    def full(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("dgz.images.folder.write_whole", full)  # the last file of all
    for place, overwrite in (("b", True), ("new", False)):
        with pytest.raises(OSError, match="No space left"):
            save_images(data, report, tmp_path / place, overwrite=overwrite)
    assert {path: path.read_bytes() for path in (tmp_path / "b").rglob("*") if path.is_file()} == before
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b", "cache", "photos"]
    monkeypatch.undo()
    save_images(data, report, tmp_path / "b", overwrite=True)


def test_facts_are_safe_for_json(folder: Path) -> None:
    (folder / "bee" / "3.png").write_bytes(b"")
    _, report = made(folder, bad="skip", n_workers=1)
    facts = json.loads(json.dumps(report.facts()))
    assert facts["backbone"] == {
        "name": "tiny",
        "width": 4,
        "licence": "unknown",
        "digest": report.backbone.digest[:12],
        "fine-tuned": "no",
    }
    speed = facts["photos"].pop("per second")
    assert speed > 0
    assert facts["photos"] == {"used": 29, "known from before": 0, "refused": 1, "ignored": 0}
