"""Spaces of settings: which of a method's are searched, and where; by default, or as the command line writes it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sklearn.base import clone

from dgz.errors import DGZError
from dgz.estimator import GZSLClassifier
from dgz.settings import configure


@dataclass(frozen=True)
class Range:
    """Numbers from ``low`` to ``high``, both included; whole ones, or on a scale of decades, where it says so."""

    low: float
    high: float
    is_log: bool = False
    is_whole: bool = False

    @property
    def ends(self) -> tuple[Any, Any]:
        """The lowest and the highest value, of the kind that they have."""
        return (int(self.low), int(self.high)) if self.is_whole else (self.low, self.high)

    def has(self, value: Any) -> bool:
        """Whether it lies in the range."""
        return isinstance(value, int | float) and self.low <= value <= self.high

    def as_json(self) -> list[Any]:
        """For files and reports."""
        return [self.low, self.high, "log" if self.is_log else "linear"]


@dataclass(frozen=True)
class Choice:
    """Values of any kind."""

    values: tuple[Any, ...]

    @property
    def ends(self) -> tuple[Any, Any]:
        """The first and the last value."""
        return self.values[0], self.values[-1]

    def has(self, value: Any) -> bool:
        """Whether it is one of them."""
        return value in self.values

    def as_json(self) -> list[Any]:
        """For files and reports."""
        return list(self.values)


Space = Mapping[str, Range | Choice]

# What can be searched if nothing else is said, by setting. Widths are of two or three decades round published values.
_RANGES: dict[str, Range] = {
    "alpha": Range(1e-5, 1e2, is_log=True),
    "bandwidth": Range(0.1, 10.0, is_log=True),
    "class_ridge": Range(1e-3, 1e3, is_log=True),
    "encoder_weight": Range(1e-2, 1e7, is_log=True),
    "feature_ridge": Range(1e-3, 1e3, is_log=True),
    "first_scale": Range(1.0, 30.0, is_log=True),
    "lambda_1": Range(1e-3, 10.0, is_log=True),
    "learning_rate": Range(1e-5, 1e-2, is_log=True),
    "mixing": Range(0.5, 20.0, is_log=True),
    "n_epochs": Range(2, 100, is_log=True, is_whole=True),
    "n_per_class": Range(10, 500, is_log=True, is_whole=True),
    "ridge": Range(0.01, 100.0, is_log=True),
    "seen_factor": Range(0.5, 1.0),
    "seen_ratio": Range(1.0, 1000.0, is_log=True),
    "sharpness": Range(1.0, 100.0, is_log=True),
    "temperature": Range(0.01, 0.2, is_log=True),
    "unseen_learning_rate": Range(1e-5, 1e-2, is_log=True),
    "unseen_weight": Range(1e-3, 1.0, is_log=True),
    "weight_decay": Range(1e-6, 1e-2, is_log=True),
}
# Which of them matter most, by method; those of DGZ can all vary among models that are trained at once.
_SOFTMAX = ("n_epochs", "learning_rate", "n_per_class")
_SPACES: dict[str, tuple[str, ...]] = {
    "DGZ": ("lambda_1", "temperature", "n_per_class"),
    "ZLA": ("seen_ratio", "temperature", "n_per_class"),
    "GCMCF": ("n_epochs", "learning_rate", "unseen_learning_rate"),
    "AGZSL": ("learning_rate", "mixing", "first_scale"),
    "CN": ("learning_rate", "temperature", "weight_decay", "seen_factor"),
    "TCN": ("learning_rate", "unseen_weight", "ridge"),
    "CenterRidge": ("alpha", "bandwidth"),
    "ESZSL": ("class_ridge", "feature_ridge"),
    "SAE": ("encoder_weight",),
    "NearestPrototype": ("sharpness",),
    "SeenSoftmax": ("alpha",),
}


def default_space(model: GZSLClassifier, taken: Sequence[str] = ()) -> dict[str, Range | Choice]:
    """The settings of a method that are worth a search, and where to look.

    Parameters
    ----------
    model : GZSLClassifier
    taken : sequence of str
        Names of settings that have their value already.

    Examples
    --------
    >>> from dgz import DGZ
    >>> sorted(default_space(DGZ(), taken=["temperature"]))
    ['lambda_1', 'n_per_class']
    """
    names = _SPACES.get(type(model).__name__, _SOFTMAX)
    return {name: _RANGES[name] for name in names if name not in taken}


def parse_space(model: GZSLClassifier, texts: Sequence[str]) -> dict[str, Range | Choice]:
    """A space from its description, each setting of which the method must have, with values that it can take.

    Parameters
    ----------
    model : GZSLClassifier
    texts : sequence of str
        ``key=low..high`` is a range, on a scale of decades where it spans one or more; ``:log`` or ``:linear`` behind
        it says so. ``key=value,value,…`` is a choice. Keys are as in :func:`~dgz.settings.configure`.

    Examples
    --------
    >>> from dgz import DGZ
    >>> parse_space(DGZ(), ["lambda_1=0.01..10", "gate=argmax_all,always"])
    {'lambda_1': Range(low=0.01, high=10, is_log=True, is_whole=False), 'gate': Choice(values=('argmax_all', 'always'))}
    """
    space: dict[str, Range | Choice] = {}
    for text in texts:
        key, equals, values = (part.strip() for part in text.partition("="))
        if not equals or not values:
            raise DGZError(f"A part of a space is written key=low..high or key=value,value,…, found {text!r}.")
        if key in space:
            raise DGZError(f"{key} is in the space twice.")
        if ".." in values:
            space[key] = _range(model, key, values, text)
        else:
            space[key] = Choice(tuple(_value(model, key, value) for value in values.split(",")))
    return space


def _range(model: GZSLClassifier, key: str, values: str, text: str) -> Range:
    ends, _, scale = values.partition(":")
    low, high = (_value(model, key, end) for end in ends.split("..", 1))
    if not all(isinstance(end, int | float) and not isinstance(end, bool) for end in (low, high)) or not low < high:
        raise DGZError(f"A range is two numbers, the lower first, found {text!r}.")
    if scale not in ("", "log", "linear"):
        raise DGZError(f"The scale of a range is log or linear, found {scale!r} in {text!r}.")
    if scale == "log" and low <= 0:
        raise DGZError(f"A range with a scale of decades lies above 0, found {text!r}.")
    is_log = scale == "log" or (scale == "" and low > 0 and high >= 10 * low)
    # A setting that takes whole numbers alone refuses one that is none.
    is_whole = isinstance(low, int) and isinstance(high, int) and not _takes(model, key, (low + high) / 2 + 0.25)
    return Range(low, high, is_log, is_whole)


def _value(model: GZSLClassifier, key: str, text: str) -> Any:
    """A setting's value from text; the sentence of an unknown setting, or of a wrong value, is that of ``--set``."""
    tried = configure(clone(model), [f"{key}={text.strip()}"])
    return tried.get_params()[key.replace(".", "__")]


def _takes(model: GZSLClassifier, key: str, value: float) -> bool:
    try:
        _value(model, key, repr(value))
    except DGZError:
        return False
    return True


def with_settings(model: Any, settings: Mapping[str, Any]) -> Any:
    """A fresh copy of a method with some settings changed, by dotted names."""
    changed, known = clone(model), model.get_params()
    for name in settings:
        if name.replace(".", "__") not in known:
            configure(changed, [f"{name}=0"])  # its sentence says what there is
    return changed.set_params(**{name.replace(".", "__"): value for name, value in settings.items()})
