"""How good a model is, and how close generated features come to real ones.

Place in the flow: right of the classifier, left of the records. Scores of test rows come in, a block of rows at a time,
and become U, S, H, T1, A^is, A^iu, AUSUC and AUROC; real and generated features become CMMD and CACD. Everything is a
pure function: arrays or tensors in, work on the device they are on, plain floats and numpy arrays out. Scores are
fractions, class ids global integers.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol, TypeAlias, overload

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from dgz.errors import DGZError

Array: TypeAlias = npt.ArrayLike | Tensor
FloatArray: TypeAlias = npt.NDArray[np.float64]


# --- The door: everything becomes a tensor here.
class _Writable:
    """The same memory without numpy's read-only flag, which torch warns about; nothing here ever writes to it."""

    def __init__(self, array: npt.NDArray[Any]) -> None:
        self.owner = array  # keeps the memory alive for as long as a view of it lives
        self.__array_interface__ = {**array.__array_interface__, "data": (array.ctypes.data, False)}


def _tensor(values: Array, name: str, ndim: int) -> Tensor:
    """Give ``values`` as a tensor that shares their memory wherever torch can."""
    if not isinstance(values, Tensor):
        array = np.asarray(values)
        if array.dtype.kind not in "fiub":
            raise DGZError(f"{name} must hold numbers, found {array.dtype}.")
        if not array.dtype.isnative or any(stride < 0 for stride in array.strides):
            array = array.astype(array.dtype.newbyteorder("="), order="C")  # the two layouts torch cannot share
        values = torch.as_tensor(array if array.flags.writeable else np.asarray(_Writable(array)))
    if values.ndim != ndim:
        raise DGZError(f"{name} must have {ndim} dimension(s), found shape {tuple(values.shape)}.")
    return values.detach()


def _labels(values: Array, name: str, rows: Tensor | None = None) -> Tensor:
    """Class ids, one for each of ``rows`` and on their device where these are given."""
    labels = _tensor(values, name, 1)
    if len(labels) and (labels.is_floating_point() or labels.dtype == torch.bool):
        raise DGZError(f"{name} must hold integer class ids, found {labels.dtype}.")
    if rows is not None and len(labels) != len(rows):
        raise DGZError(f"{name} must hold one class id per row, found {len(labels)} for {len(rows)} rows.")
    return labels.to(device=None if rows is None else rows.device, dtype=torch.long).contiguous()


def _classes(values: Array, name: str) -> Tensor:
    classes = _labels(values, name)
    n_distinct = len(set(classes.tolist()))
    if n_distinct == 0 or n_distinct < len(classes):
        raise DGZError(f"{name} must hold at least one class id and none twice, found {n_distinct} in {len(classes)}.")
    return classes


# --- Accuracy by class.
def _positions(y: Tensor, classes: Tensor, name: str = "") -> Tensor:
    """Place of each label within ``classes``; a stranger is an error under ``name``, or comes last without one."""
    ordered, order = classes.to(y.device).sort()
    # On a processor, torch would wake all threads for some thousand labels, which takes longer than the search.
    at = torch.from_numpy(np.searchsorted(ordered.numpy(), y.numpy())) if y.is_cpu else torch.searchsorted(ordered, y)
    at = at.clamp(max=len(classes) - 1)
    found = ordered[at] == y
    if name and not bool(found.all()):
        raise DGZError(f"{name} holds class {int(y[~found][0])}, which is none of the {len(classes)} expected.")
    return torch.where(found, order[at], len(classes))


def _count(at: Tensor, what: Tensor, n_classes: int) -> Tensor:
    """Sum ``what`` by position, strangers last. Whole numbers: exact, and the same on every device."""
    return torch.zeros(n_classes + 1, dtype=torch.long, device=at.device).index_add_(0, at, what.long())


def per_class_accuracy(y_true: Array, y_pred: Array, classes: Array) -> FloatArray:
    """Share of the rows of each class that are predicted right.

    Parameters
    ----------
    y_true, y_pred : (n,) integers
        Rows whose true class is not among ``classes`` are left out.
    classes : (K,) integers

    Returns
    -------
    (K,) array
        In the order of ``classes``; NaN for a class without rows.

    Examples
    --------
    >>> per_class_accuracy([0, 0, 5], [0, 5, 5], classes=[0, 5, 7])
    array([0.5, 1. , nan])
    """
    y_true, classes = _labels(y_true, "y_true"), _classes(classes, "classes")
    at = _positions(y_true, classes)
    right = _count(at, y_true == _labels(y_pred, "y_pred", rows=y_true), len(classes))
    rows = _count(at, torch.ones_like(at), len(classes))
    accuracy: FloatArray = (right.double() / rows.double())[:-1].cpu().numpy()  # 0/0 is the promised NaN
    return accuracy


def macro_accuracy(y_true: Array, y_pred: Array, classes: Array) -> float:
    r"""Mean of :func:`per_class_accuracy` over the classes that have rows: :math:`A^u`, :math:`A^s` and :math:`T_1`.

    Examples
    --------
    >>> macro_accuracy([0, 0, 0, 5], [0, 5, 5, 5], classes=[0, 5, 7])  # (1/3 + 1) / 2, where the micro mean is 2/4
    0.6666666666666666
    """
    accuracy = per_class_accuracy(y_true, y_pred, classes)
    if np.isnan(accuracy).all():
        raise DGZError(f"None of the {len(accuracy)} classes has a row in y_true, so there is no accuracy to average.")
    return float(np.nanmean(accuracy))


@overload
def harmonic_mean(u: float, s: float) -> float: ...
@overload
def harmonic_mean(u: FloatArray, s: FloatArray) -> FloatArray: ...
def harmonic_mean(u: float | FloatArray, s: float | FloatArray) -> float | FloatArray:
    """Harmonic mean of unseen and seen accuracy, :math:`H = 2us/(u+s)`, and 0 when both are 0.

    Examples
    --------
    >>> harmonic_mean(0.5, 1.0), harmonic_mean(0.0, 0.0)
    (0.6666666666666666, 0.0)
    """
    total = np.add(u, s)
    # Authors' code: 0/0, so H is NaN in a first epoch that gets everything wrong.
    h = 2.0 * u * s / np.where(total == 0, 1.0, total)
    return float(h) if np.ndim(h) == 0 else h


# --- Decisions, and the curve they draw.
class Decisions(NamedTuple):
    """What remains of a block of scores once every row has named its best seen and its best unseen class.

    Attributes
    ----------
    seen_class, unseen_class : (n,) long tensors
        The winners within each group; of equal scores the lower class id wins.
    gap : (n,) double tensor
        Largest seen score minus largest unseen score; always finite.
    """

    seen_class: Tensor
    unseen_class: Tensor
    gap: Tensor

    def predict(self, seen_penalty: float = 0.0) -> Tensor:
        r"""Calibrated stacking: (n,) ids :math:`\arg\max_c\; s_c - \gamma\,[c \in \mathcal{Y}^s]` (Chao et al., 2016).

        At γ = ``seen_penalty`` = 0 this is the plain argmax over all classes. Any other γ must come from validation.

        Examples
        --------
        >>> decisions = decide([[0.9, 0.6], [0.9, 0.1]], seen=[0], unseen=[1])
        >>> decisions.predict().tolist(), decisions.predict(seen_penalty=0.5).tolist()
        ([0, 0], [1, 0])
        """
        if math.isnan(seen_penalty):
            raise DGZError("seen_penalty must be a number, found NaN.")
        # An exact tie goes to the lower class id, as numpy's argmax over all columns would have it.
        tie = (self.gap == seen_penalty) & (self.seen_class < self.unseen_class)
        return torch.where((self.gap > seen_penalty) | tie, self.seen_class, self.unseen_class)


def decide(scores: Array, seen: Array, unseen: Array, classes: Array | None = None) -> Decisions:
    """Reduce a block of scores to the three arrays of length n that every score below is made from.

    Parameters
    ----------
    scores : (n, C)
        Higher is better. Infinite scores are allowed, NaN is an error: it must never count as a right answer.
    seen, unseen : (C_s,), (C_u,) integers
    classes : (C,) integers, optional
        The class id of each column; 0 … C − 1 without it.

    Examples
    --------
    >>> decide([[3.0, 1.0, 2.0]], seen=[0, 1], unseen=[2])
    Decisions(seen_class=tensor([0]), unseen_class=tensor([2]), gap=tensor([1.], dtype=torch.float64))
    """
    scores = _tensor(scores, "scores", 2)
    columns = _classes(torch.arange(scores.shape[1]) if classes is None else classes, "classes")
    if len(columns) != scores.shape[1]:
        raise DGZError(f"scores must have one column per class, found {scores.shape[1]} for {len(columns)} classes.")
    winners, heights = [], []
    for name, group in (("seen", seen), ("unseen", unseen)):
        ids = _classes(group, name).to(scores.device).sort().values  # ascending: the first maximum is the lowest id
        height, first = scores[:, _positions(ids, columns, name)].max(dim=1)  # one NaN makes the row's maximum NaN
        winners.append(ids[first])
        heights.append(height.double())
    broken = heights[0].isnan() | heights[1].isnan()
    if bool(broken.any()):
        raise DGZError(f"scores hold NaN in {int(broken.sum())} of {len(broken)} rows, which have no prediction.")
    # Two equal infinities are a tie, and a finite gap leaves "everything unseen" to a penalty of +inf alone.
    return Decisions(winners[0], winners[1], torch.nan_to_num(heights[0] - heights[1], nan=0.0))


@dataclass(frozen=True, eq=False)
class SeenUnseenCurve:
    """Accuracy on unseen against accuracy on seen classes while the penalty on seen scores grows.

    Attributes
    ----------
    seen_penalty : (m,) array
        Ascending: −inf (all rows called seen), midpoints of neighbouring gaps, +inf (all rows called unseen).
    acc_unseen, acc_seen : (m,) arrays
        What ``Decisions.predict`` reaches at these penalties: U rises from 0, S falls to 0.
    """

    seen_penalty: FloatArray
    acc_unseen: FloatArray
    acc_seen: FloatArray

    @property
    def h(self) -> FloatArray:
        """Harmonic mean at each point."""
        return harmonic_mean(self.acc_unseen, self.acc_seen)


def _earned(decided: Tensor, y: Array, classes: Array, name: str) -> FloatArray:
    """What each row adds to the macro accuracy if ``decided`` is used: 1/(rows of its class × classes), or 0."""
    y, ids = _labels(y, name, rows=decided), _classes(classes, "classes")
    if len(y) == 0:
        raise DGZError(f"{name} holds no rows, so there is nothing to score.")
    at = _positions(y, ids, name)
    rows = _count(at, torch.ones_like(at), len(ids))
    earned: FloatArray = ((decided == y) / (rows[at] * (rows > 0).sum()).double()).cpu().numpy()
    return earned


def seen_unseen_curve(
    decisions_seen: Decisions, y_seen: Array, decisions_unseen: Decisions, y_unseen: Array, seen: Array, unseen: Array
) -> SeenUnseenCurve:
    """Sweep the seen penalty over all thresholds at once, in O(n log n) (Chao et al., 2016).

    A test row is called seen while its gap is above the penalty. Rows with equal gaps change sides together, and every
    row weighs 1/(rows of its class × classes with rows), so that U and S are macro accuracies.

    Parameters
    ----------
    decisions_seen, y_seen : n_s decisions and labels of the seen test rows
    decisions_unseen, y_unseen : n_u decisions and labels of the unseen test rows
    seen, unseen : (C_s,), (C_u,) integers

    Examples
    --------
    >>> on_seen = decide([[0.9, 0.1]], seen=[0], unseen=[1])
    >>> on_unseen = decide([[0.5, 0.25]], seen=[0], unseen=[1])
    >>> curve = seen_unseen_curve(on_seen, [0], on_unseen, [1], seen=[0], unseen=[1])
    >>> curve.seen_penalty.round(3), curve.acc_unseen, curve.acc_seen
    (array([ -inf, 0.525,   inf]), array([0., 1., 1.]), array([1., 1., 0.]))
    """
    s = _earned(decisions_seen.seen_class, y_seen, seen, "y_seen")
    u = _earned(decisions_unseen.unseen_class, y_unseen, unseen, "y_unseen")
    # On the host: n numbers, whose running sums then have the same bits whatever device the scores were made on.
    gap = np.concatenate([decisions_seen.gap.cpu().numpy(), decisions_unseen.gap.cpu().numpy()])
    order = gap.argsort(kind="stable")
    gap = gap[order]
    gained = np.insert(np.cumsum(np.concatenate([np.zeros_like(s), u])[order]), 0, 0.0)
    kept = np.append(np.cumsum(np.concatenate([s, np.zeros_like(u)])[order][::-1])[::-1], 0.0)
    # A penalty is a number strictly between two gaps: equal gaps have none, nor have neighbouring floats.
    middle = gap[:-1] / 2 + gap[1:] / 2
    between = np.flatnonzero((gap[:-1] < middle) & (middle < gap[1:]))
    n_called_unseen = np.concatenate([[0], between + 1, [len(gap)]])
    return SeenUnseenCurve(
        seen_penalty=np.concatenate([[-np.inf], middle[between], [np.inf]]),
        acc_unseen=np.minimum(gained[n_called_unseen], 1.0),  # rounded weights may add up to a hair above 1
        acc_seen=np.minimum(kept[n_called_unseen], 1.0),
    )


def ausuc(curve: SeenUnseenCurve) -> float:
    r"""Area under the seen-unseen curve by trapezoids, :math:`\int S\,dU` (Chao et al., 2016).

    Examples
    --------
    >>> ausuc(SeenUnseenCurve(np.array([-np.inf, np.inf]), np.array([0.0, 0.5]), np.array([0.8, 0.0])))
    0.2
    """
    u, s = curve.acc_unseen, curve.acc_seen
    return float(np.sum(np.diff(u) * (s[1:] + s[:-1]) / 2))


def best_penalty(curve: SeenUnseenCurve) -> tuple[float, float]:
    """Penalty with the highest H on the curve, and that H.

    On test data this is an **oracle**: the penalty is fitted to the answers. Use it on validation folds, and carry the
    penalty over to the test set. The penalty lies midway between two gaps, so that a small change of the scores leaves
    the predictions alone; of equally good ones the one nearest 0 is taken, and 0 where H is 0 everywhere.

    Examples
    --------
    >>> best_penalty(SeenUnseenCurve(np.array([-np.inf, 0.3, np.inf]), np.array([0.0, 1, 1]), np.array([1.0, 1, 0])))
    (0.3, 1.0)
    """
    h = curve.h
    if h.max() == 0:
        return 0.0, 0.0
    best = np.flatnonzero(h >= h.max() - 1e-12)  # the choice must not hang on the last bit of a running sum
    chosen = best[np.abs(curve.seen_penalty[best]).argmin()]
    return float(curve.seen_penalty[chosen]), float(h[chosen])


def mean_penalty(found: Sequence[tuple[float, float]], neutral: float = 0.0) -> float:
    """The mean penalty of folds, from what :func:`best_penalty` gives for each; folds in which H is 0 say nothing.

    Examples
    --------
    >>> mean_penalty([(0.1, 0.5), (0.3, 0.7), (9.0, 0.0)])
    0.2
    """
    telling = [penalty for penalty, h in found if h > 0]
    return float(np.mean(telling)) if telling else neutral


def auroc(gap_seen: Array, gap_unseen: Array) -> float:
    r"""How well the gap tells seen rows from unseen ones: :math:`P(g_s > g_u) + \frac{1}{2} P(g_s = g_u)`.

    Takes ``Decisions.gap`` of the seen (n_s,) and of the unseen (n_u,) test rows. Every row weighs the same.

    Examples
    --------
    >>> auroc([2.0, 1.0], [0.0, 1.0])  # of four pairs three are in order and one is a tie
    0.875
    """
    high = _tensor(gap_seen, "gap_seen", 1).double().contiguous()
    low = _tensor(gap_unseen, "gap_unseen", 1).double().to(high.device).sort().values
    if len(high) == 0 or len(low) == 0 or bool(high.isnan().any() | low.isnan().any()):
        raise DGZError("gap_seen and gap_unseen must hold at least one number each and no NaN.")
    doubled = torch.searchsorted(low, high).sum() + torch.searchsorted(low, high, right=True).sum()
    return int(doubled) / (2 * len(high) * len(low))


# --- A model's scores.
class _Model(Protocol):
    @property
    def classes_(self) -> Any: ...
    def decision_function(self, X: Any, /) -> Any: ...


@dataclass(frozen=True, eq=False)
class GZSLScores:
    """Every test score of one model, as fractions.

    Attributes
    ----------
    acc_unseen, acc_seen, h : float
        :math:`A^u`, :math:`A^s`, H: macro accuracy of unseen and seen rows among all classes, at ``seen_penalty``.
    acc_zsl : float
        :math:`T_1`: macro accuracy of the unseen rows among unseen classes only.
    acc_intra_seen : float
        :math:`A^{is}`: macro accuracy of the seen rows among seen classes only.
    ausuc, auroc : float
        Area under the curve, and separation of seen from unseen rows: both independent of ``seen_penalty``.
    seen_as_unseen, unseen_as_seen : float
        Share of the rows of seen classes that are taken for some unseen one, and the other way round.
    per_class : mapping of class id to float
        Accuracy of each class among all classes; NaN for a class without rows.
    """

    # Paper: Table 2's caption swaps A^u and A^s; the text (and we) mean A^u on the unseen test rows.
    acc_unseen: float
    acc_seen: float
    h: float
    acc_zsl: float
    acc_intra_seen: float
    ausuc: float
    auroc: float
    seen_penalty: float
    seen_as_unseen: float
    unseen_as_seen: float
    per_class: Mapping[int, float] = field(repr=False)
    curve: SeenUnseenCurve = field(repr=False)

    @property
    def acc_intra_unseen(self) -> float:
        """:math:`A^{iu}`, unseen rows among unseen classes: by definition the same number as ``acc_zsl``."""
        return self.acc_zsl

    def to_dict(self, max_points: int = 200) -> dict[str, Any]:
        """Everything as JSON has it: None for NaN and infinity, text for class ids, the curve's points thinned out."""
        names = ["acc_unseen", "acc_seen", "h", "acc_zsl", "acc_intra_seen", "acc_intra_unseen", "ausuc", "auroc"]
        n_points = len(self.curve.seen_penalty)
        kept = np.linspace(0, n_points - 1, min(n_points, max_points)).round().astype(int)  # both ends among them
        curve = {name: getattr(self.curve, name)[kept] for name in ("seen_penalty", "acc_unseen", "acc_seen")}
        return {
            **{name: _json_float(getattr(self, name)) for name in [*names, "seen_penalty"]},
            "confusion": {name: _json_float(getattr(self, name)) for name in ("seen_as_unseen", "unseen_as_seen")},
            "per_class": {str(label): _json_float(accuracy) for label, accuracy in self.per_class.items()},
            "curve": {name: [_json_float(value) for value in values] for name, values in curve.items()},
        }


def _json_float(value: float) -> float | None:
    return float(value) if math.isfinite(value) else None


def class_ids(classes: Any, data: Any) -> Tensor:
    """The ids, in a data set, of a model's ``classes`` (C,), which are ids already or the names of classes.

    They must be exactly the data's: a class too many or too few would be another task, harder or easier than this one.

    Examples
    --------
    >>> from dgz.data import load_numbers
    >>> class_ids([f"{i:02d}" for i in range(99, -1, -1)], load_numbers(0))[:3]
    tensor([99, 98, 97])
    """
    expected = {*_classes(data.seen, "data.seen").tolist(), *_classes(data.unseen, "data.unseen").tolist()}
    if np.asarray(classes).dtype.kind == "U":
        names = {name: i for i, name in enumerate(getattr(data, "class_names", ()))}
        odd = set(names) ^ set(map(str, classes))
        found = torch.tensor([names.get(str(name), -1) for name in classes])
    else:
        found = _classes(classes, "model.classes_")
        odd = set(map(str, expected ^ set(found.tolist())))
    if odd:
        raise DGZError(f"model.classes_ must be the data's seen and unseen classes; they differ in {sorted(odd)[:5]}.")
    return found


def _decide_rows(
    model: _Model, X: Any, name: str, columns: Tensor, seen: Tensor, unseen: Tensor, batch_size: int
) -> Decisions:
    """Let the model score the rows in blocks, and keep only each block's decisions."""
    if len(X) == 0:
        raise DGZError(f"{name} holds no rows, so there is nothing to score.")
    blocks = []
    for start in range(0, len(X), batch_size):
        rows = X[start : start + batch_size]
        blocks.append(decide(model.decision_function(rows), seen, unseen, classes=columns))
        if len(blocks[-1].gap) != len(rows):
            raise DGZError(f"decision_function gave {len(blocks[-1].gap)} rows of scores for {len(rows)} of {name}.")
    return Decisions(*(torch.cat(parts) for parts in zip(*blocks, strict=True)))


def gzsl_scores(model: _Model, data: Any, *, seen_penalty: float = 0.0, batch_size: int = 4096) -> GZSLScores:
    """Score a model on the seen and unseen test rows of a data set.

    Parameters
    ----------
    model : object
        Has ``classes_`` (C,), exactly the data's seen and unseen classes in any order, by id or by name, and
        ``decision_function(X)``, which gives (n, C) scores with one column per entry of ``classes_``.
    data : GZSLData, or any object with its test rows
        Has ``x_test_seen``, ``y_test_seen``, ``x_test_unseen``, ``y_test_unseen``, ``seen`` and ``unseen``.
    seen_penalty : float
        Calibrated stacking, see :meth:`Decisions.predict`.
    batch_size : int
        Rows scored at a time: no more than ``batch_size`` × C scores exist at once.

    Examples
    --------
    >>> from types import SimpleNamespace as Fake
    >>> test_rows = {"x_test_seen": [[1, 0]], "y_test_seen": [0], "x_test_unseen": [[0, 1]], "y_test_unseen": [1]}
    >>> model = Fake(classes_=[0, 1], decision_function=lambda X: X)
    >>> gzsl_scores(model, Fake(**test_rows, seen=[0], unseen=[1])).h
    1.0
    """
    if batch_size < 1:
        raise DGZError(f"batch_size must be at least 1, found {batch_size}.")
    seen, unseen = _classes(data.seen, "data.seen"), _classes(data.unseen, "data.unseen")
    columns = class_ids(model.classes_, data)
    on_seen = _decide_rows(model, data.x_test_seen, "x_test_seen", columns, seen, unseen, batch_size)
    on_unseen = _decide_rows(model, data.x_test_unseen, "x_test_unseen", columns, seen, unseen, batch_size)
    y_seen, y_unseen = data.y_test_seen, data.y_test_unseen
    curve = seen_unseen_curve(on_seen, y_seen, on_unseen, y_unseen, seen, unseen)
    acc_seen = macro_accuracy(y_seen, on_seen.predict(seen_penalty), seen)
    acc_unseen = macro_accuracy(y_unseen, on_unseen.predict(seen_penalty), unseen)
    per_class: dict[int, float] = {}
    for ids, y, decisions in ((seen, y_seen, on_seen), (unseen, y_unseen, on_unseen)):
        accuracy = per_class_accuracy(y, decisions.predict(seen_penalty), ids)
        per_class.update(zip(ids.tolist(), accuracy.tolist(), strict=True))
    return GZSLScores(
        acc_unseen=acc_unseen,
        acc_seen=acc_seen,
        h=harmonic_mean(acc_unseen, acc_seen),
        acc_zsl=macro_accuracy(y_unseen, on_unseen.unseen_class, unseen),
        acc_intra_seen=macro_accuracy(y_seen, on_seen.seen_class, seen),
        ausuc=ausuc(curve),
        auroc=auroc(on_seen.gap, on_unseen.gap),
        seen_penalty=float(seen_penalty),
        seen_as_unseen=_share_of_group(on_seen.predict(seen_penalty), unseen),
        unseen_as_seen=_share_of_group(on_unseen.predict(seen_penalty), seen),
        per_class=dict(sorted(per_class.items())),
        curve=curve,
    )


def _share_of_group(predicted: Tensor, group: Tensor) -> float:
    return float(torch.isin(predicted, group.to(predicted.device)).double().mean())


class TestRows:
    """Test rows on a device, on which classifiers in training are scored without leaving it.

    Parameters
    ----------
    x_seen, x_unseen : (n_s, d), (n_u, d)
        Rows of seen and of unseen classes, of unit norm.
    y_seen, y_unseen : (n_s,), (n_u,) integers
        Their classes, as columns of ``is_seen``.
    is_seen : (C,) bool

    Examples
    --------
    >>> x, y = torch.eye(2), torch.arange(2)
    >>> rows = TestRows(x[:1], y[:1], x[1:], y[1:], torch.tensor([True, False]))
    >>> rows.scores(torch.eye(2)[None])["h"]
    tensor([1.], dtype=torch.float64)
    """

    __test__ = False  # pytest, which collects what is called Test…, must not

    def __init__(self, x_seen: Tensor, y_seen: Tensor, x_unseen: Tensor, y_unseen: Tensor, is_seen: Tensor) -> None:
        self.x, self.n_seen_rows = torch.cat([x_seen, x_unseen]), len(x_seen)
        # Columns are put in order, seen classes first: each group's best is then that of a slice.
        self.order = torch.argsort(~is_seen, stable=True)
        self.n_seen = int(is_seen.sum())
        self.y = torch.argsort(self.order)[torch.cat([y_seen, y_unseen])]
        # A macro accuracy is a sum in which each row has the share 1/(rows of its class × classes with rows).
        shares = []
        for y in (y_seen, y_unseen):
            rows = _count(y, torch.ones_like(y), len(is_seen))
            shares.append(1.0 / (rows[y] * (rows > 0).sum()).double())
        self.share = torch.cat(shares)
        self.scale = 1.0  # of scores
        if self.x.is_cuda:
            high, low = _halves(self.x)
            self.x, self.scale = torch.cat([high, low, high], dim=1), _HALVES_SCALE**2

    @torch.no_grad()
    def scores(self, weights: Tensor, seen_penalty: Tensor | None = None) -> dict[str, Tensor]:
        """U, S, H and T1, (K,) each, of K classifiers with the weights (K, C, d); an exact tie counts as seen.

        ``seen_penalty`` (K,) is subtracted from the scores of seen classes.
        """
        best_seen, at_seen, best_unseen, at_unseen = self._decide(weights[:, self.order])
        if seen_penalty is not None:
            best_seen = best_seen - self.scale * seen_penalty[:, None]
        share = self.share * (best_seen + best_unseen).isfinite()  # NaN must never count as a right answer
        right = torch.where(best_seen >= best_unseen, at_seen, at_unseen + self.n_seen) == self.y
        earned, among_unseen = right * share, (at_unseen + self.n_seen == self.y) * share
        s, u = earned[:, : self.n_seen_rows].sum(1), earned[:, self.n_seen_rows :].sum(1)
        h = 2 * s * u / (s + u).clamp(min=1e-300)
        return {"acc_unseen": u, "acc_seen": s, "h": h, "acc_zsl": among_unseen[:, self.n_seen_rows :].sum(1)}

    def _decide(self, weights: Tensor) -> list[Tensor]:
        """Score and column (K, n) of each row's best seen and best unseen class, by blocks of rows."""
        n_members, n_classes, _ = weights.shape
        if self.x.is_cuda:
            high, low = _halves(weights)
            weights = torch.nn.functional.pad(torch.cat([high, high, low], dim=2), (0, 0, 0, -n_classes % 8))
        blocks = []
        for rows in torch.split(self.x, max(_MOST_SCORES // (n_members * n_classes), 1)):
            if rows.is_cuda:
                flat = torch.mm(rows, weights.flatten(0, 1).T, out_dtype=torch.float32)
            else:
                flat = rows @ weights.flatten(0, 1).T
            scores = flat.view(len(rows), n_members, -1).transpose(0, 1)
            best = (*scores[..., : self.n_seen].max(-1), *scores[..., self.n_seen : n_classes].max(-1))
            blocks.append(best)
        return list(blocks[0]) if len(blocks) == 1 else [torch.cat(parts, dim=1) for parts in zip(*blocks, strict=True)]


def _halves(unit: Tensor) -> tuple[Tensor, Tensor]:
    """Unit vectors as sums of two float16, 64 times as large: 22 bits of an entry, at the speed of 16-bit products."""
    scaled = _HALVES_SCALE * unit
    high = scaled.half()
    return high, (scaled - high).half()


_HALVES_SCALE = 64
_MOST_SCORES = 2**26  # that exist at once: 256 MB


# --- Real against generated features: CMMD and CACD.
def imq_kernel(x: Array, y: Array) -> Tensor:
    r"""Inverse multiquadratic kernel :math:`\kappa(x, x') = 2d / (2d + \lVert x - x' \rVert^2)`, from the appendix.

    Takes x (n, d) and y (m, d), gives (n, m) in double precision: half precision, and TF32 matrix products behind the
    caller's back, would drown the small differences that MMD is made of.

    Examples
    --------
    >>> imq_kernel([[0.0]], [[0.0], [2.0]]).tolist()  # 2/(2 + 0), 2/(2 + 4)
    [[1.0, 0.3333333333333333]]
    """
    x = _tensor(x, "x", 2).double()
    y = _tensor(y, "y", 2).to(x.device).double()
    if x.shape[1] != y.shape[1]:
        raise DGZError(f"x and y must have the same width, found {x.shape[1]} and {y.shape[1]}.")
    center = x.mean(0)  # distances do not move with the origin, and |x|² + |y|² − 2xy cancels least near it
    x, y = x - center, y - center
    squared = (x.square().sum(1)[:, None] + y.square().sum(1) - 2 * x @ y.T).clamp(min=0)
    return 2 * x.shape[1] / (2 * x.shape[1] + squared)


def _gram_sum(x: Tensor, y: Tensor | None, block_size: int) -> Tensor:
    """Sum of the kernel over all pairs of x and y, by blocks; without y, over all pairs of two different rows of x."""
    total = torch.zeros((), dtype=torch.double, device=x.device)
    other = x if y is None else y
    for i in range(0, len(x), block_size):
        for j in range(i if y is None else 0, len(other), block_size):
            block = imq_kernel(x[i : i + block_size], other[j : j + block_size])
            if y is None and i == j:
                block.fill_diagonal_(0.0)
            total += block.sum() * (2 if y is None and i < j else 1)  # a kernel is symmetric: half the blocks suffice
    return total


def mmd(x: Array, y: Array, block_size: int = 2048) -> float:
    r"""Squared maximum mean discrepancy between two samples, unbiased, with :func:`imq_kernel`.

    .. math:: \frac{\sum_{i \ne j} \kappa(x_i, x_j)}{n(n-1)} + \frac{\sum_{i \ne j} \kappa(y_i, y_j)}{m(m-1)}
        - \frac{2 \sum_{i,j} \kappa(x_i, y_j)}{nm}

    Takes x (n, d) and y (m, d), at least two rows each. Never more than ``block_size``² kernel values exist at once.

    Examples
    --------
    >>> round(mmd([[0.0], [0.0]], [[2.0], [2.0]]), 4)  # 1 + 1 - 2 · 1/3
    1.3333
    """
    x = _tensor(x, "x", 2)
    y = _tensor(y, "y", 2).to(x.device)
    n, m = len(x), len(y)
    if min(n, m) < 2 or block_size < 1:
        raise DGZError(f"mmd needs two rows in x and y and a positive block_size, found {n}, {m} and {block_size}.")
    within = _gram_sum(x, None, block_size) / (n * (n - 1)) + _gram_sum(y, None, block_size) / (m * (m - 1))
    value = float(within - 2 * _gram_sum(x, y, block_size) / (n * m))
    if not math.isfinite(value):
        raise DGZError("x and y must hold finite features whose squares do not overflow.")
    return value


def _rows_by_class(y: Tensor, classes: Tensor) -> list[Tensor]:
    """Row numbers of each class, from one sort instead of one pass over the labels per class."""
    ordered, order = y.sort(stable=True)
    first = torch.searchsorted(ordered, classes.to(y.device)).tolist()
    end = torch.searchsorted(ordered, classes.to(y.device), right=True).tolist()
    return [order[a:b] for a, b in zip(first, end, strict=True)]


def cmmd(
    real_x: Array, real_y: Array, pseudo_x: Array, pseudo_y: Array, classes: Array | None = None, block_size: int = 2048
) -> float:
    r"""Mean over classes of the :func:`mmd` between real and generated rows, Eq. (1).

    Comparable only within one feature space and one scaling: d and the features' scale set the kernel's width.

    Parameters
    ----------
    real_x, real_y : (n, d), (n,)
    pseudo_x, pseudo_y : (m, d), (m,)
    classes : (K,) integers, optional
        Those of ``real_y`` without it. A class with fewer than two rows on either side has no unbiased estimate and is
        skipped.
    block_size : int
        See :func:`mmd`.

    Examples
    --------
    >>> x, y = [[0.0], [0.0], [9.0], [9.0]], [3, 3, 4, 4]
    >>> round(cmmd(x, y, [[2.0], [2.0], [9.0], [9.0]], y), 4)  # class 3 as in mmd, class 4 gives 0
    0.6667
    """
    real_x, pseudo_x = _tensor(real_x, "real_x", 2), _tensor(pseudo_x, "pseudo_x", 2)
    real_y, pseudo_y = _labels(real_y, "real_y", rows=real_x), _labels(pseudo_y, "pseudo_y", rows=pseudo_x)
    ids = (
        torch.tensor(sorted(set(real_y.tolist())), dtype=torch.long)
        if classes is None
        else _classes(classes, "classes")
    )
    # Paper: Eq. (1) has one n_c for both sets, as the appendix generates as many rows as there are real ones. With each
    # set's own count the estimate stays unbiased for any counts, and is the printed formula where they match.
    values = [
        mmd(real_x[real], pseudo_x[pseudo], block_size)
        for real, pseudo in zip(_rows_by_class(real_y, ids), _rows_by_class(pseudo_y, ids), strict=True)
        if min(len(real), len(pseudo)) >= 2
    ]
    if not values:
        raise DGZError("cmmd needs a class with two real and two generated rows, found none.")
    return float(np.mean(values))


def class_means(X: Array, y: Array, classes: Array) -> Tensor:
    """Centre of each class: X (n, d) and y (n,) give (K, d) doubles in the order of ``classes``, NaN without rows.

    Examples
    --------
    >>> class_means([[0.0, 2.0], [2.0, 4.0], [5.0, 5.0]], [7, 7, 3], classes=[3, 7]).tolist()
    [[5.0, 5.0], [1.0, 3.0]]
    """
    X = _tensor(X, "X", 2)
    rows_by_class = _rows_by_class(_labels(y, "y", rows=X), _classes(classes, "classes"))
    return torch.stack([X[rows].mean(0, dtype=torch.double) for rows in rows_by_class])


def _center_distances(real_centers: Array, generated_centers: Array) -> Tensor:
    real = _tensor(real_centers, "real_centers", 2).double()
    generated = _tensor(generated_centers, "generated_centers", 2).to(real.device).double()
    if real.shape != generated.shape or len(real) == 0:
        raise DGZError(f"Centres must have one shape (K, d), found {tuple(real.shape)} and {tuple(generated.shape)}.")
    distances: Tensor = torch.linalg.vector_norm(generated - real, dim=1)
    if not bool(distances.isfinite().all()):
        raise DGZError("Centres must be finite; a class without rows has none.")
    return distances


def cacd(real_centers: Array, generated_centers: Array) -> float:
    r"""Class averaged centre distance, :math:`\frac{1}{K} \sum_k \lVert C_k^g - C_k^r \rVert_2`.

    Takes two (K, d) arrays, one row per unseen class in the same order; :func:`class_means` makes them.

    Examples
    --------
    >>> cacd([[0.0, 0.0], [1.0, 1.0]], [[3.0, 4.0], [1.0, 2.0]])  # (5 + 1) / 2
    3.0
    """
    # Paper: the equation is named "CADA", sums instead of averaging, and takes the root of a norm, a root already.
    return float(_center_distances(real_centers, generated_centers).mean())


def cacd_printed(real_centers: Array, generated_centers: Array) -> float:
    r"""CACD to the letter of the appendix's equation (``cada``), :math:`\sum_k \sqrt{\lVert C_k^g - C_k^r \rVert_2}`.

    Takes what :func:`cacd` takes, which is what the name says and what to use.

    Examples
    --------
    >>> cacd_printed([[0.0, 0.0], [1.0, 1.0]], [[3.0, 0.0], [1.0, 5.0]])  # √3 + √4
    3.732050807568877
    """
    return float(_center_distances(real_centers, generated_centers).sqrt().sum())
