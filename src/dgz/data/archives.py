"""Public archives, from the web into a folder.

The first step of the flow, and the only one that speaks to the network. In comes the name of an archive, or an address;
out go the archive, its SHA-256 and its files. A transfer that broke off goes on where it stopped, and nothing gets its
final name before it is whole. What comes from the network is never trusted: see :func:`unpack`.
"""

import hashlib
import os
import re
import shutil
import stat
import struct
import time
import unicodedata
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from http.client import HTTPException, HTTPResponse, InvalidURL
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib import request as web
from urllib.error import HTTPError, URLError

from dgz.errors import DataError, DGZError, require_choice
from dgz.files import read_json, write_folder, write_json
from dgz.progress import Progress

# The address on the authors' page. It could not be reached when this was written, so no checksum of it is recorded.
ARCHIVES: Mapping[str, str] = {"xlsa17": "http://datasets.d2.mpi-inf.mpg.de/xian/xlsa17.zip"}

_CHUNK = 1 << 18
_FIRST_PAUSE, _LONGEST_PAUSE = 0.5, 30.0  # seconds; each failure in a row doubles the pause
_MAX_MEMBERS, _MAX_DEPTH = 100_000, 32
_SMALL = 64 << 20  # unpacked bytes below which no ratio is suspicious: a page of zeros packs a thousandfold
# A part of a member's name. No separator, drive letter or stream of any system; and, as Windows drops dots and spaces
# at the end ("..␠" is its parent folder too), none there either, which rules out "." and "..".
_NAME = re.compile(r"[^\\/:\x00-\x1f]*[^\\/:\x00-\x1f. ]")
# All that zipfile lets through on a broken archive.
_BROKEN = (zipfile.BadZipFile, zlib.error, struct.error, EOFError, IndexError, OverflowError, RuntimeError, ValueError)


class _DroppedError(Exception):
    """The transfer stopped early; trying again may help."""


class _UnreachableError(_DroppedError):
    """No connection came about."""


def download(name: str = "xlsa17", to: str | Path = ".", *, url: str | None = None, sha256: str | None = None) -> Path:
    """Load a public archive into ``to/NAME.zip`` and unpack it into ``to/NAME``.

    ``to/NAME.download.json`` keeps ``url``, ``sha256``, ``bytes`` and ``verified``: whether that SHA-256 was compared
    with one the user gave. An archive that is there already, as this file describes it, is not loaded again.

    Parameters
    ----------
    name : str
        A key of ``ARCHIVES``.
    to : str or Path
        The folder for all three; made where missing.
    url : str, optional
        Another address to load the archive from.
    sha256 : str, optional
        What the archive's SHA-256 must be.

    Returns
    -------
    Path
        The unpacked folder.

    Examples
    --------
    >>> download("xlsa-17")
    Traceback (most recent call last):
    dgz.errors.DGZError: archive must be one of xlsa17, found 'xlsa-17'; did you mean 'xlsa17'?
    """
    require_choice(name, ARCHIVES, "archive")
    url, wanted = url or ARCHIVES[name], _checked_sha256(sha256)
    folder, archive, record = (Path(to) / (name + ending) for ending in ("", ".zip", ".download.json"))
    _check_vacant(folder)  # now, not after an hour's transfer
    with _explained(f"{archive} could not be loaded"):
        kept = _kept(archive, record, url)
        if kept and wanted in (None, kept["sha256"]):
            found, verified = kept["sha256"], bool(wanted) or kept.get("verified") is True
        else:
            found, verified = fetch(url, archive, sha256=wanted), wanted is not None
        n_bytes = archive.stat().st_size
        write_json(record, {"url": url, "sha256": found, "bytes": n_bytes, "verified": verified})
    try:
        unpack(archive, folder)
    except DataError as error:
        raise DataError([*error.problems, f"Delete {archive} to load it anew."]) from error
    return folder


def fetch(url: str, path: str | Path, *, sha256: str | None = None, n_retries: int = 5, timeout: float = 30.0) -> str:
    """Load ``url`` into the file ``path``, going on where an earlier call was cut off.

    What has come so far is in ``PATH.part``, what it is a part of in ``PATH.part.json``; both are gone at the end.

    Parameters
    ----------
    url : str
        An http or https address.
    path : str or Path
        The file to write; it appears, or is replaced, only when all of it is there and right.
    sha256 : str, optional
        What the file's SHA-256 must be. If it is not, what was loaded is thrown away.
    n_retries : int
        How many failures in a row, without one more byte, are put up with.
    timeout : float
        Seconds of silence that count as a dropped connection.

    Returns
    -------
    str
        The file's SHA-256 in hexadecimal digits.
    """
    if not re.fullmatch(r"(?i:https?)://\S+", url):
        raise DGZError(f"The address must start with http:// or https:// and have no spaces, but it is {url!r}.")
    path, wanted = Path(path), _checked_sha256(sha256)
    part, note = path.with_name(f"{path.name}.part"), path.with_name(f"{path.name}.part.json")
    with _explained(f"{path} could not be written"):
        path.parent.mkdir(parents=True, exist_ok=True)
        n_failures = furthest = 0
        while True:
            try:
                _load_rest(url, part, note, timeout)
                break
            except _DroppedError as error:
                # Only bytes never seen before count as progress: else a server that lets every transfer start over,
                # and drops it, would hold us for ever.
                had = _size(part)
                n_failures = 1 if had > furthest else n_failures + 1
                furthest = max(furthest, had)
                # Nothing came and nobody answers: most likely a slip in the address, which waiting does not mend.
                if n_failures > n_retries or (isinstance(error, _UnreachableError) and not had):
                    raise DGZError(f"{url} could not be loaded, {had:,} bytes are there: {error}.") from error
                time.sleep(min(_FIRST_PAUSE * 2 ** (n_failures - 1), _LONGEST_PAUSE))
        found = _sha256(part)
        if wanted not in (None, found):
            part.unlink()
            note.unlink(missing_ok=True)
            raise DGZError(f"The file at {url} should have the SHA-256 {wanted}, but it has {found}.")
        part.replace(path)
        note.unlink(missing_ok=True)
    return found


def _load_rest(url: str, part: Path, note: Path, timeout: float) -> None:
    """Load into ``part`` what it lacks, by one request; return only when it is complete."""
    memory, offset = _read_dict(note), _size(part)
    if memory.get("url") != url:
        memory = {}
    size, validator = memory.get("size"), memory.get("validator")
    if offset and offset == size:
        return  # cut off between the last byte and the new name
    headers = {"User-Agent": "dgz"}
    if offset and validator:
        headers |= {"Range": f"bytes={offset}-", "If-Range": validator[1]}
    else:
        offset = 0  # without a validator, nothing says that the rest would belong to the same file

    with _open(url, headers, timeout) as response:
        place = response.headers.get("Content-Range", "")
        if isinstance(response, HTTPError):
            if response.code == 416 and offset:
                if size is None and place == f"bytes */{offset}":
                    return
                part.unlink()
                raise _DroppedError(f"the server has no byte {offset:,}")
            answer = f"the server answered {response.code} ({response.reason})"
            if response.code >= 500 or response.code in (408, 429):  # its troubles, or our haste: both may pass
                raise _DroppedError(answer)
            raise DGZError(f"{url} could not be loaded: {answer}.")
        if response.status == 206:
            if not (offset and validator and _fits(response, offset, size, validator)):
                part.unlink(missing_ok=True)
                raise _DroppedError(f"the server sent {place!r} of another file or place when asked for {offset:,} on")
            total = place.rpartition("/")[2]
            size = size if total == "*" else int(total)
        elif response.status == 200:
            offset, size = 0, response.length
            # In this order: a kill in between must not leave old bytes beside the new file's validator.
            part.unlink(missing_ok=True)
            write_json(note, {"url": url, "size": size, "validator": _validator(response)})
        else:
            raise DGZError(f"{url} could not be loaded: the server answered {response.status} ({response.reason}).")
        _check_space(part.parent, (size or 0) - offset)
        with part.open("ab") as file, Progress(f"load {part.stem}", size, "bytes") as progress:
            progress.advance(offset)
            for chunk in _receive(response, None if size is None else size - offset):
                file.write(chunk)
                progress.advance(len(chunk))
            file.flush()
            os.fsync(file.fileno())  # or a power cut after the renaming could leave a hole under the final name
    if size is not None and _size(part) != size:
        raise _DroppedError(f"the connection ended at byte {_size(part):,} of {size:,}")


def _fits(response: HTTPResponse, offset: int, size: int | None, validator: tuple[str, str]) -> bool:
    """Tell whether a partial answer is the rest of our file; some servers know Range but not If-Range, or neither."""
    match = re.fullmatch(r"bytes ([0-9]{1,18})-[0-9]+/([0-9]{1,18}|\*)", response.headers.get("Content-Range", ""))
    if not match or int(match[1]) != offset or response.headers.get(*validator) != validator[1]:
        return False
    return match[2] == "*" or (int(match[2]) > offset and size in (None, int(match[2])))


def _open(url: str, headers: dict[str, str], timeout: float) -> HTTPResponse | HTTPError:
    """Ask for ``url``; an answer that is an error is returned too. Network errors become :class:`_DroppedError`."""
    # Not urlopen: it also knows file:, ftp: and data:, and a server could redirect us there.
    opener = web.OpenerDirector()
    for handler in (
        web.ProxyHandler,
        web.HTTPHandler,
        web.HTTPSHandler,
        web.HTTPRedirectHandler,
        web.HTTPErrorProcessor,
        web.HTTPDefaultErrorHandler,
        web.UnknownHandler,
    ):
        opener.add_handler(handler())
    try:
        response: HTTPResponse = opener.open(web.Request(url, headers=headers), timeout=timeout)  # noqa: S310 (http only)
    except HTTPError as error:
        return error
    except (InvalidURL, ValueError) as error:
        raise DGZError(f"{url!r} is not an address: {error}.") from error
    except URLError as error:
        raise _UnreachableError(f"no connection ({error.reason})") from error
    except (OSError, HTTPException) as error:
        raise _DroppedError(f"the connection dropped ({error})") from error
    return response


def _receive(response: HTTPResponse, n_left: int | None) -> Iterator[bytes]:
    """Yield what arrives, when it arrives. A generator, so that network errors stay apart from those of the disk."""
    try:
        # read1, as read would lose what it holds of an unfinished chunk when the connection drops
        while chunk := response.read1(_CHUNK if n_left is None else min(_CHUNK, n_left)):
            n_left = None if n_left is None else n_left - len(chunk)
            yield chunk
            if n_left == 0:
                return
    except (OSError, HTTPException) as error:
        raise _DroppedError(f"the connection dropped ({error})") from error


def _validator(response: HTTPResponse) -> tuple[str, str] | None:
    """Header and value that name this version of the file. A weak ETag does not: the bytes may differ under it."""
    for header in ("ETag", "Last-Modified"):
        value = response.headers.get(header)
        if value and not value.startswith("W/"):
            return header, value
    return None


def unpack(
    archive: str | Path, folder: str | Path, *, max_bytes: int = 64 << 30, max_ratio: float = 200.0
) -> list[Path]:
    """Unpack a zip archive that nobody vouches for into a new folder: all of it or nothing.

    Members that could land outside the folder, on top of each other, or as anything but plain files and folders are
    refused before a byte is written; so is an archive that would grow out of all proportion.

    Parameters
    ----------
    archive : str or Path
        A zip file.
    folder : str or Path
        Where to unpack it. Must not exist, or be empty.
    max_bytes : int
        The most the unpacked files may take together.
    max_ratio : float
        The most they may take as a multiple of the archive's size, once they pass 64 MiB.

    Returns
    -------
    list of Path
        The files, in the archive's order.

    Examples
    --------
    >>> import tempfile
    >>> place = Path(tempfile.mkdtemp())
    >>> with zipfile.ZipFile(place / "a.zip", "w") as made:
    ...     made.writestr("data/labels.txt", "0 1 1")
    >>> unpack(place / "a.zip", place / "a")[0].read_text()
    '0 1 1'
    """
    archive, folder = Path(archive), Path(folder)
    _check_vacant(folder)
    try:
        with _explained(f"{archive} could not be unpacked into {folder}"), zipfile.ZipFile(archive) as source:
            members = source.infolist()
            _check_directory(archive, members, source.comment)
            for problem in _problems(members, _size(archive), max_bytes, max_ratio):
                raise DataError(f"{archive} is not unpacked: {problem}.")
            n_bytes = sum(member.file_size for member in members)
            _check_space(folder, n_bytes)
            with write_folder(folder) as new, Progress(f"unpack {archive.name}", n_bytes, "bytes") as progress:
                for member in members:
                    _unpack_member(source, member, new / member.filename, progress)
    except DGZError:
        raise
    except _BROKEN as error:
        raise DataError(f"{archive} is no whole zip archive: {str(error) or 'it ends early'}.") from error
    return [folder / member.filename for member in members if not member.is_dir()]


def _check_directory(archive: Path, members: list[zipfile.ZipInfo], comment: bytes) -> None:
    """Refuse an archive of which :mod:`zipfile` found only a part, which it takes for the whole.

    A wrong length in the directory can swallow the members behind it; and a file that breaks off behind an archive
    within the archive is read as that one.
    """
    with archive.open("rb") as file:
        file.seek(-22 - len(comment), os.SEEK_END)
        signature, n_members = struct.unpack("<4s6xH10x", file.read(22))
    # The count has 16 bits: larger ones wrap around, or read 0xFFFF and stand elsewhere.
    counted = signature == b"PK\5\6" and n_members in (len(members) & 0xFFFF, 0xFFFF)
    if not counted or (members and min(member.header_offset for member in members)):
        raise zipfile.BadZipFile("its directory does not match its content")


def _problems(members: list[zipfile.ZipInfo], packed: int, max_bytes: int, max_ratio: float) -> Iterator[str]:
    """Yield what speaks against unpacking; no member is read for it."""
    if len(members) > _MAX_MEMBERS:
        yield f"it has {len(members):,} members, more than {_MAX_MEMBERS:,}"
    n_bytes = sum(member.file_size for member in members)
    if n_bytes > max_bytes:
        yield f"its files take {n_bytes:,} bytes, more than the {max_bytes:,} allowed"
    if n_bytes > max(_SMALL, max_ratio * packed):
        yield f"its files take {n_bytes:,} bytes, more than {max_ratio:g} times its own size"
    places: list[tuple[list[str], bool]] = []
    for member in members:
        name = member.orig_filename  # zipfile cuts the other name at a NUL and may change its separators
        shown = repr(name[:200])
        # Names that differ only in case, or in how accents are encoded, are one file on many systems.
        parts = unicodedata.normalize("NFC", name.removesuffix("/")).casefold().split("/")
        places.append((parts, name.endswith("/")))
        if not all(map(_NAME.fullmatch, parts)):
            yield f"the name of its member {shown} could lead out of the folder"
        if len(parts) > _MAX_DEPTH:
            yield f"its member {shown} lies more than {_MAX_DEPTH} folders deep"
        if stat.S_IFMT(member.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            yield f"its member {shown} is a link or a special file"
        if member.flag_bits & 0x2041:  # encryption; strong encryption; masked headers
            yield f"its member {shown} is encrypted"
        # bzip2 and LZMA are read by whole blocks in zipfile, so that a few bytes could fill the memory.
        if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            yield f"its member {shown} is neither stored nor deflated"
    places.sort()  # puts what lies at or below a place right behind it
    for (parts, is_folder), (others, _) in pairwise(places):
        if others == parts or (not is_folder and others[: len(parts)] == parts):
            yield f"two of its members would be {'/'.join(parts)[:200]!r}"
    if all(is_folder for _, is_folder in places):
        yield "it holds no files"


def _unpack_member(source: zipfile.ZipFile, member: zipfile.ZipInfo, target: Path, progress: Progress) -> None:
    """Write one member to ``target``; :mod:`zipfile` checks its CRC at the last byte."""
    (target if member.is_dir() else target.parent).mkdir(parents=True, exist_ok=True)
    if member.is_dir():
        return
    n_left = member.file_size
    with source.open(member) as packed, target.open("xb") as file:
        while n_left >= 0 and (chunk := packed.read(_CHUNK)):
            n_left -= len(chunk)
            file.write(chunk)
            progress.advance(len(chunk))
    if n_left:  # what was promised passed the checks above; anything else did not
        raise DataError(
            f"{source.filename} is broken: {member.filename!r} has not the {member.file_size:,} bytes it says."
        )


@contextmanager
def _explained(what: str) -> Iterator[None]:
    """Turn the system's errors (a full disk, a missing right) into one sentence."""
    try:
        yield
    except OSError as error:
        raise DGZError(f"{what}: {error.strerror or error}.") from error


def _check_vacant(folder: Path) -> None:
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise DGZError(f"{folder} exists already and is not an empty folder; remove it or choose another place.")


def _check_space(folder: Path, n_bytes: int) -> None:
    place = next(place for place in (folder.absolute(), *folder.absolute().parents) if place.exists())
    if n_bytes > (free := shutil.disk_usage(place).free):
        raise DGZError(f"{folder} needs {n_bytes:,} bytes, but only {free:,} are free on its disk.")


def _checked_sha256(sha256: str | None) -> str | None:
    if sha256 is not None and not re.fullmatch("[0-9a-f]{64}", sha256 := sha256.strip().lower()):
        raise DGZError(f"A SHA-256 has 64 hexadecimal digits, but {sha256!r} was given.")
    return sha256


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _kept(archive: Path, record: Path, url: str) -> dict[str, Any] | None:
    """Give the record of an archive that is there, unchanged, from an earlier call."""
    known = _read_dict(record)
    same = archive.is_file() and (known.get("url"), known.get("bytes")) == (url, _size(archive))
    return known if same and known.get("sha256") == _sha256(archive) else None


def _read_dict(path: Path) -> dict[str, Any]:
    """Read an object this module wrote; a missing or broken one counts as empty."""
    try:
        content = read_json(path)
    except (FileNotFoundError, DataError):
        return {}
    return content if isinstance(content, dict) else {}


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0
