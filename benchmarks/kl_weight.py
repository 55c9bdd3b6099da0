"""Does the plain VAE of Table A.2 fail by its KL weight? ``python benchmarks/kl_weight.py --data DIR [--out FILE]``.

Trains both rows of Table A.2 with several weights on three leak-free folds of CUB's training rows (``DIR/CUB``: res50,
sentences) and prints means over the folds. Test rows are never looked at. docs/results.md says what came out.
"""

import argparse
import statistics
from pathlib import Path
from typing import Any

from dgz import DGZ, fit_many, gzsl_scores, load_xlsa, validation_folds
from dgz.files import write_json
from dgz.paper import load_spec
from dgz.settings import configure

WEIGHTS = (1.0, 0.1, 0.01, 0.001)
SCORES = ("acc_unseen", "acc_seen", "h", "acc_zsl")


def model(settings: dict[str, Any], kl_weight: float) -> DGZ:
    """A row of the table with another weight."""
    made = DGZ.preset("CUB", source="paper")
    configure(made, [f"{key}={value}" for key, value in settings.items()])
    return made.set_params(generator__kl_weight=kl_weight, random_state=0)


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that CUB is in")
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    arguments = parser.parse_args()
    data = load_xlsa(arguments.data, "CUB", features="res50", semantics="sent")
    points = [(row.name, weight) for row in load_spec("tableA2").rows for weight in WEIGHTS]
    settings = {row.name: row.set for row in load_spec("tableA2").rows}
    found: dict[tuple[str, float], list[dict[str, float]]] = {point: [] for point in points}
    for fold in validation_folds(data, 3):
        models = [model(settings[name], weight) for name, weight in points]
        fit_many(models, fold.x_train, fold.y_train, fold.attributes)
        for point, fitted in zip(points, models, strict=True):
            scores = gzsl_scores(fitted, fold)
            found[point].append({key: round(getattr(scores, key), 4) for key in SCORES})
    if arguments.out:
        write_json(
            arguments.out, [{"row": row, "kl_weight": weight, "folds": found[row, weight]} for row, weight in points]
        )
    print("| row | KL weight | U | S | H | T1 |\n" + "|---" * 6 + "|")
    for (row, weight), folds in found.items():
        means = [f"{100 * statistics.mean(fold[key] for fold in folds):.1f}" for key in SCORES]
        print(f"| {row} | {weight:g} | {' | '.join(means)} |")


if __name__ == "__main__":
    main()
