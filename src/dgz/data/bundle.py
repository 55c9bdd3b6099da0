"""The bundle: one folder that holds a data set whole, as safetensors and JSON.

The project's own file form of GZSLData. No pickle, nothing that runs code; what is read back is the same bit for bit,
and the stored hashes prove it.
"""

import shutil
from pathlib import Path

from safetensors import SafetensorError
from safetensors.numpy import load_file

from dgz.data.dataset import SPLITS, GZSLData, listing
from dgz.errors import DataError, DGZError
from dgz.files import read_document, read_json, write_folder, write_json, write_tensors

_VERSION = 1
_HEADER, _ARRAYS = "bundle.json", "arrays.safetensors"
BACKBONE = "backbone"  # folder of what made the features, where these are of photos
_ARRAY_FIELDS = (
    "attributes",
    "seen",
    "unseen",
    *(field for split in SPLITS for field in (f"x_{split}", f"y_{split}", f"{split}_index")),
)


def is_bundle(path: str | Path) -> bool:
    """Whether ``path`` is a bundle's folder."""
    return (Path(path) / _HEADER).is_file()


def save_bundle(data: GZSLData, path: str | Path, *, overwrite: bool = False) -> None:
    """Write ``data`` to the folder ``path``, whole or not at all.

    Examples
    --------
    >>> import tempfile
    >>> from dgz.data import load_numbers
    >>> folder = Path(tempfile.mkdtemp()) / "numbers"
    >>> save_bundle(load_numbers(0), folder)
    >>> load_bundle(folder).hashes == load_numbers(0).hashes
    True
    """
    with write_folder(path, overwrite=overwrite) as folder:
        write_bundle(data, folder)


def write_bundle(data: GZSLData, folder: Path) -> None:
    """Write the files of a bundle into ``folder``, for callers that put more beside them before it gets its name."""
    arrays = {field: getattr(data, field) for field in _ARRAY_FIELDS}
    write_tensors(folder / _ARRAYS, arrays, f"The bundle of {data.name!r}")
    header = {
        "format": "dgz-bundle",
        "version": _VERSION,
        "name": data.name,
        "features": data.features,
        "semantics": data.semantics,
        "leaks": dict(data.leaks),
        "hashes": data.hashes,
        "class_names": list(data.class_names),
    }
    write_json(folder / _HEADER, header)


def copy_backbone(bundle: str | Path, folder: str | Path) -> dict[str, str]:
    """Copy what made a bundle's features of photos, if anything did, into a ``folder``, for those who need it there.

    Returns
    -------
    dict
        Name of the network and licence of its weights; empty where features were not made of photos.
    """
    found = Path(bundle) / BACKBONE
    if not found.is_dir():
        return {}
    with write_folder(Path(folder) / BACKBONE, overwrite=True) as copy:
        shutil.copytree(found, copy, dirs_exist_ok=True)
    known = read_json(found / f"{BACKBONE}.json")
    told = known if isinstance(known, dict) else {}  # a training of hours must not end in an error here
    return {str(told.get("name", "unknown")): str(told.get("licence", "unknown"))}


def load_bundle(path: str | Path) -> GZSLData:
    """Read a bundle's folder; a changed, truncated or foreign one is refused with a sentence."""
    path = Path(path)
    if not is_bundle(path):
        raise DGZError(f"{path} is not a bundle: it has no {_HEADER}.")
    header = read_document(path / _HEADER, "bundle", _VERSION)
    try:
        arrays = load_file(path / _ARRAYS)
    except (OSError, SafetensorError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{path / _ARRAYS} cannot be read: {error}.") from error
    if missing := [field for field in _ARRAY_FIELDS if field not in arrays]:
        raise DataError(f"{path / _ARRAYS} lacks {listing(missing)}.")
    try:
        words = {field: header[field] for field in ("name", "features", "semantics", "leaks", "class_names")}
        data = GZSLData(**words, **{field: arrays[field] for field in _ARRAY_FIELDS})  # type: ignore[arg-type]
        stored = dict(header["hashes"])
    except (KeyError, TypeError, AttributeError, ValueError) as error:
        reasons = error.problems if isinstance(error, DataError) else [f"its header is broken ({error!r})."]
        raise DataError([f"{path}: {reason}" for reason in reasons]) from error
    if changed := [key for key, value in data.hashes.items() if stored.get(key) != value]:
        raise DataError(f"{path} was changed after it was written: the hash of its {listing(changed)} differs.")
    return data
