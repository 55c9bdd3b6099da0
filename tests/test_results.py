"""The committed results are what the specs say today: the same runs, all finished, none of them shortened, all small."""

from pathlib import Path
from statistics import fmean

import pytest

from conftest import ROOT
from dgz.paper import Block, Store, item_names, load_spec
from dgz.peers import METHODS
from dgz.report import write_paper_report
from dgz.reproduce import _Library, _plan

RESULTS = Store(ROOT / "results")
ITEMS = {item.name: item for item in RESULTS.items()}


@pytest.mark.data
@pytest.mark.parametrize("name", item_names())
def test_an_item_is_made_of_the_runs_that_its_spec_asks_for(name: str, data_root: Path) -> None:
    planned, _ = _plan(load_spec(name), _Library(data_root, None, quick=False), False, None, "auto")
    # A changed default gives another id: then the item is to be run again, or the change to be undone.
    assert ITEMS[name] == planned
    ids = [run for block in planned.blocks for runs in (*block.rows.values(), *block.folds.values()) for run in runs]
    assert ids
    assert all(map(RESULTS.is_finished, ids))


def test_records_are_results_and_small() -> None:
    paths = sorted((RESULTS.folder / "records").glob("*.json"))
    used = {
        run
        for item in ITEMS.values()
        for block in item.blocks
        for rows in (block.rows, block.folds)
        for runs in rows.values()
        for run in runs
    }
    assert {path.stem for path in paths} == used  # nothing is left over
    assert not any(RESULTS.read(path.stem).quick for path in paths)
    sizes = [path.stat().st_size for path in paths]
    assert max(sizes) < 100_000
    assert sum(sizes) < 12_000_000


def test_the_report_is_made_of_the_records(tmp_path: Path) -> None:
    write_paper_report(RESULTS.folder, tmp_path)
    # The page's figures may differ in a digit with another version of the library that draws them.
    assert (tmp_path / "report.md").read_text() == (RESULTS.folder / "report.md").read_text(), "dgz report results"


def comparison_on_cub(semantics: str) -> Block:
    (block,) = (block for block in ITEMS["peers"].blocks if (block.data, block.semantics) == ("CUB", semantics))
    return block


@pytest.mark.parametrize("semantics", ["sent", "att"])
def test_a_method_below_the_nearest_prototype_says_so(semantics: str) -> None:
    h = {
        name: fmean(RESULTS.read(run).scores["h"] for run in runs)
        for name, runs in comparison_on_cub(semantics).rows.items()
    }
    least = h["nearest prototype"]
    below = {row.method: h[row.name] for row in load_spec("peers").rows if h[row.name] < least}
    assert below  # or else the page on rivals is wrong
    for method, own in below.items():
        text = METHODS[method].__doc__ or ""
        assert "NearestPrototype" in text
        for number in (own, least - own):
            assert f"{100 * number:.1f}" in text, method


# README of ZLA, with sentence vectors: f-CLSWGAN 61.3, CE-GZSL 66.4, ZLA 68.7, all at the epoch that is best on test rows.
@pytest.mark.parametrize(("row", "published"), [("CE-GZSL", 0.051), ("ZLA", 0.074)])
def test_what_rivals_gain_over_the_first_of_them_is_what_was_published(row: str, published: float) -> None:
    block = comparison_on_cub("sent")

    def oracle(name: str) -> float:
        curves = [RESULTS.read(run).curve["classifier"] for run in block.rows[name]]
        assert len(curves) >= 3
        return fmean(max(curve["h"]) for curve in curves)

    assert oracle(row) - oracle("f-CLSWGAN") == pytest.approx(published, abs=0.03)
