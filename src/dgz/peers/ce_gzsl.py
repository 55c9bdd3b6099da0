"""CE-GZSL (Han et al., CVPR 2021): generation and recognition in an embedding learned by contrast.

In DGZ's terms: the generator comes with an embedding (:class:`~dgz.generators.ContrastiveWGANGP`), in whose space
pseudo rows spread and a linear softmax decides.
"""

from typing import Any, Self

from dgz.errors import require_choice
from dgz.generators import ClassGenerator, ContrastiveWGANGP
from dgz.peers.f_clswgan import SoftmaxMethod

# Of the authors' answer to issue 2 of their repository. Batch sizes of AWA2 and SUN are from users' runs, not theirs.
_PRESETS: dict[str, dict[str, Any]] = {
    "AWA2": {"n_epochs": 130, "batch_size": 4096, "n_per_class": 2400, "weight": 0.001, "decay_every": 10},
    "CUB": {"n_epochs": 450, "batch_size": 2048, "n_per_class": 100, "weight": 0.001, "decay_every": 100},
    "SUN": {"n_epochs": 1000, "batch_size": 1024, "n_per_class": 100, "weight": 0.01, "decay_every": 100},
}


class CEGZSL(SoftmaxMethod):
    """CE-GZSL: a generator and a contrastive embedding trained side by side, and a softmax classifier of embeddings.

    Faithful to the released code: networks, losses, temperatures, learning rates and their decay. Three things differ:
    the comparator's first layer is computed once for every row and once for every class instead of once for every pair
    (the same function, far faster), the noise of the last critic step serves the generator's step too, and T1 is of the
    classifier over all classes. Nothing is selected on test rows.

    Parameters are those of :class:`~dgz.peers.f_clswgan.SoftmaxMethod`; the generator is by default a
    :class:`~dgz.generators.ContrastiveWGANGP`.

    Examples
    --------
    >>> from dgz import load_numbers
    >>> data = load_numbers(0)
    >>> model = CEGZSL(generator=ContrastiveWGANGP(n_epochs=1), n_per_class=20, n_epochs=2)
    >>> model.fit(data.x_train, data.y_train, data.attributes).predict(data.x_test_seen).shape
    (1600,)
    """

    def _new_generator(self) -> ClassGenerator:
        return ContrastiveWGANGP() if self.generator is None else super()._new_generator()

    @classmethod
    def preset(cls, name: str, **overrides: Any) -> Self:
        """The authors' settings for a data set.

        Parameters
        ----------
        name : {"AWA2", "CUB", "SUN"}
        **overrides
            Other parameters, and the generator's as ``generator__n_epochs=…``.

        Examples
        --------
        >>> CEGZSL.preset("SUN").generator.comparator_weight
        0.01
        """
        require_choice(name.upper(), tuple(_PRESETS), "preset")
        chosen = _PRESETS[name.upper()]
        generator = ContrastiveWGANGP(
            n_epochs=chosen["n_epochs"],
            batch_size=chosen["batch_size"],
            instance_weight=chosen["weight"],
            comparator_weight=chosen["weight"],
            decay_every=chosen["decay_every"],
        )
        if name.upper() == "SUN":
            generator.set_params(d_comparator=1024, learning_rate=5e-5)
        model = cls(generator=generator, n_per_class=chosen["n_per_class"])
        return model.set_params(**overrides)  # type: ignore[no-any-return]
