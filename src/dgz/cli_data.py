"""The verbs of ``dgz data``: data sets are looked at, checked, made of files, photos and words, and downloaded."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from dgz.console import (
    Address,
    AsJson,
    Encoder,
    Engine,
    Features,
    Overwrite,
    Semantics,
    Source,
    Workers,
    console,
    print_json,
    warn,
)
from dgz.errors import DGZError

if TYPE_CHECKING:
    from dgz.data.checks import DataReport

data_app = typer.Typer(no_args_is_help=True, help="Look at, check, import and download data sets.")


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
        Path, typer.Option(help="CSV with a row per class: name, split (seen or unseen), vector columns or words.")
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
    encoder: Encoder = None,
    semantics: Annotated[
        str | None, typer.Option(help="What the class vectors are called: att by default, or, of words, the encoder.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Turn your own arrays and a table of classes into a bundle."""
    from dgz.data import import_files, inspect, save_bundle
    from dgz.words import read_classes

    found = read_classes(classes, encoder)
    warn(found.warnings)
    data = import_files(
        features,
        found.table,
        labels,
        test_fraction=test_fraction,
        random_state=seed,
        name=name or out.resolve().name,
        semantics=semantics or found.semantics,
    )
    save_bundle(data, out, overwrite=overwrite)
    _print_report(inspect(out), as_json)


@data_app.command("from-images")
def from_images(
    folder: Annotated[Path, typer.Argument(help="Folder with one subfolder of photos per class.")],
    classes: Annotated[
        Path, typer.Option(help="CSV with a row per class: name, split (seen or unseen), vector columns or words.")
    ],
    out: Annotated[Path, typer.Option(help="Folder of the new bundle.")],
    backbone: Annotated[
        str, typer.Option(help="What computes the features: lite0, a file.onnx, timm:NAME or hf:NAME.")
    ] = "lite0",
    finetune: Annotated[
        bool, typer.Option("--finetune", help="First train the backbone further on the training photos.")
    ] = False,
    finetune_epochs: Annotated[
        int | None, typer.Option(help="How often fine-tuning looks at every photo; 10 by default.")
    ] = None,
    device: Annotated[str, typer.Option(help="Of fine-tuning: cpu, cuda, or auto: a GPU where there is one.")] = "auto",
    bad: Annotated[
        str,
        typer.Option(help="Files that are no photos: raise refuses the folder, skip leaves them out and lists them."),
    ] = "raise",
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    max_pixels: Annotated[int, typer.Option(help="Refuse photos with more pixels than this.")] = 100_000_000,
    no_cache: Annotated[
        bool, typer.Option("--no-cache", help="Neither use the features of earlier runs nor keep those of this one.")
    ] = False,
    test_fraction: Annotated[float, typer.Option(help="Share of each seen class's photos to test on.")] = 0.2,
    seed: Annotated[int, typer.Option(help="Random seed of that share.")] = 0,
    name: Annotated[str | None, typer.Option(help="Name of the data set; the bundle's folder by default.")] = None,
    encoder: Encoder = None,
    semantics: Annotated[
        str | None, typer.Option(help="What the class vectors are called: att by default, or, of words, the encoder.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Turn a folder of photos per class and a table of classes into a bundle, with features of a backbone."""
    from dgz.data import check
    from dgz.engines import open_engine
    from dgz.images import import_images, save_images
    from dgz.words import read_classes

    is_taken = out.exists() and not (out.is_dir() and not any(out.iterdir()))
    if is_taken and not overwrite:  # found out before the work, not after it
        raise DGZError(f"{out} exists already; choose another place or pass --overwrite.")
    tuning: Any = finetune
    if finetune_epochs is not None:
        if not finetune:
            raise DGZError("--finetune-epochs is about fine-tuning: pass --finetune too.")
        from dgz.images import FineTuning

        tuning = FineTuning(n_epochs=finetune_epochs)
    table = read_classes(classes, encoder)
    skipping: Any = bad  # any text here and below: the library says which ones there are
    where: Any = engine
    # Of the local engine, workers are threads of the one process that it has.
    n_workers = None if where == "local" else workers
    with open_engine(where, address=address, n_workers=n_workers) as opened:
        data, photos = import_images(
            folder,
            table.table,
            backbone=backbone,
            finetune=tuning,
            device=device,
            bad=skipping,
            n_workers=workers,
            max_pixels=max_pixels,
            cache=not no_cache,
            engine=opened,
            test_fraction=test_fraction,
            random_state=seed,
            name=name or out.resolve().name,
            semantics=semantics or table.semantics,
        )
    save_images(data, photos, out, overwrite=overwrite)
    report = check(out)  # not only described: class vectors off the usual scale cost more than any photo
    report.facts |= photos.facts()
    report.warnings += [*table.warnings, *photos.warnings, *photos.refused.values()]
    _print_report(report, as_json)


@data_app.command()
def words(
    classes: Annotated[
        Path, typer.Argument(help="CSV with a row per class: name, split, and columns description, gloss or phrases.")
    ],
    out: Annotated[Path, typer.Option(help="CSV to write: name, split, v0, v1, …")],
    encoder: Encoder = None,
    from_attributes: Annotated[
        bool, typer.Option("--from-attributes", help="Speak columns of numbers as strengths of attributes.")
    ] = False,
    template: Annotated[
        str | None, typer.Option(help="Text made of a phrase, such as 'a bird with {phrase}'; may hold {name}.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Turn descriptions, phrases or names of classes into vectors, for import."""
    import numpy as np

    from dgz.data import write_class_table
    from dgz.words import encode_classes, open_encoder

    if out.exists() and not overwrite:  # found out before the work, not after it
        raise DGZError(f"{out} exists already; choose another place or pass --overwrite.")
    opened = open_encoder(encoder or "minilm")
    found = encode_classes(classes, opened, template, from_attributes=from_attributes)
    write_class_table(found.table, out, overwrite=overwrite)
    counts = found.n_phrases
    phrases = {"min": min(counts), "median": float(np.median(counts)), "max": max(counts)}
    if as_json:
        about = {"name": opened.name, "width": opened.d, "licence": opened.licence, "digest": opened.digest}
        content = {"classes": len(counts), "phrases": phrases, "encoder": about}
        print_json({**content, "warnings": list(found.warnings), "out": str(out)})
        return
    warn(found.warnings)
    screen = console()
    spread = f"{phrases['min']} to {phrases['max']}, median {phrases['median']:g}"
    screen.print(f"Phrases per class: {spread}; {len(counts)} classes")
    screen.print(f"Encoder: {escape(opened.name)}, {opened.d} wide, {escape(opened.licence)}", soft_wrap=True)
    screen.print(f"Vectors: {escape(str(out))}", soft_wrap=True)


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
        print_json({"folder": str(folder), "data_sets": found, **record})
        return
    screen = console()
    screen.print(f"Unpacked to {escape(str(folder))}", soft_wrap=True)
    screen.print(f"SHA-256 {record['sha256']} ({'as asked for' if record['verified'] else 'computed, not verified'})")
    for path in found:
        screen.print(f"Data set: {escape(path)}", soft_wrap=True)


def _print_report(report: "DataReport", as_json: bool, *, checked: bool = False) -> None:
    """Print facts, warnings and problems of a data set."""
    if as_json:
        print_json(vars(report))
        return
    screen = console()
    table = Table(show_header=False, box=None, padding=(0, 2, 0, 0))
    for what, value in report.facts.items():
        if value != {}:
            table.add_row(f"[b]{escape(what)}[/b]", escape(_fact(what, value)))
    if report.facts:
        screen.print(table)
    for sentence in report.warnings:
        screen.print(f"[yellow]warning:[/] {escape(sentence)}", soft_wrap=True)
    for sentence in report.problems:
        screen.print(f"[bold red]problem:[/] {escape(sentence)}", soft_wrap=True)
    if checked and not report.problems:
        screen.print("No problems." if report.warnings else "No problems, no warnings.")


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
