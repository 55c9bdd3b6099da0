import errno
import json
import os
import resource
import stat
from pathlib import Path

import pytest

from dgz.errors import DataError, DGZError
from dgz.files import read_json, write_folder, write_json, write_whole


def test_a_failed_write_keeps_the_old_file_and_leaves_nothing_else(tmp_path: Path) -> None:
    target = tmp_path / "a.json"
    write_json(target, {"old": True})
    with pytest.raises(RuntimeError), write_whole(target) as file:
        file.write(b"half of ")
        raise RuntimeError
    assert read_json(target) == {"old": True}
    assert [path.name for path in tmp_path.iterdir()] == ["a.json"]


def test_a_file_has_the_mode_that_open_would_give_it(tmp_path: Path) -> None:
    old = os.umask(0o027)
    try:
        write_json(tmp_path / "a.json", [])
    finally:
        os.umask(old)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o640


def test_a_full_disk_leaves_no_file(tmp_path: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, hard))
    try:
        with pytest.raises(OSError, match="large") as caught:
            write_json(tmp_path / "a.json", ["x" * 5000])
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert caught.value.errno == errno.EFBIG
    assert list(tmp_path.iterdir()) == []


def test_nan_is_no_json(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", float("nan"))
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("content", [b"", b"{", b"\xff\xfe", b"[" * 100_000])
def test_broken_json_is_named(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "a.json").write_bytes(content)
    with pytest.raises(DataError, match=r"a\.json is not valid JSON"):
        read_json(tmp_path / "a.json")


def test_a_folder_appears_whole_or_not_at_all(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), write_folder(tmp_path / "new") as folder:
        (folder / "part").write_text("1")
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with write_folder(tmp_path / "new") as folder:
        (folder / "part").write_text("1")
        assert not (tmp_path / "new").exists()
    assert [path.name for path in tmp_path.rglob("*")] == ["new", "part"]


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    target = tmp_path / "there"
    with write_folder(target) as folder:
        (folder / "old").touch()
    with pytest.raises(DGZError, match="exists already"), write_folder(target):
        pytest.fail("the block must not run")
    with pytest.raises(RuntimeError), write_folder(target, overwrite=True) as folder:
        raise RuntimeError
    assert [path.name for path in target.iterdir()] == ["old"]
    with write_folder(target, overwrite=True) as folder:
        (folder / "new").touch()
    assert [path.name for path in target.iterdir()] == ["new"]
    assert [path.name for path in tmp_path.iterdir()] == ["there"]


def test_json_keeps_text_readable(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"λ": "Vögel"})
    assert "Vögel" in (tmp_path / "a.json").read_text()
    assert json.loads((tmp_path / "a.json").read_text()) == {"λ": "Vögel"}
