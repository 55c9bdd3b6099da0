"""Many models at once: settings and seeds in, fitted models out, with everything shared that can be.

Right of the frame that models have in common, left of whole models, which use it to choose settings: generators that
several models share are trained once, and classifiers as one batched computation.
"""

import json
import math
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.data import GZSLData, validation_folds
from dgz.data.dataset import Floats, Ints
from dgz.errors import BrokenTrainingError, DGZError
from dgz.estimator import as_json
from dgz.frame import Frame
from dgz.generators import ClassGenerator
from dgz.metrics import GZSLScores, best_penalty, gzsl_scores, mean_penalty
from dgz.task import Task
from dgz.training import Checkpoints, fingerprint, part

_MOST_MEMBERS = 64  # trained at once: more would gain no time, and take memory
_N_FOLDS = 3  # of the training rows, for what is chosen on them
# Between which λ1 is looked for: published values lie between 0.005 (AWA2) and 4 (CUB).
LOWEST, HIGHEST = 1e-3, 10.0


def fit_many(
    models: Iterable[Frame],
    X: Any,
    y: Any,
    attributes: Any = None,
    *,
    test: Any = None,
    generator_rows: Any = None,
    checkpoint_folder: str | Path | None = None,
    verbose: bool = False,
) -> list[Frame]:
    """Fit several models on the same rows, with as much of it done at once as can be.

    Each becomes what its own ``fit`` would have made of it, up to rounding. A generator that several share (the same
    settings and the same seed) is trained once; classifiers are trained as one batched computation, unless what decides
    the shape of a step differs (``weights``, ``loss``, ``d_hidden``, ``n_epochs``, ``learning_rate``, ``lr_step``,
    ``batch_size``, ``resample``). So seeds, ``lambda_1``, ``gate``, ``temperature`` and ``n_per_class`` vary freely.

    Parameters
    ----------
    models : iterable of Frame
        :class:`~dgz.DGZ`, or a rival that is composed of the same three parts.
        Fitted in place.
    X, y, attributes, test
        As in :meth:`DGZ.fit`.
    generator_rows : array of int, optional
        Numbers of the rows of ``X`` that generators learn from; all by default. Classifiers and scaling learn from all.
    checkpoint_folder : str or Path, optional
        Keep the state of generators in training there, of those that take longer than half a minute, and go on from
        what is there. Remove it when the models are safe.
    verbose : bool
        Show progress.

    Returns
    -------
    list of Frame
        The models.

    Raises
    ------
    BrokenTrainingError
        When training some of them broke; the others are fitted.

    Examples
    --------
    >>> from dgz import DGZ, fit_many, load_numbers
    >>> data = load_numbers(0)
    >>> models = [DGZ.without_generator(lambda_1=value, n_epochs=2) for value in (0.1, 1.0)]
    >>> fit_many(models, data.x_train, data.y_train, data.attributes)[0].classes_.shape
    (100,)
    """
    models = list(models)
    for model in models:
        model.check()
    for model in models:
        model.__dict__.pop(model._learned_last, None)  # from here on to its end, a failed fit leaves no model
    if not models:
        return []
    folder = None if checkpoint_folder is None else Path(checkpoint_folder)
    rows, positions = models[0]._take(X, y, attributes)
    place = None if folder is None else folder / "folds"
    choose_on_folds(models, rows, positions, models[0].attributes_, checkpoint_folder=place, verbose=verbose)
    options: dict[str, Any] = {"test": test, "generator_rows": generator_rows, "verbose": verbose}
    _fit_closed(models, X, y, attributes, checkpoint_folder=folder, **options)
    return models


def _fit_closed(
    models: Sequence[Frame],
    X: Any,
    y: Any,
    attributes: Any,
    *,
    generators: dict[str, dict[str, ClassGenerator | None]] | None = None,
    **options: Any,
) -> None:
    """Fit models in which nothing is open; options are those of :func:`_fit_alike`."""
    alike: dict[str, list[Frame]] = {}
    for model in models:
        key = str([model.feature_scaling, model.attribute_scaling, model.device, model.precision])
        alike.setdefault(key, []).append(model)
    known: dict[str, Any] = {} if generators is None else generators
    broken = []
    for key, group in alike.items():
        broken += _fit_alike(group, X, y, attributes, generators=known.setdefault(key, {}), **options)
    if broken:
        raise BrokenTrainingError(
            f"Training broke for {len(broken)} of {len(models)} models, the first with "
            f"lambda_1={broken[0].lambda_1_:g} and random_state={broken[0].random_state}: a smaller learning rate or "
            "other scaling may help."
        )


def choose_on_folds(
    models: Sequence[Frame],
    X: Floats,
    positions: Ints,
    attributes: Floats,
    *,
    checkpoint_folder: str | Path | None = None,
    verbose: bool = False,
) -> None:
    """Find what ``auto`` stands for in ``lambda_1`` and ``seen_penalty``: sets ``lambda_1_`` and ``seen_penalty_``.

    Models are trained on three leak-free folds of the training rows, in which some seen classes play unseen. On each
    there is a penalty on seen classes that gives the best H; the mean is what ``seen_penalty="auto"`` stands for.

    An open λ1 is looked for from 1 on. Where seen classes come off too badly, which the best penalty tells, it rises by
    a decade, and otherwise falls, as long as the mean H rises and the balance has not tipped over, between 0.001 and
    10. Where it has, λ1 lies in between: where, by interpolation, no other penalty than the given one would be better.
    With a penalty that is open too, it is the one tried with the best H. Generators are trained once for each fold.

    Parameters
    ----------
    models : sequence of Frame
        Those in which nothing is open cost nothing.
    X, positions, attributes
        Training rows, their classes as rows of ``attributes``, and all class vectors.
    checkpoint_folder, verbose
        As in :func:`fit_many`.
    """
    searches = [_Search(model) for model in models]
    n_seen = len(np.unique(positions))
    sizes = (len(X), n_seen, len(attributes) - n_seen)
    folds = _folds(X, positions, attributes) if any(one.next is not None for one in searches) else []
    generators: list[dict[str, Any]] = [{} for _ in folds]
    while asking := [one for one in searches if one.next is not None]:
        told: list[list[GZSLScores]] = [[] for _ in asking]
        for number, fold in enumerate(folds):
            twins = [one.twin(pseudo_rows_on(fold, one.model, *sizes)) for one in asking]
            place = None if checkpoint_folder is None else Path(checkpoint_folder) / f"fold-{number}"
            known: dict[str, Any] = {"checkpoint_folder": place, "generators": generators[number], "verbose": verbose}
            with part(f"fold {number + 1}"):
                _fit_closed(twins, fold.x_train, fold.y_train, fold.attributes, **known)
            for one, twin, scores in zip(asking, twins, told, strict=True):
                scores.append(gzsl_scores(twin, fold, seen_penalty=one.penalty))
        for one, scores in zip(asking, told, strict=True):
            one.take(scores)
    for one in searches:
        one.model.lambda_1_, one.model.seen_penalty_ = one.found()


def _folds(X: Floats, positions: Ints, attributes: Floats) -> list[GZSLData]:
    """Small GZSL problems made of training rows alone, on which settings can be chosen."""
    data = GZSLData(x_train=X, y_train=positions, attributes=attributes, name="the training rows")
    if len(data.seen) == 1:
        raise DGZError("One seen class makes no folds to choose on: give lambda_1 and seen_penalty a value.")
    return validation_folds(data, min(_N_FOLDS, len(data.seen)))


def pseudo_rows_on(fold: GZSLData, model: Frame, n_rows: int, n_seen: int, n_unseen: int) -> int:
    """Pseudo rows of each class on a fold, so that there are as many for each training row as there will be in the end.

    It is between these two kinds of rows that λ1 and the penalty on seen classes balance. In the end, there are
    ``n_rows`` training rows of ``n_seen`` classes, of which the model's classifier learns from as many as its generator
    says, and ``n_per_class`` pseudo rows for each of ``n_unseen`` classes.
    """
    if not n_unseen:
        return model.n_per_class
    learned_from = model._new_generator().n_training_rows
    in_the_end, here = learned_from(n_rows, n_seen), learned_from(len(fold.x_train), len(fold.seen))
    return max(round(model.n_per_class * n_unseen / in_the_end * here / len(fold.unseen)), 1)


class _Search:
    """What folds have said of a model's λ1 and penalty so far, and which λ1 they are to be asked about next."""

    def __init__(self, model: Frame) -> None:
        self.model = model
        self.penalty = 0.0 if model.seen_penalty == "auto" else float(model.seen_penalty)
        self.first = 1.0 if model.lambda_1 == "auto" else float(model.lambda_1)
        is_open = "auto" in (model.lambda_1, model.seen_penalty)
        self.next: float | None = self.first if is_open else None
        # For each λ1 tried, in order: the mean H, and how far above the given penalty the best one is.
        self.tried: dict[float, tuple[float, float]] = {}

    def twin(self, n_per_class: int) -> Frame:
        """What is trained on a fold in the model's place, with nothing left open."""
        settings = {"lambda_1": self.next, "seen_penalty": 0.0, "n_per_class": n_per_class}
        twin: Frame = clone(self.model).set_params(**settings)
        twin.lambda_1_, twin.seen_penalty_ = float(twin.lambda_1), 0.0
        return twin

    def take(self, folds: Sequence[GZSLScores]) -> None:
        """Learn what folds say of the λ1 that was asked about, and choose the next one, if there is to be one."""
        value, best = float(self.next or 0), [best_penalty(scores.curve) for scores in folds]
        h = np.mean([h for _, h in best] if self.model.seen_penalty == "auto" else [scores.h for scores in folds])
        is_better = all(h > height for height, _ in self.tried.values())
        self.tried[value] = float(h), mean_penalty(best, self.penalty) - self.penalty
        tilts = [tilt for _, tilt in self.tried.values()]
        # A best penalty below the given one says that seen classes come off too badly: λ1 is to rise.
        following = 10.0 ** (round(math.log10(value)) + (1 if tilts[0] < 0 else -1)) if value else 0.0
        goes_on = self.model.lambda_1 == "auto" and is_better and not min(tilts) <= 0 <= max(tilts)
        self.next = following if goes_on and LOWEST <= following <= HIGHEST else None

    def found(self) -> tuple[float, float]:
        """λ1 and penalty, as given or as folds say."""
        if not self.tried:
            return self.first, self.penalty
        best = max(self.tried, key=lambda value: self.tried[value][0])
        if self.model.seen_penalty == "auto":
            return best, self.tried[best][1]
        values, tilts = list(self.tried), [tilt for _, tilt in self.tried.values()]
        if min(tilts) < 0 < max(tilts):  # between the last two
            share = tilts[-2] / (tilts[-2] - tilts[-1])
            return float(values[-2] * (values[-1] / values[-2]) ** share), self.penalty
        return best, self.penalty


def generator_key(model: Frame, seed: int) -> str:
    """The same text for models whose ``fit`` would train the same generator with that seed."""
    return json.dumps([as_json(model._new_generator()), seed], default=str)


def _fit_alike(
    models: list[Frame],
    X: Any,
    y: Any,
    attributes: Any,
    *,
    test: Any = None,
    generator_rows: Any = None,
    generators: dict[str, ClassGenerator | None],
    checkpoint_folder: Path | None = None,
    verbose: bool = False,
) -> list[Frame]:
    """Fit models that see the same numbers on the same device; gives those whose training broke.

    ``generators`` are those that were trained on the same numbers before; what is trained here joins them.
    """
    leader = models[0]
    X, positions = leader._take(X, y, attributes)
    task = leader._prepare(X, positions, test)
    own = ("seed_", "lambda_1_", "seen_penalty_")
    learned = {name: value for name, value in vars(leader).items() if name.endswith("_") and name not in own}
    chosen = slice(None) if generator_rows is None else torch.as_tensor(generator_rows, device=task.x.device)
    broken: list[Frame] = []
    spaces: dict[str, _Space] = {}
    batches: dict[tuple[Any, ...], list[tuple[Frame, CosineClassifier, Tensor]]] = {}
    for model in models:
        if model is not leader:
            model.__dict__.pop("feature_names_in_", None)  # of rows it may have been fitted on before
            model.__dict__.update(learned)
            model.seed_ = model._draw_seed()
        model._rows = (X, leader.classes_[positions])
        fresh = model._new_generator()
        key = generator_key(model, model.seed_)
        if key not in generators:
            checkpoints = None
            if checkpoint_folder is not None:
                rows_of_it = None if generator_rows is None else np.asarray(generator_rows).tolist()
                scaling = [model.feature_scaling, model.attribute_scaling]
                known = [key, rows_of_it, scaling, model.precision, task.x.device.type]
                mark = fingerprint(known, X, positions, model.attributes_)
                checkpoints = Checkpoints(checkpoint_folder / mark[:16], mark, keep_short=False)
            try:
                generators[key] = fresh.fit(
                    task.x[chosen],
                    task.y[chosen],
                    task.vectors,
                    seed=model.seed_,
                    precision=model.precision,
                    checkpoints=checkpoints,
                    verbose=verbose,
                )
            except BrokenTrainingError:
                generators[key] = None
        trained = generators[key]
        if trained is None:
            broken.append(model)
            continue
        model.generator_ = trained
        # A generator with a space of its own has rows that are no one else's.
        place = key if trained.embeds else ""
        if place not in spaces:
            spaces[place] = _Space(task.embedded(trained, model.seed_))
        rows, classifier = spaces[place].rows_of(model, key), model._new_classifier()
        shape = (place, ClassifierTraining.shape_of(classifier, rows.shape[1]))
        batches.setdefault(shape, []).append((model, classifier, rows))
    for (place, _), batch in batches.items():
        space = spaces[place]
        x, y_of_x = torch.cat(space.x), torch.cat(space.y)
        at_once = max(_MOST_MEMBERS // batch[0][1].n_members, 1)
        for start in range(0, len(batch), at_once):
            members, classifiers, rows_of_members = zip(*batch[start : start + at_once], strict=True)
            training = members[0]._classifier_training(
                list(classifiers),
                space.task,
                x,
                y_of_x,
                rows=rows_of_members,
                seeds=[model.seed_ for model in members],
                seen_penalties=[model.seen_penalty_ for model in members],
            )
            try:
                finished = training.run(verbose=verbose)
            except BrokenTrainingError:  # none of them is left
                broken.extend(members)
                continue
            for model, classifier in zip(members, finished, strict=True):
                if all(bool(values.isfinite().all()) for values in classifier.net_.state_dict().values()):
                    model._finish(classifier)
                else:
                    broken.append(model)
    return broken


class _Space:
    """Rows of one feature space: the training rows, and all pseudo rows that some model learns from."""

    def __init__(self, task: Task) -> None:
        self.task = task
        self.x, self.y = [task.x], [task.y]
        self.pools: dict[str, tuple[int, int]] = {}  # where each set of pseudo rows is

    def rows_of(self, model: Frame, generator: str) -> Tensor:
        """Numbers of the rows that a model's members learn from; pseudo rows are made by its generator, once."""
        rows = []
        for member in range(model.n_members):
            key = generator + str([model.distribution, model.n_per_class, model.small_std, model.large_std, member])
            if key not in self.pools:
                pseudo_x, pseudo_y = model._synthesise(self.task, member)
                start = sum(map(len, self.x))
                self.pools[key] = (start, start + len(pseudo_x))
                self.x.append(pseudo_x)
                self.y.append(pseudo_y)
            rows.append(torch.cat([torch.arange(len(self.task.x)), torch.arange(*self.pools[key])]))
        return torch.stack(rows).to(self.task.x.device)
