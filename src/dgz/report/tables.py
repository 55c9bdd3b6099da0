"""Tables of scores: records in, rows for a terminal, a Markdown file or a page out.

Percent appears here and nowhere to the left: people read it, code uses fractions.
"""

import json
import statistics
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

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
MEAN_HEADINGS = (*HEADINGS[:-2], "Seeds")
_OF_NO_CONSEQUENCE = ("random_state", "verbose")  # to what two runs with different seeds have in common


# --- One row per run.
def score_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """One row of text per record, under HEADINGS; accuracies are per-class means in percent.

    Where settings differ between records of a method, the method's name says how.
    """
    return [
        (
            name,
            record.data["name"],
            *score_cells(record.scores),
            record.selection,
            str(record.seed),
            _training_time(record),
        )
        for name, record in zip(method_names(records), records, strict=True)
    ]


def score_cells(scores: Mapping[str, Any]) -> tuple[str, ...]:
    """Scores in percent, in the order of SCORES: the same text whether or not they went through a record's six digits.

    Examples
    --------
    >>> score_cells({"acc_unseen": 0.8474999999999999, "h": 0.8475})
    ('84.8', '–', '84.8', '–', '–')
    """
    return tuple(f"{100 * round(scores[key], 6):.1f}" if key in scores else "–" for key, _, _ in SCORES)


def oracle_rows(records: Sequence[Record]) -> list[tuple[str, ...]]:
    """One row of text per record that has an oracle, under HEADINGS and labelled as what it is."""
    return score_rows(_oracles(records))


def _oracles(records: Sequence[Record]) -> list[Record]:
    """Records with the scores of their oracle, and a selection rule that says so."""
    return [
        replace(record, scores=record.oracle, selection=f"oracle (best of {record.oracle['n_candidates']})")
        for record in records
        if record.oracle is not None
    ]


def _training_time(record: Record) -> str:
    """The time of a training; where several models shared it, by how many it is to be divided."""
    seconds = record.seconds
    if "fit_together" in seconds:
        return f"{seconds['fit_together']:.1f} s / {seconds['fitted_together']}"
    return f"{seconds['fit']:.1f} s" if "fit" in seconds else "–"


# --- One row per setting.
@dataclass(frozen=True, kw_only=True)
class Repeats:
    """Runs that differ in their seed alone.

    Attributes
    ----------
    method, data, selection : str
        What they have in common.
    settings : dict
        Of what they have in common, what other runs of the method have not.
    seeds : list of int
    mean, std : dict
        Mean and sample standard deviation of each score, as fractions; that of a single run is None.
    """

    method: str
    data: str
    settings: dict[str, Any]
    selection: str
    seeds: list[int]
    mean: dict[str, float]
    std: dict[str, float | None]


def repeats(records: Sequence[Record]) -> list[Repeats]:
    """Records grouped by everything but their seed, in order of first appearance.

    Examples
    --------
    >>> common = {"method": "DGZ", "data": {"name": "numbers"}, "selection": "last", "seconds": {}, "device": "CPU"}
    >>> common |= {"class_names": {}, "unseen": [], "versions": {}}
    >>> runs = [(0.5, 0, 0.70), (0.5, 1, 0.74), (2.0, 0, 0.6)]
    >>> records = [Record(params={"lambda_1": l}, seed=s, scores={"h": h}, **common) for l, s, h in runs]
    >>> [(found.settings, found.seeds, round(found.mean["h"], 3)) for found in repeats(records)]
    [({'lambda_1': 0.5}, [0, 1], 0.72), ({'lambda_1': 2.0}, [0], 0.6)]
    """
    groups: dict[str, list[int]] = {}
    for k, record in enumerate(records):
        params = {key: value for key, value in record.params.items() if key not in _OF_NO_CONSEQUENCE}
        groups.setdefault(_as_text([record.method, record.data, params, record.selection]), []).append(k)
    differences = varied_settings(records)
    found = []
    for places in groups.values():
        first, of_runs = records[places[0]], [records[k].scores for k in places]
        known = {key: [scores[key] for scores in of_runs] for key, _, _ in SCORES if all(key in one for one in of_runs)}
        found.append(
            Repeats(
                method=first.method,
                data=first.data["name"],
                settings=differences[places[0]],
                selection=first.selection,
                seeds=[records[k].seed for k in places],
                mean={key: statistics.fmean(values) for key, values in known.items()},
                std={key: statistics.stdev(values) if len(values) > 1 else None for key, values in known.items()},
            )
        )
    return found


def oracle_repeats(records: Sequence[Record]) -> list[Repeats]:
    """The same of the records' oracles, whose selection rule says what they are."""
    return repeats(_oracles(records))


def mean_rows(groups: Sequence[Repeats]) -> list[tuple[str, ...]]:
    """One row of text per group of runs, under MEAN_HEADINGS: mean ± sample standard deviation over seeds, in percent.

    A single run has no deviation.
    """
    return [
        (
            _name(group.method, group.settings),
            group.data,
            *(_mean_text(group.mean.get(key), group.std.get(key)) for key, _, _ in SCORES),
            group.selection,
            str(len(group.seeds)),
        )
        for group in groups
    ]


def _mean_text(mean: float | None, std: float | None) -> str:
    if mean is None:
        return "–"
    return f"{100 * mean:.1f}" if std is None else f"{100 * mean:.1f} ± {100 * std:.1f}"


# --- What runs are called.
def method_names(records: Sequence[Record]) -> list[str]:
    """What each record's run is called in a table: its method, and the settings in which it differs from the others."""
    return [_name(record.method, own) for record, own in zip(records, varied_settings(records), strict=True)]


def _name(method: str, settings: Mapping[str, Any]) -> str:
    return f"{method} ({', '.join(f'{key}={value}' for key, value in settings.items())})" if settings else method


def varied_settings(records: Sequence[Record]) -> list[dict[str, Any]]:
    """Of each record, the settings that are not the same in all records of its method; seeds are no settings.

    Those of a part are compared where the part is of one kind: a generator of another kind has other settings anyway.
    """
    values: dict[tuple[Any, ...], set[str]] = {}
    for record in records:
        for key, value in flat_settings(record):
            values.setdefault(_scope(record, key), set()).add(_as_text(value))
    return [
        {
            key: value
            for key, value in flat_settings(record)
            if key not in _OF_NO_CONSEQUENCE and len(values[_scope(record, key)]) > 1
        }
        for record in records
    ]


def flat_settings(record: Record) -> Iterator[tuple[str, Any]]:
    """Settings by the names that ``--set`` knows them by: a part's kind under its own name, its settings with dots."""
    for key, value in record.params.items():
        if isinstance(value, Mapping):
            yield key, value["kind"]
            yield from ((f"{key}.{name}", inner) for name, inner in value.items() if name != "kind")
        else:
            yield key, value


def _scope(record: Record, key: str) -> tuple[Any, ...]:
    """Among which records a setting is compared."""
    part = record.params[key.partition(".")[0]]
    return record.method, key, part["kind"] if isinstance(part, Mapping) and "." in key else None


def _as_text(content: Any) -> str:
    """The same text for the same content, whether or not it has been to a file and back, and for 1 as for 1.0."""
    return json.dumps(json.loads(json.dumps(content), parse_int=float), sort_keys=True)


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
