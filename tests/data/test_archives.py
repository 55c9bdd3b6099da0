"""What ``dgz.data.archives`` promises, against a real server on loopback and against archives made to do harm."""

import errno
import hashlib
import io
import json
import random
import re
import socket
import stat
import struct
import subprocess
import sys
import tempfile
import threading
import time
import unicodedata
import zipfile
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dgz.data.archives import download, fetch, unpack
from dgz.errors import DataError, DGZError

module = sys.modules[fetch.__module__]
CONTENT = random.Random(17).randbytes(300_000)  # noqa: S311
SHA256 = hashlib.sha256(CONTENT).hexdigest()
FILES = {"data/AWA2/res101.mat": CONTENT[:5000], "data/AWA2/classes.txt": b"antelope\n" * 400, "README": b"read me"}


class Site(ThreadingHTTPServer):
    """One file behind one address, and the ways in which it misbehaves."""

    daemon_threads = False  # so that server_close waits for the handlers, and no socket outlives the test

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.content = CONTENT
        self.etag: str | None = '"one"'
        self.last_modified: str | None = None
        self.drops: list[int] = []  # how many bytes of the body the coming answers send before they break off
        self.statuses: list[int] = []  # what the coming answers say instead of the file
        self.before_answer: Callable[[], None] = lambda: None
        self.reset = self.knows_no_range = self.knows_no_if_range = self.tells_no_size = self.chunked = False
        self.extra_length = self.shift = 0
        self.claims: int | str | None = None  # the total size that a partial answer states
        self.location = ""
        self.hold: threading.Event | None = None  # what a broken-off answer waits for
        self.asked: list[str | None] = []  # the Range of each request
        self.n_sent = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_port}/xlsa17.zip"


class Handler(BaseHTTPRequestHandler):
    server: Site
    timeout = 10

    def log_message(self, *args: Any) -> None:
        pass

    def do_GET(self) -> None:
        site = self.server
        site.before_answer()
        site.asked.append(self.headers["Range"])
        if site.statuses:
            self.answer(site.statuses.pop(0), {"Location": site.location} if site.location else {}, b"")
            return
        headers = {"ETag": site.etag, "Last-Modified": site.last_modified}
        start, status, size = 0, 200, len(site.content)
        asked = re.fullmatch(r"bytes=(\d+)-", self.headers["Range"] or "")
        validator = self.headers["If-Range"] or ""
        strong = validator in (site.etag, site.last_modified) and not validator.startswith("W/")
        fresh = strong or site.knows_no_if_range
        if asked and fresh and not site.knows_no_range:
            start, status = int(asked[1]), 206
            if start >= size:
                self.answer(416, {"Content-Range": f"bytes */{size}"}, b"")
                return
            start -= site.shift
            headers["Content-Range"] = f"bytes {start}-{size - 1}/{site.claims or size}"
        self.answer(status, headers, site.content[start:])

    def answer(self, status: int, headers: dict[str, str | None], body: bytes) -> None:
        site = self.server
        if site.chunked:
            self.protocol_version = "HTTP/1.1"
            headers["Transfer-Encoding"] = "chunked"
        elif not site.tells_no_size:
            headers["Content-Length"] = str(len(body) + site.extra_length)
        self.send_response(status)
        for name, value in headers.items():
            if value is not None:
                self.send_header(name, value)
        self.end_headers()
        sent = body[: site.drops.pop(0)] if site.drops and body else body
        site.n_sent += len(sent)  # before the client can have them, and the test look
        self.wfile.write(f"{len(sent):x}\r\n".encode() + sent + b"\r\n" if site.chunked and sent else sent)
        if site.chunked and sent == body:
            self.wfile.write(b"0\r\n\r\n")
        self.close_connection = True
        if len(sent) < len(body):
            if site.hold is not None:
                site.hold.wait(10)
            if site.reset:  # closing without lingering sends RST instead of FIN
                self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module, "_FIRST_PAUSE", 0.001)
    with Site() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield server
        finally:
            server.shutdown()
            thread.join()


def zipped(files: dict[str, bytes] | None = None, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", method) as archive:
        for name, content in (FILES if files is None else files).items():
            archive.writestr(name, content)
    return packed.getvalue()


def contents(folder: Path) -> dict[str, bytes]:
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


# ---- fetch ----------------------------------------------------------------------------------------------------------


def test_a_file_arrives_whole_with_its_digest_and_nothing_beside_it(site: Site, tmp_path: Path) -> None:
    assert fetch(site.url, tmp_path / "new" / "a.zip", sha256=f" {SHA256.upper()}\n") == SHA256
    assert (tmp_path / "new" / "a.zip").read_bytes() == CONTENT
    assert names(tmp_path / "new") == ["a.zip"]


@pytest.mark.parametrize("validator", ["etag", "last_modified"])
def test_dropped_connections_are_resumed_and_no_byte_is_sent_twice(site: Site, tmp_path: Path, validator: str) -> None:
    if validator == "last_modified":
        site.etag, site.last_modified = 'W/"weak"', "Mon, 03 Jul 2017 10:00:00 GMT"
    site.drops = [150_000, 1000, 1000, 1000, 1000, 1000, 1000, 1000]  # more drops than retries, but each brings some
    assert fetch(site.url, tmp_path / "a.zip", n_retries=2) == SHA256
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert site.n_sent == len(CONTENT)
    assert site.asked[:3] == [None, "bytes=150000-", "bytes=151000-"]


def test_a_connection_that_is_reset_is_resumed(site: Site, tmp_path: Path) -> None:
    site.reset, site.drops = True, [150_000, 60_000]
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert (tmp_path / "a.zip").read_bytes() == CONTENT


def test_a_connection_that_falls_silent_counts_as_dropped(site: Site, tmp_path: Path) -> None:
    site.hold, site.drops = threading.Event(), [150_000]
    assert fetch(site.url, tmp_path / "a.zip", timeout=0.2) == SHA256
    site.hold.set()
    assert (site.n_sent, site.asked) == (len(CONTENT), [None, "bytes=150000-"])


@pytest.mark.parametrize("drops", [[], [120_000]])
def test_a_chunked_answer_without_a_size_is_loaded_whole(site: Site, tmp_path: Path, drops: list[int]) -> None:
    site.chunked, site.drops = True, drops
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.n_sent == len(CONTENT)


def test_a_killed_process_is_resumed_by_a_second_call(site: Site, tmp_path: Path) -> None:
    site.hold, site.drops = threading.Event(), [150_000]
    code = "import sys; from dgz.data.archives import fetch; fetch(*sys.argv[1:])"
    part = tmp_path / "a.zip.part"
    with subprocess.Popen([sys.executable, "-c", code, site.url, str(tmp_path / "a.zip")]) as process:
        deadline = time.monotonic() + 30
        while not (part.exists() and part.stat().st_size == 150_000) and time.monotonic() < deadline:
            time.sleep(0.01)
        process.kill()
    site.hold.set()
    assert part.read_bytes() == CONTENT[:150_000]
    assert names(tmp_path) == ["a.zip.part", "a.zip.part.json"]
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert (site.n_sent, site.asked) == (len(CONTENT), [None, "bytes=150000-"])
    assert names(tmp_path) == ["a.zip"]


def give_up_half_way(site: Site, path: Path) -> None:
    """Leave half of the file at ``path``, as a first call that was cut off does."""
    site.drops = [150_000]
    with pytest.raises(DGZError, match=r"150,000 bytes are there: the connection ended at byte 150,000 of 300,000\.$"):
        fetch(site.url, path, n_retries=0)
    assert names(path.parent) == [f"{path.name}.part", f"{path.name}.part.json"]
    site.asked.clear()


def test_a_server_without_ranges_sends_all_of_it_again(site: Site, tmp_path: Path) -> None:
    site.knows_no_range, site.drops = True, [150_000]
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.n_sent == len(CONTENT) + 150_000


def test_a_server_without_ranges_that_always_drops_is_given_up(site: Site, tmp_path: Path) -> None:
    site.knows_no_range, site.drops = True, [150_000] * 100
    with pytest.raises(DGZError, match="ended at byte 150,000 of 300,000"):
        fetch(site.url, tmp_path / "a.zip", n_retries=3)
    assert len(site.asked) == 4
    assert not (tmp_path / "a.zip").exists()


def test_without_a_validator_the_transfer_starts_over(site: Site, tmp_path: Path) -> None:
    site.etag, site.drops = None, [150_000]
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == [None, None]


@pytest.mark.parametrize("knows_no_if_range", [False, True])
def test_a_file_that_changed_meanwhile_is_loaded_afresh(site: Site, tmp_path: Path, knows_no_if_range: bool) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    site.knows_no_if_range = knows_no_if_range
    site.content, site.etag = CONTENT[::-1], '"two"'
    fetch(site.url, tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT[::-1]
    assert site.asked == (["bytes=150000-", None] if knows_no_if_range else ["bytes=150000-"])


def test_a_file_that_changes_at_every_drop_is_given_up(site: Site, tmp_path: Path) -> None:
    versions = iter(range(1000))

    def change() -> None:
        site.etag = f'"{next(versions)}"'

    site.before_answer, site.drops = change, [150_000] * 1000
    with pytest.raises(DGZError, match="could not be loaded"):
        fetch(site.url, tmp_path / "a.zip", n_retries=3)
    assert names(tmp_path) == ["a.zip.part", "a.zip.part.json"]


def test_a_part_of_another_address_is_not_continued(site: Site, tmp_path: Path) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    site.content = CONTENT[::-1]
    fetch(f"{site.url}?mirror", tmp_path / "a.zip")
    assert (tmp_path / "a.zip").read_bytes() == CONTENT[::-1]
    assert site.asked == [None]


@pytest.mark.parametrize("memory", [None, "", "[]", "{}", '{"url": 3}'])
def test_a_part_that_nothing_tells_about_is_not_continued(site: Site, tmp_path: Path, memory: str | None) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    note = tmp_path / "a.zip.part.json"
    note.unlink() if memory is None else note.write_text(memory)
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == [None]


@pytest.mark.parametrize("shift", [1000, -1000])
def test_a_range_from_another_place_is_refused(site: Site, tmp_path: Path, shift: int) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    site.shift = shift
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == ["bytes=150000-", None]


@pytest.mark.parametrize("claims", [300_001, 10, "x"])
def test_a_range_of_a_file_of_another_size_is_refused(site: Site, tmp_path: Path, claims: int | str) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    site.claims = claims
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == ["bytes=150000-", None]


def test_a_range_that_starts_behind_its_own_file_is_refused(site: Site, tmp_path: Path) -> None:
    site.chunked, site.drops, site.claims = True, [150_000], 10  # chunked, so that no size is remembered
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == [None, "bytes=150000-", None]


def test_a_range_of_a_file_of_untold_size_is_taken(site: Site, tmp_path: Path) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    site.claims = "*"
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == ["bytes=150000-"]


def test_a_complete_part_needs_no_request(site: Site, tmp_path: Path) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    (tmp_path / "a.zip.part").write_bytes(CONTENT)
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == []


@pytest.mark.parametrize(("part", "asked"), [(CONTENT, 1), (CONTENT + b"more", 2)])
def test_range_not_satisfiable_ends_a_complete_part_and_restarts_another(
    site: Site, tmp_path: Path, part: bytes, asked: int
) -> None:
    site.chunked = True  # so that no size is remembered
    site.drops = [150_000]
    with pytest.raises(DGZError, match="the connection dropped"):
        fetch(site.url, tmp_path / "a.zip", n_retries=0)
    site.asked.clear()
    (tmp_path / "a.zip.part").write_bytes(part)
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert (tmp_path / "a.zip").read_bytes() == CONTENT
    assert len(site.asked) == asked


def test_a_body_shorter_than_its_length_is_refused(site: Site, tmp_path: Path) -> None:
    site.extra_length = 7
    with pytest.raises(DGZError, match="ended at byte 300,000 of 300,007"):
        fetch(site.url, tmp_path / "a.zip", n_retries=2)
    with pytest.raises(DGZError, match="the server has no byte 300,000"):
        fetch(site.url, tmp_path / "a.zip", n_retries=0)
    assert not (tmp_path / "a.zip").exists()


def test_a_wrong_digest_leaves_neither_file_nor_part(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=f"should have the SHA-256 {'0' * 64}, but it has {SHA256}"):
        fetch(site.url, tmp_path / "a.zip", sha256="0" * 64)
    assert names(tmp_path) == []


def test_a_digest_is_taken_over_what_came_earlier_too(site: Site, tmp_path: Path) -> None:
    give_up_half_way(site, tmp_path / "a.zip")
    (tmp_path / "a.zip.part").write_bytes(b"?" + CONTENT[1:150_000])
    with pytest.raises(DGZError, match="should have the SHA-256"):
        fetch(site.url, tmp_path / "a.zip", sha256=SHA256)
    assert names(tmp_path) == []
    assert fetch(site.url, tmp_path / "a.zip", sha256=SHA256) == SHA256


@pytest.mark.parametrize("sha256", ["", "12", "g" * 64, "0" * 65])
def test_what_is_no_digest_is_refused_before_anything_is_asked(site: Site, tmp_path: Path, sha256: str) -> None:
    with pytest.raises(DGZError, match="64 hexadecimal digits"):
        fetch(site.url, tmp_path / "a.zip", sha256=sha256)
    assert site.asked == []


@pytest.mark.parametrize("status", [404, 403, 416, 204])
def test_a_refusal_is_told_at_once_with_address_and_status(site: Site, tmp_path: Path, status: int) -> None:
    site.statuses = [status] * 9
    with pytest.raises(DGZError, match=f"^{re.escape(site.url)} could not be loaded: the server answered {status} "):
        fetch(site.url, tmp_path / "a.zip")
    assert len(site.asked) == 1
    assert names(tmp_path) == []


def test_a_busy_server_is_asked_again(site: Site, tmp_path: Path) -> None:
    site.statuses = [500, 503, 429]
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert len(site.asked) == 4


def test_a_server_that_stays_busy_is_given_up(site: Site, tmp_path: Path) -> None:
    site.statuses = [503] * 9
    with pytest.raises(DGZError, match=r"the server answered 503 \(Service Unavailable\)"):
        fetch(site.url, tmp_path / "a.zip", n_retries=2)
    assert len(site.asked) == 3


@pytest.mark.parametrize(
    ("scheme", "why"), [("file://", "is not allowed"), ("data:,", "is not allowed"), ("ftp://127.0.0.1", "unknown url")]
)
def test_no_redirect_leads_away_from_http(site: Site, tmp_path: Path, scheme: str, why: str) -> None:
    secret = tmp_path / "secret"
    secret.write_text("secret")
    site.statuses, site.location = [302] * 9, f"{scheme}{secret}"
    with pytest.raises(DGZError, match=f"could not be loaded.*{why}"):
        fetch(site.url, tmp_path / "a.zip")
    assert names(tmp_path) == ["secret"]


def test_a_redirect_within_http_is_followed(site: Site, tmp_path: Path) -> None:
    site.statuses, site.location = [302], f"{site.url}?moved"
    assert fetch(site.url, tmp_path / "a.zip") == SHA256


@pytest.mark.parametrize(
    "url", ["file:///etc/passwd", "ftp://a/b", "xlsa17.zip", "", "http://a b/", "http://a:b/", "http://ü/\n", "http://"]
)
def test_what_is_no_web_address_is_refused(tmp_path: Path, url: str) -> None:
    with pytest.raises(DGZError, match="address"):
        fetch(url, tmp_path / "a.zip")
    assert names(tmp_path) == []


def test_a_host_that_nobody_answers_for_is_told_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(module.time, "sleep", lambda seconds: pytest.fail("waited for a host that is not there"))
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))  # bound but not listening: connections are refused
        with pytest.raises(DGZError, match=r"0 bytes are there: no connection \(.*refused"):
            fetch(f"http://127.0.0.1:{closed.getsockname()[1]}/a.zip", tmp_path / "a.zip")


class FullDisk(io.FileIO):
    """A file on a disk with room for 1,000 bytes more."""

    def write(self, data: Any) -> int:
        if self.tell() + len(data) > 1000:
            super().write(data[: 1000 - self.tell()])
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(data)


@pytest.fixture
def full_disk() -> Iterator[pytest.MonkeyPatch]:
    """A disk on which files grow to 1,000 bytes, until the patch is undone."""
    really = Path.open

    def open_(self: Path, mode: str = "r", *args: Any, **kwargs: Any) -> Any:
        return FullDisk(self, mode) if mode in ("ab", "xb") else really(self, mode, *args, **kwargs)

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Path, "open", open_)
        yield monkeypatch


def test_a_full_disk_leaves_no_file_and_is_not_tried_again(
    site: Site, tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DGZError, match=r"a\.zip could not be written: No space left on device"):
        fetch(site.url, tmp_path / "a.zip")
    assert len(site.asked) == 1
    assert not (tmp_path / "a.zip").exists()


def test_after_a_full_disk_the_transfer_goes_on_where_it_stopped(
    site: Site, tmp_path: Path, full_disk: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DGZError, match="No space left"):
        fetch(site.url, tmp_path / "a.zip")
    full_disk.undo()
    assert fetch(site.url, tmp_path / "a.zip") == SHA256
    assert site.asked == [None, "bytes=1000-"]


def test_a_file_larger_than_the_disk_is_not_begun(site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda place: SimpleNamespace(free=299_999))
    with pytest.raises(DGZError, match=r"needs 300,000 bytes, but only 299,999 are free"):
        fetch(site.url, tmp_path / "a.zip")
    assert not (tmp_path / "a.zip").exists()


# ---- unpack ---------------------------------------------------------------------------------------------------------


def written(tmp_path: Path, packed: bytes) -> Path:
    (tmp_path / "a.zip").write_bytes(packed)
    return tmp_path / "a.zip"


def refuse(tmp_path: Path, packed: bytes, why: str, **limits: Any) -> None:
    """Check that nothing at all comes out of an archive, inside the folder or anywhere near it."""
    place = tmp_path / "place"
    place.mkdir()
    with pytest.raises(DataError, match=why):
        unpack(written(tmp_path, packed), place / "a", **limits)
    assert names(place) == []
    assert names(tmp_path) == ["a.zip", "place"]


def test_an_archive_is_unpacked_with_its_folders(tmp_path: Path) -> None:
    files = unpack(written(tmp_path, zipped(FILES | {"empty/": b""})), tmp_path / "a")
    assert files == [tmp_path / "a" / name for name in FILES]
    assert contents(tmp_path / "a") == FILES
    assert (tmp_path / "a" / "empty").is_dir()
    assert names(tmp_path) == ["a", "a.zip"]


def test_an_empty_folder_may_be_there_but_a_full_one_is_left_alone(tmp_path: Path) -> None:
    archive = written(tmp_path, zipped())
    (tmp_path / "a").mkdir()
    unpack(archive, tmp_path / "a")
    (tmp_path / "a" / "README").write_text("mine")
    with pytest.raises(DGZError, match="exists already and is not an empty folder"):
        unpack(archive, tmp_path / "a")
    assert (tmp_path / "a" / "README").read_text() == "mine"


@pytest.mark.parametrize(
    "name",
    [
        *("../evil", "a/../../evil", "a/..", "..", ".", "./evil", "a/./evil", "/tmp/evil", "//host/evil", "a//evil"),  # noqa: S108
        *("..\\evil", "a\\..\\..\\evil", "\\evil", "C:\\evil", "C:/evil", "C:evil", "a.txt:stream", "a\nb", ".. /evil"),
    ],
)
def test_names_that_lead_out_of_the_folder_are_refused(tmp_path: Path, name: str) -> None:
    refuse(tmp_path, zipped(FILES | {name: b"evil"}), "could lead out of the folder")


def test_a_name_that_hides_its_end_behind_a_nul_is_refused(tmp_path: Path) -> None:
    packed = zipped(FILES | {"evilXhidden": b"evil"}).replace(b"evilXhidden", b"evil\0hidden")
    refuse(tmp_path, packed, "could lead out of the folder")


def test_a_name_of_very_many_folders_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zipped({"a/" * 1000 + "a": b""}), "more than 32 folders deep")


@pytest.mark.parametrize("kind", [stat.S_IFLNK, stat.S_IFIFO, stat.S_IFCHR, stat.S_IFSOCK])
def test_links_and_special_files_are_refused(tmp_path: Path, kind: int) -> None:
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w") as archive:
        member = zipfile.ZipInfo("link")
        member.external_attr = (kind | 0o777) << 16
        archive.writestr(member, "/etc/passwd")
    refuse(tmp_path, packed.getvalue(), "'link' is a link or a special file")


def test_an_encrypted_member_is_refused(tmp_path: Path) -> None:
    packed = bytearray(zipped({"secret": b"secret"}))
    packed[packed.index(b"PK\1\2") + 8] |= 1
    refuse(tmp_path, bytes(packed), "'secret' is encrypted")


@pytest.mark.parametrize("method", [zipfile.ZIP_BZIP2, zipfile.ZIP_LZMA])
def test_methods_that_can_fill_the_memory_are_refused(tmp_path: Path, method: int) -> None:
    refuse(tmp_path, zipped(method=method), "neither stored nor deflated")


@pytest.mark.parametrize(
    "members",
    [
        ["data/x", "data/X"],
        ["STRASSE", "straße"],
        [unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")],
        ["data", "data/x"],
        ["data/x", "other", "DATA"],
        ["data/", "data"],
        ["data/", "Data/", "x"],
    ],
)
def test_members_on_top_of_each_other_are_refused(tmp_path: Path, members: list[str]) -> None:
    refuse(tmp_path, zipped(dict.fromkeys(members, b"")), "two of its members would be")


def test_a_name_given_twice_is_refused(tmp_path: Path) -> None:
    packed = zipped({"README": b"good", "READMF": b"evil"}).replace(b"READMF", b"README")
    refuse(tmp_path, packed, "two of its members would be 'readme'")


def test_folders_that_are_listed_and_used_are_no_clash(tmp_path: Path) -> None:
    files = {"data/x": b"x", "data-2/x": b"y", "data.txt": b"z"}
    unpack(written(tmp_path, zipped({"data/": b"", "data-2/": b""} | files)), tmp_path / "a")
    assert contents(tmp_path / "a") == files


def test_a_bomb_is_refused_by_its_ratio(tmp_path: Path) -> None:
    refuse(tmp_path, zipped({"zeros": bytes(65 << 20)}), r"take 68,157,440 bytes, more than 200 times its own size")


def test_the_ratio_is_a_parameter(tmp_path: Path) -> None:
    files = {"zeros": bytes(65 << 20)}
    assert unpack(written(tmp_path, zipped(files)), tmp_path / "a", max_ratio=2000)[0].read_bytes() == files["zeros"]


def test_an_archive_over_the_allowed_size_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zipped(), "bytes, more than the 100 allowed", max_bytes=100)


def test_an_archive_of_too_many_members_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_MEMBERS", 2)
    refuse(tmp_path, zipped(), "it has 3 members, more than 2")


def declaring(packed: bytes, size: int, crc: int | None = None) -> bytes:
    """Make the only member of an archive declare another size, in both of its headers."""
    lying = bytearray(packed)
    for signature, at in ((b"PK\3\4", 14), (b"PK\1\2", 16)):
        start = lying.index(signature) + at
        if crc is not None:
            lying[start : start + 4] = struct.pack("<I", crc)
        lying[start + 8 : start + 12] = struct.pack("<I", size)
    return bytes(lying)


def test_a_bomb_that_declares_little_is_stopped_at_what_it_declares(tmp_path: Path) -> None:
    zeros = bytes(65 << 20)
    refuse(tmp_path, declaring(zipped({"zeros": zeros}), 10), "CRC")


def test_a_member_that_yields_more_than_it_declares_is_stopped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Endless(io.BytesIO):  # the zipfile of today stops by itself; ours must hold if another one does not
        def read(self, n: int | None = -1) -> bytes:
            return bytes(n or 0)

    packed = zipped()
    monkeypatch.setattr(zipfile.ZipFile, "open", lambda *_: Endless())
    refuse(tmp_path, packed, "'data/AWA2/res101.mat' has not the 5,000 bytes it says")


@pytest.mark.parametrize("method", [zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED])
def test_a_member_that_yields_less_than_it_declares_is_refused(tmp_path: Path, method: int) -> None:
    refuse(tmp_path, declaring(zipped({"x": b"0123456789"}, method), 5000), "has not the 5,000 bytes it says|early|CRC")


def test_a_wrong_checksum_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zipped(method=zipfile.ZIP_STORED).replace(b"read me", b"read Me"), "Bad CRC-32 for file 'README'")


@pytest.mark.parametrize("n_bytes", [0, 1, 100, 2000, -1, -22])
def test_a_truncated_archive_is_refused(tmp_path: Path, n_bytes: int) -> None:
    refuse(tmp_path, zipped()[:n_bytes], "is no whole zip archive")


def test_a_directory_whose_entry_swallows_the_next_one_is_refused(tmp_path: Path) -> None:
    packed = bytearray(zipped())
    packed[packed.rindex(b"PK\1\2") - len("data/AWA2/classes.txt") - 46 + 32] += 52  # the comment's length
    with zipfile.ZipFile(io.BytesIO(packed)) as archive:
        assert len(archive.namelist()) == 2
    refuse(tmp_path, bytes(packed), "its directory does not match its content")


def test_an_archive_that_breaks_off_behind_an_inner_one_is_not_taken_for_it(tmp_path: Path) -> None:
    inner = zipped()
    packed = zipped({"inner.zip": inner, "README": b"read me"}, zipfile.ZIP_STORED)
    cut = packed[: packed.index(inner) + len(inner)]
    assert zipfile.is_zipfile(io.BytesIO(cut))
    refuse(tmp_path, cut, "its directory does not match its content")


def test_an_archive_with_a_comment_is_unpacked(tmp_path: Path) -> None:
    packed = io.BytesIO(zipped())
    with zipfile.ZipFile(packed, "a") as archive:
        archive.comment = b"made by the authors"
    unpack(written(tmp_path, packed.getvalue()), tmp_path / "a")
    assert contents(tmp_path / "a") == FILES


def test_an_archive_without_files_is_refused(tmp_path: Path) -> None:
    refuse(tmp_path, zipped({}), "it holds no files")


def test_a_missing_archive_is_told_in_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(DGZError, match=r"a\.zip could not be unpacked into .*: No such file"):
        unpack(tmp_path / "a.zip", tmp_path / "a")


def check_whole_or_nothing(packed: bytes) -> None:
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        archive = written(place, packed)
        try:
            unpack(archive, place / "a")
        except DGZError:
            assert names(place) == ["a.zip"]
        else:
            assert contents(place / "a") == FILES


PACKED = {method: zipped(method=method) for method in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)}


@settings(max_examples=200, deadline=None, database=None)
@given(st.sampled_from(sorted(PACKED)), st.data())
def test_a_damaged_archive_gives_its_true_files_or_none(method: int, data: st.DataObject) -> None:
    packed = bytearray(PACKED[method])
    # Half of the blows fall on the directory at the end, where few bytes steer everything.
    position = st.integers(0, len(packed) - 1) | st.integers(len(packed) - 300, len(packed) - 1)
    for place in data.draw(st.lists(position, min_size=1, max_size=3)):
        packed[place] ^= data.draw(st.integers(1, 255))
    check_whole_or_nothing(bytes(packed))


@settings(max_examples=60, deadline=None, database=None)
@given(st.integers(0, len(PACKED[zipfile.ZIP_DEFLATED]) - 1))
def test_an_archive_cut_anywhere_gives_nothing(n_bytes: int) -> None:
    check_whole_or_nothing(PACKED[zipfile.ZIP_DEFLATED][:n_bytes])


def test_every_single_byte_of_the_directory_may_be_zeroed(tmp_path: Path) -> None:
    packed = PACKED[zipfile.ZIP_DEFLATED]
    for place in range(packed.index(b"PK\1\2"), len(packed)):
        check_whole_or_nothing(packed[:place] + b"\0" + packed[place + 1 :])


def test_a_full_disk_leaves_no_folder(tmp_path: Path, full_disk: pytest.MonkeyPatch) -> None:
    archive = tmp_path / "a.zip"
    archive.write_bytes(zipped())
    with pytest.raises(DGZError, match=r"a\.zip could not be unpacked into .*: No space left on device"):
        unpack(archive, tmp_path / "a")
    assert names(tmp_path) == ["a.zip"]


def test_an_archive_larger_than_the_disk_is_not_begun(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module.shutil, "disk_usage", lambda place: SimpleNamespace(free=8606))
    with pytest.raises(DGZError, match="needs 8,607 bytes, but only 8,606 are free"):
        unpack(written(tmp_path, zipped()), tmp_path / "not" / "yet")
    assert names(tmp_path) == ["a.zip"]


# ---- download -------------------------------------------------------------------------------------------------------


@pytest.fixture
def archive_site(site: Site) -> Site:
    site.content = zipped()
    return site


def test_a_download_gives_archive_files_and_record(archive_site: Site, tmp_path: Path) -> None:
    archive_site.drops = [1000]
    folder = download("xlsa17", tmp_path / "new", url=archive_site.url)
    assert folder == tmp_path / "new" / "xlsa17"
    assert contents(folder) == FILES
    assert (tmp_path / "new" / "xlsa17.zip").read_bytes() == archive_site.content
    assert json.loads((tmp_path / "new" / "xlsa17.download.json").read_text()) == {
        "url": archive_site.url,
        "sha256": hashlib.sha256(archive_site.content).hexdigest(),
        "bytes": len(archive_site.content),
        "verified": False,
    }
    assert names(tmp_path / "new") == ["xlsa17", "xlsa17.download.json", "xlsa17.zip"]


def test_the_default_address_is_the_one_of_the_archive(
    archive_site: Site, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "ARCHIVES", {"xlsa17": archive_site.url})
    assert contents(download(to=tmp_path)) == FILES


def again(site: Site, to: Path, **options: str) -> bool:
    """Download, forget the unpacked files, and give what the record says of a second download."""
    folder = download(to=to, url=site.url)
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    site.asked.clear()
    assert contents(download(to=to, **({"url": site.url} | options))) == FILES
    return bool(json.loads((to / "xlsa17.download.json").read_text())["verified"])


def test_an_archive_that_is_there_is_not_loaded_again(archive_site: Site, tmp_path: Path) -> None:
    assert again(archive_site, tmp_path) is False
    assert archive_site.asked == []


def test_an_archive_that_is_there_can_be_verified_later_and_stays_so(archive_site: Site, tmp_path: Path) -> None:
    assert again(archive_site, tmp_path, sha256=hashlib.sha256(archive_site.content).hexdigest()) is True
    (tmp_path / "xlsa17").rename(tmp_path / "elsewhere")
    download(to=tmp_path, url=archive_site.url)
    assert archive_site.asked == []
    assert json.loads((tmp_path / "xlsa17.download.json").read_text())["verified"] is True


def test_an_archive_from_another_address_is_loaded_again(archive_site: Site, tmp_path: Path) -> None:
    assert again(archive_site, tmp_path, url=f"{archive_site.url}?mirror") is False
    assert archive_site.asked == [None]


@pytest.mark.parametrize("content", [b"", b"short", zipped()[:-1] + b"?"])
def test_an_archive_that_changed_on_the_disk_is_loaded_again(
    archive_site: Site, tmp_path: Path, content: bytes
) -> None:
    download(to=tmp_path, url=archive_site.url).rename(tmp_path / "elsewhere")
    (tmp_path / "xlsa17.zip").write_bytes(content)
    assert contents(download(to=tmp_path, url=archive_site.url)) == FILES
    assert archive_site.asked == [None, None]


def test_an_archive_that_is_there_with_another_digest_than_asked_is_loaded_again(
    archive_site: Site, tmp_path: Path
) -> None:
    download(to=tmp_path, url=archive_site.url).rename(tmp_path / "elsewhere")
    archive_site.content, archive_site.etag = zipped({"README": b"second edition"}), '"two"'
    digest = hashlib.sha256(archive_site.content).hexdigest()
    assert contents(download(to=tmp_path, url=archive_site.url, sha256=digest)) == {"README": b"second edition"}
    assert json.loads((tmp_path / "xlsa17.download.json").read_text())["sha256"] == digest


def test_a_wrong_digest_unpacks_nothing(archive_site: Site, tmp_path: Path) -> None:
    with pytest.raises(DGZError, match="should have the SHA-256"):
        download(to=tmp_path, url=archive_site.url, sha256="0" * 64)
    assert names(tmp_path) == []


def test_a_folder_with_something_in_it_is_told_before_anything_is_loaded(archive_site: Site, tmp_path: Path) -> None:
    (tmp_path / "xlsa17").mkdir()
    (tmp_path / "xlsa17" / "mine").write_text("mine")
    with pytest.raises(DGZError, match="xlsa17 exists already"):
        download(to=tmp_path, url=archive_site.url)
    assert archive_site.asked == []
    assert contents(tmp_path / "xlsa17") == {"mine": b"mine"}


def test_a_broken_archive_says_how_to_begin_anew(site: Site, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"is no whole zip archive: .* Delete .*xlsa17\.zip to load it anew"):
        download(to=tmp_path, url=site.url)
    assert names(tmp_path) == ["xlsa17.download.json", "xlsa17.zip"]


def test_a_place_that_is_a_file_is_told_in_a_sentence(site: Site, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(DGZError, match="file"):
        download(to=tmp_path / "file", url=site.url)


@pytest.mark.parametrize(("name", "hint"), [("xlsa71", "did you mean 'xlsa17'"), ("imagenet", "one of xlsa17, found")])
def test_an_unknown_archive_names_the_known_ones(tmp_path: Path, name: str, hint: str) -> None:
    with pytest.raises(DGZError, match=hint):
        download(name, tmp_path)
    assert names(tmp_path) == []
