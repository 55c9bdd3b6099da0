"""A folder with one subfolder of photos per class, and a table of classes, become a GZSLData and a bundle.

Subfolders are matched to the table's classes by name, photos are found in them, ``features.py`` computes their
features, and ``import_arrays`` splits the rows; ``finetune.py`` may then train the backbone further on the training
rows' photos. The bundle also holds the backbone, so that a model trained on it can take photos later, and a list of
which photo each row came from.
"""

import csv
import io
import os
import re
import unicodedata
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from dgz.data.bundle import write_bundle
from dgz.data.dataset import SPLITS, GZSLData, listing, says_fine_tuned
from dgz.data.tables import ClassTable, import_arrays, read_class_table
from dgz.engines import LOCAL, Engine
from dgz.errors import DataError, DGZError
from dgz.files import write_folder, write_whole
from dgz.images.backbones import Backbone, open_backbone
from dgz.images.features import Bad, Extracted, extract
from dgz.images.networks import trainable
from dgz.images.photos import ENDINGS, MAX_PIXELS

if TYPE_CHECKING:
    from dgz.images.finetune import FineTuning

_BACKBONE, _PHOTOS = "backbone", "photos.csv"


@dataclass(frozen=True, eq=False)
class ImagesReport:
    """Where the rows of a data set came from, and what was left out.

    Attributes
    ----------
    backbone : Backbone
        What computed the features.
    photos : tuple of str
        The photo of every source row (those that ``train_index`` and so on refer to), relative to the folder.
    refused : dict
        Bad photos that were left out, and the sentence that says why.
    ignored : tuple of str
        Files and links that were not looked at.
    n_cached : int
        How many rows were known from an earlier run.
    photos_per_second : float
    warnings : tuple of str
        Sentences about what is odd.
    """

    backbone: Backbone
    photos: tuple[str, ...]
    refused: dict[str, str]
    ignored: tuple[str, ...]
    n_cached: int
    photos_per_second: float
    warnings: tuple[str, ...]

    def facts(self) -> dict[str, Any]:
        """What ``dgz data from-images`` adds to the facts of a data set. Safe for JSON."""
        return {
            "backbone": {
                "name": self.backbone.name,
                "width": self.backbone.d_x,
                "licence": self.backbone.licence,
                "digest": self.backbone.digest[:12],
                "fine-tuned": "yes" if self.backbone.is_fine_tuned else "no",
            },
            "photos": {
                "used": len(self.photos),
                "known from before": self.n_cached,
                "refused": len(self.refused),
                "ignored": len(self.ignored),
                "per second": self.photos_per_second,
            },
        }


def import_images(
    folder: str | Path,
    classes: ClassTable | str | Path,
    *,
    backbone: Backbone | str | Path = "lite0",
    finetune: "bool | FineTuning" = False,
    device: str = "auto",
    bad: Bad = "raise",
    n_workers: int | None = None,
    max_pixels: int = MAX_PIXELS,
    cache: bool | Path = True,
    engine: Engine = LOCAL,
    **options: Any,
) -> tuple[GZSLData, ImagesReport]:
    """Make a data set from a folder with one subfolder of photos per class.

    Parameters
    ----------
    folder : str or Path
        Its subfolders are called like the classes; case, spaces, hyphens, underscores and a number in front
        (``001.Black_footed_Albatross``) may differ.
    classes : ClassTable or path
        A vector for every class. Classes without a subfolder are unseen ones. Where the table says nothing of seen and
        unseen, classes with photos are seen.
    backbone : Backbone, str or Path
        What computes the features, or its name (:func:`~dgz.images.open_backbone`).
    finetune : bool or FineTuning
        Whether to train the backbone further on the photos of training rows, by :func:`~dgz.images.fine_tune` with
        these settings and ``random_state``; the split is the same as without.
    device : {"auto", "cpu", "cuda"}
        Where to do so.
    bad, n_workers, max_pixels, cache, engine
        Of :func:`~dgz.images.extract`.
    **options
        Of :func:`~dgz.data.import_arrays`: ``test_fraction``, ``random_state``, ``name``, ``semantics``.
    """
    # What cannot be trained is found out before the work, not after it.
    tuning = _tuning(finetune, device)
    network = trainable(backbone) if tuning else None
    folder = Path(folder)
    table = classes if isinstance(classes, ClassTable) else read_class_table(classes)
    if not folder.is_dir():
        raise DGZError(f"{folder} is not a folder.")
    found = find_photos(folder)
    class_of = match_classes([sub for sub, photos in found.photos.items() if photos], table.names)
    paths = [path for sub in class_of for path in found.photos[sub]]
    labels = [name for sub, name in class_of.items() for _ in found.photos[sub]]
    table = _with_groups(table, labels, folder)
    made = network.backbone() if network else backbone if isinstance(backbone, Backbone) else open_backbone(backbone)
    shown = [_text(path.relative_to(folder)) for path in paths]

    how: dict[str, Any] = {"n_workers": n_workers, "max_pixels": max_pixels, "cache": cache, "engine": engine}
    got = extract(paths, made, names=shown, bad=bad, **how)
    if not len(got.kept):
        raise DataError(f"None of the {len(paths):,} photos can be used; the first one: {got.refused[0]}")
    refused = {shown[i]: sentence for i, sentence in got.refused.items()}
    paths, labels, shown = ([values[i] for i in got.kept] for values in (paths, labels, shown))
    data = import_arrays(got.features, labels, table, **{"features_name": _called(made), **options})
    if network is not None:
        from dgz.images.finetune import fine_tune

        made = fine_tune(
            network,
            [paths[i] for i in data.train_index],
            data.y_train,
            tuning,
            names=[shown[i] for i in data.train_index],
            max_pixels=max_pixels,
            random_state=options.get("random_state", 0),
            device=device,
        )
        # A photo may not be left out now: rows, and with them the split, are as they were without fine-tuning.
        got = extract(paths, made, names=shown, bad="raise", **how)
        data = import_arrays(got.features, labels, table, **{"features_name": _called(made), **options})
    photos = tuple(shown)
    report = ImagesReport(
        backbone=made,
        photos=photos,
        refused=refused,
        ignored=found.ignored,
        n_cached=got.n_cached,
        photos_per_second=got.photos_per_second,
        warnings=(*found.warnings, *got.warnings, *_copies(data, photos, got)),
    )
    return data, report


def _tuning(finetune: "bool | FineTuning", device: str) -> "FineTuning | None":
    """Settings for fine-tuning, if it is asked for, and can be done on the device."""
    if finetune is False:
        return None
    from dgz.images.finetune import FineTuning
    from dgz.training import pick_device

    pick_device(device)
    if not isinstance(finetune, bool | FineTuning):
        raise DGZError(f"finetune must be true, false or settings (FineTuning), found {finetune!r}.")
    return FineTuning() if finetune is True else finetune


def _called(backbone: Backbone) -> str:
    """What features made by a backbone are called, which must say that it is fine-tuned."""
    is_silent = backbone.is_fine_tuned and not says_fine_tuned(backbone.name)
    return f"{backbone.name}-finetuned" if is_silent else backbone.name


def save_images(data: GZSLData, report: ImagesReport, path: str | Path, *, overwrite: bool = False) -> None:
    """Write a bundle with its backbone and the list of its photos, whole or not at all."""
    with write_folder(path, overwrite=overwrite) as folder:
        write_bundle(data, folder)
        report.backbone.save(folder / _BACKBONE)
        table = io.StringIO()
        writer = csv.writer(table, lineterminator="\n")
        writer.writerow(("row", "path", "class", "split"))
        for row, (label, split) in sorted(_placed(data).items()):
            writer.writerow((row, report.photos[row], data.class_names[label], split))
        with write_whole(folder / _PHOTOS) as file:
            file.write(table.getvalue().encode())


def backbone_of(bundle: str | Path) -> Backbone | None:
    """The backbone that made a bundle's features; None where the bundle was not made of photos."""
    folder = Path(bundle) / _BACKBONE
    return Backbone.load(folder) if folder.is_dir() else None


def _placed(data: GZSLData) -> dict[int, tuple[int, str]]:
    """Class id and split of every source row."""
    return {
        int(row): (int(label), split)
        for split in SPLITS
        for row, label in zip(getattr(data, f"{split}_index"), getattr(data, f"y_{split}"), strict=True)
    }


@dataclass(frozen=True)
class Found:
    """Photos by subfolder, in order, and what else lies in a folder."""

    photos: dict[str, list[Path]]
    ignored: tuple[str, ...]
    warnings: tuple[str, ...]


def find_photos(folder: Path) -> Found:
    """Look for photos in every subfolder, however deep; hidden files do not count.

    A link is followed only if it is of a file and stays within the folder: one that leads out could bring in any file
    of the machine, and a link to a folder can lead round in circles.
    """
    photos: dict[str, list[Path]] = {}
    ignored: list[str] = []
    home = folder.resolve()
    for place, folders, files in os.walk(folder, onerror=_raise, followlinks=False):
        here = Path(place)
        folders[:] = sorted(name for name in folders if not name.startswith("."))
        ignored += [_text((here / name).relative_to(folder)) for name in folders if (here / name).is_symlink()]
        parts = here.relative_to(folder).parts
        if len(parts) == 1:
            photos.setdefault(parts[0], [])
        for name in sorted(name for name in files if not name.startswith(".")):
            path = here / name
            is_photo = path.suffix.lower() in ENDINGS and path.is_file() and path.resolve().is_relative_to(home)
            if parts and is_photo:
                photos[parts[0]].append(path)
            else:
                ignored.append(_text(path.relative_to(folder)))
    in_order = {name: sorted(found) for name, found in sorted(photos.items())}
    return Found(in_order, tuple(sorted(ignored)), _oddities(in_order, sorted(ignored)))


def _raise(error: OSError) -> None:
    raise error  # os.walk would leave out a folder that cannot be read


def _oddities(photos: dict[str, list[Path]], ignored: list[str]) -> tuple[str, ...]:
    warnings = []
    if ignored:
        warnings.append(
            f"{len(ignored):,} file(s) or link(s) were ignored, as they are no photos of a class: {listing(ignored)}."
        )
    if empty := [name for name, found in photos.items() if not found]:
        warnings.append(f"{len(empty)} subfolder(s) hold no photos: {listing(empty)}.")
    return tuple(warnings)


def match_classes(subfolders: Iterable[str], names: Iterable[str]) -> dict[str, str]:
    """Find the class of every subfolder: by its exact name, then by its words, then without a number in front.

    Examples
    --------
    >>> match_classes(["001.Sooty_Albatross", "fish crow"], ["Sooty albatross", "Fish-Crow"])
    {'001.Sooty_Albatross': 'Sooty albatross', 'fish crow': 'Fish-Crow'}
    """
    names = list(names)
    class_of: dict[str, str] = {}
    strangers = []
    for subfolder in subfolders:
        for form in (_exact, _words, _words_without_number):
            fitting = [name for name in names if form(name) == form(subfolder)]
            if len(fitting) > 1:
                raise DataError(f"The subfolder {subfolder} fits more than one class: {listing(fitting)}.")
            if fitting:
                class_of[subfolder] = fitting[0]
                break
        else:
            strangers.append(subfolder)
    if strangers:
        raise DataError(
            f"Every subfolder with photos needs a class in the table, found {len(strangers)} without: "
            f"{listing(strangers)}."
        )
    taken = defaultdict(list)
    for subfolder, name in class_of.items():
        taken[name].append(subfolder)
    for name, sharing in taken.items():
        if len(sharing) > 1:
            raise DataError(f"The class {name} fits more than one subfolder: {listing(sharing)}.")
    return class_of


def _exact(name: str) -> str:
    return unicodedata.normalize("NFC", name)  # some systems store accents apart from their letters


def _words(name: str) -> str:
    return re.sub(r"[\s_-]+", " ", _exact(name)).strip().casefold()


def _words_without_number(name: str) -> str:
    return re.sub(r"^\d+[\s.]+(?=\S)", "", _words(name))


def _with_groups(table: ClassTable, labels: list[str], folder: Path) -> ClassTable:
    """The table with its groups, decided before hours of work, and held against the photos that are there."""
    with_photos = set(labels)
    if not with_photos:
        raise DataError(
            f"{folder} holds no photos in subfolders, one for each class; photos end in {', '.join(ENDINGS)}."
        )
    if table.groups is None:
        groups = tuple("seen" if name in with_photos else "unseen" for name in table.names)
        return ClassTable(table.names, table.vectors, groups)
    lacking = [
        name
        for name, group in zip(table.names, table.groups, strict=True)
        if group == "seen" and name not in with_photos
    ]
    if lacking:
        raise DataError(f"Every seen class needs photos, found {len(lacking)} without: {listing(lacking)}.")
    return table


def _copies(data: GZSLData, photos: tuple[str, ...], got: Extracted) -> list[str]:
    """Sentences about photos that are there more than once where that matters."""
    placed = _placed(data)
    same: dict[bytes, list[int]] = defaultdict(list)
    for row, digest in enumerate(got.digests):
        same[digest].append(row)
    in_classes, in_splits = [], []
    for rows in same.values():
        labels = [placed[row][0] for row in rows]
        are_train = np.array([placed[row][1] == "train" for row in rows])
        if len(set(labels)) > 1:
            in_classes.append(rows)
        if are_train.any() and not are_train.all():
            in_splits.append(rows)
    warnings = []
    for groups, what in (
        (in_classes, "photo(s) lie in more than one class"),
        (in_splits, "photo(s) are among the training rows and among the test rows"),
    ):
        if groups:
            example = " and ".join(photos[row] for row in groups[0][:2])
            warnings.append(f"{len(groups):,} {what}, for example {example}.")
    return warnings


def _text(path: Path) -> str:
    """A path as text; bytes that are none are written by their numbers."""
    return os.fsencode(path.as_posix()).decode("utf-8", "backslashreplace")
