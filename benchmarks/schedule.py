"""How long must the variant without generator train? ``python benchmarks/schedule.py --data DIR [--out FILE]``.

Trains it with many lengths and learning rates on leak-free folds of CUB's training rows (``DIR/CUB``: res50,
sentences), all by ``fit_many``, and prints mean H and T1 over folds and seeds. Test rows are never looked at. The named
schedule ``short`` is the best of these that a CPU of two cores ends within a minute.
"""

import argparse
import itertools
import statistics
import time
from pathlib import Path

from dgz import DGZ, fit_many, gzsl_scores, load_xlsa, validation_folds
from dgz.files import write_json

# Epochs and learning rate of the mapping net, then of the classifier; the first is the released schedule.
GRID = [
    (60, 1e-4, 60, 1e-4),
    *itertools.product((15, 20), (1e-4, 2e-4, 4e-4), (20, 30), (2e-4, 3e-4, 5e-4)),
]


def model(point: tuple[int, float, int, float], seed: int) -> DGZ:
    """A model with the schedule of a point; the rate sinks after the same share of it as in the released one."""
    n_centers, center_rate, n_epochs, rate = point
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


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that CUB is in")
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    arguments = parser.parse_args()
    data = load_xlsa(arguments.data, "CUB", features="res50", semantics="sent")
    began, rows = time.perf_counter(), []
    for number, fold in enumerate(validation_folds(data, 3)):
        points = list(itertools.product(GRID, range(arguments.seeds)))
        models = [model(point, seed) for point, seed in points]
        fit_many(models, fold.x_train, fold.y_train, fold.attributes)
        for (point, seed), fitted in zip(points, models, strict=True):
            scores = gzsl_scores(fitted, fold)
            rows.append({"point": point, "fold": number, "seed": seed, "h": scores.h, "acc_zsl": scores.acc_zsl})
    print(f"{len(rows)} models in {time.perf_counter() - began:.0f} s on {models[0].device_}")
    print("| mapping net: epochs | rate | classifier: epochs | rate | H | T1 |\n" + "|---" * 6 + "|")
    for point in GRID:
        mean = {key: 100 * statistics.mean(r[key] for r in rows if r["point"] == point) for key in ("h", "acc_zsl")}
        print(
            f"| {' | '.join(f'{value:g}' for value in point)} | {mean['h']:.2f} | {mean['acc_zsl']:.2f} |", flush=True
        )
    if arguments.out:
        write_json(arguments.out, rows)


if __name__ == "__main__":
    main()
