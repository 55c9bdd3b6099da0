"""TF-VAEGAN (Narayan et al., ECCV 2020): f-VAEGAN whose generator and classifier hear from a semantic decoder.

In DGZ's terms: the generator comes with a decoder of class vectors and a feedback module
(:class:`~dgz.generators.FeedbackVAEGAN`), and rows of the classifier are features with what the decoder makes of them.
"""

from collections.abc import Mapping
from typing import Any, ClassVar

from dgz.generators import ClassGenerator, FeedbackVAEGAN
from dgz.peers.f_vaegan import FVAEGAN


class TFVAEGAN(FVAEGAN):
    """TF-VAEGAN: semantic consistency in training, in synthesis by feedback, and in classification by the decoder.

    Faithful to the released code: networks, losses, optimizers and their rates, the adaptive gradient penalty, scaling,
    synthesis, and what the classifier sees. Approximate: an epoch there is a pass over all batches without feedback
    and then one with it, here the two take turns after every batch; the decoder's steps on the critic's batches come
    after those batches' generated rows were made instead of one by one with them; batches are drawn with replacement.
    T1 is of the classifier over all classes. Nothing is selected on test rows, where theirs is by both of its loops.

    Parameters are those of :class:`~dgz.peers.FVAEGAN`; the generator is by default a
    :class:`~dgz.generators.FeedbackVAEGAN`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = TFVAEGAN(generator=FeedbackVAEGAN(n_epochs=1, n_critic=1), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    # The released scripts; where they give none (SUN's decoder), its default learning rate.
    presets: ClassVar[Mapping[str, Mapping[str, Any]]] = {
        "AWA2": {
            **FVAEGAN.presets["AWA2"],
            "generator__decoder_weight": 0.1,
            "generator__freeze_decoder": True,
            "generator__feedback_strength": 0.01,
            "generator__synthesis_strength": 0.01,
        },
        "CUB": {**FVAEGAN.presets["CUB"], "generator__feedback_rate": 1e-5},
        "SUN": {
            **FVAEGAN.presets["SUN"],
            "generator__feedback_strength": 0.1,
            "generator__synthesis_strength": 0.01,
        },
    }

    @staticmethod
    def _default_generator() -> ClassGenerator:
        return FeedbackVAEGAN()
