"""Losses of the classifier: pure functions of logits, and the gradients the paper takes apart.

In come logits (…, n, C) of real rows of seen classes and generated rows of unseen ones; out comes one number per
leading index: usually one, or one for each of many classifiers trained at once. Everything is computed in at least
float32 by log-sum-exp, so that no temperature and no half precision overflows.
"""

from typing import Literal, get_args

import torch
from torch import Tensor
from torch.nn.functional import one_hot

Gate = Literal["argmax_all", "above_true", "always"]
Loss = Literal["revised", "plain", "incremental", "adjusted"]
GATES: tuple[Gate, ...] = get_args(Gate)


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    r"""Plain cross-entropy, Eq. (2): mean of :math:`-\log p_y(x)`.

    Takes logits (…, n, C) and labels y (…, n).

    Examples
    --------
    >>> cross_entropy(torch.tensor([[0.0, 0.0]]), torch.tensor([1])).exp()
    tensor(2.)
    """
    logits = _wide(logits)
    return (logits.logsumexp(-1) - _true(logits, y)).mean(-1)


def revised_cross_entropy(
    logits: Tensor, y: Tensor, seen: Tensor, lambda_1: float | Tensor, gate: Gate = "argmax_all"
) -> Tensor:
    r"""The paper's revised cross-entropy, Eq. (8).

    A row of a seen class competes with the seen classes, and with the one unseen class m that it likes best:

    .. math:: \log\Big(\sum_{c \in \mathcal{Y}^s} e^{l_c - l_y} + \lambda_1 g\, e^{l_m - l_y}\Big),

    where the gate g is 0 or 1. A row of an unseen class has the plain cross-entropy over all classes.

    Parameters
    ----------
    logits : (…, n, C)
    y : (…, n) integers
    seen : (C,) bool
        Which classes are seen.
    lambda_1 : float, or tensor that broadcasts with (…, n)
        Weight of the best unseen class in the loss of a seen row; 0 leaves the seen classes to themselves.
    gate : {"argmax_all", "above_true", "always"}
        When m counts: if it beats every class, if it beats the true class, or always. Each is open wherever the one
        before it is.

    Examples
    --------
    >>> logits = torch.tensor([[1.0, 0.0, 2.0]])  # of a row of class 0; class 2 is unseen and on top
    >>> seen = torch.tensor([True, True, False])
    >>> loss = revised_cross_entropy(logits, torch.tensor([0]), seen, lambda_1=0.5)
    >>> torch.isclose(loss.exp(), torch.tensor([1.0, -1.0, 1.0]).exp() @ torch.tensor([0, 1, 0.5]) + 1)
    tensor(True)
    """
    logits = _wide(logits)
    # Paper: Eq. (8) prints 1/n before its first sum only, Eq. (6) before both; the released code averages all rows.
    return (_revised_rivals(logits, y, seen, lambda_1, gate).logsumexp(-1) - _true(logits, y)).mean(-1)


def _revised_rivals(logits: Tensor, y: Tensor, seen: Tensor, lambda_1: float | Tensor, gate: Gate | Tensor) -> Tensor:
    """Logits of what each row's true class competes with in Eq. (8): −∞ where a class does not count."""
    of_seen = logits.masked_fill(~seen, -torch.inf)
    best, at = logits.masked_fill(seen, -torch.inf).max(-1, keepdim=True)  # −∞ where no class is unseen
    # Authors' code: λ1 counts only where an unseen class is the argmax over all classes, and so does the appendix's
    # listing. Paper: where p_m > p_y (Eq. 8). docs/protocol.md, row 3.
    code = torch.as_tensor(GATES.index(gate) if isinstance(gate, str) else gate, device=logits.device)[..., None, None]
    bar = torch.where(code == 0, of_seen.amax(-1, keepdim=True), _true(logits, y)[..., None])
    is_open = (best > bar) | (code == 2)
    rival = (best + _like(logits, lambda_1).log()[..., None]).masked_fill(~is_open, -torch.inf)
    of_seen_row = of_seen.scatter(-1, at, torch.where(seen[at], of_seen.gather(-1, at), rival))
    return torch.where(seen[y][..., None], of_seen_row, logits)


def incremental_cross_entropy(
    logits: Tensor, y: Tensor, seen: Tensor, lambda_1: float | Tensor = 1.0, lambda_2: float | Tensor = 1.0
) -> Tensor:
    r"""Cross-entropy with the unseen classes as a weighted increment, Eq. (6).

    A seen row's loss is :math:`-\log p_y / (\hat p^s + \lambda_1 \hat p^u)`, with the sums of p over seen and over all
    unseen classes; an unseen row's is :math:`-\lambda_2 \log p_y`. Both weights 1 give the plain cross-entropy.

    Takes logits (…, n, C), y (…, n), seen (C,) bool.

    Examples
    --------
    >>> logits, y, seen = torch.eye(3), torch.tensor([0, 1, 2]), torch.tensor([True, True, False])
    >>> torch.isclose(incremental_cross_entropy(logits, y, seen), cross_entropy(logits, y))
    tensor(True)
    """
    logits = _wide(logits)
    total = _incremental_rivals(logits, y, seen, lambda_1).logsumexp(-1)
    return ((total - _true(logits, y)) * _share(logits, y, seen, lambda_2)).mean(-1)


def _incremental_rivals(logits: Tensor, y: Tensor, seen: Tensor, lambda_1: float | Tensor) -> Tensor:
    return torch.where(seen[y][..., None], _shifted(logits, seen, lambda_1), logits)


def _share(logits: Tensor, y: Tensor, seen: Tensor, lambda_2: float | Tensor) -> Tensor:
    """Weight of each row in Eq. (6): 1 for rows of seen classes, λ2 for the others."""
    weight = _like(logits, lambda_2)
    return torch.where(seen[y], torch.ones_like(weight), weight)


def log_prior(y: Tensor, seen: Tensor, seen_ratio: float) -> Tensor:
    r"""How likely each class is before a row is seen, as ZLA has it (Chen et al., IJCAI 2022): logarithms (C,).

    The seen classes together are r times as likely as the unseen ones. Among them a class is as likely as its share of
    the rows; among the unseen ones all are equally likely. Added to the logits in training alone, it lets the loss take
    care of the imbalance that the logits would otherwise learn.

    Takes the classes y (n,) of the training rows, generated ones included, seen (C,) bool, and r.

    Examples
    --------
    >>> log_prior(torch.tensor([0, 0, 0, 1, 2]), torch.tensor([True, True, False]), seen_ratio=3.0).exp()
    tensor([0.5625, 0.1875, 0.2500])
    """
    counts = torch.bincount(y, minlength=len(seen)).double()
    of_seen = counts * seen
    within = torch.where(seen, of_seen / of_seen.sum(), 1 / (~seen).sum())
    group = torch.where(seen, seen_ratio, 1.0) / (1 + seen_ratio)
    return (within * group).clamp(min=1e-30).log().float()


def loss_and_slope(
    logits: Tensor,
    y: Tensor,
    seen: Tensor,
    *,
    loss: Loss,
    lambda_1: float | Tensor = 1.0,
    lambda_2: float | Tensor = 1.0,
    gate: Gate | Tensor = "argmax_all",
) -> tuple[Tensor, Tensor]:
    r"""One of the losses above and its derivative in the logits, (…) and (…, n, C), without autograd.

    Each loss is :math:`\log \sum_c e^{r_c} - l_y` per row, where :math:`r` are the logits of what the true class
    competes with; so its slope is the softmax of :math:`r`, less one at the true class.

    Parameters
    ----------
    logits, y, seen
        As in :func:`revised_cross_entropy`.
    loss : {"revised", "plain", "incremental", "adjusted"}
        Eq. (8), Eq. (2), Eq. (6), or Eq. (2) again for logits to which :func:`log_prior` was added.
    lambda_1, lambda_2 : float, or tensor that broadcasts with (…, n)
    gate : Gate, or integers (…)
        By number where it differs between leading indices: its place in ``GATES``.

    Examples
    --------
    >>> loss, slope = loss_and_slope(torch.zeros(1, 2), torch.tensor([1]), torch.tensor([True, True]), loss="plain")
    >>> slope
    tensor([[ 0.5000, -0.5000]])
    """
    logits = _wide(logits)
    if loss == "revised":
        rivals = _revised_rivals(logits, y, seen, lambda_1, gate)
    elif loss == "incremental":
        rivals = _incremental_rivals(logits, y, seen, lambda_1)
    else:
        rivals = logits
    share = _share(logits, y, seen, lambda_2 if loss == "incremental" else 1.0)
    value = ((rivals.logsumexp(-1) - _true(logits, y)) * share).mean(-1)
    slope = rivals.softmax(-1).scatter_add_(-1, y[..., None], -torch.ones_like(y, dtype=logits.dtype)[..., None])
    return value, slope * (share / y.shape[-1])[..., None]


def incremental_gradient(
    x: Tensor, y: Tensor, weights: Tensor, seen: Tensor, temperature: float, lambda_1: float, lambda_2: float
) -> Tensor:
    r"""What Eq. (6) moves the weights of the unseen classes by, Eq. (7): :math:`-\partial L / \partial W_u`.

    Takes rows x (n, d), labels y (n,), classifier weights (C, d), seen (C,) bool, for logits
    :math:`\langle W_c, x \rangle / \tau`; gives (C_u, d) in the order of the unseen classes.
    """
    logits = _wide(x) @ _wide(weights).T / temperature
    of_seen_row, unseen = seen[y][:, None], ~seen
    # Eq. (7)'s three sums, each over its rows: rows of W_u's own class, all unseen rows, all seen rows. The fraction in
    # the third, λ1 p_u / (p̂^s + λ1 p̂^u), is the softmax of logits whose unseen entries are raised by log λ1.
    own = lambda_2 * one_hot(y, len(seen)).to(logits.dtype)
    of_unseen_rows = lambda_2 * logits.softmax(-1)
    of_seen_rows = _shifted(logits, seen, lambda_1).softmax(-1)
    share = own - torch.where(of_seen_row, of_seen_rows, of_unseen_rows)  # a seen row's own class is no unseen one
    return share[:, unseen].T @ _wide(x) / (len(x) * temperature)


def pull_and_push(x: Tensor, y: Tensor, weights: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    r"""The two parts of plain cross-entropy's gradient, Proposition 1, Eq. (3).

    .. math:: -\frac{\partial L}{\partial W_k} = \frac{1}{n\tau} \sum_{i: y_i = k} x_i
        - \frac{1}{n\tau} \sum_j p_k(x_j)\, x_j

    The first pulls a class's weights to its centre, the second pushes them off where the class is already likely.

    Takes rows x (n, d), labels y (n,), classifier weights (C, d); gives both sums (C, d), the second with its sign.

    Examples
    --------
    >>> pull, push = pull_and_push(torch.eye(2), torch.tensor([0, 1]), torch.zeros(2, 2), temperature=1.0)
    >>> pull, push
    (tensor([[0.5000, 0.0000],
            [0.0000, 0.5000]]), tensor([[-0.2500, -0.2500],
            [-0.2500, -0.2500]]))
    """
    x, weights = _wide(x), _wide(weights)
    p = (x @ weights.T / temperature).softmax(-1)
    scale = len(x) * temperature
    return one_hot(y, len(weights)).to(x.dtype).T @ x / scale, -p.T @ x / scale


def kl_divergence(mean: Tensor, log_var: Tensor) -> Tensor:
    r"""Kullback-Leibler divergence (n,) of Gaussians with independent dimensions from N(0, I).

    .. math:: \tfrac12 \sum_k (\mu_k^2 + \sigma_k^2 - \log \sigma_k^2 - 1)

    Examples
    --------
    >>> kl_divergence(torch.tensor([[0.0, 0.0], [1.0, 2.0]]), torch.zeros(2, 2))
    tensor([0.0000, 2.5000])
    """
    return (mean.square() + log_var.exp() - log_var - 1).sum(1) / 2


def _wide(values: Tensor) -> Tensor:
    """At least float32: half precision cannot hold logits of small temperatures."""
    return values.float() if values.dtype in (torch.float16, torch.bfloat16) else values


def _like(logits: Tensor, number: float | Tensor) -> Tensor:
    if isinstance(number, Tensor):
        return number.to(logits)
    return torch.full((), number, dtype=logits.dtype, device=logits.device)  # never a copy from the host


def _shifted(logits: Tensor, seen: Tensor, lambda_1: float | Tensor) -> Tensor:
    """Logits with those of unseen classes raised by log λ1."""
    return torch.where(seen, logits, logits + _like(logits, lambda_1).log()[..., None])


def _true(logits: Tensor, y: Tensor) -> Tensor:
    return logits.gather(-1, y[..., None]).squeeze(-1)
