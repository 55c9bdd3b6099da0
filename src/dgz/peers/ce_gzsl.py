"""CE-GZSL (Han et al., CVPR 2021): generation and recognition in an embedding learned by contrast.

In DGZ's terms: the generator comes with an embedding (:class:`~dgz.generators.ContrastiveWGANGP`), in whose space
pseudo rows spread and a linear softmax decides.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from dgz.generators import ClassGenerator, ContrastiveWGANGP
from dgz.peers.softmax import SoftmaxMethod


class CEGZSL(SoftmaxMethod):
    """CE-GZSL: a generator and a contrastive embedding trained side by side, and a softmax classifier of embeddings.

    Faithful to the released code: networks, losses, temperatures, learning rates and their decay. What differs: the
    comparator's first layer is computed once for every row and once for every class instead of once for every pair (the
    same function, far faster); its gradients are cleared before every step, where theirs add up over an epoch; batches
    are drawn with replacement, so that a large one has some rows twice; the noise of the last critic step serves the
    generator's step too; and T1 is of the classifier over all classes. Nothing is selected on test rows.

    Parameters are those of :class:`~dgz.peers.softmax.SoftmaxMethod`; the generator is by default a
    :class:`~dgz.generators.ContrastiveWGANGP`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = CEGZSL(generator=ContrastiveWGANGP(n_epochs=1), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    # The authors' answer to issue 2 of their repository; batch sizes of AWA2 and SUN are from users' runs, not theirs.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {
            "generator__n_epochs": 130,
            "generator__batch_size": 4096,
            "generator__decay_every": 10,
            "n_per_class": 2400,
        },
        "CUB": {"generator__n_epochs": 450, "n_per_class": 100},
        "SUN": {
            "generator__n_epochs": 1000,
            "generator__batch_size": 1024,
            "generator__instance_weight": 0.01,
            "generator__comparator_weight": 0.01,
            "generator__d_comparator": 1024,
            "generator__learning_rate": 5e-5,
            "n_per_class": 100,
        },
    }

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return ContrastiveWGANGP()
