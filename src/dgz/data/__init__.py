"""Data: files, arrays and made-up sets in; GZSLData out."""

from dgz.data.archives import download
from dgz.data.bundle import copy_backbone, load_bundle, save_bundle
from dgz.data.checks import check, describe, inspect, load_data
from dgz.data.dataset import GZSLData
from dgz.data.folds import validation_folds
from dgz.data.numbers import load_numbers
from dgz.data.scaling import AttributeScaler, FeatureScaler
from dgz.data.synthetic import make_synthetic
from dgz.data.tables import (
    ClassColumns,
    ClassTable,
    import_arrays,
    import_files,
    read_class_columns,
    read_class_table,
    read_labels,
    read_rows,
    write_class_table,
)
from dgz.data.xlsa import load_xlsa, read_xlsa_splits

__all__ = [
    "AttributeScaler",
    "ClassColumns",
    "ClassTable",
    "FeatureScaler",
    "GZSLData",
    "check",
    "copy_backbone",
    "describe",
    "download",
    "import_arrays",
    "import_files",
    "inspect",
    "load_bundle",
    "load_data",
    "load_numbers",
    "load_xlsa",
    "make_synthetic",
    "read_class_columns",
    "read_class_table",
    "read_labels",
    "read_rows",
    "read_xlsa_splits",
    "save_bundle",
    "validation_folds",
    "write_class_table",
]
