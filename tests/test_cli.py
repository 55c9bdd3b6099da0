"""The command line as a person meets it: real processes, their output, errors and exit status."""

import contextlib
import csv
import json
import os
import pty
import re
import shutil
import subprocess
import sys
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from sklearn.base import clone

from conftest import ROOT
from dgz.cli import main
from dgz.data import GZSLData, load_bundle, make_synthetic, save_bundle
from dgz.model import DGZ
from dgz.paper import Store, load_spec
from dgz.paper.spec import parse_spec
from dgz.records import read_record

# One thread: tests run side by side already, and tiny nets gain nothing from more.
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT / "src"), "NO_COLOR": "1", "OMP_NUM_THREADS": "1"}
# A net that is trained in a moment.
NARROW = ("--device", "cpu", "--set", "d_hidden=16", "--set", "learning_rate=0.003")
TINY = (*NARROW, "--set", "generator.hidden=[8]")


def dgz(*arguments: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    """Run the command line from the source tree, without an installed package."""
    return subprocess.run(
        [sys.executable, "-W", "error", "-m", "dgz", *map(str, arguments)],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=120,
        env=ENVIRONMENT,
    )


def as_recorded(text: str) -> Any:
    """Scores as JSON, with the digits that a record has."""
    return json.loads(text, parse_float=lambda number: round(float(number), 6))


class Inside:
    """The command line inside this process, where torch need not be loaded anew for each command."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> subprocess.CompletedProcess[str]:
        self.monkeypatch.setattr(sys, "argv", ["dgz", *map(str, arguments)])
        with pytest.raises(SystemExit) as end:
            main()
        code = end.value.code
        return subprocess.CompletedProcess(sys.argv, code if isinstance(code, int) else 0, *self.capsys.readouterr())


@pytest.fixture
def inside(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Inside:
    monkeypatch.setenv("NO_COLOR", "1")
    return Inside(monkeypatch, capsys)


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
    for verb in (
        "demo",
        "train",
        "sweep",
        "evaluate",
        "predict",
        "add-class",
        "export",
        "serve",
        "reproduce",
        "report",
        "bench",
        "data",
    ):
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
    expected = {"index.html", "report.md", "record.json", "config.json", "model"}
    assert {path.name for path in (tmp_path / "demo").iterdir()} == expected


def test_the_demo_replaces_its_own_folder_and_no_other(
    inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    quick = DGZ.without_generator(n_epochs=1, d_hidden=8, generator__n_epochs=1)
    monkeypatch.setattr(DGZ, "without_generator", lambda **settings: clone(quick).set_params(**settings))
    for _ in range(2):
        assert json.loads(inside("demo", "--json").stdout)["report"] == "runs/demo/index.html"
    Path("runs/demo").rename("runs/other")
    refused = inside("demo", "--out", "runs/other")
    assert (refused.returncode, "runs/other holds a finished run" in refused.stderr) == (2, True)
    assert inside("demo", "--out", "runs/other", "--overwrite").returncode == 0


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
        (["data", "download", "xlsa18"], "archive must be one of xlsa17, found 'xlsa18'; did you mean 'xlsa17'?"),
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
        [sys.executable, "-c", script], capture_output=True, text=True, cwd=samples, timeout=60, env=ENVIRONMENT
    )
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: ")
    assert sorted(path.name for path in samples.iterdir()) == before


# --- Training and using a model.
@pytest.fixture(scope="module")
def bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small data set on disk."""
    folder = tmp_path_factory.mktemp("data") / "small"
    save_bundle(make_synthetic(10, 2, n_attributes=6, n_features=12, n_samples=200), folder)
    return folder


@pytest.fixture(scope="module")
def data(bundle: Path) -> GZSLData:
    return load_bundle(bundle)


@pytest.fixture(scope="module")
def trained(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A finished run, and what the command that made it said."""
    folder = tmp_path_factory.mktemp("runs") / "run"
    short = ("--set", "n_epochs=5", "--set", "generator.n_epochs=4")
    return folder, dgz("train", bundle, "--out", folder, "--without-generator", *TINY, *short, "--seed", 3)


def cells(answer: subprocess.CompletedProcess[str]) -> list[list[str]]:
    """The rows of all tables that were printed."""
    tables = re.findall(r"^ ─+ *\n((?: \S.*\n)+)", answer.stdout, re.MULTILINE)
    return [re.split(r"\s{2,}", row.strip()) for table in tables for row in table.splitlines()]


def test_training_prints_both_selection_rules_and_keeps_everything(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, answer = trained
    assert answer.returncode == 0, answer.stderr
    record = json.loads((folder / "record.json").read_text())
    assert record["seed"] == 3
    assert record["params"]["generator"]["hidden"] == [8]
    rows = cells(answer)
    keys = ("acc_unseen", "acc_seen", "h", "acc_zsl")
    ours, oracle = rows
    assert ours[2:6] == [f"{100 * record['scores'][key]:.1f}" for key in keys]
    assert oracle[2:6] == [f"{100 * record['oracle'][key]:.1f}" for key in keys]
    assert (ours[7], oracle[7]) == ("last", "oracle (best of 5)")
    for what, name in (("Model", "model"), ("Record", "record.json"), ("Report", "index.html")):
        assert f"{what}: {folder / name}\n" in answer.stdout
        assert (folder / name).exists()
    assert not (folder / "checkpoints").exists()
    assert "dgz train " in (folder / "report.md").read_text()


def test_evaluating_a_run_gives_its_recorded_scores(
    trained: tuple[Path, subprocess.CompletedProcess[str]], bundle: Path, inside: Inside
) -> None:
    folder, _ = trained
    scores = json.loads((folder / "record.json").read_text())["scores"]
    for place in (folder, folder / "model"):
        assert as_recorded(inside("evaluate", place, bundle, "--json").stdout) == scores
    ((*_, u, s, h, t1, ausuc),) = cells(inside("evaluate", folder, bundle))
    keys = ("acc_unseen", "acc_seen", "h", "acc_zsl", "ausuc")
    assert [u, s, h, t1, ausuc] == [f"{100 * scores[key]:.1f}" for key in keys]
    favoured = json.loads(inside("evaluate", folder, bundle, "--seen-penalty", 5, "--json").stdout)
    assert (favoured["acc_seen"], favoured["acc_unseen"]) == (0, scores["acc_zsl"])


def test_predictions_are_a_table_with_a_row_per_sample(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
    bundle: Path,
    data: GZSLData,
    inside: Inside,
    tmp_path: Path,
) -> None:
    folder, _ = trained
    lines = inside("predict", folder, bundle).stdout.splitlines()
    assert lines[0] == "row,class,probability"
    rows = list(csv.reader(lines[1:]))
    n_seen = len(data.y_test_seen)
    assert [row[0] for row in rows] == [str(i) for i in range(n_seen + len(data.y_test_unseen))]
    per_class = json.loads((folder / "record.json").read_text())["scores"]["per_class"]
    right = [row[1] == data.class_names[i] for row, i in zip(rows, data.y_test_seen, strict=False)]
    assert np.mean(right) == pytest.approx(np.mean([per_class[str(i)] for i in data.seen]))  # classes of equal size

    # The same rows from a file, whose labels say nothing here.
    np.savez(tmp_path / "x.npz", X=data.x_test_seen, y=["anything"] * n_seen)
    out = tmp_path / "out.csv"
    assert "out.csv, 32 rows" in inside("predict", folder, tmp_path / "x.npz", "--out", out, "--top", 3).stdout
    header, *table = out.read_text().splitlines()
    assert header == "row,class,probability,class_2,probability_2,class_3,probability_3"
    assert [line.split(",")[:3] for line in table] == rows[:n_seen]
    answers = json.loads(inside("predict", folder, tmp_path / "x.npz", "--unseen-only", "--top", 9, "--json").stdout)
    unseen = {data.class_names[i] for i in data.unseen}
    assert all({one["class"] for one in answer} == unseen for answer in answers)
    assert all(sum(one["probability"] for one in answer) == pytest.approx(1, rel=1e-5) for answer in answers)


def test_a_new_class_is_added_from_its_vector_and_then_predicted(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
    bundle: Path,
    data: GZSLData,
    inside: Inside,
    tmp_path: Path,
) -> None:
    folder, _ = trained
    before = {path.name: path.read_bytes() for path in (folder / "model").iterdir()}
    # A class with the vector of a seen one, and one far from all others.
    vectors = (data.attributes[data.seen[0]], np.linspace(3, -3, 6))
    cells = [",".join(map(str, vector)) for vector in vectors]
    new = tmp_path / "new.csv"
    new.write_text(f"name,split,a,b,c,d,e,f\ntwin,unseen,{cells[0]}\nodd one,unseen,{cells[1]}\n")

    refused = inside("add-class", folder, "--classes", new)
    assert refused.returncode == 2
    assert "model exists already; choose another place by --out, or pass --overwrite." in refused.stderr
    answer = inside("add-class", folder, "--classes", new, "--out", tmp_path / "more")
    assert answer.stdout.startswith("Added twin, odd one in 0.")
    assert f"Model: {tmp_path / 'more'}, 12 classes" in answer.stdout
    assert {path.name: path.read_bytes() for path in (folder / "model").iterdir()} == before

    def probabilities(model: Path) -> list[dict[str, float]]:
        answers = json.loads(inside("predict", model, bundle, "--top", 99, "--json").stdout)
        return [{one["class"]: one["probability"] for one in answer} for answer in answers]

    for row in probabilities(tmp_path / "more"):
        assert len(row) == 12
        assert row["twin"] == pytest.approx(row[data.class_names[data.seen[0]]], rel=1e-4)

    refined = inside(
        "add-class", tmp_path / "more", "--classes", tmp_path / "none.csv", "--overwrite", "--refine", "--data", bundle
    )
    assert (refined.returncode, "none.csv: No such file" in refined.stderr) == (2, True)
    (tmp_path / "third.csv").write_text(f"name,a,b,c,d,e,f\nthird,{cells[1]}\n")
    options = ("--overwrite", "--refine", "--data", bundle, "--json")
    refined = inside("add-class", tmp_path / "more", "--classes", tmp_path / "third.csv", *options)
    summary = json.loads(refined.stdout)
    assert (summary["added"], summary["n_classes"], summary["model"]) == (["third"], 13, str(tmp_path / "more"))
    assert summary["seconds"] > 0
    assert len(probabilities(tmp_path / "more")[0]) == 13


def test_a_training_without_test_rows_still_gives_a_model(samples: Path, inside: Inside) -> None:
    np.savez(samples / "seen.npz", X=np.random.default_rng(0).random((20, 4)), y=["ant"] * 10 + ["bee"] * 10)
    inside("data", "import", samples / "seen.npz", "--classes", samples / "classes.csv", "--out", samples / "b")
    options = ("--without-generator", *TINY, "--set", "n_epochs=2", "--set", "generator.n_epochs=1")
    answer = inside("train", samples / "b", "--out", samples / "run", *options)
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.startswith("There are no scores: the data lacks test rows")
    assert "Report" not in answer.stdout
    predicted = inside("predict", samples / "run", samples / "x.npz", "--unseen-only").stdout
    assert predicted.splitlines()[1:] == [f"{i},cat,1.000000" for i in range(30)]


@pytest.mark.slow
def test_a_killed_training_goes_on_and_ends_in_the_same_bytes(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    n_epochs = 100
    options = ("--without-generator", *TINY, "--set", f"n_epochs={n_epochs}", "--set", f"generator.n_epochs={n_epochs}")
    command = ("train", bundle, *options, "--set", "generator.steps_per_epoch=40")
    # States are usually kept half a minute apart; here after every epoch, so that one is there within moments.
    often = (
        "import sys, dgz.cli, dgz.model; fit = dgz.model.DGZ.fit;"
        "dgz.model.DGZ.fit = lambda *a, **k: fit(*a, **k, checkpoint_seconds=0); dgz.cli.main()"
    )
    for stage in ("generator", "classifier"):
        arguments = [*map(str, command), "--out", str(broken), *(["--resume"] if stage == "classifier" else [])]
        with subprocess.Popen(
            [sys.executable, "-c", often, *arguments], env=ENVIRONMENT, stderr=subprocess.PIPE
        ) as process:
            kept, deadline = broken / "checkpoints" / f"{stage}.safetensors", time.monotonic() + 60
            while not kept.exists():
                assert process.poll() is None, process.stderr and process.stderr.read()
                assert time.monotonic() < deadline
                time.sleep(0.005)
            process.kill()
        with safe_open(kept, framework="numpy") as file:  # the blow fell in the middle of the stage
            assert 1 <= len(json.loads(file.metadata()["history"])) < n_epochs
    refused = inside(*command, "--out", broken)
    assert (refused.returncode, "--resume" in refused.stderr, "--overwrite" in refused.stderr) == (2, True, True)

    resumed, unbroken = dgz(*command, "--out", broken, "--resume"), dgz(*command, "--out", whole)
    assert (resumed.returncode, unbroken.returncode) == (0, 0), resumed.stderr + unbroken.stderr
    name = "model/model.safetensors"
    assert (broken / name).read_bytes() == (whole / name).read_bytes()
    assert read_record(broken).curve == read_record(whole).curve
    assert not (broken / "checkpoints").exists()
    again = inside(*command, "--out", broken, "--resume", "--json")
    assert "finished already" in again.stderr
    record = json.loads((whole / "record.json").read_text())
    assert json.loads(again.stdout)["scores"] == record["scores"]


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["train", "{bundle}", "--preset", "CUP"],
            "preset must be one of AWA2, CUB, SUN, APY, found 'CUP'; did you mean 'CUB'?",
        ),
        (
            ["train", "{bundle}", "--preset", "CUB", "--source", "code"],
            "source must be one of paper, released, found 'code'.",
        ),
        (["train", "{bundle}", "--source", "paper"], "so it needs --preset."),
        (["train", "{bundle}", "--schedule", "short"], "so it needs --without-generator."),
        (
            ["train", "{bundle}", "--without-generator", "--schedule", "long"],
            "schedule must be one of released, short, found 'long'.",
        ),
        (["train", "{bundle}", "--set", "lamda_1=2"], "There is no setting 'lamda_1'; did you mean 'lambda_1'?"),
        (["train", "{bundle}", "--set", "n_epochs=many"], "n_epochs must be a whole number, found 'many'."),
        (["train", "{bundle}", "--device", "abacus"], "device 'abacus' cannot be used here"),
        (["train", "{bundle}", "--evaluate-every", "-1"], "evaluate_every must be a number from 0 up, found -1."),
        (["train", "{bundle}", "--resume", "--overwrite"], "exclude each other."),
        (["train", "nowhere"], "nowhere is neither a folder nor the name of an embedded data set (numbers)."),
        (["evaluate", "{bundle}", "{bundle}"], "is not a model: it has no model.json."),
        (["evaluate", "{run}", "numbers"], "The rows of numbers have 128 features, but the model was trained on rows"),
        (
            ["predict", "{run}", "{run}/record.json"],
            "record.json must end in .npy, .npz, .csv, .parquet, found '.json'.",
        ),
        (["predict", "{run}", "nowhere.npy"], "nowhere.npy is neither a folder nor"),
        (["predict", "{run}", "wide.npy"], "X must have 12 columns, as the training rows had, found 13."),
        (["predict", "{run}", "none.npy"], "none.npy holds no rows to predict."),
        (["predict", "{run}", "{bundle}", "--top", "0"], "top must be a whole number from 1 up, found 0."),
        (["add-class", "{run}", "--classes", "new.csv", "--out", "b"], "must have the shape (1, 6), found (1, 2)."),
        (["add-class", "{run}", "--classes", "new.csv", "--out", "b", "--refine"], "--refine and --data go together"),
    ],
)
def test_errors_around_models_are_one_sentence_too(
    trained: tuple[Path, subprocess.CompletedProcess[str]],
    bundle: Path,
    inside: Inside,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    arguments: list[str],
    sentence: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("wide.npy", np.zeros((2, 13)))
    np.save("none.npy", np.zeros((0, 12)))
    Path("new.csv").write_text("name,a,b\nnew,1,2\n")
    filled = [argument.format(bundle=bundle, run=trained[0]) for argument in arguments]
    answer = inside(*filled, *(["--out", "b"] if arguments[0] == "train" else []))
    assert answer.returncode == 2
    assert answer.stderr.startswith("Error: ")
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "b" / "model").exists()


def test_a_damaged_model_is_refused_with_a_sentence(
    trained: tuple[Path, subprocess.CompletedProcess[str]], bundle: Path, inside: Inside, tmp_path: Path
) -> None:
    for path in (trained[0] / "model").iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    tensors = tmp_path / "model.safetensors"
    tensors.write_bytes(tensors.read_bytes()[:-9])
    answer = inside("predict", tmp_path, bundle)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith(f"Error: {tensors} cannot be read: ")


# --- Sweeps.
BRIEF = ("--without-generator", "--set", "n_epochs=3", "--set", "generator.n_epochs=2")
SHORT = (*BRIEF, *TINY)
KEYS = ("acc_unseen", "acc_seen", "h", "acc_zsl", "ausuc")


def mean_cell(values: list[float]) -> str:
    return f"{100 * np.mean(values):.1f} ± {100 * np.std(values, ddof=1):.1f}"


@pytest.fixture(scope="module")
def swept(bundle: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, subprocess.CompletedProcess[str]]:
    """A finished sweep over two settings and two seeds, and what the command that made it said."""
    folder = tmp_path_factory.mktemp("sweeps") / "sweep"
    varied = ("--vary", "lambda_1=0.5,2", "--vary", "generator.hidden=[8,4],[8]", "--seeds", "2")
    return folder, dgz("sweep", bundle, "--out", folder, *BRIEF, *NARROW, *varied)


def test_a_sweep_prints_means_by_both_selection_rules_and_keeps_every_run(
    swept: tuple[Path, subprocess.CompletedProcess[str]],
) -> None:
    folder, answer = swept
    assert answer.returncode == 0, answer.stderr
    points = [(value, hidden) for value in ("0.5", "2") for hidden in ("[8,4]", "[8]")]
    names = [
        [f"lambda_1={value},generator.hidden={hidden},seed={seed}" for seed in range(2)] for value, hidden in points
    ]
    runs = {"index.html", "report.md", *(name for group in names for name in group)}
    assert {path.name for path in folder.iterdir()} == runs
    rows = cells(answer)
    assert len(rows) == 8
    for k, (value, hidden) in enumerate(points):
        records = [json.loads((folder / name / "record.json").read_text()) for name in names[k]]
        assert [record["seed"] for record in records] == [0, 1]
        assert {record["params"]["lambda_1"] for record in records} == {float(value)}
        assert {str(record["params"]["generator"]["hidden"]).replace(" ", "") for record in records} == {hidden}
        assert {record["seconds"]["fitted_together"] for record in records} == {8}
        ours, oracle = rows[k], rows[4 + k]
        assert ours[0] == oracle[0] == f"DGZ (generator.hidden={hidden.replace(',', ', ')}, lambda_1={value})"
        assert ours[2:7] == [mean_cell([record["scores"][key] for record in records]) for key in KEYS]
        assert oracle[2:6] == [mean_cell([record["oracle"][key] for record in records]) for key in KEYS[:4]]
        assert (ours[7:], oracle[7:]) == (["last", "2"], ["oracle (best of 3)", "2"])
        assert ours[4] in (folder / "report.md").read_text()
        for name in names[k]:
            assert {path.name for path in (folder / name).iterdir()} == {
                "config.json", "model", "record.json",
            }  # fmt: skip
    assert "picked by the test rows" in answer.stdout
    assert answer.stdout.endswith(f"Report: {folder / 'index.html'}\n")
    assert "dgz sweep " in (folder / "report.md").read_text()


def test_a_run_of_a_sweep_is_a_run_like_any_other(
    swept: tuple[Path, subprocess.CompletedProcess[str]], bundle: Path, inside: Inside, tmp_path: Path
) -> None:
    one = swept[0] / "lambda_1=2,generator.hidden=[8],seed=1"
    scores = json.loads((one / "record.json").read_text())["scores"]
    assert as_recorded(inside("evaluate", one, bundle, "--json").stdout) == scores
    alone = inside(
        "train", bundle, "--out", tmp_path / "run", *SHORT, "--set", "lambda_1=2", "--seed", 1, "--json"
    )  # fmt: skip
    assert json.loads(alone.stdout)["scores"]["h"] == pytest.approx(scores["h"])


def test_without_varied_settings_a_sweep_is_over_seeds(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    answer = inside("sweep", bundle, "--out", tmp_path, *SHORT, "--seeds", "0,3", "--json")
    assert answer.returncode == 0, answer.stderr
    found = json.loads(answer.stdout)
    (row,), (oracle,) = found["rows"], found["oracle"]
    assert (row["settings"], row["seeds"], row["selection"]) == ({}, [0, 3], "last")
    records = [json.loads((tmp_path / f"seed={seed}" / "record.json").read_text()) for seed in (0, 3)]
    for key in KEYS:
        values = [record["scores"][key] for record in records]
        assert row["mean"][key] == pytest.approx(np.mean(values))
        assert row["std"][key] == pytest.approx(np.std(values, ddof=1))
    assert (oracle["selection"], set(oracle["mean"])) == ("oracle (best of 3)", set(KEYS[:4]))
    assert found["report"] == str(tmp_path / "index.html")


def test_a_sweep_has_five_seeds_unless_told(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    options = (*SHORT, "--set", "n_epochs=1", "--set", "generator.n_epochs=1", "--json")
    assert json.loads(inside("sweep", bundle, "--out", tmp_path, *options).stdout)["rows"][0]["seeds"] == [
        0,
        1,
        2,
        3,
        4,
    ]


def test_a_sweep_can_be_widened_and_is_not_lost_by_mistake(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    command = ("sweep", bundle, "--out", tmp_path, *SHORT, "--seeds", "2")
    assert inside(*command, "--vary", "lambda_1=1").returncode == 0
    old = tmp_path / "lambda_1=1,seed=0" / "record.json"
    before = old.stat().st_mtime_ns
    refused = inside(*command, "--vary", "lambda_1=1,2")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "seed=0 holds a finished run" in refused.stderr
    assert not (tmp_path / "lambda_1=2,seed=0").exists()
    widened = inside(*command, "--vary", "lambda_1=1,2", "--resume")
    assert "2 of 4 runs were finished already." in widened.stderr
    assert [(row[0], row[8]) for row in cells(widened)[:2]] == [("DGZ (lambda_1=1)", "2"), ("DGZ (lambda_1=2)", "2")]
    assert old.stat().st_mtime_ns == before
    assert inside(*command, "--vary", "lambda_1=1", "--overwrite").returncode == 0
    assert old.stat().st_mtime_ns > before


def test_a_broken_run_of_a_sweep_is_named_and_the_others_are_compared(
    bundle: Path, inside: Inside, tmp_path: Path
) -> None:
    command = ("sweep", bundle, *SHORT, "--seeds", "2")
    answer = inside(*command, "--out", tmp_path, "--vary", "lambda_1=1,1e39")  # the second is beyond single precision
    assert answer.returncode == 2
    broken = [tmp_path / f"lambda_1=1e39,seed={seed}" for seed in range(2)]
    assert answer.stderr.startswith(f"Error: No model came of {broken[0]}, {broken[1]}: Training broke for 2 of 4 ")
    assert answer.stderr.count("\n") == 1
    assert [(row[0], row[8]) for row in cells(answer)] == [("DGZ", "2")] * 2
    assert (tmp_path / "index.html").is_file()
    nothing = inside(*command, "--out", tmp_path / "none", "--set", "lambda_1=1e39")
    assert (nothing.returncode, nothing.stdout) == (2, "")
    assert "No model came of " in nothing.stderr


def test_a_sweep_without_test_rows_still_gives_models(samples: Path, inside: Inside) -> None:
    np.savez(samples / "seen.npz", X=np.random.default_rng(0).random((20, 4)), y=["ant"] * 10 + ["bee"] * 10)
    inside("data", "import", samples / "seen.npz", "--classes", samples / "classes.csv", "--out", samples / "b")
    answer = inside("sweep", samples / "b", "--out", samples / "runs", *SHORT, "--seeds", "2")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout == "There are no scores: the data lacks test rows of seen or of unseen classes.\n"
    assert sorted(path.name for path in (samples / "runs").iterdir()) == ["seed=0", "seed=1"]
    assert (samples / "runs" / "seed=1" / "model" / "model.json").is_file()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--vary", "lamda_1=1,2"], "There is no setting 'lamda_1'; did you mean 'lambda_1'?"),
        (["--vary", "n_per_class=1,many"], "n_per_class must be a whole number, found 'many'."),
        (["--vary", "n_per_class="], "n_per_class must be a whole number, found ''."),
        (["--vary", "gate=always,never"], "gate must be one of argmax_all, above_true, always, found 'never'."),
        (["--vary", "lambda_1"], "A varied setting is written key=value,value,…, found 'lambda_1'."),
        (["--vary", "lambda_1=1,2", "--vary", "lambda_1=3"], "lambda_1 is varied twice"),
        (["--vary", "d_hidden=8,16"], "d_hidden cannot be varied, since it is set to one value too."),
        (["--vary", "lambda_1=1,1.0"], "lambda_1=1,seed=0 and lambda_1=1.0,seed=0 are the same: give each value once."),
        (["--vary", "generator.hidden=(8,),[8]"], "are the same: give each value once."),
        (["--vary", "random_state=1,2"], "The setting random_state is what --seeds is for."),
        (["--set", "random_state=1"], "The setting random_state is what --seeds is for."),
        (["--seeds", "0"], "Seeds are a number from 1 up, or a list of different ones such as 0,3,7, found '0'."),
        (["--seeds", "1,1"], "Seeds are a number from 1 up, or a list of different ones such as 0,3,7, found '1,1'."),
        (["--source", "paper"], "so it needs --preset."),
        (["--preset", "CUP"], "preset must be one of AWA2, CUB, SUN, APY, found 'CUP'; did you mean 'CUB'?"),
        (["--vary", "lambda_1=1,-1"], "lambda_1 must be a number from 0 up, found -1."),
        (["--resume", "--overwrite"], "exclude each other."),
    ],
)
def test_a_sweep_that_makes_no_sense_is_refused_before_any_work(
    bundle: Path, inside: Inside, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    answer = inside("sweep", bundle, "--out", tmp_path / "b", *BRIEF, *NARROW, *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("Error: ")
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "b").exists()


# --- Tuning.
def test_tuning_prints_what_it_found_and_goes_on_where_it_was(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    command = ("tune", bundle, "--out", out, "--without-generator", *TINY, "--set", "n_epochs=2", "--members", 2)
    space = ("--space", "lambda_1=0.1..10", "--space", "temperature=0.02,0.04")
    first = inside(*command, *space, "--trials", 2, "--folds", 2)
    assert first.returncode == 0, first.stderr
    assert "Best of 2 trials (0 given up early, 0 broken):" in first.stdout
    assert "in the mean over 2 folds of the training rows" in first.stdout
    record = read_record(out)
    assert (record.selection, record.params["n_members"]) == ("validation", 2)
    assert 0.1 <= record.params["lambda_1"] <= 10
    again = inside(*command, *space, "--trials", 3, "--folds", 2, "--json")
    assert again.returncode == 0, again.stderr
    found = json.loads(again.stdout)
    assert found["n_trials"] == 3
    assert set(found["settings"]) == {"lambda_1", "temperature", "seen_penalty"}
    assert found["settings"] == json.loads((out / "tuning.json").read_text())["settings"]


def test_a_tuned_run_is_a_run_like_any_other(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    source, out = tmp_path / "data", tmp_path / "tuned"
    shutil.copytree(bundle, source)
    (source / "backbone").mkdir()
    (source / "backbone" / "backbone.json").write_text('{"name": "net", "licence": "MIT"}')
    brief = ("--without-generator", *TINY, "--set", "n_epochs=2", "--space", "lambda_1=1,2", "--trials", 1)
    ended = inside("tune", source, "--out", out, *brief)
    assert ended.returncode == 0, ended.stderr
    card = (out / "model_card.md").read_text()
    assert "`dgz tune " in card
    assert "net" in card
    assert "what was best on leak-free folds" in card
    assert (out / "backbone" / "backbone.json").is_file()
    assert f"Report: {out / 'index.html'}" in ended.stdout


def test_what_cannot_be_tuned_is_said_before_any_work(bundle: Path, inside: Inside, tmp_path: Path) -> None:
    out = tmp_path / "tuned"
    command = ("tune", bundle, "--out", out, "--without-generator", *TINY)
    for wrong, words in (
        (("--space", "lambda1=0.1..1"), "There is no setting 'lambda1'; did you mean 'lambda_1'?"),
        (("--space", "d_hidden=8..16"), "d_hidden is searched and set to one value too."),
        (("--trials", 0), "n_trials must be a whole number from 1 up"),
        (("--set", "seen_penalty=auto", "--space", "seen_penalty=0..1"), "seen_penalty is searched and set"),
    ):
        ended = inside(*command, *wrong)
        assert ended.returncode == 2
        assert words in ended.stderr
        assert not out.exists()


# --- The paper, run again, and reports.
SETTINGS = 'n_epochs = 2, d_hidden = 8, learning_rate = 0.003, "generator.n_epochs" = 2, "generator.hidden" = [8]'
BEGIN, END = "<!-- results: begin -->", "<!-- results: end -->"


@pytest.fixture
def reproducible(bundle: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two items of the paper, each with a row that is trained in a moment, on small data in place of the embedded."""
    from dgz import reproduce

    texts = {
        "table2": f"""
title = "T"
place = "P"
kind = "table"
data = ["numbers/strokes", "AWA2/att"]
seeds = 3
folds = 2
row = [{{name = "DGZ w/o GM", method = "dgz-without-generator", set = {{{SETTINGS}}}}},
       {{name = "Kernel ridge", method = "center-ridge", seeds = 1, set = {{alpha = 0.1, bandwidth = 1.0}}}}]
""",
        "tableA3": f"""
title = "T"
place = "P"
kind = "table"
data = ["AWA2/att"]
row = [{{name = "ours", method = "dgz-without-generator", set = {{{SETTINGS}}}}}]
""",
    }
    specs = {name: parse_spec(name, text) for name, text in texts.items()}
    monkeypatch.setattr(reproduce, "_EMBEDDED", replace(reproduce._EMBEDDED, folder=str(bundle)))
    monkeypatch.setattr(reproduce, "paper_items", lambda: list(specs))
    monkeypatch.setattr(reproduce, "load_spec", lambda name: specs[name] if name in specs else load_spec(name))


def test_an_item_is_run_and_what_is_missing_is_said(
    reproducible: None, inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    assert inside("reproduce", "table2", "--row", "DGZ").stderr == (
        "Error: row must be one of DGZ w/o GM, Kernel ridge, found 'DGZ'.\n"
    )
    part = inside("reproduce", "table2", "--row", "Kernel ridge", "--device", "cpu", "--shared-device")
    (made,) = Path("runs/reproduce/records").iterdir()
    assert set(json.loads(made.read_text())["seconds"]) == {"fit_on_shared_device", "evaluate"}
    assert ["numbers-strokes-dgz-without" in part.stderr, "numbers-strokes-center-ridge" in part.stderr] == [
        False,
        True,
    ]
    assert "1 item of 6 runs, 5 of them still to be made, in " in part.stdout
    answer = inside("reproduce", "table2", "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    missing, summary, report = answer.stdout.splitlines()
    assert missing == "missing: AWA2/att: no folder was given (--data)."
    assert summary.startswith("1 item of 6 runs in ")  # with those on folds
    assert report == "Report: runs/reproduce/index.html"
    assert answer.stderr.count(" s    1 x numbers-strokes-dgz-without-generator-") == 5
    folder = Path("runs/reproduce")
    assert {path.name for path in folder.iterdir()} == {"items", "records", "index.html", "report.md"}
    text = (folder / "report.md").read_text()
    assert "AWA2/att: no folder was given (--data)." in text
    assert "full training" in text
    assert "quick" not in text.lower()

    again = inside("reproduce", "all", "--seeds", 1, "--device", "cpu", "--json")
    assert (again.returncode, again.stderr) == (0, "")  # nothing was left to do
    assert json.loads(again.stdout) == {
        "items": ["table2", "tableA3"],
        "missing": ["AWA2/att: no folder was given (--data)."],
        "n_runs": 4,
        "n_left": 0,
        "report": "runs/reproduce/index.html",
    }
    assert [len(item.blocks) for item in Store(folder).items()] == [1, 0]
    refused = inside("reproduce", "table2", "--quick", "--out", folder)
    assert (refused.returncode, "holds results (table2, tableA3), which are not to be mixed" in refused.stderr) == (
        2,
        True,
    )


def test_a_quick_reproduction_has_a_folder_of_its_own(
    reproducible: None, inside: Inside, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    answer = inside("reproduce", "all", "--quick", "--device", "cpu")
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines()[-1] == "Report: runs/quick/index.html"
    assert "missing" not in answer.stdout
    assert "**Quick run: shortened training, no results**" in Path("runs/quick/report.md").read_text()
    refused = inside("reproduce", "all", "--out", "runs/quick")
    assert (refused.returncode, "holds a quick reproduction (table2, tableA3)" in refused.stderr) == (2, True)
    Path("README.md").write_text(f"{BEGIN}\n{END}\n")
    refused = inside("report", "runs/quick", "--readme", "README.md")
    assert (refused.returncode, "are quick ones: no results." in refused.stderr) == (2, True)
    assert Path("README.md").read_text() == f"{BEGIN}\n{END}\n"


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["table9"], "item must be one of table1, figure2, "),
        (["table2", "--seeds", "0"], "seeds must be a whole number from 1 up, found 0."),
        (["table2", "--data", "nowhere"], "nowhere is no folder."),
        (["table2", "--device", "abacus"], "device 'abacus' cannot be used here"),
        (["tableA3"], "There is no data to run tableA3 on. AWA2/att: no folder was given (--data)."),
    ],
)
def test_a_reproduction_that_makes_no_sense_is_refused_before_any_work(
    reproducible: None, inside: Inside, tmp_path: Path, arguments: list[str], sentence: str
) -> None:
    answer = inside("reproduce", *arguments, "--out", tmp_path / "out")
    assert (answer.returncode, answer.stdout) == (2, "")
    assert answer.stderr.startswith("Error: ")
    assert sentence in answer.stderr
    assert answer.stderr.count("\n") == 1
    assert not (tmp_path / "out").exists()


def test_a_reproduction_is_reported_again_and_a_readme_gets_its_table(
    reproducible: None, inside: Inside, tmp_path: Path
) -> None:
    folder, readme = tmp_path / "results", tmp_path / "README.md"
    inside("reproduce", "table2", "--device", "cpu", "--out", folder)
    page = (folder / "index.html").read_bytes()
    answer = inside("report", folder)
    assert (answer.returncode, answer.stdout) == (0, f"Report: {folder / 'index.html'}\n")
    assert (folder / "index.html").read_bytes() == page
    assert inside("report", folder, "--out", tmp_path / "elsewhere").stdout.startswith("Report: ")
    assert {path.name for path in (tmp_path / "elsewhere").iterdir()} == {"index.html", "report.md"}

    readme.write_text(f"# Title\n{BEGIN}\nold\n{END}\nThe end.\n")
    assert inside("report", folder, "--readme", readme).returncode == 0
    before, _, rest = readme.read_text().partition(BEGIN)
    table, _, after = rest.partition(END)
    assert (before, after) == ("# Title\n", "\nThe end.\n")
    h = [
        record.scores["h"]
        for record in map(Store(folder).read, next(Store(folder).items()).blocks[0].rows["DGZ w/o GM"])
    ]
    assert f"| {mean_cell(h)} |" in table
    assert "| DGZ w/o GM | numbers, pixels, strokes |" in table
    written = readme.read_text()
    inside("report", folder, "--readme", readme)
    assert readme.read_text() == written
    readme.write_text("no marks")
    refused = inside("report", folder, "--readme", readme)
    assert (refused.returncode, refused.stderr.count("\n"), readme.read_text()) == (2, 1, "no marks")


def test_ordinary_runs_are_reported_together(
    trained: tuple[Path, subprocess.CompletedProcess[str]], swept: tuple[Path, Any], inside: Inside, tmp_path: Path
) -> None:
    runs = tmp_path / "runs"
    for name, place in (("first", trained[0]), ("deeper/second", next(swept[0].glob("*seed=1")))):
        (runs / name).mkdir(parents=True)
        (runs / name / "record.json").write_bytes((place / "record.json").read_bytes())
    answer = inside("report", runs)
    assert (answer.returncode, answer.stdout) == (0, f"Report: {runs / 'index.html'}\n")
    text = (runs / "report.md").read_text()
    assert "dgz report " in text
    for name in ("first", "deeper/second"):
        assert f"| {100 * read_record(runs / name).scores['h']:.1f} |" in text
    inside("report", runs, "--out", tmp_path / "page")
    assert (tmp_path / "page" / "index.html").is_file()
    refused = inside("report", runs, "--readme", tmp_path / "README.md")
    assert (refused.returncode, refused.stderr.count("\n")) == (2, 1)
    assert "holds no reproduction of the paper, which the table of results is made of." in refused.stderr


def test_a_folder_without_records_makes_no_report(inside: Inside, tmp_path: Path) -> None:
    for folder, sentence in (
        (tmp_path, f"{tmp_path} holds neither a reproduction of the paper nor a finished run."),
        (tmp_path / "nowhere", f"{tmp_path / 'nowhere'} is no folder."),
    ):
        answer = inside("report", folder)
        assert (answer.returncode, answer.stdout) == (2, "")
        assert answer.stderr == f"Error: {sentence}\n"
    assert list(tmp_path.iterdir()) == []


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


# --- Methods side by side.
def on_a_terminal(*arguments: object) -> tuple[int, str]:
    """The exit status, and all that a person sees."""
    ours, theirs = pty.openpty()
    environment = {**ENVIRONMENT, "TERM": "xterm", "COLUMNS": "150", "LINES": "50"}
    command = [sys.executable, "-m", "dgz", *map(str, arguments)]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs, env=environment) as process:
        os.close(theirs)
        limit = threading.Timer(120, process.kill)
        limit.start()
        seen = b""
        with contextlib.suppress(OSError):  # which is how a terminal ends
            while part := os.read(ours, 65536):
                seen += part
        limit.cancel()
        os.close(ours)
        return process.wait(), seen.decode()


def test_a_person_sees_the_table_fill_and_what_is_being_done(data: GZSLData, tmp_path: Path) -> None:
    parts = {field.name: getattr(data, field.name) for field in fields(data)}
    save_bundle(GZSLData(**parts | {"attributes": 1000 * data.attributes}), tmp_path / "loud")
    options = ("--methods", "center-ridge,zla", "--seeds", 2, "--quick", "--device", "cpu")
    status, seen = on_a_terminal("compare", "--data", tmp_path / "loud", *options, "--out", tmp_path / "new")
    assert status == 0, seen
    assert seen.count("warning: Class vectors have unusual norms") == 1  # said once, though two models are trained
    assert re.search(r"(\n|\x1b\[2K)warning: ", seen)  # on a line of its own, which the table has left
    assert "0 of 4 runs; center-ridge, seed 0" in seen
    assert "3 of 4 runs; " in seen
    assert seen.count("Report: ") == 1
    assert "Traceback" not in seen


def test_methods_are_compared_on_own_data(inside: Inside, bundle: Path, tmp_path: Path) -> None:
    out = tmp_path / "compared"
    options = ("--data", bundle, "--methods", "zla, center-ridge,zla", "--seeds", 2, "--quick", "--device", "cpu")
    answer = inside("compare", *options, "--out", out)
    assert answer.returncode == 0, answer.stderr
    assert answer.stderr.count(" of 4 runs: ") == 4
    assert "center-ridge" in answer.stdout
    assert f"Report: {out / 'index.html'}" in answer.stdout.replace("\n", "")
    assert len(list((out / "records").iterdir())) == 4

    again = inside("compare", *options, "--out", out, "--json")
    assert (again.returncode, again.stderr) == (0, "")  # nothing was left to do
    found = json.loads(again.stdout)
    assert {one["method"]: one["n_finished"] for one in found["methods"]} == {"zla": 2, "center-ridge": 2}
    assert all(0 <= one["mean"]["h"] <= 1 and one["seconds"] > 0 and one["n_parameters"] for one in found["methods"])
    assert not any(one["validation"] for one in found["methods"])
    page = inside("report", out)
    assert page.returncode == 0
    assert (out / "report.md").read_text().startswith("# Methods side by side")

    # Runs on folds come on top of those that are there; a closed form has no epochs to choose from.
    chosen = inside("compare", *options, "--out", out, "--folds", 2)
    assert chosen.returncode == 0, chosen.stderr
    assert len(list((out / "records").iterdir())) == 4 + 2
    assert "Rule validation: the epoch that is best on leak-free folds" in chosen.stdout
    found = json.loads(inside("compare", *options, "--out", out, "--folds", 2, "--json").stdout)
    validated = {one["method"]: one["validation"] for one in found["methods"]}
    assert validated["center-ridge"] is None
    assert 0 <= validated["zla"]["h"] <= 1
    assert "**Selection rule: validation**" in (out / "report.md").read_text()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("--methods", "zla,magic"), "Error: method must be one of dgz, "),
        (("--methods", " , "), "A comparison needs at least one method."),
        (("--seeds", 0), "seeds must be"),
        (("--folds", -1), "folds must be 0, or from 2 to the number of seen classes (8), found -1."),
        (("--folds", 1), "folds must be 0, or from 2 to the number of seen classes (8), found 1."),
        (("--folds", 9), "folds must be 0, or from 2 to the number of seen classes (8), found 9."),
        (("--data", "nowhere"), "nowhere"),
    ],
)
def test_a_comparison_that_makes_no_sense_is_refused(
    inside: Inside, bundle: Path, tmp_path: Path, arguments: tuple[Any, ...], sentence: str
) -> None:
    answer = inside("compare", "--data", bundle, "--out", tmp_path / "out", *arguments)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert sentence in answer.stderr
    assert not (tmp_path / "out").exists()


def test_a_comparison_is_not_mixed_with_something_else(inside: Inside, bundle: Path, tmp_path: Path) -> None:
    common = ("--methods", "center-ridge", "--seeds", 1, "--quick", "--out", tmp_path / "out")
    assert inside("compare", "--data", bundle, *common).returncode == 0
    refused = inside("compare", "--data", "numbers", *common)
    assert refused.returncode == 2
    assert "holds results of something else (comparison on " in refused.stderr


def test_a_rival_is_trained_evaluated_and_used_like_dgz(inside: Inside, bundle: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = ("--set", "n_epochs=1", "--set", "generator.n_epochs=1", "--device", "cpu")
    answer = inside("train", bundle, "--method", "zla", "--out", run, *few)
    assert answer.returncode == 0, answer.stderr
    assert json.loads((run / "record.json").read_text())["method"] == "ZLA"
    assert inside("evaluate", run, bundle).returncode == 0
    assert inside("predict", run, bundle).stdout.startswith("row,class,probability")
    ridge = inside("train", bundle, "--method", "center-ridge", "--out", tmp_path / "ridge", "--set", "alpha=0.1")
    assert ridge.returncode == 0, ridge.stderr
    assert inside("evaluate", tmp_path / "ridge", bundle).returncode == 0
    for wrong, sentence in (
        (("--method", "magic"), "method must be one of dgz, "),
        (("--method", "zla", "--without-generator"), "are of the method dgz alone."),
        (("--method", "zla", "--preset", "MNIST"), "preset must be one of AWA2, CUB"),
        (("--method", "center-ridge", "--evaluate-every", 1), "has no generator whose epochs could be evaluated."),
    ):
        refused = inside("train", bundle, "--out", tmp_path / "refused", *wrong)
        assert refused.returncode == 2
        assert sentence in refused.stderr


def test_only_a_method_with_mapped_weights_takes_on_classes(inside: Inside, bundle: Path, tmp_path: Path) -> None:
    assert inside("train", bundle, "--method", "center-ridge", "--out", tmp_path / "ridge").returncode == 0
    (tmp_path / "new.csv").write_text("name,a,b\nnew,1,2\n")
    refused = inside("add-class", tmp_path / "ridge", "--classes", tmp_path / "new.csv", "--out", tmp_path / "more")
    assert refused.returncode == 2
    assert "holds a CenterRidge, which takes on no classes" in refused.stderr


# --- A model in use elsewhere.
def test_a_run_has_a_card_and_becomes_onnx(inside: Inside, bundle: Path, tmp_path: Path) -> None:
    run = tmp_path / "run"
    few = ("--without-generator", "--set", "n_epochs=1", "--set", "generator.n_epochs=1", "--device", "cpu")
    answer = inside("train", bundle, "--out", run, *few)
    assert answer.returncode == 0, answer.stderr
    assert f"Card: {run / 'model_card.md'}" in answer.stdout
    assert (run / "model_card.md").read_text().startswith("# DGZ on ")
    assert not (run / "backbone").exists()

    answer = inside("export", run, "--onnx")
    assert answer.returncode == 0, answer.stderr
    assert f"{run / 'model.onnx'}: from features to scores of " in answer.stdout
    assert "there is no file that reads pictures" in answer.stdout
    refused = inside("export", run, "--onnx")
    assert (refused.returncode, refused.stdout) == (2, "")
    assert "exists already" in refused.stderr
    (found,) = json.loads(inside("export", run / "model", "--onnx", "--out", tmp_path / "else", "--json").stdout)
    assert found["path"] == str(tmp_path / "else" / "model.onnx")
    assert 0 <= found["difference"] < 1e-4
