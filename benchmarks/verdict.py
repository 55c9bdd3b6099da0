"""Could GCM-CF do without a softmax for each row? ``python benchmarks/verdict.py --data DIR``.

To say whether a row is of a seen class, GCM-CF trains a softmax of all classes for it. A closed form would be far
cheaper: linear discriminant analysis, with the covariance of the real rows within their classes and the row's own
counterfactuals, made of the mean of its code, as the centres of the unseen classes. On one leak-free fold of CUB's
training rows (``DIR/CUB``: res50), GCM-CF is trained, and the rows that play test rows are called seen or unseen by
softmaxes and by discriminants with several ridges and temperatures, which divide their distances. Prints how often
these agree with the softmaxes, how many rows they call unseen, and the U, S, H and AUROC that follow; and the same of
the nearest prototype, the baseline to be above. Test rows are never looked at. docs/rivals.md says what came out.
"""

import argparse
import math
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgz import GZSLData, load_xlsa, validation_folds
from dgz.data.dataset import Floats
from dgz.files import write_json
from dgz.metrics import Decisions, auroc, decide, harmonic_mean, macro_accuracy
from dgz.peers import GCMCF, NearestPrototype
from dgz.training import multiplying

RIDGES = (0.01, 0.1, 1.0, 10.0, 100.0)  # in units of the mean variance
TEMPERATURES = (1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
BLOCK = 16  # rows that are made again at a time
Gaps = np.ndarray[Any, np.dtype[np.float64]]  # by how much the best unseen class is above the best seen one


class Trained:
    """GCM-CF, trained on a fold, and its scores of some of the fold's test rows."""

    def __init__(self, fold: GZSLData, n_epochs: int | None, n_rows: int) -> None:
        shorter = {} if n_epochs is None else {"generator__n_epochs": n_epochs}
        self.fold = fold
        self.model = GCMCF.preset("CUB", **shorter).fit(fold.x_train, fold.y_train, fold.attributes)
        parts = [(fold.x_test_seen, fold.y_test_seen), (fold.x_test_unseen, fold.y_test_unseen)]
        which = [np.linspace(0, len(y) - 1, min(n_rows, len(y))).astype(int) for _, y in parts]
        self.x = np.concatenate([x[at] for (x, _), at in zip(parts, which, strict=True)])
        self.y = np.concatenate([y[at] for (_, y), at in zip(parts, which, strict=True)])
        self.is_unseen = np.isin(self.y, fold.unseen)
        self.decided = decide(self.model.decision_function(self.x), fold.seen, fold.unseen)

    def scores(self, gaps: Gaps, decided: Decisions | None = None) -> dict[str, float]:
        """U, S, H and AUROC where rows with a positive gap are called unseen, and classes are GCM-CF's or others."""
        decided = decided or self.decided
        predicted = np.where(gaps > 0, decided.unseen_class, decided.seen_class)
        u, s = (
            macro_accuracy(self.y[rows], predicted[rows], np.unique(self.y[rows]))
            for rows in (self.is_unseen, ~self.is_unseen)
        )
        return {
            "called_unseen": float(np.mean(gaps > 0)),
            "acc_unseen": u,
            "acc_seen": s,
            "h": harmonic_mean(u, s),
            "auroc": auroc(-gaps[~self.is_unseen], -gaps[self.is_unseen]),
        }


def nearest_prototype(fold: GZSLData, x: Floats) -> Decisions:
    """What the baseline makes of the rows, its settings chosen on folds of the fold's own training rows."""
    model = NearestPrototype().fit(fold.x_train, fold.y_train, fold.attributes)
    return decide(model.decision_function(x), fold.seen, fold.unseen)


@torch.no_grad()
def discriminants(of: Trained) -> dict[tuple[float, float], Gaps]:
    """Gaps of the closed form, for each ridge and temperature."""
    model, fold = of.model, of.fold
    generator, kept = model.generator_, model.networks_["real rows"]
    device = kept.x.device
    real, counts = generator.embed(kept.x), torch.bincount(kept.y).double()
    centers = torch.zeros(len(counts), real.shape[1], dtype=torch.double, device=device)
    centers = centers.index_add_(0, kept.y, real.double()) / counts[:, None]
    apart = real.double() - centers[kept.y]
    covariance = apart.T @ apart / len(real)
    x = torch.tensor(model.scaler_.transform(of.x), device=device)
    unseen = model._vectors(device)[torch.tensor(fold.unseen, device=device)]
    found: dict[tuple[float, float], Gaps] = {}
    for ridge in RIDGES:
        wide = covariance + ridge * covariance.diagonal().mean() * torch.eye(len(covariance), device=device)
        root = torch.linalg.inv(torch.linalg.cholesky(wide)).T.float()
        distances = [
            _distances(rows, generator, centers.float() @ root, unseen, root) for rows in torch.split(x, BLOCK)
        ]
        to_seen, to_unseen = (torch.cat(part) for part in zip(*distances, strict=True))
        for temperature in TEMPERATURES:
            of_seen = counts.log() - to_seen / temperature
            of_unseen = math.log(model.n_per_class) - to_unseen / temperature
            found[ridge, temperature] = (of_unseen.amax(1) - of_seen.amax(1)).cpu().numpy()
    return found


def _distances(x: Tensor, generator: Any, centers: Tensor, unseen: Tensor, root: Tensor) -> tuple[Tensor, Tensor]:
    """Half the squared distances of rows from centres of seen classes, and from what they would be in unseen ones."""
    rows = generator.embed(x) @ root
    again = generator.counterfactuals(x, unseen)
    made = (generator.embed(again.flatten(0, 1)) @ root).view(*again.shape[:2], -1)
    to_seen = (rows[:, None] - centers).double().square().sum(-1)
    return to_seen / 2, (rows[:, None] - made).double().square().sum(-1) / 2


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that CUB is in")
    parser.add_argument("--semantics", default="att", choices=["att", "sent"])
    parser.add_argument("--generator-epochs", type=int, help="instead of those that were published")
    parser.add_argument("--rows", type=int, default=300, help="of seen and as many of unseen classes")
    parser.add_argument("--out", type=Path, help="JSON file for every single result")
    arguments = parser.parse_args()
    data = load_xlsa(arguments.data, "CUB", features="res50", semantics=arguments.semantics)
    began = time.perf_counter()
    trained = Trained(validation_folds(data, 3)[0], arguments.generator_epochs, arguments.rows)
    print(f"Trained, with a softmax for each of {len(trained.y)} rows, in {time.perf_counter() - began:.0f} s.")
    by_softmax = -np.asarray(trained.decided.gap)
    with multiplying("float32", torch.device(trained.model.device_ if trained.model.device_ == "cpu" else "cuda")):
        gaps = {("softmax of each row", None, None): by_softmax}
        gaps |= {("discriminant", *setting): values for setting, values in discriminants(trained).items()}
    baseline = nearest_prototype(trained.fold, trained.x)
    gaps["nearest prototype", None, None] = -np.asarray(baseline.gap)
    results: list[dict[str, Any]] = []
    columns = "classifier | ridge | temperature | agree | called unseen | U | S | H | AUROC"
    print(f"| {columns} |\n" + "|---" * 9 + "|")
    for (name, ridge, temperature), values in gaps.items():
        decided = baseline if name == "nearest prototype" else None
        scores = {"agree": float(np.mean((values > 0) == (by_softmax > 0))), **trained.scores(values, decided)}
        results.append({"classifier": name, "ridge": ridge, "temperature": temperature})
        results[-1] |= {key: round(value, 4) for key, value in scores.items()}
        setting = " | ".join("" if value is None else f"{value:g}" for value in (ridge, temperature))
        print(f"| {name} | {setting} | {' | '.join(f'{100 * value:.1f}' for value in scores.values())} |")
    if arguments.out:
        write_json(arguments.out, results)


if __name__ == "__main__":
    main()
