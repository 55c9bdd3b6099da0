"""Tables of scores: records in, rows for a terminal, a Markdown file or a page out.

Percent appears here and nowhere to the left: people read it, code uses fractions.
"""

from collections.abc import Sequence

from dgz.records import Record

# Key in a record's scores, heading, and what it means to a reader.
SCORES = (
    ("acc_unseen", "U", "accuracy on unseen classes, all classes allowed"),
    ("acc_seen", "S", "accuracy on seen classes, all classes allowed"),
    ("h", "H", "harmonic mean of U and S: the number to compare"),
    ("acc_zsl", "T1", "accuracy on unseen classes, only unseen ones allowed"),
    ("ausuc", "AUSUC", "area under the curve of S over U as the balance between them is moved"),
)
HEADINGS = ("Method", "Data", *(heading for _, heading, _ in SCORES), "Selection", "Seed", "Train")


def score_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """One row of text per record, under HEADINGS; accuracies are per-class means in percent."""
    return [
        (
            record.method,
            record.data["name"],
            *(f"{100 * record.scores[key]:.1f}" for key, _, _ in SCORES),
            record.selection,
            str(record.seed),
            _training_time(record),
        )
        for record in records
    ]


def oracle_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """One row of text per record that has an oracle, under HEADINGS and labelled as what it is."""
    return [
        (
            record.method,
            record.data["name"],
            *(f"{100 * record.oracle[key]:.1f}" if key in record.oracle else "–" for key, _, _ in SCORES),
            f"oracle (best of {record.oracle['n_candidates']})",
            str(record.seed),
            _training_time(record),
        )
        for record in records
        if record.oracle is not None
    ]


def _training_time(record: Record) -> str:
    return f"{record.seconds['fit']:.1f} s" if "fit" in record.seconds else "–"


def markdown_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A Markdown table.

    Examples
    --------
    >>> print(markdown_table(["U", "S"], [["1.0", "2.0"]]))
    | U | S |
    | --- | --- |
    | 1.0 | 2.0 |
    """
    lines = [headings, ["---"] * len(headings), *rows]
    return "\n".join("| " + " | ".join(cell.replace("|", "\\|") for cell in line) + " |" for line in lines)
