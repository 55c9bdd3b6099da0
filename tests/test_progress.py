import io
import sys
from types import SimpleNamespace

import pytest
from rich.console import Console

import dgz.progress as progress_module
from dgz.peers import METHODS
from dgz.progress import Progress, ProgressTable, terminal_table
from dgz.report.comparison import comparison_headings


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_log_gets_plain_lines_now_and_then(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with Progress("rows", total=2000, unit="rows", log_every=0.0) as progress:
        progress.advance(1000, note="loss 0.5")
        progress.advance(1000)
    assert log.getvalue().splitlines() == ["rows: 1,000 of 2,000 rows loss 0.5", "rows: 2,000 of 2,000 rows"]
    log.truncate(0)
    with Progress("quiet", total=2, log_every=60.0) as progress:
        progress.advance()
    assert log.getvalue().strip("\0") == ""


@pytest.mark.parametrize(("unit", "expected"), [("bytes", "500/500 bytes"), ("", "500/500")])
def test_a_terminal_gets_a_bar(monkeypatch: pytest.MonkeyPatch, unit: str, expected: str) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with Progress("load", total=500, unit=unit) as progress:
        progress.advance(500, note="done")
    assert expected in terminal.getvalue()
    assert "done" in terminal.getvalue()


def test_a_log_gets_a_line_for_every_row_of_a_table_that_changed(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    rows = [("zla", "60.0")]
    with ProgressTable("runs", ("Method", "H"), lambda: list(rows)) as progress:
        progress.total = 3
        progress.advance()
        rows.append(("dgz", "65.0"))
        progress.advance()
        rows[0] = ("zla", "61.0")
        progress.advance()
    assert log.getvalue().splitlines() == [
        "1 of 3 runs: zla: H 60.0",
        "2 of 3 runs: dgz: H 65.0",
        "3 of 3 runs: zla: H 61.0",
    ]


def test_a_comparison_is_legible_on_a_terminal_of_80_columns() -> None:
    numbers = ("59.6 ± 10.9", "66.4 ± 1.3", "62.8 ± 0.1", "78.0 ± 0.0", "55.7 ± 0.0", "0.859", "106.6 k", "1 of 2")
    terminal = io.StringIO()
    rows = [(name, *numbers) for name in METHODS]
    Console(file=terminal, width=80).print(terminal_table(comparison_headings(), rows))
    words = terminal.getvalue().split()
    for name in METHODS:
        assert words.count(name) == 1
    for part in ("59.6", "10.9", "0.859", "106.6"):
        assert words.count(part) == len(METHODS)
    # Headings alone are cut.
    assert "…" not in terminal.getvalue().replace("Seco…", "").replace("Para…", "")


def test_a_long_path_leaves_room_for_numbers() -> None:
    terminal = io.StringIO()
    Console(file=terminal, width=60).print(terminal_table(("Model", "Data", "H"), [("runs/" * 30, "CUB", "65.3")], 2))
    words = terminal.getvalue().split()
    assert "65.3" in words
    assert "".join(word for word in words if "/" in word or word.startswith("ru")) == "runs/" * 30


def test_a_terminal_gets_the_table_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    with ProgressTable("runs", ("Method", "H"), lambda: [("[zla]", "60.0")]) as progress:
        progress.total = 3
        progress.advance(note="zla-0")
    assert "[zla]" in terminal.getvalue()
    assert "1 of 3 runs" in terminal.getvalue()
    assert "zla-0" in terminal.getvalue()


def test_a_terminal_is_told_what_is_being_done_before_anything_is_finished(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal, asked = Terminal(), []
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "120")
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(progress_module, "time", SimpleNamespace(monotonic=lambda: clock.now))
    with ProgressTable("runs", ("Method", "H"), lambda: asked.append(0) or [("zla", "60.0")]) as progress:
        progress.total = 3
        assert not asked  # there may be nothing to ask about yet
        progress.advance(0, note="zla, seed 0: epoch 1 of 2")
        progress.advance(0, note="too soon")
        clock.now += 1.0
        progress.advance(0, note="epoch 2 of 2")
        assert len(asked) == 1
        progress.advance()
    assert "0 of 3 runs; zla, seed 0: epoch 1 of 2" in terminal.getvalue()
    assert "too soon" not in terminal.getvalue()
    assert "0 of 3 runs; epoch 2 of 2" in terminal.getvalue()
    assert len(asked) == 2


def test_a_log_is_told_now_and_then_what_is_being_done(monkeypatch: pytest.MonkeyPatch) -> None:
    log = io.StringIO()
    monkeypatch.setattr(sys, "stderr", log)
    with ProgressTable("runs", ("Method", "H"), lambda: [("zla", "60.0")]) as progress:
        progress.total = 3
        progress.advance(0, note="zla, seed 0: epoch 1 of 2")
        assert log.getvalue() == ""
        progress.log_every = 0.0
        progress.advance(0, note="zla, seed 0: epoch 2 of 2")
    assert log.getvalue() == "0 of 3 runs; zla, seed 0: epoch 2 of 2\n"
