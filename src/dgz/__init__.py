"""Generalized zero-shot learning: the public names of the package, and nothing else."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dgz.data import GZSLData as GZSLData
    from dgz.data import load_bundle as load_bundle
    from dgz.data import load_numbers as load_numbers
    from dgz.data import load_xlsa as load_xlsa
    from dgz.data import make_synthetic as make_synthetic
    from dgz.data import save_bundle as save_bundle
    from dgz.data import validation_folds as validation_folds
    from dgz.errors import DataError as DataError
    from dgz.errors import DGZError as DGZError
    from dgz.many import fit_many as fit_many
    from dgz.metrics import gzsl_scores as gzsl_scores
    from dgz.model import DGZ as DGZ

__version__ = "0.1.0"

# Names are looked up on first use: torch alone takes seconds to import, and ``dgz --help`` does not need it.
_HOMES = {
    "dgz.data": (
        "GZSLData",
        "load_bundle",
        "load_numbers",
        "load_xlsa",
        "make_synthetic",
        "save_bundle",
        "validation_folds",
    ),
    "dgz.errors": ("DGZError", "DataError"),
    "dgz.metrics": ("gzsl_scores",),
    "dgz.many": ("fit_many",),
    "dgz.model": ("DGZ",),
}
__all__ = ["__version__", *(name for names in _HOMES.values() for name in names)]


def __getattr__(name: str) -> Any:
    for home, names in _HOMES.items():
        if name in names:
            return getattr(import_module(home), name)
    raise AttributeError(f"module 'dgz' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted(__all__)
