"""The verbs that train: one run, a grid of them, and a search on folds; all take the same words for what is trained."""

import json
import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.markup import escape

from dgz.console import (
    Address,
    AsJson,
    Device,
    Engine,
    Features,
    Overwrite,
    Semantics,
    Source,
    Workers,
    console,
    print_json,
    print_table,
)
from dgz.errors import DGZError

if TYPE_CHECKING:
    from dgz.estimator import GZSLClassifier
    from dgz.records import Record

Method = Annotated[
    str,
    typer.Option("--method", help="dgz, or a rival: zla, ce-gzsl, f-clswgan, …; 'dgz compare' takes the same names."),
]
Preset = Annotated[str | None, typer.Option(help="Settings published for a data set: AWA2, CUB, SUN or APY.")]
Published = Annotated[
    str | None, typer.Option("--source", help="Where text and code of the preset differ: released (default) or paper.")
]
WithoutGenerator = Annotated[
    bool, typer.Option("--without-generator", help="Class centres by a mapping net, Gaussian rows round them.")
]
Schedule = Annotated[
    str | None,
    typer.Option(help="How long to train without generator: released (default), or short: less than half the time."),
]
Assignments = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="A setting: lambda_1=2, generator.hidden=[512,256], …"),
]

_NO_SCORES = "There are no scores: the data lacks test rows of seen or of unseen classes."


def train(
    source: Source,
    out: Annotated[Path, typer.Option(help="Folder of the run: model, curve, record, report.")],
    features: Features = "res101",
    semantics: Semantics = "att",
    method: Method = "dgz",
    preset: Preset = None,
    published: Published = None,
    without_generator: WithoutGenerator = False,
    schedule: Schedule = None,
    assignments: Assignments = None,
    seed: Annotated[int, typer.Option(help="Random seed.")] = 0,
    device: Device = "auto",
    evaluate_every: Annotated[
        int, typer.Option(help="Also test a classifier after every so many epochs of the generator; 0: never.")
    ] = 0,
    track: Annotated[
        list[str] | None,
        typer.Option("--track", metavar="SINK", help="Also show the run live in tensorboard:FOLDER or mlflow:URI."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run.")] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train DGZ, or another method, on a data set, test it, and keep model, record and report in one folder."""
    from dgz.data import load_data
    from dgz.experiments import run
    from dgz.records import is_finished

    model = _prepared(
        _untrained(method, preset, published, without_generator, schedule), seed, device, assignments or []
    )
    was_finished = resume and is_finished(out)
    record = run(
        model,
        load_data(source, features, semantics),
        out,
        resume=resume,
        overwrite=overwrite,
        evaluate_every=evaluate_every,
        track=track or [],
    )
    if was_finished:
        typer.echo(f"{out} was finished already: nothing was left to train.", err=True)
    places = _complete(source, out, record)
    if as_json:
        print_json({"scores": record.scores, "oracle": record.oracle, **places})
    else:
        _print_run(record, places)


def sweep(
    source: Source,
    out: Annotated[Path, typer.Option(help="Folder of the report, with a folder of its own in it for every run.")],
    varied: Annotated[
        list[str] | None,
        typer.Option("--vary", metavar="KEY=VALUE,VALUE,…", help="A setting and its values; all are combined."),
    ] = None,
    seeds: Annotated[str, typer.Option(help="How many random seeds, from 0 on, or which: 0,3,7.")] = "5",
    features: Features = "res101",
    semantics: Semantics = "att",
    method: Method = "dgz",
    preset: Preset = None,
    published: Published = None,
    without_generator: WithoutGenerator = False,
    schedule: Schedule = None,
    assignments: Assignments = None,
    device: Device = "auto",
    resume: Annotated[bool, typer.Option("--resume", help="Only train what is not finished yet.")] = False,
    overwrite: Overwrite = False,
    as_json: AsJson = False,
) -> None:
    """Train DGZ, or another method, with several settings and seeds, as many as can be at once, and compare them."""
    from dgz.data import load_data
    from dgz.experiments import BrokenRunsError, run_many
    from dgz.records import is_finished
    from dgz.report import write_report
    from dgz.report.tables import MEAN_HEADINGS, mean_rows, oracle_repeats, repeats
    from dgz.settings import file_name, grid, parse_seeds

    fixed = assignments or []
    if any(text.partition("=")[0].strip() == "random_state" for text in [*fixed, *(varied or [])]):
        raise DGZError("The setting random_state is what --seeds is for.")
    points = [(point, seed) for point in grid(varied or [], fixed) for seed in parse_seeds(seeds)]
    models = []
    for point, seed in points:
        model = _untrained(method, preset, published, without_generator, schedule)
        models.append(_prepared(model, seed, device, [*fixed, *point]))
    folders = [out / file_name([*point, f"seed={seed}"]) for point, seed in points]
    _require_different(models, folders)
    n_finished = sum(map(is_finished, folders)) if resume else 0
    broken = None
    try:
        records = run_many(models, load_data(source, features, semantics), folders, resume=resume, overwrite=overwrite)
    except BrokenRunsError as error:
        if not error.records:
            raise
        records, broken = error.records, error
    if n_finished:
        typer.echo(f"{n_finished} of {len(folders)} runs were finished already.", err=True)
    rows, best, page = [], [], None
    if records[0].scores:
        rows, best = repeats(records), oracle_repeats(records)
        command = shlex.join(["dgz", *sys.argv[1:]])
        page = write_report(records, out, title=records[0].data["name"], command=command)
    if as_json:
        found = {"rows": [vars(group) for group in rows], "oracle": [vars(group) for group in best]}
        print_json(found | {"report": page and str(page)})
    elif page is None:
        console().print(_NO_SCORES)
    else:
        _print_scores(MEAN_HEADINGS, mean_rows(rows), mean_rows(best))
        console().print(f"Report: {escape(str(page))}", soft_wrap=True)
    if broken is not None:
        raise broken


def tune(
    source: Source,
    out: Annotated[
        Path, typer.Option(help="Folder of the study, which is gone on with if it is there, and of the run.")
    ],
    spaces: Annotated[
        list[str] | None,
        typer.Option("--space", metavar="KEY=…", help="What to search: key=low..high, or key=value,value,…"),
    ] = None,
    trials: Annotated[int, typer.Option(help="Settings to try, those of earlier calls included.")] = 50,
    folds: Annotated[int, typer.Option(help="Leak-free folds of the training rows that they are tried on.")] = 3,
    at_once: Annotated[
        int | None, typer.Option(help="Settings to try together; by default 16 on a GPU, 4 elsewhere, more on Ray.")
    ] = None,
    calibrate: Annotated[
        bool, typer.Option("--calibrate/--no-calibrate", help="Choose the penalty on seen classes as well.")
    ] = True,
    members: Annotated[int | None, typer.Option(help="Classifiers that the final model is the mean of.")] = None,
    features: Features = "res101",
    semantics: Semantics = "att",
    method: Method = "dgz",
    preset: Preset = None,
    published: Published = None,
    without_generator: WithoutGenerator = False,
    schedule: Schedule = None,
    assignments: Assignments = None,
    seed: Annotated[int, typer.Option(help="Random seed, of proposals and of training.")] = 0,
    device: Device = "auto",
    engine: Engine = "local",
    address: Address = None,
    workers: Workers = None,
    as_json: AsJson = False,
) -> None:
    """Search the settings that leak-free folds of the training rows like best, and train with them on all rows."""
    from dgz.data import load_data
    from dgz.engines import open_engine
    from dgz.tuning import as_text, default_space, parse_space
    from dgz.tuning import tune as search

    given = assignments or []
    model = _prepared(_untrained(method, preset, published, without_generator, schedule), seed, device, given)
    taken = [assignment.partition("=")[0].strip() for assignment in given]
    if both := sorted({part.partition("=")[0].strip() for part in spaces or []} & set(taken)):
        raise DGZError(f"{both[0]} is searched and set to one value too.")
    space = parse_space(model, spaces) if spaces else default_space(model, taken)
    where: Any = engine  # any text here: the library says which ones there are
    with open_engine(where, address=address, n_workers=workers) as opened:
        tuned = search(
            model,
            load_data(source, features, semantics),
            out,
            space=space,
            n_trials=trials,
            n_folds=folds,
            at_once=at_once,
            calibrate=calibrate and "seen_penalty" not in taken,
            n_members=members,
            engine=opened,
        )
    places = _complete(source, out, tuned.record)
    if as_json:
        facts = {"settings": tuned.settings, "h_on_folds": tuned.h_on_folds, "scores": tuned.record.scores}
        counts = {"n_trials": tuned.n_trials, "n_pruned": tuned.n_pruned, "n_failed": tuned.n_failed}
        print_json({**facts, **counts, **places})
        return
    screen = console()
    trials_done = "1 trial" if tuned.n_trials == 1 else f"{tuned.n_trials} trials"
    screen.print(f"Best of {trials_done} ({tuned.n_pruned} given up early, {tuned.n_failed} broken):")
    for name, value in tuned.settings.items():
        screen.print(f"  {escape(name)} = {escape(as_text(value))}")
    screen.print(f"  H {100 * tuned.h_on_folds:.1f} in the mean over {folds} folds of the training rows.")
    _print_run(tuned.record, places)


def _untrained(
    method: str, preset: str | None, published: str | None, without_generator: bool, schedule: str | None
) -> "GZSLClassifier":
    """The model that the settings start from."""
    from dgz.generators import WGANGP
    from dgz.model import DGZ
    from dgz.peers import METHODS, make_method

    if published is not None and preset is None:
        raise DGZError("--source says where the settings of a preset come from, so it needs --preset.")
    if schedule is not None and not without_generator:
        raise DGZError("--schedule is known for the variant without generator, so it needs --without-generator.")
    if method != "dgz":
        if published is not None or without_generator:
            raise DGZError("--source and --without-generator are of the method dgz alone.")
        plain = make_method(method)
        return plain if preset is None else METHODS[method].preset(preset)
    # Any text here: the model says which ones there are.
    origin: Any = published or "released"
    length: Any = schedule or "released"
    if preset is not None:
        return DGZ.preset(preset, source=origin, without_generator=without_generator, schedule=length)
    return DGZ.without_generator(schedule=length) if without_generator else DGZ(generator=WGANGP())


def _prepared(model: "GZSLClassifier", seed: int, device: str, assignments: list[str]) -> "GZSLClassifier":
    """The model with what the command line says about it."""
    from dgz.settings import configure

    known = {"random_state": seed, "device": device, "verbose": True}
    model.set_params(**{name: value for name, value in known.items() if name in model.get_params(deep=False)})
    return configure(model, assignments)


def _require_different(models: "list[GZSLClassifier]", folders: list[Path]) -> None:
    """Raise where two models are the same: 1 and 1.0 are two values to the eye alone."""
    known = [json.loads(json.dumps(model.settings())) for model in models]
    for k, settings in enumerate(known):
        if (first := known.index(settings)) < k:
            raise DGZError(f"{folders[first].name} and {folders[k].name} are the same: give each value once.")


def _complete(source: str, out: Path, record: "Record") -> dict[str, str]:
    """Put beside a trained model what whoever uses it needs: its photo network, a card and a report; says where."""
    from dgz.data import copy_backbone
    from dgz.records import encoder_of
    from dgz.report import write_card, write_report
    from dgz.words.encoders import OFFLINE_ENCODERS

    command = shlex.join(["dgz", *sys.argv[1:]])
    weights = copy_backbone(source, out)
    if encoder := encoder_of(out):
        weights[encoder] = OFFLINE_ENCODERS[encoder]
    card = write_card(record, out, command=command, weights=weights)
    places = {"model": out / "model", "card": card, "record": out / "record.json"}
    if record.scores:
        places["report"] = write_report([record], out, title=record.data["name"], command=command)
    return {what: str(where) for what, where in places.items()}


def _print_run(record: "Record", places: dict[str, str]) -> None:
    """Scores of a run, and where its files are."""
    from dgz.report import HEADINGS, oracle_rows, score_rows

    if record.scores:
        _print_scores(HEADINGS, score_rows([record]), oracle_rows([record]))
    else:
        console().print(_NO_SCORES)
    for what, where in places.items():
        console().print(f"{what.capitalize()}: {escape(where)}", soft_wrap=True)


def _print_scores(headings: Any, rows: Any, oracle_rows: Any) -> None:
    """A table of scores, and apart from it, labelled as what they are, those that were chosen on the test rows."""
    print_table(headings, rows)
    if oracle_rows:
        console().print("The best of the curve, picked by the test rows: what released code reports, and no result.")
        print_table(headings, oracle_rows)
