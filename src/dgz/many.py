"""Many models at once: settings and seeds in, fitted models out, with everything shared that can be.

Right of the model, which it fits: generators that several models have in common are trained once, and classifiers as
one batched computation.
"""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from torch import Tensor

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.composed import ComposedMethod, fold_penalty, penalty_folds
from dgz.errors import DataError, DGZError
from dgz.estimator import as_json
from dgz.generators import ClassGenerator
from dgz.metrics import mean_penalty
from dgz.task import Task
from dgz.training import Checkpoints, fingerprint

_MOST_MEMBERS = 64  # trained at once: more would gain no time, and take memory


def fit_many(
    models: Iterable[ComposedMethod],
    X: Any,
    y: Any,
    attributes: Any = None,
    *,
    test: Any = None,
    generator_rows: Any = None,
    checkpoint_folder: str | Path | None = None,
    verbose: bool = False,
) -> list[ComposedMethod]:
    """Fit several models on the same rows, with as much of it done at once as can be.

    Each becomes what its own ``fit`` would have made of it, up to rounding. A generator that several share (the same
    settings and the same seed) is trained once; classifiers are trained as one batched computation, unless what decides
    the shape of a step differs (``weights``, ``loss``, ``d_hidden``, ``n_epochs``, ``learning_rate``, ``lr_step``,
    ``batch_size``, ``resample``). So seeds, ``lambda_1``, ``gate``, ``temperature`` and ``n_per_class`` vary freely.

    Parameters
    ----------
    models : iterable of ComposedMethod
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
    list of ComposedMethod
        The models.

    Raises
    ------
    DGZError
        Also when training one of them broke; the others are fitted then.

    Examples
    --------
    >>> from dgz import DGZ, fit_many, load_numbers
    >>> data = load_numbers(0)
    >>> models = [DGZ.without_generator(lambda_1=value, n_epochs=2) for value in (0.1, 1.0)]
    >>> fit_many(models, data.x_train, data.y_train, data.attributes)[0].classes_.shape
    (100,)
    """
    models = list(models)
    alike: dict[tuple[Any, ...], list[ComposedMethod]] = {}
    for model in models:
        model.check()
    for model in models:
        model.__dict__.pop(model._learned_last, None)  # from here on to its end, a failed fit leaves no model
        key = (model.feature_scaling, model.attribute_scaling, model.device, model.precision)
        alike.setdefault(key, []).append(model)
    _choose_penalties(models, X, y, attributes, verbose)
    broken = []
    folder = None if checkpoint_folder is None else Path(checkpoint_folder)
    for group in alike.values():
        broken += _fit_alike(group, X, y, attributes, test, generator_rows, folder, verbose)
    if broken:
        raise DGZError(
            f"Training broke for {len(broken)} of {len(models)} models, the first with "
            f"lambda_1={broken[0].lambda_1} and random_state={broken[0].random_state}: a smaller learning rate or "
            "other scaling may help."
        )
    return models


def _choose_penalties(models: list[ComposedMethod], X: Any, y: Any, attributes: Any, verbose: bool) -> None:
    """Find what ``seen_penalty`` is for each model: as :meth:`ComposedMethod.fit` does it, but all at once."""
    found: dict[int, list[tuple[float, float]]] = {
        k: [] for k, model in enumerate(models) if model.seen_penalty == "auto"
    }
    if found:
        rows, positions = models[min(found)]._take(X, y, attributes)
        for fold in penalty_folds(rows, positions, models[min(found)].attributes_):
            twins = [clone(models[k]).set_params(seen_penalty=0.0) for k in found]
            fit_many(twins, fold.x_train, fold.y_train, fold.attributes, verbose=verbose)
            for k, twin in zip(found, twins, strict=True):
                found[k].append(fold_penalty(twin, fold))
    for k, model in enumerate(models):
        model.seen_penalty_ = mean_penalty(found[k]) if k in found else float(model.seen_penalty)


def generator_key(model: ComposedMethod, seed: int) -> str:
    """The same text for models whose ``fit`` would train the same generator with that seed."""
    return json.dumps([as_json(model._new_generator()), seed], default=str)


def _fit_alike(
    models: list[ComposedMethod],
    X: Any,
    y: Any,
    attributes: Any,
    test: Any,
    generator_rows: Any,
    checkpoint_folder: Path | None,
    verbose: bool,
) -> list[ComposedMethod]:
    """Fit models that see the same numbers on the same device; gives those whose training broke."""
    leader = models[0]
    X, positions = leader._take(X, y, attributes)
    task = leader._prepare(X, positions, test)
    own = ("seed_", "seen_penalty_")
    learned = {name: value for name, value in vars(leader).items() if name.endswith("_") and name not in own}
    chosen = slice(None) if generator_rows is None else torch.as_tensor(generator_rows, device=task.x.device)
    broken: list[ComposedMethod] = []
    generators: dict[str, ClassGenerator | None] = {}
    spaces: dict[str, _Space] = {}
    batches: dict[tuple[Any, ...], list[tuple[ComposedMethod, CosineClassifier, Tensor]]] = {}
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
            except DataError:  # of a damaged checkpoint
                raise
            except DGZError:
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
        shape = (place, ClassifierTraining.shape_of(classifier, len(rows)))
        batches.setdefault(shape, []).append((model, classifier, rows))
    for (place, _), batch in batches.items():
        space = spaces[place]
        x, y_of_x = torch.cat(space.x), torch.cat(space.y)
        for start in range(0, len(batch), _MOST_MEMBERS):
            members, classifiers, rows_of_members = zip(*batch[start : start + _MOST_MEMBERS], strict=True)
            seeds = [model.seed_ for model in members]
            training = members[0]._classifier_training(
                list(classifiers), space.task, x, y_of_x, rows=rows_of_members, seeds=seeds
            )
            try:
                finished = training.run(verbose=verbose)
            except DGZError:  # none of them is left
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

    def rows_of(self, model: ComposedMethod, generator: str) -> Tensor:
        """Numbers of the rows that a model learns from; pseudo rows are made by its generator unless they are there."""
        key = generator + str([model.distribution, model.n_per_class, model.small_std, model.large_std])
        if key not in self.pools:
            pseudo_x, pseudo_y = model._synthesise(self.task)
            start = sum(map(len, self.x))
            self.pools[key] = (start, start + len(pseudo_x))
            self.x.append(pseudo_x)
            self.y.append(pseudo_y)
        return torch.cat([torch.arange(len(self.task.x)), torch.arange(*self.pools[key])]).to(self.task.x.device)
