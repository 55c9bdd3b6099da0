"""FREE (Chen et al., ICCV 2021): features refined by class vectors and class centres, real and generated ones alike.

In DGZ's terms: the generator comes with a refining module (:class:`~dgz.generators.RefiningVAEGAN`), and rows of the
classifier are features with what the module makes of them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from dgz.generators import ClassGenerator, RefiningVAEGAN
from dgz.peers.f_vaegan import FVAEGAN


class FREE(FVAEGAN):
    """FREE: a VAE-GAN, a module that refines features by class vectors and class centres, and a softmax on both.

    Approximate: the release is incomplete (a missing import, a missing script for SUN). Faithful to what there is of
    it: networks, losses, learning rates, margins, how often the critic learns, what the classifier sees. What differs:
    test rows are refined without noise, so that a row always has the same answer; the other class of the margin loss is
    never the row's own; gradients of the centres do not add up from step to step; batches are drawn with replacement.
    **On CUB**, the refining module stands still while the generator learns, where the release lets it learn from
    generated rows, too; what was measured was measured so, and what
    ``FREE.preset("CUB", generator__freeze_refiner=False)`` gives is not known. T1 is of the classifier over all
    classes. Nothing is selected on test rows, where theirs is by both of its loops.

    Parameters are those of :class:`~dgz.peers.FVAEGAN`; the generator is by default a
    :class:`~dgz.generators.RefiningVAEGAN`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = FREE(generator=RefiningVAEGAN(n_epochs=1), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    # The released scripts, but for the frozen module of CUB.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {
            "generator__n_epochs": 401,
            "generator__learning_rate": 1e-5,
            "generator__margin": 50.0,
            "generator__balance": 0.5,
            "generator__other": "nearest",
            "generator__freeze_refiner": True,
            "n_per_class": 4600,
        },
        "CUB": {"generator__n_epochs": 501, "generator__freeze_refiner": True, "n_per_class": 700},
        "SUN": {
            "generator__n_epochs": 601,
            "generator__gan_weight": 1.0,
            "generator__learning_rate": 2e-4,
            "generator__margin": 120.0,
            "generator__refining_weight": 0.1,
            "generator__batch_size": 512,
            "n_per_class": 300,
            "learning_rate": 5e-4,
        },
    }

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return RefiningVAEGAN()
