"""What a section of a report is made of: a page and its Markdown twin are two views of the same elements.

So a number that is on the page is in the Markdown file too, by construction.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import ClassVar

from dgz.report.tables import markdown_table


@dataclass(frozen=True, kw_only=True)
class Table:
    """Numbers as text: the first column names what a row is about.

    Attributes
    ----------
    title : str
    headings, rows
    notes : tuple of str
        Sentences between title and table.
    soft : frozenset of int
        Rows that stand back behind the others.
    style : str
        A class of the page's style sheet.
    """

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    notes: tuple[str, ...] = ()
    soft: frozenset[int] = frozenset()
    style: str = ""
    kind: ClassVar[str] = "table"


@dataclass(frozen=True, kw_only=True)
class Panel:
    """A picture."""

    svg: str
    title: str
    caption: str = ""


@dataclass(frozen=True, kw_only=True)
class Figures:
    """Pictures side by side; ``marks`` are colours and what they stand for, ``style`` a class of the style sheet."""

    panels: list[Panel]
    notes: tuple[str, ...] = ()
    marks: tuple[tuple[str, str], ...] = ()
    style: str = ""
    kind: ClassVar[str] = "figures"


@dataclass(frozen=True, kw_only=True)
class Fold:
    """Elements behind a click."""

    summary: str
    elements: list["Element"] = field(default_factory=list)
    kind: ClassVar[str] = "fold"


Element = Table | Figures | Fold


def markdown(elements: Sequence[Element]) -> Iterator[str]:
    """The paragraphs of a Markdown file that show the same; of pictures, their titles."""
    for element in elements:
        if isinstance(element, Figures):
            for panel in element.panels:
                yield f"*Figure on the page: {panel.title}.{' ' * bool(panel.caption)}{panel.caption}*"
            yield from element.notes
        elif isinstance(element, Fold):
            yield f"**{element.summary}**"
            yield from markdown(element.elements)
        else:
            if element.title:
                yield f"**{element.title}**"
            yield from element.notes
            yield markdown_table(element.headings, element.rows)
