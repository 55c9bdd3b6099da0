"""Rival methods and baselines, each with the same ``fit`` and ``predict`` as DGZ, and all methods by name."""

from pathlib import Path

from dgz.errors import DGZError, require_choice
from dgz.estimator import GZSLClassifier, saved_method
from dgz.model import DGZ
from dgz.peers.agzsl import AGZSL
from dgz.peers.cada_vae import CADAVAE
from dgz.peers.ce_gzsl import CEGZSL
from dgz.peers.center_ridge import CenterRidge
from dgz.peers.class_norm import CN
from dgz.peers.eszsl import ESZSL
from dgz.peers.f_clswgan import FCLSWGAN
from dgz.peers.f_vaegan import FVAEGAN
from dgz.peers.free import FREE
from dgz.peers.gcm_cf import GCMCF
from dgz.peers.izf import IZF
from dgz.peers.lis_gan import LisGAN, TransductiveLisGAN
from dgz.peers.nearest_prototype import NearestPrototype
from dgz.peers.sae import SAE
from dgz.peers.sdgzsl import SDGZSL
from dgz.peers.seen_softmax import SeenSoftmax
from dgz.peers.tcn import TCN
from dgz.peers.tf_vaegan import TFVAEGAN
from dgz.peers.zla import ZLA

__all__ = [
    "AGZSL",
    "CADAVAE",
    "CEGZSL",
    "CN",
    "ESZSL",
    "FCLSWGAN",
    "FREE",
    "FVAEGAN",
    "GCMCF",
    "IZF",
    "METHODS",
    "SAE",
    "SDGZSL",
    "TCN",
    "TFVAEGAN",
    "ZLA",
    "CenterRidge",
    "LisGAN",
    "NearestPrototype",
    "SeenSoftmax",
    "TransductiveLisGAN",
    "load_model",
    "make_method",
    "preset_of",
]

# By the names of the command line; in the order of reports.
METHODS: dict[str, type[GZSLClassifier]] = {
    "dgz": DGZ,
    "dgz-without-generator": DGZ,
    "zla": ZLA,
    "ce-gzsl": CEGZSL,
    "free": FREE,
    "tf-vaegan": TFVAEGAN,
    "gcm-cf": GCMCF,
    "f-vaegan-d2": FVAEGAN,
    "sdgzsl": SDGZSL,
    "cada-vae": CADAVAE,
    "f-clswgan": FCLSWGAN,
    "lisgan": LisGAN,
    "izf": IZF,
    "agzsl": AGZSL,
    "cn": CN,
    "tcn": TCN,
    "center-ridge": CenterRidge,
    "eszsl": ESZSL,
    "sae": SAE,
    "nearest-prototype": NearestPrototype,
    "seen-softmax": SeenSoftmax,
}


def make_method(name: str, data: str = "", semantics: str = "") -> GZSLClassifier:
    """A method by its name, with the settings published for a data set, or its defaults where there are none.

    Parameters
    ----------
    name : str
        A key of ``METHODS``.
    data, semantics : str
        Names of a data set and of its class vectors, such as ``CUB`` and ``sent``.

    Examples
    --------
    >>> make_method("zla", "CUB", "sent").seen_ratio, make_method("zla", "my birds").seen_ratio
    (30.0, 100.0)
    """
    require_choice(name, tuple(METHODS), "method")
    kind = METHODS[name]
    if key := preset_of(kind, data, semantics):
        # Where the paper and its released code differ, DGZ is the paper's.
        options = {"source": "paper", "without_generator": name == "dgz-without-generator"} if kind is DGZ else {}
        return kind.preset(key, **options)
    return DGZ.without_generator() if name == "dgz-without-generator" else kind._with_parts()


def preset_of(kind: type[GZSLClassifier], data: str, semantics: str = "") -> str:
    """The name of the settings that were published for a data set and its class vectors; empty where there are none.

    Examples
    --------
    >>> preset_of(ZLA, "CUB", "att"), preset_of(ZLA, "SUN", "att"), preset_of(ZLA, "my birds")
    ('CUB/att', 'SUN', '')
    """
    return next((key for key in (f"{data}/{semantics}", data) if key in kind.presets), "")


def load_model(folder: str | Path) -> GZSLClassifier:
    """Read a model's folder, whatever method it is of."""
    method = saved_method(folder)
    kinds = {kind.__name__: kind for kind in METHODS.values()}
    if method not in kinds:
        raise DGZError(f"{folder} holds a model of the method {method!r}, which is not known here.")
    return kinds[method].load(folder)
