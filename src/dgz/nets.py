"""Networks: the only home of layers and of their initialisation.

Used by the generators (class level) and the classifier. A network is made without values and then filled from a given
random stream, on the CPU, so that the same seed starts from the same weights on every device.
"""

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import TypeVar, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn.functional import leaky_relu, linear

Net = TypeVar("Net", bound=nn.Module)
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
        out: Tensor = self.bias
        for block, values in zip(self.blocks, inputs, strict=True):
            out = out + linear(values, block)
        return out


class MLP(nn.Module):
    """A multi-layer perceptron over one or several inputs, leaky ReLU between its layers.

    Parameters
    ----------
    d_inputs : sequence of int
        Widths of the inputs.
    widths : sequence of int
        Widths of the hidden layers and of the output.
    relu_out : bool
        Whether outputs below 0 become 0.

    Examples
    --------
    >>> net = initialise(MLP([2, 3], [8, 5]), torch.Generator().manual_seed(0))
    >>> net(torch.zeros(7, 2), torch.zeros(7, 3)).shape
    torch.Size([7, 5])
    """

    def __init__(self, d_inputs: Sequence[int], widths: Sequence[int], *, relu_out: bool = False) -> None:
        super().__init__()
        self.first = BlockLinear(d_inputs, widths[0])
        self.rest = nn.ModuleList(BlockLinear([d_in], d_out) for d_in, d_out in pairwise(widths))
        self.relu_out = relu_out

    def forward(self, *inputs: Tensor) -> Tensor:
        """Inputs (n, d_in) each, to (n, d_out)."""
        out = self.first(*inputs)
        for layer in self.rest:
            out = layer(leaky_relu(out, SLOPE))
        return cast(Tensor, out.relu() if self.relu_out else out)


class Critic(nn.Module):
    """The critic D(x, a) of a Wasserstein GAN: one hidden layer, so that its slope in x has a closed form."""

    def __init__(self, d_x: int, d_a: int, d_hidden: int) -> None:
        super().__init__()
        self.first = BlockLinear([d_x, d_a], d_hidden)
        self.last = BlockLinear([d_hidden], 1)

    def hidden(self, x: Tensor, a: Tensor) -> Tensor:
        """Pre-activations (n, d_hidden) of the hidden layer: affine in x."""
        return cast(Tensor, self.first(x, a))

    def score(self, hidden: Tensor) -> Tensor:
        """D (n,) from the pre-activations."""
        return cast(Tensor, self.last(leaky_relu(hidden, SLOPE))).squeeze(1)

    def forward(self, x: Tensor, a: Tensor) -> Tensor:
        """D (n,) of rows x (n, d_x) with class vectors a (n, d_a)."""
        return self.score(self.hidden(x, a))

    def slope(self, hidden: Tensor) -> Tensor:
        r"""Gradient (n, d_x) of D in x, :math:`W_x^\top (w \odot \varphi'(h))`.

        :math:`\varphi'` is constant almost everywhere, so that gradients of this gradient flow through the two weights
        alone: an ordinary backward pass gives what differentiating twice would.
        """
        bend = torch.full_like(hidden, SLOPE).masked_fill(hidden > 0, 1.0)
        slope: Tensor = bend * self.last.blocks[0] @ self.first.blocks[0]
        return slope


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
        kept = np.delete(np.arange(len(self.weight)), rows)
        self.weight = nn.Parameter(self.weight.detach()[kept])


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
            mean, var = values.mean(0), values.var(0, correction=0)
            with torch.no_grad():
                self.mean.lerp_(mean, self.momentum)
                self.var.lerp_(var, self.momentum)
        else:
            mean, var = self.mean, self.var
        # Authors' code: class normalisation's divides by the variance, where its paper has the standard deviation; the
        # published results come from the code.
        return (values - mean) / (var + 1e-5)


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


def initialise(net: Net, rng: torch.Generator) -> Net:
    """Fill a network's parameters from ``rng``: weights from N(0, 0.02²), biases zero (f-CLSWGAN's choice)."""
    with torch.no_grad():
        for name, values in net.named_parameters():
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
