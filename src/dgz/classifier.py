"""CLASSIFIER: how the weights of all classes are made and trained from real seen and generated unseen rows.

In come rows on a device, their classes, the class vectors and which classes are seen; out comes a net that turns class
vectors into classifier weights. A row's score for a class is the cosine between the two.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal, Self

import torch
from sklearn.base import BaseEstimator, clone
from torch import Tensor, nn
from torch.nn.functional import normalize

from dgz.errors import require_at_least, require_choice, require_count
from dgz.losses import GATES, Gate, Loss, log_prior, loss_and_slope
from dgz.metrics import TestRows
from dgz.nets import (
    MLP,
    SLOPE,
    ClassNormalisedMapper,
    FreeWeights,
    LinearWeights,
    initialise,
    member_of,
    stack,
    unstack,
)
from dgz.training import (
    OPERANDS,
    SOUND,
    Checkpoints,
    Precision,
    Row,
    Trainee,
    adam,
    has_kernels,
    in_range,
    multiplying,
    random_stream,
    set_rate,
    train,
    update,
)

if TYPE_CHECKING:
    from dgz.kernels import MappedClassifierStep

Weights = Literal["mapped", "free", "class_normalised", "linear"]
_FEWEST_STEPS = 10  # in an epoch: a data set of a few hundred rows is otherwise left untrained by any usual schedule


def prepared(x: Tensor, weights: Weights) -> Tensor:
    """Rows (n, d_x) as a classifier with such weights multiplies them: of unit length, or with a one for the bias.

    Examples
    --------
    >>> prepared(torch.tensor([[3.0, 4.0]]), "mapped"), prepared(torch.tensor([[3.0, 4.0]]), "linear")
    (tensor([[0.6000, 0.8000]]), tensor([[3., 4., 1.]]))
    """
    return nn.functional.pad(x, (0, 1), value=1.0) if weights == "linear" else normalize(x)


def member_name(number: int) -> str:
    """What the names of random streams of a member end in: nothing for the first, which is as if it were alone."""
    return f" {number + 1}" if number else ""


class CosineClassifier(BaseEstimator):  # type: ignore[misc]
    """Cosine classifier over seen and unseen classes, Eq. (9), (10).

    Parameters
    ----------
    weights : {"mapped", "free", "class_normalised", "linear"}
        Where a class's weights come from: a mapping net of its vector, nowhere (a free row), or a mapping net with
        class normalisation. ``linear`` has a free row and a bias, and products with rows as they are instead of
        cosines: the softmax classifier of the methods before DGZ, with a temperature of 1.
    loss : {"revised", "plain", "incremental", "adjusted"}
        Eq. (8), plain cross-entropy, Eq. (6), or ZLA's: plain, of logits to which the classes' priors were added.
    gate : {"argmax_all", "above_true", "always"}
        See :func:`~dgz.losses.revised_cross_entropy`.
    lambda_1, lambda_2 : float
        Weights of the unseen classes in the loss: λ1 of Eq. (6) and (8), λ2 of Eq. (6).
    temperature : float
        Divides the cosines (τ).
    d_hidden : int
        Width of the mapping net's hidden layer.
    n_epochs : int
        Passes over real and generated rows.
    learning_rate : float
        Adam's.
    lr_step : int or None
        Epochs after which the learning rate is multiplied by ``lr_factor``, again and again; None keeps it.
    batch_size : int
        Rows per step.
    resample : bool
        Draw batches with all classes equally likely, instead of going through the rows.
    lr_factor : float
        What the learning rate is multiplied by after ``lr_step`` epochs.
    beta_1, weight_decay : float
        Adam's.
    seen_ratio : float
        Of the ``adjusted`` loss: how much likelier the seen classes are, together, than the unseen ones (r).
    n_members : int
        How many such classifiers are trained, at once, each from a start of its own; a row's score is the mean of
        theirs.

    Attributes
    ----------
    net_ : Module
        Class vectors to weights; of several members, all of them at once.
    history_ : list of dict
        Loss of each epoch; of several members, the mean.
    """

    def __init__(
        self,
        *,
        weights: Weights = "mapped",
        loss: Loss = "revised",
        gate: Gate = "argmax_all",
        lambda_1: float = 1.0,
        lambda_2: float = 1.0,
        temperature: float = 0.04,
        d_hidden: int = 1024,
        n_epochs: int = 60,
        learning_rate: float = 1e-4,
        lr_step: int | None = 25,
        batch_size: int = 512,
        resample: bool = False,
        lr_factor: float = 0.1,
        beta_1: float = 0.5,
        weight_decay: float = 0.0,
        seen_ratio: float = 1.0,
        n_members: int = 1,
    ) -> None:
        self.weights = weights
        self.loss = loss
        self.gate = gate
        self.lambda_1 = lambda_1
        self.lambda_2 = lambda_2
        self.temperature = temperature
        self.d_hidden = d_hidden
        self.n_epochs = n_epochs
        self.learning_rate = learning_rate
        self.lr_step = lr_step
        self.batch_size = batch_size
        self.resample = resample
        self.lr_factor = lr_factor
        self.beta_1 = beta_1
        self.weight_decay = weight_decay
        self.seen_ratio = seen_ratio
        self.n_members = n_members

    def fit(
        self,
        x: Tensor,
        y: Tensor,
        attributes: Tensor,
        seen: Tensor,
        *,
        seed: int = 0,
        precision: Precision = "float32",
        after_epoch: Callable[[int], Row] | None = None,
        checkpoints: Checkpoints | None = None,
        verbose: bool = False,
    ) -> Self:
        """Learn from rows x (n, d_x) of classes y (n,), which are rows of ``attributes`` (C, d_a).

        ``seen`` (C,) says which classes are seen. The rest as in :meth:`~dgz.generators.ClassGenerator.fit`.
        """
        training = ClassifierTraining([self], x, y, attributes, seen, seeds=[seed], precision=precision)
        # In use meanwhile: it shares its values with the network in training.
        self.net_ = training.net if self.n_members > 1 else training.members[0]
        training.run(after_epoch=after_epoch, checkpoints=checkpoints, verbose=verbose)
        return self

    def build(self, n_classes: int, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained net for ``n_classes`` class vectors of width ``d_a`` and features of width ``d_x``."""
        nets = [initialise(self._new_net(n_classes, d_a, d_x), rng) for _ in range(self.n_members)]
        self.net_ = stack(nets) if self.n_members > 1 else nets[0]
        return self

    def _new_net(self, n_classes: int, d_a: int, d_x: int) -> nn.Module:
        if self.weights == "mapped":
            return MLP([d_a], [self.d_hidden, d_x])
        if self.weights == "free":
            return FreeWeights(n_classes, d_x)
        if self.weights == "linear":
            return LinearWeights(n_classes, d_x)
        return ClassNormalisedMapper(d_a, self.d_hidden, d_x)

    @torch.no_grad()
    def class_weights(self, attributes: Tensor) -> Tensor:
        """Weights of the classes with the vectors ``attributes`` (C, d_a): (C, d_x) of unit norm.

        Linear ones are (C, d_x + 1), of any norm, with the bias in the last column. Those of several members are the
        mean of theirs: scores are linear in weights, so the mean of weights gives the mean of scores.
        """
        was_training = self.net_.training
        weights: Tensor = self.net_.eval()(attributes)
        self.net_.train(was_training)
        weights = weights if self.weights == "linear" else normalize(weights, dim=-1)
        return weights.mean(0) if self.n_members > 1 else weights

    def check(self) -> None:
        """Raise a sentence about the first setting that cannot be used."""
        for name, kinds in (("weights", Weights), ("loss", Loss), ("gate", Gate)):
            require_choice(getattr(self, name), kinds, name)
        require_at_least(0, lambda_1=self.lambda_1, lambda_2=self.lambda_2, weight_decay=self.weight_decay)
        require_at_least(0, lr_factor=self.lr_factor, beta_1=self.beta_1)
        require_at_least(1e-12, temperature=self.temperature, learning_rate=self.learning_rate)
        require_at_least(1e-12, seen_ratio=self.seen_ratio)
        require_count(n_epochs=self.n_epochs, batch_size=self.batch_size, d_hidden=self.d_hidden)
        require_count(n_members=self.n_members)
        require_count(lr_step=1 if self.lr_step is None else self.lr_step)


class ClassifierTraining(Trainee):
    """Training of one classifier, or of several at once as one batched computation.

    Every one learns on its own: with its own seed, rows, λ1, λ2, temperature and gate, it becomes what it would have
    become alone, up to rounding. What decides the shape of a step must be the same for all (:meth:`shape_of`). Those
    that have several members are trained as so many, each from a start and in an order of its own.

    Parameters
    ----------
    classifiers : sequence of CosineClassifier
        Their settings.
    x, y : (n, d_x), (n,)
        Rows of all members and their classes.
    attributes, seen : (C, d_a), (C,) bool
    rows : sequence of (n_k,) or (n_members, n_k) integers, optional
        Which rows of ``x`` each classifier, or each member of it, learns from; all by default.
    seeds : sequence of int
    precision : {"float32", "tf32", "bf16"}
    test_rows : TestRows, optional
        On which all classifiers are scored after each epoch.
    seen_penalties : sequence of float, optional
        What each classifier's scores of seen classes are lowered by for that; nothing by default.
    """

    steps_alike = False  # each has its own rows

    def __init__(
        self,
        classifiers: Sequence[CosineClassifier],
        x: Tensor,
        y: Tensor,
        attributes: Tensor,
        seen: Tensor,
        *,
        rows: Sequence[Tensor] | None = None,
        seeds: Sequence[int],
        precision: Precision = "float32",
        test_rows: TestRows | None = None,
        seen_penalties: Sequence[float] | None = None,
    ) -> None:
        for classifier in classifiers:
            classifier.check()
        every = torch.arange(len(x), device=x.device)
        chosen = [every] * len(classifiers) if rows is None else list(rows)
        # Those with more rows make more steps; put first, those that still step are always the first few.
        self.places = sorted(range(len(chosen)), key=lambda k: -chosen[k].shape[-1])
        self.kind, self.precision, self.test_rows = classifiers[0], precision, test_rows
        self.seen_penalty: Tensor | None = None
        if seen_penalties is not None and any(seen_penalties):
            self.seen_penalty = torch.tensor([seen_penalties[k] for k in self.places], device=x.device)
        self.n_each = self.kind.n_members
        # From here on, members: those of one classifier stand together.
        each = [(k, i) for k in self.places for i in range(self.n_each)]
        self.classifiers = [classifiers[k] for k, _ in each]
        self.rows = [chosen[k].expand(self.n_each, -1)[i] for k, i in each]
        self.seeds = [(seeds[k], member_name(i)) for k, i in each]
        self.x, self.y, self.attributes, self.seen = prepared(x, self.kind.weights), y, attributes, seen
        self._build(x.shape[1])
        self._plan()
        self.fused = self._fused_step()

    @staticmethod
    def shape_of(classifier: CosineClassifier, n_rows: int) -> tuple[Any, ...]:
        """What must be equal for classifiers that are to be trained at once."""
        vary = ("lambda_1", "lambda_2", "temperature", "gate", "seen_ratio")
        same = (value for name, value in classifier.get_params().items() if name not in vary)
        return (*same, min(classifier.batch_size, n_rows))

    def _build(self, d_x: int) -> None:
        """The members' networks as one, and an optimizer that moves each member of it on its own."""
        (n_classes, d_a), device = self.attributes.shape, self.x.device
        starts = [
            clone(classifier)
            .set_params(n_members=1)
            .build(n_classes, d_a, d_x, random_stream(seed, f"classifier's start{member}"))
            .net_
            for classifier, (seed, member) in zip(self.classifiers, self.seeds, strict=True)
        ]
        self.net = stack(starts).to(device).train()
        self.start = [values.clone() for values in self.net.state_dict().values()]
        self.networks = {"classifier": self.net}
        self.members = [member_of(self.net, k).train() for k in range(len(starts))]
        by_parameter = list(zip(*(member.parameters() for member in self.members), strict=True))
        kind = self.kind
        options: dict[str, Any] = {"betas": (kind.beta_1, 0.999), "weight_decay": kind.weight_decay}
        self.optimizer = adam(chain(*by_parameter), kind.learning_rate, **options)
        self.optimizers = {"classifier": self.optimizer}
        self.moving = []
        for parameter, views in zip(self.net.parameters(), by_parameter, strict=True):
            mean, square = torch.zeros_like(parameter), torch.zeros_like(parameter)
            for k, view in enumerate(views):
                self.optimizer.state[view] |= {"exp_avg": mean[k], "exp_avg_sq": square[k]}
            self.moving.append((parameter.detach(), mean, square))

    def _plan(self) -> None:
        """How many steps each member makes in an epoch, where its rows will stand, and its settings as tensors."""
        device = self.x.device
        self.batch_size = min(self.kind.batch_size, len(self.rows[0]))
        counts = [max(math.ceil(len(rows) / self.batch_size), _FEWEST_STEPS) for rows in self.rows]
        self.n_steps, self.step_counts = counts[0], torch.tensor(counts, device=device)
        self.n_active = [sum(step < count for count in counts) for step in range(self.n_steps)]
        self.order = torch.zeros(len(counts), self.n_steps, self.batch_size, dtype=torch.long, device=device)
        self.streams = [random_stream(seed, f"classifier{member}", device) for seed, member in self.seeds]
        self.rng = self.streams[0]
        self.by_class = [_RowsByClass(self.y[rows]) for rows in self.rows] if self.kind.resample else None

        def numbers(name: str) -> Tensor:
            return torch.tensor([float(getattr(member, name)) for member in self.classifiers], device=device)

        self.lambda_1, self.lambda_2, self.temperature = map(numbers, ("lambda_1", "lambda_2", "temperature"))
        gates = [GATES.index(member.gate) for member in self.classifiers]
        self.gate = torch.tensor(gates, dtype=torch.int32, device=device)
        self.prior = None
        if self.kind.loss == "adjusted":
            ratios = [member.seen_ratio for member in self.classifiers]
            pairs = zip(self.rows, ratios, strict=True)
            self.prior = torch.stack([log_prior(self.y[rows], self.seen, ratio) for rows, ratio in pairs])

    def _fused_step(self) -> "MappedClassifierStep | None":
        """The step as fused kernels, where there are such."""
        if not isinstance(self.net, MLP) or not has_kernels(self.x.device):
            return None
        if not in_range(self.precision, self.attributes):
            return None
        if self.kind.loss == "adjusted" or self.kind.weight_decay or self.kind.beta_1 != 0.5:
            return None
        from dgz.kernels import MOST_CLASSES, MOST_FEATURES, MOST_ROWS, MappedClassifierStep

        sizes = (len(self.attributes), self.batch_size, self.x.shape[1])
        if any(size > most for size, most in zip(sizes, (MOST_CLASSES, MOST_ROWS, MOST_FEATURES), strict=True)):
            return None
        counts = torch.zeros(len(self.members), device=self.x.device)
        for k, member in enumerate(self.members):
            for leaf in member.parameters():
                self.optimizer.state[leaf]["step"] = counts[k]
        moving = dict(zip((name for name, _ in self.net.named_parameters()), self.moving, strict=True))
        self.x = self.x.to(OPERANDS[self.precision])
        return MappedClassifierStep(
            self.x,
            self.y,
            self.attributes,
            self.seen,
            *(moving[name] for name in ("first.blocks.0", "first.bias", "rest.0.blocks.0", "rest.0.bias")),
            counts=counts,
            rate=self.optimizer.param_groups[0]["lr"],
            lambdas=torch.stack([self.lambda_1, self.lambda_2], dim=1),
            gates=self.gate,
            temperatures=self.temperature,
            loss=self.kind.loss,
            slope=SLOPE,
            n_rows=self.batch_size,
        )

    def restart(self, first: int = 0, x: Tensor | None = None) -> Self:
        """Forget what was learned; with ``x``, after putting it in the place of the rows from ``first`` on."""
        if x is not None:
            self.x[first:] = prepared(x, self.kind.weights)
        with torch.no_grad():
            for values, start in zip(self.net.state_dict().values(), self.start, strict=True):
                values.copy_(start)
            for state in self.optimizer.state.values():
                for moment in state.values():
                    moment.zero_()
        for rng in self.rngs:
            rng.manual_seed(rng.initial_seed())
        return self

    @property
    def rngs(self) -> list[torch.Generator]:
        """A stream for each member."""
        return self.streams

    def run(
        self,
        *,
        after_epoch: Callable[[int], Row] | None = None,
        checkpoints: Checkpoints | None = None,
        verbose: bool = False,
    ) -> list[CosineClassifier]:
        """Train; gives the fitted classifiers, in the order they were given in.

        ``after_epoch`` may give one number for each classifier, as a tensor or list.
        """
        history = train(
            "classifier", self, self.kind.n_epochs, after_epoch=after_epoch, checkpoints=checkpoints, verbose=verbose
        )
        finished = self.classifiers[:: self.n_each]
        for k, classifier in enumerate(finished):
            of_it = [unstack(self.net, k * self.n_each + i) for i in range(self.n_each)]
            classifier.net_ = (stack(of_it) if self.n_each > 1 else of_it[0]).eval()
            classifier.history_ = [
                {name: value[k] if isinstance(value, list) else value for name, value in row.items()} for row in history
            ]
        return [finished[self.places.index(k)] for k in range(len(self.places))]

    def _by_classifier(self, values: Tensor) -> Tensor:
        """What is known of members (K, ...), as means over those of each classifier."""
        return values if self.n_each == 1 else values.view(-1, self.n_each, *values.shape[1:]).mean(1)

    @torch.no_grad()
    def class_weights(self) -> Tensor:
        """Weights (K, C, d_x) of all members, never less than float32; see :meth:`CosineClassifier.class_weights`."""
        with multiplying("float32", self.x.device):
            weights: Tensor = self.net.eval()(self.attributes)
        self.net.train()
        return weights if self.kind.weights == "linear" else normalize(weights, dim=-1)

    def begin_epoch(self, epoch: int) -> None:
        """Let the learning rate sink."""
        every = self.kind.lr_step
        n_times = (epoch - 1) // every if every else 0
        set_rate(self.optimizer, self.kind.learning_rate * self.kind.lr_factor**n_times)

    def shuffle(self) -> None:
        """Draw the rows of each step."""
        for k, rng in enumerate(self.rngs):
            order, n_rows = self.order[k].view(-1), len(self.rows[k])
            if self.by_class is None:
                # In random order (a permutation that graphs can hold), and again from the start to fill the last step.
                shuffled = self.rows[k][torch.rand(n_rows, generator=rng, device=rng.device).argsort()]
                n = self._n_steps_of(n_rows) * self.batch_size
                for start in range(0, n, n_rows):
                    order[start : min(start + n_rows, n)] = shuffled[: n - start]
            else:
                drawn = self.by_class[k].draw((self._n_steps_of(n_rows) * self.batch_size,), rng)
                order[: len(drawn)] = self.rows[k][drawn]
        self.steps = iter(range(self.n_steps))
        if self.fused is not None:
            self.fused.begin()

    def _n_steps_of(self, n_rows: int) -> int:
        return max(math.ceil(n_rows / self.batch_size), _FEWEST_STEPS)

    def step(self) -> dict[str, Tensor]:
        """Move every member once, as far as it has rows left in this epoch."""
        number = next(self.steps)
        rows, n_active = self.order[:, number], self.n_active[number]
        if self.fused is not None:
            return {"loss": self.fused(rows, n_active)}
        resting = [values[n_active:].clone() for values in self.net.buffers()]  # of members that are through
        weights = self.net(self.attributes)
        for values, rest in zip(self.net.buffers(), resting, strict=True):
            values[n_active:] = rest
        loss, slope = self._slope(weights.detach(), rows)
        gradients = torch.autograd.grad(weights, list(self.net.parameters()), slope.to(weights.dtype))
        update(self.optimizer, [part[k] if k < n_active else None for part in gradients for k in range(len(part))])
        loss[n_active:] = 0.0
        return {"loss": loss}

    def _slope(self, weights: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
        """Losses (K,) of the weights (K, C, d_x) on the ``rows`` (K, n), and their slopes in the weights."""
        x, y = self.x[rows], self.y[rows]
        is_linear = self.kind.weights == "linear"
        norms = torch.linalg.vector_norm(weights, dim=-1, keepdim=True, dtype=torch.promote_types(x.dtype, torch.float))
        norms = norms.clamp(min=1e-12)
        unit = weights if is_linear else weights / norms
        logits = x @ unit.mT / self.temperature[:, None, None]
        loss, slope = loss_and_slope(
            logits if self.prior is None else logits + self.prior[:, None],
            y,
            self.seen,
            loss=self.kind.loss,
            lambda_1=self.lambda_1[:, None],
            lambda_2=self.lambda_2[:, None],
            gate=self.gate,
        )
        of_unit = (slope / self.temperature[:, None, None]).mT.to(x.dtype) @ x
        if is_linear:
            return loss, of_unit
        # The length of the weights does not matter to a cosine, so nothing of the slope is along them.
        return loss, (of_unit - (of_unit * unit).sum(-1, keepdim=True) * unit) / norms

    def mean_losses(self, totals: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Means over each one's own steps."""
        return {name: self._by_classifier(total / self.step_counts) for name, total in totals.items()}

    def measure(self) -> dict[str, Tensor]:
        """Whether each classifier is finite, and its test scores where there are test rows."""
        with multiplying("float32", self.x.device):
            weights = self.class_weights()
            # What is not finite in a network is not so in its output, unless a ReLU at its end hides it; nor in a sum.
            values = [weights, *(self.net.state_dict().values() if self.kind.weights == "class_normalised" else ())]
            sums = torch.stack([self._by_classifier(part.flatten(1).sum(1)) for part in values])
            found = {SOUND: sums.isfinite().all(0)}
            if self.test_rows is not None:
                found |= self.test_rows.scores(self._by_classifier(weights), self.seen_penalty)
            return found


class _RowsByClass:
    """Rows ordered by class, to draw from with all classes equally likely."""

    def __init__(self, y: Tensor) -> None:
        self.order = torch.argsort(y, stable=True)
        n_rows = torch.bincount(y)
        self.classes = torch.nonzero(n_rows).squeeze(1)
        self.n_rows = n_rows[self.classes]
        self.start = self.n_rows.cumsum(0) - self.n_rows

    def draw(self, size: tuple[int, ...], rng: torch.Generator) -> Tensor:
        """Row numbers of the given shape: a random class, then a random row of it."""
        classes = torch.randint(len(self.classes), size, generator=rng, device=rng.device)
        share = torch.rand(size, generator=rng, device=rng.device, dtype=torch.double)
        return self.order[self.start[classes] + (share * self.n_rows[classes]).long()]
