"""Experiments: a method and a data set in, one finished run with its record out.

A run's folder holds ``config.json`` (what is run on what), ``checkpoints/`` while it runs, then ``model/`` and
``curve.json``, and last of all ``record.json``: its presence says that the run finished.
"""

import json
import platform
import shutil
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dgz.data import GZSLData
from dgz.data.dataset import listing
from dgz.errors import DGZError
from dgz.estimator import GZSLClassifier
from dgz.files import read_json, write_json
from dgz.metrics import gzsl_scores
from dgz.model import DGZ
from dgz.records import Record, is_finished, oracle, read_record, write_record

_CONFIG, _CHECKPOINTS, _MODEL, _CURVE, _RECORD = "config.json", "checkpoints", "model", "curve.json", "record.json"


def run(
    model: GZSLClassifier,
    data: GZSLData,
    folder: str | Path | None = None,
    *,
    selection: str = "last",
    resume: bool = False,
    overwrite: bool = False,
    evaluate_every: int = 0,
) -> Record:
    """Fit a method on the training rows, score it on the test rows, and record both.

    A :class:`~dgz.DGZ` learns the classes by their names, is scored on the test rows after every epoch, and is saved.
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
        See :meth:`DGZ.fit`.

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
    place = None if folder is None else Path(folder)
    resumed = False
    if isinstance(model, DGZ):
        model.check()  # before the run that it would replace is gone
    if place is not None:
        _claim(place, _config(model, data, evaluate_every), resume=resume, overwrite=overwrite)
        if is_finished(place):
            return read_record(place)
        resumed = (place / _CHECKPOINTS).exists()
    start = time.perf_counter()
    is_tested = bool(len(data.x_test_seen) and len(data.x_test_unseen))
    if isinstance(model, DGZ):
        names = np.array(data.class_names)  # what predictions of the saved model are, and what classes are added by
        model.fit(
            data.x_train,
            names[data.y_train],
            dict(zip(data.class_names, data.attributes, strict=True)),
            test=data if is_tested else None,
            evaluate_every=evaluate_every,
            checkpoint_folder=place and place / _CHECKPOINTS,
        )
    else:
        model.fit(data.x_train, data.y_train, data.attributes)
    fitted = time.perf_counter()
    scores = gzsl_scores(model, data).to_dict() if is_tested else {}
    seconds = {"fit_resumed" if resumed else "fit": fitted - start, "evaluate": time.perf_counter() - fitted}
    curve = [_rounded(row) for row in getattr(model, "history_", [])]
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
        oracle=oracle(curve),
        seconds=seconds,
        device=f"CPU ({platform.machine()})" if device == "cpu" else device,
    )
    if place is not None:
        if isinstance(model, DGZ):
            model.save(place / _MODEL, overwrite=True)
            write_json(place / _CURVE, curve)
        write_record(record, place)
        shutil.rmtree(place / _CHECKPOINTS, ignore_errors=True)
    return record


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


def _claim(folder: Path, config: dict[str, Any], *, resume: bool, overwrite: bool) -> None:
    """Make a folder ready for a run of ``config``, or say why it cannot be."""
    if resume and overwrite:
        raise DGZError("A run is either resumed or overwritten: --resume and --overwrite exclude each other.")
    folder.mkdir(parents=True, exist_ok=True)  # a place that cannot be written to must fail before the work
    # A run that was broken off before its first checkpoint is as good as none. Its record is the first to go: what it
    # says would no longer be true.
    kept = [folder / name for name in (_RECORD, _MODEL, _CURVE, _CHECKPOINTS) if (folder / name).exists()]
    if kept and not is_finished(folder) and not (folder / _CONFIG).is_file():
        raise DGZError(f"{kept[0]} is in the way and belongs to no run; choose another folder.")
    if overwrite:
        for path in kept:
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
    elif kept and resume:
        if odd := _differences(read_json(folder / _CONFIG), config):
            raise DGZError(
                f"The run in {folder} differs from this one in {listing(odd)} (see {folder / _CONFIG}): resume it as "
                "it was, or start anew with --overwrite (overwrite=True)."
            )
    elif kept and is_finished(folder):
        raise DGZError(f"{folder} holds a finished run; choose another folder or pass --overwrite (overwrite=True).")
    elif kept:
        raise DGZError(
            f"{folder} holds an unfinished run; go on with --resume (resume=True), or start anew with --overwrite "
            "(overwrite=True)."
        )
    write_json(folder / _CONFIG, config)


def _differences(there: Any, here: dict[str, Any]) -> list[str]:
    """Dotted names of what is not the same in two configurations."""
    old, new = (dict(_leaves(config)) for config in (there, here))
    return sorted(key for key in old.keys() | new.keys() if old.get(key, ...) != new.get(key, ...))


def _leaves(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    if not isinstance(content, Mapping):
        yield name, content
        return
    for key, value in content.items():
        yield from _leaves(value, f"{name}.{key}" if name else key)


def _rounded(row: Mapping[str, Any]) -> dict[str, Any]:
    return {key: round(value, 6) if isinstance(value, float) else value for key, value in row.items()}
