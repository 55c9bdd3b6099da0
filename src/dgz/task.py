"""What training reads, on its device: scaled rows of both kinds, class vectors, and which classes are seen.

Left of the model, which makes it of people's arrays. Its rows are those of the features at first, and of a generator's
own space where that has one.
"""

from dataclasses import dataclass, replace
from functools import cached_property
from typing import cast

import torch
from torch import Tensor

from dgz.classifier import Weights, prepared
from dgz.generators import ClassGenerator
from dgz.instances import within_class_residuals
from dgz.metrics import TestRows, cacd, class_means
from dgz.training import random_stream

TestParts = tuple[Tensor, Tensor, Tensor, Tensor]  # rows of seen classes, their classes, and both of unseen ones


@dataclass
class Task:
    """One problem to train on.

    Attributes
    ----------
    x, y : (n, d_x), (n,)
        Training rows and their classes.
    vectors, seen : (C, d_a), (C,) bool
    test : four tensors, optional
        Test rows of seen classes, their classes, and both of unseen ones.
    """

    x: Tensor
    y: Tensor
    vectors: Tensor
    seen: Tensor
    test: TestParts | None

    @cached_property
    def residuals(self) -> Tensor:
        """Training rows less the means of their classes, see :func:`~dgz.instances.within_class_residuals`."""
        return within_class_residuals(self.x, self.y)

    def embedded(self, generator: ClassGenerator, seed: int) -> "Task":
        """The same with all rows in the generator's own space."""
        if not generator.embeds:
            return self
        test = self.test
        if test is not None:
            test = (generator.embed(test[0]), test[1], generator.embed(test[2]), test[3])
        x, y = generator.training_rows(self.x, self.y, random_stream(seed, "training rows", self.x.device))
        return replace(self, x=x, y=y, test=test)

    def test_rows(self, weights: Weights) -> TestRows | None:
        """The test rows as classifiers with such weights take them."""
        if self.test is None:
            return None
        x_seen, y_seen, x_unseen, y_unseen = self.test
        return TestRows(prepared(x_seen, weights), y_seen, prepared(x_unseen, weights), y_unseen, self.seen)

    def center_distance(self, generator: ClassGenerator, seed: int) -> float:
        """CACD of the unseen classes that have test rows."""
        _, _, x, y = cast(TestParts, self.test)
        classes = torch.unique(y)
        generated = generator.centers(self.vectors[classes], random_stream(seed, "centers", x.device))
        return cacd(class_means(x, y, classes), generated)
