"""How good settings are that training rows alone choose: ``python benchmarks/tuning.py SOURCE ... [--seeds N]``.

For each data set, DGZ without generator is trained with λ1 from a grid, and scored on the test rows. The best λ1 of the
grid by mean test H is the oracle. Beside it: the λ1 of the same grid that leak-free folds choose, with and without a
penalty on seen classes from the same folds; ``lambda_1="auto"``, with and without ``seen_penalty="auto"``; and the
method's default. Prints H in percent, mean ± standard deviation over seeds, by the rule `last`, and what ``auto`` costs
in single trainings.

A SOURCE is a folder as in ``dgz train``, ``numbers``, or a shape such as ``synthetic:50,10,85,2048,37322``: classes,
unseen ones, attributes, features, rows. ``--time N`` times N settings × 3 folds instead.
"""

import argparse
import statistics
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch

from dgz import DGZ, GZSLData, fit_many, gzsl_scores
from dgz.data import load_data, validation_folds
from dgz.data.synthetic import make_synthetic
from dgz.files import write_json
from dgz.many import pseudo_rows_on
from dgz.metrics import best_penalty, mean_penalty
from dgz.records import library_versions

GRID = [float(value) for value in np.logspace(-3, 1, 13)]
N_FOLDS = 3


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sources", nargs="+", metavar="SOURCE")
    parser.add_argument("--features", default="res50")
    parser.add_argument("--semantics", nargs="+", default=["att"])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--schedule", default="released")
    parser.add_argument("--members", type=int, default=1, help="of every model")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--time", type=int, metavar="N", help="only time N settings × folds")
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    arguments = parser.parse_args()
    found: list[dict[str, Any]] = []
    for source in arguments.sources:
        for semantics in arguments.semantics if Path(source).is_dir() else ["att"]:
            data = load(source, arguments.features, semantics)
            if arguments.time:
                time_folds(data, arguments)
                continue
            found.append(measure(data, arguments))
            show(found[-1])
            if arguments.out:
                write_json(arguments.out, found)


def load(source: str, features: str, semantics: str) -> GZSLData:
    """A data set by its folder, by name, or by its shape."""
    if source.startswith("synthetic:"):
        n_classes, n_unseen, d_a, d_x, n_rows = map(int, source.removeprefix("synthetic:").split(","))
        return make_synthetic(n_classes, n_unseen, n_attributes=d_a, n_features=d_x, n_samples=n_rows)
    return load_data(source, features, semantics)


def model_of(arguments: Any, seed: int, **settings: Any) -> DGZ:
    """The method, with what varies."""
    common = {"device": arguments.device, "n_members": arguments.members, "random_state": seed}
    return DGZ.without_generator(schedule=arguments.schedule, **{**common, **settings})


def measure(data: GZSLData, arguments: Any) -> dict[str, Any]:
    """Scores of all ways to choose, for all seeds."""
    seeds = range(arguments.seeds)
    everything = (data.x_train, data.y_train, data.attributes)
    keys = [(value, seed) for value in GRID for seed in seeds]
    models = fit_many([model_of(arguments, seed, lambda_1=value) for value, seed in keys], *everything)
    on_test = {key: gzsl_scores(model, data).h for key, model in zip(keys, models, strict=True)}
    fitted = dict(zip(keys, models, strict=True))
    mean = {value: statistics.mean(on_test[value, seed] for seed in seeds) for value in GRID}
    best = max(mean, key=mean.__getitem__)
    rows: dict[str, dict[str, Any]] = {
        "oracle: best of the grid by test rows": {"lambda_1": [best], "h": [on_test[best, seed] for seed in seeds]}
    }
    plain: dict[str, Any] = {"lambda_1": [], "h": []}
    calibrated: dict[str, Any] = {"lambda_1": [], "seen_penalty": [], "h": []}
    folds = tried_on_folds(data, arguments, keys)
    for seed in seeds:
        h = {value: np.mean([one.h for one in folds[value, seed]]) for value in GRID}
        value = max(h, key=h.__getitem__)
        plain["lambda_1"].append(value)
        plain["h"].append(on_test[value, seed])
        penalties = {value: [best_penalty(one.curve) for one in folds[value, seed]] for value in GRID}
        value = max(GRID, key=lambda value: np.mean([h for _, h in penalties[value]]))
        penalty = mean_penalty(penalties[value])
        calibrated["lambda_1"].append(value)
        calibrated["seen_penalty"].append(penalty)
        calibrated["h"].append(gzsl_scores(fitted[value, seed], data, seen_penalty=penalty).h)
    rows |= {"grid by folds": plain, "grid and penalty by folds": calibrated}
    for name, settings in (
        ("lambda_1=auto", {"lambda_1": "auto"}),
        ("lambda_1=auto, seen_penalty=auto", {"lambda_1": "auto", "seen_penalty": "auto"}),
        ("default (lambda_1=1)", {}),
    ):
        rows[name] = {"lambda_1": [], "h": [], "seconds": []}
        for seed in seeds:
            start = time.perf_counter()
            model = model_of(arguments, seed, **settings).fit(*everything)
            rows[name]["seconds"].append(time.perf_counter() - start)
            rows[name]["lambda_1"].append(model.lambda_1_)
            rows[name]["h"].append(gzsl_scores(model, data).h)
    about = {"data": data.record(), "schedule": arguments.schedule, "members": arguments.members}
    return {**about, "device": models[0].device_, "versions": library_versions(), "grid": mean, "rows": rows}


def tried_on_folds(data: GZSLData, arguments: Any, keys: list[tuple[float, int]]) -> dict[tuple[float, int], list[Any]]:
    """Scores of each λ1 and seed on folds of the training rows."""
    found: dict[tuple[float, int], list[Any]] = {key: [] for key in keys}
    for fold in validation_folds(data, N_FOLDS):
        n_pseudo = pseudo_rows_on(fold, len(data.x_train), len(data.unseen), DGZ().n_per_class)
        models = [model_of(arguments, seed, lambda_1=value, n_per_class=n_pseudo) for value, seed in keys]
        fit_many(models, fold.x_train, fold.y_train, fold.attributes)
        for key, model in zip(keys, models, strict=True):
            found[key].append(gzsl_scores(model, fold))
    return found


def show(found: dict[str, Any]) -> None:
    """Print a table of one data set."""
    rows = found["rows"]
    one_fit = statistics.median(rows["default (lambda_1=1)"]["seconds"])
    oracle = statistics.mean(next(iter(rows.values()))["h"])
    known = found["data"]
    print(f"\n{known['name']} ({known['features']}, {known['semantics']}), {found['device']}, {found['schedule']}:")
    print("| chosen | lambda_1 | H | below the oracle | trainings |\n|---|---|---|---|---|")
    for name, row in rows.items():
        h = [100 * value for value in row["h"]]
        spread = f" ± {statistics.stdev(h):.2f}" if len(h) > 1 else ""
        values = sorted({f"{value:.3g}" for value in row["lambda_1"]}, key=float)
        cost = f"{statistics.median(row['seconds']) / one_fit:.1f}" if "seconds" in row else ""
        below = f"{100 * oracle - statistics.mean(h):.2f}"
        print(f"| {name} | {', '.join(values)} | {statistics.mean(h):.2f}{spread} | {below} | {cost} |", flush=True)


def time_folds(data: GZSLData, arguments: Any) -> None:
    """Print how long many settings × folds take."""
    rng = np.random.default_rng(0)
    settings = [
        {"lambda_1": float(10 ** rng.uniform(-3, 1)), "temperature": float(10 ** rng.uniform(-1.7, -0.7))}
        | {"n_per_class": int(10 ** rng.uniform(1, 2.5))}
        for _ in range(arguments.time)
    ]
    start = time.perf_counter()
    best = 0.0
    for fold in validation_folds(data, N_FOLDS):
        models = [model_of(arguments, 0, **one) for one in settings]
        fit_many(models, fold.x_train, fold.y_train, fold.attributes)
        best = max(best, *(gzsl_scores(model, fold).h for model in models))
    seconds = time.perf_counter() - start
    device = torch.cuda.get_device_name() if torch.cuda.is_available() else "CPU"
    print(f"{data.name}, {arguments.time} settings × {N_FOLDS} folds on {device}: {seconds:.0f} s (best H {best:.3f})")


if __name__ == "__main__":
    main()
