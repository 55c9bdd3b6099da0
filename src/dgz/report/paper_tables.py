"""Tables of the reproduction: an item's finished runs in, rows of text out.

Each table is of one selection rule. Most published numbers were chosen on the test rows, so they stand beside our
oracle and nowhere else.
"""

import statistics
from collections.abc import Mapping, Sequence
from typing import Any

from dgz.paper.claims import Decision, Outcome, planned, score_of
from dgz.paper.spec import Quoted, Row, Spec
from dgz.paper.store import Block
from dgz.records import Record, validation
from dgz.report.elements import Table
from dgz.report.page import MEANS_NOTE, ORACLE_NOTE
from dgz.report.paper_runs import Part
from dgz.report.tables import SCORES

# Key in a record's scores, heading, and what it means to a reader: those of every report, and the paper's others.
MEANINGS = (
    *SCORES,
    ("acc_intra_seen", "Aⁱˢ", "accuracy on seen classes, only seen ones allowed"),
    ("acc_intra_unseen", "Aⁱᵘ", "accuracy on unseen classes, only unseen ones allowed: the same as T1"),
    ("auroc", "AUROC", "how well seen and unseen rows are told apart"),
    ("cmmd", "CMMD", "how far generated rows are from real ones, class by class: less is better"),
    ("cacd", "CACD", "how far generated class centres are from real ones: less is better"),
    (
        "cacd_printed",
        "CACD as printed",
        "the same by the formula that the paper prints, which sums where it says average",
    ),
)
_HEADINGS = {key: heading for key, heading, _ in MEANINGS}
_DECIMALS = {"cmmd": 5}  # on some data it is below 0.001
_OF_NO_RULE = ("cmmd", "cacd", "cacd_printed")  # they are of generated rows, which no classifier's epoch changes
_PERCENT = frozenset(_HEADINGS) - set(_OF_NO_RULE)
NOTHING = "–"


# --- Numbers as text.
def heading(key: str) -> str:
    """What a score is called in a table.

    Examples
    --------
    >>> heading("acc_unseen"), heading("largest_gap")
    ('U', 'largest gap')
    """
    return _HEADINGS.get(key, key.replace("_", " "))


def is_percent(key: str) -> bool:
    """Whether a score is shown in percent; distances are shown as they are."""
    return key in _PERCENT


def score_text(key: str, value: float) -> str:
    """A score for people: percent, or a distance with four or five decimals.

    Examples
    --------
    >>> score_text("h", 0.7361), score_text("cmmd", 0.03371)
    ('73.6', '0.03371')
    """
    return f"{100 * value:.1f}" if is_percent(key) else f"{value:.{_DECIMALS.get(key, 4)}f}"


def difference_text(key: str, value: float) -> str:
    """A difference of scores with its sign, in points for what is shown in percent.

    Examples
    --------
    >>> difference_text("h", -0.0123), difference_text("cmmd", 0.0004)
    ('−1.2', '+0.00040')
    """
    text = score_text(key, abs(value))
    is_nothing = not text.strip("0.")
    return text if is_nothing else f"{'+' if value > 0 else '−'}{text}"


def mean_text(key: str, values: Sequence[float]) -> str:
    """Mean ± sample standard deviation; that of a single value is not known.

    Examples
    --------
    >>> mean_text("h", [0.70, 0.72]), mean_text("h", [0.7]), mean_text("h", [])
    ('71.0 ± 1.4', '70.0', '–')
    """
    if not values:
        return NOTHING
    mean = score_text(key, statistics.fmean(values))
    return mean if len(values) < 2 else f"{mean} ± {score_text(key, statistics.stdev(values))}"


def seeds_text(n_finished: int, n_planned: int) -> str:
    """How many runs a row is made of.

    Examples
    --------
    >>> seeds_text(5, 5), seeds_text(3, 5), seeds_text(0, 5)
    ('5', '3 of 5', 'not run yet')
    """
    if not n_finished:
        return "not run yet"
    return str(n_finished) if n_finished >= n_planned else f"{n_finished} of {n_planned}"


# --- Tables of scores, one per selection rule.
def score_tables(spec: Spec, part: Part, columns: Sequence[str] = ()) -> list[Table]:
    """The tables of a block: ``last``, ``validation`` where there are folds, and ``oracle`` with published numbers."""
    keys = tuple(columns) or spec.columns
    on_folds = validation_table(spec, part, keys)
    return [last_table(spec, part, keys), *([on_folds] if on_folds else []), oracle_table(spec, part, keys)]


def last_table(spec: Spec, part: Part, keys: Sequence[str]) -> Table:
    """Our rows by the rule ``last``."""
    rows = []
    for row in spec.rows:
        found = part.rows.get(row.name, [])
        cells = (mean_text(key, values_of(found, key)) for key in keys)
        rows.append((row.name, *cells, seeds_text(len(found), part.planned(row.name))))
    headings = ("Method", *map(heading, keys), "Seeds")
    return Table(title="Selection rule: last", headings=headings, rows=rows, notes=_notes(rows))


def validation_table(spec: Spec, part: Part, keys: Sequence[str]) -> Table | None:
    """Our rows at the epoch that leak-free folds choose; None where no row has finished runs on folds."""
    if not spec.folds or not any(part.folds.values()):
        return None
    keys = [key for key in keys if key not in _OF_NO_RULE]
    rows = []
    for row in spec.rows:
        planned, folds = len(part.block.folds.get(row.name, ())), part.folds.get(row.name, [])
        if not planned:
            continue
        if len(folds) < planned:
            rows.append((row.name, *(NOTHING for _ in keys), f"{len(folds)} of {planned} runs on folds"))
            continue
        picked = picked_on_folds(part, row.name)
        cells = (mean_text(key, [one[key] for one in picked if one.get(key) is not None]) for key in keys)
        rows.append((row.name, *cells, seeds_text(len(picked), part.planned(row.name))))
    headings = ("Method", *map(heading, keys), "Seeds")
    note = "The epoch with the best mean H on leak-free folds of the training rows."
    return Table(title="Selection rule: validation", headings=headings, rows=rows, notes=(note, *_notes(rows)))


def picked_on_folds(part: Part, row: str) -> list[dict[str, Any]]:
    """Scores of a row's runs at the epoch that leak-free folds choose; none until all runs on folds are there."""
    folds = part.folds.get(row, [])
    if len(folds) < len(part.block.folds.get(row, ())):  # fewer would choose another epoch
        return []
    curves = [fold.curve for fold in folds]
    return [one for record in part.rows.get(row, []) if (one := validation(record.curve, curves))]


def oracle_table(spec: Spec, part: Part, keys: Sequence[str]) -> Table:
    """Our rows at the epoch that is best on the test rows, beside published numbers, which were chosen so too."""
    ours = [(row, published(row, spec, part.block)) for row in spec.rows]
    quoted = [(one, numbers) for one in spec.quoted if (numbers := published(one, spec, part.block))]
    with_paper = [key for key in keys if any(key in numbers for _, numbers in (*ours, *quoted))]
    headings: list[str] = []
    for key in keys:
        headings += [heading(key), *([f"{heading(key)} paper", f"Δ{heading(key)}"] if key in with_paper else [])]
    rows = [_oracle_row(row, part, keys, with_paper, numbers) for row, numbers in ours]
    rows += [_quoted_row(one, keys, with_paper, numbers) for one, numbers in quoted]
    free = " and ".join(heading(key) for key in keys if key in _OF_NO_RULE)
    own = (f"No rule chooses {free}: generated rows are the last ones of a run.",) if free else ()
    paper = ("“Paper” is what was published, and Δ is ours minus that, in points.",) if with_paper else ()
    return Table(
        title="Selection rule: oracle",
        headings=("Method", *headings, "Seeds", "Source"),
        rows=rows,
        notes=(ORACLE_NOTE, *paper, *own),
        soft=frozenset(range(len(spec.rows), len(rows))),
        style="sourced",
    )


def published(entry: Row | Quoted, spec: Spec, block: Block) -> dict[str, float]:
    """Published numbers of a row for a block, in the units of our scores; empty where there are none.

    Those of CUB were measured with sentence vectors unless they say otherwise, and stand beside no others.
    """
    own = entry.published.get(f"{block.data}/{block.semantics}")
    if own is None and block.data.rstrip("*") == "CUB" and block.semantics != "sent":
        return {}
    numbers = zip(spec.columns, entry.published.get(block.data, []) if own is None else own, strict=False)
    return {key: number / 100 if is_percent(key) else number for key, number in numbers}


def _oracle_row(
    row: Row, part: Part, keys: Sequence[str], with_paper: Sequence[str], printed: Mapping[str, float]
) -> tuple[str, ...]:
    finished = part.rows.get(row.name, [])
    found = [record for record in finished if record.oracle]
    cells: list[str] = []
    for key in keys:
        values = values_of(finished, key) if key in _OF_NO_RULE else _oracle_values(found, key)
        cells.append(mean_text(key, values))
        if key in with_paper:
            gap = statistics.fmean(values) - printed[key] if values and key in printed else None
            cells.append(score_text(key, printed[key]) if key in printed else NOTHING)
            cells.append(NOTHING if gap is None else difference_text(key, gap))
    candidates = sorted({record.oracle["n_candidates"] for record in found if record.oracle})
    ends = dict.fromkeys((candidates[0], candidates[-1])) if candidates else ()
    source = f"ours, best of {' to '.join(map(str, ends))}" if found else NOTHING
    if finished and not found:
        return (row.name, *cells, NOTHING, "ours, no epochs to choose from")
    return (row.name, *cells, seeds_text(len(found), part.planned(row.name)), source)


def _quoted_row(
    quoted: Quoted, keys: Sequence[str], with_paper: Sequence[str], printed: Mapping[str, float]
) -> tuple[str, ...]:
    cells: list[str] = []
    for key in keys:
        text = score_text(key, printed[key]) if key in printed else NOTHING
        cells += [NOTHING, text, NOTHING] if key in with_paper else [NOTHING]
    return (quoted.name, *cells, NOTHING, f"quoted: {quoted.source}")


def values_of(found: Sequence[Record], key: str) -> list[float]:
    """A score of each run that has it."""
    return [value for record in found if (value := score_of(record, key)) is not None]


def _oracle_values(found: Sequence[Record], key: str) -> list[float]:
    return [record.oracle[key] for record in found if record.oracle and record.oracle.get(key) is not None]


def _notes(rows: Sequence[Sequence[str]]) -> tuple[str, ...]:
    return (MEANS_NOTE,) if any("±" in cell for row in rows for cell in row) else ()


# --- Tables of what was observed besides.
def gradients_table(spec: Spec, part: Part) -> Table:
    """Numbers about gradients, means over seeds."""
    observed = {
        row.name: [one for record in part.rows.get(row.name, []) if (one := record.observed.get("gradients"))]
        for row in spec.rows
    }
    keys = list(dict.fromkeys(key for found in observed.values() for one in found for key in one))
    rows = [
        (name, *(_plain_mean(found, key) for key in keys), seeds_text(len(found), part.planned(name)))
        for name, found in observed.items()
    ]
    return Table(title="Gradients, means over seeds", headings=("Model", *map(heading, keys), "Seeds"), rows=rows)


def toy_table(spec: Spec, part: Part) -> Table:
    """How widely the toy's points spread along each axis, means over seeds."""
    rows = []
    for row in spec.rows:
        found = [one for record in part.rows.get(row.name, []) if (one := record.observed.get("toy"))]
        cells = [cell for key in ("std", "std_with_prior") for cell in _spreads(found, key)]
        rows.append((row.name, *cells, seeds_text(len(found), part.planned(row.name))))
    headings = ("Generator", "x", "y", "x by the prior", "y by the prior", "Seeds")
    note = "Of the points above; and, where class vectors are held and the prior is drawn, of those."
    return Table(title="Standard deviation of generated points", headings=headings, rows=rows, notes=(note,))


def _spreads(found: Sequence[Mapping[str, Any]], key: str) -> list[str]:
    pairs = [one[key] for one in found if key in one]
    return [f"{statistics.fmean(values):.3f}" for values in zip(*pairs, strict=True)] or [NOTHING, NOTHING]


def confusion_table(found: Sequence[Record]) -> Table | None:
    """How many rows of seen classes are taken for unseen ones and the other way round: means over seeds."""
    confusions = [one for record in found if (one := record.scores.get("confusion"))]
    if not confusions:
        return None
    lost = [statistics.fmean(one[key] for one in confusions) for key in ("seen_as_unseen", "unseen_as_seen")]
    share = [f"{100 * value:.1f}" for value in (1 - lost[0], lost[0], lost[1], 1 - lost[1])]
    return Table(
        title="Seen and unseen classes, confused with each other (rule last)",
        headings=("Rows of", "taken for seen, %", "taken for unseen, %"),
        rows=[("seen classes", share[0], share[1]), ("unseen classes", share[2], share[3])],
    )


def times_table(found: Sequence[Record]) -> Table:
    """Seconds of each part of a run: means over seeds; a training that several models shared is divided by them."""
    parts = [_shares(record) for record in found]
    names = list(dict.fromkeys(name for one in parts for name in one))
    rows = []
    for name in names:
        values = [one[name] for one in parts if name in one]
        rows.append((name.replace("_", " "), f"{statistics.fmean(values):.1f}", str(len(values))))
    return Table(title="Time of a run", headings=("Part", "seconds", "Seeds"), rows=rows)


def training_seconds(record: Record) -> float | None:
    """What training took, with its share of one that several had in common; None where that is not known."""
    shares = _shares(record)
    return next((shares[name] for name in ("fit", "fit_together") if name in shares), None)


def computing_seconds(record: Record) -> float:
    """What a run took, with its share of a training that several had in common."""
    return sum(_shares(record).values())


def _shares(record: Record) -> dict[str, float]:
    seconds = dict(record.seconds)
    n_models = seconds.pop("fitted_together", 1)
    return {name: value / n_models if name.startswith("fit") else value for name, value in seconds.items()}


def _plain_mean(found: Sequence[Mapping[str, Any]], key: str) -> str:
    values = [float(one[key]) for one in found if one.get(key) is not None]
    return f"{statistics.fmean(values):.3g}" if values else NOTHING


# --- Claims.
def claim_table(decisions: Sequence[Decision]) -> Table:
    """What a claim was tested by, data set by data set."""
    rows = [line for decision in decisions for line in _claim_rows(decision)]
    headings = ("Data", "Verdict", "Test", "Mean", "95 % interval", "Seeds", "Passed")
    return Table(title="", headings=headings, rows=rows, style="claims")


def _claim_rows(decision: Decision) -> list[tuple[str, ...]]:
    verdict = f"{decision.verdict} ({decision.reason})" if decision.reason else decision.verdict
    outcomes = decision.outcomes or tuple(planned(test) for test in decision.claim.tests)
    return [(decision.data or NOTHING, verdict, in_words(one), *_numbers(one), _PASSED[one.holds]) for one in outcomes]


def in_words(outcome: Outcome) -> str:
    """A test in words.

    Examples
    --------
    >>> in_words(Outcome(contrast={"full": 1, "w/o ATA": -0.9}, metric="h", above=0.03, within=None))
    'H of “full” minus 0.9 × “w/o ATA” is above 3 points'
    """
    words: list[str] = []
    for name, weight in outcome.contrast.items():
        sign = ("plus " if weight > 0 else "minus ") if words or weight < 0 else ""
        times = "" if abs(weight) == 1 else f"{abs(weight):g} × "
        words.append(f"{sign}{times}“{name}”")
    bound = outcome.above if outcome.above is not None else outcome.within or 0.0
    size = f"{100 * bound:g} points".replace("-", "−") if is_percent(outcome.metric) else f"{bound:g}".replace("-", "−")
    end = f"is above {size}" if outcome.above is not None else f"is within ± {size}"
    return f"{heading(outcome.metric)} of {' '.join(words)} {end}"


def _numbers(outcome: Outcome) -> tuple[str, str, str]:
    """Mean, interval and number of seeds of a test: in points with two decimals, or as they are with four."""
    if outcome.mean is None or outcome.low is None or outcome.high is None:
        return NOTHING, NOTHING, str(outcome.n_seeds) if outcome.n_seeds else NOTHING
    mean, low, high = (_signed(outcome.metric, value) for value in (outcome.mean, outcome.low, outcome.high))
    return f"{mean} points" if is_percent(outcome.metric) else mean, f"{low} to {high}", str(outcome.n_seeds)


def _signed(key: str, value: float) -> str:
    text = f"{100 * value:+.2f}" if is_percent(key) else f"{value:+.{_DECIMALS.get(key, 4) + 1}f}"
    return text.replace("-", "−")


_PASSED = {True: "yes", False: "no", None: NOTHING}
