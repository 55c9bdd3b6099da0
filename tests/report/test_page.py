"""The report page: what it says, that it stands alone, and how it looks to a browser."""

import re
from dataclasses import replace
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from dgz.data import load_numbers
from dgz.errors import DGZError
from dgz.experiments import run
from dgz.peers import CenterRidge
from dgz.records import Record
from dgz.report import write_report
from dgz.report.figures import curve_figure, per_class_figure


@pytest.fixture(scope="module")
def record() -> Record:
    return run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), load_numbers(0, n_train=10))


@pytest.fixture(scope="module")
def page(record: Record, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_report([record], tmp_path_factory.mktemp("report"), title="A <b>title", command="dgz demo")


def test_the_page_shows_the_records_scores(page: Path, record: Record) -> None:
    html = page.read_text()
    for key in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert f">{100 * record.scores[key]:.1f}</td>" in html
    assert record.data["hashes"]["split"][:12] in html
    assert "A &lt;b&gt;title" in html


def test_the_markdown_twin_shows_the_same_numbers(page: Path, record: Record) -> None:
    text = (page.parent / "report.md").read_text()
    assert f"| {100 * record.scores['h']:.1f} |" in text
    assert "Made by `dgz demo`." in text


def test_the_page_needs_nothing_from_elsewhere(page: Path) -> None:
    html = page.read_text()
    links = re.findall(r"""(?:src|href|url)\s*[=(]\s*["']?([^"')\s>]+)""", html)
    assert [link for link in links if not link.startswith(("#", "data:"))] == []
    assert "<script" not in html


def test_figures_are_valid_svg_in_the_pages_own_colours(record: Record) -> None:
    for figure in (curve_figure(record), per_class_figure(record)):
        assert ElementTree.fromstring(figure).tag.endswith("svg")  # noqa: S314 - our own text
        assert "currentColor" in figure
        assert "#123456" not in figure


def test_the_same_record_gives_the_same_figures(record: Record) -> None:
    assert curve_figure(record) == curve_figure(record)


def test_names_from_the_data_cannot_inject_markup(record: Record, tmp_path: Path) -> None:
    names = dict.fromkeys(record.class_names, "<script>alert(1)</script>")
    page = write_report([replace(record, class_names=names)], tmp_path, title="t", command="c")
    assert "<script" not in page.read_text()


def test_a_report_of_nothing_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match="at least one record"):
        write_report([], tmp_path, title="t", command="c")


def test_a_record_without_scores_has_nothing_to_show(record: Record, tmp_path: Path) -> None:
    with pytest.raises(DGZError, match="at least one record with scores"):
        write_report([replace(record, scores={})], tmp_path, title="t", command="c")
    page = write_report([record, replace(record, scores={}, method="Other")], tmp_path, title="t", command="c")
    assert "Other" not in page.read_text()


def test_an_oracle_is_labelled_and_in_a_table_of_its_own(record: Record, page: Path, tmp_path: Path) -> None:
    scores = {"acc_unseen": 0.111, "acc_seen": 0.222, "h": 0.148, "acc_zsl": 0.333}
    oracle = {**scores, "generator_epoch": 3, "epoch": 7, "n_candidates": 60}
    html = write_report([replace(record, oracle=oracle)], tmp_path, title="t", command="c").read_text()
    ours, _, rest = html.partition("<h2>Oracle</h2>")
    assert "14.8" not in ours
    assert "chosen on the test rows themselves" in rest
    row = [record.method, "numbers", "11.1", "22.2", "14.8", "33.3", "–", "oracle (best of 60)", "0"]
    assert re.findall(r"<td[^>]*>([^<]*)</td>", rest)[: len(row)] == row
    assert f"| {' | '.join(row)} |" in (tmp_path / "report.md").read_text().partition("## Oracle")[2]
    assert "racle" not in page.read_text() + (page.parent / "report.md").read_text()


def test_settings_of_a_part_are_named_as_they_are_set(record: Record, tmp_path: Path) -> None:
    params = {"lambda_1": 2.0, "generator": {"kind": "CVAE", "n_epochs": 9}}
    page = write_report([replace(record, params=params, chosen={})], tmp_path, title="t", command="c")
    assert "lambda_1 = 2.0, generator = CVAE, generator.n_epochs = 9" in page.read_text()


def test_a_resumed_training_shows_no_time_as_its_own(record: Record, tmp_path: Path) -> None:
    resumed = replace(record, seconds={"fit_resumed": 1.5, "evaluate": 0.25})
    html = write_report([resumed], tmp_path, title="t", command="c").read_text()
    assert "<td>–</td></tr>" in html
    assert "fit resumed 1.5 s, evaluate 0.2 s on" in html


def test_a_time_that_many_share_is_said_to_be_shared(record: Record, tmp_path: Path) -> None:
    shared = replace(record, seconds={"fit_together": 1.94, "fitted_together": 16, "evaluate": 0.25})
    html = write_report([shared], tmp_path, title="t", command="c").read_text()
    assert "<td>1.9 s / 16</td></tr>" in html
    assert "fit together 1.9 s of 16 models, evaluate 0.2 s on" in html


@pytest.fixture(scope="module")
def several(record: Record) -> list[Record]:
    """Two settings, with two seeds and with one."""
    runs = [(0, 0.01, 0.7), (1, 0.01, 0.8), (0, 0.1, 0.4)]
    oracle = {"acc_unseen": 0.9, "acc_seen": 0.9, "acc_zsl": 0.9, "generator_epoch": 3, "epoch": 7, "n_candidates": 60}
    return [
        replace(
            record,
            seed=seed,
            params=record.params | {"random_state": seed, "alpha": alpha},
            scores=record.scores | {"h": h},
            oracle=oracle | {"h": h + 0.1},
        )
        for seed, alpha, h in runs
    ]


def test_several_seeds_are_also_shown_by_their_mean(several: list[Record], tmp_path: Path) -> None:
    html = write_report(several, tmp_path, title="t", command="c").read_text()
    markdown = (tmp_path / "report.md").read_text()

    def rows(text: str, pattern: str) -> list[list[str]]:
        found = [re.findall(pattern, line) for line in text.splitlines()]
        cells = [[row[0].strip(), row[4].strip(), row[7].strip(), row[8].strip()] for row in found if len(row) >= 9]
        return [row for row in cells if row[0].startswith("CenterRidge")]

    expected = [
        ["CenterRidge (alpha=0.01)", "75.0 ± 7.1", "last", "2"],
        ["CenterRidge (alpha=0.1)", "40.0", "last", "1"],
        ["CenterRidge (alpha=0.01)", "70.0", "last", "0"],
        ["CenterRidge (alpha=0.01)", "80.0", "last", "1"],
        ["CenterRidge (alpha=0.1)", "40.0", "last", "0"],
        ["CenterRidge (alpha=0.01)", "85.0 ± 7.1", "oracle (best of 60)", "2"],
        ["CenterRidge (alpha=0.1)", "50.0", "oracle (best of 60)", "1"],
        ["CenterRidge (alpha=0.01)", "80.0", "oracle (best of 60)", "0"],
        ["CenterRidge (alpha=0.01)", "90.0", "oracle (best of 60)", "1"],
        ["CenterRidge (alpha=0.1)", "50.0", "oracle (best of 60)", "0"],
    ]
    assert rows(html, r"<td[^>]*>([^<]*)</td>") == expected
    assert rows(markdown, r"(?<=\|)([^|]+)(?=\|)") == expected
    for text in (html, markdown):
        assert text.count("Mean ± sample standard deviation over seeds.") == 1
    ours, _, rest = html.partition("<h2>Oracle</h2>")
    assert "85.0 ± 7.1" not in ours
    assert "75.0 ± 7.1" not in rest
    assert "<h2>CenterRidge (alpha=0.1) on numbers, seed 0</h2>" in rest


def test_without_a_second_seed_there_is_no_mean(several: list[Record], tmp_path: Path) -> None:
    html = write_report(several[1:], tmp_path, title="t", command="c").read_text()
    for text in (html, (tmp_path / "report.md").read_text()):
        assert "±" not in text
        assert "Each run" not in text
        assert "CenterRidge (alpha=0.1)" in text  # which of the two it is must be said all the same


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_means_and_single_runs(browser: Any, several: list[Record], tmp_path: Path, width: int) -> None:
    browser.set_window_size(width, 900)
    browser.get(write_report(several, tmp_path, title="t", command="c").resolve().as_uri())
    tables = browser.find_elements("css selector", "table")
    assert [len(table.find_elements("css selector", "tbody tr")) for table in tables] == [2, 3, 2, 3]
    for table in tables:  # the number to compare stands out, in its own column
        headings = [cell.text for cell in table.find_elements("css selector", "th")]
        cells = table.find_elements("css selector", "tbody tr:first-child td")
        assert [cell.get_attribute("class") for cell in cells].index("h") == headings.index("H")
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    assert browser.get_log("browser") == []


@pytest.mark.browser
@pytest.mark.parametrize("width", [1200, 390])
def test_a_browser_shows_table_and_figures_without_complaint(browser: Any, page: Path, width: int) -> None:
    browser.set_window_size(width, 900)
    browser.get(page.resolve().as_uri())
    assert browser.find_element("css selector", "td.h").is_displayed()
    figures = browser.find_elements("css selector", "figure svg")
    assert len(figures) == 2
    # Nothing may stick out of the page: people read it on phones too.
    assert browser.execute_script("return document.documentElement.scrollWidth <= window.innerWidth")
    for figure in figures:
        assert figure.size["width"] > 250
    assert browser.get_log("browser") == []
