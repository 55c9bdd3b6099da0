"""Methods side by side: their ordering, accuracy against time, and published numbers where they belong."""

from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from dgz.paper import Block, Item, Spec, Store, comparison_spec, load_spec
from dgz.paper.spec import METHODS
from dgz.peers import METHODS as MODELS
from dgz.records import Record
from dgz.report import read_runs, write_paper_report
from dgz.report.comparison import comparison_table, pareto_figure, pareto_front, place_labels, standings
from dgz.report.paper_runs import Part

SCORES = ("acc_unseen", "acc_seen", "h", "acc_zsl", "ausuc")


def record(h: float, seconds: float | None, seed: int = 0, size: int | None = 1_500_000, oracle: float = 0.9) -> Record:
    return Record(
        method="X",
        params={"n_epochs": 3},
        seed=seed,
        selection="last",
        data={"name": "CUB", "hashes": {"split": "abc"}},
        class_names={},
        unseen=[],
        scores=dict.fromkeys(SCORES, h),
        oracle={**dict.fromkeys(SCORES[:4], oracle), "n_candidates": 5, "epoch": 1, "generator_epoch": 1},
        seconds={"fit": seconds, "evaluate": 1.0} if seconds is not None else {"fit_resumed": 1.0},
        device="H200",
        n_parameters=size,
        versions={},
    )


RUNS = {
    "slow": [record(0.70, 50.0), record(0.72, 70.0, 1)],
    "fast": [record(0.60, 1.0), record(0.60, 1.0, 1)],
    "bad": [record(0.5, 2.0)],
    "never": [],
    "resumed": [record(0.65, None, size=None)],
}


@pytest.fixture
def part() -> Part:
    rows = {name: [f"{name}-{k}" for k in range(2)] for name in RUNS}
    block = Block(data="CUB", semantics="sent", features="res50", rows=rows, folds={})
    return Part(block=block, rows=RUNS, folds={})


@pytest.fixture
def spec() -> Spec:
    from dgz.paper import Row

    rows = tuple(Row(name=name, method="dgz") for name in ("bad", "never", "fast", "slow", "resumed"))
    return Spec(name="peers", title="T", place="P", kind="comparison", data=("CUB/sent",), columns=SCORES, rows=rows)


def test_methods_stand_in_the_order_of_h_with_time_and_size(spec: Spec, part: Part) -> None:
    table = comparison_table(spec, part)
    assert table.headings == ("Method", "U", "S", "H", "T1", "AUSUC", "Seconds", "Parameters", "Seeds")
    assert [row[0] for row in table.rows] == ["slow", "resumed", "fast", "bad", "never"]
    assert table.rows[0] == ("slow", *["71.0 ± 1.4"] * 5, "60", "1.5 M", "2")
    assert table.rows[1][6:] == ("–", "–", "1 of 2")
    assert table.rows[4] == ("never", *["–"] * 7, "not run yet")
    assert table.title == "Selection rule: last"


def test_standings_are_numbers(spec: Spec, part: Part) -> None:
    first, *_, last = standings(spec, part)
    assert (first.method, first.mean["h"], first.seconds) == ("slow", pytest.approx(0.71), 60)
    assert (first.n_parameters, first.n_finished, first.n_planned) == (1_500_000, 2, 2)
    assert first.std["h"] == pytest.approx(0.0141, abs=1e-4)
    assert (last.method, last.mean, last.seconds) == ("never", {}, None)


@pytest.mark.parametrize(
    ("points", "front"),
    [
        ([(1, 1), (2, 2), (3, 3)], [0, 1, 2]),
        ([(3, 1), (2, 2), (1, 3)], [2]),
        ([(1, 5), (1, 6), (2, 6)], [1]),  # of the same cost, the better one; no gain for more cost
        ([], []),
    ],
)
def test_the_front_is_what_no_other_beats(points: list[tuple[float, float]], front: list[int]) -> None:
    assert pareto_front(points) == front


def test_the_figure_shows_all_that_have_a_time(spec: Spec, part: Part) -> None:
    (panel,) = pareto_figure(spec, part).panels
    assert panel.title == "H against training time: CUB, res50, sent"
    assert panel.caption == "Not beaten in both: fast, slow."
    from base64 import b64decode

    text = panel.svg if "<svg" in panel.svg else b64decode(panel.svg.split(",", 1)[1].split('"')[0]).decode()
    for name in ("slow", "fast", "bad"):
        assert name in text
    assert "resumed" not in text


@pytest.mark.parametrize("seconds", [1e-4, 0.1, 0.116, 1.0, 3e5])
def test_a_single_method_has_a_figure_too(part: Part, spec: Spec, seconds: float) -> None:
    alone = Part(block=part.block, rows={"fast": [record(0.797, seconds)]}, folds={})
    (panel,) = pareto_figure(spec, alone).panels
    assert panel.caption == "Not beaten in both: fast."


def test_labels_cover_neither_each_other_nor_a_dot_nor_a_line() -> None:
    dots = [(100.0, 60.0), (104.0, 61.0), (109.0, 60.0), (108.0, 66.0), (300.0, 60.0), (395.0, 100.0), (20.0, 150.0)]
    labels = ["first one", "second", "the third one", "fourth", "far away", "at the edge", "on a line"]
    bars = [0.0, 3.0, 15.0, 0.0, 0.0, 0.0, 0.0]
    line = (20.0, 150.0, 200.0, 151.0)
    placed = place_labels(dots, bars, labels, (0.0, 0.0, 400.0, 200.0), [line])
    share = {"left": 0.0, "center": 0.5, "right": 1.0}  # of its width that a label has to the left of where it is
    boxes = []
    for (x, y), one, label in zip(dots, placed, labels, strict=True):
        left = x + one.right - share[one.end] * 5.2 * len(label)
        boxes.append((left, y + one.up - 5.5, left + 5.2 * len(label), y + one.up + 5.5))
    marks = [(x - 4, y - max(bar, 4), x + 4, y + max(bar, 4)) for (x, y), bar in zip(dots, bars, strict=True)]

    def apart(a: Any, b: Any) -> bool:
        return bool(a[2] <= b[0] + 1e-6 or b[2] <= a[0] + 1e-6 or a[3] <= b[1] + 1e-6 or b[3] <= a[1] + 1e-6)

    assert all(apart(a, b) for a, b in combinations(boxes, 2))
    assert all(apart(box, mark) for box in boxes for mark in [*marks, line])
    assert placed[4] == (7.0, 0.0, "left", False)  # with room to its right, it is there
    assert placed[5].end == "right"  # there was none
    # A label that could not be beside its dot has a line to it.
    assert {one.by_line for one in placed} == {True, False}
    assert all(one.by_line or max(abs(one.right), abs(one.up) - 5.5) <= 7.0 for one in placed)


def test_published_numbers_stand_beside_the_oracle_of_their_class_vectors(tmp_path: Path) -> None:
    peers = load_spec("peers")
    store = Store(tmp_path)
    blocks = []
    for semantics in ("sent", "att"):
        rows = {row.name: [f"cub-{semantics}-{row.method}"] for row in peers.rows}
        blocks.append(Block(data="CUB", semantics=semantics, features="res50", rows=rows, folds={}))
        for (name,) in rows.values():
            store.write(name, record(0.5, 3.0))
    store.write_item(Item(name="peers", quick=False, blocks=blocks, missing=[]))
    write_paper_report(tmp_path, specs={"peers": peers})
    text = (tmp_path / "report.md").read_text()
    sent, att = text.split("### peers: CUB, res50, sent")[1].split("### peers: CUB, res50, att")
    zla = [
        next(line for line in half.splitlines() if line.startswith("| ZLA") and "best of" in line)
        for half in (sent, att)
    ]
    assert "| 68.7 |" in zla[0]
    assert "| 55.0 |" in zla[1]
    ours = next(line for line in att.splitlines() if line.startswith("| DGZ |") and "best of" in line)
    assert "69.2" not in ours  # that was with sentence vectors
    html = (tmp_path / "index.html").read_text()
    assert "Rival methods and baselines side by side" in html
    assert html.count('class="figures panels wide"') == 2


def test_a_comparison_is_read_back_without_a_spec(tmp_path: Path) -> None:
    store = Store(tmp_path)
    rows = {"zla": ["a", "b"], "dgz": ["c", "d"]}
    block = Block(data="birds", semantics="att", features="x", rows=rows, folds={})
    store.write_item(Item(name="comparison", quick=False, blocks=[block], missing=[]))
    store.write("a", record(0.5, 3.0))
    (one,) = read_runs(tmp_path).items
    assert [row.name for row in one.spec.rows] == ["zla", "dgz"]
    assert one.spec.seeds == 2
    write_paper_report(tmp_path)
    text = (tmp_path / "report.md").read_text()
    assert text.startswith("# Methods side by side")
    assert "`dgz compare --data DIR --methods zla,dgz --seeds 2`" in text
    assert "## Claims" not in text
    assert 'id="claims"' not in (tmp_path / "index.html").read_text()


def test_specs_and_models_know_the_same_methods() -> None:
    assert set(MODELS) == set(METHODS) - {"toy"}


def test_a_comparison_of_unknown_methods_is_refused() -> None:
    from dgz.errors import DGZError

    with pytest.raises(DGZError, match="method of 'magic' in comparison must be one of dgz, "):
        comparison_spec(["magic"], "CUB/att", 3)
