"""What is recorded of a trained model beside its test scores.

Right of the model, left of the records. A fitted model and its data come in, small dicts that JSON can hold go out: how
close generated rows come to real ones, where both lie on a map, what moves the classifier's weights, and the toy that
shows what attribute noise does. Nothing here is random but by a given seed, and nothing chooses: real test rows of
unseen classes are looked at after the training.
"""

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgz.classifier import prepared
from dgz.composed import ComposedMethod
from dgz.data import GZSLData
from dgz.data.dataset import Floats, Ints
from dgz.errors import DGZError, require_count
from dgz.generators import WGANGP
from dgz.losses import cross_entropy, incremental_cross_entropy, incremental_gradient, pull_and_push
from dgz.metrics import cacd, class_ids, class_means, cmmd
from dgz.training import one_thread, random_stream

Points = dict[str, list[float]]


# --- Class level and instance level against the real rows.
def generation(model: ComposedMethod, data: GZSLData, *, random_state: int = 0) -> dict[str, float]:
    """How close generated rows of unseen classes come to the real test rows: CMMD, Eq. (1), and CACD, Eq. (A.2).

    Both are taken in the space in which the classifier works, over the unseen classes that have test rows.

    Parameters
    ----------
    model : ComposedMethod
        Fitted.
    data : GZSLData
        With test rows of unseen classes.
    random_state : int
        Which rows are generated, for CMMD: as many of each class as are real.

    Returns
    -------
    dict
        ``cmmd`` and ``cacd``.

    Examples
    --------
    >>> from dgz import DGZ, load_numbers
    >>> data = load_numbers(0)
    >>> model = DGZ.without_generator(n_epochs=1, generator__n_epochs=5)
    >>> found = generation(model.fit(data.x_train, data.y_train, data.attributes), data)
    >>> 0 < found["cmmd"] < 1, found["cacd"] < 5  # the scaled rows have norm 5
    (True, True)
    """
    x, y = _real_unseen(model, data)
    places, counts = np.unique(y, return_counts=True)
    # A class with a single real row has no unbiased MMD, and is left out by ``cmmd``.
    pseudo_x, pseudo_y = _generated(model, places, np.maximum(counts, 2), random_state)
    # CACD is about the class level, so the centres are the generator's own: the mean of 500 of its rows, or what a
    # mapping net gives. Means of rows that spread by a wide Gaussian would add that Gaussian's noise to the distance.
    device = next(model.generator_.net_.parameters()).device
    vectors = torch.tensor(model.attribute_scaler_.transform(model.attributes_)[places], device=device)
    centers = model.generator_.centers(vectors, random_stream(model.seed_, "centers", device))
    return {
        "cmmd": _digits(cmmd(x, y, pseudo_x, pseudo_y), 6),
        "cacd": _digits(cacd(class_means(x, y, places), centers.cpu()), 6),
    }


def projection(
    model: ComposedMethod, data: GZSLData, n_classes: int = 10, n_rows: int = 40, random_state: int = 0
) -> dict[str, Any]:
    """Real and generated rows of unseen classes on one map, Fig. 2: t-SNE of both together.

    Parameters
    ----------
    model : ComposedMethod
        Fitted.
    data : GZSLData
        With test rows of unseen classes.
    n_classes : int
        At most so many classes: those with most test rows, and of equal ones those with the smaller ids.
    n_rows : int
        At most so many real rows of a class, drawn at random, and as many generated ones.
    random_state : int

    Returns
    -------
    dict
        ``classes``, their names; ``real`` and ``generated``, each with the columns ``x``, ``y`` and ``class`` (a place
        in ``classes``); ``perplexity``, t-SNE's.
    """
    from sklearn.manifold import TSNE  # not at the top: slow to import, and wanted for one figure only
    from threadpoolctl import threadpool_limits  # type: ignore[import-untyped]

    require_count(n_classes=n_classes, n_rows=n_rows)
    x, y = _real_unseen(model, data)
    ids = class_ids(model.classes_, data).numpy()
    places, counts = np.unique(y, return_counts=True)
    chosen = places[np.lexsort((ids[places], -counts))][:n_classes]
    rng = np.random.default_rng(random_state)
    rows = [_draw(rng, np.flatnonzero(y == place), n_rows) for place in chosen]
    sizes = np.array([len(part) for part in rows])
    pseudo_x, _ = _generated(model, chosen, sizes, random_state)
    together = np.concatenate([x[np.concatenate(rows)], pseudo_x])
    # t-SNE wants fewer neighbours than there are rows, and looks at three times as many as its perplexity says.
    perplexity = round(min(30.0, max((len(together) - 1) / 3, 1.0)), 2)
    with threadpool_limits(1, user_api="openmp"):  # several threads add up in any order, and a map is chaotic
        points = TSNE(init="pca", perplexity=perplexity, random_state=random_state).fit_transform(together)
    columns = {"class": np.repeat(np.arange(len(chosen)), sizes).tolist()}
    real, generated = (_points(part, 2) | columns for part in np.split(points, 2))
    names = [data.class_names[ids[place]] for place in chosen]
    return {"classes": names, "real": real, "generated": generated, "perplexity": perplexity}


# --- What moves the classifier's weights.
def gradients(model: ComposedMethod, data: GZSLData, *, n_rows: int = 2000, random_state: int = 0) -> dict[str, float]:
    """What moves the weights of a trained classifier: Proposition 1, Eq. (6) and Eq. (7) in numbers.

    The gradient is that of the training rows and of generated rows of the unseen classes, as the classifier has them,
    at its trained weights.

    Parameters
    ----------
    model : ComposedMethod
        Fitted.
    data : GZSLData
        What it was fitted on.
    n_rows : int
        At most so many training rows, drawn at random. Where there are more, generated rows are thinned alike: what
        the two kinds of rows contribute is then to each other as it was in training.
    random_state : int

    Returns
    -------
    dict
        ``proposition_1_gap`` : largest difference between autograd's gradient of plain cross-entropy and Eq. (3), and
        ``equation_7_gap`` : between that of Eq. (6), at the model's λ1 and λ2 = 1, and Eq. (7); each as a fraction of
        the largest entry of the gradient, so that rounding alone leaves about 1e-15.

        ``pull_on_seen``, ``pull_on_unseen``, ``push_on_seen``, ``push_on_unseen`` : mean norms of Eq. (3)'s two parts
        over the classes of a kind.

        ``cosine_of_pull_and_center`` : mean over classes; 1 by the proposition.

        ``seen_share_of_push`` : how much of what pushes the unseen classes' weights away comes from rows of seen
        classes, at the model's λ1: the norms of Eq. (7)'s third sum against those of its second and third; and
        ``seen_share_of_push_at_0`` and so on, at other λ1.

    Examples
    --------
    >>> from dgz import DGZ, load_numbers
    >>> data = load_numbers(0)
    >>> model = DGZ.without_generator(n_epochs=1, generator__n_epochs=1)
    >>> found = gradients(model.fit(data.x_train, data.y_train, data.attributes), data)
    >>> found["proposition_1_gap"] < 1e-12, found["cosine_of_pull_and_center"], found["seen_share_of_push_at_0"]
    (True, 1.0, 0.0)
    """
    x, y = _classifier_rows(model, data, n_rows, random_state)
    weights, seen = torch.tensor(model.weights_).double(), torch.tensor(model.seen_)
    tau, lambda_1 = model.temperature, model.lambda_1_
    pull, push = pull_and_push(x, y, weights, tau)
    plain = _descent(x, weights, tau, lambda logits: cross_entropy(logits, y))
    weighted = _descent(x, weights, tau, lambda logits: incremental_cross_entropy(logits, y, seen, lambda_1, 1.0))
    by_formula = incremental_gradient(x, y, weights, seen, tau, lambda_1, 1.0)
    found = {
        "proposition_1_gap": _relative_gap(plain, pull + push),
        "equation_7_gap": _relative_gap(weighted[~seen], by_formula),
        "pull_on_seen": _mean_norm(pull[seen]),
        "pull_on_unseen": _mean_norm(pull[~seen]),
        "push_on_seen": _mean_norm(push[seen]),
        "push_on_unseen": _mean_norm(push[~seen]),
    }
    present = torch.unique(y)
    centers = class_means(x, y, present)
    found["cosine_of_pull_and_center"] = float(torch.cosine_similarity(pull[present], centers).mean())
    found["seen_share_of_push"] = _seen_share(x, y, weights, seen, tau, lambda_1)
    for other in _LAMBDAS:
        found[f"seen_share_of_push_at_{other:g}"] = _seen_share(x, y, weights, seen, tau, other)
    return {name: _digits(value, 4) for name, value in found.items()}


_LAMBDAS = (0.0, 0.01, 0.1, 1.0, 10.0)


def _classifier_rows(model: ComposedMethod, data: GZSLData, n_rows: int, random_state: int) -> tuple[Tensor, Tensor]:
    """Training rows and generated ones of unseen classes, as the classifier multiplies them, and their classes."""
    require_count(n_rows=n_rows)
    rows = _draw(np.random.default_rng(random_state), np.arange(len(data.x_train)), n_rows)
    n_each = max(round(model.n_per_class * len(rows) / len(data.x_train)), 1)
    pseudo_x, pseudo_y = _generated(model, np.flatnonzero(~model.seen_), n_each, random_state)
    x = np.concatenate([model.embed(data.x_train[rows]), pseudo_x])
    y = np.concatenate([_places(model, data)[data.y_train[rows]], pseudo_y])
    return prepared(torch.tensor(x).double(), model.weights), torch.tensor(y)


def _descent(x: Tensor, weights: Tensor, temperature: float, loss: Callable[[Tensor], Tensor]) -> Tensor:
    """−∂L/∂W (C, d) by autograd, for the logits of a linear classifier."""
    leaf = weights.clone().requires_grad_()
    (slope,) = torch.autograd.grad(loss(x @ leaf.T / temperature), leaf)
    return -slope


def _relative_gap(expected: Tensor, found: Tensor) -> float:
    return float((expected - found).abs().max() / expected.abs().max())


def _mean_norm(rows: Tensor) -> float:
    return float(torch.linalg.vector_norm(rows, dim=1).mean())


def _seen_share(x: Tensor, y: Tensor, weights: Tensor, seen: Tensor, temperature: float, lambda_1: float) -> float:
    """Norms of Eq. (7)'s third sum against those of its second and third, summed over the unseen classes."""
    of_seen_row = seen[y]
    from_seen, from_unseen = ((x[rows], y[rows]) for rows in (of_seen_row, ~of_seen_row))
    # Seen rows are in none of Eq. (7)'s other sums, and λ1 is in none but theirs. Both formulas divide by their number
    # of rows, the equation by that of all.
    third = len(from_seen[0]) * incremental_gradient(*from_seen, weights, seen, temperature, lambda_1, 1.0)
    second = len(from_unseen[0]) * pull_and_push(*from_unseen, weights, temperature)[1][~seen]
    of_third, of_second = _mean_norm(third), _mean_norm(second)
    return of_third / (of_second + of_third)


# --- The toy.
def toy(attribute_noise: float, *, seed: int = 0, n_epochs: int = 600) -> dict[str, Any]:
    """The toy experiment of Fig. A.2: what a generator makes of class vectors it was never trained on.

    2,000 points of N(0, I) in the plane belong to one class with the vector (0, 0). A Wasserstein GAN learns them from
    z ~ N(0, I) and that vector, plus noise of standard deviation ``attribute_noise``. Then z is held at 0 and 300 class
    vectors are drawn from N(0, I).

    Paper: networks and length of training are not printed. They were chosen, at σ = 0 and for seeds 0 to 2, by how well
    the prior alone gives the data (vector 0, z ~ N(0, I): standard deviations 0.9 to 1.02, squared MMD below 0.004),
    and by nothing else; what the figure shows was looked at afterwards.

    Parameters
    ----------
    attribute_noise : float
        σ: 0, 0.04 and 1 in the figure.
    seed : int
    n_epochs : int
        Of four generator steps each.

    Returns
    -------
    dict
        ``truth`` and ``generated``, 300 points each as columns ``x`` and ``y``; ``std``, the generated points' standard
        deviations along both axes; ``std_with_prior``, those of as many points as there is data, of the vector 0 and
        z ~ N(0, I).

    Examples
    --------
    >>> found = toy(0.04, n_epochs=1)
    >>> len(found["truth"]["x"]), len(found["generated"]["y"]), len(found["std"])
    (300, 300, 2)
    """
    truth = _normal(_N_TOY, random_stream(seed, "toy"))
    vector = torch.zeros(1, 2)
    gan = WGANGP(
        n_epochs=n_epochs,
        attribute_noise=attribute_noise,
        d_prior=2,
        # A narrow, fast critic that is well ahead of the generator: with the 5 steps, gradient penalty of 10 and rate
        # of 1e-4 that suit 2,048 features, the fit of two swings for as long as one cares to wait.
        n_critic=10,
        gp_weight=1.0,
        hidden=(64, 64),
        critic_hidden=64,
        relu_out=False,
        learning_rate=1e-3,
        batch_size=512,
    )
    with one_thread():
        gan.fit(truth, torch.zeros(_N_TOY, dtype=torch.long), vector, seed=seed)
    vectors = _normal(_N_SHOWN, random_stream(seed, "toy's class vectors"))
    with torch.no_grad():
        generated = gan.net_(torch.zeros_like(vectors), vectors)
    by_prior = gan.sample(vector.expand(_N_TOY, -1), random_stream(seed, "toy's prior"))
    return {
        "truth": _points(truth[:_N_SHOWN].numpy(), 3),
        "generated": _points(generated.numpy(), 3),
        "std": _spread(generated),
        "std_with_prior": _spread(by_prior),
    }


_N_TOY, _N_SHOWN = 2000, 300


def _normal(n: int, rng: torch.Generator) -> Tensor:
    return torch.randn(n, 2, generator=rng)


def _spread(points: Tensor) -> list[float]:
    return [round(value, 3) for value in points.std(0).tolist()]


# --- Rows, classes and numbers.
def _real_unseen(model: ComposedMethod, data: GZSLData) -> tuple[Floats, Ints]:
    """Test rows of unseen classes in the classifier's space, and the places of their classes in ``classes_``."""
    if not len(data.x_test_unseen):
        raise DGZError("The data holds no test rows of unseen classes, to which generated ones could be compared.")
    return model.embed(data.x_test_unseen), _places(model, data)[data.y_test_unseen]


def _generated(model: ComposedMethod, places: Ints, counts: Any, random_state: int) -> tuple[Floats, Ints]:
    """Rows of the classes at some places of ``classes_``, class by class, and the place of each row's class."""
    x, labels = model.generate(model.classes_[places], counts, random_state=random_state)
    return x, np.searchsorted(model.classes_, labels)


def _places(model: ComposedMethod, data: GZSLData) -> Ints:
    """The place in the model's ``classes_`` of every class id."""
    return np.argsort(class_ids(model.classes_, data).numpy())


def _draw(rng: np.random.Generator, rows: Ints, most: int) -> Ints:
    """At most so many of the rows, at random, in their order."""
    return rows if len(rows) <= most else np.sort(rng.choice(rows, most, replace=False))


def _points(points: npt.NDArray[np.float32], decimals: int) -> Points:
    x, y = np.round(points.astype(np.float64), decimals).T.tolist()
    return {"x": x, "y": y}


def _digits(value: float, n: int) -> float:
    """A number to ``n`` significant digits."""
    return float(f"{value:.{n}g}")
