"""Networks: the only home of layers and of their initialisation.

Used by the generators (class level) and the classifier. A network is made without values and then filled from a given
random stream, on the CPU, so that the same seed starts from the same weights on every device.
"""

import copy
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import pairwise
from typing import Any, Literal, TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear, normalize, pad

Net = TypeVar("Net", bound=nn.Module)
Out = Literal["linear", "relu", "sigmoid"]
Start = Literal["normal", "xavier", "pytorch"]
SLOPE = 0.2  # of every leaky ReLU, as in f-CLSWGAN, whose settings the paper takes over


class BlockLinear(nn.Module):
    """A linear layer over the concatenation of several inputs, with one weight block for each of them.

    [z, a] is never put together in memory, and a block whose input needs no gradient costs no product for one.
    """

    def __init__(self, d_inputs: Sequence[int], d_out: int) -> None:
        super().__init__()
        self.blocks = nn.ParameterList(torch.empty(d_out, d_in) for d_in in d_inputs)
        self.bias = nn.Parameter(torch.empty(d_out))

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs (n, d_in) each, to (n, d_out)."""
        out = None
        for block, values in zip(self.blocks, inputs, strict=True):
            if values.is_cuda and (odd := values.shape[-1] % 8):  # rows that are not aligned cost several times as much
                block, values = (pad(part, (0, 8 - odd)) for part in (block, values))
            if out is not None:
                out = out + values @ block.mT
            elif block.ndim == 2:
                out = linear(values, block, self.bias)
            else:  # stacked; in this order, the gradient of the block has the block's own layout
                columns = values.mT.expand(len(block), -1, -1)
                out = torch.baddbmm(self.bias[:, :, None], block, columns).mT
        return cast(Tensor, out)


class MLP(nn.Module):
    """A multi-layer perceptron over one or several inputs, (leaky) ReLU between its layers.

    Parameters
    ----------
    d_inputs : sequence of int
        Widths of the inputs.
    widths : sequence of int
        Widths of the hidden layers and of the output.
    out : {"linear", "relu", "sigmoid"}
        What becomes of the last layer's values.
    slope : float
        Of the ReLUs below 0; 0 makes them plain ones.

    Examples
    --------
    >>> net = initialise(MLP([2, 3], [8, 5]), torch.Generator().manual_seed(0))
    >>> net(torch.zeros(7, 2), torch.zeros(7, 3)).shape
    torch.Size([7, 5])
    """

    def __init__(
        self, d_inputs: Sequence[int], widths: Sequence[int], *, out: Out = "linear", slope: float = SLOPE
    ) -> None:
        super().__init__()
        self.first = BlockLinear(d_inputs, widths[0])
        self.rest = nn.ModuleList(BlockLinear([d_in], d_out) for d_in, d_out in pairwise(widths))
        self.out, self.slope = out, slope

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs (n, d_in) each, to (n, d_out)."""
        return self.finish(self.begin(*inputs)) if self.rest else self._end(self.first(*inputs))

    def begin(self, *inputs: Tensor) -> Tensor:
        """The values (n, d_hidden) of the first hidden layer."""
        return leaky_relu(self.first(*inputs), self.slope)

    def finish(self, hidden: Tensor) -> Tensor:
        """The output (n, d_out) for values of the first hidden layer."""
        *between, last = self.rest
        for layer in between:
            hidden = leaky_relu(layer(hidden), self.slope)
        return self._end(last(hidden))

    def _end(self, out: Tensor) -> Tensor:
        if self.out == "sigmoid":
            return out.sigmoid()
        return out.relu() if self.out == "relu" else out

    @torch.no_grad()
    def backpropagate(
        self, values: Tensor, slope: Callable[[Tensor], Tensor], gradients: Mapping[Tensor, Tensor]
    ) -> None:
        """Write the gradients of a loss in all parameters into given buffers; for one input and no sigmoid at the end.

        What autograd would do, but with rows as columns and into the same memory every time: on a CPU the products are
        a quarter faster like that, and no time is lost on fresh pages for gradients of many megabytes.

        Parameters
        ----------
        values : (d_in, n)
            The input, a column for each row.
        slope : callable
            Turns the output (d_out, n) into the loss's slope in it.
        gradients : mapping
            A buffer for each parameter.
        """
        layers = [self.first, *self.rest]
        device = values.device.type
        dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else values.dtype
        weights = [layer.blocks[0].to(dtype) for layer in layers]  # cast once, for both ways
        inputs = []
        for layer, weight in zip(layers, weights, strict=True):
            inputs.append(values.to(dtype))
            out = torch.addmm(layer.bias[:, None], weight, inputs[-1])
            values = leaky_relu(out, self.slope)
        out = out.relu_() if self.out == "relu" else out
        back = slope(out).to(out.dtype)
        if self.out == "relu":
            back = back.masked_fill(out == 0, 0.0)
        for layer, weight, values in zip(reversed(layers), reversed(weights), reversed(inputs), strict=True):
            of_weights = gradients[layer.blocks[0]]
            if back.dtype == of_weights.dtype:
                torch.mm(back, values.T, out=of_weights)
            else:
                of_weights.copy_(back @ values.T)
            gradients[layer.bias].copy_(back.sum(1))
            if layer is not self.first:
                back = weight.T @ back
                back = torch.where(values > 0, back, self.slope * back)


class Critic(nn.Module):
    """The critic D(x, a) of a Wasserstein GAN: one hidden layer, so that all its derivatives have a closed form."""

    def __init__(self, d_x: int, d_a: int, d_hidden: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_x, d_a], d_hidden)
        self.last = BlockLinear([d_hidden], 1)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        """D (n,) of rows x (n, d_x) with class vectors a (n, d_a)."""
        return cast(Tensor, self.last(leaky_relu(self.first(x, a), SLOPE))).squeeze(1)


class Embedding(nn.Module):
    """Feature rows to a space in which classes are told apart: h = relu(E x), and its unit-length projection."""

    def __init__(self, d_x: int, d_h: int, d_projection: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_x], d_h)
        self.projection = BlockLinear([d_h], d_projection)

    def forward(self, x: Tensor) -> Tensor:
        """Rows (n, d_x) to h (n, d_h)."""
        return cast(Tensor, self.first(x).relu())

    def project(self, h: Tensor) -> Tensor:
        """Embeddings (n, d_h) to points on a sphere (n, d_projection)."""
        return normalize(self.projection(h).float())


class Comparator(nn.Module):
    """How well every row goes with every class vector, by a network of one hidden layer over pairs of them."""

    def __init__(self, d_h: int, d_a: int, d_hidden: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_h, d_a], d_hidden)
        self.last = nn.Parameter(torch.empty(1, d_hidden))  # a bias would be the same for all classes, so there is none

    def forward(self, h: Tensor, attributes: Tensor) -> Tensor:
        """Scores (n, C) of rows h (n, d_h) with class vectors (C, d_a)."""
        return pair_scores(*self.parts(h, attributes))

    def parts(self, h: Tensor, attributes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """What :func:`pair_scores` makes the scores of."""
        # The first layer is affine: a pair's hidden values are a part of the row plus a part of the class, so that
        # n · C products become n + C.
        of_h, of_a = self.first.blocks
        return linear(h, of_h, self.first.bias), linear(attributes, of_a), self.last[0]


def pair_scores(rows: Tensor, classes: Tensor, last: Tensor) -> Tensor:
    r"""Scores (n, C): :math:`\sum_k w_k\, \varphi(r_{ik} + c_{jk})` of rows (n, k), classes (C, k) and weights (k,).

    Examples
    --------
    >>> pair_scores(torch.tensor([[1.0]]), torch.tensor([[2.0], [-6.0]]), torch.tensor([10.0]))
    tensor([[ 30., -10.]])
    """
    return cast(Tensor, _PairScores.apply(rows, classes, last))  # type: ignore[no-untyped-call]


class _PairScores(torch.autograd.Function):
    """The hidden values of all pairs exist only a block of rows at a time, in both directions."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, classes: Tensor, last: Tensor) -> Tensor:
        ctx.save_for_backward(rows, classes, last)
        return torch.cat([leaky_relu(part, SLOPE) @ last.to(part.dtype) for part in _pairs(rows, classes)])

    @staticmethod
    def backward(ctx: Any, slopes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows, classes, last = ctx.saved_tensors
        by_row, by_class = [], torch.zeros_like(classes)
        start = 0
        for hidden in _pairs(rows, classes):
            slope = slopes[start : start + len(hidden), :, None].to(hidden.dtype)
            start += len(hidden)
            bent = torch.where(hidden > 0, slope, SLOPE * slope)
            by_row.append(bent.sum(1))
            by_class += bent.sum(0)
        return pair_slopes(rows, classes, last, torch.cat(by_row), by_class)


def pair_slopes(
    rows: Tensor, classes: Tensor, last: Tensor, by_row: Tensor, by_class: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    r"""Derivatives of :func:`pair_scores` in its arguments, for the slopes g (n, C) of something in the scores.

    From sums of :math:`g_{ij}\, \varphi'(r_{ik} + c_{jk})`: ``by_row`` (n, k) over classes, ``by_class`` (C, k) over
    rows. Since a leaky ReLU is its slope times its input, the derivative in the weights needs nothing else.
    """
    return by_row * last, by_class * last, (rows * by_row).sum(0) + (classes * by_class).sum(0)


def _pairs(rows: Tensor, classes: Tensor) -> Iterator[Tensor]:
    """Hidden values (n, C, k) of all pairs, by blocks of rows."""
    size = max(_MOST_PAIR_VALUES // classes.numel(), 1)
    return (block[:, None] + classes for block in torch.split(rows, size))


_MOST_PAIR_VALUES = 2**27  # that exist at once: 512 MB


class FreeWeights(nn.Module):
    """Classifier weights that belong to no class vector: one free row per class."""

    def __init__(self, n_classes: int, d_x: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(n_classes, d_x))

    def forward(self, attributes: Tensor) -> Tensor:
        """Weights (C, d_x), whatever the class vectors."""
        return self.weight

    def remove(self, rows: npt.NDArray[np.int64]) -> None:
        """Forget the weights of some classes."""
        for name, values in list(self.named_parameters()):
            axis = values.ndim - (1 if name == "bias" else 2)  # of the classes: stacked networks have one in front
            kept = torch.from_numpy(np.delete(np.arange(values.shape[axis]), rows))
            setattr(self, name, nn.Parameter(values.detach().index_select(axis, kept.to(values.device))))


class LinearWeights(FreeWeights):
    """Free weights with a bias for each class, which is their last column."""

    def __init__(self, n_classes: int, d_x: int) -> None:
        super().__init__(n_classes, d_x)
        self.bias = nn.Parameter(torch.empty(n_classes))

    def forward(self, attributes: Tensor) -> Tensor:
        """Weights (C, d_x + 1), whatever the class vectors."""
        return torch.cat([self.weight, self.bias[..., None]], dim=-1)


class ClassStandardisation(nn.Module):
    """Standardise each column over the classes; in use, by the running statistics of training."""

    mean: Tensor
    var: Tensor

    def __init__(self, width: int, momentum: float = 0.1) -> None:
        super().__init__()
        self.momentum = momentum
        self.register_buffer("mean", torch.zeros(width))
        self.register_buffer("var", torch.ones(width))

    def forward(self, values: Tensor) -> Tensor:
        """Values (C, width), standardised."""
        if self.training:
            wide = values.to(self.mean.dtype)
            mean, var = wide.mean(-2), wide.var(-2, correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean, self.momentum)
                self.var.lerp_(var, self.momentum)
        else:
            mean, var = self.mean, self.var
        # Authors' code: class normalisation's divides by the variance, where its paper has the standard deviation; the
        # published results come from the code.
        return (values - mean[..., None, :]) / (var[..., None, :] + 1e-5)


class ClassNormalisedMapper(nn.Module):
    """Class vectors to classifier weights by class normalisation (Skorokhodov and Elhoseiny, 2021)."""

    def __init__(self, d_a: int, d_hidden: int, d_x: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_a], d_hidden)
        self.second = BlockLinear([d_hidden], d_hidden)
        self.third = BlockLinear([d_hidden], d_x)
        self.before, self.after = ClassStandardisation(d_hidden), ClassStandardisation(d_hidden)

    def forward(self, attributes: Tensor) -> Tensor:
        """Class vectors (C, d_a) to weights (C, d_x)."""
        scale = attributes.shape[1] ** 0.5 / attributes.norm(dim=1, keepdim=True).clamp(min=1e-12)
        hidden = self.before(self.second(self.first(attributes * scale).relu()))
        return cast(Tensor, self.third(self.after(hidden.relu()))).relu()


def stack(nets: Sequence[Net]) -> Net:
    """One network that runs K of the same kind at once: what it learns, and what it gives, has a dimension K in front.

    Examples
    --------
    >>> nets = [initialise(MLP([2], [8, 5]), torch.Generator().manual_seed(seed)) for seed in range(3)]
    >>> stack(nets)(torch.zeros(7, 2)).shape
    torch.Size([3, 7, 5])
    """
    return _with_values(nets[0], [torch.stack(values) for values in zip(*map(_values, nets), strict=True)])


def member_of(net: Net, number: int) -> Net:
    """Network ``number`` of those that were stacked, as a view: what changes one changes the other."""
    return _with_values(net, [values[number] for values in _values(net)])


def unstack(net: Net, number: int) -> Net:
    """Network ``number`` of those that were stacked, with values of its own."""
    return _with_values(net, [values[number].clone() for values in _values(net)])


def _values(net: nn.Module) -> list[Tensor]:
    return [values.detach() for values in (*net.parameters(), *net.buffers())]


def _with_values(net: Net, values: Sequence[Tensor]) -> Net:
    places = (*net.parameters(), *net.buffers())
    # What is to be replaced is not copied first: a stack of networks can be large.
    known = {
        id(place): nn.Parameter(value, place.requires_grad) if isinstance(place, nn.Parameter) else value
        for place, value in zip(places, values, strict=True)
    }
    return copy.deepcopy(net, known)


def drop(values: Tensor, share: float, rng: torch.Generator) -> Tensor:
    """Dropout: a random ``share`` of the values becomes zero, and the others grow so that the mean stays.

    Examples
    --------
    >>> drop(torch.ones(4), 0.5, torch.Generator().manual_seed(0)).unique()
    tensor([0., 2.])
    """
    if not share:
        return values
    kept = torch.rand(values.shape, generator=rng, device=values.device) >= share
    return values * kept / (1 - share)


def initialise(net: Net, rng: torch.Generator, start: Start = "normal", gain: float = 1.0) -> Net:
    """Fill a network's parameters from ``rng``.

    Parameters
    ----------
    net : Module
    rng : torch.Generator
    start : {"normal", "xavier", "pytorch"}
        ``normal``: weights from N(0, 0.02²), biases zero (f-CLSWGAN's choice). ``xavier``: weights uniform with the
        variance 2 / (d_in + d_out), biases zero. ``pytorch``: both uniform in ± 1 / √d_in, as its layers start.
    gain : float
        Of ``xavier``: what the standard deviation is multiplied by.
    """
    with torch.no_grad():
        for layer in [part for part in net.modules() if isinstance(part, BlockLinear)] if start != "normal" else []:
            d_in, d_out = sum(block.shape[1] for block in layer.blocks), len(layer.bias)
            bound = gain * math.sqrt(6 / (d_in + d_out)) if start == "xavier" else d_in**-0.5
            for block in layer.blocks:
                block.uniform_(-bound, bound, generator=rng)
            layer.bias.uniform_(-bound, bound, generator=rng) if start == "pytorch" else layer.bias.zero_()
        for name, values in net.named_parameters() if start == "normal" else ():
            if name.endswith("bias"):
                values.zero_()
            else:
                values.normal_(0.0, 0.02, generator=rng)
        if isinstance(net, ClassNormalisedMapper):
            # Its code leaves the first two layers as PyTorch starts them.
            for layer in (net.first, net.second):
                bound = layer.blocks[0].shape[1] ** -0.5
                for values in layer.parameters():
                    values.uniform_(-bound, bound, generator=rng)
            # The variance that keeps the logits' scale after a standardised layer: the method's other half.
            bound = math.sqrt(3 / net.third.blocks[0].numel())
            net.third.blocks[0].uniform_(-bound, bound, generator=rng)
    return net
