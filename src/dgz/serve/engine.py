"""A model in use: rows, photos and new classes in; scores out, from many threads at once.

What answers is a snapshot that never changes. A class is added to a copy, which then takes the snapshot's place: who is
being answered meanwhile is answered by the old one, whole. Changes are kept in a file beside the model, and made again
when it is next opened.
"""

import asyncio
import copy
import threading
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from dgz.composed import ComposedMethod
from dgz.data.dataset import Floats, first_bad_row
from dgz.errors import DataError, DGZError
from dgz.estimator import GZSLClassifier
from dgz.files import read_document, write_json
from dgz.images import Backbone, backbone_of, features_of
from dgz.nets import FreeWeights
from dgz.peers import load_model
from dgz.records import encoder_of, is_finished
from dgz.words import TextEncoder, encode_classes, open_encoder

Kind = Literal["seen", "unseen", "added"]
Scores = npt.NDArray[np.floating[Any]]
_VERSION = 1
JOURNAL = "served_classes.json"
_LONGEST_NAME, _LONGEST_DESCRIPTION = 200, 20_000  # characters


class NoSuchClassError(DGZError):
    """A class that the model does not know."""


class ConflictError(DGZError):
    """Something that this model, as it is now, cannot do."""


@dataclass(frozen=True, kw_only=True)
class Limits:
    """What one request may ask for.

    Parameters
    ----------
    body : int
        Bytes of a request.
    rows, photos : int
        Feature vectors, and photos, of one request.
    pixels : int
        Pixels of a photo.
    seconds : float
        How long a request may take.
    waiting : int
        Requests for predictions that may be under way at once; more are sent away.
    classes : int
        Classes that a model may have.
    """

    body: int = 64 << 20
    rows: int = 4096
    photos: int = 64
    pixels: int = 50_000_000
    seconds: float = 30.0
    waiting: int = 2000
    classes: int = 10_000


@dataclass(frozen=True)
class Snapshot:
    """A model as it was at one moment, which nothing changes any more.

    Attributes
    ----------
    model : GZSLClassifier
    names : tuple of str
        Classes, in the order of the scores' columns.
    kinds : tuple of {"seen", "unseen", "added"}
        Whether a class had training rows, only a vector, or was added after training.
    revision : int
        How often the classes have changed.
    """

    model: GZSLClassifier
    names: tuple[str, ...]
    kinds: tuple[Kind, ...]
    revision: int


class Engine:
    """Scores of a model, and changes to its classes.

    Parameters
    ----------
    model : GZSLClassifier
        Fitted, on classes with names.
    backbone : Backbone, optional
        What makes features of photos; without it, only feature vectors are understood.
    encoder : TextEncoder, optional
        What makes class vectors of descriptions; without it, only vectors are.
    journal : str or Path, optional
        File in which changes are kept. Without it they end with the engine.
    limits : Limits, optional
    """

    def __init__(
        self,
        model: GZSLClassifier,
        *,
        backbone: Backbone | None = None,
        encoder: TextEncoder | None = None,
        journal: str | Path | None = None,
        limits: Limits | None = None,
    ) -> None:
        if backbone is not None and backbone.d_x != model.n_features_in_:
            raise DGZError(
                f"{backbone.name} makes {backbone.d_x} features of a photo, but the model reads {model.n_features_in_}."
            )
        if encoder is not None and encoder.d != model.attributes_.shape[1]:
            raise DGZError(
                f"{encoder.name} makes vectors of {encoder.d} numbers, but the model's classes have "
                f"{model.attributes_.shape[1]}."
            )
        self.backbone, self.encoder, self.limits = backbone, encoder, limits or Limits()
        self.journal = None if journal is None else Path(journal)
        self._changing = threading.Lock()
        self._added: dict[str, list[float]] = {}
        self._removed: set[str] = set()
        self.snapshot = self._snapshot(model, 0)
        self._remember()

    # --- Answers.
    def scores(self, rows: Floats) -> tuple[Snapshot, Scores]:
        """Scores (n, C) of feature rows (n, d_x), and the snapshot that gave them."""
        snapshot = self.snapshot
        return snapshot, snapshot.model.decision_function(rows)

    def check_rows(self, rows: Floats) -> Floats:
        """Rows that the model can read, or a sentence."""
        d_x = self.snapshot.model.n_features_in_
        if rows.ndim != 2 or rows.shape[1] != d_x:
            raise DGZError(f"Feature vectors must have {d_x} numbers each, found an array of shape {rows.shape}.")
        if not 1 <= len(rows) <= self.limits.rows:
            raise DGZError(f"A request may have 1 to {self.limits.rows} feature vectors, found {len(rows)}.")
        if (bad := first_bad_row(rows)) is not None:
            raise DGZError(f"Feature vectors must be finite, found NaN or infinity in vector {bad}.")
        return rows

    def features(self, photo: bytes, name: str) -> Floats:
        """The features (d_x,) of a photo's file."""
        if self.backbone is None:
            raise ConflictError("This model takes no photos: what made the features it learned from is not known.")
        return features_of(photo, self.backbone, name=name, max_pixels=self.limits.pixels)

    # --- Changes.
    def add_class(self, name: str, *, vector: Floats | None = None, description: str | None = None) -> Snapshot:
        """Let the model know a class, from its vector or from a description in words.

        Raises
        ------
        ConflictError
            When there is such a class, or the model cannot take one on, or not from words.
        """
        name = _checked_name(name)
        if (vector is None) == (description is None):
            raise DGZError("A new class needs either a vector or a description.")
        if description is not None:
            vector = self._vector_of(name, description)
        with self._changing:
            now = self.snapshot
            if name in now.names:
                raise ConflictError(f"There is a class called {name!r} already.")
            if len(now.names) >= self.limits.classes:
                raise ConflictError(f"The model has {len(now.names)} classes, and no more are allowed.")
            values = np.asarray(vector, dtype=np.float32)
            changed = self._with(now.model, {name: values})
            self._commit(changed, {**self._added, name: values.tolist()}, self._removed)
            return self.snapshot

    def remove_class(self, name: str) -> Snapshot:
        """Let the model forget a class, of whatever kind."""
        with self._changing:
            now = self.snapshot
            if name not in now.names:
                raise NoSuchClassError(f"There is no class called {name!r}.")
            changed = self._without(now.model, [name])
            left = {key: vector for key, vector in self._added.items() if key != name}
            self._commit(changed, left, self._removed if name in self._added else self._removed | {name})
            return self.snapshot

    def _vector_of(self, name: str, description: str) -> Floats:
        if self.encoder is None:
            d_a = self.snapshot.model.attributes_.shape[1]
            raise ConflictError(f"Classes of this model are known by vectors of {d_a} numbers, not by words: give one.")
        if not description.strip():
            raise DGZError("A description must have words in it.")
        if len(description) > _LONGEST_DESCRIPTION:
            raise DGZError(f"A description may have {_LONGEST_DESCRIPTION:,} characters, found {len(description):,}.")
        return np.asarray(encode_classes({name: description}, self.encoder).table.vectors[0])

    def _with(self, model: GZSLClassifier, vectors: dict[str, Floats]) -> GZSLClassifier:
        changed = _copied(model)
        return changed.add_classes(np.array(list(vectors)), np.stack(list(vectors.values())))

    def _without(self, model: GZSLClassifier, names: list[str]) -> GZSLClassifier:
        return _copied(model).remove_classes(np.array(names))

    def _commit(self, model: GZSLClassifier, added: dict[str, list[float]], removed: set[str]) -> None:
        """Keep a change, and only then answer by it."""
        if self.journal is not None:
            kept = {"format": "dgz-classes", "version": _VERSION, "added": added, "removed": sorted(removed)}
            write_json(self.journal, kept, compact=True)
        self._added, self._removed = added, removed
        self.snapshot = self._snapshot(model, self.snapshot.revision + 1)

    def _remember(self) -> None:
        """Make the changes again that the journal has."""
        if self.journal is None or not self.journal.exists():
            return
        kept = read_document(self.journal, "classes", _VERSION)
        try:
            removed = {str(name) for name in kept["removed"]}
            added = {str(name): [float(value) for value in vector] for name, vector in kept["added"].items()}
            model = self.snapshot.model
            if gone := sorted(removed & set(self.snapshot.names)):
                model = self._without(model, gone)
            if added:
                model = self._with(model, {name: np.array(vector, np.float32) for name, vector in added.items()})
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            reason = error if isinstance(error, DGZError) else "it is broken."
            raise DataError(f"{self.journal}, where added classes are kept, cannot be used: {reason}") from error
        self._added, self._removed = added, removed
        self.snapshot = self._snapshot(model, 1)

    def _snapshot(self, model: GZSLClassifier, revision: int) -> Snapshot:
        names = tuple(map(str, model.classes_.tolist()))
        kinds: list[Kind] = [
            "added" if name in self._added else "seen" if seen else "unseen"
            for name, seen in zip(names, model.seen_, strict=True)
        ]
        return Snapshot(model, names, tuple(kinds), revision)


def open_engine(folder: str | Path, *, encoder: str | None = None, limits: Limits | None = None) -> Engine:
    """The engine of a run's folder, or of a model's.

    Parameters
    ----------
    folder : str or Path
        Beside the model may lie ``backbone/``, which makes features of photos, and ``record.json``, which says what
        made its class vectors; changes of classes are kept there, in ``served_classes.json``.
    encoder : str, optional
        What makes class vectors of descriptions, see :func:`dgz.words.open_encoder`; by default what the record says.
    limits : Limits, optional
    """
    place = Path(folder)
    inner = place / "model" if (place / "model").is_dir() else place
    if place == inner and not (place / "backbone").is_dir() and is_finished(place.parent):
        place = place.parent  # what lies beside the model
    encoder = encoder or encoder_of(place)
    return Engine(
        load_model(inner),
        backbone=backbone_of(place),
        encoder=None if encoder is None else open_encoder(encoder),
        journal=place / JOURNAL,
        limits=limits,
    )


def _copied(model: GZSLClassifier) -> ComposedMethod:
    """A model whose classes can be changed without the other one noticing."""
    if not isinstance(model, ComposedMethod):
        raise ConflictError(f"A {type(model).__name__} takes on and gives up no classes: train it anew with them.")
    changed = copy.copy(model)  # arrays of a model are replaced, never changed
    if isinstance(model.classifier_.net_, FreeWeights):  # whose rows are taken out in place
        changed.classifier_ = copy.deepcopy(model.classifier_)
    return changed


def _checked_name(name: str) -> str:
    name = name.strip()
    if not name or len(name) > _LONGEST_NAME or any(ord(character) < 32 for character in name):
        raise DGZError(f"A class's name must have 1 to {_LONGEST_NAME} characters in one line.")
    return name


class Batcher:
    """Requests that come while others are being answered are answered together.

    Nobody waits for a batch to fill: the first request is computed at once, and those that come meanwhile are the next
    batch.

    Parameters
    ----------
    compute : callable
        Answers rows (n, d); called in another thread. It gives what all rows have in common, and an array with a row
        for each.
    rows : int
        The most of a batch.
    """

    def __init__(self, compute: Callable[[Floats], tuple[Any, Scores]], rows: int) -> None:
        self.compute, self.rows = compute, rows
        self._waiting: list[tuple[Floats, asyncio.Future[tuple[Any, Scores]]]] = []
        self._task: asyncio.Task[None] | None = None

    async def submit(self, rows: Floats) -> tuple[Any, Scores]:
        """What ``compute`` gives for these rows, alone or together with others'."""
        answer: asyncio.Future[tuple[Any, Scores]] = asyncio.get_running_loop().create_future()
        self._waiting.append((rows, answer))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._answer_all())
        return await answer

    async def _answer_all(self) -> None:
        while self._waiting:
            batch = self._next()
            try:
                common, found = await asyncio.to_thread(self.compute, np.concatenate([rows for rows, _ in batch]))
            except Exception as error:  # whoever asked is told
                for _, answer in batch:
                    if not answer.done():
                        answer.set_exception(error)
                continue
            start = 0
            for rows, answer in batch:
                if not answer.done():  # whoever asked may have given up
                    answer.set_result((common, found[start : start + len(rows)]))
                start += len(rows)

    def _next(self) -> list[tuple[Floats, asyncio.Future[tuple[Any, Scores]]]]:
        n_rows, end = 0, 0
        for rows, _ in self._waiting:
            if end and n_rows + len(rows) > self.rows:
                break
            n_rows, end = n_rows + len(rows), end + 1
        batch, self._waiting = self._waiting[:end], self._waiting[end:]
        return batch
