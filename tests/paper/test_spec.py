import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

from dgz.data import load_numbers
from dgz.errors import DataError, DGZError
from dgz.experiments import run
from dgz.metrics import harmonic_mean
from dgz.model import DGZ
from dgz.paper import Block, Item, Quoted, Row, Spec, Store, item_names, load_spec, paper_items
from dgz.paper.spec import METHODS, Kind, parse_spec
from dgz.peers import CenterRidge
from dgz.records import Record, read_record
from dgz.settings import configure

ITEMS = [
    "table1", "figure2", "proposition1", "table2", "table3", "figure4", "table4",
    "figureA1", "tableA1", "figureA2", "tableA2", "tableA3", "figureA3", "peers",
]  # fmt: skip
# What a record's scores and curves have; the last three where rows were generated.
SCORES = {"acc_unseen", "acc_seen", "h", "acc_zsl", "acc_intra_seen", "acc_intra_unseen", "ausuc", "auroc"}
SCORES |= {"cmmd", "cacd", "cacd_printed"}
PRESETS = ("AWA2", "CUB", "SUN", "APY")


@pytest.fixture(params=ITEMS)
def spec(request: pytest.FixtureRequest) -> Spec:
    return load_spec(request.param)


def entries(spec: Spec) -> Iterator[tuple[Row | Quoted, str, list[float]]]:
    """Every row with published numbers, the data set, and the numbers."""
    for entry in (*spec.rows, *spec.quoted):
        for data, numbers in entry.published.items():
            yield entry, data, numbers


# --- The specs of the paper.
def test_every_item_is_there_in_the_order_of_the_paper() -> None:
    assert item_names() == ITEMS
    assert paper_items() == ITEMS[:-1]
    assert all(row.alone == (name == "peers") for name in ITEMS for row in load_spec(name).rows)


def test_a_spec_says_what_it_shows_and_what_is_open(spec: Spec) -> None:
    assert spec.name in ITEMS
    assert spec.kind in get_args(Kind)
    assert spec.rows
    for text in (spec.title, spec.place, spec.note):
        assert text == " ".join(text.split())
        assert text
    assert spec.note.endswith(".")
    for claim in spec.claims:
        assert claim.text.endswith(".")
        assert claim.tests


def test_lines_of_a_spec_are_not_too_long(spec: Spec) -> None:
    from conftest import ROOT

    lines = (ROOT / "src" / "dgz" / "paper" / f"{spec.name}.toml").read_text(encoding="utf-8").splitlines()
    assert max(map(len, lines)) <= 120
    assert lines[0].startswith("# ")


def test_a_spec_names_known_things_only(spec: Spec) -> None:
    assert {row.method for row in spec.rows} <= set(METHODS)
    assert {row.method for row in spec.rows} == {"toy"} or spec.kind != "toy"
    assert set(spec.columns) <= SCORES
    assert {metric for panel in spec.panels for metric in panel.metrics} <= SCORES
    assert {test.get("metric", "h") for claim in spec.claims for test in claim.tests} <= SCORES
    assert {key for row in spec.rows for key in row.subset} <= {
        "share_of_classes", "n_rows", "n_rows_per_class", "n_steps"
    }  # fmt: skip
    assert {what for row in spec.rows for what in row.observe} <= {"projection", "gradients"}
    names = {name.partition("/")[0] for name in spec.data}
    assert all("/" in name for name in spec.data)
    assert names <= {"numbers", *PRESETS, *(f"{name}*" for name in PRESETS)}
    assert {data for _, data, _ in entries(spec)} <= {*names, *spec.data}
    for claim in spec.claims:
        assert set(claim.data) <= {*names, *spec.data}
        for test in claim.tests:
            elsewhere = {name.partition(": ")[0] for name in test["contrast"] if ": " in name}
            assert elsewhere <= names


def test_lines_have_panels_and_all_sweeps_are_drawn(spec: Spec) -> None:
    assert bool(spec.panels) == (spec.kind == "lines")
    assert {row.sweep for row in spec.rows} - {""} == {panel.sweep for panel in spec.panels} - {""}
    for panel in spec.panels:
        assert bool(panel.sweep) != bool(panel.rows)
        assert not panel.log or all(row.x for row in spec.rows if row.sweep == panel.sweep)
        curves = [spec.row(name) for name in panel.rows]
        assert all(row.evaluate_every for row in curves)


def test_contrasts_compare_like_with_like(spec: Spec) -> None:
    """Weights of a contrast sum to nothing, but for those that compare by a factor."""
    for claim in spec.claims:
        for test in claim.tests:
            weights = test["contrast"].values()
            assert len(weights) >= 2
            assert sum(weights) == pytest.approx(0, abs=1e-9) or {*map(abs, weights)} in ({1, 0.9}, {1, 1.1})
            assert -0.01 <= test.get("above", 0) <= 0.05
            assert 0 < test.get("within", 0.01) <= 0.02


@pytest.mark.parametrize("data", PRESETS)
def test_a_model_takes_the_settings_of_every_row_of_ours(spec: Spec, data: str) -> None:
    for row in spec.rows:
        if row.method.startswith("dgz"):
            model = DGZ.preset(data, source="paper", without_generator=row.method == "dgz-without-generator")
            configure(model, [f"{key}={value}" for key, value in row.set.items()]).check()


def test_rows_of_a_spec_differ(spec: Spec) -> None:
    """No two rows of a sweep, or outside of one, are the same model under two names."""
    for sweep in {row.sweep for row in spec.rows}:
        rows = [(row.method, row.set, row.subset) for row in spec.rows if row.sweep == sweep]
        assert all(rows.count(row) == 1 for row in rows)


# --- The published numbers.
def test_a_published_h_is_the_harmonic_mean_of_the_other_two(spec: Spec) -> None:
    if not {"acc_unseen", "acc_seen", "h"} <= set(spec.columns):
        return
    for entry, data, numbers in entries(spec):
        found = dict(zip(spec.columns, numbers, strict=False))
        # Two rounded accuracies move H by 0.1 at most, and it is rounded itself.
        assert harmonic_mean(found["acc_unseen"], found["acc_seen"]) == pytest.approx(found["h"], abs=0.15), (
            f"{entry.name}, {data}"
        )


def test_published_accuracies_are_in_percent_and_distances_are_not(spec: Spec) -> None:
    for _, _, numbers in entries(spec):
        for column, number in zip(spec.columns, numbers, strict=False):
            assert 0 < number < 1 if column == "cmmd" else 20 < number < 100


@pytest.mark.parametrize(
    ("item", "row", "data", "numbers"),
    [
        ("table1", "f-CLSWGAN LVG", "AWA2", [69.7, 62.8, 76.3, 68.9, 0.2523]),
        ("table1", "CE-GZSL SCG", "AWA2", [70.6, 63.2, 78.9, 70.2, 0.0071]),
        ("table2", "DGZ", "SUN", [48.6, 39.4, 43.5]),
        ("table2", "DGZ w/o GM", "APY*", [38.5, 67.4, 49.0]),
        ("table3", "(iv) w/o CR & M", "CUB", [44.7, 70.2, 54.7]),
        ("table4", "DGZ", "APY", [46.6]),
        ("tableA1", "FGM", "AWA2", [73.4, 60.8, 71.2, 65.6, 0.0333]),
        ("tableA2", "VAE + DGZ", "SUN", [49.9, 38.0, 43.2]),
        ("tableA3", "CN", "CUB", [68.1, 64.8, 66.4]),
    ],
)
def test_published_numbers_are_the_papers(item: str, row: str, data: str, numbers: list[float]) -> None:
    assert load_spec(item).row(row).published[data] == numbers


def test_numbers_of_other_methods_are_quoted_with_their_source() -> None:
    quoted = {entry.name: entry for entry in load_spec("table2").quoted}
    assert len(quoted) == 14
    assert quoted["ZLA"].published["CUB"] == [73.0, 64.8, 68.7]
    assert quoted["DPPN"].published["APY*"] == [40.0, 61.2, 48.4]
    assert all(entry.source for entry in quoted.values())
    for entry in quoted.values():
        are_starred = {data.endswith("*") for data in entry.published}
        assert are_starred == {entry.group == "fine-tuned features"}
    assert {entry.name: entry.published.get("SUN") for entry in load_spec("table4").quoted} == {
        "TCN": [61.5], "TF-VAEGAN": [66.0], "Chou et al.": [63.3], "IPN": None, "CE-GZSL": [63.3], "SDGZSL": None
    }  # fmt: skip


def test_dgz_has_the_same_numbers_wherever_it_is_shown() -> None:
    table2, table3, table4, tableA3 = map(load_spec, ("table2", "table3", "table4", "tableA3"))
    full, centres = table2.row("DGZ"), table2.row("DGZ w/o GM")
    for data in ("AWA2", "CUB"):
        assert full.published[data] == table3.row("full model").published[data]
        assert full.published[data] == tableA3.row("ours").published[data]
        assert centres.published[data] == table3.row("(vi) DIST → GC+SCG").published[data]
    assert full.published["AWA2"] == [67.4, 81.0, 73.6]
    # Table 4 has another score of the same model: more than among all classes, and of the same data sets.
    zsl = table4.row("DGZ")
    assert zsl.published["AWA2"] == [74.0]
    assert all(full.published[data][0] < numbers[0] for data, numbers in zsl.published.items())
    assert (zsl.method, zsl.set, zsl.evaluate_every) == (full.method, full.set, full.evaluate_every)
    assert table4.seeds == table2.seeds


def test_maps_show_the_generators_of_the_first_table() -> None:
    table = {row.name: (row.method, row.set) for row in load_spec("table1").rows}
    maps = {row.name.rpartition(") ")[2]: (row.method, row.set) for row in load_spec("figure2").rows}
    assert maps == table


# --- The format.
SMALL = """
title = "A table"
place = "Table 0"
kind = "table"
data = ["CUB/sent"]
[[row]]
name = "one"
method = "dgz"
[[row]]
name = "two"
method = "dgz"
set = {lambda_1 = 2}
"""


def test_a_small_spec_is_read_with_its_defaults() -> None:
    spec = parse_spec("small", SMALL)
    assert (spec.name, spec.title, spec.data, spec.seeds, spec.folds) == ("small", "A table", ("CUB/sent",), 5, 0)
    assert spec.columns == ("acc_unseen", "acc_seen", "h")
    assert [row.name for row in spec.rows] == ["one", "two"]
    assert spec.row("two").set == {"lambda_1": 2}
    assert (spec.quoted, spec.panels, spec.claims) == ((), (), ())


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        ("[[row]]\nname = 'one'\nmethod = 'dgz'", "several rows called 'one'"),
        ("[[row]]\nname = 'x'\nmethod = 'dgz'\ncolour = 'red'", "has colour in a row, unknown there"),
        ("[[row]]\nname = 'x'", "lacks method in a row"),
        ("[[row]]\nname = 'x'\nmethod = 'magic'", "method of 'x' in small must be one of dgz, .*found 'magic'"),
        ("[unknown]", "has unknown in a spec, unknown there"),
        ("[[claims]]\ntext = 'A claim.'\nplace = 'Table 0'", "has claims in a spec, unknown there"),
        ("[[row]]\nname = 'x'\nmethod = 'dgz'\npublished.CUB = [1, 2, 3, 4]", "x, CUB: found 4 numbers"),
        ("[[row]]\nname = 'x'\nmethod = 'dgz'\npublished.CUB = []", "x, CUB: found 0 numbers"),
        ("[[quoted]]\nname = 'x'\nsource = 'y'\npublished.CUB = [1, 2, 3, 4]", "x, CUB: found 4 numbers"),
        ("[[quoted]]\nname = 'x'\npublished.CUB = [1]", "lacks source in a quoted"),
        ("[[sweep]]\nname = 'σ'\nmethod = 'dgz'\nvalues = [1]", "lacks vary in a sweep"),
        ("[[sweep]]\nname = 'x'\nmethod = 'dgz'\nvary = 'sett.x'\nvalues = [1]", "has sett in a row, unknown there"),
        ("[[panel]]\ntitle = 'x'\nxlabel = 'x'\nmetrics = ['h']\nsweep = 'σ'", "draws the sweep 'σ'"),
        ("[[panel]]\ntitle = 'x'\nxlabel = 'x'\nmetrics = ['h']\nrows = ['three']", "has no row 'three'"),
    ],
)
def test_a_spec_that_cannot_be_meant_so_is_refused(more: str, sentence: str) -> None:
    with pytest.raises(DGZError, match=sentence):
        parse_spec("small", SMALL + more)


@pytest.mark.parametrize(
    ("test", "sentence"),
    [
        ("{contrast = {one = 1, three = -1}, above = 0}", "has no row 'three', which it speaks of"),
        ("{contrast = {'CUB: three' = 1, one = -1}, above = 0}", "has no row 'three', which it speaks of"),
        ("{contrast = {one = 1, two = -1}, above = 0, within = 1}", "needs one of 'above' and 'within': A claim"),
        ("{contrast = {one = 1, two = -1}}", "needs one of 'above' and 'within': A claim"),
        ("{contrast = {one = 1, two = -1}, below = 0}", "has below in a test, unknown there"),
        ("{above = 0}", "needs a 'contrast': A claim"),
    ],
)
def test_a_claim_that_cannot_be_decided_is_refused(test: str, sentence: str) -> None:
    claim = "[[claim]]\ntext = 'A claim.'\nplace = 'Table 0'\ntests = "
    sound = "{contrast = {one = 1, 'CUB: two' = -1}, above = 0}"
    assert len(parse_spec("small", f"{SMALL}{claim}[{sound}]").claims) == 1
    with pytest.raises(DGZError, match=sentence):
        parse_spec("small", f"{SMALL}{claim}[{test}]")


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(DGZError, match=r"kind of small must be one of table, lines, .*, found 'picture'"):
        parse_spec("small", re.sub(r'kind = "\w+"', 'kind = "picture"', SMALL))


def test_an_unknown_item_is_refused() -> None:
    with pytest.raises(DGZError, match=r"item must be one of table1, .*found 'table9'"):
        load_spec("table9")


def test_a_sweep_becomes_rows() -> None:
    spec = parse_spec(
        "small",
        SMALL
        + """
[[sweep]]
name = "σ"
series = "no prior"
method = "dgz"
set = {"generator.prior" = false}
evaluate_every = 30
vary = "set.generator.attribute_noise"
values = [0, 0.08]
published.CUB = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]]
[[sweep]]
name = "rows"
method = "dgz"
subset = {n_steps = 9}
vary = "subset.n_rows_per_class"
values = [15]
""",
    )
    first, second, third = spec.rows[2:]
    assert first == Row(
        name="no prior, σ = 0",
        method="dgz",
        set={"generator.prior": False, "generator.attribute_noise": 0},
        evaluate_every=30,
        published={"CUB": [1.0, 2.0, 3.0]},
        sweep="σ",
        series="no prior",
        x=0.0,
    )
    assert (second.name, second.x, second.set["generator.attribute_noise"]) == ("no prior, σ = 0.08", 0.08, 0.08)
    assert second.published == {"CUB": [4.0, 5.0, 6.0]}
    assert (third.name, third.subset, third.set) == ("rows = 15", {"n_steps": 9, "n_rows_per_class": 15}, {})


@pytest.mark.parametrize(
    ("item", "sweep", "series", "table", "key", "values"),
    [
        ("figure4", "samples per class", "", "set", "n_per_class", [10, 25, 50, 100, 200, 400]),
        ("figure4", "σ", "", "set", "generator.attribute_noise", [0, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64]),
        ("figure4", "λ1", "", "set", "lambda_1", [0.001, 0.005, 0.02, 0.1, 0.5, 2, 4, 8, 32]),
        ("figureA1", "share of classes", "ATA", "subset", "share_of_classes", [0.25, 0.5, 0.75, 1.0]),
        ("figureA1", "instances per class", "ORI", "subset", "n_rows_per_class", [15, 30, 45, 60]),
        (
            "figureA3", "σ", "no prior", "set", "generator.attribute_noise",
            [0, 0.005, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28],
        ),
    ],
)  # fmt: skip
def test_sweeps_of_the_paper(item: str, sweep: str, series: str, table: str, key: str, values: list[float]) -> None:
    rows = [row for row in load_spec(item).rows if (row.sweep, row.series) == (sweep, series)]
    assert [getattr(row, table)[key] for row in rows] == values
    assert [row.x for row in rows] == values


def test_augmented_and_original_rows_differ_in_the_noise_alone() -> None:
    rows = load_spec("figureA1").rows
    by_series: dict[str, list[Any]] = {"ORI": [], "ATA": []}
    for row in rows:
        noise = row.set["generator.attribute_noise"]
        assert noise == (0.08 if row.series == "ATA" else 0)
        by_series[row.series].append((row.sweep, row.x, row.subset, {**row.set, "generator.attribute_noise": 0}))
    assert by_series["ORI"] == by_series["ATA"]
    assert len(by_series["ORI"]) == 8


# --- The store.
@pytest.fixture(scope="module")
def record(tmp_path_factory: pytest.TempPathFactory) -> Record:
    folder = tmp_path_factory.mktemp("run")
    run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), load_numbers(4, n_train=8, n_test=4), folder)
    return read_record(folder)


@pytest.fixture
def item() -> Item:
    block = Block(
        data="CUB",
        semantics="sent",
        features="res101",
        rows={"full model": ["a1", "b2"], "(ii) w/o CR": ["c3"]},
        folds={"full model": ["d4"]},
    )
    return Item(name="table3", quick=False, blocks=[block], missing=["AWA2 was not found."])


def test_a_finished_run_is_read_back_as_it_was_written(record: Record, tmp_path: Path) -> None:
    store = Store(tmp_path / "new")
    assert not store.is_finished("a1")
    store.write("a1", record)
    assert store.is_finished("a1")
    assert not store.is_finished("b2")
    assert store.read("a1") == record
    assert store.record_path("a1") == tmp_path / "new" / "records" / "a1.json"


def test_an_unfinished_run_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="a1"):
        Store(tmp_path).read("a1")


def test_items_are_read_back_as_they_were_written(item: Item, tmp_path: Path) -> None:
    store = Store(tmp_path)
    assert list(store.items()) == []
    store.write_item(item)
    other = Item(name="figure4", quick=True, blocks=[], missing=[])
    store.write_item(other)
    assert list(store.items()) == [other, item]
    store.write_item(Item(name="figure4", quick=False, blocks=[], missing=[]))
    assert [found.quick for found in store.items()] == [False, False]


def test_a_block_has_a_title_for_people(item: Item) -> None:
    assert item.blocks[0].title == "CUB, res101, sent"
    assert Block(data="toy", semantics="", features="", rows={}, folds={}).title == "toy"


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"format": "dgz-record"}, "is not of an item"),
        ({"version": 9}, "is of an item of version 9, but this dgz reads 1"),
        ({"surprise": 1}, "broken: surprise should or should not be there"),
        ({"blocks": [{"data": "CUB"}]}, "broken: features, folds, rows, semantics should or should not be there"),
    ],
)
def test_foreign_items_are_refused(item: Item, tmp_path: Path, change: dict[str, Any], sentence: str) -> None:
    store = Store(tmp_path)
    store.write_item(item)
    path = tmp_path / "items" / "table3.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    with pytest.raises(DataError, match=sentence):
        list(store.items())


@pytest.mark.parametrize("text", ["", "{", "[]", '{"format": "dgz-item", "version": 1, "name": "table3"}'])
def test_a_broken_item_is_refused(item: Item, tmp_path: Path, text: str) -> None:
    store = Store(tmp_path)
    store.write_item(item)
    (tmp_path / "items" / "table3.json").write_text(text)
    with pytest.raises(DataError, match=r"table3\.json"):
        list(store.items())
