"""Rival methods and baselines, each with the same ``fit`` and ``predict`` as DGZ, and all methods by name."""

from pathlib import Path

from dgz.errors import DGZError, require_choice
from dgz.estimator import GZSLClassifier, saved_method
from dgz.model import DGZ
from dgz.peers.ce_gzsl import CEGZSL
from dgz.peers.center_ridge import CenterRidge
from dgz.peers.f_clswgan import FCLSWGAN
from dgz.peers.zla import ZLA

__all__ = ["CEGZSL", "FCLSWGAN", "METHODS", "ZLA", "CenterRidge", "load_model", "make_method"]

# By the names of the command line; in the order of reports.
METHODS: dict[str, type[GZSLClassifier]] = {
    "dgz": DGZ,
    "dgz-without-generator": DGZ,
    "zla": ZLA,
    "ce-gzsl": CEGZSL,
    "f-clswgan": FCLSWGAN,
    "center-ridge": CenterRidge,
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
    (30.0, 1.0)
    """
    require_choice(name, tuple(METHODS), "method")
    kind = METHODS[name]
    for key in (f"{data}/{semantics}", data):
        if key in kind.presets:
            # Where the paper and its released code differ, DGZ is the paper's.
            options = {"source": "paper", "without_generator": name == "dgz-without-generator"} if kind is DGZ else {}
            return kind.preset(key, **options)
    return DGZ.without_generator() if name == "dgz-without-generator" else kind._with_parts()


def load_model(folder: str | Path) -> GZSLClassifier:
    """Read a model's folder, whatever method it is of."""
    method = saved_method(folder)
    kinds = {kind.__name__: kind for kind in METHODS.values()}
    if method not in kinds:
        raise DGZError(f"{folder} holds a model of the method {method!r}, which is not known here.")
    return kinds[method].load(folder)
