"""The errors a person is meant to read.

The leftmost room of the house: everything may import it, it imports nothing. A message is one plain sentence that says
where (file, field or option), what was expected and what was found; the command line prints it without a traceback.
"""

import math
from collections.abc import Iterable, Sequence
from difflib import get_close_matches
from numbers import Integral, Real
from typing import Any, get_args


class DGZError(ValueError):
    """Something the user gave cannot be used as it is."""


class BrokenTrainingError(DGZError):
    """Training came to numbers that are not finite."""


class DGZWarning(UserWarning):
    """Something that was done with your data and that you may not expect, in one sentence."""


class DataError(DGZError):
    """A data set, or a file of one, is broken.

    Parameters
    ----------
    problems : str or sequence of str
        One sentence per thing that is wrong.

    Attributes
    ----------
    problems : tuple of str
        The sentences, for callers that list them one by one (``dgz data check``).

    Examples
    --------
    >>> error = DataError(["x_train holds NaN in row 3.", "Class 7 has no vector."])
    >>> error.problems[1]
    'Class 7 has no vector.'
    >>> print(error)
    x_train holds NaN in row 3. Class 7 has no vector.
    """

    def __init__(self, problems: str | Sequence[str]) -> None:
        self.problems: tuple[str, ...] = (problems,) if isinstance(problems, str) else tuple(problems)
        super().__init__(" ".join(self.problems))


def one_line(error: BaseException) -> str:
    r"""The words of another library's error, as part of a sentence.

    Examples
    --------
    >>> one_line(ValueError("bad\n  header.")), one_line(MemoryError())
    ('bad header', 'MemoryError')
    """
    return (" ".join(str(error).split()) or type(error).__name__)[:200].rstrip(".")


def did_you_mean(name: object, known: Iterable[object]) -> str:
    """The end of a sentence about an unknown name: the known one that is most like it, where there is one.

    Examples
    --------
    >>> "There is no colour 'gren'" + did_you_mean("gren", ["red", "green"])
    "There is no colour 'gren'; did you mean 'green'?"
    >>> did_you_mean("mauve", ["red", "green"])
    '.'
    """
    nearest = get_close_matches(name, map(str, known), n=1) if isinstance(name, str) else []
    return f"; did you mean {nearest[0]!r}?" if nearest else "."


def require_choice(value: object, choices: Any, option: str) -> None:
    """Raise unless ``value`` is one of the ``choices`` (a ``Literal`` type, or the values themselves).

    Examples
    --------
    >>> require_choice("large", ("small", "large"), "size")
    """
    allowed = get_args(choices) or tuple(choices)
    if value not in allowed:
        known = ", ".join(map(str, allowed))
        raise DGZError(f"{option} must be one of {known}, found {value!r}{did_you_mean(value, allowed)}")


def require_at_least(least: float, **options: Any) -> None:
    """Raise unless every one of the ``options`` is a finite number from ``least`` up.

    Examples
    --------
    >>> require_at_least(0, lambda_1=0.5)
    """
    for option, value in options.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number or value < least:
            raise DGZError(f"{option} must be a number from {least:g} up, found {value!r}.")


def require_number_or_auto(**options: Any) -> None:
    """Raise unless every one of the ``options`` is a finite number, or "auto".

    Examples
    --------
    >>> require_number_or_auto(seen_penalty="auto")
    """
    for option, value in options.items():
        is_number = isinstance(value, Real) and not isinstance(value, bool) and math.isfinite(value)
        if not is_number and value != "auto":
            raise DGZError(f"{option} must be a number or 'auto', found {value!r}.")


def require_count(**options: Any) -> None:
    """Raise unless every one of the ``options`` is a whole number from 1 up.

    Examples
    --------
    >>> require_count(n_epochs=60, batch_size=512)
    """
    for option, value in options.items():
        if not isinstance(value, Integral) or isinstance(value, bool) or value < 1:
            raise DGZError(f"{option} must be a whole number from 1 up, found {value!r}.")
