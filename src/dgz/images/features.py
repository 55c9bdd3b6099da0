"""Features of many photos: paths and a backbone in, one row per photo out, in the order of the paths.

Every worker takes a chunk of photos all the way: read, hash, look up, decode, prepare, run. So decoding and the network
share the cores without queues between them, and no more than one photo per worker is in memory. Features are kept by
the photo's content in an SQLite file per backbone: a killed run goes on where it was, and a second one only hashes.
On several machines, the one that gave the work hashes, looks up and keeps; the others decode and run.
"""

import hashlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from threading import Lock
from typing import Literal

import numpy as np

from dgz.data.dataset import Floats, Ints
from dgz.engines import LOCAL, Engine, LostWorkError, n_cores
from dgz.errors import DGZError, one_line, require_choice, require_count
from dgz.images.backbones import Backbone, Preparation, cache_folder
from dgz.images.photos import MAX_PIXELS, PhotoError, prepare, quiet_decoding, read_bytes, read_photo
from dgz.progress import Progress

Bad = Literal["raise", "skip"]

# Photos per chunk, which is also how many are lost when a run is killed, for each worker.
_CHUNK = 16
# Of how photos are decoded and prepared: raised when that changes a feature, so that none of before is used.
_DECODING_VERSION = 1
# How long another process may hold the file; a chunk is written in milliseconds.
_WAIT = 60.0


@dataclass(frozen=True, eq=False)
class Extracted:
    """What became of some photos.

    Attributes
    ----------
    features : array of shape (n, d_x)
        One row for each photo that could be used.
    kept : array of shape (n,)
        Which of the paths they belong to.
    digests : tuple of bytes
        SHA-256 of the content of each of these photos.
    refused : dict
        For every other path, by its number, the sentence that says why.
    n_cached : int
        How many rows were known from an earlier run.
    seconds : float
        How long it took.
    warnings : tuple of str
        Sentences about the cache.
    """

    features: Floats
    kept: Ints
    digests: tuple[bytes, ...]
    refused: dict[int, str]
    n_cached: int
    seconds: float
    warnings: tuple[str, ...] = ()

    @property
    def photos_per_second(self) -> float:
        """How many photos were dealt with per second, refused ones included."""
        return (len(self.kept) + len(self.refused)) / max(self.seconds, 1e-9)


def extract(
    paths: Sequence[str | Path],
    backbone: Backbone,
    *,
    names: Sequence[str] | None = None,
    bad: Bad = "raise",
    n_workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
    cache: bool | Path = True,
    engine: Engine = LOCAL,
) -> Extracted:
    """Compute the features of photos, or look them up.

    Parameters
    ----------
    paths : sequence of str or Path
    backbone : Backbone
    names : sequence of str, optional
        What sentences call the photos; the paths by default.
    bad : {"raise", "skip"}
        What to do about files that are no photos: refuse the work with the sentence of the first one, or leave them out
        and list them all.
    n_workers : int, optional
        Threads; as many as there are cores by default. The features do not depend on it. On another engine, the number
        of its workers, for which it is asked in :func:`~dgz.engines.open_engine`.
    max_pixels : int
        Photos with more are bad.
    cache : bool or Path
        Whether to use the features of earlier runs and keep those of this one, or the folder to do so in.
    engine : Engine
        Where photos are decoded and run, see :func:`~dgz.engines.open_engine`: by threads of this process, or on
        machines that all have the photos under the same paths.

    Raises
    ------
    PhotoError
        With ``bad="raise"``: the sentence of the first bad photo in the order of ``paths``.
    DGZError
        Before any work, when a machine of the engine lacks photos.
    """
    require_choice(bad, Bad, "bad")
    require_count(max_pixels=max_pixels)
    n_workers = n_cores() if n_workers is None else n_workers
    require_count(n_workers=n_workers)
    files = [Path(path) for path in paths]
    called = list(map(str, files)) if names is None else list(names)
    store = FeatureStore(backbone, cache if isinstance(cache, Path) else cache_folder() / "features") if cache else None
    work = _Work(files, called, backbone, store, max_pixels)
    n_each = max(1, min(_CHUNK, len(files) // (4 * n_workers)))
    chunks = [range(start, min(start + n_each, len(files))) for start in range(0, len(files), n_each)]
    start = time.monotonic()
    try:
        with quiet_decoding():
            if engine.is_local:
                work.do_all(chunks, n_workers, stop_early=bad == "raise")
            else:
                work.do_all_on(engine, chunks, stop_early=bad == "raise")
    finally:
        if store is not None:
            store.close()
    if work.refused and bad == "raise":
        raise PhotoError(work.refused[min(work.refused)])
    kept = np.array([i for i in range(len(files)) if i not in work.refused], dtype=np.int64)
    return Extracted(
        features=work.features if len(kept) == len(files) else work.features[kept],
        kept=kept,
        digests=tuple(work.digests[i] for i in kept),
        refused=dict(sorted(work.refused.items())),
        n_cached=work.n_cached,
        seconds=time.monotonic() - start,
        warnings=tuple(store.warnings) if store is not None else (),
    )


def features_of(content: bytes, backbone: Backbone, *, name: str, max_pixels: int = MAX_PIXELS) -> Floats:
    """The features (d_x,) of one photo, given as what its file holds; ``name`` is for sentences about it."""
    preparation = backbone.preparation
    photo = read_photo(content, name=name, max_pixels=max_pixels, shorter_side=preparation.shorter_side)
    row: Floats = backbone.run(prepare(photo, preparation)[None])[0]
    if not np.isfinite(row).all():
        raise PhotoError(f"{name} has features that are not finite, as {backbone.name} computes them.")
    return row


class _Work:
    """What all workers read, and where each puts what it finds: rows of its own, so that no two write the same."""

    def __init__(
        self, files: list[Path], names: list[str], backbone: Backbone, store: "FeatureStore | None", max_pixels: int
    ) -> None:
        self.files, self.names, self.backbone, self.store, self.max_pixels = files, names, backbone, store, max_pixels
        self.features = np.empty((len(files), backbone.d_x), dtype=np.float32)
        self.digests = [b""] * len(files)
        self.refused: dict[int, str] = {}
        self.n_cached = 0
        self.start = time.monotonic()

    def do_all(self, chunks: list[range], n_workers: int, *, stop_early: bool) -> None:
        """Have all chunks done by threads; with ``stop_early``, begin none after one with a bad photo."""
        with ThreadPoolExecutor(n_workers) as pool, Progress("features", len(self.files), "photos") as progress:
            futures = {pool.submit(self.do, chunk, stop_early=stop_early): chunk for chunk in chunks}
            try:
                for future in as_completed(futures):
                    self.n_cached += future.result()
                    self._advance(progress, len(futures[future]))
                    if self.refused and stop_early:
                        break
            finally:  # on Ctrl-C too, which would otherwise wait for every photo
                pool.shutdown(cancel_futures=True)

    def _advance(self, progress: Progress, n: int) -> None:
        rate = (progress.done + n) / max(time.monotonic() - self.start, 1e-9)
        progress.advance(n, note=f"{rate:,.0f} photos/s")

    def do_all_on(self, engine: Engine, chunks: list[range], *, stop_early: bool) -> None:
        """Have all chunks done by the workers of an engine, but for what is known."""
        away = _AwayWork(self.backbone, self.max_pixels)
        engine.check_nodes(require_photos, [(str(path.absolute()), _size(path)) for path in self.files])
        sent: list[list[int]] = []

        def unknown() -> Iterator[list[tuple[str, str, bytes]]]:
            for chunk in chunks:
                if self.refused and stop_early:
                    return
                left = self._look_up(chunk)
                self._advance(progress, len(chunk) - len(left))
                if left:
                    sent.append(left)
                    yield [(str(self.files[i].absolute()), self.names[i], self.digests[i]) for i in left]

        with Progress("features", len(self.files), "photos") as progress:
            # All that was sent is waited for, also after a bad photo: what came before it may hold an earlier one.
            for index, found in engine.run(away.do, unknown()):
                if isinstance(found, LostWorkError):
                    raise found
                new: dict[bytes, Floats] = {}
                for i, row in zip(sent[index], found, strict=True):
                    if isinstance(row, str):
                        self.refused[i] = row
                    else:
                        self.features[i] = new[self.digests[i]] = row
                if self.store is not None:
                    self.store.put(new)
                self._advance(progress, len(found))

    def _look_up(self, chunk: range) -> list[int]:
        """Read and hash a chunk of photos; give those whose features are not known."""
        left = []
        for i in chunk:
            try:
                content = read_bytes(self.files[i], self.names[i], self.max_pixels)
            except PhotoError as error:
                self.refused[i] = str(error)
                continue
            self.digests[i] = hashlib.sha256(content).digest()
            row = self.store.get(self.digests[i]) if self.store is not None else None
            if row is None:
                left.append(i)
            else:
                self.features[i] = row
                self.n_cached += 1
        return left

    def do(self, chunk: range, *, stop_early: bool) -> int:
        """Take a chunk of photos all the way; give how many were known."""
        # What comes before a bad photo is done all the same: it may hold an earlier one, whose sentence is wanted.
        if stop_early and min(list(self.refused), default=chunk.stop) < chunk.start:
            return 0
        new: dict[bytes, Floats] = {}
        n_known = 0
        for i in chunk:
            try:
                content = read_bytes(self.files[i], self.names[i], self.max_pixels)
                digest = hashlib.sha256(content).digest()
                row = self.store.get(digest) if self.store is not None else None
                if row is None:
                    new[digest] = row = features_of(
                        content, self.backbone, name=self.names[i], max_pixels=self.max_pixels
                    )
                else:
                    n_known += 1
            except PhotoError as error:
                self.refused[i] = str(error)
                continue
            self.digests[i], self.features[i] = digest, row
        if self.store is not None:
            self.store.put(new)
        return n_known


class _AwayWork:
    """What workers of an engine do with photos; each has its own, and opens the backbone once."""

    def __init__(self, backbone: Backbone, max_pixels: int) -> None:
        # A backbone that is ready to run cannot travel, what it is made of can.
        self.parts: tuple[bytes, Preparation, str] = (backbone.onnx, backbone.preparation, backbone.name)
        self.max_pixels = max_pixels

    @cached_property
    def backbone(self) -> Backbone:
        """The backbone, ready to run in this process."""
        return Backbone(*self.parts)

    def do(self, photos: Sequence[tuple[str, str, bytes]]) -> list[Floats | str]:
        """Features of photos, given by path, name and digest; the sentence about it where one is bad."""
        found: list[Floats | str] = []
        with quiet_decoding():
            for path, name, digest in photos:
                content = read_bytes(Path(path), name, self.max_pixels)  # the giver could read it: it is not bad
                if hashlib.sha256(content).digest() != digest:
                    raise DGZError(f"{path} is another photo there than on the machine that gave the work.")
                try:
                    found.append(features_of(content, self.backbone, name=name, max_pixels=self.max_pixels))
                except PhotoError as error:
                    found.append(str(error))
        return found


def require_photos(wanted: Sequence[tuple[str, int]]) -> None:
    """Raise unless files are here, with so many bytes each; -1 is of one that could not be looked at."""
    missing = [path for path, size in wanted if size >= 0 and _size(Path(path)) != size]
    if missing:
        raise DGZError(
            f"{len(missing):,} of {len(wanted):,} photos are not there or not the same, such as {missing[0]}."
        )


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return -1


class FeatureStore:
    """Features by the content of photos, in an SQLite file that several threads and processes may use at once.

    It only saves time: where it fails, features are computed, and ``warnings`` says what was wrong with it. A broken
    file is set aside and begun anew; one that cannot be written (a full disk, a missing right) is not used any more.
    """

    def __init__(self, backbone: Backbone, folder: Path) -> None:
        self.path = folder / f"{backbone.digest}-{_DECODING_VERSION}.sqlite"
        self.d_x = backbone.d_x
        self.warnings: list[str] = []
        self._lock = Lock()
        self._base: sqlite3.Connection | None = None
        try:
            self._open()
        except (sqlite3.Error, OSError) as error:
            self._recover(error)

    def get(self, digest: bytes) -> Floats | None:
        """The features of the photo with this content, if they are known."""
        with self._lock:
            if self._base is None:
                return None
            try:
                found = self._base.execute("SELECT features FROM photos WHERE digest = ?", (digest,)).fetchone()
            except sqlite3.Error as error:
                self._recover(error)
                return None
        if found is None or not isinstance(found[0], bytes) or len(found[0]) != 4 * self.d_x:
            return None
        row = np.frombuffer(found[0], dtype="<f4").astype(np.float32)
        return row if np.isfinite(row).all() else None

    def put(self, rows: dict[bytes, Floats]) -> None:
        """Keep features, all of them or, where the process is killed meanwhile, none."""
        values = [(digest, row.astype("<f4").tobytes()) for digest, row in rows.items()]
        with self._lock:
            if self._base is None or not values:
                return
            try:
                self._base.execute("BEGIN IMMEDIATE")
                self._base.executemany("INSERT OR REPLACE INTO photos VALUES (?, ?)", values)
                self._base.execute("COMMIT")
            except sqlite3.Error as error:
                self._recover(error)

    def close(self) -> None:
        """Let go of the file."""
        with self._lock:
            self._close()

    def _open(self) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._base = sqlite3.connect(self.path, timeout=_WAIT, isolation_level=None, check_same_thread=False)
        self._base.execute("CREATE TABLE IF NOT EXISTS photos (digest BLOB PRIMARY KEY, features BLOB NOT NULL)")
        self._base.execute("SELECT digest, features FROM photos LIMIT 1").fetchone()

    def _close(self) -> None:
        if self._base is not None:
            self._base.close()
            self._base = None

    def _recover(self, error: Exception) -> None:
        """Set a broken file aside and begin anew; give up on one that cannot be written."""
        self._close()
        # SQLite's word for trouble that lies outside of the file, but for a table that is not ours.
        is_outside = isinstance(error, OSError | sqlite3.OperationalError) and not str(error).startswith("no such")
        if not is_outside:
            aside = self.path.with_suffix(".broken")
            try:
                self.path.replace(aside)
                # What a killed process left to be undone would be undone in the new file.
                Path(f"{self.path}-journal").unlink(missing_ok=True)
                self._open()
            except (sqlite3.Error, OSError) as another:
                self._close()
                error = another
            else:
                self.warnings.append(
                    f"The file of known features {self.path} was broken ({one_line(error)}): it was set aside as "
                    f"{aside.name}, and features are computed again."
                )
                return
        self.warnings.append(f"Features are not kept: {self.path} cannot be used ({one_line(error)}).")
