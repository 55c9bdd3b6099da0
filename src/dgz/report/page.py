"""The report folder: records in; ``index.html``, which opens from disk with no network, and ``report.md`` out."""

from collections.abc import Sequence
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined

from dgz.errors import DGZError
from dgz.files import write_whole
from dgz.records import Record
from dgz.report.figures import curve_figure, per_class_figure
from dgz.report.tables import HEADINGS, SCORES, markdown_table, score_rows


def write_report(records: Sequence[Record], folder: str | Path, *, title: str, command: str) -> Path:
    """Write the page and its Markdown twin.

    Parameters
    ----------
    records : sequence of Record
        The runs to show, in order.
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
    if not records:
        raise DGZError("A report needs at least one record.")
    folder = Path(folder)
    rows = score_rows(records)
    environment = Environment(
        loader=PackageLoader("dgz.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    html = environment.get_template("page.html.j2").render(
        title=title,
        command=command,
        headings=HEADINGS,
        rows=rows,
        meanings=SCORES,
        runs=[(record, curve_figure(record), per_class_figure(record), _worst(record)) for record in records],
    )
    meanings = "\n".join(f"- **{heading}**: {meaning}" for _, heading, meaning in SCORES)
    markdown = f"# {title}\n\n{markdown_table(HEADINGS, rows)}\n\n{meanings}\n\nMade by `{command}`.\n"
    for name, text in (("report.md", markdown), ("index.html", html)):
        with write_whole(folder / name) as file:
            file.write(text.encode())
    return folder / "index.html"


def _worst(record: Record, most: int = 5) -> list[tuple[str, str, float]]:
    """The classes that are recognised worst: name, group, accuracy."""
    unseen = {str(i) for i in record.unseen}
    ranked = sorted((a, c) for c, a in record.scores["per_class"].items() if a is not None)
    return [(record.class_names[c], "unseen" if c in unseen else "seen", a) for a, c in ranked[:most]]
