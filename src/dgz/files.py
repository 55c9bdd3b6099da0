"""Files that are written whole or not at all.

Everything the package writes goes through here: first to a temporary name in the same folder, then renamed into place.
A crash, a full disk or Ctrl-C leaves the old file, or none, but never half of a new one.
"""

import json
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

from dgz.errors import DataError, DGZError

# Deflate cannot shrink data by more than about 1,032 times: a file that promises more is lying, and believing it would
# allocate memory for values that are not there.
MAX_DEFLATE_RATIO = 1100


def _default_mode() -> int:
    """Mode of a new file under the process's umask: what ``open`` gives, and ``mkstemp`` does not."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask


@contextmanager
def write_whole(path: str | Path) -> Iterator[IO[bytes]]:
    """Open ``path`` for binary writing; it appears under its name only when the block ends without an error.

    Examples
    --------
    >>> folder = Path(tempfile.mkdtemp())
    >>> with write_whole(folder / "a.txt") as file:
    ...     _ = file.write(b"whole")
    >>> (folder / "a.txt").read_bytes()
    b'whole'
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    temporary = Path(name)
    try:
        with os.fdopen(handle, "wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        temporary.chmod(_default_mode())
        temporary.replace(path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_tensors(path: Path, arrays: Mapping[str, Any], what: str) -> None:
    """Write arrays as safetensors into a folder that has no name yet; ``what`` is what a sentence calls them."""
    from safetensors import SafetensorError  # with numpy, too heavy for those who only read JSON
    from safetensors.numpy import save_file

    try:
        save_file(dict(arrays), path)
    except SafetensorError as error:  # a full disk, as its Rust side reports it
        raise DGZError(f"{what} could not be written: {error}.") from error
    path.chmod(_default_mode())  # the library writes for the owner alone


@contextmanager
def write_folder(path: str | Path, *, overwrite: bool = False) -> Iterator[Path]:
    """Give an empty folder to fill; it takes the name ``path`` only when the block ends without an error.

    Parameters
    ----------
    path : str or Path
        Where the folder shall be. An existing empty folder counts as absent.
    overwrite : bool
        Replace what is there. Without it, anything there is an error, raised before the block runs.
    """
    path = Path(path)
    taken = path.exists() and not (path.is_dir() and not any(path.iterdir()))
    if taken and not overwrite:
        raise DGZError(f"{path} exists already; choose another place or pass --overwrite (overwrite=True).")
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp"))
    old = temporary.with_suffix(".old")
    try:
        new = temporary / "new"
        new.mkdir()  # mkdtemp's own folder is private (0700); this one follows the umask
        yield new
        if path.exists():
            path.rename(old)
        try:
            new.rename(path)
        except OSError:
            if old.exists():
                old.rename(path)
            raise
    finally:
        for leftover in (temporary, old):
            if leftover.is_dir():
                shutil.rmtree(leftover)
            else:
                leftover.unlink(missing_ok=True)


def write_json(path: str | Path, content: Any, *, compact: bool = False) -> None:
    """Write ``content`` as JSON, whole or not at all: indented, or ``compact`` with a line for each of its entries.

    NaN is refused: it is no JSON.
    """
    if compact:
        lines = [f"{_as_json(key)}:{_as_json(value)}" for key, value in content.items()]
        text = "{\n" + ",\n".join(lines) + "\n}"
    else:
        text = json.dumps(content, indent=1, ensure_ascii=False, allow_nan=False)
    with write_whole(path) as file:
        file.write(text.encode() + b"\n")


@contextmanager
def locked(path: str | Path, *, wait: bool) -> Iterator[bool]:
    """Hold a lock that other processes respect, for as long as the block runs; its file is gone afterwards.

    Gives whether it is held: with ``wait`` always, otherwise only if no one else holds it. A process that dies lets go
    of it, however it dies. Where the system has no such locks, every process gets it.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        yield True
        return
    path = Path(path)
    while True:
        with _open_lock(path) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
            except BlockingIOError:
                yield False
                return
            if not _is_named(file, path):  # its last holder has removed it meanwhile, so it would keep no one out
                continue
            try:
                yield True
            finally:
                path.unlink(missing_ok=True)
            return


def _open_lock(path: Path) -> IO[str]:
    """Open a lock's file, in a folder that another process may be about to remove."""
    for _ in range(100):
        with suppress(FileNotFoundError, FileExistsError):
            path.parent.mkdir(parents=True, exist_ok=True)
            return path.open("a")
    path.parent.mkdir(parents=True, exist_ok=True)
    return path.open("a")


def _is_named(file: IO[str], path: Path) -> bool:
    """Whether a file that was opened is still the one at ``path``."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def read_document(path: str | Path, kind: str, version: int) -> dict[str, Any]:
    """Read a JSON file of ours, which says what it is: ``{"format": "dgz-<kind>", "version": 1, …}``.

    Parameters
    ----------
    path : str or Path
    kind : str
        What it must be: ``"model"``, ``"record"``, ``"bundle"``.
    version : int
        The version of that kind that can be read.

    Returns
    -------
    dict
        Its content, without the two entries that say what it is.
    """
    content = read_json(path)
    if not isinstance(content, dict) or content.pop("format", None) != f"dgz-{kind}":
        raise DataError(f"{path} is not of {_a(kind)}: it does not say 'dgz-{kind}' as its format.")
    if (found := content.pop("version", None)) != version:
        raise DataError(f"{path} is of {_a(kind)} of version {found}, but this dgz reads {version}.")
    return content


def _a(kind: str) -> str:
    return f"{'an' if kind[0] in 'aeiou' else 'a'} {kind}"


def read_json(path: str | Path) -> Any:
    """Read a JSON file; a broken one raises :class:`~dgz.errors.DataError` with its place."""
    try:
        return json.loads(Path(path).read_bytes())
    except (ValueError, RecursionError) as error:  # broken text or bytes, numbers of thousands of digits, deep nesting
        raise DataError(f"{path} is not valid JSON: {error}.") from error
