"""Features of many photos: in order, in parallel, known from before, whatever happens in between."""

import hashlib
import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from conftest import ROOT
from dgz.errors import DGZError
from dgz.images import Backbone, Extracted, PhotoError, extract, prepare, read_photo
from dgz.images.features import FeatureStore
from images.making import PLAIN, colours, encoded, noise, save_photo, tiny_backbone, tiny_onnx


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "cache"
    monkeypatch.setenv("DGZ_CACHE", str(folder))
    return folder / "features"


@pytest.fixture
def photos(tmp_path: Path) -> list[Path]:
    """Forty photos of a single colour each."""
    return [save_photo(tmp_path / "photos" / f"{i:02d}.png", (i, 2 * i, 5 * i)) for i in range(40)]


def expected(paths: list[Path]) -> Any:
    return np.stack([colours(Image.open(path)) for path in paths])


class Counting:
    """How many photos a network was run on."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.n, self.lock, self.real = 0, threading.Lock(), Backbone.run
        monkeypatch.setattr(Backbone, "run", lambda backbone, batch: self.run(backbone, batch))

    def run(self, backbone: Backbone, batch: Any) -> Any:
        with self.lock:
            self.n += len(batch)
        return self.real(backbone, batch)


@pytest.mark.parametrize("n_workers", [1, 2, 7])
def test_rows_are_in_the_order_of_the_paths(photos: list[Path], n_workers: int) -> None:
    shuffled = [photos[i] for i in np.random.default_rng(0).permutation(40)]
    found = extract(shuffled, tiny_backbone(), n_workers=n_workers, cache=False)
    np.testing.assert_allclose(found.features, expected(shuffled), rtol=1e-6)
    assert found.features.dtype == np.float32
    assert found.kept.tolist() == list(range(40))
    assert found.digests == tuple(hashlib.sha256(path.read_bytes()).digest() for path in shuffled)
    assert (found.refused, found.n_cached, found.warnings) == ({}, 0, ())
    assert found.photos_per_second == pytest.approx(40 / found.seconds)


def test_a_row_is_what_the_steps_give_one_by_one(tmp_path: Path) -> None:
    (tmp_path / "a.jpg").write_bytes(encoded(noise((400, 300)), quality=90))
    backbone = tiny_backbone()
    photo = read_photo(tmp_path / "a.jpg", shorter_side=8)
    assert photo.size == (50, 38)  # decoded at an eighth of its size
    found = extract([str(tmp_path / "a.jpg")], backbone)
    assert (found.features == backbone.run(prepare(photo, PLAIN)[None])).all()


def test_no_photos_are_no_rows() -> None:
    found = extract([], tiny_backbone())
    assert found.features.shape == (0, 4)
    assert len(found.kept) == 0


# --- The cache.
def test_a_second_run_computes_nothing(photos: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    backbone, counting = tiny_backbone(), Counting(monkeypatch)
    first = extract(photos, backbone)
    assert (counting.n, first.n_cached) == (40, 0)
    again = extract(photos[::-1], backbone)
    assert (counting.n, again.n_cached) == (40, 40)
    assert (again.features == first.features[::-1]).all()
    assert [path.name for path in cache.iterdir()] == [f"{backbone.digest}-1.sqlite"]
    # By content, whatever the name.
    photos[3].rename(photos[3].with_name("other.png"))
    assert extract([photos[3].with_name("other.png")], backbone).n_cached == 1
    assert counting.n == 40


def test_a_changed_photo_is_computed_again(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone()
    extract(photos, backbone)
    counting = Counting(monkeypatch)
    save_photo(photos[7], (200, 100, 50))
    found = extract(photos, backbone)
    assert (counting.n, found.n_cached) == (1, 39)
    np.testing.assert_allclose(found.features, expected(photos), rtol=1e-6)


def test_another_backbone_or_preparation_has_features_of_its_own(photos: list[Path], cache: Path) -> None:
    from dataclasses import replace

    one = tiny_backbone()
    extract(photos, one)
    for other in (
        replace(one, preparation=replace(PLAIN, std=(2, 2, 2))),
        Backbone(tiny_onnx(output="map"), PLAIN, "m"),
    ):
        assert extract(photos, other).n_cached == 0
    assert len(list(cache.iterdir())) == 3
    renamed = replace(one, name="renamed")
    assert extract(photos, renamed).n_cached == 40


def test_without_cache_nothing_is_kept_or_used(
    photos: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone()
    extract(photos, backbone, cache=False)
    assert not cache.exists()
    extract(photos, backbone)
    counting = Counting(monkeypatch)
    assert extract(photos, backbone, cache=False).n_cached == 0
    assert counting.n == 40


def test_the_cache_may_be_elsewhere(photos: list[Path], cache: Path, tmp_path: Path) -> None:
    extract(photos, tiny_backbone(), cache=tmp_path / "elsewhere")
    assert not cache.exists()
    assert extract(photos, tiny_backbone(), cache=tmp_path / "elsewhere").n_cached == 40


def test_copies_within_a_run_are_all_answered(tmp_path: Path) -> None:
    paths = [save_photo(tmp_path / f"{i}.png", (9, 8, 7)) for i in range(10)]
    found = [extract(paths, tiny_backbone(), cache=cached, n_workers=1) for cached in (False, True, True)]
    for one in found:
        np.testing.assert_allclose(one.features, expected(paths), rtol=1e-6)
    # Two photos are a chunk here: its second one comes before what the first one gave is kept.
    assert [one.n_cached for one in found] == [0, 8, 10]


def test_a_run_that_fails_keeps_what_it_had(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    photos[-1].write_bytes(b"broken")
    with pytest.raises(PhotoError):
        extract(photos, tiny_backbone(), n_workers=1)
    save_photo(photos[-1], (1, 2, 3))
    counting = Counting(monkeypatch)
    assert extract(photos, tiny_backbone()).n_cached >= 35
    assert counting.n <= 5


KILLED = """
import sys, time
from pathlib import Path
from dgz.images import Backbone, extract
real = Backbone.run
def slow(backbone, batch):
    time.sleep(0.02)
    return real(backbone, batch)
Backbone.run = slow
print("ready", flush=True)
extract(sorted(Path(sys.argv[1]).iterdir()), Backbone.load(sys.argv[2]), n_workers=2)
"""


def test_a_killed_run_goes_on_where_it_was(
    photos: list[Path], tmp_path: Path, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone()
    backbone.save(tmp_path / "backbone")
    # A chunk is five photos here, so that some are kept long before the end.
    process = subprocess.Popen(
        [sys.executable, "-c", KILLED, str(photos[0].parent), str(tmp_path / "backbone")],
        stdout=subprocess.PIPE,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
    )
    file, n_kept = cache / f"{backbone.digest}-1.sqlite", 0
    end = time.monotonic() + 60
    while n_kept == 0 and time.monotonic() < end:
        time.sleep(0.01)
        if file.exists():
            base = sqlite3.connect(file)
            try:
                n_kept = base.execute("SELECT count(*) FROM photos").fetchone()[0]
            except sqlite3.OperationalError:  # not there yet
                pass
            finally:
                base.close()
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert process.returncode == -signal.SIGKILL
    counting = Counting(monkeypatch)
    found = extract(photos, backbone)
    assert found.n_cached >= n_kept > 0
    assert counting.n == 40 - found.n_cached > 0
    np.testing.assert_allclose(found.features, expected(photos), rtol=1e-6)
    assert found.warnings == ()


def test_processes_may_share_it(photos: list[Path], tmp_path: Path) -> None:
    backbone = tiny_backbone()
    backbone.save(tmp_path / "backbone")
    processes = [
        subprocess.Popen(
            [sys.executable, "-W", "error", "-c", KILLED, str(photos[0].parent), str(tmp_path / "backbone")],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONPATH": str(ROOT / "src")},
        )
        for _ in range(2)
    ]
    assert [process.communicate(timeout=60)[1] for process in processes] == [b""] * 2
    assert [process.returncode for process in processes] == [0] * 2
    found = extract(photos, backbone)
    assert found.n_cached == 40
    np.testing.assert_allclose(found.features, expected(photos), rtol=1e-6)


def corrupt_header(path: Path) -> None:
    path.write_bytes(b"no database" * 500)


def corrupt_pages(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[4096:] = b"\xff" * (len(content) - 4096)
    path.write_bytes(content)


def corrupt_table(path: Path) -> None:
    path.unlink()
    with sqlite3.connect(path) as base:
        base.execute("CREATE TABLE photos (something)")
    base.close()


def corrupt_end(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:5000])


@pytest.mark.parametrize("corrupt", [corrupt_header, corrupt_pages, corrupt_table, corrupt_end])
def test_a_broken_file_is_set_aside(corrupt: Any, photos: list[Path], cache: Path) -> None:
    backbone = tiny_backbone()
    extract(photos, backbone)
    (path,) = cache.iterdir()
    corrupt(path)
    before = path.read_bytes()
    found = extract(photos, backbone)
    np.testing.assert_allclose(found.features, expected(photos), rtol=1e-6)
    (warning,) = found.warnings
    assert f"{path} was broken" in warning
    assert f"set aside as {path.stem}.broken, and features are computed again." in warning
    assert path.with_suffix(".broken").read_bytes() == before
    again = extract(photos, backbone)
    assert again.warnings == ()
    assert again.n_cached >= 35  # what was kept from the moment it was set aside


def test_values_that_cannot_be_are_computed_again(
    photos: list[Path], cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backbone = tiny_backbone()
    extract(photos, backbone)
    (path,) = cache.iterdir()
    digests = [hashlib.sha256(photo.read_bytes()).digest() for photo in photos[:3]]
    with sqlite3.connect(path) as base:
        for digest, value in zip(digests, (b"short", np.full(4, np.nan, "<f4").tobytes(), "text"), strict=True):
            base.execute("UPDATE photos SET features = ? WHERE digest = ?", (value, digest))
    base.close()
    counting = Counting(monkeypatch)
    found = extract(photos, backbone)
    assert (counting.n, found.n_cached) == (3, 37)
    np.testing.assert_allclose(found.features, expected(photos), rtol=1e-6)
    assert extract(photos, backbone).n_cached == 40


def test_a_folder_that_cannot_be_written_costs_the_cache_only(photos: list[Path], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    found = extract(photos, tiny_backbone(), cache=tmp_path / "file" / "features")
    np.testing.assert_allclose(found.features, expected(photos), rtol=1e-6)
    (warning,) = found.warnings
    assert warning.startswith("Features are not kept: ")


def test_a_full_disk_costs_the_cache_only(photos: list[Path], cache: Path) -> None:
    store = FeatureStore(tiny_backbone(), cache)
    store.put({b"a" * 32: np.ones(4, np.float32)})
    assert store.get(b"a" * 32) is not None
    assert store._base is not None
    store._base.execute("PRAGMA max_page_count = 1")  # SQLite's own way to be full
    store.put({bytes([i]) * 32: np.ones(4, np.float32) for i in range(250)})
    (warning,) = store.warnings
    assert "cannot be used (database or disk is full)" in warning
    assert store.get(b"a" * 32) is None  # given up, without an error
    store.put({b"b" * 32: np.ones(4, np.float32)})
    store.close()
    again = FeatureStore(tiny_backbone(), cache)
    assert again.get(b"a" * 32) is not None  # what was there before is sound
    assert again.get(bytes([0]) * 32) is None  # all of a chunk or nothing
    again.close()


# --- Bad photos.
@pytest.fixture
def mixed(photos: list[Path]) -> list[Path]:
    photos[5].write_bytes(b"")
    photos[20].write_text("Dear reader,")
    photos[21].write_bytes(photos[21].read_bytes()[:-30])
    return photos


@pytest.mark.parametrize("n_workers", [1, 4])
def test_the_first_bad_photo_is_named(mixed: list[Path], n_workers: int) -> None:
    names = [f"bird/{path.name}" for path in mixed]
    with pytest.raises(PhotoError, match=r"^bird/05\.png is empty \(0 bytes\)\.$"):
        extract(mixed, tiny_backbone(), names=names, n_workers=n_workers)


def test_the_first_in_order_is_named_even_where_a_later_one_is_found_first(
    photos: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    photos[5].write_bytes(b"")
    photos[9].write_bytes(b"")
    from dgz.images import features

    real = features.read_bytes

    def slow_for_early(path: Path, *rest: Any) -> bytes:
        if path.name <= "05.png":
            time.sleep(0.05)
        return real(path, *rest)

    monkeypatch.setattr(features, "read_bytes", slow_for_early)
    with pytest.raises(PhotoError, match=r"05\.png is empty"):
        extract(photos, tiny_backbone(), n_workers=4)


def test_work_stops_at_the_first_bad_photo(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    photos[0].write_bytes(b"")
    backbone, counting = tiny_backbone(), Counting(monkeypatch)
    with pytest.raises(PhotoError):
        extract(photos * 25, backbone, n_workers=1, cache=False)
    assert counting.n == 15  # of 1,000: those that are taken together with the bad one


@pytest.mark.parametrize("n_workers", [1, 3])
def test_bad_photos_may_be_left_out(mixed: list[Path], n_workers: int) -> None:
    found: Extracted = extract(mixed, tiny_backbone(), bad="skip", n_workers=n_workers)
    good = [i for i in range(40) if i not in (5, 20, 21)]
    assert found.kept.tolist() == good
    np.testing.assert_allclose(found.features, expected([mixed[i] for i in good]), rtol=1e-6)
    assert len(found.digests) == 37
    assert list(found.refused) == [5, 20, 21]
    for i, sentence in zip((5, 20, 21), ("is empty (0 bytes).", "is no photo", "cannot be decoded"), strict=True):
        assert found.refused[i].startswith(f"{mixed[i]} ")
        assert sentence in found.refused[i]
    again = extract(mixed, tiny_backbone(), bad="skip")
    assert (again.n_cached, again.refused) == (37, found.refused)


def test_photos_with_too_many_pixels_are_bad(photos: list[Path]) -> None:
    save_photo(photos[2], (1, 1, 1), (20, 20))
    found = extract(photos, tiny_backbone(), bad="skip", max_pixels=399)
    assert list(found.refused) == [2]
    assert "has 20 × 20 pixels, more than the 399 allowed." in found.refused[2]


def test_features_that_are_no_numbers_are_refused(photos: list[Path]) -> None:
    logarithm = Backbone(tiny_onnx(output="nan"), PLAIN, "log")
    found = extract(photos[:3], logarithm, bad="skip")
    assert list(found.refused) == [0]  # black: log 0
    assert "00.png has features that are not finite, as log computes them." in found.refused[0]


def test_options_that_make_no_sense_are_refused(photos: list[Path]) -> None:
    for wrong, sentence in (
        ({"bad": "ignore"}, "bad must be one of raise, skip, found 'ignore'."),
        ({"n_workers": 0}, "n_workers must be a whole number"),
        ({"max_pixels": 1.5}, "max_pixels must be a whole number"),
    ):
        with pytest.raises(DGZError) as error:
            extract(photos, tiny_backbone(), **wrong)  # type: ignore[arg-type]
        assert sentence in str(error.value)


def test_an_error_of_the_network_ends_the_work(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    backbone = tiny_backbone()

    def fail(*_: object) -> None:
        raise DGZError("tiny cannot be run: it is tired.")

    monkeypatch.setattr(Backbone, "run", fail)
    with pytest.raises(DGZError, match="it is tired"):
        extract(photos, backbone, bad="skip", n_workers=2)


def test_progress_shows_photos_per_second(photos: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    import io

    from dgz.progress import Progress

    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    monkeypatch.setattr(Progress.__init__, "__defaults__", (None, "", 0.0))  # a line whenever something is done
    extract(photos, tiny_backbone())
    last = log.getvalue().splitlines()[-1]
    assert last.startswith("features: 40 of 40 photos ")
    assert last.endswith(" photos/s")
