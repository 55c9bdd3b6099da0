"""What commands share: options that several have, and how they print."""

import json
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

from dgz.progress import terminal_table

Source = Annotated[
    str, typer.Argument(help="Folder of a data set (xlsa17 layout or bundle), or [b]numbers[/b], the embedded one.")
]
Features = Annotated[str, typer.Option(help="Features file of an xlsa17 folder, without .mat.")]
Semantics = Annotated[str, typer.Option(help="Class vectors of an xlsa17 folder: att, sent, …")]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")]
Encoder = Annotated[
    str | None,
    typer.Option(help="What reads words: minilm (default), st:NAME or clip:NAME of a model, or the folder it is in."),
]
Device = Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")]
Engine = Annotated[str, typer.Option("--engine", help="Where independent pieces run: local, or ray (extra: ray).")]
Address = Annotated[
    str | None,
    typer.Option(help="Ray cluster to join, HOST:PORT or auto; without it, one of this machine alone is started."),
]
Workers = Annotated[int | None, typer.Option(help="Pieces at once; as many as there are CPUs by default.")]
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace what is there.")]


def warn(sentences: Iterable[str]) -> None:
    """Say on standard error what can be used but promises less than it could."""
    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for sentence in sentences:
        with console.capture() as shown:
            console.print(f"[yellow]warning:[/] {escape(sentence)}")
        sys.stderr.write(shown.get())  # as plain text, before which a bar or a table that is being drawn makes room


def console() -> Console:
    """The screen, or the log, that tables go to."""
    # In a log there is no edge to fit lines into: broken ones would only be harder to read.
    return Console(highlight=False, width=None if sys.stdout.isatty() else 200)


def print_json(content: Any) -> None:
    """Print something for programs."""
    typer.echo(json.dumps(content, indent=1, ensure_ascii=False))


def print_table(headings: Any, rows: Any, n_names: int = 2) -> None:
    """Print rows of text under headings: names in the first columns, numbers to the right in the others."""
    console().print(terminal_table(headings, rows, n_names))
