"""A linear softmax classifier that starts from Xavier's weights, as those of CADA-VAE and SDGZSL do."""

from typing import ClassVar, Self, cast

import torch
from torch import Tensor, nn

from dgz.classifier import CosineClassifier
from dgz.peers.softmax import SoftmaxMethod


class XavierSoftmax(CosineClassifier):
    """A linear classifier whose weights start uniform with the variance ``gain``² · 2 / (d_x + n_classes).

    Examples
    --------
    >>> XavierSoftmax(weights="linear").build(4, 9, 2, torch.Generator()).net_.weight.shape
    torch.Size([4, 2])
    """

    gain: ClassVar[float] = 1.0

    def build(self, n_classes: int, d_a: int, d_x: int, rng: torch.Generator) -> Self:
        """Make the untrained weights of ``n_classes`` classes for features of width ``d_x``."""
        super().build(n_classes, d_a, d_x, rng)
        nn.init.xavier_uniform_(cast(Tensor, self.net_.weight), self.gain, generator=rng)
        return self


class XavierSoftmaxMethod(SoftmaxMethod):
    """A method with such a classifier."""

    softmax: ClassVar[type[XavierSoftmax]] = XavierSoftmax

    def _new_classifier(self) -> CosineClassifier:
        return self.softmax(**super()._new_classifier().get_params())
