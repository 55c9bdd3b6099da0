"""Sinks: what TensorBoard and MLflow show is what the history says, and no trouble of theirs is the training's."""

import json
import os
import re
import resource
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

from conftest import ROOT
from dgz import DGZ, tracking
from dgz.cli import app
from dgz.data import GZSLData, make_synthetic
from dgz.errors import DGZError, DGZWarning
from dgz.experiments import run
from dgz.peers import CenterRidge
from dgz.records import Record, is_finished
from dgz.tracking import open_tracker

SCORES = ("acc_unseen", "acc_seen", "h", "acc_zsl")


@pytest.fixture(scope="module")
def data() -> GZSLData:
    return make_synthetic(8, 2, n_attributes=6, n_features=12, n_samples=160, random_state=1)


@pytest.fixture(autouse=True)
def environment() -> Iterator[None]:
    """Whatever switches a sink sets are gone after the test."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)


def tiny_model(**overrides: Any) -> DGZ:
    settings = {"d_hidden": 16, "n_epochs": 4, "generator__n_epochs": 3, "generator__hidden": (8,), "device": "cpu"}
    return DGZ.without_generator(**settings | {"learning_rate": 0.003} | overrides)


def fit(model: DGZ, data: GZSLData) -> DGZ:
    return model.fit(data.x_train, data.y_train, data.attributes, test=data)


def events(folder: Path) -> Any:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    return EventAccumulator(str(folder)).Reload()


def scalars(folder: Path) -> dict[str, list[tuple[int, float]]]:
    found = events(folder)
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


def client(folder: Path) -> Any:
    from mlflow import MlflowClient

    os.environ["MLFLOW_ALLOW_FILE_STORE"] = "true"
    return MlflowClient(tracking_uri=folder.resolve().as_uri())


def runs(folder: Path) -> list[Any]:
    reader = client(folder)
    return list(reader.search_runs([reader.get_experiment_by_name("dgz").experiment_id]))


def metrics(folder: Path, tracked: Any) -> dict[str, list[tuple[int, float]]]:
    reader = client(folder)
    found = {name: reader.get_metric_history(tracked.info.run_id, name) for name in tracked.data.metrics}
    return {name: [(metric.step, metric.value) for metric in values] for name, values in found.items()}


def curve(model: DGZ) -> dict[str, list[tuple[int, float]]]:
    """A history as a sink has it."""
    found: dict[str, list[tuple[int, float]]] = {}
    for row in model.history_:
        for name in ("loss", *SCORES):
            if name in row:
                found.setdefault(f"{row['stage']}/{name}", []).append((row["epoch"], row[name]))
    return found


def in_float32(found: dict[str, list[tuple[int, float]]]) -> dict[str, list[tuple[int, float]]]:
    """TensorBoard keeps no more digits."""
    return {name: [(step, float(np.float32(value))) for step, value in values] for name, values in found.items()}


# --- What is shown.
def test_tensorboard_shows_the_history(data: GZSLData, tmp_path: Path) -> None:
    model = tiny_model()
    with open_tracker(f"tensorboard:{tmp_path}", "first try", model.settings()):
        fit(model, data)
    assert scalars(tmp_path / "first_try") == in_float32(curve(model))
    assert len(curve(model)["classifier/h"]) == 4


def test_mlflow_shows_the_history(data: GZSLData, tmp_path: Path) -> None:
    model = tiny_model()
    with open_tracker(f"mlflow:{tmp_path / 'ml'}", "first try", model.settings()):
        fit(model, data)
    (tracked,) = runs(tmp_path / "ml")
    assert metrics(tmp_path / "ml", tracked) == curve(model)
    assert (tracked.info.run_name, tracked.info.status) == ("first try", "FINISHED")
    assert tracked.data.params["generator.n_epochs"] == "3"
    assert tracked.data.params["generator.hidden"] == "[8]"
    assert tracked.data.params["distribution"] == model.distribution


@pytest.fixture(scope="module")
def tracked_run(data: GZSLData, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record, DGZ]:
    folder, model = tmp_path_factory.mktemp("tracked"), tiny_model(random_state=7)
    sinks = [f"tensorboard:{folder / 'tb'}", f"mlflow:{folder / 'ml'}"]
    return folder, run(model, data, folder / "run", evaluate_every=1, track=sinks), model


def test_a_run_is_shown_with_scores_by_their_rule(tracked_run: tuple[Path, Record, DGZ], data: GZSLData) -> None:
    folder, record, _ = tracked_run
    (tracked,) = runs(folder / "ml")
    name = f"DGZ-{data.name}-seed7"
    assert tracked.info.run_name == name
    assert record.oracle is not None
    expected = {f"last/{key}": record.scores[key] for key in (*SCORES, "ausuc")}
    expected |= {f"oracle/{key}": value for key, value in record.oracle.items()}
    assert expected.items() <= tracked.data.metrics.items()
    assert {key for key in tracked.data.metrics if key.startswith("oracle/")} == {
        f"oracle/{key}" for key in record.oracle
    }
    shown = scalars(folder / "tb" / name)
    for key, value in expected.items():
        assert shown[key] == [(0, float(np.float32(value)))]
    assert set(shown) == set(tracked.data.metrics)


def test_a_run_is_shown_with_settings_and_facts(tracked_run: tuple[Path, Record, DGZ], data: GZSLData) -> None:
    folder, record, model = tracked_run
    (tracked,) = runs(folder / "ml")
    params = tracked.data.params
    assert params["method"] == "DGZ"
    assert params["settings.random_state"] == "7"
    assert params["settings.lambda_1"] == str(model.lambda_1)
    assert params["data.n_rows.train"] == str(len(data.x_train))
    assert params["data.hashes.features"] == record.data["hashes"]["features"]
    assert "settings.verbose" not in params
    tags = tracked.data.tags
    assert (tags["selection"], tags["device"], tags["versions.dgz"]) == ("last", record.device, record.versions["dgz"])
    found = events(folder / "tb" / f"DGZ-{data.name}-seed7")
    start = found.SummaryMetadata("_hparams_/session_start_info").plugin_data.content
    for word in (b"settings.lambda_1", b"data.n_seen", b"CenterMapper"):
        assert word in start
    assert "_hparams_/session_end_info" in found.summary_metadata
    assert "_hparams_/experiment" not in found.summary_metadata
    text = found.Tensors("known/text_summary")[0].tensor_proto.string_val[0].decode()
    assert "| settings.lambda_1 | 1.0 |" in text


def test_a_classifier_trained_in_between_is_shown_by_its_last_epoch(tracked_run: tuple[Path, Record, DGZ]) -> None:
    folder, _, model = tracked_run
    (tracked,) = runs(folder / "ml")
    shown = metrics(folder / "ml", tracked)
    between = [row for row in model.history_ if row["stage"] == "classifier" and row["generator_epoch"] < 3]
    assert shown["generator/classifier/h"] == [
        (row["generator_epoch"], row["h"]) for row in between if row["epoch"] == 4
    ]
    assert [step for step, _ in shown["classifier/h"]] == [1, 2, 3, 4]
    assert [step for step, _ in shown["generator/cacd"]] == [1, 2, 3]


def test_tracking_changes_nothing(tracked_run: tuple[Path, Record, DGZ], data: GZSLData, tmp_path: Path) -> None:
    folder, record, model = tracked_run
    plain = tiny_model(random_state=7)
    alone = run(plain, data, tmp_path / "run", evaluate_every=1)
    assert (alone.scores, alone.curve, alone.params) == (record.scores, record.curve, record.params)
    assert plain.weights_.tobytes() == model.weights_.tobytes()
    for name in ("config.json", "model/model.safetensors"):
        assert (tmp_path / "run" / name).read_bytes() == (folder / "run" / name).read_bytes()


def test_every_run_is_one_of_its_own(data: GZSLData, tmp_path: Path) -> None:
    for seed in (0, 1, 1):
        with open_tracker(f"tensorboard:{tmp_path}", f"seed {seed}"):
            fit(tiny_model(random_state=seed, n_epochs=1, generator__n_epochs=1), data)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["seed_0", "seed_1", "seed_1-2"]
    assert scalars(tmp_path / "seed_1") == scalars(tmp_path / "seed_1-2") != scalars(tmp_path / "seed_0")


def test_a_method_without_epochs_has_scores_alone(data: GZSLData, tmp_path: Path) -> None:
    record = run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), data, track=[f"tensorboard:{tmp_path}"])
    (folder,) = tmp_path.iterdir()
    shown = scalars(folder)
    assert shown["last/h"] == [(0, float(np.float32(record.scores["h"])))]
    assert not [tag for tag in shown if tag.startswith(("classifier", "generator", "oracle"))]


def test_models_trained_at_once_have_a_number_each() -> None:
    found = dict(tracking._numbers("fold 1/classifier", {"loss": [0.5, float("nan")], "h": 0.25, "critic loss": 1}))
    assert found == {"fold_1/classifier/loss/0": 0.5, "fold_1/classifier/h": 0.25, "fold_1/classifier/critic_loss": 1.0}


def test_a_run_that_breaks_is_shown_as_broken(data: GZSLData, tmp_path: Path) -> None:
    for error in (ValueError, KeyboardInterrupt):
        with pytest.raises(error), open_tracker(f"mlflow:{tmp_path}", error.__name__):
            raise error
    assert {one.info.run_name: one.info.status for one in runs(tmp_path)} == {
        "ValueError": "FAILED",
        "KeyboardInterrupt": "KILLED",
    }


def test_a_run_that_is_finished_is_not_shown_again(data: GZSLData, tmp_path: Path) -> None:
    options: dict[str, Any] = {"resume": True, "track": [f"tensorboard:{tmp_path / 'tb'}"]}
    model = {"n_epochs": 1, "generator__n_epochs": 1}
    for _ in range(2):
        run(tiny_model(**model), data, tmp_path / "run", **options)
    assert len(list((tmp_path / "tb").iterdir())) == 1


# --- The command line, and the page about it.
def test_the_page_about_tracking_works_as_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (script,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "tracking.md").read_text(), re.DOTALL)
    exec(script, {})  # noqa: S102
    assert {path.name for path in (tmp_path / "runs").iterdir()} == {"numbers", "tb", "mlflow"}


def test_the_command_line_tracks_a_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from typer.testing import CliRunner

    monkeypatch.chdir(tmp_path)
    short = ["--set", "n_epochs=1", "--set", "generator.n_epochs=1", "--without-generator", "--seed", "3"]
    sinks = ["--track", "tensorboard:tb", "--track", "mlflow:ml"]
    answer = CliRunner().invoke(app, ["train", "numbers", "--out", "run", *short, *sinks, "--json"])
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)["scores"]
    (tracked,) = runs(tmp_path / "ml")
    assert tracked.data.metrics["last/h"] == found["h"]
    assert scalars(tmp_path / "tb" / "DGZ-numbers-seed3")["last/h"] == [(0, float(np.float32(found["h"])))]


# --- What is refused before anything begins.
@pytest.mark.parametrize("where", ["tensorboard", "tensorboard:", "mlflow: ", "wandb:x", "", "runs/tb"])
def test_a_sink_that_nobody_knows_is_refused(where: str) -> None:
    with pytest.raises(DGZError, match=r"^A run is tracked in tensorboard:FOLDER, mlflow:FOLDER or mlflow:URI, found "):
        open_tracker(where)


@pytest.mark.parametrize(("kind", "package"), [("tensorboard", "tensorboard"), ("mlflow", "mlflow-skinny")])
def test_a_missing_package_is_named(kind: str, package: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, kind, None)
    for name in [name for name in sys.modules if name.startswith("torch.utils.tensorboard")]:
        monkeypatch.delitem(sys.modules, name)
    with pytest.raises(DGZError, match=rf"^{kind}:.* needs {package}: pip install 'dgz\[track\]'\.$"):
        open_tracker(f"{kind}:{tmp_path / 'sink'}")
    assert not (tmp_path / "sink").exists()


def test_a_server_that_is_not_there_is_refused_before_anything_is_replaced(data: GZSLData, tmp_path: Path) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        address = f"mlflow:http://127.0.0.1:{free.getsockname()[1]}"
    run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), data, tmp_path)
    start = time.monotonic()
    with pytest.raises(DGZError, match=rf"^{address} cannot be used: .*Connection refused\.$"):
        run(tiny_model(), data, tmp_path, overwrite=True, track=[address])
    assert time.monotonic() - start < 20  # MLflow by itself tries for minutes
    assert is_finished(tmp_path)


def test_a_server_that_never_answers_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "_ANSWER_SECONDS", 0.2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        where = f"mlflow:http://127.0.0.1:{silent.getsockname()[1]}"
        with pytest.raises(DGZError, match=rf"^{where} cannot be used: no answer within 0.2 seconds\.$"):
            open_tracker(where)


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
def test_a_folder_that_cannot_be_is_refused(kind: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(DGZError, match=f"^{kind}:.* cannot be used: .*(Not a directory|File exists)"):
        open_tracker(f"{kind}:{tmp_path / 'file' / 'inside'}")


def test_a_database_takes_the_whole_of_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tracking, "find_spec", lambda name: None)
    with pytest.raises(DGZError, match="is a database, which takes the whole of MLflow: pip install mlflow"):
        open_tracker(f"mlflow:sqlite:///{tmp_path / 'mlflow.db'}")


def test_nothing_is_loaded_unless_asked_for_and_mlflow_does_not_report_its_use(tmp_path: Path) -> None:
    script = (
        "import os, sys\n"
        "class Finder:\n"
        "    def find_spec(self, name, *_):\n"
        "        if name == 'mlflow': print(os.environ['MLFLOW_DISABLE_TELEMETRY'])\n"
        "sys.meta_path.insert(0, Finder())\n"
        "from dgz import experiments, tracking\n"
        "print('mlflow' in sys.modules, 'tensorboard' in sys.modules)\n"
        f"tracking.open_tracker({f'mlflow:{tmp_path}'!r})\n"
        "from mlflow.telemetry.utils import is_telemetry_disabled\n"
        "print(is_telemetry_disabled())"
    )
    hidden = ("CI", "PYTEST_CURRENT_TEST", "GITHUB_ACTIONS", "DO_NOT_TRACK")  # of which MLflow takes each for a no
    left = {name: value for name, value in os.environ.items() if name not in hidden and not name.startswith("MLFLOW")}
    answer = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, env=left)
    assert answer.stdout.split() == ["False", "False", "true", "True"], answer.stderr


# --- Sinks that fail in the middle.
class Server(BaseHTTPRequestHandler):
    """As much of an MLflow server as a run needs."""

    said: ClassVar[list[tuple[str, dict[str, Any]]]] = []
    is_down: ClassVar[bool] = False

    def answer(self) -> None:
        verb = self.path.partition("?")[0].removeprefix("/api/2.0/mlflow/")
        length = int(self.headers.get("Content-Length") or 0)
        self.said.append((verb, json.loads(self.rfile.read(length) or b"{}")))
        known = {"run_id": "r", "run_uuid": "r", "experiment_id": "1", "status": "RUNNING", "lifecycle_stage": "active"}
        answers = {
            "experiments/get-by-name": {
                "experiment": {"experiment_id": "1", "name": "dgz", "lifecycle_stage": "active"}
            },
            "runs/create": {"run": {"info": known, "data": {}}},
            "runs/get": {"run": {"info": known, "data": {}}},
            "runs/update": {"run_info": known},
        }
        content = json.dumps(answers.get(verb, {})).encode()
        self.send_response(500 if self.is_down else 200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_GET = do_POST = answer  # noqa: N815  (names of the standard library)

    def log_message(self, *_: Any) -> None:
        """Say nothing."""


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadingHTTPServer]:
    monkeypatch.setattr(Server, "said", [])
    monkeypatch.setattr(Server, "is_down", False)
    with ThreadingHTTPServer(("127.0.0.1", 0), Server) as started:
        thread = threading.Thread(target=started.serve_forever, args=(0.01,))
        thread.start()
        yield started
        started.shutdown()
        thread.join()


def test_a_server_is_sent_everything_in_few_requests(server: ThreadingHTTPServer, data: GZSLData) -> None:
    model = tiny_model(n_epochs=150)
    with open_tracker(f"mlflow:http://127.0.0.1:{server.server_port}", "many epochs", {"a": 1}):
        fit(model, data)
    sent: dict[str, list[tuple[int, float]]] = {}
    for verb, said in Server.said:
        for metric in said.get("metrics", []) if verb == "runs/log-batch" else []:
            sent.setdefault(metric["key"], []).append((metric["step"], metric["value"]))
    assert sent == curve(model)
    assert len(Server.said) < 30
    assert Server.said[-1][1]["status"] == "FINISHED"


def test_a_server_that_goes_away_costs_a_warning_and_nothing_else(
    server: ThreadingHTTPServer, data: GZSLData, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_FLUSH_SECONDS", 0.0)
    where, model = f"mlflow:http://127.0.0.1:{server.server_port}", tiny_model(n_epochs=6)

    def stop(stage: str, epoch: int, row: dict[str, Any]) -> None:
        monkeypatch.setattr(Server, "is_down", stage == "classifier" and epoch >= 2)

    start = time.monotonic()
    sentence = rf"^{where} takes no more numbers of seed 0 \(.*\); the run goes on without it\.$"
    with (
        pytest.warns(DGZWarning, match=sentence) as caught,
        open_tracker(where, "seed 0"),
        tracking.watching(stop),
    ):
        fit(model, data)
    assert len(caught) == 1
    assert time.monotonic() - start < 60
    assert model.history_ == fit(tiny_model(n_epochs=6), data).history_


@pytest.mark.parametrize("kind", ["tensorboard", "mlflow"])
# What TensorBoard's own thread dies of is said twice: by the thread, and by the warning.
@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_full_disk_costs_a_warning_and_nothing_else(
    kind: str, data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tracking, "_FLUSH_SECONDS", 0.0)
    usual = resource.getrlimit(resource.RLIMIT_FSIZE)

    def fill(stage: str, epoch: int, row: dict[str, Any]) -> None:
        if (stage, epoch) == ("classifier", 2):
            resource.setrlimit(resource.RLIMIT_FSIZE, (1, usual[1]))

    model = tiny_model(n_epochs=50)
    try:
        with (
            pytest.warns(DGZWarning, match=r"takes no more numbers of run \(.*File too large") as caught,
            open_tracker(f"{kind}:{tmp_path}"),
            tracking.watching(fill),
        ):
            fit(model, data)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, usual)
    assert [str(one.message) for one in caught if issubclass(one.category, DGZWarning)] == [str(caught[0].message)]
    assert model.predict(data.x_test_seen).shape == (len(data.x_test_seen),)


def test_a_sink_that_dies_in_a_run_leaves_a_finished_run(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no space left on the device")

    monkeypatch.setattr(tracking._TensorBoard, "_log", fail)
    sinks = [f"tensorboard:{tmp_path / 'tb'}", f"mlflow:{tmp_path / 'ml'}"]
    with pytest.warns(DGZWarning, match="no space left on the device") as caught:
        record = run(tiny_model(), data, tmp_path / "run", track=sinks)
    assert len(caught) == 1
    assert is_finished(tmp_path / "run")
    (tracked,) = runs(tmp_path / "ml")
    assert tracked.data.metrics["last/h"] == record.scores["h"]


def test_a_sink_that_cannot_begin_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    tracker = open_tracker(f"tensorboard:{tmp_path / 'tb'}")
    (tmp_path / "tb").rmdir()
    with pytest.raises(DGZError, match=r"^tensorboard:.* cannot be used: .*No such file"), tracker:
        raise AssertionError("it began")
