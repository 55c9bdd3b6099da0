"""Records: what one run did and what came out, as one small JSON file.

In comes what a run knows (method, settings, data, scores, times); out comes ``record.json``, which every table, figure
and page is made from. No torch here, and no model: a record can be read anywhere.
"""

import platform
import sys
from dataclasses import asdict, dataclass, field, fields
from importlib import metadata
from pathlib import Path
from typing import Any

from dgz.errors import DataError
from dgz.files import read_json, write_json

_FORMAT, _VERSION = "dgz-record", 1
_FILE = "record.json"


@dataclass(frozen=True, kw_only=True)
class Record:
    """One finished run.

    Attributes
    ----------
    method : str
        Name of the method's class.
    params : dict
        Its constructor's arguments, all of them, as used.
    chosen : dict
        Settings that the method chose by itself on training rows.
    seed : int
        Random seed of the run.
    selection : str
        How the reported state was picked: ``last``, ``validation``, or ``oracle`` (on test rows, as released code
        does).
    data : dict
        The data set: names, counts, hashes, leaks.
    class_names : dict
        Names of the classes by id.
    unseen : list of int
        Ids of the unseen classes.
    scores : dict
        Test scores as fractions, with per-class accuracies and the seen–unseen curve.
    seconds : dict
        Wall-clock time of each part.
    device : str
        What it ran on.
    versions : dict
        Versions of Python and of the libraries that matter.
    """

    method: str
    params: dict[str, Any]
    seed: int
    selection: str
    data: dict[str, Any]
    class_names: dict[str, str]
    unseen: list[int]
    scores: dict[str, Any]
    seconds: dict[str, float]
    device: str
    chosen: dict[str, Any] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=lambda: library_versions())


def library_versions() -> dict[str, str]:
    """Versions of Python and of the libraries that can move a score."""
    found = {"python": platform.python_version()}
    for name in ("dgz", "torch", "numpy", "scipy", "scikit-learn"):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:  # run from a source tree that is not installed
            module = sys.modules.get(name.replace("scikit-learn", "sklearn"))
            found[name] = str(getattr(module, "__version__", "unknown"))
    return found


def write_record(record: Record, folder: str | Path) -> Path:
    """Write ``record.json`` into ``folder``, whole or not at all; its presence says that the run finished."""
    path = Path(folder) / _FILE
    write_json(path, {"format": _FORMAT, "version": _VERSION, **asdict(record)})
    return path


def read_record(folder: str | Path) -> Record:
    """Read the record of a run's folder."""
    path = Path(folder) / _FILE
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("format", None) != _FORMAT:
        raise DataError(f"{path} is not a record of a run.")
    if (version := content.pop("version", None)) != _VERSION:
        raise DataError(f"{path} is a record of version {version}, but this dgz reads {_VERSION}.")
    expected = {entry.name for entry in fields(Record)}
    if odd := expected.symmetric_difference(content):
        raise DataError(f"{path} is broken: {', '.join(sorted(odd))} should or should not be there.")
    return Record(**content)
