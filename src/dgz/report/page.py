"""The report folder: records in; ``index.html``, which opens from disk with no network, and ``report.md`` out."""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dgz.errors import DGZError
from dgz.files import write_whole
from dgz.records import Record
from dgz.report.figures import curve_figure, per_class_figure
from dgz.report.tables import HEADINGS, SCORES, markdown_table, oracle_rows, score_rows

_ORACLE_NOTE = (
    "The epoch with the best test H, chosen on the test rows themselves: to be compared with numbers chosen in the "
    "same way, and with no others."
)


def write_report(records: Sequence[Record], folder: str | Path, *, title: str, command: str) -> Path:
    """Write the page and its Markdown twin.

    Parameters
    ----------
    records : sequence of Record
        The runs to show, in order; those without scores are left out.
    folder : str or Path
        Gets ``index.html`` and ``report.md``.
    title : str
        Heading of the page.
    command : str
        What to type to make it again.

    Returns
    -------
    Path
        The page.
    """
    records = [record for record in records if record.scores]
    if not records:
        raise DGZError("A report needs at least one record with scores.")
    folder = Path(folder)
    rows, best_on_test = score_rows(records), oracle_rows(records)
    environment = Environment(
        loader=PackageLoader("dgz.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    html = environment.get_template("page.html.j2").render(
        title=title,
        command=command,
        headings=HEADINGS,
        rows=rows,
        oracle_rows=best_on_test,
        oracle_note=_ORACLE_NOTE,
        meanings=SCORES,
        runs=[
            (record, curve_figure(record), per_class_figure(record), _worst(record), list(_settings(record)))
            for record in records
        ],
    )
    meanings = "\n".join(f"- **{heading}**: {meaning}" for _, heading, meaning in SCORES)
    markdown = f"# {title}\n\n{markdown_table(HEADINGS, rows)}\n\n{meanings}\n\n"
    if best_on_test:
        markdown += f"## Oracle\n\n{_ORACLE_NOTE}\n\n{markdown_table(HEADINGS, best_on_test)}\n\n"
    markdown += f"Made by `{command}`.\n"
    for name, text in (("report.md", markdown), ("index.html", html)):
        with write_whole(folder / name) as file:
            file.write(text.encode())
    return folder / "index.html"


def _worst(record: Record, most: int = 5) -> list[tuple[str, str, float]]:
    """The classes that are recognised worst: name, group, accuracy."""
    unseen = {str(i) for i in record.unseen}
    ranked = sorted((a, c) for c, a in record.scores["per_class"].items() if a is not None)
    return [(record.class_names[c], "unseen" if c in unseen else "seen", a) for a, c in ranked[:most]]


def _settings(record: Record) -> Iterator[tuple[str, Any]]:
    """Settings by the names that ``--set`` knows them by: a part's kind under its own name, its settings with dots."""
    for key, value in record.params.items():
        if isinstance(value, Mapping):
            yield key, value["kind"]
            yield from ((f"{key}.{name}", inner) for name, inner in value.items() if name != "kind")
        else:
            yield key, value
