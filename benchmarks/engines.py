"""How long the same runs take on the local engine and on Ray, with one worker and with two.

Every measurement is a command of its own, in a process of its own with one thread, from its start to its end: what it
costs to start Ray and to end it is part of it. The records of all of them are compared, but for seconds.

    python benchmarks/engines.py [--runs 32] [--repeats 3]
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WAYS: dict[str, list[str]] = {
    "local": [],
    "ray, 1 worker": ["--engine", "ray", "--workers", "1"],
    "ray, 2 workers": ["--engine", "ray", "--workers", "2"],
}
METHOD = "dgz-without-generator"


def measure(way: list[str], n_runs: int, out: Path) -> float:
    """Seconds that a comparison of one method takes, with a seed for each run."""
    command = ["-m", "dgz", "compare", "--data", "numbers", "--methods", METHOD, "--device", "cpu"]
    options = ["--seeds", str(n_runs), "--out", str(out), *way]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    start = time.perf_counter()
    subprocess.run([sys.executable, *command, *options], check=True, capture_output=True, env=environment)
    return time.perf_counter() - start


def records(out: Path) -> dict[str, dict[str, Any]]:
    """All that was recorded, but for how long it took."""
    found = {path.name: json.loads(path.read_text()) for path in sorted((out / "records").glob("*.json"))}
    return {name: {key: value for key, value in record.items() if key != "seconds"} for name, record in found.items()}


def main() -> None:
    """Measure all ways in turn, so that what else the machine does meets them alike, and print a table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=3)
    given = parser.parse_args()
    seconds: dict[str, list[float]] = {name: [] for name in WAYS}
    for _ in range(given.repeats):
        made = []
        for name, way in WAYS.items():
            with tempfile.TemporaryDirectory() as folder:
                seconds[name].append(measure(way, given.runs, Path(folder)))
                made.append(records(Path(folder)))
            print(f"{name}: {seconds[name][-1]:.1f} s", file=sys.stderr, flush=True)
        assert len(made[0]) == given.runs
        assert all(one == made[0] for one in made)
    middle = {name: statistics.median(found) for name, found in seconds.items()}
    first, one_worker, _ = middle.values()
    print(f"{given.runs} runs of {METHOD}, one thread each, on {os.cpu_count()} CPUs; median of {given.repeats}\n")
    print("| engine | seconds | least to most | of local | of one worker |")
    print("|---|---|---|---|---|")
    for name, found in seconds.items():
        of_one = f"{middle[name] / one_worker:.2f}" if name != "local" else ""
        spread = f"{min(found):.1f} to {max(found):.1f}"
        print(f"| {name} | {middle[name]:.1f} | {spread} | {middle[name] / first:.2f} | {of_one} |")


if __name__ == "__main__":
    main()
