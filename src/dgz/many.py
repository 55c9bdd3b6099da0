"""Many models at once: settings and seeds in, fitted models out, with everything shared that can be.

Right of the model, which it fits: generators that several models have in common are trained once, and classifiers as
one batched computation.
"""

import json
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from dgz.classifier import ClassifierTraining, CosineClassifier
from dgz.errors import DGZError
from dgz.generators import ClassGenerator
from dgz.model import DGZ

_MOST_MEMBERS = 64  # trained at once: more would gain no time, and take memory


def fit_many(
    models: Iterable[DGZ], X: Any, y: Any, attributes: Any = None, *, test: Any = None, verbose: bool = False
) -> list[DGZ]:
    """Fit several models on the same rows, with as much of it done at once as can be.

    Each becomes what its own ``fit`` would have made of it, up to rounding. A generator that several share (the same
    settings and the same seed) is trained once; classifiers are trained as one batched computation, unless what decides
    the shape of a step differs (``weights``, ``loss``, ``d_hidden``, ``n_epochs``, ``learning_rate``, ``lr_step``,
    ``batch_size``, ``resample``). So seeds, ``lambda_1``, ``gate``, ``temperature`` and ``n_per_class`` vary freely.

    Parameters
    ----------
    models : iterable of DGZ
        Fitted in place.
    X, y, attributes, test
        As in :meth:`DGZ.fit`.
    verbose : bool
        Show progress.

    Returns
    -------
    list of DGZ
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
    alike: dict[tuple[Any, ...], list[DGZ]] = {}
    for model in models:
        model.check()
    for model in models:
        model.__dict__.pop(model._learned_last, None)  # from here on to its end, a failed fit leaves no model
        key = (model.feature_scaling, model.attribute_scaling, model.device, model.precision)
        alike.setdefault(key, []).append(model)
    broken = [model for group in alike.values() for model in _fit_alike(group, X, y, attributes, test, verbose)]
    if broken:
        raise DGZError(
            f"Training broke for {len(broken)} of {len(models)} models, the first with "
            f"lambda_1={broken[0].lambda_1} and random_state={broken[0].random_state}: a smaller learning rate or "
            "other scaling may help."
        )
    return models


def _fit_alike(models: list[DGZ], X: Any, y: Any, attributes: Any, test: Any, verbose: bool) -> list[DGZ]:
    """Fit models that see the same numbers on the same device; gives those whose training broke."""
    leader = models[0]
    X, positions = leader._take(X, y, attributes)
    task = leader._prepare(X, positions, test)
    learned = {name: value for name, value in vars(leader).items() if name.endswith("_") and name != "seed_"}
    broken: list[DGZ] = []
    generators: dict[str, ClassGenerator | None] = {}
    pools: dict[str, tuple[int, int]] = {}  # where in the pool of rows each set of pseudo rows is
    x, y_of_x = [task.x], [task.y]
    batches: dict[tuple[Any, ...], list[tuple[DGZ, CosineClassifier, Tensor]]] = {}
    for model in models:
        if model is not leader:
            model.__dict__.pop("feature_names_in_", None)  # of rows it may have been fitted on before
            model.__dict__.update(learned)
            model.seed_ = model._draw_seed()
        model._rows = (X, leader.classes_[positions])
        fresh = model._new_generator()
        key = json.dumps([type(fresh).__name__, fresh.get_params(), model.seed_], default=str)
        if key not in generators:
            try:
                generators[key] = fresh.fit(
                    task.x, task.y, task.vectors, seed=model.seed_, precision=model.precision, verbose=verbose
                )
            except DGZError:
                generators[key] = None
        trained = generators[key]
        if trained is None:
            broken.append(model)
            continue
        model.generator_ = trained
        key += str([model.distribution, model.n_per_class, model.small_std, model.large_std])
        if key not in pools:
            pseudo_x, pseudo_y = model._synthesise(task)
            start = sum(map(len, x))
            pools[key] = (start, start + len(pseudo_x))
            x.append(pseudo_x)
            y_of_x.append(pseudo_y)
        rows = torch.cat([torch.arange(len(task.x)), torch.arange(*pools[key])]).to(task.x.device)
        classifier = model._new_classifier()
        batches.setdefault(ClassifierTraining.shape_of(classifier, len(rows)), []).append((model, classifier, rows))
    pool, of_pool = torch.cat(x), torch.cat(y_of_x)
    for batch in batches.values():
        for start in range(0, len(batch), _MOST_MEMBERS):
            members, classifiers, rows_of_members = zip(*batch[start : start + _MOST_MEMBERS], strict=True)
            seeds = [model.seed_ for model in members]
            training = leader._classifier_training(
                list(classifiers), task, pool, of_pool, rows=rows_of_members, seeds=seeds
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
