"""Backbones: an ONNX file and a description of how photos are prepared for it, wherever both came from.

In comes a name (``lite0``, ``model.onnx``, ``timm:NAME``, ``hf:NAME``), out comes a :class:`Backbone`, which
onnxruntime runs. Networks of other libraries are turned into ONNX once (``networks.py``) and kept in the user's cache
folder. Nothing is downloaded unless the name given is of something that is not on disk.
"""

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field, replace
from math import ceil, isfinite
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnxruntime

from dgz.data.dataset import Floats
from dgz.errors import DataError, DGZError, one_line, require_choice
from dgz.files import read_document, read_json, write_folder, write_json, write_whole

Interpolation = Literal["nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"]
Fit = Literal["crop", "squash"]

_VERSION = 1
_HEADER, _NETWORK = "backbone.json", "backbone.onnx"
_WORDS = ("name", "licence", "source", "is_fine_tuned")
_USUAL_SIZE, _LARGEST_SIZE = 224, 4096


@dataclass(frozen=True)
class Preparation:
    """How a photo becomes the numbers that a network reads.

    Parameters
    ----------
    size : (int, int)
        Height and width of the network's input.
    crop : float
        Share of the photo that is kept, above 0 and up to 1: the central box of this size, as a multiple of the largest
        box that fits.
    fit : {"crop", "squash"}
        Whether the box has the shape of ``size``, so that shapes stay true, or the shape of the photo.
    interpolation : {"nearest", "box", "bilinear", "hamming", "bicubic", "lanczos"}
        How the box is resized.
    mean, std : (float, float, float)
        Of red, green and blue, on the scale from 0 to 255; a value x becomes (x - mean) / std. By default those of
        ImageNet.

    Examples
    --------
    >>> Preparation(size=(224, 224), crop=0.875).interpolation
    'bicubic'
    """

    size: tuple[int, int] = (224, 224)
    crop: float = 0.875
    fit: Fit = "crop"
    interpolation: Interpolation = "bicubic"
    mean: tuple[float, float, float] = (123.675, 116.28, 103.53)
    std: tuple[float, float, float] = (58.395, 57.12, 57.375)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the class is frozen for everyone else
        size = (self.size, self.size) if isinstance(self.size, int) else self.size
        put(self, "size", _numbers(size, 2, "size", int))
        put(self, "crop", _numbers((self.crop,), 1, "crop", float)[0])
        put(self, "mean", _numbers(self.mean, 3, "mean", float))
        put(self, "std", _numbers(self.std, 3, "std", float))
        if not all(1 <= side <= _LARGEST_SIZE for side in self.size):
            raise DGZError(f"size must be from 1 to {_LARGEST_SIZE} pixels, found {self.size}.")
        if not 0 < self.crop <= 1:
            raise DGZError(f"crop must lie above 0 and not above 1, found {self.crop:g}.")
        if not min(self.std) > 0:
            raise DGZError(f"std must be positive, found {self.std}.")
        require_choice(self.interpolation, Interpolation, "interpolation")
        require_choice(self.fit, Fit, "fit")

    @classmethod
    def from_dict(cls, content: Any, where: str) -> "Preparation":
        """Make one from what a JSON file says; ``where`` names the file in sentences about it."""
        if not isinstance(content, dict):
            raise DataError(f"{where} must be a JSON object with entries such as size, mean and std.")
        if strangers := sorted(set(content) - set(cls.__dataclass_fields__)):
            known = ", ".join(cls.__dataclass_fields__)
            raise DataError(f"{where} says {', '.join(strangers)}, but a preparation consists of {known}.")
        try:
            return cls(**content)
        except DGZError as error:
            raise DataError(f"{where}: {error}") from error

    def to_dict(self) -> dict[str, Any]:
        """The same as entries of a JSON file."""
        return {key: list(value) if isinstance(value, tuple) else value for key, value in asdict(self).items()}

    def box(self, width: float, height: float) -> tuple[float, float, float, float]:
        """The part of a photo that is kept: left, upper, right, lower.

        Examples
        --------
        >>> Preparation(size=(100, 100), crop=0.5).box(400, 200)
        (150.0, 50.0, 250.0, 150.0)
        """
        w, h = width, height
        if self.fit == "crop":
            scale = min(width / self.size[1], height / self.size[0])
            w, h = self.size[1] * scale, self.size[0] * scale
        w, h = w * self.crop, h * self.crop
        left, upper = (width - w) / 2, (height - h) / 2
        return left, upper, min(left + w, width), min(upper + h, height)

    @property
    def shorter_side(self) -> int:
        """The shorter side that a photo must at least have so that nothing is enlarged."""
        return ceil(max(self.size) / self.crop)


def _numbers(values: Any, n: int, what: str, kind: type[Any]) -> tuple[Any, ...]:
    """The ``n`` finite numbers that a file or an option gives; it may give anything."""
    numbers = tuple(values) if isinstance(values, list | tuple) else ()
    wanted = int if kind is int else (int, float)
    if len(numbers) != n or not all(isinstance(x, wanted) and not isinstance(x, bool) and isfinite(x) for x in numbers):
        kinds = "whole number" if kind is int else "number"
        raise DGZError(f"{what} must be {n} {kinds}{'s' if n > 1 else ''}, found {values!r}.")
    return tuple(kind(x) for x in numbers)


@dataclass(frozen=True, eq=False)
class Backbone:
    """A network that turns prepared photos into features, ready to run.

    Photos go through it one by one, so that a photo's features depend on nothing but the photo: neither on the others
    of a batch nor on the number of threads. On a CPU that is no slower than batches.

    Parameters
    ----------
    onnx : bytes
        The network's ONNX file, weights included: one float32 input (n, 3, height, width), one output (n, d_x), or
        (n, d_x, h, w), which is averaged over places.
    preparation : Preparation
        How photos are made into its input.
    name : str
        What features made by it are called.
    licence, source : str
        Of the weights.
    is_fine_tuned : bool
        Whether it was trained on photos of the data set that it makes features of: results with such features are
        compared with each other only.

    Attributes
    ----------
    d_x : int
        Width of the features.
    digest : str
        SHA-256 of the ONNX file and the preparation: equal digests mean equal features.
    """

    onnx: bytes = field(repr=False)
    preparation: Preparation
    name: str
    licence: str = "unknown"
    source: str = "unknown"
    is_fine_tuned: bool = False
    d_x: int = field(init=False)
    digest: str = field(init=False)
    _session: Any = field(init=False, repr=False)

    def __post_init__(self) -> None:
        put = object.__setattr__  # the class is frozen for everyone else
        put(self, "_session", _session(self.onnx, self.name))
        free = _input_size(self._session, self.name)
        if any(side not in (None, given) for side, given in zip(free, self.preparation.size, strict=True)):
            raise DGZError(
                f"{self.name} reads photos of size {free}, but they are prepared as {self.preparation.size}."
            )
        put(self, "digest", _digest(self.onnx, self.preparation))
        put(self, "d_x", self.run(np.zeros((1, 3, *self.preparation.size), dtype=np.float32)).shape[1])

    def run(self, batch: Floats) -> Floats:
        """Features of prepared photos: (n, 3, height, width) in, (n, d_x) out. Threads may call it at once."""
        wanted = (3, *self.preparation.size)
        if batch.ndim != 4 or batch.shape[1:] != wanted:
            raise DGZError(f"{self.name} reads photos of shape {wanted}, found an array of shape {batch.shape}.")
        if not len(batch):
            return np.empty((0, self.d_x), dtype=np.float32)
        return np.stack([self._run_one(photo) for photo in batch.astype(np.float32, copy=False)])

    def _run_one(self, photo: Floats) -> Floats:
        (port,) = self._session.get_inputs()
        try:
            (values,) = self._session.run(None, {port.name: np.ascontiguousarray(photo[None])})
        except Exception as error:  # onnxruntime has a kind for each status, none of them public
            raise DGZError(f"{self.name} cannot be run: {one_line(error)}.") from error
        if values.ndim not in (2, 4) or len(values) != 1 or not values.size or values.dtype.kind != "f":
            raise DGZError(
                f"The output of {self.name} must be real numbers of shape (n, d) or (n, d, height, width), found "
                f"{values.dtype} of shape {values.shape} for one photo."
            )
        features: Floats = values.mean(axis=(2, 3), dtype=np.float32) if values.ndim == 4 else values
        row: Floats = features[0].astype(np.float32, copy=False)
        return row

    def save(self, folder: str | Path, *, overwrite: bool = False) -> None:
        """Write it to a new folder, whole or not at all: ``backbone.onnx`` and ``backbone.json``."""
        with write_folder(folder, overwrite=overwrite) as new:
            with write_whole(new / _NETWORK) as file:
                file.write(self.onnx)
            facts = {key: getattr(self, key) for key in (*_WORDS, "d_x", "digest")}
            header = {"format": "dgz-backbone", "version": _VERSION, **facts}
            write_json(new / _HEADER, {**header, "preparation": self.preparation.to_dict()})

    @classmethod
    def load(cls, folder: str | Path) -> "Backbone":
        """Read a folder that :meth:`save` wrote; one that was changed since is refused."""
        folder = Path(folder)
        place = folder / _HEADER
        if not place.is_file():
            raise DGZError(f"{folder} holds no backbone: it has no {_HEADER}.")
        header = read_document(place, "backbone", _VERSION)
        preparation = Preparation.from_dict(header.get("preparation"), f"{place}, preparation")
        content = (folder / _NETWORK).read_bytes()
        # Checked before it is opened: what is not the file that was written is not given to the runtime.
        if _digest(content, preparation) != header.get("digest"):
            raise DataError(f"{folder} was changed after it was written: its network or preparation is another one.")
        return cls(content, preparation, **_checked_words(header, str(place), _WORDS))


def _digest(onnx: bytes, preparation: Preparation) -> str:
    prepared = json.dumps(preparation.to_dict(), sort_keys=True)
    return hashlib.sha256(hashlib.sha256(onnx).digest() + prepared.encode()).hexdigest()


def _checked_words(content: Mapping[str, Any], where: str, wanted: Iterable[str]) -> dict[str, Any]:
    """What a JSON file says of a backbone beside numbers: texts, and whether it is fine-tuned."""
    words = {key: content.get(key) for key in wanted}
    for key, value in words.items():
        if not isinstance(value, bool if key == "is_fine_tuned" else str):
            expected = "true or false" if key == "is_fine_tuned" else "a text"
            raise DataError(f"{where}: {key} must be {expected}, found {value!r}.")
    return words


def _session(onnx: bytes, name: str) -> Any:
    """A session that runs in the thread that calls it: there are as many callers as cores."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4  # its errors are raised as well, and its remarks help no one
    try:
        return onnxruntime.InferenceSession(onnx, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # onnxruntime has a kind for each status, none of them public
        raise DataError(
            f"{name} cannot be opened as an ONNX network that holds its own weights: {one_line(error)}."
        ) from error


def _input_size(session: Any, name: str) -> tuple[int | None, int | None]:
    """Height and width of the only input, None where they are free; what takes no photos is refused."""
    ports, n_outputs = session.get_inputs(), len(session.get_outputs())
    if len(ports) != 1 or n_outputs != 1:
        raise DataError(
            f"{name} must have one input and one output, found {len(ports)} and {n_outputs}: "
            "export it with the features as its only output."
        )
    shape = [side if isinstance(side, int) else None for side in ports[0].shape]
    if ports[0].type != "tensor(float)" or len(shape) != 4 or shape[0] not in (None, 1) or shape[1] not in (None, 3):
        raise DataError(
            f"The input of {name} must be float32 photos of shape (n, 3, height, width), with n free or 1, found "
            f"{ports[0].type} of shape {ports[0].shape}."
        )
    return shape[2], shape[3]


def cache_folder() -> Path:
    """Where networks and features are kept between runs: ``DGZ_CACHE``, or ``dgz`` in the user's cache folder."""
    if named := os.environ.get("DGZ_CACHE"):
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dgz"


def open_backbone(spec: str | Path = "lite0", **changes: Any) -> Backbone:
    """Give the backbone that a name stands for.

    Parameters
    ----------
    spec : str or Path
        ``"lite0"`` (EfficientNet-Lite0, 1280 features, weights in a package of dgz[images]); an ``.onnx`` file; a
        folder that :meth:`Backbone.save` wrote; ``"timm:NAME"``, or ``"timm:NAME@FILE"`` with weights of a safetensors
        file; or ``"hf:NAME"``, where a folder of that name is taken before a model of the Hugging Face hub.
    **changes
        Entries of the :class:`Preparation` that shall differ. For an ``.onnx`` file they may also be in a ``.json``
        file of the same name beside it, with ``name``, ``licence``, ``source`` and ``is_fine_tuned``.
    """
    from dgz.images.networks import open_network

    text = str(spec)
    if network := open_network(text):
        backbone = network.backbone()
    elif Path(spec).is_dir():
        backbone = Backbone.load(spec)
    elif Path(spec).name == _NETWORK and (Path(spec).parent / _HEADER).is_file():
        backbone = Backbone.load(Path(spec).parent)
    elif text.lower().endswith(".onnx"):
        return _from_onnx(Path(spec), changes)
    else:
        raise DGZError(
            "A backbone is lite0, a file that ends in .onnx, the folder of a saved backbone, timm:NAME or hf:NAME, "
            f"found {text!r}."
        )
    return replace(backbone, preparation=_changed(backbone.preparation, changes)) if changes else backbone


def _changed(preparation: Preparation, changes: Mapping[str, Any]) -> Preparation:
    return Preparation.from_dict({**preparation.to_dict(), **changes}, "The options of the backbone")


def _from_onnx(path: Path, changes: Mapping[str, Any]) -> Backbone:
    """A network from a file of the user's, and what the JSON file beside it says of photos."""
    content = path.read_bytes()
    beside = path.with_suffix(".json")
    told = read_json(beside) if beside.is_file() else {}
    if not isinstance(told, dict):
        raise DataError(f"{beside} must be a JSON object with entries such as size, mean and std.")
    words: dict[str, Any] = {"name": path.stem, "source": path.name}
    words |= _checked_words(told, str(beside), [key for key in _WORDS if key in told])
    height, width = _input_size(_session(content, str(path)), str(path))
    size = {"size": [height or _USUAL_SIZE, width or _USUAL_SIZE]}
    prepared = size | {key: value for key, value in told.items() if key not in _WORDS}
    return Backbone(content, _changed(Preparation.from_dict(prepared, str(beside)), changes), **words)
