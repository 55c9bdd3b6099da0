"""The frame of methods that are not composed of generator, instances and classifier: networks that score rows.

In come rows of seen classes and the vectors of all classes; out come scores of any row for every class that has a
vector. Most synthesise nothing: what is learned on seen classes is used as it is on unseen ones.
"""

import math
from abc import abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from dgz.data.dataset import Floats
from dgz.estimator import Arrays
from dgz.metrics import decide, harmonic_mean, macro_accuracy
from dgz.task import Task
from dgz.trained import TrainedMethod
from dgz.training import Checkpoints, Precision, Row, Trainee, adam, multiplying, random_stream, set_rate

_MOST_VALUES = 2**26  # of all pairs of rows and classes that exist at once in use: 256 MB
_FEATURES, _LEAST_WIDTH = 2048, 256


def width(chosen: int | None, published: int, d_x: int) -> int:
    """A hidden layer's width for features of width ``d_x``: as chosen, or in proportion to what was published.

    Published widths are for 2048 features; narrower ones get narrower layers, but none below 256.

    Examples
    --------
    >>> width(None, 1024, d_x=2048), width(None, 1024, d_x=64), width(7, 1024, d_x=64)
    (1024, 256, 7)
    """
    return chosen or max(published * d_x // _FEATURES, _LEAST_WIDTH)


class ScoringMethod(TrainedMethod):
    """Networks that score rows against class vectors, learned from rows of seen classes; a method adds which.

    Attributes
    ----------
    networks_ : dict of str to Module
        What was learned.
    settings_ : dict
        What it was learned with, whatever ``set_params`` has said since.
    """

    _learned_last = "history_"
    networks_: dict[str, nn.Module]

    def fit(
        self,
        X: Any,
        y: Any,
        attributes: Any = None,
        *,
        test: Any = None,
        checkpoint_folder: str | Path | None = None,
        checkpoint_seconds: float = 30.0,
    ) -> Self:
        """Fit on rows ``X`` (n, d_x) with labels ``y`` (n,); classes of ``attributes`` absent from ``y`` are unseen.

        Parameters
        ----------
        X : array of shape (n, d_x)
        y : array of shape (n,)
        attributes : array of shape (n_classes, d_a), mapping, or DataFrame
            Vectors of the seen and of the unseen classes: an array is indexed by whole-number labels; a mapping's keys
            or a DataFrame's index are the labels.
        test : GZSLData, optional
            Its test rows are scored after every epoch, for ``history_`` alone: nothing is chosen by them.
        checkpoint_folder : str or Path, optional
            Keep the state of training there, and go on from what is there. Remove it when the model is safe.
        checkpoint_seconds : float
            Least time between two states kept.
        """
        self.check()
        X, positions = self._take(X, y, attributes)
        task = self._prepare(X, positions, test)
        checkpoints = None
        if checkpoint_folder is not None:
            mark = self._fingerprint(X, positions, [task.x.device.type, test is not None])
            checkpoints = Checkpoints(checkpoint_folder, mark, checkpoint_seconds)
        self.settings_ = super()._settings_in_use()
        n_classes, d_a = task.vectors.shape
        self._build(n_classes, d_a, task.x.shape[1])
        for net in self.networks_.values():
            net.to(task.x.device)
        self.history_ = self._learn(task, checkpoints)
        return self

    @abstractmethod
    def _learn(self, task: Task, checkpoints: Checkpoints | None) -> list[Row]:
        """Train ``networks_``, which can be used meanwhile; gives the history."""

    @abstractmethod
    def _compare(self, x: Tensor, vectors: Tensor) -> Tensor:
        """Scores (n, C) of scaled rows x (n, d_x) for the classes with the scaled ``vectors`` (C, d_a)."""

    def _values_per_pair(self, d_x: int) -> int:
        """How many numbers there are for each pair of a row and a class, while these are compared."""
        return 1

    @torch.no_grad()
    def _compare_all(self, x: Tensor, vectors: Tensor) -> Tensor:
        """What :meth:`_compare` gives, by blocks of rows and with whole float32 products."""
        size = max(_MOST_VALUES // (len(vectors) * self._values_per_pair(x.shape[1])), 1)
        with multiplying("float32", x.device):
            return torch.cat([self._compare(rows, vectors) for rows in torch.split(x, size)])

    def _watch(self, task: Task) -> Callable[[int], Row] | None:
        """What finds U, S, H and T1 after an epoch, where there are test rows."""
        if task.test is None:
            return None
        x_seen, y_seen, x_unseen, y_unseen = task.test
        seen, unseen = np.flatnonzero(self.seen_), np.flatnonzero(~self.seen_)

        def after_epoch(epoch: int) -> Row:
            # Where training has broken, it says so itself, a moment later.
            parts = (self._compare_all(x, task.vectors) for x in (x_seen, x_unseen))
            found = (scores.nan_to_num(nan=-math.inf) for scores in parts)
            on_seen, on_unseen = (decide(scores, seen, unseen) for scores in found)
            acc_seen = macro_accuracy(y_seen, on_seen.predict(), seen)
            acc_unseen = macro_accuracy(y_unseen, on_unseen.predict(), unseen)
            acc_zsl = macro_accuracy(y_unseen, on_unseen.unseen_class, unseen)
            h = harmonic_mean(acc_unseen, acc_seen)
            return {"acc_unseen": acc_unseen, "acc_seen": acc_seen, "h": h, "acc_zsl": acc_zsl}

        return after_epoch

    @staticmethod
    def _classifier_rows(history: list[Row], generator_epoch: int = 0) -> list[Row]:
        """Rows of ``history_``, of what decides in the end, and for how long a generator was trained before it."""
        return [{"stage": "classifier", "generator_epoch": int(generator_epoch), **row} for row in history]

    # --- After training.
    def _scores(self, X: Floats) -> npt.NDArray[np.floating[Any]]:
        device = next(next(iter(self.networks_.values())).parameters()).device
        x = self._on(device, self.scaler_.transform(X))
        return self._compare_all(x, self._vectors(device)).cpu().numpy()

    def _networks(self) -> Mapping[str, nn.Module]:
        return self.networks_

    def _settings_in_use(self) -> dict[str, Any]:
        return dict(self.settings_)

    def _relearn(self, header: Mapping[str, Any], arrays: Arrays) -> None:
        self.settings_ = self.settings()
        super()._relearn(header, arrays)


class SeenTraining(Trainee):
    """Training of networks by one Adam, on random rows with the numbers of their classes among the seen ones.

    Parameters
    ----------
    task : Task
    stage : str
        Where random numbers come from.
    networks : mapping of str to Module
    n_steps, batch_size : int
    seed : int
    precision : {"float32", "tf32", "bf16"}
    learning_rate : float
    betas : pair of float
    weight_decay : float
    lr_step, lr_factor : int or None, float
        The learning rate is multiplied by ``lr_factor`` after ``lr_step`` epochs, again and again; None keeps it.
    """

    def __init__(
        self,
        task: Task,
        stage: str,
        networks: Mapping[str, nn.Module],
        *,
        n_steps: int,
        batch_size: int,
        seed: int,
        precision: Precision,
        learning_rate: float,
        betas: tuple[float, float] = (0.9, 0.999),
        weight_decay: float = 0.0,
        lr_step: int | None = None,
        lr_factor: float = 1.0,
    ) -> None:
        self.classes = torch.nonzero(task.seen).squeeze(1)
        self.x, self.y = task.x, torch.searchsorted(self.classes, task.y)
        self.vectors = task.vectors[self.classes]
        self.networks, self.n_steps, self.batch_size, self.precision = networks, n_steps, batch_size, precision
        self.rng = random_stream(seed, stage, task.x.device)
        self.learning_rate, self.lr_step, self.lr_factor = learning_rate, lr_step, lr_factor
        parameters = [values for net in networks.values() for values in net.parameters()]
        self.optimizer = adam(parameters, learning_rate, betas=betas, weight_decay=weight_decay)
        self.optimizers = {stage: self.optimizer}

    def begin_epoch(self, epoch: int) -> None:
        """Let the learning rate sink."""
        n_times = (epoch - 1) // self.lr_step if self.lr_step else 0
        set_rate(self.optimizer, self.learning_rate * self.lr_factor**n_times)

    def draw(self) -> tuple[Tensor, Tensor]:
        """Random rows (n, d_x), with replacement, and the numbers (n,) of their classes among the seen ones."""
        size = (min(self.batch_size, len(self.x)),)
        rows = torch.randint(len(self.x), size, generator=self.rng, device=self.x.device)
        return self.x[rows], self.y[rows]
