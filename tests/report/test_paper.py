"""The report of a reproduction: its numbers, what it says of what is missing, and that the page stands alone."""

import re
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import replace
from html.parser import HTMLParser
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from conftest import ROOT
from dgz.errors import DGZError
from dgz.paper import Block, Item, Spec, Store, item_names, load_spec
from dgz.paper.spec import parse_spec
from dgz.records import Record
from dgz.report import readme_table, update_readme, write_paper_report, write_report
from dgz.report.paper_figures import line_figures, projection_figures, toy_figures, training_curve
from dgz.report.paper_runs import Part

TABLE = """
title = "With and without <generator>"
place = "Table 2 & more"
kind = "table"
note = "What is open."
data = ["AWA2/att", "CUB/sent", "CUB/att", "SUN/att"]
columns = ["acc_unseen", "acc_seen", "h", "cmmd"]
seeds = 3
folds = 2
row = [
  {name = "DGZ", method = "dgz", published = {AWA2 = [67.4, 81.0, 73.6, 0.0337], CUB = [70.1, 68.3, 69.2]}},
  {name = "DGZ w/o GM", method = "dgz-without-generator"},
]
quoted = [{name = "ZLA", source = "IJCAI 2022", published = {AWA2 = [65.4, 82.2, 72.8]}}]
[[claim]]
text = "The generator helps."
place = "Table 2"
tests = [{contrast = {"DGZ" = 1, "DGZ w/o GM" = -1}, metric = "h", above = 0.01}]
[[claim]]
text = "It makes rows alike."
place = "Table 2"
data = ["AWA2"]
tests = [{contrast = {"DGZ" = 1, "DGZ w/o GM" = -1}, metric = "cmmd", within = 0.002}]
"""
LINES = """
title = "Lines"
place = "Figure 4"
kind = "lines"
data = ["AWA2/att"]
columns = ["h"]
seeds = 2
[[row]]
name = "ATA"
method = "dgz"
evaluate_every = 10
[[sweep]]
name = "σ"
method = "dgz"
vary = "set.generator.attribute_noise"
values = [0, 0.08]
[[panel]]
title = "(a) noise"
xlabel = "σ"
metrics = ["acc_unseen", "h"]
sweep = "σ"
log = true
[[panel]]
title = "(b) centres"
xlabel = "epoch"
metrics = ["cacd"]
rows = ["ATA"]
"""
MAP = """
title = "Map"
place = "Figure 2"
kind = "projection"
data = ["AWA2/att"]
seeds = 1
row = [{name = "GEN", method = "dgz"}, {name = "LVG", method = "dgz"}]
"""
TOY = """
title = "Toy"
place = "Figure A.2"
kind = "toy"
seeds = 1
row = [{name = "(b) σ = 0", method = "toy"}, {name = "(c) σ = 1", method = "toy"}]
"""
GRADIENTS = """
title = "Gradients"
place = "Proposition 1"
kind = "gradients"
data = ["AWA2/att"]
seeds = 2
row = [{name = "mapped", method = "dgz"}]
"""
SPECS = {
    name: parse_spec(name, text)
    for name, text in {
        "figure2": MAP, "proposition1": GRADIENTS, "table2": TABLE, "figure4": LINES, "figureA2": TOY,
    }.items()
}  # fmt: skip
ORACLE = {"generator_epoch": 3, "epoch": 7, "n_candidates": 60}


def record(seed: int = 0, h: float = 0.7, *, oracle: bool = True, **changes: Any) -> Record:
    """A run whose U is H − 0.1, whose S is H + 0.1, and whose oracle is 0.02 better."""
    scores = {"acc_unseen": h - 0.1, "acc_seen": h + 0.1, "h": h, "acc_zsl": h + 0.05}
    best = {key: value + 0.02 for key, value in scores.items()} | ORACLE
    steps = [0.0, 0.5, 1.0]
    scores |= {
        "cmmd": 0.03 + seed / 1000,
        "per_class": {"0": 0.9, "1": 0.4, "2": None},
        "curve": {"seen_penalty": steps, "acc_unseen": steps, "acc_seen": steps[::-1]},
        "confusion": {"seen_as_unseen": 0.1 + seed / 100, "unseen_as_seen": 0.25},
    }
    parts: dict[str, Any] = {
        "params": {"n_epochs": 15, "generator": {"kind": "WGANGP", "n_epochs": 300}},
        "data": {"name": "AWA2", "hashes": {"split": "0123456789abcdef" * 4}},
        "class_names": {"0": "cat", "1": "<b>dog", "2": "eel"},
        "unseen": [1],
        "seconds": {"fit_together": 30.0, "fitted_together": 3, "evaluate": 0.5},
        "device": "NVIDIA H200",
        "versions": {"python": "3.12.1", "dgz": "0.3"},
    }
    return Record(
        method="DGZ", seed=seed, selection="last", scores=scores, oracle=best if oracle else None, **parts | changes
    )


def fill(folder: Path, name: str, blocks: Mapping[str, Mapping[str, list[Record | None]]], **changes: Any) -> None:
    """Write an item with the runs of each block (``AWA2/att``); None is a run that is not finished."""
    store, found = Store(folder), []
    for title, rows in blocks.items():
        data, _, semantics = title.partition("/")
        ids: dict[str, dict[str, list[str]]] = {"rows": {}, "folds": {}}
        for row, runs in rows.items():
            of, _, own = row.rpartition("folds of ")
            kind = "folds" if of or row.startswith("folds of ") else "rows"
            names = [f"{name}-{title}-{row}-{k}".replace("/", "_") for k in range(len(runs))]
            ids[kind][own] = names
            for run, one in zip(names, runs, strict=True):
                if one is not None:
                    store.write(run, one)
        found.append(Block(data=data, semantics=semantics, features="res101" if data else "", **ids))
    store.write_item(Item(**{"name": name, "quick": False, "blocks": found, "missing": [], **changes}))


def three(*hs: float, **changes: Any) -> list[Record | None]:
    return [record(seed, h, **changes) for seed, h in enumerate(hs)]


def points(n: int, n_classes: int = 0) -> dict[str, list[float]]:
    found: dict[str, list[float]] = {
        "x": [k * 0.37 % 5 - 2 for k in range(n)],
        "y": [k * 0.53 % 7 - 3 for k in range(n)],
    }
    return found | ({"class": [k % n_classes for k in range(n)]} if n_classes else {})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A reproduction with everything in it: finished, half finished and missing."""
    folder = tmp_path_factory.mktemp("reproduction")
    fill(
        folder,
        "table2",
        {
            "AWA2/att": {"DGZ": three(0.70, 0.72, 0.74), "DGZ w/o GM": three(0.66, 0.67, 0.71)},
            "CUB/sent": {"DGZ": three(0.60, 0.64), "DGZ w/o GM": [None, None, None]},
            "CUB/att": {"DGZ": [*three(0.5, 0.5), None], "DGZ w/o GM": three(0.5, 0.5, 0.5, oracle=False)},
        },
        missing=["SUN was not found: put <SUN> into DIR."],
    )
    curve = {
        "generator": {"epoch": [10, 20, 30], "loss": [1, 1, 1], "cacd": [0.4, None, 0.2]},
        "classifier": {"generator_epoch": [10, 10, 20, 20], "epoch": [1, 2, 1, 2], "h": [0.1, 0.2, 0.3, 0.4]},
    }
    sweep = {"σ = 0": three(0.5, 0.6), "σ = 0.08": three(0.7, 0.7)}
    fill(folder, "figure4", {"AWA2/att": {"ATA": three(0.6, 0.6, curve=curve), **sweep}})
    seen = {"classes": ["cat", "<i>dog"], "real": points(500, 2), "generated": points(400, 2), "perplexity": 30.0}
    fill(folder, "figure2", {"AWA2/att": {"GEN": three(0.6, observed={"projection": seen}), "LVG": [None]}})
    toy = {"truth": points(2000), "generated": points(300), "std": [0.25, 0.5], "std_with_prior": [0.9, 1.0]}
    fill(folder, "figureA2", {"": {name: three(0.5, observed={"toy": toy}) for name in ("(b) σ = 0", "(c) σ = 1")}})
    gradients = [{"largest_gap_to_autograd": 1e-7, "pull": 0.1}, {"largest_gap_to_autograd": 3e-7, "pull": None}]
    runs = [record(k, observed={"gradients": one}) for k, one in enumerate(gradients)]
    fill(folder, "proposition1", {"AWA2/att": {"mapped": [*runs]}})
    return folder


@pytest.fixture(scope="module")
def page(folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_paper_report(folder, tmp_path_factory.mktemp("page"), specs=SPECS)


# --- Reading pages.
class Page(HTMLParser):
    """Checks the nesting of a page, and collects the tables of each of its headings, and what it refers to."""

    EMPTY = ("meta", "link", "br", "img")

    def __init__(self, html: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.texts: dict[str, str] = {}
        self.tables: list[tuple[tuple[str, ...], list[list[str]]]] = []
        self.ids: list[str] = []
        self.targets: list[str] = []
        self.cells: list[str] | None = None
        self.feed(html)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        known = dict(attrs)
        assert len(known) == len(attrs), f"{tag} has an attribute twice"
        self.ids += [known["id"]] if known.get("id") else []
        self.targets += [value for key, value in attrs if key in ("href", "src") and value]
        if tag in self.EMPTY:
            return
        if tag == "p":
            assert not {"p", "summary", "table"} & set(self.open), "a paragraph cannot be here"
        self.open.append(tag)
        if tag in ("h1", "h2", "h3", "h4"):
            self.texts = {key: text for key, text in self.texts.items() if key < tag} | {tag: ""}
        elif tag == "table":
            self.tables.append((tuple(self.texts.values()), []))
        elif tag == "tr":
            self.tables[-1][1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][1][-1].append("")

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.handle_endtag(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] in self.texts:
            self.texts[self.open[-1]] += data
        elif {"td", "th"} & set(self.open):
            self.tables[-1][1][-1][-1] += data

    def table(self, *words: str) -> list[list[str]]:
        """The table under headings that hold these words, its heading first."""
        (found,) = [rows for headings, rows in self.tables if all(word in " / ".join(headings) for word in words)]
        return found


@pytest.fixture(scope="module")
def shown(page: Path) -> Page:
    return Page(page.read_text())


# --- Numbers.
def test_a_table_by_the_rule_last_has_our_rows_only(shown: Page) -> None:
    assert shown.table("table2", "AWA2", "rule: last") == [
        ["Method", "U", "S", "H", "CMMD", "Seeds"],
        ["DGZ", "62.0 ± 2.0", "82.0 ± 2.0", "72.0 ± 2.0", "0.03100 ± 0.00100", "3"],
        ["DGZ w/o GM", "58.0 ± 2.6", "78.0 ± 2.6", "68.0 ± 2.6", "0.03100 ± 0.00100", "3"],
    ]


def test_published_and_quoted_numbers_stand_beside_the_oracle(shown: Page) -> None:
    assert shown.table("table2", "AWA2", "rule: oracle") == [
        ["Method", "U", "U paper", "ΔU", "S", "S paper", "ΔS", "H", "H paper", "ΔH", "CMMD", "CMMD paper", "ΔCMMD", "Seeds", "Source"],
        ["DGZ", "64.0 ± 2.0", "67.4", "−3.4", "84.0 ± 2.0", "81.0", "+3.0", "74.0 ± 2.0", "73.6", "+0.4", "0.03100 ± 0.00100", "0.03370", "−0.00270", "3", "ours, best of 60"],
        ["DGZ w/o GM", "60.0 ± 2.6", "–", "–", "80.0 ± 2.6", "–", "–", "70.0 ± 2.6", "–", "–", "0.03100 ± 0.00100", "–", "–", "3", "ours, best of 60"],
        ["ZLA", "–", "65.4", "–", "–", "82.2", "–", "–", "72.8", "–", "–", "–", "–", "–", "quoted: IJCAI 2022"],
    ]  # fmt: skip


def test_published_numbers_of_cub_are_of_sentences(shown: Page) -> None:
    sentences = shown.table("table2", "CUB, res101, sent", "rule: oracle")
    assert sentences[0] == [
        "Method",
        "U",
        "U paper",
        "ΔU",
        "S",
        "S paper",
        "ΔS",
        "H",
        "H paper",
        "ΔH",
        "CMMD",
        "Seeds",
        "Source",
    ]
    assert sentences[1][1:4] == ["54.0 ± 2.8", "70.1", "−16.1"]
    attributes = shown.table("table2", "CUB, res101, att", "rule: oracle")
    assert attributes[0] == ["Method", "U", "S", "H", "CMMD", "Seeds", "Source"]


def test_unfinished_rows_say_how_far_they_are(shown: Page) -> None:
    sentences = shown.table("table2", "CUB, res101, sent", "rule: last")
    assert sentences[1] == ["DGZ", "52.0 ± 2.8", "72.0 ± 2.8", "62.0 ± 2.8", "0.03050 ± 0.00071", "2"]
    assert sentences[2] == ["DGZ w/o GM", "–", "–", "–", "–", "not run yet"]
    attributes = shown.table("table2", "CUB, res101, att", "rule: last")
    assert attributes[1][-1] == "2 of 3"
    oracle = shown.table("table2", "CUB, res101, att", "rule: oracle")
    assert oracle[1][-2] == "2 of 3"
    assert oracle[2] == ["DGZ w/o GM", "–", "–", "–", "0.03100 ± 0.00100", "–", "ours, no epochs to choose from"]


def test_tables_never_mix_rules(shown: Page) -> None:
    for headings, rows in shown.tables:
        title = headings[-1]
        assert ("paper" in " ".join(rows[0])) <= ("oracle" in title)
        assert any("quoted" in cell for row in rows for cell in row) <= ("oracle" in title)


def test_a_single_run_has_no_deviation(shown: Page) -> None:
    assert shown.table("figure2", "rule: last")[1:] == [
        ["GEN", "50.0", "70.0", "60.0", "1"],
        ["LVG", "–", "–", "–", "not run yet"],
    ]


def test_claims_are_decided_with_their_numbers(shown: Page) -> None:
    helps, alike = [rows for headings, rows in shown.tables if headings[1:2] == ("Claims",)]
    words = "H of “DGZ” minus “DGZ w/o GM” is above 1 points"
    assert helps == [
        ["Data", "Verdict", "Test", "Mean", "95 % interval", "Seeds", "Passed"],
        ["AWA2, res101, att", "holds", words, "+4.00 points", "+1.52 to +6.48", "3", "yes"],
        ["CUB, res101, sent", "not tested (runs missing: fewer than 2 of DGZ w/o GM)", words, "–", "–", "–", "–"],
        ["CUB, res101, att", "does not hold", words, "+0.00 points", "+0.00 to +0.00", "2", "no"],
        ["SUN/att", "not tested (data set missing)", words, "–", "–", "–", "–"],
    ]
    assert alike[1:] == [
        [
            "AWA2, res101, att", "holds", "CMMD of “DGZ” minus “DGZ w/o GM” is within ± 0.002", "+0.000000",
            "+0.000000 to +0.000000", "3", "yes",
        ]
    ]  # fmt: skip


def test_the_contents_count_verdicts_and_runs(shown: Page) -> None:
    contents = shown.tables[0][1]
    assert [row[0] for row in contents[1:]] == list(SPECS)
    assert contents[3][2:] == ["2 hold, 1 does not hold, 2 not tested", "13 of 17 runs"]
    assert contents[1][2:] == ["none", "1 of 2 runs"]


def test_a_block_says_where_its_numbers_come_from(page: Path) -> None:
    line = re.findall(r'<p class="facts">(.*?)</p>', page.read_text())
    # Three runs share a training of 30 s, so that each has 10 s of it.
    assert line[2] == (
        "data AWA2 · features res101 · class vectors att · split 0123456789ab · generator epochs 300 · "
        "classifier epochs 15 · seeds 0, 1, 2 · full training · NVIDIA H200 · 63.0 s in all"
    )
    assert "SUN was not found: put &lt;SUN&gt; into DIR." in page.read_text()
    assert "<code>dgz reproduce table2 --data DIR</code>" in page.read_text()
    assert "<code>dgz reproduce figureA2</code>" in page.read_text()


def test_the_head_sums_up_all_runs_once(folder: Path, page: Path, tmp_path: Path) -> None:
    n_runs = len(list((folder / "records").iterdir()))
    facts = dict(re.findall(r"<dt>([^<]*)</dt><dd>([^<]*)</dd>", page.read_text()))
    assert facts["Runs"] == f"{n_runs} finished"
    assert facts["Computing time"] == f"{n_runs * 10.5 / 60:.1f} min"
    assert (facts["Devices"], facts["Versions"]) == ("NVIDIA H200", "python 3.12.1, dgz 0.3")
    # The same run in two items counts once.
    store = Store(tmp_path)
    store.write("one", record())
    for name in ("table2", "figure4"):
        block = Block(data="AWA2", semantics="att", features="", rows={"DGZ": ["one"], "ATA": ["one"]}, folds={})
        store.write_item(Item(name=name, quick=False, blocks=[block], missing=[]))
    assert "<dt>Runs</dt><dd>1 finished</dd>" in write_paper_report(tmp_path, specs=SPECS).read_text()


def test_the_main_table_has_more_to_tell(shown: Page, page: Path) -> None:
    confusions = [rows for headings, rows in shown.tables if "confused" in headings[-1]]
    assert confusions[0][1:] == [["seen classes", "89.0", "11.0"], ["unseen classes", "25.0", "75.0"]]
    times = [rows for headings, rows in shown.tables if headings[-1] == "Time of a run"]
    assert times[0][1:] == [["fit together", "10.0", "3"], ["evaluate", "0.5", "3"]]
    assert page.read_text().count("Seen-unseen curve of DGZ") == 5  # rows with finished runs


# --- Validation.
def test_folds_choose_where_all_of_them_are_there(tmp_path: Path) -> None:
    def curve(*hs: float) -> dict[str, Any]:
        columns = {"generator_epoch": [3, 3], "epoch": [1, 2], "acc_unseen": [0.1, 0.3], "acc_seen": [0.2, 0.4]}
        return {"classifier": {**columns, "h": list(hs), "acc_zsl": [0.5, 0.5]}}

    ours = [record(0, curve=curve(0.5, 0.9)), record(1, curve=curve(0.6, 0.9)), None]
    folds = [record(0, curve=curve(0.8, 0.2)), record(1, curve=curve(0.4, 0.5))]
    blocks = {
        "AWA2/att": {"DGZ": ours, "DGZ w/o GM": ours, "folds of DGZ": folds, "folds of DGZ w/o GM": [folds[0], None]},
        "CUB/sent": {"DGZ": ours, "DGZ w/o GM": ours},
    }
    fill(tmp_path, "table2", blocks)
    shown = Page(write_paper_report(tmp_path, specs=SPECS).read_text())
    assert shown.table("AWA2", "rule: validation") == [
        ["Method", "U", "S", "H", "Seeds"],
        ["DGZ", "10.0 ± 0.0", "20.0 ± 0.0", "55.0 ± 7.1", "2 of 3"],
        ["DGZ w/o GM", "–", "–", "–", "1 of 2 runs on folds"],
    ]
    assert len([headings for headings, _ in shown.tables if "validation" in headings[-1]]) == 1
    rules = [
        headings[-1] for headings, _ in shown.tables if headings[-1].startswith("Selection") and "AWA2" in headings[2]
    ]
    assert rules == [f"Selection rule: {rule}" for rule in ("last", "validation", "oracle")]


# --- Figures.
def part(folder: Path, name: str) -> tuple[Spec, Part]:
    from dgz.report.paper_runs import read_runs

    (one,) = [one for one in read_runs(folder, SPECS).items if one.spec.name == name]
    return one.spec, one.parts[0]


def test_lines_are_drawn_for_what_is_finished(folder: Path) -> None:
    spec, found = part(folder, "figure4")
    figures = line_figures(spec, found)
    assert [panel.title for panel in figures.panels] == ["(a) noise", "(b) centres"]
    for label in (">U<", ">H<"):
        assert label in figures.panels[0].svg
    empty = line_figures(spec, replace(found, rows={}))
    assert (empty.panels, empty.notes) == ([], ("(a) noise: not run yet.", "(b) centres: not run yet."))


def test_a_curve_over_the_generators_epochs_takes_the_classifiers_last(folder: Path) -> None:
    _, found = part(folder, "figure4")
    one = found.rows["ATA"][0]
    assert training_curve(one, "h") == {10.0: 0.2, 20.0: 0.4}
    assert training_curve(one, "cacd") == {10.0: 0.4, 30.0: 0.2}
    assert training_curve(one, "acc_zsl") == {}


def test_points_are_all_drawn_and_take_little_room(folder: Path) -> None:
    spec, found = part(folder, "figure2")
    figures = projection_figures(spec, found)
    (panel,) = figures.panels
    assert (panel.svg.count("h0"), panel.svg.count("l4 4")) == (500, 400)
    assert len(panel.svg) < 40_000
    assert [name for _, name in figures.marks] == ["cat", "<i>dog"]
    assert all(color in panel.svg for color, _ in figures.marks)
    assert "LVG: not run yet." in figures.notes
    spec, found = part(folder, "figureA2")
    panels = toy_figures(spec, found).panels
    assert [(panel.title, panel.svg.count("h0")) for panel in panels] == [
        ("(a) truth", 2000), ("(b) σ = 0", 300), ("(c) σ = 1", 300),
    ]  # fmt: skip
    ticks = [re.findall(r"<text[^>]*>([^<]*)</text>", panel.svg) for panel in panels]
    assert ticks[0] == ticks[1] == ticks[2] != []


def test_figures_are_valid_and_each_finds_its_own_parts(page: Path) -> None:
    figures = re.findall(r"<svg.*?</svg>", page.read_text(), re.DOTALL)
    assert len(figures) == 16
    for svg in figures:
        tree = ElementTree.fromstring(svg)  # noqa: S314 - our own text
        names = {one.get("id") for one in tree.iter()} - {None}
        assert set(re.findall(r'#(\w+-\w+)[")]', svg)) <= names
        assert "#123456" not in svg


def test_labels_keep_their_digits() -> None:
    import io

    from dgz.report.figures import inline

    svg = inline(io.StringIO('<svg width="1.23456pt"><text x="0.98765">0.0337</text></svg>'), 'a "b" <c>')
    assert (
        svg
        == '<svg role="img" aria-label="a &quot;b&quot; &lt;c&gt;" width="1.23pt"><text x="0.98">0.0337</text></svg>'
    )


def test_what_was_observed_is_in_tables(shown: Page) -> None:
    assert shown.table("proposition1", "Gradients, means") == [
        ["Model", "largest gap to autograd", "pull", "Seeds"],
        ["mapped", "2e-07", "0.1", "2"],
    ]
    assert shown.table("figureA2", "Standard deviation")[1:] == [
        ["(b) σ = 0", "0.250", "0.500", "0.900", "1.000", "1"],
        ["(c) σ = 1", "0.250", "0.500", "0.900", "1.000", "1"],
    ]


# --- The page as a whole.
def test_the_page_needs_nothing_from_elsewhere(shown: Page, page: Path) -> None:
    html = page.read_text()
    assert "http" not in html
    assert "<script" not in html
    assert "@import" not in html
    own = {f"#{name}" for name in shown.ids}
    assert {target for target in shown.targets if not target.startswith("data:,")} <= own
    assert {f"#{name}" for name in (*SPECS, "claims")} <= own
    figures = re.findall(r"<svg.*?</svg>", html, re.DOTALL)
    of_figures = [re.findall(r'id="([^"]+)"', svg) for svg in dict.fromkeys(figures)]  # the same twice is no matter
    names = [*(name for names in of_figures for name in names), *SPECS, "claims"]
    assert sorted(set(shown.ids)) == sorted(names)


def test_the_page_is_small(page: Path) -> None:
    assert page.stat().st_size < 400_000


def test_names_cannot_inject_markup(page: Path) -> None:
    html = page.read_text()
    assert "With and without &lt;generator&gt;" in html
    assert "&lt;i&gt;dog" in html
    for text in ("<generator>", "<i>dog", "<b>dog", "<SUN>"):
        assert text not in html


def test_the_markdown_twin_has_the_same_tables(shown: Page, page: Path) -> None:
    text = (page.parent / "report.md").read_text()
    for _, rows in shown.tables[1:]:  # the first one, of contents, has a column less on the page
        for row in rows:
            assert f"| {' | '.join(row)} |" in text
    assert "2 hold, 1 does not hold, 2 not tested | 13 of 17 runs |" in text
    assert "SUN was not found: put <SUN> into DIR." in text


def test_the_same_folder_gives_the_same_page(folder: Path, page: Path, tmp_path: Path) -> None:
    assert write_paper_report(folder, tmp_path, specs=SPECS).read_bytes() == page.read_bytes()


def test_an_empty_folder_gives_a_page_of_what_is_to_come(tmp_path: Path) -> None:
    html = write_paper_report(tmp_path / "new", specs=SPECS).read_text()
    assert html.count("This was not run yet.") == len(SPECS)
    assert "not tested (runs missing: not run yet)" in html
    assert Page(html).tables


def test_items_without_a_spec_are_named(tmp_path: Path) -> None:
    fill(tmp_path, "table77", {})
    assert "table77: this dgz has no spec of it" in write_paper_report(tmp_path, specs=SPECS).read_text()


def test_quick_runs_are_no_results(tmp_path: Path, page: Path) -> None:
    blocks = {"AWA2/att": {"DGZ": three(0.7, 0.71, quick=True), "DGZ w/o GM": three(0.6, 0.61, quick=True)}}
    fill(tmp_path, "table2", blocks, quick=True)
    html = write_paper_report(tmp_path, specs=SPECS).read_text()
    assert '<p class="quick" role="alert">Quick run: shortened training, no results</p>' in html
    assert ">not tested (quick run)</td>" in html
    assert "quick run: shortened training, no results ·" in html
    assert ">holds</td>" not in html
    assert "**Quick run: shortened training, no results**" in (tmp_path / "report.md").read_text()
    assert "uick run" not in page.read_text()


def test_the_papers_own_items_are_shown_by_default(tmp_path: Path) -> None:
    names = item_names()
    block = Block(data="AWA2", semantics="att", features="", rows={"full model": ["one"]}, folds={})
    Store(tmp_path).write_item(Item(name="table3", quick=False, blocks=[block], missing=[]))
    Store(tmp_path).write("one", record())
    html = write_paper_report(tmp_path, command="dgz again").read_text()
    assert [name for name in re.findall(r'<section id="(\w+)"', html) if name != "claims"] == names
    for name in names:
        assert f"<code>dgz again {name}" in html
        for claim in load_spec(name).claims:
            assert claim.text.replace("'", "&#39;") in html
    assert "1 of 1 runs" in html


def test_a_report_loads_nothing_heavy(folder: Path, tmp_path: Path) -> None:
    script = (
        "import sys\nfrom dgz.report import write_paper_report\n"
        f"write_paper_report({str(folder)!r}, {str(tmp_path)!r})\n"
        "print(*[name for name in ('torch', 'sklearn') if name in sys.modules])"
    )
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True, cwd=ROOT / "src"
    )
    assert answer.stdout.split() == []


# --- The README.
README = "# T\n\n<!-- results: begin -->\nold\n<!-- results: end -->\n\nThe rest.\n"


def test_the_readmes_table_is_by_the_rule_last(folder: Path) -> None:
    assert readme_table(folder, specs=SPECS).splitlines()[:6] == [
        "| Method | Data | U | S | H | T1 | Seeds |",
        "| --- | --- | --- | --- | --- | --- | --- |",
        "| DGZ | AWA2, res101, att | 62.0 ± 2.0 | 82.0 ± 2.0 | 72.0 ± 2.0 | 77.0 ± 2.0 | 3 |",
        "| DGZ w/o GM | AWA2, res101, att | 58.0 ± 2.6 | 78.0 ± 2.6 | 68.0 ± 2.6 | 73.0 ± 2.6 | 3 |",
        "| DGZ | CUB, res101, sent | 52.0 ± 2.8 | 72.0 ± 2.8 | 62.0 ± 2.8 | 67.0 ± 2.8 | 2 |",
        "| DGZ | CUB, res101, att | 40.0 ± 0.0 | 60.0 ± 0.0 | 50.0 ± 0.0 | 55.0 ± 0.0 | 2 of 3 |",
    ]


def test_a_readme_is_changed_between_its_marks_only(folder: Path, tmp_path: Path) -> None:
    path = tmp_path / "README.md"
    path.write_text(README)
    assert update_readme(path, folder, specs=SPECS)
    text = path.read_text()
    assert text == README.replace("old", readme_table(folder, specs=SPECS))
    assert not update_readme(path, folder, specs=SPECS)
    assert path.read_text() == text


@pytest.mark.parametrize(
    "text",
    [
        "no marks",
        "<!-- results: begin -->",
        "<!-- results: end --> <!-- results: begin -->",
        f"{README}{README}",
    ],
)
def test_a_readme_without_marks_stays_as_it_is(folder: Path, tmp_path: Path, text: str) -> None:
    path = tmp_path / "README.md"
    path.write_text(text)
    with pytest.raises(DGZError, match=r"README\.md must hold <!-- results: begin -->"):
        update_readme(path, folder, specs=SPECS)
    assert path.read_text() == text


def test_a_readme_shows_results_only(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match="holds no finished runs of table2"):
        readme_table(tmp_path, specs=SPECS)
    fill(tmp_path, "table2", {"AWA2/att": {"DGZ": three(0.7, 0.7, quick=True)}}, quick=True)
    with pytest.raises(DGZError, match="are quick ones: no results"):
        readme_table(tmp_path, specs=SPECS)


# --- In a browser.
def column(table: Any, place: int) -> list[str]:
    return [
        row.find_elements("css selector", "td")[place].text for row in table.find_elements("css selector", "tbody tr")
    ]


@pytest.mark.browser
@pytest.mark.parametrize("width", [1300, 390])
def test_a_browser_shows_everything_within_its_width(browser: Any, page: Path, width: int) -> None:
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    browser.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    browser.get(page.resolve().as_uri())
    browser.execute_script("for (const one of document.querySelectorAll('details')) one.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    for svg in browser.find_elements("css selector", "figure svg"):
        assert svg.is_displayed()
        assert svg.size["width"] > 200
    assert browser.get_log("browser") == []


@pytest.mark.browser
def test_columns_are_sorted_by_their_buttons(browser: Any, page: Path) -> None:
    from selenium.webdriver.common.keys import Keys

    browser.get(page.resolve().as_uri())
    section = browser.find_element("id", "table2")
    table = section.find_elements("css selector", "table")[1]  # the oracle's, with quoted rows
    assert column(table, 0) == ["DGZ", "DGZ w/o GM", "ZLA"]
    heading = table.find_elements("css selector", "th")[8]
    button = heading.find_element("css selector", "button")
    assert (button.text, heading.get_attribute("aria-sort")) == ("H paper", None)
    button.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "descending"
    assert column(table, 8) == ["73.6", "72.8", "–"]
    button.send_keys(Keys.ENTER)
    assert heading.get_attribute("aria-sort") == "ascending"
    assert column(table, 8) == ["72.8", "73.6", "–"]  # what is not there comes last, either way
    name = table.find_elements("css selector", "th")[0]
    name.find_element("css selector", "button").click()
    assert (name.get_attribute("aria-sort"), heading.get_attribute("aria-sort")) == ("ascending", None)
    assert column(table, 0) == ["DGZ", "DGZ w/o GM", "ZLA"]
    minus = table.find_elements("css selector", "th")[3].find_element("css selector", "button")
    minus.click()
    minus.click()
    assert column(table, 3)[0] == "−3.4"


@pytest.mark.browser
def test_paper_gets_what_is_folded_and_no_contents(browser: Any, page: Path) -> None:
    browser.get(page.resolve().as_uri())
    count = "return document.querySelectorAll('details[open]').length"
    browser.execute_script("window.dispatchEvent(new Event('beforeprint'))")
    assert browser.execute_script(count) == len(browser.find_elements("css selector", "details"))
    browser.execute_script("window.dispatchEvent(new Event('afterprint'))")
    assert browser.execute_script(count) == 0
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    assert not browser.find_element("css selector", "nav").is_displayed()
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": ""})


@pytest.mark.browser
def test_dark_pages_are_dark(browser: Any, page: Path) -> None:
    def brightness() -> float:
        color = browser.execute_script("return getComputedStyle(document.body).backgroundColor")
        return float(sum(map(int, re.findall(r"\d+", color)[:3])) / 3)

    browser.get(page.resolve().as_uri())
    for scheme, is_bright in (("dark", False), ("light", True)):
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
        assert (brightness() > 128) == is_bright


@pytest.mark.browser
def test_tables_of_other_reports_are_sorted_too(browser: Any, tmp_path: Path) -> None:
    data = {"name": "AWA2", "features": "f", "semantics": "att", "n_seen": 2, "n_unseen": 1, "n_features": 4}
    data |= {"n_attributes": 2, "n_rows": {"train": 1, "test_seen": 1, "test_unseen": 1}, "hashes": {"split": "ab"}}
    runs = [record(seed, h, data=data) for seed, h in enumerate((0.2, 0.7, 0.5))]
    browser.get(write_report(runs, tmp_path, title="t", command="c").resolve().as_uri())
    table = browser.find_elements("css selector", "table")[1]
    table.find_elements("css selector", "th button")[4].click()
    assert column(table, 4) == ["70.0", "50.0", "20.0"]
    assert browser.get_log("browser") == []
