"""Words: descriptions, phrases, glosses or names of classes in; one vector per class out, as a ClassTable."""

from dgz.words.encoders import Reading, TextEncoder, open_encoder
from dgz.words.phrases import attribute_phrases, clean_name
from dgz.words.vectors import ClassVectors, class_vectors, encode_classes, read_classes

__all__ = [
    "ClassVectors",
    "Reading",
    "TextEncoder",
    "attribute_phrases",
    "class_vectors",
    "clean_name",
    "encode_classes",
    "open_encoder",
    "read_classes",
]
