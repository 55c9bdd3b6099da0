"""How long must the variant without generator train? ``python benchmarks/schedule.py --data DIR [--out FILE]``.

Trains it with many lengths and learning rates on ten leak-free folds of CUB's training rows (``DIR/CUB``: res50,
sentences), all by ``fit_many``, and prints mean H and T1 over folds and seeds. Test rows are never looked at.
docs/protocol.md says how the named schedule ``short`` was chosen from the outcome.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path
from typing import Any

from dgz import DGZ, fit_many, gzsl_scores, load_xlsa, validation_folds
from dgz.files import write_json

# Epochs of the mapping net and of the classifier; the first is the released schedule, the others take up to a minute on
# two cores. Their learning rates are higher by the same factor as they are shorter, times each of TIMES.
RELEASED, RATE = (60, 60), 1e-4
LENGTHS = ((15, 40), (15, 55), (20, 35), (20, 45), (25, 35))
TIMES = (0.67, 1.0, 1.5)
GRID = [
    (*RELEASED, RATE, RATE),
    *(
        (n_centers, n_epochs, RATE * RELEASED[0] / n_centers * a, RATE * RELEASED[1] / n_epochs * b)
        for (n_centers, n_epochs), a, b in itertools.product(LENGTHS, TIMES, TIMES)
    ),
]


def model(point: tuple[int, int, float, float], seed: int) -> DGZ:
    """A model with the schedule of a point; the rate sinks after the same share of it as in the released one."""
    n_centers, n_epochs, center_rate, rate = point
    return DGZ.preset(
        "CUB",
        source="paper",
        without_generator=True,
        generator__n_epochs=n_centers,
        generator__learning_rate=center_rate,
        n_epochs=n_epochs,
        learning_rate=rate,
        lr_step=round(n_epochs * 25 / 60),
        random_state=seed,
    )


def by_point(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """One entry per point, with its scores over folds and then seeds."""
    return [
        dict(zip(("mapping_epochs", "classifier_epochs", "mapping_rate", "classifier_rate"), point, strict=True))
        | {key: " ".join(f"{row[key]:.4f}" for row in rows if row["point"] == point) for key in ("h", "acc_zsl")}
        for point in GRID
    ]


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that CUB is in")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    arguments = parser.parse_args()
    data = load_xlsa(arguments.data, "CUB", features="res50", semantics="sent")
    began, rows = time.perf_counter(), []
    for number, fold in enumerate(validation_folds(data, 10)):
        points = list(itertools.product(GRID, range(arguments.seeds)))
        models = [model(point, seed) for point, seed in points]
        fit_many(models, fold.x_train, fold.y_train, fold.attributes)
        for (point, seed), fitted in zip(points, models, strict=True):
            scores = gzsl_scores(fitted, fold)
            rows.append({"point": point, "fold": number, "seed": seed, "h": scores.h, "acc_zsl": scores.acc_zsl})
        if arguments.out:
            write_json(arguments.out, by_point(rows))
    print(f"{len(rows)} models in {time.perf_counter() - began:.0f} s on {models[0].device_}")
    print("| epochs of the mapping net | of the classifier | rate | rate | H | T1 |\n" + "|---" * 6 + "|")
    for point in GRID:
        mean = {key: 100 * statistics.mean(r[key] for r in rows if r["point"] == point) for key in ("h", "acc_zsl")}
        print(
            f"| {' | '.join(f'{value:g}' for value in point)} | {mean['h']:.2f} | {mean['acc_zsl']:.2f} |", flush=True
        )


if __name__ == "__main__":
    main()
