"""Variables of a MATLAB file, whichever format it is in: v5, v7 (v5 with zlib) or v7.3 (HDF5).

In comes a path and the names wanted; out come numpy arrays in MATLAB's own orientation, so that the caller need not
know the format. Files come from strangers: whatever is wrong with one ends in a DataError that names it.

v5 and v7 are read here and not by ``scipy.io.loadmat``, whose compiled parser was seen to crash the process on damaged
bytes. Only what the field's files hold is understood: numeric arrays, and lists of names. The format is described in
MathWorks' "MAT-File Format" (R2019b).
"""

import zlib
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import IO, Any, Protocol

import h5py
import numpy as np
import numpy.typing as npt

from dgz.errors import DataError, one_line
from dgz.files import MAX_DEFLATE_RATIO

_HDF5_SIGNATURE = b"\x89HDF\r\n\x1a\n"
_CHUNK = 1 << 20

# Codes of the v5 format: how values are stored, and what kind of array they make up.
_NUMBERS = {1: "i1", 2: "u1", 3: "i2", 4: "u2", 5: "i4", 6: "u4", 7: "f4", 9: "f8", 12: "i8", 13: "u8"}
_TEXT_CODINGS = {1: "latin-1", 2: "latin-1", 4: "utf-16", 16: "utf-8", 17: "utf-16", 18: "utf-32"}
_MATRIX, _COMPRESSED = 14, 15
_CELL, _CHAR, _NUMERIC_CLASSES = 1, 4, range(6, 16)
_COMPLEX = 0x0800


def read_mat(path: str | Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    """Read those of ``names`` that the file holds.

    Numeric variables come as MATLAB has them, e.g. ``features`` as (d_x, n), in the type they are stored in; names come
    as an array of str objects.

    Parameters
    ----------
    path : str or Path
        The ``.mat`` file.
    names : collection of str
        Variables to read; others are skipped unread.
    """
    path = Path(path)
    try:
        with path.open("rb") as file:
            head = file.read(520)
            # MATLAB puts a 512-byte block of its own before HDF5's.
            if head.startswith(_HDF5_SIGNATURE) or head[512:].startswith(_HDF5_SIGNATURE):
                return _read_hdf5(path, names)
            return _read_v5(file, head[:128], path.stat().st_size, names)
    except DataError as error:
        raise DataError(f"{path} is broken: {error}") from error
    except Exception as error:  # broken bytes make HDF5, zlib and numpy raise a dozen kinds
        if isinstance(error, OSError) and error.errno is not None:
            raise  # the file system's own words are the clearest
        raise DataError(f"{path} cannot be read as a MATLAB file: {one_line(error)}.") from error


# ------------------------------------------------------------------------------------------------------- v5 and v7
class _Source(Protocol):
    """Bytes in order, from a part of a file or from a compressed part of one."""

    def fill(self, target: memoryview) -> None:
        """Read exactly as many bytes as ``target`` holds."""

    def at_most(self) -> int:
        """How many bytes can still come at the very most."""


class _Plain:
    def __init__(self, file: IO[bytes], n_bytes: int) -> None:
        self.file, self.left = file, n_bytes

    def fill(self, target: memoryview) -> None:
        if len(target) > self.left or self.file.readinto(target) != len(target):  # type: ignore[attr-defined]
            raise EOFError("it ends too early")
        self.left -= len(target)

    def at_most(self) -> int:
        return self.left


class _Inflated:
    def __init__(self, file: IO[bytes], n_bytes: int) -> None:
        self.file, self.left, self.inflate = file, n_bytes, zlib.decompressobj()

    def _next(self, most: int) -> bytes:
        """Up to ``most`` more bytes; none only at the end."""
        while not self.inflate.eof:
            waiting = self.inflate.unconsumed_tail or self.file.read(min(_CHUNK, self.left))
            if not waiting:
                raise EOFError("it ends too early")
            if not self.inflate.unconsumed_tail:
                self.left -= len(waiting)
            if part := self.inflate.decompress(waiting, most):
                return part
        return b""

    def fill(self, target: memoryview) -> None:
        place = 0
        while place < len(target):
            part = self._next(len(target) - place)
            if not part:
                raise EOFError("it ends too early")
            target[place : place + len(part)] = part
            place += len(part)

    def at_most(self) -> int:
        return MAX_DEFLATE_RATIO * (self.left + len(self.inflate.unconsumed_tail) + _CHUNK)

    def finish(self) -> None:
        """Read on to the end, where zlib compares its checksum."""
        while self._next(_CHUNK):
            pass


class _Reader:
    """Elements of the v5 format, each a tag (type and length) and its bytes."""

    def __init__(self, source: _Source, order: str) -> None:
        self.source, self.order = source, order

    def take(self, n_bytes: int) -> bytes:
        if n_bytes > self.source.at_most():
            raise EOFError("it ends too early")
        target = bytearray(n_bytes)
        self.source.fill(memoryview(target))
        return bytes(target)

    def tag(self) -> tuple[int, int, bytes | None]:
        """Type and length of the next element; a short one brings its bytes along."""
        raw = self.take(8)
        first, second = np.frombuffer(raw, self.order + "u4").tolist()
        if first >> 16:  # lengths up to 4 share the tag's first word
            if first >> 16 > 4:
                raise DataError("a short element is too long.")
            return first & 0xFFFF, first >> 16, raw[4 : 4 + (first >> 16)]
        return first, second, None

    def small(self) -> tuple[int, bytes]:
        """Type and bytes of an element that must be short: flags, dimensions, a name."""
        kind, n_bytes, inside = self.tag()
        if inside is not None:
            return kind, inside
        if n_bytes > 1 << 16:
            raise DataError(f"{n_bytes} bytes where a few were expected.")
        return kind, self.take(n_bytes + -n_bytes % 8)[:n_bytes]

    def matrix_head(self) -> tuple[int, tuple[int, ...], str]:
        """Kind, shape and name of a matrix, whose tag has been read."""
        flags = np.frombuffer(self.small()[1], self.order + "u4")
        shape = tuple(np.frombuffer(self.small()[1], self.order + "i4").tolist())
        name = self.small()[1].decode("latin-1")
        if len(flags) != 2 or len(shape) < 2 or min(shape) < 0:
            raise DataError(f"the head of {name!r} makes no sense.")
        if flags[0] & _COMPLEX:
            raise DataError(f"{name} is complex.")
        return int(flags[0] & 0xFF), shape, name

    def numbers(self, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
        kind, n_bytes, inside = self.tag()
        if kind not in _NUMBERS:
            raise DataError(f"{name} is stored in an unknown way ({kind}).")
        dtype = np.dtype(self.order + _NUMBERS[kind])
        n_values = int(np.prod(shape, dtype=object))
        if n_values * dtype.itemsize != n_bytes:
            raise DataError(f"{name} claims the shape {shape} but holds {n_bytes} bytes.")
        if inside is not None:
            values = np.frombuffer(inside, dtype).copy()
        else:
            if n_bytes > self.source.at_most():
                raise DataError(f"{name} claims the shape {shape}, for which the file is too short.")
            # Not np.empty, which asks for huge pages: where memory is fragmented, the system may take longer to make
            # them free than the whole file takes to read.
            room = bytearray(n_bytes)
            self.source.fill(memoryview(room))
            values = np.frombuffer(room, dtype)
            self.take(-n_bytes % 8)
        return values.reshape(shape, order="F").astype(dtype.newbyteorder("="), copy=False)

    def text(self, name: str) -> str:
        kind, n_bytes, inside = self.tag()
        if kind not in _TEXT_CODINGS:
            raise DataError(f"{name} holds text in an unknown coding ({kind}).")
        raw = inside if inside is not None else self.take(n_bytes + -n_bytes % 8)[:n_bytes]
        coding = _TEXT_CODINGS[kind]
        if coding in ("utf-16", "utf-32"):
            coding += "-le" if self.order == "<" else "-be"
        return raw.decode(coding)

    def value(self, kind: int, shape: tuple[int, ...], name: str) -> npt.NDArray[Any]:
        """What follows a matrix's head: numbers, text, or a cell of texts."""
        if kind in _NUMERIC_CLASSES:
            return self.numbers(shape, name)
        if kind == _CHAR:
            letters = np.array(list(self.text(name)), dtype=object)
            if len(letters) != np.prod(shape, dtype=object):
                raise DataError(f"{name} claims the shape {shape} but holds {len(letters)} letters.")
            lines = ["".join(line) for line in letters.reshape(shape, order="F").reshape(shape[0], -1)]
            return np.array(lines or [""], dtype=object)
        if kind != _CELL:
            raise DataError(f"{name} is neither numbers nor names.")
        texts = []
        for _ in range(int(np.prod(shape, dtype=object))):  # a lying shape ends with the file's bytes
            if self.tag()[0] != _MATRIX:
                raise DataError(f"{name} must be a list of names.")
            inner_kind, inner_shape, _ = self.matrix_head()
            if inner_kind != _CHAR:
                raise DataError(f"{name} must be a list of names.")
            texts.append("".join(self.value(inner_kind, inner_shape, name)))
        return np.array(texts, dtype=object)


def _read_v5(file: IO[bytes], head: bytes, size: int, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    order = {b"IM": "<", b"MI": ">"}.get(head[126:128])
    if order is None:
        raise ValueError("it has no header of MATLAB v5, v7 or v7.3")
    found: dict[str, npt.NDArray[Any]] = {}
    place = 128
    while place < size:
        file.seek(place)
        kind, n_bytes, _ = _Reader(_Plain(file, size - place), order).tag()
        place += 8 + n_bytes
        if place > size:
            raise EOFError("it ends too early")
        name, value = _variable(file, kind, n_bytes, order, names)
        if name in found and value is not None:
            raise DataError(f"it holds {name} twice.")
        if value is not None:
            found[name] = value
    return found


def _variable(
    file: IO[bytes], kind: int, n_bytes: int, order: str, names: Collection[str]
) -> tuple[str, npt.NDArray[Any] | None]:
    """Name and, where it is wanted, value of the variable that starts at the file's position."""
    compressed = _Inflated(file, n_bytes) if kind == _COMPRESSED else None
    reader = _Reader(compressed or _Plain(file, n_bytes), order)
    if compressed is not None:
        kind = reader.tag()[0]
    if kind != _MATRIX:
        return "", None
    array_kind, shape, name = reader.matrix_head()
    if name not in names:
        return name, None
    value = reader.value(array_kind, shape, name)
    if compressed is not None:
        compressed.finish()
    return name, value


# ------------------------------------------------------------------------------------------------------------ v7.3
def _read_hdf5(path: Path, names: Collection[str]) -> dict[str, npt.NDArray[Any]]:
    return dict(_hdf5_variables(path, names))


def _hdf5_variables(path: Path, names: Collection[str]) -> Iterator[tuple[str, npt.NDArray[Any]]]:
    with h5py.File(path, "r") as file:
        for name in names:
            # Only what lies in this very file: a link could point the reader at any other file on the machine.
            if not isinstance(file.get(name, getlink=True), h5py.HardLink):
                continue
            dataset = file[name]
            _refuse_hollow(dataset, name)
            if dataset.dtype == h5py.ref_dtype:
                yield name, np.array([_hdf5_text(file[ref], name) for ref in dataset[()].ravel()], dtype=object)
            elif dataset.dtype.kind in "fiub":
                yield name, dataset[()].T  # HDF5 lists MATLAB's dimensions in reverse
            else:
                raise DataError(f"{name} is neither numbers nor names.")


def _refuse_hollow(dataset: Any, name: str) -> None:
    """Refuse an array whose values are elsewhere or nowhere, before memory for them is allocated."""
    if not isinstance(dataset, h5py.Dataset):
        raise DataError(f"{name} is not an array.")
    if dataset.is_virtual or dataset.external:
        raise DataError(f"{name} takes its values from other files.")
    if dataset.nbytes > MAX_DEFLATE_RATIO * max(dataset.id.get_storage_size(), 1):
        raise DataError(f"{name} claims the shape {dataset.shape}, for which the file is too short.")


def _hdf5_text(dataset: Any, name: str) -> str:
    _refuse_hollow(dataset, name)
    return "".join(chr(int(code)) for code in np.asarray(dataset[()]).ravel())
