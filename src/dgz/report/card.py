"""The model card: a record in; what someone should know before they use the model out, as Markdown."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dgz.files import write_whole
from dgz.records import Record
from dgz.report.tables import HEADINGS, SCORES, flat_settings, markdown_table, score_rows

FILE = "model_card.md"
_RULES = {
    "last": "the final weights, and nothing was chosen by test scores",
    "validation": "what was best on leak-free folds of the training rows, and nothing was chosen by test scores",
    "oracle": "**the epoch that was best on the test rows**: these scores are too good",
}


def write_card(record: Record, folder: str | Path, *, command: str, weights: Mapping[str, str] | None = None) -> Path:
    """Write ``model_card.md`` into the folder of a run.

    Parameters
    ----------
    record : Record
        Of the run.
    folder : str or Path
    command : str
        What to type to make the model again.
    weights : mapping of str to str, optional
        Licences of networks that someone else trained, such as the one that made features of photos, by their names.

    Returns
    -------
    Path
        The card.
    """
    path = Path(folder) / FILE
    with write_whole(path) as file:
        file.write(model_card(record, command=command, weights=weights).encode())
    return path


def model_card(record: Record, *, command: str, weights: Mapping[str, str] | None = None) -> str:
    """The text of a card; see :func:`write_card`."""
    data, n_unseen = record.data, len(record.unseen)
    n_seen = len(record.class_names) - n_unseen
    parts = [
        f"# {record.method} on {data['name']}",
        f"A classifier over {n_seen + n_unseen} classes: {n_seen} it has seen rows of in training, and {n_unseen} that "
        "it knows from one vector each.",
        *(["**Training was cut short to see that it works: this is no result.**"] if record.quick else []),
        "## Use",
        _use(data),
        "## Data",
        markdown_table(("What", "Value"), _data_rows(data)),
        *_notes(data),
        "## Training",
        markdown_table(("What", "Value"), _training_rows(record, command)),
        "<details><summary>All settings</summary>\n",
        markdown_table(("Setting", "Value"), [(name, f"`{value}`") for name, value in flat_settings(record)]),
        "</details>",
        "## Scores",
        *_scores(record),
        "## Limits",
        _limits(record),
        "## Licences",
        _licences(weights or {}),
    ]
    return "\n\n".join(parts) + "\n"


def _use(data: Mapping[str, Any]) -> str:
    width = f"{data['n_features']:,} `{data['features']}` features"
    return (
        '```python\nfrom dgz import load_model\n\nmodel = load_model("model")  # the folder beside this card\n'
        f"model.predict(X)  # rows of {width}\n```"
    )


def _data_rows(data: Mapping[str, Any]) -> list[tuple[str, str]]:
    rows = ", ".join(f"{number:,} {split.replace('_', ' ')}" for split, number in data["n_rows"].items())
    hashes = ", ".join(f"{name} `{digest[:12]}`" for name, digest in data["hashes"].items())
    return [
        ("Name", data["name"]),
        ("Features", f"{data['features']}, {data['n_features']:,} wide"),
        ("Class vectors", f"{data['semantics']}, {data['n_attributes']:,} wide"),
        ("Classes", f"{data['n_seen']} seen, {data['n_unseen']} unseen"),
        ("Rows", rows),
        ("Hashes", hashes),
    ]


def _notes(data: Mapping[str, Any]) -> list[str]:
    from dgz.data.dataset import says_fine_tuned  # here, as reports are made without the libraries that data needs

    notes = []
    if says_fine_tuned(data["features"]):
        notes.append(
            "Its features are of a network that was trained further on photos of the seen classes: compare with such "
            "only."
        )
    if data.get("leaks"):
        found = ", ".join(f"{name} ({size:,} rows)" for name, size in data["leaks"].items())
        notes.append(f"Index sets of the source overlap its test rows and were not used: {found}.")
    return notes


def _training_rows(record: Record, command: str) -> list[tuple[str, str]]:
    size = [] if record.n_parameters is None else [("Parameters", f"{record.n_parameters:,}")]
    versions = ", ".join(f"{name} {version}" for name, version in record.versions.items())
    shown = {key: f"{value:.4g}" if isinstance(value, float) else value for key, value in record.chosen.items()}
    chosen = [("What auto stood for", ", ".join(f"{key} = {value}" for key, value in shown.items()))]
    return [
        ("Command", f"`{command}`"),
        ("Seed", str(record.seed)),
        ("Device", record.device),
        *size,
        *(chosen if record.chosen else []),
        ("Versions", versions),
    ]


def _scores(record: Record) -> list[str]:
    if not record.scores:
        return ["None: the data has no test rows of seen or of unseen classes. How good the model is, nobody knows."]
    meanings = "\n".join(f"- **{heading}**: {meaning}" for _, heading, meaning in SCORES)
    rule = f"Accuracies are means over classes, in percent. Rule `{record.selection}`: {_RULES[record.selection]}."
    unseen = {str(number) for number in record.unseen}
    each = sorted(
        (accuracy, " ".join(record.class_names[number].split()), "unseen" if number in unseen else "seen")
        for number, accuracy in record.scores["per_class"].items()
        if accuracy is not None
    )
    rows = [(name, kind, f"{100 * accuracy:.1f}") for accuracy, name, kind in each]
    return [
        markdown_table(HEADINGS, score_rows([record])),
        meanings,
        rule,
        "### Every class, the worst first",
        markdown_table(("Class", "Kind", "Accuracy, %"), rows),
    ]


def _limits(record: Record) -> str:
    lines = [
        "- Every row gets one of its classes, also one that shows something else: there is no answer “none of these”.",
        "- Unseen classes are known by their vectors alone: one whose vector says little is recognised little.",
        "- Scores are those of the test rows above. Rows that were made in another way (another camera, another "
        "network for the features) may be recognised far worse.",
    ]
    if confusion := record.scores.get("confusion"):
        lines.append(
            f"- The balance: {100 * confusion['seen_as_unseen']:.1f} % of test rows of seen classes got an unseen "
            f"class, {100 * confusion['unseen_as_seen']:.1f} % of those of unseen classes a seen one. `predict(X, "
            "seen_penalty=…)` moves it; choose the penalty on validation rows."
        )
    return "\n".join(lines)


def _licences(weights: Mapping[str, str]) -> str:
    lines = ["- The code that made this model, dgz: MIT."]
    lines += [f"- Weights of {name}: {licence}." for name, licence in weights.items()]
    lines.append("- The data's own terms hold for what was learned from it; this card does not know them.")
    return "\n".join(lines)
