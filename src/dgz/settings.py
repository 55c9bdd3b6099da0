"""Settings as text: ``generator.n_epochs=100`` in, a parameter of the right kind set on an estimator out.

The command line's form of a constructor's arguments. The constructor's signature is the only schema: its names are the
keys, its type hints say what a value may be.
"""

import ast
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import product
from types import NoneType, UnionType
from typing import Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints

from sklearn.base import BaseEstimator

from dgz.errors import DGZError, did_you_mean
from dgz.generators import GENERATORS, ClassGenerator

Estimator = TypeVar("Estimator", bound=BaseEstimator)
_CONSTANTS = {"true": True, "false": False, "none": None, "null": None}
_EXPECTED = {
    float: "a number",
    int: "a whole number",
    bool: "true or false",
    str: "text",
    NoneType: "none",
}
# Where a comma parts two values: outside of brackets, of which no setting has one inside another.
_BETWEEN_VALUES = re.compile(r",(?![^\[(]*[\])])")


def configure(model: Estimator, assignments: Sequence[str]) -> Estimator:
    """Apply settings written as ``key=value`` to an estimator, in place: what the command line's ``--set`` does.

    Parameters
    ----------
    model : estimator
    assignments : sequence of str
        Each names a parameter of the constructor, or of a part (``generator.n_epochs``, scikit-learn's
        ``generator__n_epochs``). Values are numbers, ``true``, ``false``, ``none``, lists such as ``[512, 256]``, or
        text. A generator is chosen by its name and starts with its defaults: ``generator=CenterMapper``. Such choices
        are made first, in whatever order they are given.

    Raises
    ------
    DGZError
        When there is no such parameter, or when it cannot take such a value.

    Examples
    --------
    >>> from dgz import DGZ
    >>> model = configure(DGZ(), ["generator.hidden=[512, 256]", "generator=CenterMapper", "lambda_1=2"])
    >>> model.generator, model.lambda_1
    (CenterMapper(hidden=[512, 256]), 2)
    """
    pairs = []
    for assignment in assignments:
        key, equals, text = assignment.partition("=")
        if not equals:
            raise DGZError(f"A setting is written key=value, found {assignment!r}.")
        pairs.append((key.strip(), text.strip()))
    for key, text in sorted(pairs, key=lambda pair: pair[0].count(".")):
        params = {name.replace("__", "."): value for name, value in model.get_params().items()}
        if key not in params:
            raise DGZError(_unknown_key(model, key, params))
        part, _, name = key.rpartition(".")
        owner = params[part] if part else model
        hint = get_type_hints(type(owner).__init__).get(name, object)
        fitting = [value for value in (_literal(text), text) if _fits(value, hint)]
        if not fitting:
            raise DGZError(f"{key} must be {_expected(hint)}, found {text!r}.")
        owner.set_params(**{name: fitting[0]})
    return model


def grid(varied: Sequence[str], taken: Sequence[str] = ()) -> list[list[str]]:
    """Every combination of settings of which several values are given, each as assignments for :func:`configure`.

    Parameters
    ----------
    varied : sequence of str
        Each is written ``key=value,value,…``; commas inside brackets part no values.
    taken : sequence of str
        Settings as in :func:`configure`, which are not varied, since they have their value already.

    Examples
    --------
    >>> grid(["lambda_1=0.5,2", "generator.hidden=[512,256],[512]"])[2]
    ['lambda_1=2', 'generator.hidden=[512,256]']
    >>> grid([])
    [[]]
    """
    fixed = {_key(assignment) for assignment in taken}
    choices: dict[str, list[str]] = {}
    for text in varied:
        key, (_, equals, values) = _key(text), text.partition("=")
        if not equals:
            raise DGZError(f"A varied setting is written key=value,value,…, found {text!r}.")
        if key in choices:
            raise DGZError(f"{key} is varied twice: give all its values at once, {key}=value,value,….")
        if key in fixed:
            raise DGZError(f"{key} cannot be varied, since it is set to one value too.")
        choices[key] = [f"{key}={value.strip()}" for value in _BETWEEN_VALUES.split(values)]
    return [list(point) for point in product(*choices.values())]


def parse_seeds(text: str) -> list[int]:
    """Random seeds: so many from 0 on, or exactly those of a list.

    Examples
    --------
    >>> parse_seeds("3"), parse_seeds("0,3,7"), parse_seeds("3,")
    ([0, 1, 2], [0, 3, 7], [3])
    """
    try:
        listed = [int(part) for part in text.removesuffix(",").split(",")]
        seeds = listed if "," in text else list(range(*listed))
    except ValueError:
        seeds = []
    if not seeds or len(set(seeds)) < len(seeds):
        raise DGZError(f"Seeds are a number from 1 up, or a list of different ones such as 0,3,7, found {text!r}.")
    return seeds


def file_name(assignments: Sequence[str]) -> str:
    """Settings as the name of a file, without what such a name cannot have everywhere.

    Examples
    --------
    >>> file_name(["generator.hidden=[512, 256]", "device=cuda:0", "seed=3"])
    'generator.hidden=[512,256],device=cuda-0,seed=3'
    """
    return re.sub(r"[^\w.,=+()\[\]-]", "-", re.sub(r"\s", "", ",".join(assignments)))


def leaves(content: Any, name: str = "") -> Iterator[tuple[str, Any]]:
    """Everything in mappings of mappings, by its dotted name.

    Examples
    --------
    >>> dict(leaves({"lambda_1": 2.0, "generator": {"n_epochs": 3}}))
    {'lambda_1': 2.0, 'generator.n_epochs': 3}
    """
    if not isinstance(content, Mapping):
        yield name, content
        return
    for key, value in content.items():
        yield from leaves(value, f"{name}.{key}" if name else key)


def _key(assignment: str) -> str:
    return assignment.partition("=")[0].strip()


def _unknown_key(model: BaseEstimator, key: str, params: Mapping[str, Any]) -> str:
    part = key.rpartition(".")[0]
    if part in params and params[part] is None:
        return f"There is no {part} that could have the setting {key!r}: choose one by {part}=NAME too."
    owner = type(params[part] if hasattr(params.get(part), "get_params") else model)
    unknown = f"There is no setting {key!r}{did_you_mean(key, params)}"
    return f"{unknown} 'python -m pydoc {owner.__module__}.{owner.__name__}' lists them all."


def _literal(text: str) -> Any:
    if text in GENERATORS:
        return GENERATORS[text]()
    if text.lower() in _CONSTANTS:
        return _CONSTANTS[text.lower()]
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError):  # all that it raises for other text
        return text


def _fits(value: Any, hint: Any) -> bool:
    """Whether a parameter whose type is given as ``hint`` can take ``value``."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Literal:
        return value in inner
    if kind in (Union, UnionType):
        return any(_fits(value, one) for one in inner)
    if kind is Sequence:
        return isinstance(value, list | tuple) and all(_fits(one, inner[0]) for one in value)
    if isinstance(value, bool):  # Python counts it among the whole numbers
        return hint in (bool, object)
    return isinstance(value, (int, float) if hint is float else hint)


def _expected(hint: Any) -> str:
    """What ``hint`` asks for, in words."""
    kind, inner = get_origin(hint), get_args(hint)
    if kind is Literal:
        return f"one of {', '.join(inner)}" if len(inner) > 1 else str(inner[0])
    if kind in (Union, UnionType):
        return " or ".join(map(_expected, inner))
    if kind is Sequence:
        return f"a list with {_expected(inner[0])} in each place"
    if hint is ClassGenerator:
        return f"one of {', '.join(GENERATORS)}"
    return _EXPECTED.get(hint, str(hint))
