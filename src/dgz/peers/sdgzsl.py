"""SDGZSL (Chen et al., ICCV 2021): rows are generated, and recognised by the part of them that class vectors speak of.

In DGZ's terms: the generator comes with an embedding (:class:`~dgz.generators.DisentanglingVAE`), in whose space pseudo
rows spread and a linear softmax decides.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from dgz.generators import ClassGenerator, DisentanglingVAE
from dgz.peers.softmax import with_defaults
from dgz.peers.xavier import XavierSoftmaxMethod


@with_defaults(n_per_class=1200, n_epochs=50, learning_rate=0.003)
class SDGZSL(XavierSoftmaxMethod):
    """SDGZSL: a softmax classifier of what is left of rows without all that has nothing to do with their class vectors.

    Faithful to the released code: networks, losses, dropout, warm-up, the turns of the discriminator, Adam's settings,
    scaling. The relation loss is over the classes in a batch, as there. Three things differ: rows of a batch are drawn
    with replacement, the classifier's start is uniform with the variance of their normal one, and T1 is of the
    classifier over all classes (they train another one over the unseen classes). Nothing is selected on test rows;
    theirs are the best epochs of both trainings on them.

    Parameters
    ----------
    generator : ClassGenerator, optional
        By default a :class:`~dgz.generators.DisentanglingVAE`.
    distribution, n_per_class, small_std, large_std, n_epochs, learning_rate, batch_size
        See :class:`~dgz.peers.softmax.SoftmaxMethod`.
    feature_scaling, attribute_scaling, device, precision, random_state, verbose
        See :class:`~dgz.DGZ`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = SDGZSL(generator=DisentanglingVAE(n_epochs=1), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    # The released scripts for GZSL without fine-tuning.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {
            "generator__n_epochs": 220,
            "generator__d_semantic": 1024,
            "generator__relation_weight": 0.5,
            "generator__correlation_weight": 1.0,
            "generator__learning_rate": 3e-5,
            "n_per_class": 5000,
            "learning_rate": 3e-3,
        },
        "APY": {
            "generator__n_epochs": 400,
            "generator__d_semantic": 128,
            "generator__relation_weight": 0.1,
            "generator__correlation_weight": 1.0,
            "generator__discriminator_weight": 1.0,
            "generator__kl_warm_up": 0.02,
            "n_per_class": 1200,
            "n_epochs": 20,
            "learning_rate": 5e-3,
        },
        # With sentences. Authors' code: the min-max scaling of this data set's rows is computed, and then not used.
        "CUB": {
            "generator__n_epochs": 400,
            "generator__d_semantic": 312,
            "generator__relation_weight": 3.0,
            "generator__correlation_weight": 0.3,
            "generator__kl_warm_up": 0.02,
            "n_per_class": 1200,
            "learning_rate": 5e-3,
            "feature_scaling": "none",
        },
        "CUB/att": {
            "generator__n_epochs": 600,
            "generator__d_semantic": 2048,
            "generator__relation_weight": 5.0,
            "generator__correlation_weight": 0.003,
            "generator__kl_warm_up": 0.001,
            "generator__correlation_warm_up": 1e-4,
            "generator__n_penalised": 3,
            "generator__encoder_dropout": 0.1,
            "generator__decoder_dropout": 0.1,
            "generator__autoencoder_dropout": 0.0,
            "generator__weight_decay": 1e-8,
            "n_per_class": 1000,
            "learning_rate": 2e-3,
        },
        "SUN": {
            "generator__n_epochs": 400,
            "generator__d_semantic": 2048,
            "generator__relation_weight": 30.0,
            "generator__correlation_weight": 0.3,
            "generator__discriminator_weight": 0.5,
            "generator__kl_warm_up": 0.001,
            "generator__correlation_warm_up": 3e-4,
            "generator__n_penalised": 3,
            "generator__decoder_dropout": 0.2,
            "generator__autoencoder_dropout": 0.4,
            "generator__learning_rate": 3e-4,
            "n_per_class": 400,
            "learning_rate": 1e-3,
        },
    }

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return DisentanglingVAE()
