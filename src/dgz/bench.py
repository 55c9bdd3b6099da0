"""Speed: shapes and parts in; seconds, shares of the device's matrix rate and curves out.

Every part is timed as users run it, on made-up data of real shapes: by device events on a GPU, by the clock on a CPU,
after a warm-up, several times. Right of everything that it times.
"""

import resource
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.errors import require_choice, require_count
from dgz.files import write_json, write_whole
from dgz.generators import WGANGP, CenterMapper
from dgz.instances import synthesise, within_class_residuals
from dgz.metrics import TestRows, cmmd
from dgz.model import DGZ
from dgz.records import library_versions
from dgz.report.figures import scale_figure
from dgz.training import Precision, pick_device, random_stream, train

PARTS = ("rate", "generator", "classifier", "whole", "many", "predict", "cmmd", "scale")
_EPOCHS = 60  # of a classifier, in the paper and here


@dataclass(frozen=True)
class Shape:
    """Sizes of a data set."""

    n_train: int
    n_seen: int
    n_unseen: int
    d_a: int
    n_per_class: int
    n_test_seen: int
    n_test_unseen: int
    d_x: int = 2048


SHAPES = {
    "AWA2": Shape(23527, 40, 10, 85, 100, 5882, 7913),
    "CUB": Shape(7057, 150, 50, 1024, 50, 1764, 2967),
    "SUN": Shape(10320, 645, 72, 102, 50, 2580, 1440),
    "tiny": Shape(300, 6, 4, 5, 5, 40, 40, 32),
}


def bench(
    parts: Sequence[str],
    shapes: Sequence[str],
    *,
    precision: Precision = "tf32",
    device: str = "auto",
    repeats: int = 5,
    say: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Time ``parts`` of the work on data of the given ``shapes``.

    Parameters
    ----------
    parts : sequence of str
        Of PARTS: ``rate`` (the device's own matrix rate), ``generator`` (a GAN epoch), ``classifier`` (60 epochs with
        test scores after each), ``whole`` (both, end to end through ``DGZ.fit``), ``many`` (classifiers at once),
        ``predict``, ``cmmd``, ``scale`` (curves over classes, samples and width).
    shapes : sequence of str
        Of SHAPES.
    precision : {"tf32", "float32", "bf16"}
    device : str
    repeats : int
        Timings of each part, after a warm-up.
    say : callable
        Told each result in a line as it comes.

    Returns
    -------
    dict
        Plain numbers: the device, the settings, and for each part and shape the median, least and most seconds.

    Examples
    --------
    >>> found = bench(["classifier"], ["tiny"], device="cpu", repeats=1)
    >>> found["results"][0]["part"], found["results"][0]["seconds"]["median"] > 0
    ('classifier', True)
    """
    for part in parts:
        require_choice(part, PARTS, "part")
    for shape in shapes:
        require_choice(shape, tuple(SHAPES), "shape")
    require_choice(precision, Precision, "precision")
    require_count(repeats=repeats)
    place = pick_device(device)
    results: list[dict[str, Any]] = []

    def add(part: str, shape: str, seconds: Sequence[float], **more: Any) -> None:
        row = {"part": part, "shape": shape, "seconds": _spread(seconds), **more}
        results.append(row)
        say(_line(row))

    rates = {kind: _matrix_rate(place, kind) for kind in _KINDS} if place.type == "cuda" or "rate" in parts else {}
    for kind, rate in rates.items():
        say(f"matrix product, {kind}: {rate:.3g} TFLOP/s")
    # Captured steps multiply float16 where TF32 was asked for.
    rate = rates.get("bf16" if precision == "tf32" else precision, 0.0) if place.type == "cuda" else 0.0
    for name in shapes:
        sizes = SHAPES[name]
        if "generator" in parts:
            seconds, flop = _time_generator(sizes, precision, place, repeats)
            add("generator", name, seconds, tflop=flop / 1e12, share_of_rate=_share(flop, seconds, rate))
        for count in [*([1] if "classifier" in parts else []), *((4, 16) if "many" in parts else ())]:
            seconds, flop = _time_classifiers(sizes, count, precision, place, repeats)
            part = "classifier" if count == 1 else f"{count} classifiers"
            add(part, name, seconds, tflop=flop / 1e12, share_of_rate=_share(flop, seconds, rate))
        if "whole" in parts:
            add("whole", name, _time_whole(sizes, precision, place, repeats))
        if "predict" in parts:
            seconds, n_rows = _time_prediction(sizes, place, repeats)
            add("predict", name, seconds, rows_per_second=n_rows / statistics.median(seconds))
        if "cmmd" in parts:
            add("cmmd", name, _time_cmmd(sizes, place, repeats))
    if "scale" in parts:
        for row in _scale(place, precision):
            results.append(row)
            say(_line(row))
    where = torch.cuda.get_device_name(place) if place.type == "cuda" else f"CPU, {torch.get_num_threads()} threads"
    return {
        "format": "dgz-bench",
        "device": where,
        "precision": precision,
        "repeats": repeats,
        "tflops": rates,
        "versions": library_versions(),
        "results": results,
    }


# --- Clocks.
def timed(work: Callable[[], Any], device: torch.device, repeats: int, warm_up: int = 1) -> list[float]:
    """Seconds of each of ``repeats`` calls: by events on a GPU, by the clock on a CPU.

    Examples
    --------
    >>> len(timed(lambda: None, torch.device("cpu"), repeats=3))
    3
    """
    for _ in range(warm_up):
        work()
    found = []
    for _ in range(repeats):
        if device.type == "cuda":
            start, end = _event(), _event()
            torch.cuda.synchronize(device)
            start.record()
            work()
            end.record()
            torch.cuda.synchronize(device)
            found.append(start.elapsed_time(end) / 1000)
        else:
            began = time.perf_counter()
            work()
            found.append(time.perf_counter() - began)
    return found


def _event() -> Any:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


def _spread(seconds: Sequence[float]) -> dict[str, float]:
    return {"median": statistics.median(seconds), "least": min(seconds), "most": max(seconds)}


def _share(flop: float, seconds: Sequence[float], tflops: float) -> float | None:
    return flop / 1e12 / statistics.median(seconds) / tflops if tflops else None


def _line(row: Mapping[str, Any]) -> str:
    seconds = row["seconds"]
    text = f"{row['shape']:>16}  {row['part']:<15} {seconds['median']:9.4f} s"
    text += f"  ({seconds['least']:.4f} to {seconds['most']:.4f})"
    if row.get("share_of_rate"):
        text += f"  {100 * row['share_of_rate']:.0f} % of the matrix rate"
    if "rows_per_second" in row:
        text += f"  {row['rows_per_second']:,.0f} rows/s"
    if "gigabytes" in row:
        text += f"  {row['gigabytes']:.2f} GB"
    return text


# --- The device's own rate.
_KINDS: dict[Precision, torch.dtype] = {
    "float32": torch.float32,
    "tf32": torch.float32,
    "bf16": torch.bfloat16,
}


def _matrix_rate(device: torch.device, kind: Precision) -> float:
    """TFLOP/s of a large matrix product."""
    size = 8192 if device.type == "cuda" else 2048
    a, b = (torch.randn(size, size, device=device).to(_KINDS[kind]) for _ in range(2))
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = kind == "tf32"
    try:
        seconds = timed(lambda: a @ b, device, repeats=5, warm_up=2)
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before
    return 2 * size**3 / statistics.median(seconds) / 1e12


# --- Made-up data.
def _rows(shape: Shape, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Training rows, their classes, class vectors, which classes are seen."""
    rng = random_stream(0, "bench", device)
    n_classes = shape.n_seen + shape.n_unseen
    x = torch.rand(shape.n_train, shape.d_x, generator=rng, device=device)
    y = torch.arange(shape.n_train, device=device) % shape.n_seen
    attributes = torch.randn(n_classes, shape.d_a, generator=rng, device=device)
    return x, y, attributes, torch.arange(n_classes, device=device) < shape.n_seen


def _test_rows(shape: Shape, device: torch.device) -> TestRows:
    rng = random_stream(0, "bench's test", device)
    x_seen, x_unseen = (
        torch.nn.functional.normalize(torch.rand(n, shape.d_x, generator=rng, device=device))
        for n in (shape.n_test_seen, shape.n_test_unseen)
    )
    y_seen = torch.arange(shape.n_test_seen, device=device) % shape.n_seen
    y_unseen = shape.n_seen + torch.arange(shape.n_test_unseen, device=device) % shape.n_unseen
    seen = torch.arange(shape.n_seen + shape.n_unseen, device=device) < shape.n_seen
    return TestRows(x_seen, y_seen, x_unseen, y_unseen, seen)


# --- The parts.
def _time_generator(
    shape: Shape, precision: Precision, device: torch.device, repeats: int
) -> tuple[list[float], float]:
    """Seconds of a GAN epoch, with ceil(n / 512) times five critic steps and a generator step; and its operations."""
    x, y, attributes, _ = _rows(shape, device)
    ends: list[Any] = []

    def mark(epoch: int) -> dict[str, Any]:
        if device.type == "cuda":
            ends.append(_event())
            ends[-1].record()
        else:
            ends.append(time.perf_counter())
        return {}

    gan = WGANGP(n_epochs=3 + repeats)  # one direct, one recorded, one to settle
    gan.fit(x, y, attributes, precision=precision, after_epoch=mark)
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        seconds = [a.elapsed_time(b) / 1000 for a, b in pairwise(ends[2:])]
    else:
        seconds = [b - a for a, b in pairwise(ends[2:])]
    first, second = gan.widths(shape.d_x)
    batch, d_x, d_a = min(gan.batch_size, shape.n_train), shape.d_x, shape.d_a
    of_generator = 2 * d_a * first + first * second + second * d_x
    critic_step = of_generator + 2 * d_a * first + (2 + 1 + 3) * d_x * first
    generator_step = 2 * of_generator + (first * second + second * d_x) + (2 * d_x + d_a) * first
    n_steps = -(-shape.n_train // gan.batch_size)
    return seconds, 2.0 * batch * n_steps * (gan.n_critic * critic_step + generator_step)


def _time_classifiers(
    shape: Shape, count: int, precision: Precision, device: torch.device, repeats: int
) -> tuple[list[float], float]:
    """Seconds of training ``count`` fresh classifiers for 60 epochs with test scores after each; and its operations."""
    x, y, attributes, seen = _rows(shape, device)
    n_pseudo = shape.n_unseen * shape.n_per_class
    pseudo_x = torch.rand(n_pseudo, shape.d_x, generator=random_stream(0, "bench's rows", device), device=device)
    pseudo_y = shape.n_seen + torch.arange(n_pseudo, device=device) // shape.n_per_class
    settings = [CosineClassifier(n_epochs=_EPOCHS, lambda_1=0.1 + k) for k in range(count)]
    training = ClassifierTraining(
        settings,
        torch.cat([x, pseudo_x]),
        torch.cat([y, pseudo_y]),
        attributes,
        seen,
        seeds=list(range(count)),
        precision=precision,
        test_rows=_test_rows(shape, device),
    )
    seconds = timed(lambda: training.restart(len(x), pseudo_x).run(), device, repeats)
    n_classes, hidden, d_x = len(attributes), settings[0].d_hidden, shape.d_x
    step = n_classes * (2 * (shape.d_a * hidden + hidden * d_x) + hidden * d_x)
    step += 2 * training.batch_size * n_classes * d_x
    test = (shape.n_test_seen + shape.n_test_unseen) * n_classes * d_x
    return seconds, 2.0 * count * _EPOCHS * (training.n_steps * step + test)


def _time_whole(shape: Shape, precision: Precision, device: torch.device, repeats: int) -> list[float]:
    """Seconds of a GAN epoch and the 60-epoch classifier after it, end to end.

    Two calls of ``DGZ.fit`` differ in nothing but the number of epochs: their difference, over that of the epochs, is
    what an epoch costs, with everything that belongs to it and nothing that belongs to the start.
    """
    x, y, attributes, _ = (values.cpu().numpy() for values in _rows(shape, torch.device("cpu")))
    test = _test_rows(shape, torch.device("cpu"))
    rows, n_seen = test.x.numpy(), test.n_seen_rows
    labels = test.order[test.y].numpy()
    data = SimpleNamespace(
        x_test_seen=rows[:n_seen],
        y_test_seen=labels[:n_seen],
        x_test_unseen=rows[n_seen:],
        y_test_unseen=labels[n_seen:],
        seen=np.arange(shape.n_seen),
        unseen=np.arange(shape.n_seen, len(attributes)),
        class_names=(),
    )

    def fit(n_epochs: int) -> float:
        model = DGZ(
            generator=WGANGP(n_epochs=n_epochs),
            n_per_class=shape.n_per_class,
            n_epochs=_EPOCHS,
            precision=precision,
            device=str(device),
        )
        began = time.perf_counter()
        model.fit(x, y, attributes, test=data, evaluate_every=1)
        return time.perf_counter() - began

    few, more = 3, 3 + (20 if device.type == "cuda" else 1)
    if device.type == "cuda":
        fit(few)  # compiles
    return [(fit(more) - fit(few)) / (more - few) for _ in range(repeats)]


def _time_prediction(shape: Shape, device: torch.device, repeats: int) -> tuple[list[float], int]:
    """Seconds of labelling rows with a fitted model, and how many."""
    x, y, attributes, _ = (values.cpu().numpy() for values in _rows(shape, torch.device("cpu")))
    model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1, device=str(device)).fit(x, y, attributes)
    return timed(lambda: model.predict(x), torch.device("cpu"), repeats), len(x)


def _time_cmmd(shape: Shape, device: torch.device, repeats: int) -> list[float]:
    """Seconds of CMMD between all unseen test rows and as many generated ones."""
    rng = random_stream(0, "bench's cmmd", device)
    real, made = (torch.rand(shape.n_test_unseen, shape.d_x, generator=rng, device=device) for _ in range(2))
    y = torch.arange(shape.n_test_unseen, device=device) % shape.n_unseen
    return timed(lambda: cmmd(real, y, made, y), device, repeats)


# --- Curves over the size of the problem.
def _scale(device: torch.device, precision: Precision) -> list[dict[str, Any]]:
    """Seconds and memory of a training epoch against classes, samples and width; and whole trainings on a GPU."""
    if device.type != "cuda":
        return [
            *(_epoch_at(n, 10**4, 512, device, precision, "classes") for n in (50, 500, 5000)),
            *(_epoch_at(500, n, 512, device, precision, "samples") for n in (10**3, 10**4, 3 * 10**4)),
            *(_epoch_at(500, 10**4, width, device, precision, "width") for width in (128, 512, 2048)),
        ]
    return [
        *(_epoch_at(n, 5 * 10**4, 2048, device, precision, "classes") for n in (50, 500, 5000, 21841)),
        *(_epoch_at(1000, n, 2048, device, precision, "samples") for n in (10**4, 10**5, 10**6)),
        *(_epoch_at(1000, 10**5, width, device, precision, "width") for width in (512, 1024, 2048, 4096)),
        _train_at(21841, 5 * 10**4, device, precision),
        _train_at(1000, 10**6, device, precision),
        _steps_at(21841, 10**6, 100, device, precision),
    ]


def _large(n_classes: int, n_rows: int, d_x: int, device: torch.device) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Rows, classes, class vectors of width 512, which are seen: nine classes of ten."""
    d_a = 512
    rng = random_stream(0, "bench's scale", device)
    attributes = torch.randn(n_classes, d_a, generator=rng, device=device)
    n_seen = max(n_classes * 9 // 10, 1)
    y = torch.arange(n_rows, device=device) % n_seen
    x = torch.empty(n_rows, d_x, device=device)
    mixing = torch.randn(d_a, d_x, generator=rng, device=device) / d_a**0.5
    for start in range(0, n_rows, 65536):
        block = slice(start, start + 65536)
        x[block] = (attributes[y[block]] @ mixing).relu_()
        x[block] += 0.1 * torch.rand(x[block].shape, generator=rng, device=device)
    return x, y, attributes, torch.arange(n_classes, device=device) < n_seen


def _memory(device: torch.device) -> float:
    """Most gigabytes in use so far: of the GPU since it was reset, of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 1e9
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e9


def _reset_memory(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def write_bench(found: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write ``bench.json``, and an SVG for each curve among the results."""
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    write_json(folder / "bench.json", found)
    written = [folder / "bench.json"]
    for axis, size in (("classes", "n_classes"), ("samples", "n_rows"), ("width", "d_x")):
        rows = [row for row in found["results"] if row.get("axis") == axis]
        if rows:
            seconds = [(row[size], row["seconds"]["median"]) for row in rows]
            gigabytes = [(row[size], row["gigabytes"]) for row in rows]
            figure = scale_figure({"seconds": seconds, "gigabytes": gigabytes}, axis, "a classifier epoch")
            with write_whole(folder / f"scale-{axis}.svg") as file:
                file.write(figure.encode())
            written.append(folder / f"scale-{axis}.svg")
    return written


def _row(part: str, axis: str, n_classes: int, n_rows: int, d_x: int, seconds: Sequence[float], **more: Any) -> Any:
    shape = f"{n_classes:,} × {n_rows:,}" if d_x == 2048 else f"{n_classes:,} × {n_rows:,}, {d_x}"
    sizes = {"n_classes": n_classes, "n_rows": n_rows, "d_x": d_x}
    return {"part": part, "shape": shape, "axis": axis, **sizes, "seconds": _spread(seconds), **more}


def _epoch_at(n_classes: int, n_rows: int, d_x: int, device: torch.device, precision: Precision, axis: str) -> Any:
    """A classifier epoch over all rows."""
    _reset_memory(device)
    x, y, attributes, seen = _large(n_classes, n_rows, d_x, device)
    classifier = CosineClassifier(n_epochs=1, lr_step=None)
    training = ClassifierTraining([classifier], x, y, attributes, seen, seeds=[0], precision=precision)
    del x
    seconds = timed(lambda: training.restart().run(), device, repeats=3, warm_up=2 if device.type == "cuda" else 0)
    return _row("epoch", axis, n_classes, n_rows, d_x, seconds, gigabytes=_memory(device))


def _train_at(n_classes: int, n_rows: int, device: torch.device, precision: Precision) -> Any:
    """The variant without generator from beginning to end: 840 steps of the mapping net, rows, 60 epochs."""
    _reset_memory(device)
    x, y, attributes, seen = _large(n_classes, n_rows, 2048, device)
    began = time.perf_counter()
    mapper = CenterMapper().fit(x, y, attributes, precision=precision)
    unseen = torch.nonzero(~seen).squeeze(1)
    pseudo_x, pseudo_y = synthesise(
        mapper,
        attributes[unseen],
        within_class_residuals(x, y),
        random_stream(0, "bench", device),
        n_per_class=max(n_rows // n_classes, 1),
        distribution="statistical",
    )
    x, y = torch.cat([x, pseudo_x]), torch.cat([y, unseen[pseudo_y]])
    CosineClassifier(n_epochs=_EPOCHS).fit(x, y, attributes, seen, precision=precision)
    seconds = time.perf_counter() - began
    return _row("trained", "whole", n_classes, n_rows, 2048, [seconds], gigabytes=_memory(device))


def _steps_at(n_classes: int, n_rows: int, n_steps: int, device: torch.device, precision: Precision) -> Any:
    """Some steps of a training that is too long to be made here, and what all of it would take."""
    _reset_memory(device)
    x, y, attributes, seen = _large(n_classes, n_rows, 2048, device)
    training = ClassifierTraining(
        [CosineClassifier(n_epochs=2)], x, y, attributes, seen, seeds=[0], precision=precision
    )
    del x
    n_all, training.n_steps = training.n_steps, n_steps
    train("classifier", training, 2)  # direct, then recorded
    seconds = timed(lambda: train("classifier", training, 1), device, repeats=3, warm_up=0)
    full = statistics.median(seconds) / n_steps * n_all * _EPOCHS
    return _row(
        f"{n_steps} steps",
        "whole",
        n_classes,
        n_rows,
        2048,
        seconds,
        gigabytes=_memory(device),
        extrapolated_seconds=full,
    )
