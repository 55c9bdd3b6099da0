"""Progress of long work: a bar on a terminal, plain lines in a log.

Both go to standard error, so that standard output stays clean for tables and ``--json``.
"""

import sys
import time
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Self

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as RichProgress
from rich.table import Table


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
        """Count ``amount`` more as done, with an optional short ``note`` such as the current loss."""
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

    On a terminal the table is drawn anew whenever something is finished; in a log, a row is a line whenever it has
    changed.

    Parameters
    ----------
    label : str
        What is being done.
    headings : sequence of str
    rows : callable
        Gives the rows of text as they are now; the first column names what a row is about.
    """

    def __init__(self, label: str, headings: Sequence[str], rows: Callable[[], Sequence[Sequence[str]]]) -> None:
        super().__init__(label)
        self.headings, self.rows = headings, rows
        self._live: Live | None = None
        self._said: dict[str, Sequence[str]] = {}

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            self._live = Live(self._table(""), console=Console(stderr=True), transient=True, auto_refresh=False)
            self._live.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        if self._live is not None:
            self._live.stop()

    def advance(self, amount: int = 1, note: str = "") -> None:
        """Count ``amount`` more as done, and show the table as it is now."""
        self.done += amount
        if self._live is not None:
            self._live.update(self._table(note), refresh=True)
            return
        for row in self.rows():
            if row != self._said.get(row[0]):
                cells = (f"{heading} {cell}" for heading, cell in zip(self.headings[1:], row[1:], strict=True))
                sys.stderr.write(f"{self.done} of {self.total} {self.label}: {row[0]}: {', '.join(cells)}\n")
            self._said[row[0]] = row
        sys.stderr.flush()

    def _table(self, note: str) -> Table:
        caption = f"{self.done} of {self.total if self.total is not None else '?'} {self.label}"
        table = Table(*self.headings, caption=escape(f"{caption}; {note}" if note else caption))
        for column in table.columns[1:]:
            column.justify = "right"
        for row in self.rows():
            table.add_row(*map(escape, row))
        return table
