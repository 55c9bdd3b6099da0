"""The command line as a person meets it: real processes, their output, errors and exit status."""

import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from conftest import ROOT


def dgz(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line from the source tree, without an installed package."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "dgz", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"},
    )


@pytest.fixture
def samples(tmp_path: Path) -> Path:
    """A folder with samples of two seen classes and one unseen, and their class table."""
    rng = np.random.default_rng(0)
    np.savez(tmp_path / "x.npz", X=rng.random((30, 4)), y=["ant"] * 10 + ["bee"] * 10 + ["cat"] * 10)
    (tmp_path / "classes.csv").write_text("name,split,a,b\nant,seen,1,0\nbee,seen,0,1\ncat,unseen,1,1\n")
    return tmp_path


def test_help_reads_like_a_table_of_contents() -> None:
    answer = dgz("--help")
    assert answer.returncode == 0
    for verb in ("demo", "data"):
        assert f"│ {verb}" in answer.stdout
    for verb in ("info", "check", "import", "download"):
        assert f"│ {verb}" in dgz("data", "--help").stdout


def test_the_version_is_printed() -> None:
    import dgz as package

    assert dgz("--version").stdout == f"dgz {package.__version__}\n"


def test_the_demo_trains_prints_a_table_and_writes_a_report(tmp_path: Path) -> None:
    answer = dgz("demo", "--out", tmp_path / "demo")
    assert answer.returncode == 0, answer.stderr
    assert all(heading in answer.stdout for heading in (" U ", " S ", " H ", " T1 "))
    assert f"Report: {tmp_path / 'demo' / 'index.html'}" in answer.stdout
    record = json.loads((tmp_path / "demo" / "record.json").read_text())
    assert record["scores"]["h"] > 0.75
    assert f"{100 * record['scores']['h']:.1f}" in answer.stdout
    assert {"index.html", "report.md", "record.json"} == {path.name for path in (tmp_path / "demo").iterdir()}


def test_import_check_and_info_work_together(samples: Path) -> None:
    made = dgz(
        "data", "import", samples / "x.npz", "--classes", samples / "classes.csv", "--out", samples / "b", "--json"
    )
    assert made.returncode == 0, made.stderr
    facts = json.loads(made.stdout)["facts"]
    assert facts["classes"] == {"seen": 2, "unseen": 1}
    assert facts["rows"] == {"train": 16, "test_seen": 4, "test_unseen": 10}
    info = dgz("data", "info", samples / "b", "--json")
    assert json.loads(info.stdout)["facts"] == facts
    checked = dgz("data", "check", samples / "b")
    assert (checked.returncode, "No problems, no warnings." in checked.stdout) == (0, True)
    assert "16 train, 4 test seen, 10 test unseen" in checked.stdout


def test_check_exits_with_1_and_says_what_is_wrong(samples: Path) -> None:
    dgz("data", "import", samples / "x.npz", "--classes", samples / "classes.csv", "--out", samples / "b")
    arrays = samples / "b" / "arrays.safetensors"
    arrays.write_bytes(arrays.read_bytes()[:-7])
    for verb in ("check", "info"):
        answer = dgz("data", verb, samples / "b")
        assert answer.returncode == 1
        assert answer.stdout.startswith(f"problem: {arrays} cannot be read: ")
        assert answer.stderr == ""
    problems = json.loads(dgz("data", "check", samples / "b", "--json").stdout)["problems"]
    assert len(problems) == 1


def test_strict_makes_warnings_count(samples: Path) -> None:
    (samples / "classes.csv").write_text("name,split,a,b\nant,seen,100,0\nbee,seen,0,1\ncat,unseen,1,1\n")
    dgz("data", "import", samples / "x.npz", "--classes", samples / "classes.csv", "--out", samples / "b")
    assert dgz("data", "check", samples / "b").returncode == 0
    answer = dgz("data", "check", samples / "b", "--strict")
    assert answer.returncode == 1
    assert "warning: Norms of class vectors run from 1 to 100" in answer.stdout


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["data", "info", "nowhere"], "nowhere is neither a folder nor the name of an embedded data set (numbers)."),
        (["data", "import", "x.npz", "--classes", "none.csv", "--out", "b"], "none.csv: No such file or directory."),
        (
            ["data", "import", "x.npz", "--classes", "classes.csv", "--out", "."],
            ". exists already; choose another place",
        ),
        (["data", "import", "y.txt", "--classes", "classes.csv", "--out", "b"], "y.txt must end in .npy"),
        (["data", "download", "xlsa18"], "There is no archive 'xlsa18'; did you mean 'xlsa17'?"),
        (["demo", "--out", "/dev/null/x"], "/dev/null/x: Not a directory."),
    ],
)
def test_an_error_is_one_sentence_and_status_2(samples: Path, arguments: list[str], sentence: str) -> None:
    answer = dgz(*arguments, cwd=samples)
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: ")
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (samples / "b").exists()


def test_debug_shows_the_traceback(samples: Path) -> None:
    answer = dgz("--debug", "data", "info", "nowhere", cwd=samples)
    assert answer.returncode == 1
    assert "Traceback" in answer.stderr


def test_a_full_disk_during_import_loses_nothing(samples: Path) -> None:
    script = (
        "import resource, sys; resource.setrlimit(resource.RLIMIT_FSIZE, (300, 300));"
        "sys.argv = ['dgz', 'data', 'import', 'x.npz', '--classes', 'classes.csv', '--out', 'b'];"
        "from dgz.cli import main; main()"
    )
    before = sorted(path.name for path in samples.iterdir())
    answer = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=samples, timeout=60,
        env={**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1"},
    )  # fmt: skip
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: ")
    assert sorted(path.name for path in samples.iterdir()) == before


@pytest.mark.data
def test_check_finds_the_known_counts_and_leak_of_cub(data_root: Path) -> None:
    answer = dgz("data", "check", data_root / "CUB", "--features", "res50", "--semantics", "sent")
    assert answer.returncode == 0
    assert "7,057 train, 1,764 test seen, 2,967 test unseen" in answer.stdout
    assert "150 seen, 50 unseen" in answer.stdout
    assert "warning: 1,173 rows of train_loc are test rows" in answer.stdout
    assert "warning: 591 rows of val_loc are test rows" in answer.stdout


@pytest.mark.data
def test_photo_attributes_import_from_their_csv(data_root: Path, tmp_path: Path) -> None:
    table = data_root / "CUB-photos" / "class_attributes.csv"
    names = [line.split(",")[0] for line in table.read_text().splitlines()[1:] if ",seen," in line]
    np.savez(tmp_path / "x.npz", X=np.random.default_rng(0).random((len(names) * 5, 8)), y=names * 5)
    answer = dgz("data", "import", tmp_path / "x.npz", "--classes", table, "--out", tmp_path / "b")
    assert answer.returncode == 0, answer.stderr
    assert "40 seen, 10 unseen" in answer.stdout
