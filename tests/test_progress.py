import io
import sys

import pytest

from dgz.progress import Progress


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
