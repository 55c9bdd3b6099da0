"""Scores of the closed-form baseline, as the README shows them.

    python benchmarks/baseline.py --data DIR [--json FILE]

Runs CenterRidge, whose settings are chosen on training rows (selection rule: validation), with seeds 0 to 4 on the
embedded numbers and on CUB (``DIR/CUB``: res50 features with sentences and with attributes); prints a Markdown table of
mean ± standard deviation in percent. On CUB a seed changes only the validation folds.
"""

import argparse
import json
import statistics
from pathlib import Path

from dgz.data import load_numbers, load_xlsa
from dgz.experiments import run
from dgz.peers import CenterRidge
from dgz.report.tables import SCORES, markdown_table

SEEDS = range(5)


def main() -> None:
    """Run, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=Path, required=True, help="folder that holds CUB/")
    parser.add_argument("--json", type=Path, help="also write every run's scores to this file")
    options = parser.parse_args()
    cub = {semantics: load_xlsa(options.data, "CUB", "res50", semantics) for semantics in ("sent", "att")}
    tasks = {
        "two-digit numbers": load_numbers,
        "CUB, ResNet-50, sentences": lambda _: cub["sent"],
        "CUB, ResNet-50, attributes": lambda _: cub["att"],
    }
    rows, found = [], {}
    for name, load in tasks.items():
        records = [run(CenterRidge(random_state=seed), load(seed), selection="validation") for seed in SEEDS]
        scores = {heading: [100 * record.scores[key] for record in records] for key, heading, _ in SCORES}
        seconds = [record.seconds["fit"] for record in records]
        cells = [f"{statistics.mean(values):.1f} ± {statistics.stdev(values):.1f}" for values in scores.values()]
        rows.append([name, "CenterRidge", *cells, str(len(records)), f"{statistics.median(seconds):.1f} s"])
        found[name] = {"scores": scores, "seconds": seconds, "data": records[0].data}
    print(markdown_table(["data", "method", *(heading for _, heading, _ in SCORES), "seeds", "training"], rows))
    if options.json:
        options.json.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
