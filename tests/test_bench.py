"""The benchmark: that it times every part on a tiny shape, and what it writes. No test asserts a time."""

import json

import pytest
import torch

from dgz import bench
from dgz.errors import DGZError
from dgz.generators import WGANGP
from dgz.nets import MLP, Critic

CPU = torch.device("cpu")


@pytest.fixture(autouse=True)
def short(monkeypatch):
    monkeypatch.setattr(bench, "_EPOCHS", 2)


@pytest.mark.parametrize("part", [part for part in bench.PARTS if part != "scale"])
def test_every_part_is_timed(part):
    lines = []
    found = bench.bench([part], ["tiny"], device="cpu", repeats=2, say=lines.append)
    assert found["format"] == "dgz-bench"
    assert found["device"].startswith("CPU")
    if part == "rate":
        assert found["tflops"].keys() == {"float32", "tf32", "bf16"}
        assert len(lines) == 3
        return
    assert len(found["results"]) == len(lines) == (2 if part == "many" else 1)
    for row in found["results"]:
        seconds = row["seconds"]
        assert 0 < seconds["least"] <= seconds["median"] <= seconds["most"] or part == "whole"
    json.dumps(found, allow_nan=False)


def test_an_epoch_at_any_size_gives_seconds_and_memory():
    row = bench._epoch_at(7, 60, 16, CPU, "tf32", "classes")
    assert (row["n_classes"], row["n_rows"], row["d_x"], row["axis"]) == (7, 60, 16, "classes")
    assert row["seconds"]["median"] > 0
    assert row["gigabytes"] > 0.01


def test_steps_of_a_long_training_are_extrapolated():
    row = bench._steps_at(10, 5120, 2, CPU, "tf32")
    # 5,120 rows are ten steps of 512, and a training has sixty epochs in earnest, two here.
    assert row["extrapolated_seconds"] == pytest.approx(row["seconds"]["median"] / 2 * 10 * 2)


@pytest.mark.parametrize("count", [1, 3])
def test_a_clock_gives_as_many_seconds_as_asked_for(count):
    calls = []
    assert len(bench.timed(lambda: calls.append(0), CPU, count, warm_up=2)) == count
    assert len(calls) == count + 2


def test_operations_of_a_generator_are_counted_from_its_networks():
    shape = bench.SHAPES["tiny"]
    _, flop = bench._time_generator(shape, "tf32", CPU, 1)
    first, second = WGANGP().widths(shape.d_x)
    generator = MLP([shape.d_a, shape.d_a], [first, second, shape.d_x])
    critic = Critic(shape.d_x, shape.d_a, first)
    weights = sum(values.numel() for net in (generator, critic) for values in net.parameters() if values.ndim == 2)
    # A forward and a backward pass of both are six operations per weight and row; one generator step in six passes.
    assert flop == pytest.approx(6 * 300 * weights * 3.5, rel=0.5)


def test_results_are_written_with_their_curves(tmp_path):
    rows = [bench._row("epoch", "samples", 5, n, 2048, [n / 1e3], gigabytes=0.1) for n in (10, 100)]
    written = bench.write_bench({"results": rows}, tmp_path / "out")
    assert [path.name for path in written] == ["bench.json", "scale-samples.svg"]
    assert json.loads((tmp_path / "out" / "bench.json").read_text())["results"][1]["n_rows"] == 100
    assert (tmp_path / "out" / "scale-samples.svg").read_text().startswith("<svg")


@pytest.mark.parametrize(
    ("parts", "shapes", "options", "word"),
    [
        (["speed"], ["tiny"], {}, "part"),
        (["rate"], ["huge"], {}, "shape"),
        (["rate"], ["tiny"], {"precision": "fp8"}, "precision"),
        (["rate"], ["tiny"], {"repeats": 0}, "repeats"),
        (["rate"], ["tiny"], {"device": "abacus"}, "device"),
    ],
)
def test_a_bad_choice_is_refused_in_a_sentence(parts, shapes, options, word):
    with pytest.raises(DGZError, match=word) as caught:
        bench.bench(parts, shapes, **options)
    assert "\n" not in str(caught.value)
