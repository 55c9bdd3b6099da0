"""How many predictions a server gives over real HTTP, with the client on the same cores.

    python benchmarks/serving.py RUN [--photos FOLDER] [--seconds 5] [--out FILE]

RUN is the folder of a run; photos need one that was trained on photos. Prints and keeps rates and times.
"""

import argparse
import http.client
import io
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

BOUNDARY = "photos-of-a-benchmark"


@contextmanager
def server(run: Path) -> Iterator[int]:
    """The port of a server that ends with the block."""
    command = [sys.executable, "-m", "dgz", "serve", str(run), "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    assert process.stderr is not None
    try:
        line = process.stderr.readline()
        found = re.search(r"http://127\.0\.0\.1:(\d+)/", line)
        if not found:
            raise SystemExit(line + process.stderr.read())
        yield int(found[1])
    finally:
        process.send_signal(signal.SIGINT)
        process.wait()


def measure(port: int, path: str, body: bytes, kind: str, n_samples: int, seconds: float) -> dict[str, float]:
    """Rate and times of one request after the other, on one connection, after a warm-up."""
    connection = http.client.HTTPConnection("127.0.0.1", port)

    def ask() -> Any:
        connection.request("POST", path, body, {"Content-Type": kind})
        answer = connection.getresponse()
        content = answer.read()
        assert answer.status == 200, content
        return json.loads(content)

    for _ in range(3):
        ask()
    times = []
    end = time.perf_counter() + seconds
    while time.perf_counter() < end:
        start = time.perf_counter()
        ask()
        times.append(time.perf_counter() - start)
    connection.close()
    return {
        "samples_per_request": n_samples,
        "samples_per_second": n_samples * len(times) / sum(times),
        "p50_ms": 1e3 * float(np.percentile(times, 50)),
        "p99_ms": 1e3 * float(np.percentile(times, 99)),
        "n_requests": len(times),
    }


def form(photos: list[Path]) -> bytes:
    """Photos as a browser sends them."""
    parts = []
    for photo in photos:
        head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="photos"; filename="{photo.name}"\r\n\r\n'
        parts.append(head.encode() + photo.read_bytes() + b"\r\n")
    return b"".join(parts) + f"--{BOUNDARY}--\r\n".encode()


def main() -> None:
    """Measure, print, keep."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("run", type=Path)
    parser.add_argument("--photos", type=Path)
    parser.add_argument("--seconds", type=float, default=5.0)
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    found: dict[str, Any] = {"cores": len(os.sched_getaffinity(0))}
    with server(options.run) as port:
        connection = http.client.HTTPConnection("127.0.0.1", port)
        connection.request("GET", "/classes")
        known = json.loads(connection.getresponse().read())
        connection.close()
        found |= {"n_classes": len(known["classes"]), "n_features": known["n_features"]}
        rows = np.random.default_rng(0).random((64, known["n_features"]), dtype=np.float32)
        for n in (1, 64):
            text = json.dumps({"features": rows[:n].tolist()}).encode()
            file = io.BytesIO()
            np.save(file, rows[:n])
            found[f"JSON, {n}"] = measure(port, "/predict", text, "application/json", n, options.seconds)
            found[f"npy, {n}"] = measure(port, "/predict", file.getvalue(), "application/x-npy", n, options.seconds)
        if options.photos:
            everything = sorted(options.photos.rglob("*.jpg"))
            photos = everything[:: max(len(everything) // 16, 1)][:16]
            kind = f"multipart/form-data; boundary={BOUNDARY}"
            for n in (1, 16):
                found[f"photos, {n}"] = measure(port, "/predict", form(photos[:n]), kind, n, options.seconds)
    for what, numbers in found.items():
        print(what, {k: round(v, 1) for k, v in numbers.items()} if isinstance(numbers, dict) else numbers)
    if options.out:
        options.out.write_text(json.dumps(found, indent=1) + "\n")


if __name__ == "__main__":
    main()
