"""The committed results are what the specs say today: the same runs, all finished, none of them shortened, all small."""

from pathlib import Path

import pytest

from conftest import ROOT
from dgz.paper import Store, item_names, load_spec
from dgz.report import write_paper_report
from dgz.reproduce import _Library, _plan

RESULTS = Store(ROOT / "results")
ITEMS = {item.name: item for item in RESULTS.items()}
# Rows of the comparison that have not been run on real data yet, by the class vectors.
WAITING = {
    "sent": ("TF-VAEGAN", "GCM-CF", "Chou et al. (AGZSL)"),
    "att": ("TF-VAEGAN", "GCM-CF", "Chou et al. (AGZSL)"),
}


@pytest.mark.data
@pytest.mark.parametrize("name", item_names())
def test_an_item_is_made_of_the_runs_that_its_spec_asks_for(name: str, data_root: Path) -> None:
    planned, _ = _plan(load_spec(name), _Library(data_root, None, quick=False), False, None, "auto")
    # A changed default gives another id: then the item is to be run again, or the change to be undone.
    assert ITEMS[name] == planned
    ids = [run for block in planned.blocks for runs in (*block.rows.values(), *block.folds.values()) for run in runs]
    assert ids
    # The comparison grows run by run, and its page says which rows wait for more of them.
    unfinished = {
        (block.semantics, row)
        for block in planned.blocks
        for rows in (block.rows, block.folds)
        for row, runs in rows.items()
        if not all(map(RESULTS.is_finished, runs))
    }
    waiting = {(semantics, row) for semantics, rows in WAITING.items() for row in rows}
    assert unfinished == (waiting if name == "peers" else set())


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
    assert {path.stem for path in paths} <= used  # nothing is left over
    assert not any(RESULTS.read(path.stem).quick for path in paths)
    sizes = [path.stat().st_size for path in paths]
    assert max(sizes) < 100_000
    assert sum(sizes) < 12_000_000


def test_the_report_is_made_of_the_records(tmp_path: Path) -> None:
    write_paper_report(RESULTS.folder, tmp_path)
    # The page's figures may differ in a digit with another version of the library that draws them.
    assert (tmp_path / "report.md").read_text() == (RESULTS.folder / "report.md").read_text(), "dgz report results"
