"""Runs: what a folder holds, how a broken run goes on, and that no finished one is lost."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dgz import experiments
from dgz.data import GZSLData, make_synthetic
from dgz.errors import DGZError
from dgz.experiments import BrokenRunsError, run, run_many
from dgz.many import fit_many
from dgz.metrics import gzsl_scores
from dgz.model import DGZ
from dgz.peers import CenterRidge
from dgz.records import Record, last, oracle, read_record, rows_of_curve


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
    assert names_in(folder) == {"config.json", "model", "record.json"}
    assert read_record(folder) == Record(**json.loads(json.dumps(vars(record))))
    assert record.params == tiny_model().settings()
    assert (record.method, record.selection, record.device.startswith("CPU (")) == ("DGZ", "last", True)
    assert record.chosen == {"attribute_scaling": "none"}
    config = json.loads((folder / "config.json").read_text())
    assert config["settings"]["generator"]["kind"] == "CenterMapper"
    assert config["data"]["hashes"] == data.hashes
    assert config["evaluate_every"] == 1


def test_the_saved_model_is_the_one_scored_and_speaks_in_names(finished: tuple[Path, Record], data: GZSLData) -> None:
    folder, record = finished
    model = DGZ.load(folder / "model")
    scores = json.dumps(gzsl_scores(model, data).to_dict())
    assert json.loads(scores, parse_float=lambda text: round(float(text), 6)) == record.scores
    assert model.classes_.tolist() == sorted(data.class_names)
    assert model.classes_[~model.seen_].tolist() == sorted(data.class_names[i] for i in data.unseen)
    right = model.predict(data.x_test_seen) == np.array(data.class_names)[data.y_test_seen]
    assert right.mean() == pytest.approx(record.scores["acc_seen"])  # classes are of equal size here


def test_the_curve_ends_in_the_recorded_scores_and_the_oracle_is_its_best(finished: tuple[Path, Record]) -> None:
    _, record = finished
    assert record.curve["generator"]["epoch"] == [1, 2, 3]
    curve = rows_of_curve(record.curve)
    final, best = last(curve), oracle(curve)
    assert final is not None
    assert best == pytest.approx(record.oracle, abs=1.1e-5)
    # Four classifier epochs after the first, the second and the last epoch of the generator.
    assert final["n_candidates"] == 12
    assert (final["generator_epoch"], final["epoch"]) == (3, 4)
    for name in ("acc_unseen", "acc_seen", "h", "acc_zsl"):
        assert final[name] == round(record.scores[name], 5)


ACCURACIES = ("acc_unseen", "acc_seen", "h", "acc_zsl")


@pytest.mark.parametrize("evaluate_every", [0, 2])
def test_a_records_curve_is_the_models_history(data: GZSLData, evaluate_every: int) -> None:
    model = tiny_model(n_epochs=3, generator__n_epochs=5)
    record = run(model, data, evaluate_every=evaluate_every)
    of_classifiers = [row for row in model.history_ if row["stage"] == "classifier"]
    assert len(of_classifiers) == (9 if evaluate_every else 3)  # after epochs 2, 4 and 5 of the generator, or 5 alone
    assert set(record.curve) == {"classifier", "generator"}
    assert list(record.curve["classifier"]) == ["generator_epoch", "epoch", *ACCURACIES]
    for name, column in record.curve["classifier"].items():
        assert column == pytest.approx([row[name] for row in of_classifiers], abs=1.1e-5), name
    of_generator = [row for row in model.history_ if row["stage"] == "generator"]
    names = {name for row in of_generator for name in row if name != "stage"}
    assert set(record.curve["generator"]) == names
    assert ("cacd" in names) == bool(evaluate_every)
    for name, column in record.curve["generator"].items():
        expected = [row.get(name) for row in of_generator]
        assert [value is None for value in column] == [value is None for value in expected]
        pairs = [pair for pair in zip(column, expected, strict=True) if pair[1] is not None]
        assert [one for one, _ in pairs] == pytest.approx([one for _, one in pairs], abs=1.1e-5), name
    if evaluate_every:
        tested_at = [value is not None for value in record.curve["generator"]["cacd"]]
        assert tested_at == [False, True, False, True, True]
    # Equal lengths throughout, so that rows can be read off; and numbers no longer than they need be.
    for stage in record.curve.values():
        assert len({len(column) for column in stage.values()}) == 1
        assert all(value == round(value, 5) for column in stage.values() for value in column if value is not None)
    assert len(rows_of_curve(record.curve)) == len(of_classifiers)


@pytest.mark.parametrize(("n_epochs", "n_kept"), [(40, 40), (41, 21), (100, 34)])
def test_a_long_training_of_a_generator_is_thinned_to_its_end(data: GZSLData, n_epochs: int, n_kept: int) -> None:
    model = tiny_model(n_epochs=1, generator__n_epochs=n_epochs, generator__steps_per_epoch=1)
    kept = run(model, data).curve["generator"]["epoch"]
    assert (len(kept), kept[-1]) == (n_kept, n_epochs)
    assert kept == sorted(set(kept))
    with_distances = run(model, data, evaluate_every=n_epochs // 2).curve["generator"]
    assert n_epochs // 2 in with_distances["epoch"]
    assert len([value for value in with_distances["cacd"] if value is not None]) >= 2


def test_a_method_without_epochs_has_no_curve(data: GZSLData) -> None:
    record = run(CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01), data, observe={"generation": {}})
    assert (record.curve, record.oracle, record.observed) == ({}, None, {})
    assert "cmmd" not in record.scores


def test_scores_are_rounded(finished: tuple[Path, Record], data: GZSLData) -> None:
    _, record = finished

    def numbers(content: Any) -> list[float]:
        inner = content.values() if isinstance(content, dict) else content if isinstance(content, list) else []
        return [content] if isinstance(content, float) else [number for part in inner for number in numbers(part)]

    found = numbers(record.scores)
    assert len(found) > 20
    assert all(number == round(number, 6) for number in found)


# --- What else is recorded.
def test_how_close_generated_rows_are_is_among_the_scores(data: GZSLData, tmp_path: Path) -> None:
    from dgz.observations import generation, gradients

    model = tiny_model()
    record = run(model, data, tmp_path, observe={"generation": {}, "gradients": {"n_rows": 50}})
    assert {name: record.scores[name] for name in ("cmmd", "cacd")} == generation(model, data)
    assert record.observed == {"gradients": gradients(model, data, n_rows=50)}
    assert read_record(tmp_path) == Record(**json.loads(json.dumps(vars(record))))
    plain = run(tiny_model(), data)
    assert plain.observed == {}
    assert plain.scores == {name: value for name, value in record.scores.items() if name not in ("cmmd", "cacd")}


def test_each_of_many_is_observed_as_asked(data: GZSLData) -> None:
    observe: list[Any] = [{}, {"generation": {}}, {"gradients": {}, "projection": {"n_classes": 2, "n_rows": 3}}]
    models = [tiny_model(random_state=seed) for seed in range(3)]
    records = run_many(models, data, observe=observe)
    assert [("cmmd" in record.scores, "cacd" in record.scores) for record in records] == [
        (False, False),
        (True, True),
        (False, False),
    ]
    assert [set(record.observed) for record in records] == [set(), set(), {"gradients", "projection"}]
    assert len(records[2].observed["projection"]["real"]["x"]) == 6
    # One alone, and among others that break.
    (alone,) = run_many([tiny_model(random_state=1)], data, observe=[observe[1]])
    assert alone.scores["cmmd"] == pytest.approx(records[1].scores["cmmd"], rel=1e-3)
    with pytest.raises(BrokenRunsError) as caught:
        run_many([tiny_model(**BROKEN), tiny_model(), tiny_model(random_state=1)], data, observe=observe)
    assert ["cmmd" in record.scores for record in caught.value.records] == [True, False]
    assert [set(record.observed) for record in caught.value.records] == [set(), {"gradients", "projection"}]


def test_generators_of_many_can_learn_from_fewer_rows_and_go_on(data: GZSLData, tmp_path: Path) -> None:
    rows = np.flatnonzero(np.isin(data.y_train, data.seen[:3]))
    ((fewer,), (all_of_them,)) = (
        run_many([tiny_model()], data, generator_rows=chosen, checkpoint_folder=tmp_path / str(k))
        for k, chosen in enumerate((rows, None))
    )
    assert fewer.scores != all_of_them.scores
    assert set(fewer.seconds) == {"fit", "evaluate"}  # a single one has no one to share its time with
    assert all_of_them.scores["h"] == pytest.approx(run(tiny_model(), data).scores["h"])
    assert list(tmp_path.rglob("*.safetensors")) == []  # nothing that short is kept


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
    assert names_in(tmp_path) == {"config.json", "model", "record.json", "notes.txt"}
    assert CenterRidge.load(tmp_path / "model").random_state == 7


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
    assert resumed.curve == unbroken.curve
    for name in ("config.json", "model/model.json", "model/model.safetensors"):
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


# --- Many at once.
@pytest.fixture
def fits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many models each training was of, in order: one by one through ``fit``, more through ``fit_many``."""
    counts = []

    def fit(self: DGZ, *arguments: Any, alone: Callable[..., DGZ] = DGZ.fit, **options: Any) -> DGZ:
        counts.append(1)
        return alone(self, *arguments, **options)

    def fit_together(models: Any, *arguments: Any, together: Callable[..., Any] = fit_many, **options: Any) -> Any:
        counts.append(len(models := list(models)))
        return together(models, *arguments, **options)

    monkeypatch.setattr(DGZ, "fit", fit)
    monkeypatch.setattr(experiments, "fit_many", fit_together)
    return counts


# No loss survives this λ1: it is no number of single precision.
BROKEN = {"lambda_1": 1e39}


def test_many_runs_are_what_each_would_have_been(data: GZSLData, tmp_path: Path, fits: list[int]) -> None:
    settings: list[dict[str, Any]] = [{"lambda_1": 0.1}, {"lambda_1": 3.0, "random_state": 7}, {"d_hidden": 8}]
    folders = [tmp_path / name for name in "abc"]
    records = run_many([tiny_model(**one) for one in settings], data, folders, selection="validation")
    assert fits == [3]
    for one, folder, record in zip(settings, folders, records, strict=True):
        alone_in = tmp_path / "alone" / folder.name
        alone = run(tiny_model(**one), data, alone_in, selection="validation")
        assert read_record(folder) == Record(**json.loads(json.dumps(vars(record))))
        assert names_in(folder) == names_in(alone_in) == {"config.json", "model", "record.json"}
        assert (folder / "config.json").read_bytes() == (alone_in / "config.json").read_bytes()
        same = ("method", "params", "chosen", "seed", "selection", "data", "class_names", "unseen", "device")
        assert {name: getattr(record, name) for name in same} == {name: getattr(alone, name) for name in same}
        assert record.scores["h"] == pytest.approx(alone.scores["h"])
        assert record.oracle == pytest.approx(alone.oracle)
        model = DGZ.load(folder / "model")
        assert gzsl_scores(model, data).h == pytest.approx(record.scores["h"], abs=1e-6)
        assert model.classes_.tolist() == sorted(data.class_names)
        assert last(rows_of_curve(record.curve))["h"] == round(record.scores["h"], 5)  # type: ignore[index]
    # No single one's time is known, and no record pretends otherwise.
    (together,) = {record.seconds["fit_together"] for record in records}
    assert together > 0
    for record in records:
        assert set(record.seconds) == {"fit_together", "fitted_together", "evaluate"}
        assert record.seconds["fitted_together"] == 3


def test_many_runs_without_folders_write_nothing(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    models = [tiny_model(random_state=seed) for seed in range(2)]
    assert [record.seed for record in run_many(iter(models), data)] == [0, 1]
    assert all(hasattr(model, "weights_") for model in models)
    assert names_in(tmp_path) == set()
    assert run_many([], data) == []


def test_methods_of_other_kinds_are_run_beside(data: GZSLData, tmp_path: Path, fits: list[int]) -> None:
    ridge = CenterRidge(alpha=0.01, bandwidth=2.0, seen_penalty=0.01)
    models = [tiny_model(), ridge, tiny_model(random_state=1)]
    records = run_many(models, data, [tmp_path / name for name in "abc"])
    assert [record.method for record in records] == ["DGZ", "CenterRidge", "DGZ"]
    assert fits == [2]
    assert set(records[1].seconds) == {"fit", "evaluate"}
    assert records[1].scores == run(ridge, data).scores
    assert names_in(tmp_path / "b") == {"config.json", "model", "record.json"}


def test_a_single_model_is_run_alone(data: GZSLData, tmp_path: Path, fits: list[int]) -> None:
    (record,) = run_many([tiny_model()], data, [tmp_path])
    assert fits == [1]
    assert set(record.seconds) == {"fit", "evaluate"}


def test_only_what_is_not_finished_is_trained_again(data: GZSLData, tmp_path: Path, fits: list[int]) -> None:
    folders = [tmp_path / str(seed) for seed in range(4)]
    first = run_many([tiny_model(random_state=seed) for seed in range(2)], data, folders[:2])
    untouched = (folders[0] / "model" / "model.safetensors").stat().st_mtime_ns
    models = [
        tiny_model(random_state=seed, verbose=seed == 0) for seed in range(4)
    ]  # which changes nothing about a run
    records = run_many(models, data, folders, resume=True)
    assert fits == [2, 2]
    assert [record.seed for record in records] == [0, 1, 2, 3]
    assert [record.scores for record in records[:2]] == [record.scores for record in first]
    assert [hasattr(model, "weights_") for model in models] == [False, False, True, True]
    assert (folders[0] / "model" / "model.safetensors").stat().st_mtime_ns == untouched
    assert run_many(models, data, folders, resume=True) == [read_record(folder) for folder in folders]
    assert fits == [2, 2]


def test_a_run_with_checkpoints_goes_on_alone(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fits: list[int]
) -> None:
    broken, whole = tmp_path / "0", tmp_path / "whole"
    break_off(data, broken, monkeypatch)
    fits.clear()
    folders = [broken, tmp_path / "1", tmp_path / "2"]
    records = run_many([tiny_model(random_state=seed) for seed in range(3)], data, folders, resume=True)
    assert fits == [2, 1]
    assert [set(record.seconds) - {"evaluate"} for record in records] == [
        {"fit_resumed"},
        {"fit_together", "fitted_together"},
        {"fit_together", "fitted_together"},
    ]
    run(tiny_model(), data, whole)
    assert (broken / "model/model.safetensors").read_bytes() == (whole / "model/model.safetensors").read_bytes()
    assert names_in(broken) == names_in(whole)


def test_many_runs_are_replaced_when_told(data: GZSLData, tmp_path: Path, fits: list[int]) -> None:
    folders = [tmp_path / name for name in "ab"]
    run_many([tiny_model(random_state=seed) for seed in range(2)], data, folders)
    run_many([tiny_model(random_state=seed) for seed in (5, 6)], data, folders, overwrite=True)
    assert fits == [2, 2]
    assert [read_record(folder).seed for folder in folders] == [5, 6]


@pytest.mark.parametrize(
    ("last_one", "options", "sentence"),
    [
        ({}, {}, "c holds a finished run; choose another folder or pass --overwrite"),
        ({"lambda_1": 9}, {"resume": True}, "c differs from this one in settings.lambda_1"),
        ({"lambda_1": -1}, {"overwrite": True}, "lambda_1 must be a number from 0 up, found -1"),
        ({}, {"resume": True, "overwrite": True}, "exclude each other"),
    ],
)
def test_one_that_cannot_be_run_stops_all_before_anything_has_changed(
    data: GZSLData,
    tmp_path: Path,
    fits: list[int],
    last_one: dict[str, Any],
    options: dict[str, bool],
    sentence: str,
) -> None:
    run(tiny_model(), data, tmp_path / "b")
    run(tiny_model(), data, tmp_path / "c")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    fits.clear()
    # All but the last could be run.
    models = [tiny_model(lambda_1=4), tiny_model(), tiny_model(**last_one)]
    places = ["a", "b" if options else "new", "c"]
    with pytest.raises(DGZError, match=sentence):
        run_many(models, data, [tmp_path / name for name in places], **options)
    assert {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()} == before
    assert fits == []
    assert not (tmp_path / "a").exists()


def test_what_is_in_the_way_of_one_saves_the_run_that_another_would_replace(data: GZSLData, tmp_path: Path) -> None:
    record = run(tiny_model(), data, tmp_path / "a")
    (tmp_path / "b" / "model").mkdir(parents=True)
    with pytest.raises(DGZError, match="is in the way and belongs to no run"):
        run_many([tiny_model()] * 2, data, [tmp_path / "a", tmp_path / "b"], overwrite=True)
    assert read_record(tmp_path / "a").scores == record.scores


@pytest.mark.parametrize(
    ("folders", "sentence"),
    [
        (["a", "b"], "found 3 models and 2 folders"),
        (["a", "b", "a"], "found twice: .*a"),
        (["a", "b/../a", "c"], "found twice: .*a"),
    ],
)
def test_each_run_has_a_folder_of_its_own(
    data: GZSLData, tmp_path: Path, folders: list[str], sentence: str, fits: list[int]
) -> None:
    with pytest.raises(DGZError, match=f"Each model needs a folder of its own, {sentence}"):
        run_many([tiny_model(random_state=seed) for seed in range(3)], data, [tmp_path / name for name in folders])
    assert fits == []
    assert names_in(tmp_path) == set()


@pytest.mark.parametrize("place", range(3))
def test_a_broken_run_does_not_lose_the_others(data: GZSLData, tmp_path: Path, place: int) -> None:
    folders = [tmp_path / name for name in "abc"]
    models = [tiny_model(random_state=1), tiny_model(random_state=2)]
    models.insert(place, tiny_model(**BROKEN))
    with pytest.raises(BrokenRunsError) as caught:
        run_many(models, data, folders)
    sentence = str(caught.value)
    assert sentence.startswith(f"No model came of {folders[place]}: Training broke for 1 of 3 models, ")
    assert "\n" not in sentence
    assert [record.seed for record in caught.value.records] == [1, 2]
    for k, folder in enumerate(folders):
        assert (folder / "record.json").is_file() == (k != place)
    assert names_in(folders[place]) == {"config.json"}
    models[place] = tiny_model(random_state=3)  # as good as none, it is in nobody's way
    assert len(run_many(models, data, folders, resume=True)) == 3


def test_a_broken_run_among_those_that_run_alone_does_not_lose_the_others(
    data: GZSLData, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(self: CenterRidge, **_: Any) -> None:
        raise DGZError("Nothing can be solved.")

    monkeypatch.setattr(CenterRidge, "fit", fail)
    models = [CenterRidge(), tiny_model(), tiny_model(random_state=1), tiny_model(**BROKEN)]
    with pytest.raises(BrokenRunsError, match=r"No model came of model 1, model 4: Nothing can be solved\.$") as caught:
        run_many(models, data)
    assert [record.method for record in caught.value.records] == ["DGZ", "DGZ"]


def test_many_runs_without_test_rows_give_models_and_no_scores(data: GZSLData, tmp_path: Path) -> None:
    parts: dict[str, Any] = {"x_test_unseen": None, "y_test_unseen": None, "test_unseen_index": None}
    folders = [tmp_path / name for name in "ab"]
    records = run_many([tiny_model(random_state=seed) for seed in range(2)], replace(data, **parts), folders)
    assert [(record.scores, record.oracle) for record in records] == [({}, None)] * 2
    assert DGZ.load(folders[1] / "model").predict(data.x_train[:1]).tolist()[0] in data.class_names
