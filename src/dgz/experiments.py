"""Experiments: a method, or many, and a data set in; finished runs with their records out.

A run's folder holds ``config.json`` (what is run on what), ``checkpoints/`` while it runs, then ``model/``, and last of
all ``record.json``: its presence says that the run finished.
"""

import json
import platform
import shutil
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.exceptions import NotFittedError
from sklearn.utils.validation import check_is_fitted

from dgz.composed import ComposedMethod
from dgz.data import GZSLData
from dgz.data.dataset import listing
from dgz.errors import DGZError
from dgz.estimator import GZSLClassifier
from dgz.files import read_json, write_json
from dgz.many import fit_many
from dgz.metrics import gzsl_scores
from dgz.observations import generation, gradients, projection
from dgz.records import Record, is_finished, oracle, read_record, write_record
from dgz.settings import leaves
from dgz.tracking import Tracker, open_tracker
from dgz.trained import TrainedMethod
from dgz.training import fingerprint, pick_device

_CONFIG, _CHECKPOINTS, _MODEL, _RECORD = "config.json", "checkpoints", "model", "record.json"
_GENERATOR_ROWS = 40  # of a record's curve: enough to draw it
Observe = Mapping[str, Mapping[str, Any]]
NOTHING: Observe = {}
# What can be asked for beside test scores; numbers of the first are scores themselves.
OBSERVATIONS: dict[str, Callable[..., dict[str, Any]]] = {
    "generation": generation,
    "projection": projection,
    "gradients": gradients,
}


def run(
    model: GZSLClassifier,
    data: GZSLData,
    folder: str | Path | None = None,
    *,
    selection: str = "last",
    resume: bool = False,
    overwrite: bool = False,
    evaluate_every: int = 0,
    observe: Observe = NOTHING,
    track: Sequence[str] = (),
) -> Record:
    """Fit a method on the training rows, score it on the test rows, and record both.

    It learns the classes by their names and is saved; one that is trained is scored on the test rows after every epoch.
    Data without test rows of both seen and unseen classes gives a model all the same, and a record without scores.

    Parameters
    ----------
    model : GZSLClassifier
        An unfitted method; it is fitted in place.
    data : GZSLData
        What to train and test on.
    folder : str or Path, optional
        Where everything about the run goes; nothing is written without it.
    selection : str
        How the method picks the state that is scored.
    resume : bool
        Go on with the unfinished run in ``folder``, which must be of the same settings and data. One that is finished
        is read, and the model stays unfitted; where there is none, one is started.
    overwrite : bool
        Replace the run in ``folder``.
    evaluate_every : int
        See :meth:`DGZ.fit`; of methods with a generator.
    observe : mapping of str to mapping
        What else to record of a method with a generator: names of ``OBSERVATIONS``, and the options of each.
    track : sequence of str
        Where else the run is shown while it trains: ``tensorboard:FOLDER``, ``mlflow:URI``; see
        :func:`~dgz.tracking.open_tracker`.

    Raises
    ------
    DGZError
        When ``folder`` holds a run, and neither ``resume`` nor ``overwrite`` says what to do with it.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> from dgz.peers import CenterRidge
    >>> record = run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), load_numbers(0))
    >>> record.method, record.data["name"]
    ('CenterRidge', 'numbers')
    """
    if evaluate_every and not isinstance(model, ComposedMethod):
        raise DGZError(f"A {type(model).__name__} has no generator whose epochs could be evaluated.")
    place = None if folder is None else Path(folder)
    is_over = resume and place is not None and is_finished(place)
    # A sink that cannot be used says so before the run that this one would replace is gone, too.
    trackers = [] if is_over else _open_trackers(track, model, data, evaluate_every)
    _claim([model], data, [place], evaluate_every, resume=resume, overwrite=overwrite)
    if place is not None and is_finished(place):
        return read_record(place)
    with ExitStack() as following:
        for tracker in trackers:
            following.enter_context(tracker)
        record = _run_alone(model, data, place, selection, observe, evaluate_every)
        for tracker in trackers:
            tracker.conclude(record)
    return record


def _open_trackers(track: Sequence[str], model: GZSLClassifier, data: GZSLData, evaluate_every: int) -> list[Tracker]:
    """Make sinks ready for the run of a method, with its settings and the facts of the data."""
    if not track:
        return []
    model.check()
    known = {**_config(model, data, evaluate_every), "data": data.record()}
    name = f"{known['method']}-{data.name}-seed{known['settings']['random_state']}"
    return [open_tracker(where, name, known) for where in track]


class BrokenRunsError(DGZError):
    """Some of many runs broke; the others are finished.

    Attributes
    ----------
    records : list of Record
        Those of the finished ones.
    """

    def __init__(self, sentence: str, records: list[Record]) -> None:
        super().__init__(sentence)
        self.records = records


def run_many(
    models: Iterable[GZSLClassifier],
    data: GZSLData,
    folders: Iterable[str | Path] | None = None,
    *,
    selection: str = "last",
    resume: bool = False,
    overwrite: bool = False,
    observe: Sequence[Observe] | None = None,
    generator_rows: Any = None,
    checkpoint_folder: str | Path | None = None,
) -> list[Record]:
    """Do what :func:`run` does for each of many methods, with all that have a generator trained at once.

    See :func:`~dgz.fit_many`. What is trained together keeps no checkpoints: such a run is finished, or as good as
    none. One that has checkpoints already goes on alone.

    Parameters
    ----------
    models : iterable of GZSLClassifier
        Unfitted methods; they are fitted in place.
    data : GZSLData
        What to train and test on.
    folders : iterable of str or Path, optional
        One for each model; nothing is written without them.
    selection, resume, overwrite
        As in :func:`run`, for every folder. None is touched unless all can be used.
    observe : sequence of mapping, optional
        For each model, what else to record of it, as in :func:`run`.
    generator_rows, checkpoint_folder
        See :func:`~dgz.fit_many`; such models are all trained together, even a single one. Methods that have no
        generator, and no folder of their own, keep the state of their training there, too.

    Returns
    -------
    list of Record
        In the order of the models. The time of those that were trained together is known for all of them alone.

    Raises
    ------
    BrokenRunsError
        When some of the runs broke; it says which, after the others were finished.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> from dgz import DGZ
    >>> models = [DGZ.without_generator(lambda_1=value, n_epochs=1, generator__n_epochs=1) for value in (0.5, 1.0)]
    >>> [record.params["lambda_1"] for record in run_many(models, load_numbers(0))]
    [0.5, 1.0]
    """
    models = list(models)
    places = [None] * len(models) if folders is None else [Path(folder) for folder in folders]
    if len(places) != len(models):
        raise DGZError(f"Each model needs a folder of its own, found {len(models)} models and {len(places)} folders.")
    found = [place.resolve() for place in places if place is not None]
    if twice := sorted({str(place) for place in found if found.count(place) > 1}):
        raise DGZError(f"Each model needs a folder of its own, found twice: {listing(twice)}.")
    _claim(models, data, places, 0, resume=resume, overwrite=overwrite)
    records = {k: read_record(place) for k, place in enumerate(places) if place is not None and is_finished(place)}
    left = [k for k in range(len(models)) if k not in records]
    errors: dict[int, DGZError] = {}
    wanted = [NOTHING] * len(models) if observe is None else list(observe)
    unfinished = None if checkpoint_folder is None else Path(checkpoint_folder)
    options = {"generator_rows": generator_rows, "checkpoint_folder": unfinished}
    is_special = any(value is not None for value in options.values())
    composed = {k: model for k in left if isinstance(model := models[k], ComposedMethod)}
    together = {k: model for k, model in composed.items() if not _holds_files(_checkpoints(places[k]))}
    if len(together) > 1 or (together and is_special):  # of a single one, the time is known and checkpoints can be kept
        seconds, broken = _fit_together(list(together.values()), data, **options)
        for k, model in together.items():
            if broken is not None and not _is_fitted(model):
                errors[k] = broken
            else:
                records[k] = _conclude(model, data, places[k], selection, wanted[k], seconds)
    for k in left:
        if k not in records and k not in errors:
            try:
                spare = unfinished and unfinished / _mark(models[k], data)
                records[k] = _run_alone(models[k], data, places[k], selection, wanted[k], spare=spare)
            except DGZError as error:
                errors[k] = error
    done = [records[k] for k in sorted(records)]
    if errors:
        names = [str(places[k] or f"model {k + 1}") for k in sorted(errors)]
        first = errors[min(errors)]
        raise BrokenRunsError(f"No model came of {listing(names)}: {first}", done) from first
    return done


def _fit_together(
    models: Sequence[ComposedMethod], data: GZSLData, **options: Any
) -> tuple[dict[str, float], DGZError | None]:
    """Fit models at once; gives the time that took, and the error where some broke, which are then not fitted."""
    start, broken = time.perf_counter(), None
    name = "fit_together" if len(models) > 1 else "fit"
    if _holds_files(options["checkpoint_folder"]):
        name = "fit_resumed"
    try:
        fit_many(
            models,
            **_by_name(data),
            test=data if _is_tested(data) else None,
            **options,
            verbose=any(model.verbose for model in models),
        )
    except DGZError as error:
        broken = error
    shared = {"fitted_together": len(models)} if len(models) > 1 else {}
    return {name: time.perf_counter() - start, **shared}, broken


def _run_alone(
    model: GZSLClassifier,
    data: GZSLData,
    place: Path | None,
    selection: str,
    observe: Observe,
    evaluate_every: int = 0,
    *,
    spare: Path | None = None,
) -> Record:
    """Fit one method, from its checkpoints where there are such, and conclude its run.

    Without a ``place``, ``spare`` is where these are.
    """
    checkpoints = _checkpoints(place) or spare
    resumed = _holds_files(checkpoints)
    start = time.perf_counter()
    known = _by_name(data)
    if isinstance(model, TrainedMethod):
        known |= {"test": data if _is_tested(data) else None, "checkpoint_folder": checkpoints}
    if evaluate_every:
        known["evaluate_every"] = evaluate_every
    model.fit(**known)
    seconds = {"fit_resumed" if resumed else "fit": time.perf_counter() - start}
    return _conclude(model, data, place, selection, observe, seconds)


def _conclude(
    model: GZSLClassifier,
    data: GZSLData,
    place: Path | None,
    selection: str,
    observe: Observe,
    seconds: Mapping[str, float],
) -> Record:
    """Score a fitted method, and keep everything about its run; ``seconds`` is what training took."""
    start = time.perf_counter()
    scores = _rounded(gzsl_scores(model, data).to_dict(max_points=100)) if _is_tested(data) else {}
    wanted = observe if isinstance(model, ComposedMethod) else NOTHING
    observed = {name: OBSERVATIONS[name](model, data, **options) for name, options in wanted.items()}
    scores |= observed.pop("generation", {})
    evaluated = time.perf_counter() - start
    history = [_rounded(row) for row in getattr(model, "history_", [])]
    params = model.settings()
    device = getattr(model, "device_", "cpu")
    record = Record(
        method=type(model).__name__,
        params=params,
        # "auto" of a device is no choice by training rows, and the record says elsewhere what it was.
        chosen={key: getattr(model, f"{key}_") for key, value in params.items() if value == "auto" and key != "device"},
        seed=params["random_state"],
        selection=selection,
        data=data.record(),
        class_names={str(i): name for i, name in enumerate(data.class_names)},
        unseen=data.unseen.tolist(),
        scores=scores,
        oracle=oracle(history),
        curve=_columns(history),
        observed=observed,
        n_parameters=model.count_parameters(),
        seconds={**seconds, "evaluate": evaluated},
        device=f"CPU ({platform.machine()})" if device == "cpu" else device,
    )
    if place is not None:
        model.save(place / _MODEL, overwrite=True)
        write_record(record, place)
        shutil.rmtree(place / _CHECKPOINTS, ignore_errors=True)
    return record


def _by_name(data: GZSLData) -> dict[str, Any]:
    """What a method is fitted on: names are what its predictions are, and what classes are added by."""
    return {
        "X": data.x_train,
        "y": np.array(data.class_names)[data.y_train],
        "attributes": dict(zip(data.class_names, data.attributes, strict=True)),
    }


def _is_tested(data: GZSLData) -> bool:
    return bool(len(data.x_test_seen) and len(data.x_test_unseen))


def _is_fitted(model: GZSLClassifier) -> bool:
    try:
        check_is_fitted(model)
    except NotFittedError:
        return False
    return True


def _checkpoints(place: Path | None) -> Path | None:
    return place and place / _CHECKPOINTS


def _holds_files(folder: Path | None) -> bool:
    return folder is not None and any(found.is_file() for found in folder.rglob("*"))


def _mark(model: GZSLClassifier, data: GZSLData) -> str:
    """A name for the training of a method on some data on a kind of device."""
    device = pick_device(getattr(model, "device", "cpu")).type
    return fingerprint([_config(model, data, 0), device])[:16]


def _config(model: GZSLClassifier, data: GZSLData, evaluate_every: int) -> dict[str, Any]:
    """Everything that the outcome of a run depends on, as JSON has it."""
    settings = {key: value for key, value in model.settings().items() if key != "verbose"}
    known = data.record()
    config = {
        "method": type(model).__name__,
        "settings": settings,
        "data": {key: known[key] for key in ("name", "features", "semantics", "hashes")},
        "evaluate_every": evaluate_every,
    }
    return json.loads(json.dumps(config))  # type: ignore[no-any-return]  # tuples are lists there


def _claim(
    models: Sequence[GZSLClassifier],
    data: GZSLData,
    places: Sequence[Path | None],
    evaluate_every: int,
    *,
    resume: bool,
    overwrite: bool,
) -> None:
    """Make folders ready for runs; where one cannot be, say why before anything in any of them has changed."""
    for model in models:
        model.check()  # before the run that it would replace is gone
    claims = [
        (place, _config(model, data, evaluate_every))
        for model, place in zip(models, places, strict=True)
        if place is not None
    ]
    for place, config in claims:
        _require_free(place, config, resume=resume, overwrite=overwrite)
    for place, _ in claims:
        place.mkdir(parents=True, exist_ok=True)  # a place that cannot be written to must fail before the work
    for place, config in claims:
        for path in _kept(place) if overwrite else ():
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        write_json(place / _CONFIG, config)


def _kept(folder: Path) -> list[Path]:
    """What a run left in a folder. Its record is the first to go: what it says would no longer be true."""
    return [folder / name for name in (_RECORD, _MODEL, _CHECKPOINTS) if (folder / name).exists()]


def _require_free(folder: Path, config: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Raise where a run of ``config`` cannot have a folder."""
    if resume and overwrite:
        raise DGZError("A run is either resumed or overwritten: --resume and --overwrite exclude each other.")
    # A run that was broken off before its first checkpoint is as good as none.
    kept = _kept(folder)
    if kept and not is_finished(folder) and not (folder / _CONFIG).is_file():
        raise DGZError(f"{kept[0]} is in the way and belongs to no run; choose another folder.")
    if not kept or overwrite:
        return
    if not resume and is_finished(folder):
        raise DGZError(f"{folder} holds a finished run; choose another folder or pass --overwrite (overwrite=True).")
    if not resume:
        raise DGZError(
            f"{folder} holds an unfinished run; go on with --resume (resume=True), or start anew with --overwrite "
            "(overwrite=True)."
        )
    if odd := _differences(read_json(folder / _CONFIG), config):
        raise DGZError(
            f"The run in {folder} differs from this one in {listing(odd)} (see {folder / _CONFIG}): resume it as "
            "it was, or start anew with --overwrite (overwrite=True)."
        )


def _differences(there: Any, here: dict[str, Any]) -> list[str]:
    """Dotted names of what is not the same in two configurations."""
    old, new = (dict(leaves(config)) for config in (there, here))
    return sorted(key for key in old.keys() | new.keys() if old.get(key, ...) != new.get(key, ...))


def _rounded(content: Any) -> Any:
    """The same with six digits after the point: less than a test row's share in any score."""
    if isinstance(content, Mapping):
        return {key: _rounded(value) for key, value in content.items()}
    if isinstance(content, list):
        return [_rounded(value) for value in content]
    return round(content, 6) if isinstance(content, float) else content


def _columns(history: Sequence[Mapping[str, Any]]) -> dict[str, dict[str, list[Any]]]:
    """A model's history as a record has it: all tested epochs of classifiers, and some of the generator's."""
    tested = [row for row in history if row["stage"] == "classifier" and "h" in row]
    names = ("generator_epoch", "epoch", "acc_unseen", "acc_seen", "h", "acc_zsl")
    of_generator = [row for row in history if row["stage"] == "generator"]
    every = -(-len(of_generator) // _GENERATOR_ROWS)
    ends = {len(of_generator), *range(every, len(of_generator), every)} if of_generator else set()
    kept = [row for k, row in enumerate(of_generator, 1) if "cacd" in row or k in ends]
    keys = dict.fromkeys(key for row in kept for key in row if key != "stage")
    found = {
        "classifier": {name: [_short(row[name]) for row in tested] for name in names},
        "generator": {key: [_short(row.get(key)) for row in kept] for key in keys},
    }
    return {stage: columns for stage, columns in found.items() if any(columns.values())}


def _short(value: Any) -> Any:
    return round(value, 5) if isinstance(value, float) else value
