"""Vectors of classes from their words: the mean of a class's phrases, at unit length.

In comes a table with words, or with nothing but names, and an encoder; out comes a ClassTable, for ``import_arrays``.
"""

import math
import string
import warnings
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from dgz.data.dataset import listing
from dgz.data.tables import ClassColumns, ClassTable, read_class_columns, read_class_table
from dgz.errors import DataError, DGZError, DGZWarning
from dgz.words.encoders import TextEncoder, open_encoder
from dgz.words.phrases import attribute_phrases, clean_name, phrases_of_cells

NAME_TEMPLATE = "a photo of a {name}."
_NAMES_ALONE = (
    "There are no words but the names of the classes, which say little: on CUB, names alone gave H 24 where phrases of "
    "attributes gave 44. Describe each class in a column called description or phrases."
)
Phrases = Mapping[str, float]  # of one class, with their weights
Words = str | Path | ClassColumns | Mapping[str, str | Sequence[str] | Phrases]


@dataclass(frozen=True)
class ClassVectors:
    """Vectors of classes, and how they came about."""

    table: ClassTable
    semantics: str
    n_phrases: tuple[int, ...] = ()
    warnings: tuple[str, ...] = ()


def class_vectors(
    table: Words, encoder: str | TextEncoder = "minilm", template: str | None = None, *, from_attributes: bool = False
) -> ClassTable:
    """One vector for each class: the mean of its phrases' unit vectors, made unit length again.

    Parameters
    ----------
    table : str, Path, ClassColumns or mapping
        A CSV (:func:`dgz.data.read_class_columns`), what was read of it, or phrases by the name of their class: one,
        several, or several with weights.
    encoder : str or TextEncoder
        Of :func:`open_encoder`.
    template : str, optional
        The text that a phrase becomes, with ``{phrase}`` and perhaps ``{name}`` in it; by default the phrase itself.
        Of a table of nothing but names, the text that a name becomes: ``a photo of a {name}.`` by default.
    from_attributes : bool
        Speak the table's numbers as strengths of attributes (:func:`attribute_phrases`). Where it has words as well,
        each kind counts half.

    Warns
    -----
    DGZWarning
        Where there are only names, a text was cut, or most of a text is unknown to the encoder.

    Examples
    --------
    >>> words = {"zebra": ["a striped horse", "it lives in Africa"], "horse": "a large animal that people ride"}
    >>> table = class_vectors(words)
    >>> table.names, table.vectors.shape
    (('zebra', 'horse'), (2, 384))
    """
    found = encode_classes(table, encoder, template, from_attributes=from_attributes)
    for sentence in found.warnings:
        warnings.warn(sentence, DGZWarning, stacklevel=2)
    return found.table


def encode_classes(
    table: Words, encoder: str | TextEncoder = "minilm", template: str | None = None, *, from_attributes: bool = False
) -> ClassVectors:
    """What :func:`class_vectors` does, with warnings as sentences and the number of phrases of each class."""
    where = f"{table}: " if isinstance(table, str | Path) else ""
    columns = read_class_columns(table) if isinstance(table, str | Path) else table
    names = columns.names if isinstance(columns, ClassColumns) else tuple(map(str, columns))
    if repeated := sorted(name for name, count in Counter(names).items() if count > 1):
        raise DataError(f"{where}names of classes must differ, found more than once: {listing(repeated)}.")
    if "" in map(str.strip, names):
        raise DataError(f"{where}names of classes must not be empty, found one in row {names.index('')}.")
    if not names:
        raise DataError("There are no classes.")
    if isinstance(columns, ClassColumns):
        phrases = _phrases(columns, where, from_attributes)
    else:
        phrases = _given_phrases(columns)
    only_names = phrases is None
    template = _checked_template(template, only_names)
    texts: list[Phrases] = [
        {template.format(name=clean_name(name), phrase=phrase): weight for phrase, weight in of_class.items()}
        for name, of_class in zip(names, phrases or [{"": 1.0}] * len(names), strict=True)
    ]
    if not isinstance(encoder, TextEncoder):
        encoder = open_encoder(encoder)
    sentences = [_NAMES_ALONE] if only_names else []
    sentences += _reading_warnings(encoder, names, texts)
    # Classes share phrases, such as those of attributes: each is encoded once.
    row_of = {text: row for row, text in enumerate(dict.fromkeys(text for of_class in texts for text in of_class))}
    vectors = encoder.encode(list(row_of)).astype(np.float64)
    means = np.stack(
        [
            np.average(vectors[[row_of[text] for text in of_class]], axis=0, weights=list(of_class.values()))
            for of_class in texts
        ]
    )
    lengths = np.linalg.norm(means, axis=1, keepdims=True)
    if not (lengths > 1e-6).all():
        raise DataError(f"{where}the phrases of class {names[int(lengths.argmin())]!r} cancel each other out.")
    groups = columns.groups if isinstance(columns, ClassColumns) else None
    return ClassVectors(
        ClassTable(names, np.asarray(means / lengths, dtype=np.float32), groups),
        encoder.name,
        tuple(map(len, texts)),
        tuple(sentences),
    )


def read_classes(
    path: str | Path, encoder: str | None = None, *, usual: str | None = "minilm", semantics: str = "att"
) -> ClassVectors:
    """Read a table of classes whose vectors are there as numbers, or are made of its words.

    Parameters
    ----------
    path : str or Path
        A CSV: with number columns it is taken as it is, with words or names alone it goes through
        :func:`encode_classes`.
    encoder : str, optional
        For words, in place of the ``usual`` one. Given for a table of numbers, it is an error.
    usual : str or None
        None where nothing but the caller can know it: then words without an encoder are an error.
    semantics : str
        What vectors that are there as numbers are called; those of words are called after the encoder.
    """
    columns = read_class_columns(path)
    if columns.numbers is None:
        if encoder is None and usual is None:
            raise DGZError(f"{path} holds words, and what is to make vectors of them is not known: name the encoder.")
        return encode_classes(path, encoder or usual or "")
    if encoder is not None and not columns.words:
        raise DGZError(f"{path} holds numbers, which are vectors already: an encoder is for words.")
    return ClassVectors(read_class_table(path), semantics)


def _phrases(columns: ClassColumns, where: str, from_attributes: bool) -> list[Phrases] | None:
    """Phrases of each class of a table; None where it has nothing but names."""
    if columns.numbers is not None and not from_attributes:
        raise DataError(
            f"{where}found columns of numbers ({listing(list(columns.headings))}): as strengths of attributes they are "
            "spoken with --from-attributes (from_attributes=True), as vectors they need no words."
        )
    if columns.numbers is None and from_attributes:
        raise DataError(f"{where}there are no columns of numbers to speak as attributes.")
    kinds: list[Sequence[Phrases]] = []
    if columns.words:
        # A phrase that a class has twice counts twice.
        kinds.append([Counter(texts) for texts in phrases_of_cells(columns.words)])
    if columns.numbers is not None:
        kinds.append(attribute_phrases(columns.headings, columns.numbers))
    if not kinds:
        return None
    phrases: list[Phrases] = []
    for of_class in zip(*kinds, strict=True):
        together: Counter[str] = Counter()
        for kind in of_class:
            together.update({text: weight / sum(kind.values()) for text, weight in kind.items()})
        phrases.append(together)
    if without := [name for name, of_class in zip(columns.names, phrases, strict=True) if not of_class]:
        raise DataError(f"{where}every class needs words, found {len(without)} without: {listing(without)}.")
    return phrases


def _given_phrases(words: Mapping[str, str | Sequence[str] | Phrases]) -> list[Phrases]:
    phrases: list[Phrases] = []
    for name, given in words.items():
        of_class = given if isinstance(given, Mapping) else Counter([given] if isinstance(given, str) else given)
        if not of_class or not all(isinstance(text, str) and text.strip() for text in of_class):
            raise DataError(f"Every class needs words, and none of them empty, found {given!r} for class {name!r}.")
        if not all(math.isfinite(weight) and weight > 0 for weight in of_class.values()):
            raise DataError(f"Weights of phrases must be above 0, found {given!r} for class {name!r}.")
        phrases.append(of_class)
    return phrases


def _checked_template(template: str | None, only_names: bool) -> str:
    default, needed = (NAME_TEMPLATE, {"name"}) if only_names else ("{phrase}", {"phrase"})
    allowed = {"name"} if only_names else {"name", "phrase"}
    template = default if template is None else template
    try:
        fields = [part[1:] for part in string.Formatter().parse(template) if part[1] is not None]
    except ValueError:
        fields = [("?", "", None)]
    found = {field for field, _, _ in fields}
    if not needed <= found <= allowed or any(spec or conversion for _, spec, conversion in fields):
        what = "{name}, and nothing else, for names alone" if only_names else "{phrase}, and may hold {name}"
        raise DGZError(f"template must hold {what}, found {template!r}.")
    return template


def _reading_warnings(encoder: TextEncoder, names: Sequence[str], texts: Sequence[Phrases]) -> list[str]:
    """A sentence for texts that are cut, and one for texts that the encoder hardly knows a word of."""
    owners = {text: name for name, of_class in zip(names, texts, strict=True) for text in of_class}
    cut, unknown = [], []
    for text, reading in zip(owners, encoder.read(list(owners)), strict=True):
        if not reading.n_tokens:
            raise DataError(f"The encoder {encoder.name} finds nothing to read in {text!r} of class {owners[text]!r}.")
        if reading.n_cut:
            cut.append(owners[text])
        if 2 * reading.n_unknown > reading.n_tokens:
            unknown.append(owners[text])
    sentences = []
    if cut:
        sentences.append(
            f"{len(cut)} text(s) are longer than the {encoder.max_tokens} tokens that the encoder {encoder.name} "
            f"reads, and were cut: of {listing(list(dict.fromkeys(cut)))}. Several shorter phrases are read whole."
        )
    if unknown:
        sentences.append(
            f"The encoder {encoder.name} does not know most of the words of {len(unknown)} text(s): of "
            f"{listing(list(dict.fromkeys(unknown)))}. Another encoder may know their language."
        )
    return sentences
