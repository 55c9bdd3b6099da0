"""The report of a reproduction: its folder in; one self-contained page, its Markdown twin and a README's table out.

It can be made at any moment: what is finished is shown, what is not is said to be missing.
"""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from dgz.errors import DGZError
from dgz.files import write_whole
from dgz.paper.claims import Decision, Verdict
from dgz.paper.spec import COMPARISON, Claim, Spec
from dgz.records import Record
from dgz.report.comparison import comparison_elements
from dgz.report.elements import Element, Figures, Fold, Panel, Table, markdown
from dgz.report.figures import curve_figure, embedded, per_class_figure
from dgz.report.page import render, write_page
from dgz.report.paper_figures import line_figures, projection_figures, toy_figures
from dgz.report.paper_runs import ItemRuns, Part, Reproduction, read_runs
from dgz.report.paper_tables import (
    MEANINGS,
    claim_table,
    computing_seconds,
    confusion_table,
    gradients_table,
    last_table,
    oracle_table,
    published,
    score_tables,
    times_table,
    toy_table,
)
from dgz.report.tables import markdown_table

_TITLE = "The paper's tables and figures, run again"
_QUICK = "Quick run: shortened training, no results"
_RULES = (
    ("last", "the final weights; no test score is looked at. Every claim is decided by it."),
    ("validation", "the epoch that is best on leak-free folds of the training rows."),
    (
        "oracle",
        "the epoch that is best on the test rows themselves. Most numbers of papers are chosen so, and stand beside "
        "ours in these tables only.",
    ),
)
_CLAIMS = (
    "Each claim is one or more contrasts of a score between rows, taken seed by seed by the rule last. A test is "
    "passed where the 95 % interval of the mean (Student's t over seeds) lies where the test says, and a claim holds "
    "where all of its tests are passed. One that does not hold is not refuted: the interval says how much is known."
)
_HEADLINE = "table2"
_BEGIN, _END = "<!-- results: begin -->", "<!-- results: end -->"


def write_paper_report(
    folder: str | Path,
    out: str | Path | None = None,
    *,
    command: str = "dgz reproduce",
    specs: Mapping[str, Spec] | None = None,
    title: str | None = None,
) -> Path:
    """Write the page of a reproduction and its Markdown twin.

    Parameters
    ----------
    folder : str or Path
        What the reproduction fills, see :mod:`dgz.paper.store`; it may be unfinished, or empty.
    out : str or Path, optional
        Gets ``index.html`` and ``report.md``; ``folder`` itself by default.
    command : str
        What to type to run an item, before its name.
    specs : mapping, optional
        The items to show, in order; those of the paper by default, or that of a comparison where the folder is one.
    title : str, optional
        Heading of the page; by default, what the items are.

    Returns
    -------
    Path
        The page.
    """
    runs = read_runs(folder, specs)
    ours = {one.spec.title for one in runs.items if one.spec.kind == "comparison"}
    usual = ours.pop() if len(ours) == len(runs.items) == 1 else _TITLE
    content = _content(runs, command, usual if title is None else title)
    html = render("paper.html.j2", **content)
    return write_page(Path(folder if out is None else out), html, _as_markdown(content))


# --- What page and Markdown have in common.
def _content(runs: Reproduction, command: str, title: str) -> dict[str, Any]:
    """Everything that is said, as text and elements."""
    decisions = [decision for one in runs.items for decision in one.decisions]
    return {
        "title": title,
        "command": command,
        "quick": _QUICK if runs.is_quick else "",
        "rules": _RULES,
        "meanings": [(name, meaning) for key, name, meaning in MEANINGS if key in _keys(runs)],
        "contents": _contents(runs.items),
        "facts": _overall(runs),
        "claims_note": _CLAIMS,
        "claims_count": _count(decisions),
        "claims": [(one.spec, list(_claims(one))) for one in runs.items if one.decisions],
        "sections": [_section(one, command) for one in runs.items],
    }


def _keys(runs: Reproduction) -> set[str]:
    """Scores that appear somewhere."""
    specs = [one.spec for one in runs.items]
    panels = (panel.metrics for spec in specs for panel in spec.panels)
    tests = ((test.get("metric", "h"),) for spec in specs for claim in spec.claims for test in claim.tests)
    return {key for keys in (*(spec.columns for spec in specs), *panels, *tests) for key in keys}


def _contents(items: Sequence[ItemRuns]) -> list[tuple[str, str, str, str, str]]:
    """For each item: its name, title and place, what became of its claims, and how far it is."""
    found = []
    for one in items:
        done, planned = one.progress
        progress = f"{done} of {planned} runs" if one.item else "not run yet"
        found.append((one.spec.name, one.spec.title, one.spec.place, _count(one.decisions), progress))
    return found


def _count(decisions: Sequence[Decision]) -> str:
    """How many decisions came out how."""
    counts = Counter(decision.verdict for decision in decisions)
    plural: dict[Verdict, str] = {"holds": "hold", "does not hold": "do not hold", "not tested": "not tested"}
    words = (f"{n} {one if n == 1 else many}" for one, many in plural.items() if (n := counts[one]))
    return ", ".join(words) or "none"


def _overall(runs: Reproduction) -> list[tuple[str, str]]:
    """Facts about all runs together."""
    records = list(runs.records.values())
    facts = [("Runs", f"{len(records)} finished")]
    if records:
        facts.append(("Computing time", duration(sum(map(computing_seconds, records)))))
        facts.append(("Devices", _listed(record.device for record in records)))
        versions = dict.fromkeys(name for record in records for name in record.versions)
        found = (f"{name} {_listed((r.versions.get(name, '') for r in records), ' and ')}" for name in versions)
        facts.append(("Versions", ", ".join(found)))
    if runs.unknown:
        facts.append(("Not shown", f"{', '.join(runs.unknown)}: this dgz has no spec of it"))
    return facts


def _claims(one: ItemRuns) -> Iterator[tuple[Claim, Table]]:
    """Each claim with the table of its tests."""
    for claim in one.spec.claims:
        decisions = [decision for decision in one.decisions if decision.claim is claim]
        if decisions:
            yield claim, claim_table(decisions)


def _section(one: ItemRuns, command: str) -> dict[str, Any]:
    """An item: what is said about it, and its blocks."""
    return {
        "spec": one.spec,
        "command": _command(one.spec, command),
        "missing": list(one.item.missing) if one.item else ["This was not run yet."],
        "blocks": [(part.block.title, _facts(part, one.is_quick), _elements(one.spec, part)) for part in one.parts],
    }


def _command(spec: Spec, command: str) -> str:
    """What to type to make an item again."""
    if spec.name == COMPARISON:
        return f"dgz compare --data DIR --methods {','.join(row.method for row in spec.rows)} --seeds {spec.seeds}"
    return f"{command} {spec.name}{' --data DIR' if spec.data else ''}"


def _facts(part: Part, is_quick: bool) -> list[str]:
    """What a result must say about where it comes from."""
    records = part.records
    hashes = _listed(record.data.get("hashes", {}).get("split", "")[:12] for record in records)
    generators = _listed(_epochs(record.params.get("generator")) for record in records)
    seeds = sorted({record.seed for record in records})
    classifiers = _listed(_epochs(record.params) for record in records)
    facts = [
        ("data", part.block.data),
        ("features", part.block.features),
        ("class vectors", part.block.semantics),
        ("split", hashes),
        ("generator epochs", generators),
        ("classifier epochs", classifiers),
        ("seeds" if len(seeds) > 1 else "seed", _listed(seeds)),
    ]
    words = [f"{name} {value}" for name, value in facts if value]
    words.append(_QUICK.lower() if is_quick else "full training")
    if records:
        seconds = sum(map(computing_seconds, records))
        words += [_listed(record.device for record in records), f"{seconds:.1f} s in all"]
    return words


def _epochs(settings: Any) -> str:
    return str(settings["n_epochs"]) if isinstance(settings, Mapping) and "n_epochs" in settings else ""


def _listed(values: Iterable[Any], mark: str = ", ") -> str:
    """Values without repetition and without empty ones, as text."""
    return mark.join(dict.fromkeys(str(value) for value in values if str(value)))


def duration(seconds: float) -> str:
    """A time for people.

    Examples
    --------
    >>> duration(42.0), duration(600.0), duration(9000.0)
    ('42.0 s', '10.0 min', '2.5 h')
    """
    for size, unit in ((3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{seconds / size:.1f} {unit}"
    return f"{seconds:.1f} s"


# --- What a block shows.
def _elements(spec: Spec, part: Part) -> list[Element]:
    """The tables and figures of a block, by the kind of its item."""
    if spec.kind == "lines":
        return [line_figures(spec, part), Fold(summary="Numbers", elements=_numbers(spec, part))]
    if spec.kind == "projection":
        return [projection_figures(spec, part), Fold(summary="Scores of these runs", elements=_numbers(spec, part))]
    if spec.kind == "toy":
        return [toy_figures(spec, part), toy_table(spec, part)]
    if spec.kind == "comparison":
        return comparison_elements(spec, part)
    if spec.kind == "gradients":
        return [gradients_table(spec, part), Fold(summary="Scores of these runs", elements=_numbers(spec, part))]
    tables: list[Element] = [*score_tables(spec, part)]
    return tables + (_headline(spec, part) if spec.name == _HEADLINE else [])


def _numbers(spec: Spec, part: Part) -> list[Element]:
    """The numbers behind a figure: by the rule ``last``, and beside published ones if there are any."""
    drawn = (metric for panel in spec.panels for metric in panel.metrics)
    keys = tuple(dict.fromkeys((*spec.columns, *drawn)))
    has_published = any(published(row, spec, part.block) for row in spec.rows)
    return [last_table(spec, part, keys), *([oracle_table(spec, part, keys)] if has_published else [])]


def _headline(spec: Spec, part: Part) -> list[Element]:
    """More about each row of the paper's main table."""
    found = ((row.name, part.rows.get(row.name, [])) for row in spec.rows)
    return [Fold(summary=f"More about {name}", elements=_details(name, records)) for name, records in found if records]


def _details(name: str, records: Sequence[Record]) -> list[Element]:
    """The curve and the classes of a row's first run; what is confused and what takes time in all of them."""
    first = records[0]
    elements: list[Element] = []
    panels = []
    if first.scores.get("curve"):
        caption = "S over U as the balance between seen and unseen classes is moved; the dot is the model as it is."
        panels.append(Panel(svg=embedded(curve_figure(first)), title=f"{name}, seed {first.seed}", caption=caption))
    if first.scores.get("per_class"):
        svg = embedded(per_class_figure(first))
        panels.append(Panel(svg=svg, title=f"{name}, seed {first.seed}", caption="Accuracy of each class."))
    if panels:
        elements.append(Figures(panels=panels))
    if confusion := confusion_table(records):
        elements.append(confusion)
    return [*elements, times_table(records)]


# --- Markdown.
def _as_markdown(content: Mapping[str, Any]) -> str:
    """The same as a Markdown file: paragraphs with empty lines between them."""
    return "\n\n".join(text.strip() for text in _paragraphs(content) if text.strip()) + "\n"


def _paragraphs(content: Mapping[str, Any]) -> Iterator[str]:
    yield f"# {content['title']}"
    yield f"**{content['quick']}**" if content["quick"] else ""
    yield "\n".join(f"- Rule **{name}**: {meaning}" for name, meaning in content["rules"])
    yield "\n".join(f"- **{name}**: {meaning}" for name, meaning in content["meanings"])
    rows = [(f"[{name}](#{name.lower()})", *others) for name, *others in content["contents"]]
    yield markdown_table(("Item", "What", "Place", "Claims", "Progress"), rows)
    yield "\n".join(f"- {name}: {value}" for name, value in content["facts"])
    if content["claims"]:
        yield f"## Claims\n\n{content['claims_note']}"
        yield f"Of all verdicts, one for each claim and data set: {content['claims_count']}."
    for spec, claims in content["claims"]:
        yield f"### Claims of {spec.name}"
        for claim, table in claims:
            yield f"**{claim.text}** ({claim.place})"
            yield from markdown([table])
    for section in content["sections"]:
        yield from _section_paragraphs(section)


def _section_paragraphs(section: Mapping[str, Any]) -> Iterator[str]:
    spec = section["spec"]
    yield f"## {spec.name}"
    yield f"{spec.title}. {spec.place}."
    yield spec.note
    yield f"`{section['command']}`"
    yield from section["missing"]
    for title, facts, elements in section["blocks"]:
        yield f"### {spec.name}: {title}" if title else ""
        yield " · ".join(facts)
        yield from markdown(elements)


# --- The README's table.
def readme_table(folder: str | Path, *, specs: Mapping[str, Spec] | None = None) -> str:
    """The paper's main table as Markdown, by the rule ``last``.

    Parameters
    ----------
    folder : str or Path
        Of a reproduction.
    specs : mapping, optional
        The specs to go by; those of the paper by default.

    Raises
    ------
    DGZError
        Where there is nothing to show: no finished runs, or quick ones.
    """
    found = [one for one in read_runs(folder, specs).items if one.spec.name == _HEADLINE]
    if not found or not any(part.records for part in found[0].parts):
        raise DGZError(f"{folder} holds no finished runs of {_HEADLINE}.")
    (one,) = found
    if one.is_quick:
        raise DGZError(f"The runs of {_HEADLINE} in {folder} are quick ones: no results.")
    keys = ("acc_unseen", "acc_seen", "h", "acc_zsl")
    tables = [(part, last_table(one.spec, part, keys)) for part in one.parts]
    rows = [
        (row[0], part.block.title, *row[1:]) for part, table in tables for row in table.rows if part.rows.get(row[0])
    ]
    first = tables[0][1].headings
    note = "Selection rule `last`: the final weights. Percent, mean ± sample standard deviation over seeds."
    return f"{markdown_table((first[0], 'Data', *first[1:]), rows)}\n\n{note}"


def update_readme(readme: str | Path, folder: str | Path, *, specs: Mapping[str, Spec] | None = None) -> bool:
    """Put :func:`readme_table` between the two comments of a README that say where it goes.

    Returns
    -------
    bool
        Whether that changed its text.

    Raises
    ------
    DGZError
        Where the comments are missing.
    """
    path = Path(readme)
    text = path.read_text(encoding="utf-8")
    if len(re.findall(f"{re.escape(_BEGIN)}.*?{re.escape(_END)}", text, re.DOTALL)) != 1:
        raise DGZError(f"{path} must hold {_BEGIN} and, after it, {_END}, once each.")
    before, after = text.split(_BEGIN)[0], text.split(_END)[1]
    new = f"{before}{_BEGIN}\n{readme_table(folder, specs=specs)}\n{_END}{after}"
    if new == text:
        return False
    with write_whole(path) as file:
        file.write(new.encode())
    return True
