import errno
import json
import os
import resource
import signal
import stat
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from conftest import ROOT
from dgz.errors import DataError, DGZError
from dgz.files import locked, read_json, write_folder, write_json, write_tensors, write_whole


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


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(content=st.dictionaries(st.text(max_size=5), VALUES, max_size=5))
def test_compact_json_has_a_line_for_each_entry(
    tmp_path_factory: pytest.TempPathFactory, content: dict[str, Any]
) -> None:
    path = tmp_path_factory.getbasetemp() / "compact.json"
    write_json(path, content, compact=True)
    assert read_json(path) == content
    first, *entries, last = path.read_bytes().removesuffix(b"\n").split(b"\n")
    assert (first, last) == (b"{", b"}")
    lines = [entry for entry in entries if entry]  # one without entries has an empty line
    assert [json.loads(b"{" + line.removesuffix(b",") + b"}") for line in lines] == [
        {key: value} for key, value in content.items()
    ]


@pytest.mark.parametrize("value", [float("nan"), [float("inf")], {"deep": [float("-inf")]}])
def test_compact_json_has_no_nan_either(tmp_path: Path, value: Any) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"fine": 1, "odd": value}, compact=True)
    assert list(tmp_path.iterdir()) == []


# --- Locks.
def test_a_lock_has_one_holder_and_leaves_no_file(tmp_path: Path) -> None:
    path = tmp_path / "locks" / "a"
    with locked(path, wait=False) as first:
        with locked(path, wait=False) as second, locked(tmp_path / "locks" / "b", wait=False) as another:
            assert (first, second, another) == (True, False, True)
        with locked(path, wait=False) as third:  # who was refused has not let go of what is not theirs
            assert not third
        assert path.exists()
    assert list((tmp_path / "locks").iterdir()) == []
    with locked(path, wait=True) as again:
        assert again


def test_an_error_lets_go_of_a_lock(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError), locked(tmp_path / "a", wait=False):
        raise RuntimeError
    assert list(tmp_path.iterdir()) == []
    with locked(tmp_path / "a", wait=False) as is_held:
        assert is_held


class Waiting(threading.Thread):
    """Waits for a lock, says when it has it, and lets go of it when told."""

    def __init__(self, path: Path) -> None:
        super().__init__(daemon=True)
        self.path, self.has_it, self.let_go = path, threading.Event(), threading.Event()

    def run(self) -> None:
        with locked(self.path, wait=True) as is_held:
            assert is_held
            self.has_it.set()
            self.let_go.wait(30)


def test_who_waits_for_a_lock_gets_it_and_keeps_others_out(tmp_path: Path) -> None:
    path = tmp_path / "a"
    waiting = Waiting(path)
    with locked(path, wait=False):
        waiting.start()
        assert not waiting.has_it.wait(0.2)
    assert waiting.has_it.wait(30)
    # The first holder has removed the file that was waited for: a new one must not be a lock of its own.
    with locked(path, wait=False) as is_held:
        assert not is_held
    waiting.let_go.set()
    waiting.join(30)
    assert list(tmp_path.iterdir()) == []


def test_of_many_that_want_a_lock_one_at_a_time_has_it(tmp_path: Path) -> None:
    inside, most = [0], [0]

    def work() -> None:
        for _ in range(20):
            with locked(tmp_path / "locks" / "a", wait=True):
                inside[0] += 1
                most[0] = max(most[0], inside[0])
                inside[0] -= 1
            try:
                (tmp_path / "locks").rmdir()  # as whoever is done does
            except OSError:
                continue

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert (inside, most) == ([0], [1])
    assert not any(thread.is_alive() for thread in threads)


HOLDER = """
import sys, time
from dgz.files import locked
with locked(sys.argv[1], wait=False) as is_held:
    print(is_held, flush=True)
    time.sleep(60)
"""


def test_a_process_that_is_killed_lets_go_of_its_lock(tmp_path: Path) -> None:
    path = tmp_path / "a"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, env={**os.environ, "PYTHONPATH": str(ROOT / "src")}
    ) as holder:
        assert holder.stdout is not None
        assert holder.stdout.readline() == "True\n"
        with locked(path, wait=False) as is_held:
            assert not is_held
        waiting = Waiting(path)
        waiting.start()
        assert not waiting.has_it.wait(0.2)
        holder.kill()
    assert holder.returncode == -signal.SIGKILL
    assert waiting.has_it.wait(30)
    waiting.let_go.set()
    waiting.join(30)
    assert list(tmp_path.iterdir()) == []  # the dead one's file too


def test_a_folder_that_vanishes_under_a_lock_is_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, mkdir, times = tmp_path / "locks" / "a", Path.mkdir, [3]

    def vanish(self: Path, *arguments: Any, **options: Any) -> None:
        mkdir(self, *arguments, **options)
        if times[0]:
            times[0] -= 1
            self.rmdir()

    monkeypatch.setattr(Path, "mkdir", vanish)
    with locked(path, wait=False) as is_held:
        assert is_held
        assert path.exists()


def test_a_place_that_can_hold_no_lock_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(FileExistsError), locked(tmp_path / "file" / "a", wait=False):
        pytest.fail("the block must not run")
    with pytest.raises(IsADirectoryError), locked(tmp_path, wait=False):
        pytest.fail("the block must not run")


def test_where_there_are_no_locks_everyone_gets_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "fcntl", None)
    with locked(tmp_path / "a", wait=False) as first, locked(tmp_path / "a", wait=False) as second:
        assert first
        assert second
    assert list(tmp_path.iterdir()) == []


def test_tensors_may_be_read_by_whoever_may_read_a_new_file(tmp_path: Path) -> None:
    write_tensors(tmp_path / "a.safetensors", {"x": np.arange(3.0)}, "The model")
    write_json(tmp_path / "a.json", {})
    modes = {path.suffix: path.stat().st_mode for path in tmp_path.iterdir()}
    assert modes[".safetensors"] == modes[".json"]
    with pytest.raises(DGZError, match=r"The model could not be written: .*"):
        write_tensors(tmp_path / "no" / "a.safetensors", {"x": np.arange(3.0)}, "The model")
