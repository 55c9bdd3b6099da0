"""The report folder: records in; ``index.html``, which opens from disk with no network, and ``report.md`` out."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined

from dgz.errors import DGZError
from dgz.files import write_whole
from dgz.records import Record
from dgz.report.figures import curve_figure, embedded, per_class_figure
from dgz.report.tables import (
    HEADINGS,
    MEAN_HEADINGS,
    SCORES,
    flat_settings,
    markdown_table,
    mean_rows,
    method_names,
    oracle_repeats,
    oracle_rows,
    repeats,
    score_rows,
)

ORACLE_NOTE = (
    "The epoch with the best test H, chosen on the test rows themselves: to be compared with numbers chosen in the "
    "same way, and with no others."
)
MEANS_NOTE = "Mean ± sample standard deviation over seeds."


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
    groups = repeats(records)
    is_repeated = any(len(group.seeds) > 1 for group in groups)
    means, best_means = (mean_rows(groups), mean_rows(oracle_repeats(records))) if is_repeated else ([], [])
    html = render(
        "page.html.j2",
        title=title,
        command=command,
        headings=HEADINGS,
        mean_headings=MEAN_HEADINGS,
        rows=rows,
        mean_rows=means,
        means_note=MEANS_NOTE,
        oracle_rows=best_on_test,
        oracle_mean_rows=best_means,
        oracle_note=ORACLE_NOTE,
        meanings=SCORES,
        runs=[
            (name, record, *_figures(record), _worst(record), list(flat_settings(record)))
            for name, record in zip(method_names(records), records, strict=True)
        ],
        times=_times,
    )
    meanings = "\n".join(f"- **{heading}**: {meaning}" for _, heading, meaning in SCORES)
    in_short = f"{MEANS_NOTE}\n\n{markdown_table(MEAN_HEADINGS, means)}\n\n## Each run\n\n" if means else ""
    markdown = f"# {title}\n\n{in_short}{markdown_table(HEADINGS, rows)}\n\n{meanings}\n\n"
    if best_on_test:
        in_short = f"{markdown_table(MEAN_HEADINGS, best_means)}\n\n### Each run\n\n" if best_means else ""
        markdown += f"## Oracle\n\n{ORACLE_NOTE}\n\n{in_short}{markdown_table(HEADINGS, best_on_test)}\n\n"
    markdown += f"Made by `{command}`.\n"
    return write_page(folder, html, markdown)


def render(template: str, **content: Any) -> str:
    """A page of a template of this folder."""
    environment = Environment(
        loader=PackageLoader("dgz.report", "."), autoescape=True, undefined=StrictUndefined, trim_blocks=True
    )
    return environment.get_template(template).render(**content)


def write_page(folder: Path, html: str, markdown: str) -> Path:
    """Write a page and its Markdown twin, each whole or not at all; gives the page."""
    for name, text in (("report.md", markdown), ("index.html", html)):
        with write_whole(folder / name) as file:
            file.write(text.encode())
    return folder / "index.html"


def _figures(record: Record) -> tuple[str, str]:
    return embedded(curve_figure(record)), embedded(per_class_figure(record))


def _worst(record: Record, most: int = 5) -> list[tuple[str, str, float]]:
    """The classes that are recognised worst: name, group, accuracy."""
    unseen = {str(i) for i in record.unseen}
    ranked = sorted((a, c) for c, a in record.scores["per_class"].items() if a is not None)
    return [(record.class_names[c], "unseen" if c in unseen else "seen", a) for a, c in ranked[:most]]


def _times(record: Record) -> str:
    """How long each part took, and of how many models that is the time."""
    seconds = dict(record.seconds)
    n_models = seconds.pop("fitted_together", None)
    shared = f" of {n_models} models" if n_models else ""
    return ", ".join(
        f"{part.replace('_', ' ')} {value:.1f} s{shared if part.startswith('fit') else ''}"
        for part, value in seconds.items()
    )
