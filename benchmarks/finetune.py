"""What fine-tuning does to DGZ's scores: ``python benchmarks/finetune.py PHOTOS --classes FILE [--seeds N ...]``.

For every seed, which draws the split, the photos become two bundles, with features of the backbone as it is and after
fine-tuning on the training photos; DGZ without generator is trained on each. Prints U, S, H, T1 in percent and seconds,
mean ± standard deviation over seeds, by the rule `last`, with the balance of seen and unseen classes found on folds of
the training rows; nothing is chosen by test scores. With ``--folds N`` neither test photos nor unseen classes enter:
the training photos of a seed's split are the data, and in each of N problems another part of their classes plays
unseen. Settings of fine-tuning are to be chosen by that.
"""

import argparse
import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np

from dgz import DGZ, GZSLData, gzsl_scores, load_bundle
from dgz.data import ClassTable
from dgz.files import write_json
from dgz.images import FineTuning, import_images, open_backbone, save_images
from dgz.records import library_versions
from dgz.words import read_classes

SCORES = ("acc_unseen", "acc_seen", "h", "acc_zsl")
SECONDS = ("seconds_bundle", "seconds_fit")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("photos", type=Path, help="folder with a subfolder of photos per class")
    parser.add_argument("--classes", type=Path, required=True, help="CSV with a row per class")
    parser.add_argument("--backbone", default="lite0")
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--finetune-epochs", type=int, default=FineTuning().n_epochs)
    parser.add_argument("--learning-rate", type=float, default=FineTuning().learning_rate)
    parser.add_argument("--folds", type=int, help="classes play unseen in so many problems of training photos alone")
    parser.add_argument("--schedule", default="released", help="of DGZ: released, or short, for machines without a GPU")
    parser.add_argument("--device", default="auto", help="auto, cpu or cuda")
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    arguments = parser.parse_args()
    tuning = FineTuning(n_epochs=arguments.finetune_epochs, learning_rate=arguments.learning_rate)
    table = read_classes(arguments.classes).table
    found: list[dict[str, Any]] = []
    with TemporaryDirectory() as place:
        os.environ["DGZ_CACHE"] = place  # what earlier runs kept would cost no seconds
        open_backbone(arguments.backbone)
        for seed in arguments.seeds:
            for photos, classes in problems(arguments, table, seed, Path(place)):
                for how in (False, tuning):
                    found.append(measure(arguments, photos, classes, seed, how))
                    if arguments.out:
                        write_json(arguments.out, found)
    print("| features | U | S | H | T1 | seconds for the bundle | seconds to train | runs |\n" + "|---" * 8 + "|")
    for features in dict.fromkeys(row["features"] for row in found):
        rows = [row for row in found if row["features"] == features]
        cells = [mean_std([100 * row[key] for row in rows]) for key in SCORES]
        cells += [mean_std([row[key] for row in rows]) for key in SECONDS]
        print(f"| {features} | {' | '.join(cells)} | {len(rows)} |")


def problems(arguments: Any, table: ClassTable, seed: int, place: Path) -> Iterator[tuple[Path, ClassTable]]:
    """The photos and classes as they are, or parts of the training photos, in which seen classes play unseen."""
    if not arguments.folds:
        yield arguments.photos, table
        return
    data, report = import_images(arguments.photos, table, backbone=arguments.backbone, random_state=seed)
    photos = place / f"training photos of seed {seed}"
    for row in data.train_index:
        copy = photos / report.photos[row]
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(arguments.photos / report.photos[row], copy)
    seen = np.random.default_rng(seed).permutation(data.seen)
    for acting in np.array_split(seen, arguments.folds):
        groups = tuple("unseen" if c in acting else "seen" for c in seen)
        yield photos, ClassTable(tuple(data.class_names[c] for c in seen), data.attributes[seen], groups)


def measure(arguments: Any, photos: Path, table: ClassTable, seed: int, tuning: bool | FineTuning) -> dict[str, Any]:
    """Make a bundle and train on it."""
    start = time.perf_counter()
    data, report = import_images(
        photos,
        table,
        backbone=arguments.backbone,
        finetune=tuning,
        device=arguments.device,
        cache=False,
        random_state=seed,
    )
    with TemporaryDirectory() as place:  # what is read back is what a user has
        save_images(data, report, Path(place) / "bundle")
        data = load_bundle(Path(place) / "bundle")
    seconds = {"seconds_bundle": time.perf_counter() - start}
    start = time.perf_counter()
    settings = {"seen_penalty": "auto", "random_state": seed, "device": arguments.device}
    model = DGZ.without_generator(schedule=arguments.schedule, **settings)
    model.fit(data.x_train, data.y_train, data.attributes)
    seconds["seconds_fit"] = time.perf_counter() - start
    facts = {"seed": seed, "features": data.features, "source": report.backbone.source}
    return facts | seconds | scores_of(model, data)


def scores_of(model: DGZ, data: GZSLData) -> dict[str, Any]:
    """A fitted model's settings and test scores."""
    scores = gzsl_scores(model, data)
    about = {"settings": model.settings(), "device": model.device_, "versions": library_versions()}
    return about | {name: getattr(scores, name) for name in SCORES}


def mean_std(values: list[float]) -> str:
    """Mean and standard deviation as text."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
