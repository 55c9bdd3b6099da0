"""The command line: each verb is one call of the library, and what it returns as a table or as JSON.

Rightmost room: nothing imports it. Library modules are imported inside the verbs, so that ``dgz --help`` answers at
once.
"""

import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape
from rich.table import Table

import dgz
from dgz.errors import DGZError

if TYPE_CHECKING:
    from dgz.data.checks import DataReport

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Recognise classes with training pictures and classes with none, from one vector per class.",
)
data_app = typer.Typer(no_args_is_help=True, help="Look at, check, import and download data sets.")
app.add_typer(data_app, name="data")

# What the options before the verb said, for main(), which is outside the verb when an error reaches it.
_settings = {"debug": False}

Source = Annotated[
    str, typer.Argument(help="Folder of a data set (xlsa17 layout or bundle), or [b]numbers[/b], the embedded one.")
]
Features = Annotated[str, typer.Option(help="Features file of an xlsa17 folder, without .mat.")]
Semantics = Annotated[str, typer.Option(help="Class vectors of an xlsa17 folder: att, sent, …")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Overwrite = Annotated[bool, typer.Option(help="Replace what is there.")]


def main() -> None:
    """Run the command line; a readable error is one sentence on standard error and exit status 2."""
    try:
        app(prog_name="dgz")
    except (DGZError, OSError) as error:
        if _settings["debug"]:
            raise
        _complain(str(error) if isinstance(error, DGZError) else _file_error(error))
        raise SystemExit(2) from None


def _complain(sentence: str) -> None:
    Console(stderr=True, soft_wrap=True, highlight=False).print(f"[bold red]Error:[/] {escape(sentence)}")


def _file_error(error: OSError) -> str:
    where = f"{error.filename}: " if error.filename else ""
    return f"{where}{error.strerror or error}."


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"dgz {dgz.__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version and stop.")
    ] = False,
    debug: Annotated[bool, typer.Option("--debug", help="Show the whole traceback of an error.")] = False,
) -> None:
    _settings["debug"] = debug


@app.command()
def demo(
    out: Annotated[Path, typer.Option(help="Folder for the record and the report.")] = Path("runs/demo"),
    seed: Annotated[int, typer.Option(help="Random seed: of the unseen classes, the samples and the folds.")] = 0,
    as_json: AsJson = False,
) -> None:
    """Train and test on handwritten two-digit numbers, 20 of which no training picture shows."""
    from dgz.data import load_numbers
    from dgz.experiments import run
    from dgz.peers import CenterRidge
    from dgz.report import HEADINGS, SCORES, score_rows, write_report

    record = run(CenterRidge(random_state=seed), load_numbers(seed), out, selection="validation")
    page = write_report([record], out, title="Two-digit numbers", command=f"dgz demo --seed {seed}")
    if as_json:
        _print_json({"scores": record.scores, "record": str(out / "record.json"), "report": str(page)})
        return
    _print_table(HEADINGS, score_rows([record]))
    console = _console()
    for _, heading, meaning in SCORES:
        console.print(f"  [b]{heading:>5}[/b]  {meaning}")
    console.print("  Accuracies are means over classes, in percent. Settings were chosen on training rows only.")
    console.print(f"Report: {escape(str(page))}", soft_wrap=True)


@data_app.command()
def info(source: Source, features: Features = "res101", semantics: Semantics = "att", as_json: AsJson = False) -> None:
    """Describe a data set: counts, shapes, norms, balance, hashes."""
    from dgz.data import inspect

    report = inspect(source, features, semantics)
    _print_report(report, as_json)
    raise typer.Exit(1 if report.problems else 0)


@data_app.command()
def check(
    source: Source,
    features: Features = "res101",
    semantics: Semantics = "att",
    strict: Annotated[bool, typer.Option("--strict", help="Warnings make the exit status 1 too.")] = False,
    as_json: AsJson = False,
) -> None:
    """Look for all that is known to go wrong; exit status 1 when something is."""
    from dgz.data import check

    report = check(source, features, semantics)
    _print_report(report, as_json, checked=True)
    raise typer.Exit(1 if report.problems or (strict and report.warnings) else 0)


@data_app.command("import")
def import_(
    features: Annotated[Path, typer.Argument(help="Samples, one per row: .npy, .npz, .csv or .parquet.")],
    classes: Annotated[
        Path, typer.Option(help="CSV with a row per class: name, split (seen or unseen), vector columns.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new bundle.")],
    labels: Annotated[
        Path | None, typer.Option(help="Labels, one per row (.npy or .csv), where the samples' file has none.")
    ] = None,
    test_fraction: Annotated[
        float, typer.Option(help="Share of each seen class's rows to test on, where no split is given.")
    ] = 0.2,
    seed: Annotated[int, typer.Option(help="Random seed of that share.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the data set; the bundle's folder by default.")] = None,
    semantics: Annotated[str, typer.Option(help="What the class vectors are called.")] = "att",
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Turn your own arrays and a table of classes into a bundle."""
    from dgz.data import import_files, inspect, save_bundle

    data = import_files(
        features,
        classes,
        labels,
        test_fraction=test_fraction,
        random_state=seed,
        name=name or out.resolve().name,
        semantics=semantics,
    )
    save_bundle(data, out, overwrite=overwrite)
    _print_report(inspect(out), as_json)


@data_app.command()
def download(
    name: Annotated[str, typer.Argument(help="Archive: xlsa17 (Xian et al.: AWA1, AWA2, CUB, SUN, APY).")] = "xlsa17",
    to: Annotated[Path, typer.Option(help="Folder to download and unpack into.")] = Path("data"),
    url: Annotated[str | None, typer.Option(help="Another address to load the archive from.")] = None,
    sha256: Annotated[str | None, typer.Option(help="Refuse the archive unless it has this checksum.")] = None,
    as_json: AsJson = False,
) -> None:
    """Download and unpack a public archive; a broken download goes on where it stopped."""
    from dgz.data import download
    from dgz.files import read_json

    folder = download(name, to, url=url, sha256=sha256)
    record = read_json(to / f"{name}.download.json")
    found = sorted(str(path.parent) for path in folder.rglob("att_splits.mat"))
    if as_json:
        _print_json({"folder": str(folder), "data_sets": found, **record})
        return
    console = _console()
    console.print(f"Unpacked to {escape(str(folder))}", soft_wrap=True)
    console.print(f"SHA-256 {record['sha256']} ({'as asked for' if record['verified'] else 'computed, not verified'})")
    for path in found:
        console.print(f"Data set: {escape(path)}", soft_wrap=True)


def _console() -> Console:
    # In a log there is no edge to fit lines into: broken ones would only be harder to read.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def _print_json(content: Any) -> None:
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))


def _print_table(headings: Any, rows: Any) -> None:
    table = Table(*headings, header_style="bold")
    for column in table.columns[2:]:
        column.justify = "right"
    for row in rows:
        table.add_row(*map(escape, row))
    _console().print(table)


def _print_report(report: "DataReport", as_json: bool, *, checked: bool = False) -> None:
    """Print facts, warnings and problems of a data set."""
    if as_json:
        _print_json(vars(report))
        return
    console = _console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, value in report.facts.items():
        if value != {}:
            table.add_row(f"[b]{escape(what)}[/b]", escape(_fact(what, value)))
    if report.facts:
        console.print(table)
    for sentence in report.warnings:
        console.print(f"[yellow]warning:[/] {escape(sentence)}", soft_wrap=True)
    for sentence in report.problems:
        console.print(f"[bold red]problem:[/] {escape(sentence)}", soft_wrap=True)
    if checked and not report.problems:
        console.print("No problems." if report.warnings else "No problems, no warnings.")


def _fact(what: str, value: Any) -> str:
    """A fact as people read it: 7,057 train, 1,764 test seen."""
    if not isinstance(value, dict):
        return str(value)
    if what == "hashes":
        return ", ".join(f"{key} {digest[:12]}" for key, digest in value.items())
    texts = {
        key: number if isinstance(number, str) else f"{number:,}" if isinstance(number, int) else f"{number:.4g}"
        for key, number in value.items()
    }
    if "name" in texts:
        name, width = texts.pop("name"), texts.pop("width")
        return ", ".join([f"{name}, {width} wide", *(f"{key} {text}" for key, text in texts.items())])
    order = "{1} {0}" if what in ("classes", "rows") else "{0} {1}"
    return ", ".join(
        order.format(key.replace("_", " ") if what == "rows" else key, text) for key, text in texts.items()
    )
