"""Progress of long work: a bar or a table on a terminal, plain lines in a log.

It goes to standard error, so that standard output stays clean for ``--json`` and for results, whose tables look the
same.
"""

import math
import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich import box
from rich.console import Console, Group
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table
from rich.text import Text

_LONGEST_NAME = 24  # that is kept in one piece, so that numbers still have room on a terminal of 80 columns
_SECONDS_BETWEEN_NOTES = 0.5  # on a terminal, which a short epoch would otherwise keep busy


def terminal_table(headings: Sequence[str], rows: Sequence[Sequence[str]], n_names: int = 1) -> Table:
    """Rows of text under headings, to be printed: names in the first columns, numbers to the right in the others.

    Examples
    --------
    >>> table = terminal_table(["Method", "H", "T1"], [["zla", "65.3 ± 0.2", "77.6 ± 0.5"], ["tcn", "–", "–"]])
    >>> Console(width=40).print(table)  # doctest: +NORMALIZE_WHITESPACE
    <BLANKLINE>
     Method           H          T1
     ──────────────────────────────
     zla     65.3 ± 0.2  77.6 ± 0.5
     tcn              –           –
    <BLANKLINE>
    """
    table = Table(*headings, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    for column in table.columns[:n_names]:
        column.overflow = "fold"
    for column in table.columns[n_names:]:
        column.justify = "right"
    # Where there is too little room, numbers are broken at the spaces that they have.
    table.columns[0].no_wrap = all(len(row[0]) <= _LONGEST_NAME for row in rows)
    for row in rows:
        table.add_row(*map(escape, row))
    return table


class Progress:
    """Shows how far one piece of work has come.

    Parameters
    ----------
    label : str
        What is being done.
    total : int, optional
        How much there is to do; unknown without it.
    unit : str
        What is counted; ``"bytes"`` are shown as kB, MB, GB.
    log_every : float
        Seconds between two lines where standard error is no terminal.

    Examples
    --------
    >>> with Progress("folds", total=3, log_every=60) as progress:
    ...     for _ in range(3):
    ...         progress.advance()
    """

    def __init__(self, label: str, total: int | None = None, unit: str = "", log_every: float = 5.0) -> None:
        self.label, self.total, self.unit, self.log_every = label, total, unit, log_every
        self.done = 0
        self._logged_at = time.monotonic()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            count = DownloadColumn() if self.unit == "bytes" else MofNCompleteColumn()
            self._bar = RichProgress(
                TextColumn("{task.description}"),
                BarColumn(),
                count,
                TimeRemainingColumn(),
                TextColumn("{task.fields[note]}"),
                console=Console(stderr=True),
            )
            self._task = self._bar.add_task(self.label, total=self.total, note="")
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._bar is not None:
            self._bar.stop()

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count ``amount`` more as done, with an optional short ``note`` such as the current loss.

        With an amount of 0, the note says what is being done.
        """
        self.done += amount
        if self._bar is not None:
            self._bar.update(self._task, completed=self.done, total=self.total, note=note)
        elif time.monotonic() - self._logged_at >= self.log_every:
            self._logged_at = time.monotonic()
            of = f" of {self.total:,}" if self.total else ""
            sys.stderr.write(f"{self.label}: {self.done:,}{of} {self.unit} {note}".rstrip() + "\n")
            sys.stderr.flush()


class ProgressTable(Progress):
    """Shows how far one piece of work has come by a table of what has come of it so far.

    On a terminal the table is drawn anew whenever something is finished, with a line on what is being done; in a log, a
    row is a line whenever it has changed, and so is, now and then, what is being done.

    Parameters
    ----------
    label : str
        What is being done.
    headings : sequence of str
    rows : callable
        Gives the rows of text as they are now; the first column names what a row is about.
    """

    def __init__(self, label: str, headings: Sequence[str], rows: Callable[[], Sequence[Sequence[str]]]) -> None:
        super().__init__(label, log_every=60.0)
        self.headings, self.rows = headings, rows
        self._live: Live | None = None
        self._drawn_at = -math.inf
        self._shown: Sequence[Sequence[str]] = []
        self._said: dict[str, Sequence[str]] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._live = Live(console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count ``amount`` more as done, and show the table as it is now; with an amount of 0, what is being done."""
        self.done += amount
        now = time.monotonic()
        if self._live is not None:
            if amount or now - self._drawn_at >= _SECONDS_BETWEEN_NOTES:
                if amount or not self._shown:
                    self._shown = self.rows()
                self._live.update(self._drawn(note), refresh=True)
                self._drawn_at = now
            return
        if not amount:
            if now - self._logged_at >= self.log_every:
                self._logged_at = now
                sys.stderr.write(f"{self._count()}; {note}\n")
                sys.stderr.flush()
            return
        for row in self.rows():
            if row != self._said.get(row[0]):
                cells = (f"{heading} {cell}" for heading, cell in zip(self.headings[1:], row[1:], strict=True))
                sys.stderr.write(f"{self._count()}: {row[0]}: {', '.join(cells)}\n")
            self._said[row[0]] = row
        sys.stderr.flush()

    def _drawn(self, note: str) -> Group:
        return Group(
            terminal_table(self.headings, self._shown), Text(f"{self._count()}; {note}" if note else self._count())
        )

    def _count(self) -> str:
        return f"{self.done} of {'?' if self.total is None else self.total} {self.label}"
