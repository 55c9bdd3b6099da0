"""CLASS LEVEL: where the features of a class lie, given its vector.

In come training rows, their classes and the class vectors; out comes a trained generator, which places any class, seen
or not: ``centers`` gives the middle of each class, ``sample`` rows around it. The instance level decides which of the
two is used. Generators of rival methods are here too, so that any classifier can be put on any of them.
"""

from collections.abc import Mapping
from typing import Any

from dgz.generators.aligned import AlignedVAEs
from dgz.generators.base import ClassGenerator, NoiseUnit
from dgz.generators.center import CenterMapper
from dgz.generators.contrastive import ContrastiveWGANGP
from dgz.generators.counterfactual import CounterfactualVAEGAN
from dgz.generators.cvae import CVAE
from dgz.generators.disentangled import DisentanglingVAE
from dgz.generators.feedback import FeedbackVAEGAN
from dgz.generators.flow import ZeroShotFlow
from dgz.generators.refined import RefiningVAEGAN
from dgz.generators.souls import SoulWGANGP
from dgz.generators.vaegan import VAEGAN
from dgz.generators.wgan import WGANGP, critic_slopes

# By name: what the command line and files of models call them.
GENERATORS: dict[str, type[ClassGenerator]] = {
    kind.__name__: kind
    for kind in (
        WGANGP,
        CVAE,
        CenterMapper,
        ContrastiveWGANGP,
        SoulWGANGP,
        ZeroShotFlow,
        VAEGAN,
        FeedbackVAEGAN,
        CounterfactualVAEGAN,
        RefiningVAEGAN,
        AlignedVAEs,
        DisentanglingVAE,
    )
}

__all__ = [
    "CVAE",
    "GENERATORS",
    "VAEGAN",
    "WGANGP",
    "AlignedVAEs",
    "CenterMapper",
    "ClassGenerator",
    "ContrastiveWGANGP",
    "CounterfactualVAEGAN",
    "DisentanglingVAE",
    "FeedbackVAEGAN",
    "NoiseUnit",
    "RefiningVAEGAN",
    "SoulWGANGP",
    "ZeroShotFlow",
    "critic_slopes",
    "generator_of",
]


def generator_of(settings: Mapping[str, Any]) -> ClassGenerator:
    """The untrained generator with settings as JSON has them: its ``kind``, and its constructor's arguments.

    Examples
    --------
    >>> generator_of({"kind": "CenterMapper", "hidden": [64, 32]})
    CenterMapper(hidden=(64, 32))
    """
    own = {name: tuple(value) if isinstance(value, list) else value for name, value in settings.items()}
    kind = GENERATORS[str(own.pop("kind"))]
    return kind(**own)
