"""How long it takes to read an AWA2-shaped features file, beside scipy.io.loadmat, and how much memory.

    python benchmarks/loading.py [--json FILE]

Makes the files (37,322 × 2048 float32, 306 MB; one plain, one compressed) in a temporary folder, reads each in a fresh
process that reports its peak memory, several times in turn, and prints medians. Reading is shown apart from sorting the
rows into the split, from validation and from hashing. The file system's cache is warm, so disks play no part.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

N_ROWS, N_FEATURES, N_CLASSES = 37_322, 2048, 50
ARRAY_BYTES = N_ROWS * N_FEATURES * 4
REPEATS = 9

# Each task runs in a process of its own: what is measured is what that task adds to a process that has imported all it
# needs. The peak is the kernel's (VmHWM), reset after the imports.
TASK = """
import json, sys, time
from pathlib import Path
import numpy, scipy.io
import dgz.data.dataset
from dgz.data import load_xlsa
from dgz.data.matlab import read_mat

def memory(key):
    return int(next(line for line in open("/proc/self/status") if line.startswith(key)).split()[1]) * 1024

def timed(function, *arguments, **options):
    start = time.perf_counter()
    result = function(*arguments, **options)
    return result, time.perf_counter() - start

what, folder = sys.argv[1], Path(sys.argv[2])
open("/proc/self/clear_refs", "w").write("5")
before = memory("VmRSS")
seconds = {}
if what == "scipy":
    _, seconds["read"] = timed(scipy.io.loadmat, folder / "res101.mat", variable_names=["features", "labels"])
elif what == "read":
    _, seconds["read"] = timed(read_mat, folder / "res101.mat", ["features", "labels"])
else:
    validate = dgz.data.dataset._problems
    def timed_validation(data):
        problems, seconds["validate"] = timed(lambda: list(validate(data)))
        return problems
    dgz.data.dataset._problems = timed_validation
    data, whole = timed(load_xlsa, folder.parent, folder.name)
    seconds["load without validation"] = whole - seconds["validate"]
    _, seconds["hash"] = timed(lambda: data.hashes)
print(json.dumps({"seconds": seconds, "peak": memory("VmHWM") - before}))
"""


def make_files(folder: Path) -> None:
    """Write the same AWA2-shaped data set twice: res101.mat plain and compressed."""
    import numpy as np
    import scipy.io

    rng = np.random.default_rng(0)
    features = np.maximum(rng.standard_normal((N_ROWS, N_FEATURES), dtype=np.float32), 0)
    labels = rng.integers(1, N_CLASSES + 1, (N_ROWS, 1)).astype(np.uint8)
    of_seen = labels.ravel() <= 40
    rows = rng.permutation(np.flatnonzero(of_seen))
    splits = {
        "att": rng.random((85, N_CLASSES)),
        "trainval_loc": rows[: len(rows) * 4 // 5, None] + 1,
        "test_seen_loc": rows[len(rows) * 4 // 5 :, None] + 1,
        "test_unseen_loc": np.flatnonzero(~of_seen)[:, None] + 1,
    }
    for kind, compressed in (("plain", False), ("compressed", True)):
        (folder / kind).mkdir()
        scipy.io.savemat(folder / kind / "att_splits.mat", splits)
        content = {"features": features.T, "labels": labels}
        scipy.io.savemat(folder / kind / "res101.mat", content, do_compression=compressed)


def measure(what: str, folder: Path) -> dict[str, float]:
    """Seconds of each part, and the peak memory as a multiple of the array, of one task in a fresh process."""
    answer = subprocess.run([sys.executable, "-c", TASK, what, folder], check=True, capture_output=True, text=True)
    found = json.loads(answer.stdout)
    return {**found["seconds"], "peak / array": found["peak"] / ARRAY_BYTES}


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write the medians to this file")
    options = parser.parse_args()
    results: dict[str, dict[str, dict[str, float]]] = {}
    with tempfile.TemporaryDirectory() as name:
        make_files(Path(name))
        os.sync()  # or writing them out would go on during the first measurements
        for kind in ("plain", "compressed"):
            runs: dict[str, list[dict[str, float]]] = {"scipy": [], "read": [], "load": []}
            for _ in range(REPEATS):  # in turn, so that a busy moment hits all of them
                for what, found in runs.items():
                    found.append(measure(what, Path(name) / kind))
            results[kind] = {
                what: {key: statistics.median(run[key] for run in found) for key in found[0]}
                for what, found in runs.items()
            }
    labels = {"scipy": "scipy.io.loadmat", "read": "dgz read_mat", "load": "dgz load_xlsa"}
    for kind, by_task in results.items():
        print(f"{kind} .mat, {ARRAY_BYTES / 1e6:.0f} MB of float32, median of {REPEATS}")
        for what, values in by_task.items():
            print(f"  {labels[what]:18}", ", ".join(f"{key} {value:.2f}" for key, value in values.items()))
    if options.json:
        options.json.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
