"""DGZ's scores: ``python benchmarks/quality.py [--data DIR] [--parts NAME ...] [--seeds N ...]``.

Parts on CUB need ``DIR/CUB`` with ``res50.mat`` and ``att_splits.mat``, sentence vectors among them. Prints one row per
variant, mean ± standard deviation over seeds in percent, by the rule `last`, and beside it the best test H of the
curve, labelled `oracle`; writes every single result to ``--out``.
"""

import argparse
import statistics
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

from sklearn.base import clone

from dgz import DGZ, GZSLData, fit_many, gzsl_scores, load_numbers, load_xlsa
from dgz.files import write_json
from dgz.records import library_versions, oracle

SCORES = ("acc_unseen", "acc_seen", "h", "acc_zsl", "ausuc")
# Each ablation starts from a trained model and changes its classifier alone.
ABLATIONS: dict[str, dict[str, Any]] = {
    "plain cross-entropy": {"loss": "plain"},
    "free weights": {"weights": "free"},
    "class normalisation": {"weights": "class_normalised"},
    "Gaussian rows": {"distribution": "statistical"},
}


class Part(NamedTuple):
    """One variant: its data set, its settings, and what else is measured with it."""

    data: str
    model: DGZ
    evaluate_every: int = 0
    ablations: tuple[str, ...] = ()


# 300 GAN epochs: the best mean H over two leak-free folds among 100, 200, 300 and 400, fixed before any test score.
PARTS = {
    "numbers": Part("numbers", DGZ.without_generator()),
    "w/o GM": Part("CUB", DGZ.preset("CUB", source="paper", without_generator=True), 0, tuple(ABLATIONS)[:3]),
    "w/o GM, short": Part("CUB", DGZ.preset("CUB", source="paper", without_generator=True, schedule="short")),
    "w/o GM, released": Part("CUB", DGZ.preset("CUB", source="released", without_generator=True)),
    "w/o GM, noise 0.08": Part(
        "CUB", DGZ.preset("CUB", source="paper", without_generator=True, generator__attribute_noise=0.08)
    ),
    "full": Part("CUB", DGZ.preset("CUB", source="paper", generator__n_epochs=300), 20, tuple(ABLATIONS)),
}


def fit(part: Part, seeds: list[int], data: GZSLData, precision: str) -> Iterator[tuple[DGZ, float]]:
    """A fitted model for each seed and its training time: all at once, unless the generator is evaluated on the way."""
    models = [clone(part.model).set_params(random_state=seed, precision=precision) for seed in seeds]
    rows = (data.x_train, data.y_train, data.attributes)
    for batch in [[model] for model in models] if part.evaluate_every else [models]:
        start = time.perf_counter()
        if part.evaluate_every:
            batch[0].fit(*rows, test=data, evaluate_every=part.evaluate_every)
        else:
            fit_many(batch, *rows, test=data)
        seconds = (time.perf_counter() - start) / len(batch)
        yield from ((model, seconds) for model in batch)


def measure(name: str, model: DGZ, seconds: float, data: GZSLData, *, ablate: bool) -> Iterator[dict[str, Any]]:
    """The scores of one fitted model, and of its ablations if they are asked for."""
    part = PARTS[name]
    common = {"seed": model.random_state, "device": model.device_, "versions": library_versions()}
    yield common | {"part": name, "seconds": seconds, "oracle": oracle(model.history_), **scores_of(model, data)}
    settings = model.get_params()
    for ablation in part.ablations if ablate else ():
        change = ABLATIONS[ablation]
        model.set_params(**change).refine()
        yield common | {"part": f"{name}: {ablation}", **scores_of(model, data)}
        model.set_params(**{key: settings[key] for key in change})


def scores_of(model: DGZ, data: GZSLData) -> dict[str, Any]:
    """A fitted model's settings and test scores."""
    scores = gzsl_scores(model, data)
    return {"settings": model.settings(), **{name: getattr(scores, name) for name in SCORES}}


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, help="folder that CUB is in")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=["numbers"])
    parser.add_argument("--seeds", nargs="+", type=int, default=list(range(5)))
    parser.add_argument("--precision", default="tf32", help="tf32, float32 or bf16")
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    parser.add_argument("--ablations", action="store_true", help="also change the trained models' classifiers")
    arguments = parser.parse_args()
    print("| variant | U | S | H | T1 | AUSUC | oracle H | seeds | fit |\n" + "|---" * 9 + "|", flush=True)
    found: list[dict[str, Any]] = []
    for part in arguments.parts:
        # The numbers are drawn by the seed, so that each seed has rows of its own.
        batches = [[seed] for seed in arguments.seeds] if PARTS[part].data == "numbers" else [arguments.seeds]
        for seeds in batches:
            data = load(PARTS[part].data, arguments.data, seeds[0])
            for model, seconds in fit(PARTS[part], seeds, data, arguments.precision):
                found += measure(part, model, seconds, data, ablate=arguments.ablations)
                if arguments.out:
                    write_json(arguments.out, found)
        for name in dict.fromkeys(row["part"] for row in found):
            if name.partition(": ")[0] == part:
                print(table_row(name, [row for row in found if row["part"] == name]), flush=True)


def load(name: str, folder: Path | None, seed: int) -> GZSLData:
    """The data set; on the numbers, the seed draws it too."""
    if name == "numbers":
        return load_numbers(seed)
    if folder is None:
        raise SystemExit("Parts on CUB need --data.")
    return load_xlsa(folder, "CUB", features="res50", semantics="sent")


def table_row(name: str, rows: list[dict[str, Any]]) -> str:
    """Mean and standard deviation over the seeds of one variant."""
    cells = [mean_std([100 * row[key] for row in rows]) for key in SCORES]
    best = [row["oracle"] for row in rows if row.get("oracle")]
    cells.append(f"{mean_std([100 * row['h'] for row in best])} (of {best[0]['n_candidates']})" if best else "")
    times = [row["seconds"] for row in rows if "seconds" in row]
    return f"| {name} | {' | '.join(cells)} | {len(rows)} | {f'{statistics.mean(times):.0f} s' if times else ''} |"


def mean_std(values: list[float]) -> str:
    """Mean and standard deviation as text."""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.mean(values):.1f}{spread}"


if __name__ == "__main__":
    main()
