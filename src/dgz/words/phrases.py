"""Phrases of classes: from cells of a table, from names, and from attribute strengths. No encoder is needed here."""

import re
from collections.abc import Mapping, Sequence

import numpy as np
import numpy.typing as npt

from dgz.data.dataset import as_floats, first_bad_row, listing
from dgz.errors import DataError


def clean_name(name: str) -> str:
    """A class's name as one would write it in a sentence.

    The number that orders a list goes, underscores and plus signs become spaces, and letters small.

    Examples
    --------
    >>> clean_name("001.Black_footed_Albatross"), clean_name("grizzly+bear"), clean_name("747-400")
    ('black footed albatross', 'grizzly bear', '747-400')
    """
    words = re.sub(r"^\d+\.(?=\D)", "", name)
    return " ".join(re.sub(r"[_+]", " ", words).split()).lower() or name


def phrases_of_cells(words: Mapping[str, Sequence[str]]) -> tuple[tuple[str, ...], ...]:
    r"""Phrases of each class from the word columns of a table: cells whole, those of ``phrases`` in their parts.

    Empty cells and parts are left out, as not every class has equally many.

    Examples
    --------
    >>> phrases_of_cells({"gloss": ["a wild ass; striped"], "phrases": ["long legs; black | white\nshort mane;"]})
    (('a wild ass; striped', 'long legs', 'black', 'white', 'short mane'),)
    """
    parts = {
        column: [re.split(r"[;|\r\n]+", cell) if column.startswith("phrases") else [cell] for cell in cells]
        for column, cells in words.items()
    }
    return tuple(
        tuple(text for cell in of_class for part in cell if (text := " ".join(part.split())))
        for of_class in zip(*parts.values(), strict=True)
    )


def attribute_phrases(attributes: Sequence[str], strengths: npt.ArrayLike) -> tuple[dict[str, float], ...]:
    """Speak the attributes of each class, each with its strength as a weight.

    All that a class has are spoken, that is, all of a strength above 0, and a class's phrases do not depend on other
    classes. On leak-free folds of training rows this was better than to pick those that stand out (docs/words.md).

    Parameters
    ----------
    attributes : sequence of str
        What each column is called: ``black``, ``eats_fish``, ``has_bill_shape::hooked_(up)``.
    strengths : array of shape (n_classes, n_attributes)
        In any unit.

    Returns
    -------
    tuple of dict
        The phrases of each class with their weights, the strongest first.

    Examples
    --------
    >>> attribute_phrases(["black", "has_bill_shape::hooked_(up)", "eats_fish"], [[20, 90, 0], [0, 0, 1]])
    ({'bill shape: hooked': 90.0, 'black': 20.0}, {'eats fish': 1.0})
    """
    values = as_floats(strengths, "strengths")
    if values.shape[1] != len(attributes):
        raise DataError(f"There are {values.shape[1]} columns of strengths but {len(attributes)} names of attributes.")
    if (bad := first_bad_row(values)) is not None:
        raise DataError(f"Strengths of attributes must be finite, found NaN or infinity in row {bad}.")
    if all(re.fullmatch(r"[A-Za-z]?[_-]?\d*", name) for name in attributes):
        raise DataError(f"Names of attributes must be words to be spoken, found {listing(list(attributes))}.")
    spoken = [_spoken(name) for name in attributes]
    phrases = []
    for row in values.astype(np.float64):
        of_class: dict[str, float] = {}
        for i in np.argsort(-row, kind="stable")[: (row > 0).sum()]:
            # Two columns may read alike: large_(16_in) and large_(32_in).
            of_class[spoken[i]] = of_class.get(spoken[i], 0.0) + float(row[i])
        phrases.append(of_class)
    return tuple(phrases)


def _spoken(attribute: str) -> str:
    """An attribute's name as words: what it is about, a colon, what it is like.

    Examples
    --------
    >>> _spoken("has_size::large_(16_-_32_in)"), _spoken("has_tail"), _spoken("eats_fish")
    ('size: large', 'has tail', 'eats fish')
    """
    about, colons, like = attribute.partition("::")
    about = re.sub(r"^has[_ ]", "", about) if colons else about
    parts = [" ".join(re.sub(r"\([^)]*\)|[_+]", " ", part).split()) for part in (about, like)]
    return ": ".join(part for part in parts if part) or attribute
