"""Tuning: a method, a data set and a space of settings in; the settings that leak-free folds like best, refitted, out.

Optuna proposes settings. Each proposal is trained on folds of the training rows, in which some seen classes play
unseen; the balance of seen and unseen classes is found on the same folds. Test rows have no say. The folder holds
``study.jsonl`` (every trial; tuning goes on from it), ``tuning.json`` (what was found), and the run of the best.
"""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from dgz.data import GZSLData, validation_folds
from dgz.engines import LOCAL, Engine, LostWorkError
from dgz.errors import DGZError, require_count
from dgz.estimator import GZSLClassifier
from dgz.experiments import run
from dgz.files import write_json
from dgz.frame import Frame
from dgz.many import fit_many, pseudo_rows_on
from dgz.metrics import best_penalty, gzsl_scores, mean_penalty
from dgz.progress import Progress
from dgz.records import Record, is_finished, write_record
from dgz.trained import TrainedMethod
from dgz.training import Observer, Row, pick_device, watching
from dgz.tuning.space import Space, default_space, with_settings
from dgz.tuning.study import FOLD, distribution, enqueue_defaults, import_optuna, open_study

_STUDY, _SUMMARY = "study.jsonl", "tuning.json"
_GIVEN_UP = "given up"


@dataclass(frozen=True)
class Tuned:
    """What came of tuning.

    Attributes
    ----------
    settings : dict
        The best values found, by the names of the space; with ``seen_penalty`` where the balance was chosen too.
    h_on_folds : float
        Their mean H on the folds.
    n_trials, n_pruned, n_failed : int
        Trials in the study, and how many of them were given up early, or broke.
    model : GZSLClassifier
        Refitted on all training rows.
    record : Record
        Of that; its rule is ``validation``.
    """

    settings: dict[str, Any]
    h_on_folds: float
    n_trials: int
    n_pruned: int
    n_failed: int
    model: GZSLClassifier
    record: Record


def tune(
    model: GZSLClassifier,
    data: GZSLData,
    folder: str | Path,
    *,
    space: Space | None = None,
    n_trials: int = 50,
    n_folds: int = 3,
    at_once: int | None = None,
    calibrate: bool = True,
    n_members: int | None = None,
    engine: Engine = LOCAL,
) -> Tuned:
    """Search settings on leak-free folds of the training rows, and refit the best on all of them.

    Parameters
    ----------
    model : GZSLClassifier
        The method, with the values of all settings that are not searched. Its ``random_state`` also draws proposals.
    data : GZSLData
    folder : str or Path
        Of the study and of the final run. A study that is there already is gone on with; it must be of the same
        method, data, folds and space.
    space : mapping of str to Range or Choice, optional
        What to search; :func:`default_space` by default.
    n_trials : int
        Trials in the study, those of earlier calls included.
    n_folds : int
        See :func:`~dgz.data.validation_folds`.
    at_once : int, optional
        How many proposals are asked for together. Those of a method that is composed of three parts are also trained
        together (:func:`~dgz.fit_many`), up to 16 on a GPU and 4 elsewhere, which is the default; four times as many on
        Ray. Fewer let each proposal learn from more.
    calibrate : bool
        Choose ``seen_penalty`` on the folds as well, where the method has it and is composed of three parts.
    n_members : int, optional
        Of the final model: see :class:`~dgz.DGZ`. Trials have as many as ``model`` says.
    engine : Engine
        Where trials are trained.

    Raises
    ------
    DGZError
        Before any work where the space has a setting that the method has not, or the study in ``folder`` is another
        one's; and when every trial broke.
    """
    optuna = import_optuna()
    require_count(n_trials=n_trials)
    require_count(at_once=1 if at_once is None else at_once)
    space = default_space(model) if space is None else space
    if not space:
        raise DGZError("There is nothing to tune: the space is empty.")
    model.check()
    final = with_settings(model, {} if n_members is None else {"n_members": n_members})
    final.check()
    for end in (0, 1):
        with_settings(model, {name: part.ends[end] for name, part in space.items()}).check()
    has_penalty = isinstance(model, Frame) and "seen_penalty" in model.get_params()
    folds = _Folds(model, data, n_folds, calibrate and has_penalty)
    place = Path(folder)
    if is_finished(place) and not (place / _STUDY).exists():
        raise DGZError(f"{place} holds a run that comes of no study: choose another folder.")
    place.mkdir(parents=True, exist_ok=True)
    study = open_study(optuna, place / _STUDY, _about(model, data, space, folds))
    enqueue_defaults(study, model, space)
    _search(optuna, study, folds, space, n_trials, at_once, engine)
    states = [trial.state.name for trial in study.trials]
    if "COMPLETE" not in states:
        raise DGZError(f"No trial came to its end: {_reason(study)}")
    best = study.best_trial
    settings = {**best.params, **({"seen_penalty": best.user_attrs["seen_penalty"]} if folds.calibrates else {})}
    final = with_settings(final, settings)
    record = run(final, data, place, selection="validation", overwrite=True)
    found = {
        "settings": settings,
        "h_on_folds": best.value,
        "n_trials": len(states),
        "n_pruned": states.count("PRUNED"),
        "n_failed": states.count("FAIL"),
    }
    facts = {**found, "n_folds": n_folds, "space": {name: part.as_json() for name, part in space.items()}}
    record = replace(record, observed={**record.observed, "tuning": facts})
    write_record(record, place)
    write_json(place / _SUMMARY, facts)
    return Tuned(**found, model=final, record=record)


class _Folds:
    """What is done with settings: each worker has a copy of it, and of the data."""

    def __init__(self, model: GZSLClassifier, data: GZSLData, n_folds: int, calibrates: bool) -> None:
        self.model, self.data, self.n_folds, self.calibrates = model, data, n_folds, calibrates
        self.folds  # noqa: B018  # too few classes, say, are found out before any work

    @cached_property
    def folds(self) -> list[GZSLData]:
        """The problems, made of training rows alone."""
        return validation_folds(self.data, self.n_folds)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "folds"}

    def __call__(self, piece: tuple[Sequence[Mapping[str, Any]], int]) -> "list[_Outcome]":
        """Train models with each of some settings on a fold, and score them on its test rows."""
        proposals, number = piece
        return self.outcomes(proposals, number)

    def outcomes(
        self, proposals: Sequence[Mapping[str, Any]], number: int, observer: Observer | None = None
    ) -> "list[_Outcome]":
        """The same; with an ``observer``, a single one's test scores are told after every epoch."""
        fold = self.folds[number]
        models = [self._model(settings, fold) for settings in proposals]
        reason = ""
        known = (fold.x_train, fold.y_train, fold.attributes)
        more = {"test": fold} if observer and isinstance(models[0], TrainedMethod) else {}
        try:
            with watching(observer) if observer else nullcontext():
                if len(models) > 1:
                    fit_many(models, *known)
                else:
                    models[0].fit(*known, **more)
        except DGZError as error:
            reason = str(error)
        return [self._outcome(one, fold, reason) for one in models]

    def _model(self, settings: Mapping[str, Any], fold: GZSLData) -> Any:
        made: Any = with_settings(self.model, settings)
        if isinstance(made, Frame):
            sizes = (len(self.data.x_train), len(self.data.seen), len(self.data.unseen))
            made.set_params(n_per_class=pseudo_rows_on(fold, made, *sizes))
        return made.set_params(seen_penalty=0.0) if self.calibrates else made

    def _outcome(self, model: Any, fold: GZSLData, reason: str) -> "_Outcome":
        if not model.__sklearn_is_fitted__():
            return _Outcome(math.nan, reason=reason)
        scores = gzsl_scores(model, fold)
        if not self.calibrates:
            return _Outcome(scores.h)
        penalty, h = best_penalty(scores.curve)
        return _Outcome(h, penalty)


@dataclass(frozen=True)
class _Outcome:
    """H on a fold, and the penalty that it was reached with; or why there is none."""

    h: float
    penalty: float = 0.0
    reason: str = ""


class _PrunedError(Exception):
    """A trial that is given up in the middle of a training."""


def _search(
    optuna: Any, study: Any, folds: _Folds, space: Space, n_trials: int, at_once: int | None, engine: Engine
) -> None:
    """Ask for proposals, have them trained fold by fold, and tell what came of them, until there are enough trials."""
    distributions = {name: distribution(optuna, part) for name, part in space.items()}
    size = _together(folds.model)
    at_once = at_once or (size if engine.is_local else 4 * size)
    wants_gpu = str(getattr(folds.model, "device", "cpu")) != "cpu"
    n_done = _n_done(study)
    with Progress("tuning", total=n_trials, unit="trials") as progress:
        progress.advance(n_done, note=_best_so_far(study))
        while n_done < n_trials:
            n_asked = min(at_once, n_trials - n_done)
            trials = [study.ask(distributions) for _ in range(n_asked)]
            found: dict[int, list[_Outcome]] = {trial.number: [] for trial in trials}
            alive = list(trials)
            for number in range(folds.n_folds):
                batches = [alive[start : start + size] for start in range(0, len(alive), size)]
                pieces = [([trial.params for trial in batch], number) for batch in batches]
                for index, outcomes in _outcomes(folds, batches, pieces, engine, found, wants_gpu):
                    for trial, outcome in zip(batches[index], outcomes, strict=True):
                        found[trial.number].append(outcome)
                alive = [trial for trial in alive if _goes_on(optuna, study, trial, found[trial.number], number, folds)]
            for trial in alive:
                _conclude(study, trial, found[trial.number])
            n_done += n_asked
            progress.advance(n_asked, note=_best_so_far(study))


def _outcomes(
    folds: _Folds,
    batches: Sequence[Sequence[Any]],
    pieces: Sequence[tuple[list[dict[str, Any]], int]],
    engine: Engine,
    found: Mapping[int, Sequence[_Outcome]],
    wants_gpu: bool,
) -> Iterator[tuple[int, list[_Outcome]]]:
    """What came of batches of trials on a fold; one that is trained alone, here, is given up in its middle."""
    if engine.is_local and all(len(batch) == 1 for batch in batches):
        for index, ((proposal,), number) in enumerate(pieces):
            (trial,) = batches[index]
            try:
                yield index, folds.outcomes([proposal], number, _pruning(trial, folds, found[trial.number], number))
            except _PrunedError as pruned:
                yield index, [_Outcome(math.nan, reason=str(pruned))]
        return
    for index, outcomes in engine.run(folds, pieces, wants_gpu=wants_gpu):
        if isinstance(outcomes, LostWorkError):
            outcomes = [_Outcome(math.nan, reason=str(outcomes)) for _ in batches[index]]
        yield index, outcomes


def _pruning(trial: Any, folds: _Folds, before: Sequence[_Outcome], number: int) -> Observer:
    """An observer that tells Optuna the curve of a trial, and ends it where the pruner says so."""
    n_epochs = max(int(getattr(with_settings(folds.model, trial.params), "n_epochs", 1)), 1)
    earlier = sum(outcome.h for outcome in before)

    def observe(stage: str, epoch: int, row: Row) -> None:
        if "h" not in row or "/" in stage or epoch >= n_epochs:
            return
        trial.report((earlier + row["h"]) / (number + 1), step=number * FOLD + FOLD * epoch // n_epochs)
        if trial.should_prune():
            raise _PrunedError(_GIVEN_UP)

    return observe


def _goes_on(optuna: Any, study: Any, trial: Any, outcomes: Sequence[_Outcome], number: int, folds: _Folds) -> bool:
    """Whether a trial is to be trained on the next fold; if not, the study is told."""
    last = outcomes[-1]
    if last.reason == _GIVEN_UP:
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return False
    if not math.isfinite(last.h):
        trial.set_user_attr("reason", last.reason)
        study.tell(trial, state=optuna.trial.TrialState.FAIL)
        return False
    trial.report(float(np.mean([outcome.h for outcome in outcomes])), step=(number + 1) * FOLD)
    if number < folds.n_folds - 1 and trial.should_prune():
        study.tell(trial, state=optuna.trial.TrialState.PRUNED)
        return False
    return True


def _conclude(study: Any, trial: Any, outcomes: Sequence[_Outcome]) -> None:
    trial.set_user_attr("seen_penalty", mean_penalty([(outcome.penalty, outcome.h) for outcome in outcomes]))
    trial.set_user_attr("h", [outcome.h for outcome in outcomes])
    study.tell(trial, float(np.mean([outcome.h for outcome in outcomes])))


def _together(model: GZSLClassifier) -> int:
    """How many proposals are trained together."""
    if not isinstance(model, Frame):
        return 1
    return 16 if pick_device(model.device).type == "cuda" else 4


def _about(model: GZSLClassifier, data: GZSLData, space: Space, folds: _Folds) -> dict[str, Any]:
    """What a study is of: it can only be gone on with where all of this is the same."""
    settings = {name: value for name, value in model.settings().items() if name not in ("device", "verbose", *space)}
    about = {
        "method": type(model).__name__,
        "settings": settings,
        "data": data.record()["hashes"],
        "folds": folds.n_folds,
        "calibrate": folds.calibrates,
        "space": {name: part.as_json() for name, part in space.items()},
    }
    return json.loads(json.dumps(about))  # type: ignore[no-any-return]  # tuples are lists there


def _n_done(study: Any) -> int:
    """Trials that came to some end of their own; those of a process that was killed do not count."""
    return sum(trial.state.name in ("COMPLETE", "PRUNED") or "reason" in trial.user_attrs for trial in study.trials)


def _best_so_far(study: Any) -> str:
    try:
        best = study.best_trial
    except ValueError:  # there is none yet
        return ""
    settings = ", ".join(f"{name}={as_text(value)}" for name, value in best.params.items())
    return f"best H {100 * best.value:.1f} on folds with {settings}"


def as_text(value: Any) -> str:
    """A setting's value for people: three digits do."""
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _reason(study: Any) -> str:
    """Why no trial came to its end."""
    reasons = [trial.user_attrs["reason"] for trial in study.trials if trial.user_attrs.get("reason")]
    return reasons[0] if reasons else "all were broken off."
