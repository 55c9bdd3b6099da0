"""The command line: each verb is one call of the library, and what it returns as a table or as JSON.

Rightmost room: nothing imports it. Library modules are imported inside the verbs, so that ``dgz --help`` answers at
once.
"""

import csv
import io
import shlex
import sys
import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.console import Console
from rich.markup import escape

import dgz
from dgz.cli_data import data_app
from dgz.cli_train import sweep, train, tune
from dgz.console import (
    Address,
    AsJson,
    Device,
    Encoder,
    Engine,
    Features,
    Overwrite,
    Semantics,
    Source,
    Workers,
    console,
    print_json,
    print_table,
    warn,
)
from dgz.errors import DGZError, DGZWarning

if TYPE_CHECKING:
    from dgz.data import GZSLData
    from dgz.estimator import GZSLClassifier
    from dgz.images import Backbone
    from dgz.paper import Item

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Recognise classes with training pictures and classes with none, from one vector per class.",
)
app.add_typer(data_app, name="data")

# What the options before the verb said, for main(), which is outside the verb when an error reaches it.
_settings = {"debug": False}

Model = Annotated[Path, typer.Argument(help="Folder of a model, or of the run that made it.")]
SeenPenalty = Annotated[
    float, typer.Option(help="Subtracted from the scores of seen classes: more of it favours unseen ones.")
]
_DEMO_FOLDER = Path("runs/demo")


def main() -> None:
    """Run the command line; a readable error is one sentence on standard error and exit status 2."""
    usual = warnings.showwarning
    said: set[str] = set()  # a command may train many models, which all have the same to say

    def show(message: Warning | str, category: type[Warning], *where: Any, **more: Any) -> None:
        if issubclass(category, DGZWarning):
            if str(message) not in said:
                warn([str(message)])
            said.add(str(message))
        else:
            usual(message, category, *where, **more)

    warnings.showwarning = show
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
    out: Annotated[Path, typer.Option(help="Folder of the run: model, record, report.")] = _DEMO_FOLDER,
    seed: Annotated[int, typer.Option(help="Random seed: of the unseen classes, the samples and the training.")] = 0,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train and test on handwritten two-digit numbers, 20 of which no training picture shows."""
    from dgz.data import load_numbers
    from dgz.experiments import run
    from dgz.model import DGZ
    from dgz.report import HEADINGS, SCORES, score_rows, write_report

    model = DGZ.without_generator(random_state=seed, verbose=True)
    # The demo's own folder is its to replace; another one may hold a run that took hours.
    record = run(model, load_numbers(seed), out, overwrite=overwrite or out == _DEMO_FOLDER)
    page = write_report([record], out, title="Two-digit numbers", command=f"dgz demo --seed {seed}")
    if as_json:
        print_json({"scores": record.scores, "record": str(out / "record.json"), "report": str(page)})
        return
    print_table(HEADINGS, score_rows([record]))
    screen = console()
    for _, heading, meaning in SCORES:
        screen.print(f"  [b]{heading:>5}[/b]  {meaning}")
    screen.print("  Accuracies are means over classes, in percent. Nothing was chosen by test scores.")
    screen.print(f"Report: {escape(str(page))}", soft_wrap=True)


for _verb in (train, sweep, tune):
    app.command()(_verb)


@app.command()
def evaluate(
    model: Model,
    source: Source,
    features: Features = "res101",
    semantics: Semantics = "att",
    seen_penalty: SeenPenalty = 0.0,
    as_json: AsJson = False,
) -> None:
    """Score a trained model on the test rows of a data set."""
    from dgz.metrics import gzsl_scores
    from dgz.report import SCORES, score_cells

    trained = _load_model(model)
    data = _load_data_for(trained, source, features, semantics)
    scores = gzsl_scores(trained, data, seen_penalty=seen_penalty).to_dict()
    if as_json:
        print_json(scores)
        return
    headings = ("Model", "Data", *(heading for _, heading, _ in SCORES))
    print_table(headings, [(str(model), data.name, *score_cells(scores))])


@app.command()
def predict(
    model: Model,
    samples: Annotated[
        str, typer.Argument(help="Samples (.npy, .npz, .csv or .parquet), or a data set, for its test rows.")
    ],
    features: Features = "res101",
    semantics: Semantics = "att",
    out: Annotated[Path | None, typer.Option(help="CSV file to write; standard output without it.")] = None,
    top: Annotated[int, typer.Option(help="How many classes to name for each sample.")] = 1,
    unseen_only: Annotated[
        bool, typer.Option("--unseen-only", help="Choose from the classes without training rows.")
    ] = False,
    seen_penalty: SeenPenalty = 0.0,
    as_json: AsJson = False,
) -> None:
    """Name the class of each sample, with its probability, as CSV. Of a data set: test rows of seen, then unseen."""
    import numpy as np

    from dgz.data import read_rows
    from dgz.files import write_whole

    trained = _load_model(model)
    if Path(samples).is_file():
        rows = read_rows(samples).features
    else:
        data = _load_data_for(trained, samples, features, semantics)
        rows = np.concatenate([data.x_test_seen, data.x_test_unseen])
    if not len(rows):
        raise DGZError(f"{samples} holds no rows to predict.")
    classes = trained.classes_[~trained.seen_] if unseen_only else None
    labels, probabilities = trained.predict_top(rows, top, classes, seen_penalty)
    answers = [list(zip(*pair, strict=True)) for pair in zip(labels.tolist(), probabilities.tolist(), strict=True)]
    if out is not None:
        with write_whole(out) as file:
            file.write(_as_csv(answers).encode())
    if as_json:
        print_json([[{"class": label, "probability": p} for label, p in answer] for answer in answers])
    elif out is None:
        typer.echo(_as_csv(answers), nl=False)
    else:
        console().print(f"Predictions: {escape(str(out))}, {len(answers):,} rows", soft_wrap=True)


def _as_csv(answers: list[list[tuple[Any, float]]]) -> str:
    """Predictions as a table: the row's number, its likeliest class with its probability, the next one with its own."""
    text = io.StringIO(newline="")
    table = csv.writer(text, lineterminator="\n")
    ranks = ["", *(f"_{rank}" for rank in range(2, len(answers[0]) + 1))]
    table.writerow(["row", *(name + rank for rank in ranks for name in ("class", "probability"))])
    for row, answer in enumerate(answers):
        table.writerow([row, *(cell for label, p in answer for cell in (label, f"{p:.6f}"))])
    return text.getvalue()


@app.command("add-class")
def add_class(
    model: Model,
    classes: Annotated[Path, typer.Option(help="CSV with a row per new class: name, vector columns or words.")],
    out: Annotated[
        Path | None, typer.Option(help="Folder of the new model; without it, the old one, with --overwrite.")
    ] = None,
    refine: Annotated[
        bool, typer.Option("--refine", help="Train the classifier anew, as if the classes had always been there.")
    ] = False,
    source: Annotated[
        str | None, typer.Option("--data", help="What the model was trained on, which --refine needs.")
    ] = None,
    features: Features = "res101",
    semantics: Semantics = "att",
    encoder: Encoder = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Let a trained model recognise new classes, from their vectors or from words about them."""
    import numpy as np

    from dgz.composed import ComposedMethod
    from dgz.records import encoder_of
    from dgz.words import read_classes

    if refine != (source is not None):
        raise DGZError("--refine and --data go together: refining needs the rows that the model was trained on.")
    target = out or _model_folder(model)
    if not overwrite and target.is_dir() and any(target.iterdir()):  # found out before the work, not after it
        raise DGZError(f"{target} exists already; choose another place by --out, or pass --overwrite.")
    trained, found = _load_model(model), read_classes(classes, encoder, usual=encoder_of(model))
    warn(found.warnings)
    table = found.table
    if not isinstance(trained, ComposedMethod):
        raise DGZError(f"{model} holds a {type(trained).__name__}, which takes on no classes: train it anew with them.")
    rows: dict[str, Any] = {}
    if source is not None:
        data = _load_data_for(trained, source, features, semantics)
        rows = {"refine": True, "X": data.x_train, "y": np.array(data.class_names)[data.y_train]}
    start = time.perf_counter()
    trained.add_classes(np.array(table.names), table.vectors, **rows)
    seconds = time.perf_counter() - start
    trained.save(target, overwrite=overwrite)
    if as_json:
        counts = {"n_classes": len(trained.classes_), "seconds": seconds}
        print_json({"added": list(table.names), **counts, "model": str(target)})
        return
    screen = console()
    screen.print(f"Added {escape(', '.join(table.names))} in {seconds:.3g} s", soft_wrap=True)
    screen.print(f"Model: {escape(str(target))}, {len(trained.classes_)} classes", soft_wrap=True)


@app.command()
def export(
    model: Model,
    onnx: Annotated[bool, typer.Option("--onnx", help="As ONNX, which is the one form there is.")] = True,
    out: Annotated[
        Path | None, typer.Option(help="Folder of model.onnx and pictures.onnx; by default that of the model or run.")
    ] = None,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Write a trained model as ONNX, and compare it with the model: for features, and for pictures if it knows how."""
    from dgz.export import export_onnx

    trained, backbone = _load_model(model), _backbone_of(model)
    wanted = {"model.onnx": None} | ({} if backbone is None else {"pictures.onnx": backbone})
    folder = out or model
    written = [export_onnx(trained, folder / name, backbone=one, overwrite=overwrite) for name, one in wanted.items()]
    if as_json:
        print_json([{**vars(one), "path": str(one.path)} for one in written])
        return
    for one in written:
        what = f"from {one.reads} to scores of {len(trained.classes_)} classes"
        line = f"{one.path}: {what}; differs from the model by {one.difference:.1e} at most, on made-up {one.reads}."
        console().print(escape(line), soft_wrap=True)
    if backbone is None:
        console().print("What made its features is not known, so there is no file that reads pictures.")


@app.command()
def serve(
    model: Model,
    host: Annotated[
        str, typer.Option(help="Address to listen on; beyond this machine, there must be a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option(help="Port to listen on; 0: any that is free.", min=0, max=65535)] = 8000,
    api_key: Annotated[
        str | None, typer.Option(envvar="DGZ_API_KEY", help="What every request must bring; at least 16 characters.")
    ] = None,
    encoder: Encoder = None,
    max_megabytes: Annotated[int, typer.Option(help="The most of one request.", min=1)] = 64,
    max_photos: Annotated[int, typer.Option(help="The most photos of one request.", min=1)] = 64,
    max_pixels: Annotated[int, typer.Option(help="The most pixels of a photo.", min=1)] = 50_000_000,
    timeout: Annotated[float, typer.Option(help="Seconds that a request may take.", min=0.1)] = 30.0,
) -> None:
    """Serve a trained model over HTTP, with a page for people at / and its description at /docs."""
    from dgz.serve import Limits, open_engine
    from dgz.serve import serve as run_server

    limits = Limits(body=max_megabytes << 20, photos=max_photos, pixels=max_pixels, seconds=timeout)
    engine = open_engine(model, encoder=encoder, limits=limits)
    run_server(engine, host=host, port=port, api_key=api_key, say=lambda line: typer.echo(line, err=True))


def _backbone_of(model: Path) -> "Backbone | None":
    """What makes features of photos for a model: it lies beside the model, if photos were what it learned from."""
    places = [place for place in (model, model.parent) if (place / "backbone").is_dir()]
    if not places:
        return None
    from dgz.images import backbone_of

    return backbone_of(places[0])


def _model_folder(path: Path) -> Path:
    return path / "model" if (path / "model").is_dir() else path


def _load_model(path: Path) -> "GZSLClassifier":
    from dgz.peers import load_model

    return load_model(_model_folder(path))


def _load_data_for(model: "GZSLClassifier", source: str, features: str, semantics: str) -> "GZSLData":
    from dgz.data import load_data

    data = load_data(source, features, semantics)
    if data.x_train.shape[1] != model.n_features_in_:
        raise DGZError(
            f"The rows of {source} have {data.x_train.shape[1]} features, but the model was trained on rows of "
            f"{model.n_features_in_}."
        )
    return data


@app.command()
def reproduce(
    items: Annotated[
        list[str],
        typer.Argument(
            help="Tables and figures of the paper, table1 … figureA3, or [b]all[/b]; or [b]peers[/b]: rivals."
        ),
    ],
    source: Annotated[
        Path | None, typer.Option("--data", help="Folder with a folder for each data set: CUB, AWA2, …")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="Folder of records and report; runs/reproduce by default, or runs/quick.")
    ] = None,
    quick: Annotated[
        bool, typer.Option("--quick", help="A few steps of everything on the embedded data: to see that it works.")
    ] = False,
    seeds: Annotated[
        int | None, typer.Option(help="How many random seeds, instead of the number that each item has.")
    ] = None,
    row: Annotated[
        list[str] | None, typer.Option(help="Row to run now, instead of all; can be given several times.")
    ] = None,
    features: Annotated[
        str | None, typer.Option(help="Features file to use where a data set has several; res101 by default.")
    ] = None,
    device: Device = "auto",
    shared_device: Annotated[
        bool, typer.Option("--shared-device", help="Other work is on the device, too: compare no times of these runs.")
    ] = False,
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Run tables and figures of the paper again; what is finished already is not run twice."""
    from dgz.engines import open_engine
    from dgz.paper import Store
    from dgz.report import write_paper_report
    from dgz.reproduce import BrokenReproductionError, reproduce

    where: Any = engine  # any text here: the library says which ones there are
    folder = out or Path("runs/quick" if quick else "runs/reproduce")
    start = time.perf_counter()
    try:
        with open_engine(where, address=address, n_workers=workers) as opened:
            done = reproduce(
                items,
                source,
                folder,
                quick=quick,
                seeds=seeds,
                rows=row,
                features=features,
                device=device,
                shared_device=shared_device,
                engine=opened,
                say=lambda line: typer.echo(line, err=True),
            )
    except BrokenReproductionError:
        write_paper_report(folder)  # of all that did not break
        raise
    page = write_paper_report(folder)
    blocks = [block for item in done for block in item.blocks]
    parts = [part for block in blocks for part in (*block.rows.values(), *block.folds.values())]
    runs = {run for part in parts for run in part}
    left = sum(not Store(folder).is_finished(run) for run in runs)
    if as_json:
        counts = {"n_runs": len(runs), "n_left": left}
        print_json({"items": [item.name for item in done], "missing": _missing(done), **counts, "report": str(page)})
        return
    screen = console()
    for sentence in _missing(done):
        screen.print(f"[yellow]missing:[/] {escape(sentence)}", soft_wrap=True)
    still = f", {left} of them still to be made," if left else ""
    items_done = "1 item" if len(done) == 1 else f"{len(done)} items"
    screen.print(f"{items_done} of {len(runs)} runs{still} in {time.perf_counter() - start:.0f} s")
    screen.print(f"Report: {escape(str(page))}", soft_wrap=True)


def _missing(items: "list[Item]") -> list[str]:
    """A sentence about every data set that was not there, each once."""
    return list(dict.fromkeys(sentence for item in items for sentence in item.missing))


@app.command()
def compare(
    source: Annotated[
        str, typer.Option("--data", help="Folder of a data set (xlsa17 layout or bundle), or [b]numbers[/b].")
    ],
    methods: Annotated[
        str, typer.Option(help="Methods, with commas between them: dgz, zla, ce-gzsl, …; [b]all[/b] is all there are.")
    ] = "dgz,dgz-without-generator,zla,center-ridge,nearest-prototype",
    seeds: Annotated[int, typer.Option(help="How many random seeds, from 0 on.")] = 5,
    folds: Annotated[
        int,
        typer.Option(help="Leak-free folds of the training rows that choose an epoch; 0: the last alone."),
    ] = 0,
    features: Features = "res101",
    semantics: Semantics = "att",
    out: Annotated[Path, typer.Option(help="Folder of records and report.")] = Path("runs/compare"),
    quick: Annotated[bool, typer.Option("--quick", help="A few steps of each training: to see that it works.")] = False,
    device: Device = "auto",
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Train several methods on one data set with the same seeds, and compare them; finished runs are not run twice."""
    from dgz.engines import open_engine
    from dgz.peers import METHODS, preset_of
    from dgz.progress import ProgressTable
    from dgz.report import read_runs, write_paper_report
    from dgz.report.comparison import chosen_table, comparison_headings, comparison_table, standings
    from dgz.report.paper_tables import seeds_text
    from dgz.reproduce import BrokenReproductionError
    from dgz.reproduce import compare as run_methods

    def so_far() -> Any:
        (one,) = read_runs(out).items
        return one.spec, one.parts[0]

    wanted = list(METHODS) if methods == "all" else [name.strip() for name in methods.split(",") if name.strip()]
    headings = comparison_headings()
    options: dict[str, Any] = {"features": features, "semantics": semantics, "quick": quick, "device": device}

    def begun() -> list[tuple[str, ...]]:
        return [row for row in comparison_table(*so_far()).rows if row[-1] != seeds_text(0, seeds)]

    shown = ProgressTable("runs", headings, begun)
    where: Any = engine  # any text here: the library says which ones there are
    broken = None
    try:
        with open_engine(where, address=address, n_workers=workers) as opened:
            run_methods(wanted, source, out, seeds=seeds, folds=folds, progress=shown, engine=opened, **options)
    except BrokenReproductionError as error:
        broken = error
    page = write_paper_report(out)
    if as_json:
        print_json({"methods": [vars(one) for one in standings(*so_far())], "report": str(page)})
    else:
        print_table(headings, comparison_table(*so_far()).rows, n_names=1)
        screen = console()
        screen.print("Rule last: the final weights; percent, mean ± sample standard deviation over seeds.")
        if on_folds := chosen_table(*so_far()):
            print_table(on_folds.headings, on_folds.rows, n_names=1)
            screen.print("Rule validation: the epoch that is best on leak-free folds of the training rows.")
        block = so_far()[1].block
        published = [name for name in wanted if preset_of(METHODS[name], block.data, block.semantics)]
        if published:
            screen.print(
                f"With the settings published for {escape(block.data)}: {', '.join(published)}.", soft_wrap=True
            )
        screen.print(f"Report: {escape(str(page))}", soft_wrap=True)
    if broken is not None:
        raise broken


@app.command()
def report(
    folder: Annotated[Path, typer.Argument(help="Folder of a reproduction, or with runs in it at any depth.")],
    out: Annotated[Path | None, typer.Option(help="Folder of the report; the same by default.")] = None,
    readme: Annotated[
        Path | None, typer.Option(help="Also write the table of results into this Markdown file, between its marks.")
    ] = None,
) -> None:
    """Turn records into one page and Markdown tables."""
    from dgz.paper import Store
    from dgz.records import read_record
    from dgz.report import update_readme, write_paper_report, write_report

    if not folder.is_dir():
        raise DGZError(f"{folder} is no folder.")
    if any(Store(folder).items()):
        page = write_paper_report(folder, out)
        if readme is not None:
            update_readme(readme, folder)
    elif readme is not None:
        raise DGZError(f"{folder} holds no reproduction of the paper, which the table of results is made of.")
    else:
        runs = sorted(path.parent for path in folder.rglob("record.json"))
        if not runs:
            raise DGZError(f"{folder} holds neither a reproduction of the paper nor a finished run.")
        records = [read_record(run) for run in runs]
        command = shlex.join(["dgz", *sys.argv[1:]])
        page = write_report(records, out or folder, title=folder.resolve().name, command=command)
    console().print(f"Report: {escape(str(page))}", soft_wrap=True)


@app.command()
def bench(
    shapes: Annotated[
        list[str] | None, typer.Option("--shape", help="AWA2, CUB, SUN or tiny; may be given several times.")
    ] = None,
    parts: Annotated[
        list[str] | None,
        typer.Option(
            "--part", help="rate, generator, classifier, whole, many, predict, cmmd or scale; all but scale by default."
        ),
    ] = None,
    precision: Annotated[str, typer.Option(help="How matrices are multiplied: tf32, float32 or bf16.")] = "tf32",
    device: Annotated[str, typer.Option(help="cpu, cuda, or auto: a GPU where there is one.")] = "auto",
    repeats: Annotated[int, typer.Option(help="Timings of each part, after a warm-up.")] = 5,
    out: Annotated[Path | None, typer.Option(help="Folder for bench.json and the curves.")] = None,
    as_json: AsJson = False,
) -> None:
    """Time training and prediction on made-up data of real shapes."""
    from dgz.bench import PARTS, write_bench
    from dgz.bench import bench as measure

    wanted: Any = precision  # any text here: the bench says which ones there are
    found = measure(
        parts or [part for part in PARTS if part != "scale"],
        shapes or ["CUB"],
        precision=wanted,
        device=device,
        repeats=repeats,
        say=lambda line: typer.echo(line, err=as_json),
    )
    written = [] if out is None else write_bench(found, out)
    if as_json:
        print_json(found)
    for path in written:
        typer.echo(f"Written: {path}", err=as_json)
