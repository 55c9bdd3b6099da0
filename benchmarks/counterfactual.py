"""How long do GCM-CF's parts take? ``python benchmarks/counterfactual.py --data DIR``, on a GPU.

On the training rows of CUB (``DIR/CUB``: res50): a step of the generator's training, the median of the epochs after the
first three, and a verdict, that is the softmax of a single row, of many rows at once. Then some of these rows are
judged again with float32 and with TF32 in float16's place, by the same generator. docs/performance.md has more of it.
"""

import argparse
import math
import statistics
import time
from itertools import pairwise
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from dgz import GZSLData, load_xlsa
from dgz.peers import GCMCF, gcm_cf
from dgz.training import Precision, watching


def train(model: GCMCF, data: GZSLData) -> float:
    """Train the model; gives the seconds of a step of its generator."""
    ended: list[float] = []
    with watching(lambda stage, epoch, row: ended.append(time.perf_counter()) if stage == "generator" else None):
        model.fit(data.x_train, data.y_train, data.attributes)
    n_steps = math.ceil(len(data.x_train) / model.generator_.batch_size)
    # The first epoch compiles, and the second is recorded as a graph.
    return statistics.median(after - before for before, after in pairwise(ended[2:])) / n_steps


def judge(model: GCMCF, x: Tensor, precision: Precision, operands: Any = gcm_cf._operands) -> tuple[Tensor, float]:
    """By how much the best unseen class beats the best seen one, for each row, and the seconds of a row."""
    model.settings_["precision"], gcm_cf._operands = precision, operands
    vectors = model._vectors(x.device)
    model._judge(x[:1], vectors)
    model._judged.clear()
    began = time.perf_counter()
    return model._judge(x, vectors), (time.perf_counter() - began) / len(x)


def report(model: GCMCF, data: GZSLData, n_rows: int, n_again: int) -> None:
    """Train, judge and print."""
    print(f"a step of the generator: {1e3 * train(model, data):.1f} ms")
    device = next(model.networks_["generator"].parameters()).device
    step = max(len(data.x_train) // n_rows, 1)
    x = torch.tensor(model.scaler_.transform(data.x_train[::step][:n_rows]), device=device)
    gaps, seconds = judge(model, x, model.precision)
    print(f"a verdict: {1e3 * seconds:.1f} ms, of {len(x)} rows at once")
    again = x[:: max(len(x) // n_again, 1)]
    gaps = gaps[:: max(len(x) // n_again, 1)]
    exact, _ = judge(model, again, "float32", lambda *inputs: torch.float32)
    tf32, seconds = judge(model, again, "tf32", lambda *inputs: torch.float32)
    print(f"a verdict with TF32: {1e3 * seconds:.1f} ms, of {len(again)} rows at once")
    for name, found in ((model.precision, gaps), ("TF32", tf32)):
        apart, changed = float((found - exact).abs().max()), int(((found > 0) != (exact > 0)).sum())
        print(f"{name} against float32: gaps differ by {apart:.4f} at most, {changed} of {len(again)} verdicts change")
    print(f"gaps spread by {float(exact.std()):.1f}")


def main() -> None:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that CUB is in")
    parser.add_argument("--semantics", default="att", choices=["att", "sent"])
    parser.add_argument("--generator-epochs", type=int, default=6, help="at least 4")
    parser.add_argument("--rows", type=int, default=320, help="to be judged at once")
    parser.add_argument("--again", type=int, default=80, help="of these, judged again in other ways")
    arguments = parser.parse_args()
    data = load_xlsa(arguments.data, "CUB", features="res50", semantics=arguments.semantics)
    short = {"generator__n_epochs": max(arguments.generator_epochs, 4), "n_epochs": 1, "n_unseen_epochs": 1}
    report(GCMCF.preset("CUB", **short), data, arguments.rows, arguments.again)


if __name__ == "__main__":
    main()
