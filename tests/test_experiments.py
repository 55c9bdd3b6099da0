"""Runs: what a folder holds, how a broken run goes on, and that no finished one is lost."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgz.data import GZSLData, make_synthetic
from dgz.errors import DGZError
from dgz.experiments import run
from dgz.metrics import gzsl_scores
from dgz.model import DGZ
from dgz.peers import CenterRidge
from dgz.records import Record, last, oracle, read_record


@pytest.fixture(scope="module")
def data() -> GZSLData:
    made = make_synthetic(8, 2, n_attributes=6, n_features=12, n_samples=160, random_state=1)
    # Names whose order is not that of the ids: a mix-up of the two would show.
    return replace(made, class_names=tuple(f"kind {name}" for name in "hgfedcba"))


def tiny_model(**overrides: Any) -> DGZ:
    settings = {"d_hidden": 16, "n_epochs": 4, "generator__n_epochs": 3, "generator__hidden": (8,), "device": "cpu"}
    return DGZ.without_generator(**settings | {"learning_rate": 0.003} | overrides)


@pytest.fixture(scope="module")
def finished(data: GZSLData, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Record]:
    folder = tmp_path_factory.mktemp("runs") / "finished"
    return folder, run(tiny_model(), data, folder, evaluate_every=1)


def break_off(data: GZSLData, folder: Path, monkeypatch: pytest.MonkeyPatch, **overrides: Any) -> None:
    """Stop a run when its training is done and its model is about to be saved."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(DGZ, "save", stop)
        run(tiny_model(**overrides), data, folder)


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def test_a_runs_folder_holds_everything_about_it(finished: tuple[Path, Record], data: GZSLData) -> None:
    folder, record = finished
    assert names_in(folder) == {"config.json", "curve.json", "model", "record.json"}
    assert read_record(folder) == Record(**json.loads(json.dumps(vars(record))))
    assert record.params == tiny_model().settings()
    assert (record.method, record.selection, record.device.startswith("CPU (")) == ("DGZ", "last", True)
    assert record.chosen == {}
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["generator"]["kind"] == "CenterMapper"
    assert config["data"]["hashes"] == data.hashes
    assert config["evaluate_every"] == 1


def test_the_saved_model_is_the_one_scored_and_speaks_in_names(finished: tuple[Path, Record], data: GZSLData) -> None:
    folder, record = finished
    model = DGZ.load(folder / "model")
    assert gzsl_scores(model, data).to_dict() == record.scores
    assert model.classes_.tolist() == sorted(data.class_names)
    assert model.classes_[~model.seen_].tolist() == sorted(data.class_names[i] for i in data.unseen)
    right = model.predict(data.x_test_seen) == np.array(data.class_names)[data.y_test_seen]
    assert right.mean() == pytest.approx(record.scores["acc_seen"])  # classes are of equal size here


def test_the_curve_ends_in_the_recorded_scores_and_the_oracle_is_its_best(finished: tuple[Path, Record]) -> None:
    folder, record = finished
    curve = json.loads((folder / "curve.json").read_text())
    assert [row["stage"] for row in curve].count("generator") == 3
    final, best = last(curve), oracle(curve)
    assert final is not None
    assert best == record.oracle
    # Four classifier epochs after the first, the second and the last epoch of the generator.
    assert final["n_candidates"] == 12
    assert (final["generator_epoch"], final["epoch"]) == (3, 4)
    for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert final[name] == round(record.scores[name], 6)
    numbers = [value for row in curve for value in row.values() if isinstance(value, float)]
    assert all(value == round(value, 6) for value in numbers)


def test_nothing_is_written_without_a_folder(data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    record = run(tiny_model(n_epochs=1), data)
    assert record.oracle is not None
    assert record.oracle["n_candidates"] == 1
    assert names_in(tmp_path) == set()


def test_a_finished_run_is_not_lost_by_mistake(finished: tuple[Path, Record], data: GZSLData) -> None:
    folder, _ = finished
    with pytest.raises(DGZError, match="holds a finished run; choose another folder or pass --overwrite"):
        run(tiny_model(), data, folder)


def test_resuming_a_finished_run_reads_it(finished: tuple[Path, Record], data: GZSLData) -> None:
    folder, record = finished
    model = tiny_model(verbose=True)  # which changes nothing about a run
    assert run(model, data, folder, resume=True, evaluate_every=1).scores == record.scores
    assert not hasattr(model, "classes_")


def test_overwriting_starts_anew(data: GZSLData, tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    run(tiny_model(), data, tmp_path)
    record = run(CenterRidge(random_state=7), data, tmp_path, overwrite=True, selection="validation")
    assert read_record(tmp_path).seed == record.seed == 7
    assert names_in(tmp_path) == {"config.json", "record.json", "notes.txt"}


def test_an_unfinished_run_goes_on_and_ends_as_if_unbroken(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken, whole = tmp_path / "broken", tmp_path / "whole"
    break_off(data, broken, monkeypatch)
    assert names_in(broken) == {"config.json", "checkpoints"}
    with pytest.raises(
        DGZError, match=r"holds an unfinished run; go on with --resume .* or start anew with --overwrit"
    ):
        run(tiny_model(), data, broken)
    resumed, unbroken = run(tiny_model(), data, broken, resume=True), run(tiny_model(), data, whole)
    assert resumed.scores == unbroken.scores
    assert names_in(broken) == names_in(whole)
    for name in ("curve.json", "config.json", "model/model.json", "model/model.safetensors"):
        assert (broken / name).read_bytes() == (whole / name).read_bytes()
    # Only the end of the training was timed, and the record does not pretend otherwise.
    assert set(resumed.seconds) == {"fit_resumed", "evaluate"}
    assert set(unbroken.seconds) == {"fit", "evaluate"}


def test_a_run_is_resumed_as_it_was_or_not_at_all(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_off(data, tmp_path, monkeypatch)
    with pytest.raises(DGZError, match=r"differs from this one in settings.generator.hidden, settings.lambda_1 \(see"):
        run(tiny_model(lambda_1=2, generator__hidden=(9,)), data, tmp_path, resume=True)
    other = replace(data, attributes=data.attributes * 2)
    with pytest.raises(DGZError, match=r"differs from this one in data.hashes.attributes, evaluate_every \(see"):
        run(tiny_model(), other, tmp_path, resume=True, evaluate_every=2)
    with pytest.raises(DGZError, match="exclude each other"):
        run(tiny_model(), data, tmp_path, resume=True, overwrite=True)
    run(tiny_model(lambda_1=2), data, tmp_path, overwrite=True)
    assert read_record(tmp_path).params["lambda_1"] == 2


def test_resuming_what_never_began_starts_it(data: GZSLData, tmp_path: Path) -> None:
    assert "fit" in run(tiny_model(), data, tmp_path / "new", resume=True).seconds


def test_a_run_that_failed_before_its_first_checkpoint_is_in_nobodys_way(data: GZSLData, tmp_path: Path) -> None:
    rows = data.x_train.copy()
    rows[0] = 1e38  # finite, and its squares are not
    with np.errstate(all="ignore"), pytest.raises(DGZError, match="no finite number"):
        run(tiny_model(feature_scaling="none"), replace(data, x_train=rows), tmp_path)
    assert names_in(tmp_path) == {"config.json"}
    run(tiny_model(), data, tmp_path)


@pytest.mark.parametrize(
    "mistake", [{"generator__n_epochs": 0}, {"feature_scaling": "odd"}, {"n_per_class": 0}, {"device": "nowhere"}]
)
def test_a_mistake_in_the_settings_costs_no_finished_run(
    data: GZSLData, tmp_path: Path, mistake: dict[str, Any]
) -> None:
    record = run(tiny_model(), data, tmp_path)
    with pytest.raises(DGZError):
        run(tiny_model(**mistake), data, tmp_path, overwrite=True)
    assert read_record(tmp_path).scores == record.scores


def test_what_belongs_to_no_run_is_never_replaced(data: GZSLData, tmp_path: Path) -> None:
    (tmp_path / "model").mkdir()
    for overwrite in (False, True):
        with pytest.raises(DGZError, match="model is in the way and belongs to no run"):
            run(tiny_model(), data, tmp_path, overwrite=overwrite)
    assert names_in(tmp_path) == {"model"}


@pytest.mark.parametrize("missing", ["seen", "unseen"])
def test_data_without_test_rows_gives_a_model_and_no_scores(data: GZSLData, tmp_path: Path, missing: str) -> None:
    parts: dict[str, Any] = {f"{name}_test_{missing}": None for name in "xy"} | {f"test_{missing}_index": None}
    record = run(tiny_model(), replace(data, **parts), tmp_path)
    assert (record.scores, record.oracle) == ({}, None)
    assert read_record(tmp_path).scores == {}
    assert DGZ.load(tmp_path / "model").predict(data.x_train[:1]).tolist()[0] in data.class_names
